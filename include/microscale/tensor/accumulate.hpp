// How a GEMM adds up: accumulation policies, and the exact sums they are made of.
//
// Each policy is a type whose `dot` is the definition of one output, before the tensor scales: the sum over k of
// (element of A) (its block scale) (element of B) (its block scale) for one row of each operand, both K-major. All are
// constexpr and the same on host and device; none depends on threads, SIMD width, tiling or FMA.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../number/wide_integer.hpp"
#include "view.hpp"

namespace microscale {

namespace detail {

MICROSCALE_HD constexpr int ceil_log2(std::uint64_t n) noexcept { return n <= 1 ? 0 : bit_width(n - 1); }

// A bound on the bits of |value / step| over the finite values of a format.
template <number_format F>
MICROSCALE_HD constexpr int span_bits() noexcept {
  const unpacked top = F::unpack_code(F::largest_code);
  return bit_width(top.significand) + top.exponent - F::step_exponent + 1;
}

// The exact sum of up to 2^TermsLog2 products of elements and scales of schemes A and B. The width follows from the
// formats, so that no sum can overflow.
template <class A, class B, int TermsLog2>
class exact_sum {
  using ea = typename A::element;
  using eb = typename B::element;
  using sa = typename A::scale;
  using sb = typename B::scale;

  static constexpr int element_bits = span_bits<ea>() + span_bits<eb>();
  static constexpr int total_bits = element_bits + span_bits<sa>() + span_bits<sb>() + TermsLog2 + 1;
  static constexpr int words = ceil_div(total_bits, 64);
  static constexpr int run_bits =
      element_bits + ceil_log2(static_cast<std::uint64_t>(smaller(A::block::columns, B::block::columns)));

 public:
  // Whether the dot product of the elements of a run, without scales, fits in 64 bits.
  static constexpr bool run_fits = run_bits <= 62;
  static constexpr int element_exponent = ea::step_exponent + eb::step_exponent;

  // The dot product of elements [first, last) of row `r` of a and row `c` of b, in units of 2^element_exponent; false
  // if any is not finite.
  MICROSCALE_HD static constexpr bool integer_dot(const quantized_view<const A>& a, index_t r,
                                                  const quantized_view<const B>& b, index_t c, index_t first,
                                                  index_t last, std::int64_t& dot) noexcept {
    dot = 0;
    for (index_t k = first; k < last; ++k) {
      const unpacked x = ea::unpack_code(a.code(r, k)), y = eb::unpack_code(b.code(c, k));
      if (x.kind != number_class::finite || y.kind != number_class::finite) return false;
      const std::int64_t p = static_cast<std::int64_t>(x.significand << (x.exponent - ea::step_exponent)) *
                             static_cast<std::int64_t>(y.significand << (y.exponent - eb::step_exponent));
      dot += x.negative != y.negative ? -p : p;
    }
    return true;
  }

  // Adds elements [first, last), all of which share one scale of a and one of b.
  MICROSCALE_HD constexpr void add_run(const quantized_view<const A>& a, index_t r, const quantized_view<const B>& b,
                                       index_t c, index_t first, index_t last) noexcept {
    const unpacked x = sa::unpack_code(a.scale(r, first)), y = sb::unpack_code(b.scale(c, first));
    if (x.kind != number_class::finite || y.kind != number_class::finite) {
      nonfinite_ = true;
      return;
    }
    const std::uint64_t scale = x.significand * y.significand;
    const int shift = x.exponent - sa::step_exponent + y.exponent - sb::step_exponent;
    const bool scale_negative = x.negative != y.negative;
    if constexpr (run_fits) {
      std::int64_t dot = 0;
      if (!integer_dot(a, r, b, c, first, last, dot)) {
        nonfinite_ = true;
        return;
      }
      sum_.add_product(static_cast<std::uint64_t>(dot < 0 ? -dot : dot), scale, (dot < 0) != scale_negative, shift);
    } else {
      for (index_t k = first; k < last; ++k) {
        const unpacked u = ea::unpack_code(a.code(r, k)), v = eb::unpack_code(b.code(c, k));
        if (u.kind != number_class::finite || v.kind != number_class::finite) {
          nonfinite_ = true;
          return;
        }
        sum_.add_product(u.significand * v.significand, scale, (u.negative != v.negative) != scale_negative,
                         shift + u.exponent - ea::step_exponent + v.exponent - eb::step_exponent);
      }
    }
  }

  // The sum rounded once to the nearest float, ties to even; +0 for an exact zero; NaN if any factor was not finite.
  MICROSCALE_HD constexpr float rounded() const noexcept {
    if (nonfinite_) return fp32::quiet_nan();
    constexpr int exponent = element_exponent + sa::step_exponent + sb::step_exponent;
    const unpacked total = sum_.to_unpacked(exponent);
    return total.is_zero() ? 0.0f : fp32::from_bits(f32::encode(total, nearest_even{}, overflow::ieee));
  }

 private:
  wide_integer<words> sum_;
  bool nonfinite_ = false;
};

// The end of the run that begins at k: elements up to there share both scales and one group of `group`.
template <class A, class B>
MICROSCALE_HD constexpr index_t run_end(index_t k, index_t k_extent, index_t group) noexcept {
  index_t end = k_extent;
  end = smaller(end, (k / A::block::columns + 1) * index_t{A::block::columns});
  end = smaller(end, (k / B::block::columns + 1) * index_t{B::block::columns});
  return smaller(end, (k / group + 1) * group);
}

}  // namespace detail

// a + b rounded toward zero; an overflow gives the largest finite value.
MICROSCALE_HD constexpr float add_toward_zero(float a, float b) noexcept {
  if (!fp32::is_finite(a) || !fp32::is_finite(b)) return fp32::add(a, b);
  if (fp32::magnitude_bits(a) < fp32::magnitude_bits(b)) {
    const float larger = b;
    b = a;
    a = larger;
  }
  if (fp32::is_zero(b)) return fp32::is_zero(a) ? fp32::add(a, b) : a;
  // |a| >= |b| > 0: both as integers in units of 2^unit, 38 bits below a's last; what falls below is sticky.
  const unpacked x = unpack(a), y = unpack(b);
  const int unit = x.exponent - 38;
  const stepped s = in_steps(y, unit);
  unpacked sum;
  sum.negative = x.negative;
  sum.exponent = unit;
  const std::uint64_t big = x.significand << 38;
  if (x.negative == y.negative) {
    sum.significand = big + s.steps;
    sum.sticky = !s.rest.is_zero();
  } else {
    sum.significand = big - s.steps - (s.rest.is_zero() ? 0 : 1);
    sum.sticky = !s.rest.is_zero();
  }
  if (sum.is_zero()) return 0.0f;
  return fp32::from_bits(f32::encode(sum, toward_zero{}));
}

// The exact sum, rounded once to nearest even.
struct exact_f32 {
  template <class A, class B>
  MICROSCALE_HD static constexpr float dot(const quantized_view<const A>& a, index_t r,
                                           const quantized_view<const B>& b, index_t c) noexcept {
    detail::exact_sum<A, B, 40> sum;
    for (index_t k = 0; k < a.cols;) {
      const index_t end = detail::run_end<A, B>(k, a.cols, a.cols);
      sum.add_run(a, r, b, c, k, end);
      k = end;
    }
    return sum.rounded();
  }
};

// Runs of k that share both scales, in order from +0: acc = fl(acc + fl(fl(sa sb) fl(dot))), dot being the exact sum
// of the products of the elements (TransformerEngine's reference GEMM).
struct f32_blocks {
  template <class A, class B>
  MICROSCALE_HD static constexpr float dot(const quantized_view<const A>& a, index_t r,
                                           const quantized_view<const B>& b, index_t c) noexcept {
    float acc = 0.0f;
    for (index_t k = 0; k < a.cols;) {
      const index_t end = detail::run_end<A, B>(k, a.cols, a.cols);
      const auto x = a.scale(r, k);
      const auto y = b.scale(c, k);
      if (!A::scale::is_finite(x) || !B::scale::is_finite(y)) return fp32::quiet_nan();
      float run = 0.0f;
      if (!run_dot(a, r, b, c, k, end, run)) return fp32::quiet_nan();
      const float scale = fp32::mul(A::scale::decode(x), B::scale::decode(y));
      acc = fp32::add(acc, fp32::mul(scale, run));
      k = end;
    }
    return acc;
  }

  // The same with a left operand that is not quantized, for products of weights alone: per block of b, in order of k
  // from +0, dot = fl(dot + fl(x w)), w being an element without its scale; then acc = fl(acc + fl(sb dot)). What is
  // not finite in a goes the way of IEEE 754.
  template <class T, class B>
  MICROSCALE_HD static constexpr float dot(const matrix_view<T>& a, index_t r, const quantized_view<const B>& b,
                                           index_t c) noexcept {
    float acc = 0.0f;
    for (index_t k = 0; k < a.cols;) {
      const index_t end = smaller(a.cols, k + B::block::columns);
      const auto y = b.scale(c, k);
      if (!B::scale::is_finite(y)) return fp32::quiet_nan();
      float run = 0.0f;
      for (; k < end; ++k) {
        const auto code = b.code(c, k);
        if (!B::element::is_finite(code)) return fp32::quiet_nan();
        run = fp32::add(run, fp32::mul(to_float(a(r, k)), B::element::decode(code)));
      }
      acc = fp32::add(acc, fp32::mul(B::scale::decode(y), run));
    }
    return acc;
  }

 private:
  // fl of the exact dot product of a run's elements; false if any is not finite.
  template <class A, class B>
  MICROSCALE_HD static constexpr bool run_dot(const quantized_view<const A>& a, index_t r,
                                              const quantized_view<const B>& b, index_t c, index_t first, index_t last,
                                              float& out) noexcept {
    using sum = detail::exact_sum<A, B, 40>;
    unpacked exact;
    if constexpr (sum::run_fits) {
      std::int64_t dot = 0;
      if (!sum::integer_dot(a, r, b, c, first, last, dot)) return false;
      exact = unpack(dot);
      exact.exponent = sum::element_exponent;
    } else {
      using ea = typename A::element;
      using eb = typename B::element;
      wide_integer<ceil_div(detail::span_bits<ea>() + detail::span_bits<eb>() + 41, 64)> total;
      for (index_t k = first; k < last; ++k) {
        const unpacked u = ea::unpack_code(a.code(r, k)), v = eb::unpack_code(b.code(c, k));
        if (u.kind != number_class::finite || v.kind != number_class::finite) return false;
        total.add_product(u.significand, v.significand, u.negative != v.negative,
                          u.exponent - ea::step_exponent + v.exponent - eb::step_exponent);
      }
      exact = total.to_unpacked(sum::element_exponent);
    }
    out = exact.is_zero() ? 0.0f : fp32::from_bits(f32::encode(exact, nearest_even{}, overflow::ieee));
    return true;
  }
};

// The model of Blackwell's block-scaled tensor core that arXiv 2609.02846 found by probing: the exact sum of each group
// of 64 products is rounded to nearest even, and the groups are added in order with rounding toward zero. The last
// group may be shorter.
struct blackwell_k64 {
  static constexpr index_t group = 64;

  template <class A, class B>
  MICROSCALE_HD static constexpr float dot(const quantized_view<const A>& a, index_t r,
                                           const quantized_view<const B>& b, index_t c) noexcept {
    float acc = 0.0f;
    for (index_t k = 0; k < a.cols;) {
      const index_t group_end = smaller(a.cols, k + group);
      detail::exact_sum<A, B, 6> sum;
      while (k < group_end) {
        const index_t end = detail::run_end<A, B>(k, group_end, group);
        sum.add_run(a, r, b, c, k, end);
        k = end;
      }
      acc = add_toward_zero(acc, sum.rounded());
    }
    return acc;
  }
};

// A policy with a bit-exact definition.
template <class P>
concept exact_accumulation =
    std::is_same_v<P, exact_f32> || std::is_same_v<P, f32_blocks> || std::is_same_v<P, blackwell_k64>;

// The policy that has none: an ordinary GEMM over decoded operands (host/vendor_gemm.hpp, cuda/vendor_gemm.cuh).
struct vendor {};

// Any policy, which is what gemm<P> takes.
template <class P>
concept gemm_accumulation = exact_accumulation<P> || std::is_same_v<P, vendor>;

}  // namespace microscale
