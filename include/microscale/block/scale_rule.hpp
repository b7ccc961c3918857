// Scale rules: from a block's amax to its scale, and from the scale to what each element is rounded from.
//
// "NVFP4 quantize" is not one function: the order of the FP32 operations decides ties, so the order is the rule.
// Each rule is a type with four functions, for a scheme S (scheme.hpp) and the tensor's factors t:
//   scale(amax, t)            the code of the block scale
//   divisor(scale code, t)    whatever elements share: a reciprocal, a divisor, an exponent
//   scaled(x, divisor)        the number that the element format then rounds, once
//   decoded(element, s, t)    the decoded value of an element under scale s
// and `nan_reaches_amax`: whether a NaN in the block makes the amax NaN or is passed over (under nonfinite::owner).
//
// fl() is one FP32 rounding; every product and quotient written below is one such operation. `max` is the element
// format's largest value. numerics.md lists the sources once more, side by side.
#pragma once

#include <cstdint>

#include "../number/format.hpp"
#include "tensor_scale.hpp"

namespace microscale {

// s = RNE((a G) / max), saturating; element = RNE(x / (s D)), and the sign alone where s is 0.
// Without a tensor scale this is s = RNE(a / max), element = RNE(x / s): the rule of the *_single schemes.
struct amax_over_max {
  static constexpr bool nan_reaches_amax = true;

  // What the scale is rounded from. That zero stays zero under an infinite G is said here, since 0 G would be NaN.
  template <class S>
  MICROSCALE_HD static constexpr float ideal(float amax, const tensor_factors& t) noexcept {
    return fp32::is_zero(amax) ? 0.0f : fp32::div(fp32::mul(amax, t.encode), S::element::largest());
  }
  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    return S::scale::encode(ideal<S>(amax, t));
  }
  template <class S>
  MICROSCALE_HD static constexpr float divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::mul(S::scale::decode(code), t.decode);
  }
  template <class S>
  MICROSCALE_HD static constexpr float scaled(float x, float divisor) noexcept {
    return fp32::is_zero(divisor) && !fp32::is_nan(x) ? fp32::copy_sign(0.0f, x) : fp32::div(x, divisor);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(element, fp32::mul(s, t.decode));
  }
};

// The same with a scale of 1 where it would be 0: UFP4 (arXiv 2606.20381; the zero rule is a reading of the paper).
struct amax_over_max_or_one : amax_over_max {
  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    const float s = ideal<S>(amax, t);
    // A binary32 scale is the quotient itself, an infinite one included.
    const bool keeps_infinity = S::scale::bits == 32 && fp32::is_infinite(s);
    const auto code = S::scale::encode(s, nearest_even{}, keeps_infinity ? overflow::ieee : overflow::saturate);
    return code == 0 ? S::scale::encode(1.0f) : code;
  }
};

// How code, block scale s and tensor scale D are multiplied when decoding.
enum class decode_order : std::uint8_t { payload_first, scale_first };  // (code s) D; code (s D)

// What rules have in common whose elements are RNE(x min(1 / (s D), FLT_MAX)): one division a block.
struct capped_reciprocal_rule {
  // What elements are multiples of, s D.
  template <class S>
  MICROSCALE_HD static constexpr float step(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::mul(S::scale::decode(code), t.decode);
  }
  template <class S>
  MICROSCALE_HD static constexpr float divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::min_number(fp32::reciprocal(step<S>(code, t)), fp32::largest);
  }
  template <class S>
  MICROSCALE_HD static constexpr float scaled(float x, float inverse) noexcept {
    return fp32::mul(x, inverse);
  }
};

// arXiv 2609.02846 (MrHuff/ue5m3-fp4, formats.py 59868e7): u = min(a (G fl(1/6)), max scale); s = RNE(u), and a scale
// that rounds to 0 becomes 1; element = RNE(x min(1 / (s D), FLT_MAX)). The authors reject data whose inverse is not
// finite; the cap is this library's, so that a zero under a tiny reference stays a zero. Their Triton kernel decodes
// payload first, their portable reference scale first.
template <decode_order Order = decode_order::payload_first>
struct ue5m3_paper_rule : capped_reciprocal_rule {
  static constexpr bool nan_reaches_amax = true;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    constexpr float reciprocal = fp32::div(1.0f, S::element::largest());
    const float ideal = fp32::mul(amax, fp32::mul(t.encode, reciprocal));
    const auto code = S::scale::encode(fp32::min_number(ideal, S::scale::largest()));
    return code == 0 ? S::scale::encode(1.0f) : code;
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return Order == decode_order::payload_first ? fp32::mul(fp32::mul(element, s), t.decode)
                                                : fp32::mul(element, fp32::mul(s, t.decode));
  }
};

// TransformerEngine d0067d0 (core_nvfp4.cuh and the kernels that use it): s = RNE(min(a (S fl(1/6)), FLT_MAX)),
// saturating; r = min(1 / (s (1/S)), FLT_MAX); element = RNE(x r). A scale that underflows stays 0, and the non-zero
// elements of its block become +-6. Decoded as element ((s A) fl(1/2688)).
struct transformer_engine_rule : capped_reciprocal_rule {
  static constexpr bool nan_reaches_amax = false;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    constexpr float reciprocal = fp32::div(1.0f, S::element::largest());
    return S::scale::encode(fp32::min_number(fp32::mul(amax, fp32::mul(t.encode, reciprocal)), fp32::largest));
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    constexpr int target = S::tensor_scale::default_target;
    constexpr float factor = fp32::div(1.0f, fp32::mul(S::element::largest(), static_cast<float>(target)));
    return fp32::mul(element, fp32::mul(fp32::mul(s, t.reference), factor));
  }
};

// TransformerEngine d0067d0 with 4over6 (arXiv 2512.02010): base = (a / 6) S; of the scales RNE(base) and
// RNE(1.5 base), both clamped to 448, the second wins iff the sum of |((element s) A) / 1536 - x|, in element order,
// is strictly smaller.
struct four_over_six_rule : transformer_engine_rule {
  static constexpr int candidates = 2;

  template <class S>
  MICROSCALE_HD static constexpr auto candidate(float amax, const tensor_factors& t, int which) noexcept {
    const float base = fp32::mul(fp32::div(amax, S::element::largest()), t.encode);
    const float ideal = which == 0 ? base : fp32::mul(base, 1.5f);
    return S::scale::encode(fp32::min_number(ideal, S::scale::largest()));
  }
  // The error so far, with one more element.
  template <class S>
  MICROSCALE_HD static constexpr float accumulate_error(float error, float x, float element, float s,
                                                        const tensor_factors& t) noexcept {
    constexpr int target = S::tensor_scale::default_target;
    const float top = fp32::mul(S::element::largest(), static_cast<float>(target));
    const float value = fp32::div(fp32::mul(fp32::mul(element, s), t.reference), top);
    return fp32::add(error, fp32::abs(fp32::sub(value, x)));
  }
};

// torchao 36027d8, two-level: s = RNE(clamp((a / 6) / g, 2^-6, 448)); element = RNE(clamp(x ((1 / g) / s), +-6)).
// Decoded as element (g s). That a zero is not multiplied by an infinite factor is this library's addition.
template <constant_division How = constant_division::division>
struct torchao_rule {
  static constexpr bool nan_reaches_amax = true;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    const float ideal = fp32::div(divided_by_constant<How>(amax, S::element::largest()), t.decode);
    return S::scale::encode(fp32::clamp(ideal, S::scale::smallest_normal(), S::scale::largest()));
  }
  template <class S>
  MICROSCALE_HD static constexpr float divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::div(fp32::div(1.0f, t.decode), S::scale::decode(code));
  }
  template <class S>
  MICROSCALE_HD static constexpr float scaled(float x, float multiplier) noexcept {
    return fp32::is_zero(x) ? x : fp32::mul(x, multiplier);  // the element format saturates, which is the clamp
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(element, fp32::mul(t.decode, s));
  }
};

// NVIDIA ModelOpt 5a4242f: ideal = a / (6 g), 1 where that is 0; s = RNE(ideal), saturating; element =
// RNE(x / (s g)), and a quotient of -0 gives +0. Decoded as element (s g).
struct modelopt_rule {
  static constexpr bool nan_reaches_amax = true;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    const float ideal = fp32::div(amax, fp32::mul(S::element::largest(), t.decode));
    return S::scale::encode(fp32::is_zero(ideal) ? 1.0f : ideal);
  }
  template <class S>
  MICROSCALE_HD static constexpr float divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::mul(S::scale::decode(code), t.decode);
  }
  template <class S>
  MICROSCALE_HD static constexpr float scaled(float x, float divisor) noexcept {
    return fp32::add(fp32::div(x, divisor), 0.0f);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(element, fp32::mul(s, t.decode));
  }
};

// compressed-tensors ac8e2ba: s = RNE(clamp(G (a / 6), +-448)), 0.125 where that is 0; element =
// RNE(clamp(x / (s / G), +-6)), -0 becoming +0. Decoded as element (s / G).
template <constant_division How = constant_division::division>
struct compressed_tensors_rule {
  static constexpr bool nan_reaches_amax = true;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    const float ideal = fp32::mul(t.encode, divided_by_constant<How>(amax, S::element::largest()));
    const auto code = S::scale::encode(ideal);  // saturating, which is the clamp
    return code == 0 ? S::scale::encode(0.125f) : code;
  }
  template <class S>
  MICROSCALE_HD static constexpr float divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    return fp32::div(S::scale::decode(code), t.encode);
  }
  template <class S>
  MICROSCALE_HD static constexpr float scaled(float x, float divisor) noexcept {
    return fp32::add(fp32::div(x, divisor), 0.0f);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(element, fp32::div(s, t.encode));
  }
};

// Every rounding is the rounding of the exact quotient: s = RNE(a T / g) (of a / max where g = 0), saturating, the
// smallest positive scale where a > 0 would round to 0; element = RNE(x / (s D)). Decoded as (element s) D.
struct exact_rule {
  static constexpr bool nan_reaches_amax = true;

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    if (!fp32::is_finite(amax)) return S::scale::encode(fp32::quiet_nan());
    unpacked ideal = unpack(amax);
    if (!fp32::is_zero(t.reference)) {
      ideal = exact_quotient(exact_product(ideal, unpack(t.target)), unpack(t.reference));
    } else {
      ideal = exact_quotient(ideal, unpack(S::element::largest()));
    }
    const auto code = S::scale::encode(ideal);
    return code == 0 && !fp32::is_zero(amax) ? static_cast<typename S::scale::storage>(1) : code;
  }
  template <class S>
  MICROSCALE_HD static constexpr unpacked divisor(typename S::scale::storage code, const tensor_factors& t) noexcept {
    static_assert(S::scale::mantissa_bits <= 6, "the exact divisor must fit in 31 bits");
    return exact_product(S::scale::unpack_code(code), unpack(t.decode));
  }
  template <class S>
  MICROSCALE_HD static constexpr unpacked scaled(float x, const unpacked& divisor) noexcept {
    // A zero divisor is the scale of a block of zeros.
    return divisor.significand == 0 && !fp32::is_nan(x) ? unpack(fp32::copy_sign(0.0f, x))
                                                        : exact_quotient(unpack(x), divisor);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(fp32::mul(element, s), t.decode);
  }
};

// How an MX scale is chosen; emax is floor(log2(max)).
//   floor  2^(floor(log2 a) - emax): OCP MX v1.0, section 6.3. Elements of the top binade may clip.
//   even   the same, with a first rounded to the element format's precision: up from (2 - 2^-(mantissa bits + 1))
//          of a binade on, which is 1.75 for E2M1 (torchao EVEN, compressed-tensors, AMD Quark)
//   ceil   2^ceil(log2(a / max)): nothing clips (arXiv 2506.08027; "truncation-free" in arXiv 2607.24953)
enum class mx_scale : std::uint8_t { floor, even, ceil };

// What rules whose scales are powers of two have in common. Rule::exponent<S>(a) is the exponent of the scale for the
// amax a of a block.
template <class Rule>
struct power_of_two_rule {
  static constexpr bool nan_reaches_amax = true;

  // A positive finite number as (1 + fraction 2^-23) 2^exponent.
  struct binade {
    int exponent;
    std::uint32_t fraction;
  };
  MICROSCALE_HD static constexpr binade binade_of(float x) noexcept {
    const std::uint32_t magnitude = fp32::magnitude_bits(x);
    binade b{static_cast<int>(magnitude >> 23) - 127, magnitude & 0x007FFFFFu};
    if (b.exponent == -127) {  // subnormal
      const int lift = 24 - bit_width(b.fraction);
      b = {-126 - lift, (b.fraction << lift) & 0x007FFFFFu};
    }
    return b;
  }
  // The code of the power of two, clamped to the scales that there are; 0 for a block of zeros.
  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors&) noexcept {
    using storage = typename S::scale::storage;
    if (!fp32::is_finite(amax)) return static_cast<storage>(S::scale::nan_code);
    if (fp32::is_zero(amax)) return storage{0};
    const int exponent = Rule::template exponent<S>(binade_of(amax));
    return static_cast<storage>(
        smaller(larger(exponent + S::scale::bias, 0), static_cast<int>(S::scale::largest_code)));
  }
  // The exponent of the scale.
  template <class S>
  MICROSCALE_HD static constexpr int divisor(typename S::scale::storage code, const tensor_factors&) noexcept {
    return static_cast<int>(code) - S::scale::bias;
  }
};

// Powers of two, clamped to 2^-127 ... 2^127; a block of zeros has code 0. element = RNE(x / s), which is exact up to
// that rounding because it only moves the exponent.
template <mx_scale How>
struct mx_rule : power_of_two_rule<mx_rule<How>> {
  using binade = typename power_of_two_rule<mx_rule<How>>::binade;

  template <class S>
  MICROSCALE_HD static constexpr int exponent(binade a) noexcept {
    constexpr std::uint32_t top = fp32::bits(S::element::largest());
    constexpr int top_exponent = static_cast<int>(top >> 23) - 127;
    int e = a.exponent - top_exponent;
    if constexpr (How == mx_scale::even) {
      constexpr std::uint32_t threshold = 0x00800000u - (0x00400000u >> S::element::mantissa_bits);
      if (a.fraction >= threshold) ++e;
    } else if constexpr (How == mx_scale::ceil) {
      if (a.fraction > (top & 0x007FFFFFu)) ++e;
    }
    return e;
  }
  template <class S>
  MICROSCALE_HD static constexpr unpacked scaled(float x, int exponent) noexcept {
    return scaled_by_power(unpack(x), -exponent);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors&) noexcept {
    return fp32::mul(element, s);
  }
};

}  // namespace microscale
