// GEMM on quantized operands: C = alpha A B^T, A being m x k, B n x k, both K-major, in any two schemes.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accumulate.hpp"
#include "executor.hpp"
#include "options.hpp"
#include "quantized.hpp"

namespace microscale {

struct gemm_options {
  // The factor applied last, in one FP32 multiplication. By default fl(D_a D_b), D being each operand's decode
  // multiplier, of the output's row and column where there is one per row. TransformerEngine's own, A_a A_b / (6 6 448
  // 448), is an ulp apart at times: pass it here.
  std::optional<float> alpha = std::nullopt;
};

namespace detail {

// Whether the shapes fit together; of b, whose codes may be elsewhere, only the shape and the tensor scales are read.
template <class B>
void check_gemm_shapes(index_t m, index_t k, const quantized_view<const B>& b, const matrix_view<float>& c) {
  check_matrix("GEMM output", c);
  if (k != b.cols) fail("K of GEMM operand B", std::to_string(k), std::to_string(b.cols));
  if (c.rows != m || c.cols != b.rows) fail("GEMM output shape", shape_text(m, b.rows), shape_text(c.rows, c.cols));
  // A tensor scale that changes along K could not be applied after the sum.
  if (b.tile.cols != 0)
    fail("tensor scales of GEMM operand B", "tiles of whole rows", shape_text(b.tile.rows, b.tile.cols));
}
template <class A, class B>
void check_gemm_shapes(const quantized_view<const A>& a, const quantized_view<const B>& b,
                       const matrix_view<float>& c) {
  if (a.tile.cols != 0)
    fail("tensor scales of GEMM operand A", "tiles of whole rows", shape_text(a.tile.rows, a.tile.cols));
  check_gemm_shapes(a.rows, a.cols, b, c);
}

template <class A, class B>
void check_gemm(const quantized_view<const A>& a, const quantized_view<const B>& b, const matrix_view<float>& c) {
  check_quantized("GEMM operand A", a);
  check_quantized("GEMM operand B", b);
  check_gemm_shapes(a, b, c);
}

// The factor of output (i, j): fl(D_a D_b), or what the caller gave.
template <class A, class B>
float gemm_alpha(const quantized_view<const A>& a, const quantized_view<const B>& b, const gemm_options& options,
                 index_t i = 0, index_t j = 0) {
  if (options.alpha) return *options.alpha;
  return fp32::mul(a.factors(a.tile_index(i, 0)).decode, b.factors(b.tile_index(j, 0)).decode);
}

// Of a product whose left operand is not quantized.
template <class T, class B>
float gemm_alpha(const matrix_view<T>&, const quantized_view<const B>& b, const gemm_options& options, index_t = 0,
                 index_t j = 0) {
  return options.alpha ? *options.alpha : b.factors(b.tile_index(j, 0)).decode;
}

// Rows [first, last) of the output.
template <exact_accumulation P, class Left, class B>
void gemm_rows(const Left& a, const quantized_view<const B>& b, const matrix_view<float>& c,
               const gemm_options& options, index_t first, index_t last) {
  for (index_t i = first; i < last; ++i) {
    for (index_t j = 0; j < c.cols; ++j) c(i, j) = fp32::mul(P::dot(a, i, b, j), gemm_alpha(a, b, options, i, j));
  }
}

}  // namespace detail

// Writes the m x n product into the caller's memory, each output by P::dot (accumulate.hpp) and then one multiplication
// by alpha. k = 0 gives zeros.
template <exact_accumulation P = exact_f32, host_executor Executor, class A, class B>
void gemm_into(const Executor& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options = {}, std::span<std::byte> /*workspace*/ = {}) {
  const quantized_view<const A> a = a_in;
  const quantized_view<const B> b = b_in;
  detail::check_gemm(a, b, c);
  detail::run_ranges(executor, c.rows, c.cols * a.cols,
                     [&](index_t first, index_t last) { detail::gemm_rows<P>(a, b, c, options, first, last); });
}

// The same with a left operand that is not quantized (float, bf16 or f16): FP4 weights under activations of full
// precision. Only `f32_blocks` is defined for it; the default alpha is the weights' decode multiplier.
template <exact_accumulation P, host_executor Executor, readable_element T, class B>
requires std::same_as<P, f32_blocks>
void gemm_into(const Executor& executor, matrix_view<T> a, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options = {}) {
  const quantized_view<const B> b = b_in;
  detail::check_matrix("GEMM operand A", a);
  detail::check_quantized("GEMM operand B", b);
  detail::check_gemm_shapes(a.rows, a.cols, b, c);
  detail::run_ranges(executor, c.rows, c.cols * a.cols,
                     [&](index_t first, index_t last) { detail::gemm_rows<P>(a, b, c, options, first, last); });
}

// How many bytes of workspace gemm_into<P> wants.
template <exact_accumulation P, host_executor Executor, class A, class B>
constexpr std::size_t gemm_workspace(const Executor&, const quantized_view<A>&, const quantized_view<B>&) {
  return 0;
}

// The same into new memory, row-major m x n; each operand owns its memory or is a view.
template <gemm_accumulation P = exact_f32, host_executor Executor, quantized_operand A, quantized_operand B>
std::vector<float> gemm(const Executor& executor, const A& a_in, const B& b_in, const gemm_options& options = {}) {
  const auto a = detail::read_only(a_in);
  const auto b = detail::read_only(b_in);
  std::vector<float> c(detail::countable("GEMM output", a.rows, b.rows));
  std::vector<std::byte> workspace(gemm_workspace<P>(executor, a, b));
  gemm_into<P>(executor, a, b, matrix(c.data(), a.rows, b.rows), options, std::span<std::byte>(workspace));
  return c;
}
template <gemm_accumulation P = exact_f32, quantized_operand A, quantized_operand B>
std::vector<float> gemm(const A& a, const B& b, const gemm_options& options = {}) {
  return gemm<P>(sequential{}, a, b, options);
}

}  // namespace microscale
