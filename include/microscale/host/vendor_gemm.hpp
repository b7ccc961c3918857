// The `vendor` accumulation on the host: decode both operands, then an ordinary FP32 GEMM.
//
// E2M1 under UE4M3, UE5M3 or E8M0 scales decodes exactly, so every product is exact and only the order of the sum is
// left to the GEMM: outside the promise of equal bits, within the usual error bound of an FP32 sum of k terms,
// |C - exact| <= k 2^-24 sum |a b| (1 + k 2^-24), plus one rounding for alpha. Where the fast GEMM on 4-bit codes has
// exact terms, it is what is called: it sums a run without rounding, and is faster than any product of floats.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "../tensor/gemm.hpp"
#include "blocked_gemm.hpp"
#include "executor.hpp"
#include "packed_gemm.hpp"

namespace microscale {

namespace detail {

// Rows [first, last) as element * block scale, without the tensor scale, which alpha carries.
template <class S>
void decode_rows_unscaled(const quantized_view<const S>& q, const matrix_view<float>& out, index_t first,
                          index_t last) {
  using element = typename S::element;
  constexpr int codes = element::bits <= 8 ? 1 << element::bits : 1;
  float table[codes];
  for (int c = 0; c < codes; ++c) table[c] = element::decode(static_cast<typename element::storage>(c));
  for (index_t r = first; r < last; ++r) {
    const std::uint8_t* row = q.codes + r * q.code_pitch;
    for (index_t bc = 0; bc < q.block_cols(); ++bc) {
      const float s = S::scale::decode(q.scales[q.scale_offset(r / S::block::rows, bc)]);
      const index_t begin = bc * S::block::columns, end = smaller(q.cols, begin + S::block::columns);
      for (index_t k = begin; k < end; ++k) {
        const auto code = load_code<element>(row, k);
        if constexpr (element::bits <= 8) {
          out(r, k) = table[code] * s;
        } else {
          out(r, k) = element::decode(code) * s;
        }
      }
    }
  }
}

}  // namespace detail

// Bytes of workspace that gemm_into<vendor> wants: both operands decoded.
template <std::same_as<vendor> P, host_executor Executor, class A, class B>
std::size_t gemm_workspace(const Executor&, const quantized_view<A>& a, const quantized_view<B>& b) {
  return static_cast<std::size_t>((a.rows + b.rows) * a.cols) * sizeof(float) + alignof(float);
}

// C = alpha A B^T by an FP32 GEMM over the decoded operands; `workspace` as gemm_workspace says.
template <std::same_as<vendor> P, host_executor Executor, class A, class B>
void gemm_into(const Executor& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options, std::span<std::byte> workspace) {
  const quantized_view<const A> a = a_in;
  const quantized_view<const B> b = b_in;
  detail::check_gemm(a, b, c);
  const std::size_t needed = gemm_workspace<vendor>(executor, a, b);
  if (workspace.size() < needed) {
    detail::fail("GEMM workspace", std::to_string(needed) + " bytes", std::to_string(workspace.size()));
  }
  if constexpr (detail::block_gemm_scheme<std::remove_const_t<A>> &&
                detail::block_gemm_scheme<std::remove_const_t<B>>) {
    using scheme_a = std::remove_const_t<A>;
    using scheme_b = std::remove_const_t<B>;
    using bits = detail::product_bits<scheme_a, scheme_b>;
    if (a.cols > 0 && bits::terms_are_exact(detail::span_of<scheme_a>(a), detail::span_of<scheme_b>(b))) {
      const detail::view_source<scheme_b> right{b};
      const auto kernels =
          detail::select_blocks<detail::tile_sums::exact_blocks, bits::run / 4>(detail::simd_of(executor));
      return detail::block_gemm_into(executor, kernels, false, a, b, right, c, options);
    }
  }
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(workspace.data()) % alignof(float);
  float* const floats = reinterpret_cast<float*>(workspace.data() + (misaligned > 0 ? alignof(float) - misaligned : 0));
  const matrix_view<float> left = matrix(floats, a.rows, a.cols);
  const matrix_view<float> right = matrix(floats + a.rows * a.cols, b.rows, b.cols);
  detail::run_ranges(executor, a.rows, a.cols,
                     [&](index_t first, index_t last) { detail::decode_rows_unscaled(a, left, first, last); });
  detail::run_ranges(executor, b.rows, b.cols,
                     [&](index_t first, index_t last) { detail::decode_rows_unscaled(b, right, first, last); });
  const bool one_alpha = options.alpha || (a.tile.rows == 0 && b.tile.rows == 0);
  float alpha = 1.0f;
  if (one_alpha) detail::in_default_environment([&] { alpha = detail::gemm_alpha(a, b, options); });
  detail::gemm_f32(executor, left, right, c, alpha);
  if (!one_alpha) {
    detail::run_ranges(executor, c.rows, c.cols, [&](index_t first, index_t last) {
      for (index_t i = first; i < last; ++i) {
        for (index_t j = 0; j < c.cols; ++j) c(i, j) = fp32::mul(c(i, j), detail::gemm_alpha(a, b, options, i, j));
      }
    });
  }
}

}  // namespace microscale
