// MX scales that know the element format (arXiv 2610.00053): the whole grid under a power of two, the grid's own
// largest value folded into one factor of the tensor.
#pragma once

#include <cstdint>

#include "scale_rule.hpp"

namespace microscale {

// D = fl(1 / max), whatever the data: what folded_rule leaves to the end, and what a GEMM's alpha applies once. D is
// stored; no reference is read.
struct folded_largest {
  static constexpr tensor_datum stored = tensor_datum::decode;
  static constexpr int default_target = 1;
  static constexpr bool accepts_infinity = true;
  static constexpr bool reads_reference = false;

  template <class Element>
  MICROSCALE_HD static constexpr tensor_factors from_reference(float, int) noexcept {
    return {1.0f, Element::largest(), fp32::div(1.0f, Element::largest()), default_target};
  }
};

// Whether a block whose amax lies low in its binade gets half the scale: `below_87` where a / s < fl(0.87), so that its
// largest elements clip and the others are twice as fine. The paper does so for the square blocks of weights.
enum class halving : std::uint8_t { never, below_87 };

// s = 2^ceil(log2 a), halved as `When` says, clamped to 2^-127 ... 2^127, code 0 for a block of zeros;
// element = RNE(max x / s), rounded once from the exact quotient; decoded as (element s) D, D = fl(1 / max).
template <halving When>
struct folded_rule : power_of_two_rule<folded_rule<When>> {
  using binade = typename power_of_two_rule<folded_rule<When>>::binade;

  template <class S>
  MICROSCALE_HD static constexpr int exponent(binade a) noexcept {
    // a / s lies in (1/2, 1], so it is 1.fraction / 2 unless the fraction is 0.
    int e = a.exponent + (a.fraction != 0 ? 1 : 0);
    constexpr std::uint32_t threshold = fp32::bits(0.87f) & 0x007FFFFFu;
    if (When == halving::below_87 && a.fraction != 0 && a.fraction < threshold) --e;
    return e;
  }
  template <class S>
  MICROSCALE_HD static constexpr unpacked scaled(float x, int exponent) noexcept {
    unpacked y = unpack(x);
    y.significand *= static_cast<std::uint64_t>(S::element::largest());  // at most 24 + 16 bits
    static_assert(static_cast<float>(static_cast<int>(S::element::largest())) == S::element::largest(),
                  "the element format's largest value must be an integer");
    return scaled_by_power(y, -exponent);
  }
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors& t) noexcept {
    return fp32::mul(fp32::mul(element, s), t.decode);
  }
};

}  // namespace microscale
