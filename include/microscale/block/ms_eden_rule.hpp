// MS-EDEN (arXiv 2601.22813, Quartet II): elements to nearest under a scale with headroom, and a scale corrected so
// that the block keeps its projection on itself, then rounded stochastically. Unbiased over random rotations of the
// data.
#pragma once

#include <cstdint>

#include "scale_rule.hpp"

namespace microscale {

// What the largest element of a block becomes: fl(max / fl((17/16) 0.93)), 6.07... for E2M1. 17/16 is the headroom,
// 0.93 the factor that the authors found best for Gaussian data.
template <class Element>
MICROSCALE_HD constexpr float ms_eden_largest() noexcept {
  return fp32::div(Element::largest(), 0.988125f);
}

// D = (A / 255.99) / v, 1 where that is 0; v = ms_eden_largest. 255.99 leaves room below 448 for a correction that
// raises the scale (the authors' kernels, IST-DASLab/Quartet-II). D is stored.
struct ms_eden_ratio {
  static constexpr tensor_datum stored = tensor_datum::decode;
  static constexpr int default_target = 256;
  static constexpr bool accepts_infinity = false;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float amax, int target) noexcept {
    const float top = target == default_target ? 255.99f : static_cast<float>(target);
    return factors_of_decode(amax, fp32::div(fp32::div(amax, top), ms_eden_largest<Element>()), target);
  }
};

// s = RNE((a / v) / D), 1 where that is 0; element = RNE(x min(1 / (s D), FLT_MAX)); then, y being that product and q
// the element, the stored scale is s (sum y y / sum y q) rounded stochastically with 32 bits, saturating. Decoded as
// (element s) D. The sums are FP32, in element order.
//
// The authors sum over the 32 or 128 elements of one rotation, this rule over its block; block_correlation and += give
// the other. That the division by s D is a multiplication by the reciprocal, and 1 for a scale of 0, is theirs; that an
// infinite correction saturates is ours.
//
// Elements and decoding are those of ue5m3_paper_rule.
struct ms_eden_rule : ue5m3_paper_rule<decode_order::payload_first> {
  struct correlation {
    float scaled_scaled = 0.0f;   // sum y y
    float scaled_element = 0.0f;  // sum y q

    MICROSCALE_HD constexpr correlation& operator+=(const correlation& other) noexcept {
      scaled_scaled = fp32::add(scaled_scaled, other.scaled_scaled);
      scaled_element = fp32::add(scaled_element, other.scaled_element);
      return *this;
    }
  };

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    const auto code = S::scale::encode(fp32::div(fp32::div(amax, ms_eden_largest<typename S::element>()), t.decode));
    return code == 0 ? S::scale::encode(1.0f) : code;
  }
  MICROSCALE_HD static constexpr void see(correlation& sums, float scaled, float element) noexcept {
    sums.scaled_scaled = fp32::add(sums.scaled_scaled, fp32::mul(scaled, scaled));
    sums.scaled_element = fp32::add(sums.scaled_element, fp32::mul(scaled, element));
  }
  template <class S>
  MICROSCALE_HD static constexpr auto refined(typename S::scale::storage code, const correlation& sums,
                                              std::uint32_t random) noexcept {
    if (fp32::is_zero(sums.scaled_element)) return code;
    float correction = fp32::div(sums.scaled_scaled, sums.scaled_element);
    if (!fp32::is_finite(correction)) correction = fp32::from_bits(fp32::infinity_bits);
    return S::scale::encode(fp32::mul(S::scale::decode(code), correction), stochastic_midpoint32{}, overflow::saturate,
                            random);
  }
};

}  // namespace microscale
