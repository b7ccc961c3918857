// GEMM on quantized operands on the device: the bits of tensor/gemm.hpp, for the accumulations that have a definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "../tensor/gemm.hpp"
#include "blackwell_gemm.cuh"
#include "block.cuh"
#include "tensor_core.cuh"

namespace microscale {

namespace detail::device {

template <class A, class B>
struct gemm_call {
  quantized_view<const A> a;
  quantized_view<const B> b;
  matrix_view<float> c;
  row_groups rows;
  bool has_alpha;
  float alpha;
  bool aligned;  // rows of codes of both operands begin on 4 bytes

  // Output (i, j) is the product of row i of a with this row of b; -1 for a row of no group.
  __device__ index_t b_row(index_t i, index_t j) const {
    if (rows.count == 1 && rows.offsets == nullptr) return j;
    const index_t g = rows.group_of(i);
    return g == rows.count ? -1 : g * c.cols + j;
  }
};

template <class A, class B>
inline constexpr bool multiplies_packed =
    is_e2m1<typename A::element>&& is_e2m1<typename B::element>&& A::block::columns % 16 == 0 &&
    B::block::columns % 16 == 0;

// Four E2M1 codes, the low half of `codes`, as bytes 12 + 2 * value, which are all below 128.
__device__ inline std::uint32_t biased_bytes(std::uint32_t codes) {
  const std::uint32_t magnitudes = codes & 0x7777u;
  const std::uint32_t positive = select_bytes(0x0F0E0D0Cu, 0x18141210u, magnitudes);          // 12 13 14 15 16 18 20 24
  const std::uint32_t negative = select_bytes(0x090A0B0Cu, 0x00040608u, magnitudes);          // 12 11 10  9  8  6  4  0
  const std::uint32_t is_negative = select_bytes(0x80808080u, 0x80808080u, codes & 0x8888u);  // FF, or 80
  return (positive & ~is_negative) | (negative & is_negative);
}
// The dot product of eight codes with eight, times 4.
__device__ inline int dot_of_eight(std::uint32_t a, std::uint32_t b) {
  constexpr unsigned ones = 0x01010101u;
  unsigned products = 0, sums = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned x = biased_bytes(a >> (16 * half) & 0xFFFFu), y = biased_bytes(b >> (16 * half) & 0xFFFFu);
    products = __dp4a(x, y, products);
    sums = __dp4a(x, ones, __dp4a(y, ones, sums));
  }
  // (x - 12) (y - 12), summed over eight.
  return static_cast<int>(products) - 12 * static_cast<int>(sums) + 8 * 144;
}

// P::dot for operands whose elements are E2M1, the products of a run summed as integers of eight codes at a time.
template <class A, class B>
class packed_dot {
  using sa = typename A::scale;
  using sb = typename B::scale;
  using ea = typename A::element;
  using eb = typename B::element;

  const quantized_view<const A>& a_;
  const quantized_view<const B>& b_;
  index_t i_, j_;
  bool aligned_;

  // The exact sum of up to 2^TermsLog2 products, as in exact_sum.
  template <int TermsLog2>
  struct wide_sum {
    static constexpr int bits = span_bits<ea>() + span_bits<eb>() + span_bits<sa>() + span_bits<sb>() + TermsLog2 + 1;
    wide_integer<ceil_div(bits, 64)> sum;
    bool finite = true;

    __device__ void add(int dot, const unpacked& x, const unpacked& y) {
      if (x.kind != number_class::finite || y.kind != number_class::finite) {
        finite = false;
        return;
      }
      sum.add_product(static_cast<std::uint64_t>(dot < 0 ? -dot : dot), x.significand * y.significand,
                      (dot < 0) != (x.negative != y.negative),
                      x.exponent - sa::step_exponent + y.exponent - sb::step_exponent);
    }
    __device__ float rounded() const {
      if (!finite) return fp32::quiet_nan();
      const unpacked total =
          sum.to_unpacked(ea::step_exponent + eb::step_exponent + sa::step_exponent + sb::step_exponent);
      return total.is_zero() ? 0.0f : fp32::from_bits(f32::encode(total, nearest_even{}, overflow::ieee));
    }
  };

  __device__ int dot(index_t first, index_t last) const {
    const std::uint8_t* const x = a_.codes + i_ * a_.code_pitch;
    const std::uint8_t* const y = b_.codes + j_ * b_.code_pitch;
    int total = 0;
    for (index_t k = first; k < last; k += 8) {
      const int n = static_cast<int>(smaller(index_t{8}, last - k));
      total += dot_of_eight(load_eight(x + k / 2, n, aligned_), load_eight(y + k / 2, n, aligned_));
    }
    return total;
  }
  template <class Sum>
  __device__ void add_runs(Sum& sum, index_t first, index_t last, index_t group) const {
    for (index_t k = first; k < last;) {
      const index_t end = run_end<A, B>(k, last, group);
      sum.add(dot(k, end), sa::unpack_code(a_.scale(i_, k)), sb::unpack_code(b_.scale(j_, k)));
      k = end;
    }
  }

 public:
  __device__ packed_dot(const quantized_view<const A>& a, index_t i, const quantized_view<const B>& b, index_t j,
                        bool aligned)
      : a_(a), b_(b), i_(i), j_(j), aligned_(aligned) {}

  template <class P>
  __device__ float value() const {
    const index_t depth = a_.cols;
    if constexpr (std::is_same_v<P, exact_f32>) {
      wide_sum<40> sum;
      add_runs(sum, 0, depth, larger(depth, index_t{1}));
      return sum.rounded();
    } else if constexpr (std::is_same_v<P, blackwell_k64>) {
      float total = 0.0f;
      for (index_t k = 0; k < depth; k += blackwell_k64::group) {
        wide_sum<6> sum;
        add_runs(sum, k, smaller(depth, k + blackwell_k64::group), blackwell_k64::group);
        total = add_toward_zero(total, sum.rounded());
      }
      return total;
    } else {
      float total = 0.0f;
      for (index_t k = 0; k < depth;) {
        const index_t end = run_end<A, B>(k, depth, depth);
        const auto x = a_.scale(i_, k);
        const auto y = b_.scale(j_, k);
        if (!sa::is_finite(x) || !sb::is_finite(y)) return fp32::quiet_nan();
        const float run = static_cast<float>(dot(k, end)) * 0.25f;  // exact: far below 2^24
        total = fp32::add(total, fp32::mul(fp32::mul(sa::decode(x), sb::decode(y)), run));
        k = end;
      }
      return total;
    }
  }
};

// Row i of a times row j of b, before alpha.
template <class P, class A, class B>
__device__ float dot_of(const gemm_call<A, B>& call, index_t i, index_t j) {
  if constexpr (multiplies_packed<A, B>) {
    return packed_dot<A, B>(call.a, i, call.b, j, call.aligned).template value<P>();
  } else {
    return P::dot(call.a, i, call.b, j);
  }
}

// Each thread computes outputs as the policy defines them; a warp takes 4 x 8 of them, so that it shares the rows of
// both operands.
template <exact_accumulation P, quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block) gemm_kernel(const gemm_call<A, B> call) {
  // One factor for all outputs, unless rows have tensor scales of their own.
  const bool by_rows = !call.has_alpha && (call.a.tile.rows != 0 || call.b.tile.rows != 0);
  float alpha = call.alpha;
  if (!call.has_alpha && !by_rows) alpha = fp32::mul(call.a.factors().decode, call.b.factors().decode);
  const int warps = static_cast<int>(blockDim.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const index_t tile_rows_count = ceil_div(call.c.rows, index_t{4} * warps);
  const index_t tiles = tile_rows_count * ceil_div(call.c.cols, index_t{8});
#pragma unroll 1
  for (index_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const index_t i = t % tile_rows_count * 4 * warps + threadIdx.x / 32 * 4 + lane / 8;
    const index_t j = t / tile_rows_count * 8 + lane % 8;
    if (i >= call.c.rows || j >= call.c.cols) continue;
    const index_t other = call.b_row(i, j);
    if (other < 0) continue;
    const float sum = dot_of<P>(call, i, other);
    if (by_rows) {
      alpha =
          fp32::mul(call.a.factors(call.a.tile_index(i, 0)).decode, call.b.factors(call.b.tile_index(other, 0)).decode);
    }
    call.c(i, j) = fp32::mul(sum, alpha);
  }
}

// The outputs that k64_kernel left, by the definition.
template <exact_accumulation P, quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block)
    k64_left_kernel(const gemm_call<A, B> call, const k64_call fast) {
  const index_t tile_cols = ceil_div(call.c.cols, index_t{k64_rows});
#pragma unroll 1
  for (index_t t = blockIdx.x; t < fast.tile_rows * tile_cols; t += gridDim.x) {
    const k64_output at(t, fast.tile_rows, tile_cols);
    const row_slab slab = slab_of(fast.rows, at.row);
    if (slab.first >= slab.last || fast.left[t] == 0) continue;
#pragma unroll 1
    for (int o = static_cast<int>(threadIdx.x); o < k64_rows * k64_rows; o += static_cast<int>(blockDim.x)) {
      const index_t i = slab.first + o / k64_rows, j = at.col * k64_rows + o % k64_rows;
      if (i >= slab.last || j >= call.c.cols) continue;
      const index_t other = slab.group * call.c.cols + j;
      const float alpha = call.has_alpha ? call.alpha : fp32::mul(fast.a.decode[i], fast.b.decode[other]);
      call.c(i, j) = fp32::mul(dot_of<P>(call, i, other), alpha);
    }
  }
}

// By tensor cores (blackwell_gemm.cuh), in a workspace of k64_plan::bytes().
template <class P, class A, class B>
void multiply_k64(const cuda& executor, const gemm_call<A, B>& call, std::byte* memory) {
  const k64_plan plan(call.rows, call.b.rows, call.a.cols);
  k64_call fast = {};
  fast.a = plan.a(memory);
  fast.b = plan.b(memory);
  constexpr bool always = k64_always<A, B>() && !std::is_same_v<P, exact_f32>;
  if (!always) fast.left = plan.left(memory);
  fast.c = call.c;
  fast.rows = call.rows;
  fast.tile_rows = plan.a_tiles;
  fast.groups = plan.groups;
  fast.blocks_of_32 = A::block::columns % 32 == 0 && B::block::columns % 32 == 0;
  fast.has_alpha = call.has_alpha;
  fast.alpha = call.alpha;
  k64_prepare(executor, call.a, plan.a_rows, plan.a_tiles * plan.groups, fast.a);
  k64_prepare(executor, call.b, plan.b_rows, plan.b_tiles * plan.groups, fast.b);
  k64_multiply<P>(executor, fast, plan.output_tiles());
  if constexpr (!always) {
    launch(executor, "GEMM", &k64_left_kernel<P, A, B>, plan.output_tiles(), call, fast);
  }
}

template <class P, class A, class B>
inline constexpr bool uses_k64 = (std::is_same_v<P, blackwell_k64> || std::is_same_v<P, f32_blocks> ||
                                  std::is_same_v<P, exact_f32>)&&fits_k64<A>&& fits_k64<B>;

// One product, or one for each group of rows.
template <class P, class A, class B>
std::size_t product_workspace(const row_groups& rows, const quantized_view<const A>& a,
                              const quantized_view<const B>& b) {
  if constexpr (uses_k64<P, A, B>) {
    return a.rows == 0 || b.rows == 0 || a.cols == 0 ? 0 : k64_plan(rows, b.rows, a.cols).bytes();
  } else {
    return 0;
  }
}

template <class P, class A, class B>
void multiply(const cuda& executor, const row_groups& rows, const quantized_view<const A>& a,
              const quantized_view<const B>& b, const matrix_view<float>& c, const gemm_options& options,
              std::span<std::byte> workspace) {
  check_launch(executor.launch);
  if (c.empty()) return;
  const bool aligned = is_aligned(a.codes, a.code_pitch, 4) && is_aligned(b.codes, b.code_pitch, 4);
  const gemm_call<A, B> call{a, b, c, rows, options.alpha.has_value(), options.alpha.value_or(1.0f), aligned};
  if constexpr (uses_k64<P, A, B>) {
    if (!workspace.empty() && a.cols > 0) {
      const std::size_t needed = product_workspace<P>(rows, a, b);
      if (workspace.size() < needed || !is_aligned(workspace.data(), 0, 16)) {
        fail("GEMM workspace", std::to_string(needed) + " bytes of device memory, aligned to 16",
             std::to_string(workspace.size()) + " bytes");
      }
      multiply_k64<P>(executor, call, workspace.data());
      return;
    }
  }
  const index_t warps = executor.launch.threads / 32;
  const index_t blocks = ceil_div(c.rows, 4 * warps) * ceil_div(c.cols, index_t{8});
  launch(executor, "GEMM", &gemm_kernel<P, A, B>, blocks, call);
}

template <class A, class B>
void check_groups(const quantized_view<const A>& a, const quantized_view<const B>& b, const matrix_view<float>& c,
                  index_t groups, bool equal) {
  if (groups < 1 || b.rows % groups != 0 || (equal && a.rows % groups != 0)) {
    fail("groups of a GEMM", "a divisor of the rows",
         std::to_string(groups) + " of " + std::to_string(a.rows) + " and " + std::to_string(b.rows));
  }
  quantized_view<const B> one = b;
  one.rows = b.rows / groups;
  check_gemm(a, one, c);
}

}  // namespace detail::device

// How many bytes of device workspace gemm_into<P> wants, on a multiple of 16 bytes.
template <exact_accumulation P, class A, class B>
std::size_t gemm_workspace(const cuda&, const quantized_view<A>& a_in, const quantized_view<B>& b_in) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  return detail::device::product_workspace<P>({nullptr, 1, a.rows}, a, b);
}

// Writes the m x n product into the caller's memory, as the host's gemm_into does. options.alpha is the host's; without
// it, alpha is the product of the operands' decode multipliers, from their data in device memory.
//
// With a workspace (device memory, gemm_workspace<P> bytes), the accumulations of E2M1 operands under scales of at most
// four significant bits run on tensor cores; without one they compute the same bits a few hundred times slower, as does
// exact_f32 for tiles of operands whose scales lie too far apart for binary64 (by more than about 2^25 in all, at K =
// 4096). Other schemes want none.
template <exact_accumulation P = exact_f32, class A, class B>
void gemm_into(const cuda& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options = {}, std::span<std::byte> workspace = {}) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  detail::check_gemm(a, b, c);
  detail::device::multiply<P>(executor, {nullptr, 1, a.rows}, a, b, c, options, workspace);
}

// Several products in one call, each with the bits that gemm_into gives it. Both operands hold their matrices one under
// another, A `groups` of m x k, B `groups` of n x k, and C takes those of m x n. A tensor scale for each matrix is a
// tile of m, or n, rows.
template <exact_accumulation P, class A, class B>
std::size_t batched_gemm_workspace(const cuda&, quantized_view<A> a_in, quantized_view<B> b_in, index_t groups) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  return detail::device::product_workspace<P>({nullptr, groups, a.rows}, a, b);
}
template <exact_accumulation P, class A, class B>
void batched_gemm_into(const cuda& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
                       index_t groups, const gemm_options& options = {}, std::span<std::byte> workspace = {}) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  detail::device::check_groups(a, b, c, groups, true);
  detail::device::multiply<P>(executor, {nullptr, groups, a.rows}, a, b, c, options, workspace);
}

// The same where the matrices of A differ in height, as tokens sorted by expert do: rows offsets[g] ... offsets[g + 1]
// of A and C belong to product g. `offsets` are groups + 1 ascending numbers in device memory, at most a.rows; rows
// that belong to none leave their rows of C alone.
template <exact_accumulation P, class A, class B>
std::size_t grouped_gemm_workspace(const cuda&, quantized_view<A> a_in, quantized_view<B> b_in,
                                   const std::int32_t* offsets, index_t groups) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  return detail::device::product_workspace<P>({offsets, groups, a.rows}, a, b);
}
template <exact_accumulation P, class A, class B>
void grouped_gemm_into(const cuda& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
                       const std::int32_t* offsets, index_t groups, const gemm_options& options = {},
                       std::span<std::byte> workspace = {}) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  detail::device::check_groups(a, b, c, groups, false);
  detail::device::multiply<P>(executor, {offsets, groups, a.rows}, a, b, c, options, workspace);
}

}  // namespace microscale
