// Tensor scales: the number above the block scales, derived from a reference amax.
//
// A policy says how the multipliers follow from the reference, in FP32 operations whose order is part of it, and
// which of them a quantized tensor stores. Files of the field disagree on the direction, so names say which: an
// *encode* multiplier brings data into the range of the scales, a *decode* multiplier brings it back.
//
// Where the reference comes from (this tensor, an earlier step, calibration) is not decided here; see
// recipe/reference.hpp.
#pragma once

#include <concepts>
#include <cstdint>

#include "../number/format.hpp"

namespace microscale {

// The numbers that all blocks of a tensor share.
struct tensor_factors {
  float reference = 1.0f;  // the amax that the others derive from
  float encode = 1.0f;
  float decode = 1.0f;
  int target = 1;  // the block scale that a block with amax == reference gets
};

// What a quantized tensor stores of them: the datum that its scheme decodes from.
enum class tensor_datum : std::uint8_t { none, reference, encode, decode };

// How "divided by a constant" is computed: by a division, as torch does on a CPU, or by multiplying with the rounded
// reciprocal, as torch does on CUDA. Software built on torch gives different bytes on the two.
enum class constant_division : std::uint8_t { division, reciprocal };

template <constant_division How>
MICROSCALE_HD constexpr float divided_by_constant(float a, float constant) noexcept {
  return How == constant_division::division ? fp32::div(a, constant) : fp32::mul(a, fp32::div(1.0f, constant));
}

// fl(max T): what a tensor scale brings the reference to.
template <class Element>
MICROSCALE_HD constexpr float encoded_reference(int target) noexcept {
  return fp32::mul(Element::largest(), static_cast<float>(target));
}

// The factors of a policy whose own number is D, 1 where that is 0. The encode multiplier beside it is infinite where D
// lies below 2^-128.
MICROSCALE_HD constexpr tensor_factors factors_of_decode(float reference, float decode, int target) noexcept {
  if (fp32::is_zero(decode)) decode = 1.0f;
  return {reference, fp32::div(1.0f, decode), decode, target};
}

struct no_tensor_scale {
  static constexpr tensor_datum stored = tensor_datum::none;
  static constexpr int default_target = 1;
  static constexpr bool accepts_infinity = true;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float, int) noexcept {
    return {};
  }
};

// G = min((max T) / g, FLT_MAX), 1 where g = 0; D = 1 / G; `max` is the element format's largest value.
// arXiv 2609.02846, section on scaling; D is stored.
template <int Target = 448>
struct encode_ratio {
  static constexpr tensor_datum stored = tensor_datum::decode;
  static constexpr int default_target = Target;
  static constexpr bool accepts_infinity = false;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float g, int target) noexcept {
    const float ratio = fp32::div(encoded_reference<Element>(target), g);
    const float encode = fp32::is_zero(g) ? 1.0f : fp32::min_number(ratio, fp32::largest);
    return {g, encode, fp32::div(1.0f, encode), target};
  }
};

// S = min((max T) / A, FLT_MAX), 1 where A = 0 or S = 0 (an infinite A). TransformerEngine d0067d0; the amax A itself
// is stored, and T is 448 or, for 4over6, 256.
template <int Target = 448>
struct stored_amax {
  static constexpr tensor_datum stored = tensor_datum::reference;
  static constexpr int default_target = Target;
  static constexpr bool accepts_infinity = true;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float amax, int target) noexcept {
    float encode = fp32::min_number(fp32::div(encoded_reference<Element>(target), amax), fp32::largest);
    if (fp32::is_zero(amax) || fp32::is_zero(encode)) encode = 1.0f;
    return {amax, encode, fp32::div(1.0f, encode), target};
  }
};

// g = A / (max T), 1 where that is 0. torchao 36027d8 and ModelOpt 5a4242f ("weight_scale_2", a multiplier); g is
// stored. That a zero tensor gets 1 is this library's addition: its owners produce NaN.
template <constant_division How = constant_division::division, int Target = 448>
struct decode_ratio {
  static constexpr tensor_datum stored = tensor_datum::decode;
  static constexpr int default_target = Target;
  static constexpr bool accepts_infinity = false;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float amax, int target) noexcept {
    return factors_of_decode(amax, divided_by_constant<How>(amax, encoded_reference<Element>(target)), target);
  }
};

// G = (1 / max(A, FLT_MIN)) (max T), two roundings, 1 where that is not finite. compressed-tensors ac8e2ba
// ("weight_global_scale", a divisor of the decoded value); G is stored.
template <int Target = 448>
struct encode_product {
  static constexpr tensor_datum stored = tensor_datum::encode;
  static constexpr int default_target = Target;
  static constexpr bool accepts_infinity = false;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float amax, int target) noexcept {
    const float reciprocal = fp32::div(1.0f, fp32::max_number(amax, fp32::smallest_normal));
    float encode = fp32::mul(reciprocal, encoded_reference<Element>(target));
    if (!fp32::is_finite(encode)) encode = 1.0f;
    return {amax, encode, fp32::div(1.0f, encode), target};
  }
};

// D = fl(g / (max T)), 1 where that is 0: the only rounding of the tensor scale of the *_exact schemes. D is stored.
template <int Target = 448>
struct exact_ratio : decode_ratio<constant_division::division, Target> {};

template <class T>
concept tensor_scale_policy = requires {
  { T::stored } -> std::convertible_to<tensor_datum>;
  { T::default_target } -> std::convertible_to<int>;
  { T::accepts_infinity } -> std::convertible_to<bool>;
};

// What decoding needs, from the datum that a quantized tensor stores.
template <class Policy, class Element>
MICROSCALE_HD constexpr tensor_factors factors_from_stored(float datum) noexcept {
  tensor_factors t;
  if constexpr (Policy::stored == tensor_datum::reference) {
    t = Policy::template from_reference<Element>(datum, Policy::default_target);
  } else if constexpr (Policy::stored == tensor_datum::encode) {
    t.encode = datum;
    t.decode = fp32::div(1.0f, datum);
  } else if constexpr (Policy::stored == tensor_datum::decode) {
    t.decode = datum;
  }
  return t;
}

template <class Policy>
MICROSCALE_HD constexpr float stored_datum(const tensor_factors& t) noexcept {
  if constexpr (Policy::stored == tensor_datum::reference) return t.reference;
  if constexpr (Policy::stored == tensor_datum::encode) return t.encode;
  return t.decode;
}

}  // namespace microscale
