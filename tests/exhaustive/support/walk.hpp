// Where the code of a growing number changes, found by walking from value to value. Values come from the formula of the
// format, midpoints from binary64, which holds them all; no rounding of the library is involved.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace exhaustive {

enum class family { minifloat, power_of_two, fixed_point };

// `top` is the magnitude of the largest finite value; `past` what an overflow gives under `ieee`.
struct format {
  const char* name;
  family kind;
  int exponent_bits, mantissa_bits, bias;
  bool has_sign;
  unsigned top, past;
};

// The value of a magnitude, `top` + 1 included: where the next value would be.
inline double value(const format& f, unsigned m) {
  switch (f.kind) {
    case family::fixed_point:
      return std::ldexp(m, -f.mantissa_bits);
    case family::power_of_two:
      return std::ldexp(1.0, static_cast<int>(m) - f.bias);
    default:
      break;
  }
  const int e = static_cast<int>(m >> f.mantissa_bits);
  const unsigned fraction = m % (1u << f.mantissa_bits);
  return e == 0 ? std::ldexp(fraction, 1 - f.bias - f.mantissa_bits)
                : std::ldexp(fraction + (1u << f.mantissa_bits), e - f.bias - f.mantissa_bits);
}

inline std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline float float_of(std::uint32_t b) { return __builtin_bit_cast(float, b); }

inline constexpr std::uint32_t infinity = 0x7F800000u;

// The first pattern whose number is at least x (is above x).
inline std::uint32_t first_at_least(double x) {
  const float near = static_cast<float>(x);
  if (!(near < HUGE_VALF)) return infinity;
  return static_cast<double>(near) >= x ? bits_of(near) : bits_of(near) + 1;
}
inline std::uint32_t first_above(double x) {
  const std::uint32_t b = first_at_least(x);
  return b < infinity && static_cast<double>(float_of(b)) == x ? b + 1 : b;
}

enum class direction { nearest_even, toward_zero, away_from_zero };

// starts[m] is the first pattern of a non-negative float with magnitude m, for m up to top + 1, the overflow.
inline std::vector<std::uint32_t> walk(const format& f, direction how) {
  std::vector<std::uint32_t> starts{0};
  for (unsigned m = 1; m <= f.top + 1; ++m) {
    const double below = value(f, m - 1), here = value(f, m), midpoint = (below + here) / 2;
    // A tie goes to the even magnitude; between powers of two, up.
    const bool takes_tie = f.kind == family::power_of_two || m % 2 == 0;
    starts.push_back(how == direction::toward_zero      ? first_at_least(here)
                     : how == direction::away_from_zero ? first_above(below)
                     : takes_tie                        ? first_at_least(midpoint)
                                                        : first_above(midpoint));
  }
  return starts;
}

}  // namespace exhaustive
