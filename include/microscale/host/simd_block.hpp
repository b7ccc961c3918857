// The block functions of block/ over lanes: as many blocks at a time as a register has lanes, lane i holding a number
// of block i. Held to block/quantize_block.hpp bit for bit.
//
// What is stated here in addition to block/ is only arithmetic: rounding to a format, and the operations of the scale
// rules, in the same order. Precondition throughout: every input is finite. Groups of blocks that hold a NaN or an
// infinity are left to the definition.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../block/quantize_block.hpp"
#include "../block/schemes.hpp"
#include "lanes.hpp"
#include "simd_level.hpp"

#if defined(__clang__)
#pragma float_control(precise, on, push)
#elif defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // the host compiler's unroll pragma
#endif

namespace microscale::simd {

// An instruction set as a kernel sees it: how many lanes, and whether it is AVX-512 with the extensions that
// simd_level::avx512 asks for.
template <int Width, bool Avx512>
struct instruction_set {
  static constexpr int width = Width;
  static constexpr bool avx512 = Avx512;
};

inline constexpr std::uint32_t exponent_bits = fp32::infinity_bits;

// As in number/fp32.hpp, of each lane.
template <int W>
[[gnu::always_inline]] inline words<W> bits(const floats<W>& x) noexcept {
  return as<std::int32_t>(x);
}
template <int W>
[[gnu::always_inline]] inline words<W> magnitude(const floats<W>& x) noexcept {
  return bits(x) & all<W>(~fp32::sign_bit);
}

// ---------------------------------------------------------------------------------------------------------------
// Rounding to a format.

// Formats of which every step on the way is a normal binary32 number, from 2^-17 of the smallest step (what draws
// decide) to 2^23 of the largest.
template <class F>
concept small_float = requires {
  F::exponent_bits;
  F::mantissa_bits;
  F::smallest_exponent;
}
&&(F::bits <= 8) && F::mantissa_bits >= 1 && F::smallest_exponent >= -100 &&
    (F::largest_code >> F::mantissa_bits) - F::bias + 23 <= 127;

// FP32 bits of the power of two at or below y, not below F's smallest normal number.
template <class F, int W>
[[gnu::always_inline]] inline words<W> binade(const floats<W>& y) noexcept {
  constexpr std::uint32_t smallest = static_cast<std::uint32_t>(F::smallest_exponent + 127) << 23;
  return larger_of(bits(y) & all<W>(exponent_bits), all<W>(smallest));
}
// The code of the number of steps 0 that lies in that binade: what is added to a count of steps.
template <class F, int W>
[[gnu::always_inline]] inline words<W> first_code(const words<W>& binade) noexcept {
  return (binade >> (23 - F::mantissa_bits)) -
         all<W>(static_cast<std::uint32_t>(F::smallest_exponent + 127) << F::mantissa_bits);
}

// 2^23 steps of that binade: adding them leaves whole steps in the low bits, rounded to nearest even by the addition.
template <class F, int W>
[[gnu::always_inline]] inline words<W> unit_steps(const words<W>& binade) noexcept {
  return binade + all<W>(std::uint32_t{23 - F::mantissa_bits} << 23);
}

// The code nearest to 0 <= y <= F::largest(), ties to even. `value` is what it stands for.
template <class F, int W>
[[gnu::always_inline]] inline words<W> nearest(const floats<W>& y, floats<W>& value) noexcept {
  const words<W> power = binade<F>(y);
  const words<W> offset = unit_steps<F>(power);
  const floats<W> sum = add(y, as<float>(offset));
  value = sub(sum, as<float>(offset));
  return bits(sum) - offset + first_code<F>(power);
}

// The value alone.
template <class F, int W>
[[gnu::always_inline]] inline floats<W> nearest_value(const floats<W>& y) noexcept {
  const floats<W> offset = as<float>(unit_steps<F>(binade<F>(y)));
  return sub(add(y, offset), offset);
}

// E2M1's codes count along three straight lines, and the code is the lowest of them: 2y below 2, y + 2 below 4,
// y/2 + 4 from there to 6. Every line is rounded once, and rounding does not change which is the lowest.
template <int W>
[[gnu::always_inline]] inline words<W> nearest_e2m1(const floats<W>& y) noexcept {
  constexpr float unit = 0x1p23f;  // where the last bit is worth 1
  const floats<W> first = scaled_sum(y, 2.0f, unit);
  const floats<W> second = scaled_sum(y, 1.0f, unit + 2.0f);
  const floats<W> third = scaled_sum(y, 0.5f, unit + 4.0f);
  return bits(smaller_of(smaller_of(first, second), third));
}

// The magnitude code of 0 <= y <= E::largest() in the low bits; what lies above the format's bits is not zero. Draws
// have R::random_bits bits.
template <class L, class R, element_format E, int W>
[[gnu::always_inline]] inline words<W> round_magnitude(const floats<W>& y, const words<W>& draws) noexcept {
  if constexpr (R::random_bits == 0) {
    static_cast<void>(draws);
    if constexpr (std::is_same_v<E, e2m1>) {
      return nearest_e2m1(y);
    } else {
      floats<W> value;
      return nearest<E>(y, value);
    }
  } else {
    // In units of 2^-Shift steps, rounded down; then the draw, or twice the draw and one more, decides by a carry, as
    // R::away says.
    constexpr int one_more = std::is_same_v<R, stochastic_midpoint<R::random_bits>> ? 1 : 0;
    constexpr int shift = R::random_bits + one_more;
    if constexpr (std::is_same_v<E, e2m1>) {
      const floats<W> first = floored<L>(y, static_cast<float>(2 << shift), one_more);
      const floats<W> second = floored<L>(y, static_cast<float>(1 << shift), (2 << shift) + one_more);
      const floats<W> third = floored<L>(y, static_cast<float>(1 << (shift - 1)), (4 << shift) + one_more);
      const words<W> units = bits(smaller_of(smaller_of(first, second), third));
      return added<L, R::random_bits, 1 + one_more>(units, draws) >> shift;
    } else {
      const words<W> power = binade<E>(y);
      // 2^(shift + mantissa bits) / power, as bits: exact, and so is the product.
      const words<W> factor = all<W>(static_cast<std::uint32_t>(254 + shift + E::mantissa_bits) << 23) - power;
      words<W> units;
      floats<W> scaled = mul(y, as<float>(factor));
      units.v = __builtin_convertvector(scaled.v, typename words<W>::vector);
      units = units + all<W>(one_more);
      return (added<L, R::random_bits, 1 + one_more>(units, draws) >> shift) + first_code<E>(power);
    }
  }
}

// The value of an element's magnitude code (the low bits of `code` but for the sign; all else zero), and of a scale's.
template <class F, int W>
[[gnu::always_inline]] inline floats<W> decode_magnitude(const words<W>& code) noexcept {
  constexpr int lift = 23 - F::mantissa_bits;
  const words<W> normal = (code << lift) + all<W>(static_cast<std::uint32_t>(127 - F::bias) << 23);
  floats<W> steps;
  steps.v = __builtin_convertvector(code.v, typename floats<W>::vector);
  const floats<W> step = floats<W>::all(F::smallest_positive());
  const words<W> is_normal = greater(code, all<W>((1u << F::mantissa_bits) - 1u));
  words<W> value = select(is_normal, normal, bits(mul(steps, step)));
  if constexpr (F::has_nan) {
    const words<W> special = greater(code, all<W>(F::largest_code));
    const words<W> nan = F::has_infinity ? greater(code, all<W>(F::infinity_code)) : special;
    value = select(special, (nan & all<W>(fp32::quiet_nan_bits)) | all<W>(fp32::infinity_bits), value);
  }
  return as<float>(value);
}

// The value of a power-of-two code.
template <int W>
[[gnu::always_inline]] inline floats<W> decode_power(const words<W>& code) noexcept {
  const words<W> value = select(equal(code, all<W>(0)), all<W>(0x00400000u), code << 23);
  return as<float>(value | (equal(code, all<W>(0xFF)) & all<W>(fp32::quiet_nan_bits)));
}

// The value of scale codes, NaN included.
template <class F, int W>
[[gnu::always_inline]] inline floats<W> decode_scale(const words<W>& code) noexcept {
  if constexpr (std::is_same_v<F, e8m0>) {
    return decode_power(code);
  } else {
    return decode_magnitude<F>(code & all<W>(F::magnitude_mask));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Scale rules.

// The scales of W blocks.
template <int W>
struct scale_lanes {
  words<W> code;
  floats<W> value;
};

// How x and the divisor make the number that is rounded.
//   product           x d, d finite
//   zero_or_product   x d, and 0 for a zero: d may be infinite
//   quotient          x / d, and 0 where d is 0
//   signless_quotient x / d, a zero result losing its sign
enum class element_step : std::uint8_t { product, zero_or_product, quotient, signless_quotient };

// A rule of block/scale_rule.hpp over lanes: its scale, its divisor, and the factor by which a decoded element is
// multiplied (after the product with the scale, where `payload_first`). Rules without one are left to the definition.
template <class Rule>
struct lanes_rule;

// The scale nearest to `ideal`, saturating.
template <class S, int W>
[[gnu::always_inline]] inline scale_lanes<W> rounded_scale(const floats<W>& ideal) noexcept {
  scale_lanes<W> s;
  s.code = nearest<typename S::scale>(smaller_of(ideal, S::scale::largest()), s.value);
  return s;
}
// The scale of code `Other` in place of one whose code is 0.
template <class S, typename S::scale::storage Other, int W>
[[gnu::always_inline]] inline scale_lanes<W> nonzero_scale(scale_lanes<W> s) noexcept {
  constexpr std::uint32_t value = fp32::bits(S::scale::decode(Other));
  const words<W> zero = equal(s.code, all<W>(0));
  s.code = select(zero, all<W>(Other), s.code);
  s.value = as<float>(select(zero, all<W>(value), bits(s.value)));
  return s;
}
template <int W>
[[gnu::always_inline]] inline floats<W> capped_reciprocal(const floats<W>& x) noexcept {
  return smaller_of(div(floats<W>::all(1.0f), x), fp32::largest);
}
template <constant_division How, int W>
[[gnu::always_inline]] inline floats<W> divided_by_constant(const floats<W>& a, float constant) noexcept {
  if constexpr (How == constant_division::division) {
    return div(a, floats<W>::all(constant));
  } else {
    return mul(a, fp32::div(1.0f, constant));
  }
}

template <>
struct lanes_rule<transformer_engine_rule> {
  static constexpr element_step step = element_step::product;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    constexpr float reciprocal = fp32::div(1.0f, S::element::largest());
    return rounded_scale<S>(mul(amax, fp32::mul(t.encode, reciprocal)));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors& t) noexcept {
    return capped_reciprocal(mul(s.value, t.decode));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors& t) noexcept {
    constexpr int target = S::tensor_scale::default_target;
    constexpr float last = fp32::div(1.0f, fp32::mul(S::element::largest(), static_cast<float>(target)));
    return mul(mul(s, t.reference), last);
  }
};

template <decode_order Order>
struct lanes_rule<ue5m3_paper_rule<Order>> {
  static constexpr element_step step = element_step::product;
  static constexpr bool payload_first = Order == decode_order::payload_first;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    constexpr float reciprocal = fp32::div(1.0f, S::element::largest());
    return nonzero_scale<S, S::scale::encode(1.0f)>(rounded_scale<S>(mul(amax, fp32::mul(t.encode, reciprocal))));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors& t) noexcept {
    return capped_reciprocal(mul(s.value, t.decode));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors& t) noexcept {
    return payload_first ? s : mul(s, t.decode);
  }
};

// Elements are divided by, and decoded with, the stored scale times the decode multiplier.
struct scale_times_decode {
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors& t) noexcept {
    return mul(s.value, t.decode);
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors& t) noexcept {
    return mul(s, t.decode);
  }
};

template <>
struct lanes_rule<amax_over_max> : scale_times_decode {
  static constexpr element_step step = element_step::quotient;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    return rounded_scale<S>(div(mul(amax, t.encode), floats<W>::all(S::element::largest())));
  }
};

template <constant_division How>
struct lanes_rule<torchao_rule<How>> {
  static constexpr element_step step = element_step::zero_or_product;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    const floats<W> ideal = div(divided_by_constant<How>(amax, S::element::largest()), floats<W>::all(t.decode));
    const words<W> smallest = all<W>(fp32::bits(S::scale::smallest_normal()));
    return rounded_scale<S>(as<float>(larger_of(bits(ideal), smallest)));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors& t) noexcept {
    return div(floats<W>::all(fp32::div(1.0f, t.decode)), s.value);
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors& t) noexcept {
    return mul(floats<W>::all(t.decode), s);
  }
};

template <>
struct lanes_rule<modelopt_rule> : scale_times_decode {
  static constexpr element_step step = element_step::signless_quotient;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    const floats<W> ideal = div(amax, floats<W>::all(fp32::mul(S::element::largest(), t.decode)));
    const words<W> zero = equal(bits(ideal), all<W>(0));
    return rounded_scale<S>(as<float>(select(zero, all<W>(fp32::bits(1.0f)), bits(ideal))));
  }
};

template <constant_division How>
struct lanes_rule<compressed_tensors_rule<How>> {
  static constexpr element_step step = element_step::signless_quotient;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors& t) noexcept {
    const floats<W> ideal = mul(floats<W>::all(t.encode), divided_by_constant<How>(amax, S::element::largest()));
    return nonzero_scale<S, S::scale::encode(0.125f)>(rounded_scale<S>(ideal));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors& t) noexcept {
    return div(s.value, floats<W>::all(t.encode));
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors& t) noexcept {
    return div(s, floats<W>::all(t.encode));
  }
};

template <mx_scale How>
struct lanes_rule<mx_rule<How>> {
  static constexpr element_step step = element_step::product;
  static constexpr bool payload_first = false;
  template <class S, int W>
  [[gnu::always_inline]] static scale_lanes<W> scale(const floats<W>& amax, const tensor_factors&) noexcept {
    constexpr std::uint32_t top = fp32::bits(S::element::largest());
    constexpr int top_exponent = static_cast<int>(top >> 23) - 127;
    static_assert(top_exponent >= 2, "FP32 subnormals must have scale code 0, and no number the largest");
    // What is added to a number's bits so that the exponent field steps up where the rule says.
    constexpr std::uint32_t raised = How == mx_scale::even   ? 0x00400000u >> S::element::mantissa_bits
                                     : How == mx_scale::ceil ? 0x007FFFFFu - (top & 0x007FFFFFu)
                                                             : 0u;
    const words<W> exponent = ((bits(amax) + all<W>(raised)) >> 23) - all<W>(static_cast<std::uint32_t>(top_exponent));
    scale_lanes<W> s;
    s.code = larger_of(exponent, all<W>(0));
    s.value = floats<W>::all(0.0f);  // not used
    return s;
  }
  // 2^-e: the product only moves the exponent, but for results below every element format's range.
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> divisor(const scale_lanes<W>& s, const tensor_factors&) noexcept {
    return as<float>((all<W>(254) - s.code) << 23);
  }
  template <class S, int W>
  [[gnu::always_inline]] static floats<W> factor(const floats<W>& s, const tensor_factors&) noexcept {
    return s;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Which schemes and roundings have kernels.

template <class Rule>
inline constexpr bool is_mx_rule = false;
template <mx_scale How>
inline constexpr bool is_mx_rule<mx_rule<How>> = true;

// A rule over lanes, with scales and elements that lanes can round to.
template <class S>
concept has_lanes_rule = small_float<typename S::element> && requires {
  lanes_rule<typename S::rule>::step;
} &&(is_mx_rule<typename S::rule> ? std::is_same_v<typename S::scale, e8m0>&& S::element::largest() >= 4.0f
                                  : small_float<typename S::scale> && !S::scale::has_sign) &&
    (lanes_rule<typename S::rule>::step != element_step::signless_quotient || !S::element::has_nan);

template <class R>
inline constexpr bool has_lanes_rounding = std::is_same_v<R, nearest_even>;
template <int Bits>
inline constexpr bool has_lanes_rounding<stochastic_midpoint<Bits>> = Bits <= 16;
template <int Bits>
inline constexpr bool has_lanes_rounding<stochastic_floor<Bits>> = Bits <= 16;

}  // namespace microscale::simd

#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
