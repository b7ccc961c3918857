// GEMM on quantized operands on the device: the bits of tensor/gemm.hpp, for the accumulations that have a definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "../tensor/gemm.hpp"
#include "block.cuh"

namespace microscale {

namespace detail::device {

template <class A, class B>
struct gemm_call {
  quantized_view<const A> a;
  quantized_view<const B> b;
  matrix_view<float> c;
  bool has_alpha;
  float alpha;
  bool aligned;  // rows of codes of both operands begin on 4 bytes
};

// Whether a format's codes are those of E2M1, so that runs can be multiplied eight codes at a time.
template <class F>
inline constexpr bool is_e2m1 = false;
template <class F>
requires requires { F::exponent_bits; }
inline constexpr bool is_e2m1<F> =
    F::exponent_bits == 2 && F::mantissa_bits == 1 && F::bias == 1 && F::has_sign && F::largest_code == 7;

template <class A, class B>
inline constexpr bool multiplies_packed =
    is_e2m1<typename A::element>&& is_e2m1<typename B::element>&& A::block::columns % 16 == 0 &&
    B::block::columns % 16 == 0;

// Selects bytes of {low, high}; bit 3 of a selecting nibble repeats the sign of the byte instead.
__device__ inline std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t nibbles) {
  std::uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(nibbles));
  return r;
}
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

// The first n <= 8 codes at p, zeros beyond.
__device__ inline std::uint32_t load_eight(const std::uint8_t* p, int n, bool aligned) {
  if (aligned && n == 8) return *reinterpret_cast<const std::uint32_t*>(p);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * i < n) codes |= std::uint32_t{p[i]} << (8 * i);
  }
  return n < 8 ? codes & ((1u << (4 * n)) - 1u) : codes;
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
    float sum;
    if constexpr (multiplies_packed<A, B>) {
      sum = packed_dot<A, B>(call.a, i, call.b, j, call.aligned).template value<P>();
    } else {
      sum = P::dot(call.a, i, call.b, j);
    }
    if (by_rows) {
      alpha = fp32::mul(call.a.factors(call.a.tile_index(i, 0)).decode, call.b.factors(call.b.tile_index(j, 0)).decode);
    }
    call.c(i, j) = fp32::mul(sum, alpha);
  }
}

}  // namespace detail::device

// Writes the m x n product into the caller's memory, as the host's gemm_into does. options.alpha is the host's; without
// it, alpha is the product of the operands' decode multipliers, from their data in device memory.
template <exact_accumulation P = exact_f32, class A, class B>
void gemm_into(const cuda& executor, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options = {}, std::span<std::byte> /*workspace*/ = {}) {
  using scheme_a = typename quantized_view<A>::scheme_type;
  using scheme_b = typename quantized_view<B>::scheme_type;
  const quantized_view<const scheme_a> a = a_in;
  const quantized_view<const scheme_b> b = b_in;
  detail::check_gemm(a, b, c);
  detail::device::check_launch(executor.launch);
  if (c.empty()) return;
  const bool aligned =
      detail::device::is_aligned(a.codes, a.code_pitch, 4) && detail::device::is_aligned(b.codes, b.code_pitch, 4);
  const detail::device::gemm_call<scheme_a, scheme_b> call{
      a, b, c, options.alpha.has_value(), options.alpha.value_or(1.0f), aligned};
  const index_t warps = executor.launch.threads / 32;
  const index_t blocks = ceil_div(c.rows, 4 * warps) * ceil_div(c.cols, index_t{8});
  detail::device::launch(executor, "GEMM", &detail::device::gemm_kernel<P, scheme_a, scheme_b>, blocks, call);
}

// How many bytes of device workspace gemm_into<P> wants.
template <exact_accumulation P, class A, class B>
constexpr std::size_t gemm_workspace(const cuda&, const quantized_view<A>&, const quantized_view<B>&) {
  return 0;
}

}  // namespace microscale
