// The floats on which an encoder is decided: those beside each change of code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../number/format.hpp"

namespace microscale::conformance {

// The first magnitude in (low, high], as bits, whose code is not that of `low`; encode must give `high` another code
// and change once in between.
template <class Encode>
std::uint32_t first_change(std::uint32_t low, std::uint32_t high, Encode&& encode) {
  const auto code = encode(low);
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (encode(middle) == code ? low : high) = middle;
  }
  return high;
}

// For numbers of one sign, under rounding R with draw `random`: two floats on each side of every change of code, every
// value of the format, the ends of the range of float, infinity and NaN. Found by bisection with F::encode itself, so a
// format or a rounding of your own needs nothing more.
template <number_format F, rounding_mode R>
std::vector<float> decision_points(bool negative, std::uint32_t random = 0) {
  static_assert(F::bits <= 16, "every code of the format is visited");
  const std::uint32_t sign = negative ? fp32::sign_bit : 0u;
  const auto encode = [&](std::uint32_t magnitude) {
    return F::encode(fp32::from_bits(sign | magnitude), R{}, overflow::saturate, random);
  };
  // Every finite value by its magnitude, ascending; no two have a second change of code between them.
  std::vector<std::uint32_t> values{0u, fp32::infinity_bits - 1u};
  for (std::uint32_t code = 0; code < (std::uint32_t{1} << F::bits); ++code) {
    const float x = F::decode(static_cast<typename F::storage>(code));
    if (fp32::is_finite(x) && (fp32::is_negative(x) == negative || !F::has_sign))
      values.push_back(fp32::magnitude_bits(x));
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());

  std::vector<std::uint32_t> magnitudes{0u, 1u, 0x00400000u, 0x007FFFFFu, 0x00800000u, fp32::infinity_bits - 1u};
  const auto add_around = [&](std::uint32_t m) {
    for (std::uint32_t d = 0; d < 5; ++d) {
      if (m + d >= 2 && m + d - 2 < fp32::infinity_bits) magnitudes.push_back(m + d - 2);
    }
  };
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    add_around(values[i]);
    if (encode(values[i]) != encode(values[i + 1])) add_around(first_change(values[i], values[i + 1], encode));
  }
  std::ranges::sort(magnitudes);
  magnitudes.erase(std::unique(magnitudes.begin(), magnitudes.end()), magnitudes.end());

  std::vector<float> points;
  points.reserve(magnitudes.size() + 2);
  for (const std::uint32_t m : magnitudes) points.push_back(fp32::from_bits(sign | m));
  points.push_back(fp32::from_bits(sign | fp32::infinity_bits));
  points.push_back(fp32::from_bits(sign | fp32::quiet_nan_bits));
  return points;
}

}  // namespace microscale::conformance
