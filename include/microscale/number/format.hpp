// Number formats: what a code means, and how a real number becomes one.
//
// A format is one declaration of its bit layout; range, special values, decode and encode follow from it. All of it
// is integer arithmetic, constexpr, and the same on host and device. Encoding rounds once, from whatever the source
// is: a double never goes through float, a float never through half.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "bits.hpp"
#include "config.hpp"
#include "fp32.hpp"
#include "rounding.hpp"

namespace microscale {

// ---------------------------------------------------------------------------------------------------------------
// Real numbers, taken apart.

enum class number_class : std::uint8_t { finite, infinite, nan };

// A number as sign, integer and power of two: |x| = significand * 2^exponent, plus something less than 2^exponent
// iff `sticky`. A sticky number has at least 40 significant bits, so that every rounding can be decided.
struct unpacked {
  bool negative = false;
  number_class kind = number_class::finite;
  bool sticky = false;
  int exponent = 0;
  std::uint64_t significand = 0;

  MICROSCALE_HD constexpr bool is_zero() const noexcept {
    return kind == number_class::finite && significand == 0 && !sticky;
  }
};

MICROSCALE_HD constexpr unpacked unpack(float x) noexcept {
  const std::uint32_t b = fp32::bits(x);
  const int e = static_cast<int>((b >> 23) & 0xFFu);
  const std::uint32_t m = b & 0x007FFFFFu;
  unpacked u;
  u.negative = (b >> 31) != 0;
  if (e == 0xFF) {
    u.kind = m != 0 ? number_class::nan : number_class::infinite;
  } else {
    u.significand = e == 0 ? m : m | 0x00800000u;
    u.exponent = larger(e, 1) - 150;
  }
  return u;
}

MICROSCALE_HD constexpr unpacked unpack(double x) noexcept {
  const std::uint64_t b = bit_cast<std::uint64_t>(x);
  const int e = static_cast<int>((b >> 52) & 0x7FFu);
  const std::uint64_t m = b & 0x000FFFFFFFFFFFFFu;
  unpacked u;
  u.negative = (b >> 63) != 0;
  if (e == 0x7FF) {
    u.kind = m != 0 ? number_class::nan : number_class::infinite;
  } else {
    u.significand = e == 0 ? m : m | 0x0010000000000000u;
    u.exponent = larger(e, 1) - 1075;
  }
  return u;
}

template <std::integral Int>
MICROSCALE_HD constexpr unpacked unpack(Int x) noexcept {
  static_assert(sizeof(Int) <= 8);
  unpacked u;
  if constexpr (std::is_signed_v<Int>) u.negative = x < Int{0};
  const std::uint64_t bits = static_cast<std::uint64_t>(x);
  u.significand = u.negative ? std::uint64_t{0} - bits : bits;
  return u;
}

MICROSCALE_HD constexpr unpacked unpack(unpacked x) noexcept { return x; }

// What encode accepts: float, double, integers, and numbers already taken apart.
template <class T>
concept real_number =
    std::same_as<T, float> || std::same_as<T, double> || std::integral<T> || std::same_as<T, unpacked>;

// x * 2^k, exactly.
MICROSCALE_HD constexpr unpacked scaled_by_power(unpacked x, int k) noexcept {
  x.exponent += k;
  return x;
}

// numerator / denominator with at least 60 significant bits and the rest as sticky, for a finite denominator of less
// than 32 significant bits. The sign is the numerator's. NaN where the quotient is not a finite number.
MICROSCALE_HD constexpr unpacked exact_quotient(unpacked numerator, unpacked denominator) noexcept {
  unpacked q = numerator;
  if (numerator.kind != number_class::finite || denominator.kind != number_class::finite ||
      denominator.significand == 0) {
    q.kind = number_class::nan;
    return q;
  }
  if (numerator.significand == 0) return q;
  const int lift = 64 - bit_width(numerator.significand);
  const std::uint64_t n = numerator.significand << lift;
  const std::uint64_t d = denominator.significand;
  // Two steps of long division: the second yields as many bits as are free above the first.
  const std::uint64_t head = n / d, rest = n % d;
  const int room = smaller(64 - bit_width(head), 32);
  const std::uint64_t tail = (rest << room) / d;
  q.significand = (head << room) + tail;
  q.sticky = ((rest << room) % d) != 0;
  q.exponent = numerator.exponent - lift - denominator.exponent - room;
  return q;
}

// a * b, exactly, for numbers whose significands have at most 64 bits together; NaN where one is not finite.
MICROSCALE_HD constexpr unpacked exact_product(unpacked a, unpacked b) noexcept {
  unpacked p;
  p.negative = a.negative != b.negative;
  if (a.kind != number_class::finite || b.kind != number_class::finite) p.kind = number_class::nan;
  p.significand = a.significand * b.significand;
  p.exponent = a.exponent + b.exponent;
  return p;
}

// ---------------------------------------------------------------------------------------------------------------
// Rounding to a grid of powers of two.

// A magnitude in units of a step: floor(|x| / step) and the remainder.
struct stepped {
  std::uint64_t steps = 0;
  remainder rest;
};

// |x| in steps of 2^step_exponent. The steps must fit in 64 bits.
MICROSCALE_HD constexpr stepped in_steps(const unpacked& x, int step_exponent) noexcept {
  const int shift = step_exponent - x.exponent;
  stepped s;
  s.rest.sticky = x.sticky;
  if (shift <= 0) {
    s.steps = shift <= -64 ? 0 : x.significand << -shift;  // a shift of 64 or more only happens to a zero
  } else if (shift < 64) {
    s.steps = x.significand >> shift;
    s.rest.fraction = x.significand << (64 - shift);
  } else if (shift == 64) {
    s.rest.fraction = x.significand;
  } else if (shift < 128) {
    s.rest.fraction = x.significand >> (shift - 64);
    s.rest.sticky = x.sticky || (x.significand << (128 - shift)) != 0;
  } else {
    s.rest.sticky = x.sticky || x.significand != 0;
  }
  return s;
}

// Whether rounding by R points toward zero on the side of `negative` numbers, whatever the remainder.
template <rounding_mode R>
MICROSCALE_HD constexpr bool points_toward_zero(bool negative) noexcept {
  if constexpr (R::random_bits > 0) {
    return false;
  } else {
    return !R::away(remainder{~std::uint64_t{0}, true}, true, negative, 0);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Floating-point formats of up to 32 bits.

// What the top codes of a format mean.
//   none  every code is finite (E2M1, E2M3, E3M2)
//   nan   the code with all magnitude bits set is NaN, all others are finite (OCP E4M3, UE5M3)
//   ieee  the largest exponent is reserved: fraction 0 is infinity, others NaN (E5M2, binary16)
enum class specials : std::uint8_t { none, nan, ieee };

struct float_layout {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_sign = true;
  specials top = specials::none;
};

// A format described by its layout: [sign] exponent mantissa, with subnormals. A user's format derives from it:
//   struct ue3m4 : minifloat<float_layout{.exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false}> {};
template <float_layout L>
struct minifloat {
  static constexpr int exponent_bits = L.exponent_bits;
  static constexpr int mantissa_bits = L.mantissa_bits;
  static constexpr int bias = L.bias;
  static constexpr bool has_sign = L.has_sign;
  static constexpr int bits = exponent_bits + mantissa_bits + (has_sign ? 1 : 0);
  static_assert(exponent_bits >= 1 && exponent_bits <= 8 && mantissa_bits >= 0 && bits <= 32);

  using storage =
      std::conditional_t<bits <= 8, std::uint8_t, std::conditional_t<bits <= 16, std::uint16_t, std::uint32_t>>;

  static constexpr storage magnitude_mask =
      static_cast<storage>((std::uint64_t{1} << (exponent_bits + mantissa_bits)) - 1);
  static constexpr storage sign_mask = static_cast<storage>(has_sign ? magnitude_mask + std::uint64_t{1} : 0);

  static constexpr bool has_infinity = L.top == specials::ieee;
  static constexpr bool has_nan = L.top == specials::nan || (L.top == specials::ieee && mantissa_bits > 0);
  static constexpr storage infinity_code =
      static_cast<storage>(((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits);  // if has_infinity
  static constexpr storage nan_code = magnitude_mask;                                    // if has_nan
  // The code of the largest finite value.
  static constexpr storage largest_code = static_cast<storage>(L.top == specials::none  ? magnitude_mask
                                                               : L.top == specials::nan ? magnitude_mask - 1
                                                                                        : infinity_code - 1);
  static constexpr bool has_zero = true;

  // Exponent of the smallest normal value, and of the step between subnormal values.
  static constexpr int smallest_exponent = 1 - bias;
  static constexpr int step_exponent = smallest_exponent - mantissa_bits;
  static_assert(mantissa_bits <= 23 && step_exponent >= -149 && (largest_code >> mantissa_bits) - bias <= 127,
                "every value of a format must be a binary32 value");

  MICROSCALE_HD static constexpr bool is_nan(storage code) noexcept {
    return has_nan && (code & magnitude_mask) > (has_infinity ? infinity_code : largest_code);
  }
  MICROSCALE_HD static constexpr bool is_infinite(storage code) noexcept {
    return has_infinity && (code & magnitude_mask) == infinity_code;
  }
  MICROSCALE_HD static constexpr bool is_finite(storage code) noexcept {
    return (code & magnitude_mask) <= largest_code;
  }

  // The code taken apart, exactly. Bits above the format's are ignored.
  MICROSCALE_HD static constexpr unpacked unpack_code(storage code) noexcept {
    unpacked u;
    const storage magnitude = static_cast<storage>(code & magnitude_mask);
    u.negative = (code & sign_mask) != 0;
    if (magnitude > largest_code) {
      u.kind = is_infinite(magnitude) ? number_class::infinite : number_class::nan;
      return u;
    }
    const int e = static_cast<int>(magnitude >> mantissa_bits);
    const std::uint64_t m = magnitude & ((std::uint64_t{1} << mantissa_bits) - 1);
    u.significand = e == 0 ? m : m | (std::uint64_t{1} << mantissa_bits);
    u.exponent = step_exponent + (e == 0 ? 0 : e - 1);
    return u;
  }

  // The value of a code as a float, exactly; a NaN code gives the quiet NaN. Bits above the format's are ignored, as
  // tensor cores ignore the top bit of a UE4M3 byte.
  MICROSCALE_HD static constexpr float decode(storage code) noexcept {
    if constexpr (bits == 32) {
      return is_nan(code) ? fp32::quiet_nan() : fp32::from_bits(code);
    } else {
      const std::uint32_t sign = (code & sign_mask) != 0 ? fp32::sign_bit : 0u;
      const std::uint32_t magnitude = code & magnitude_mask;
      if (magnitude > largest_code) {
        return is_infinite(code) ? fp32::from_bits(sign | fp32::infinity_bits) : fp32::quiet_nan();
      }
      const std::uint32_t e = magnitude >> mantissa_bits;
      std::uint32_t m = magnitude & ((1u << mantissa_bits) - 1u);
      // A biased binary32 exponent; a subnormal is first made normal by moving its top bit to the hidden place.
      int exponent = static_cast<int>(e) - bias + 127;
      if (e == 0) {
        if (m == 0) return fp32::from_bits(sign);
        const int lift = mantissa_bits + 1 - bit_width(m);
        exponent = smallest_exponent + 127 - lift;
        m = (m << lift) & ((1u << mantissa_bits) - 1u);
      }
      const std::uint32_t fraction = m << (23 - mantissa_bits);
      if (exponent > 0) return fp32::from_bits(sign | (static_cast<std::uint32_t>(exponent) << 23) | fraction);
      return fp32::from_bits(sign | ((0x00800000u | fraction) >> (1 - exponent)));  // a binary32 subnormal: exact
    }
  }

  // The code nearest to x in the sense of R, rounded once; `random` is the draw of a stochastic mode, in
  // [0, 2^R::random_bits).
  //   NaN         the NaN code with x's sign where the format has one, else the largest positive value
  //   overflow    as `on_overflow` says, after rounding; infinities are treated as overflow
  //   -0          keeps its sign, also when a negative number underflows; 00 in unsigned formats
  //   negative    a negative number in an unsigned format gives 0
  template <rounding_mode R = nearest_even, real_number T>
  MICROSCALE_HD static constexpr storage encode(T x, R rounding = {}, overflow on_overflow = overflow::saturate,
                                                std::uint32_t random = 0) noexcept {
    const unpacked u = unpack(x);
    const storage sign = u.negative ? sign_mask : storage{0};
    if (u.kind == number_class::nan) {
      return has_nan ? static_cast<storage>(sign | nan_code) : largest_code;
    }
    if (!has_sign && u.negative) return 0;
    if (u.kind == number_class::infinite) return static_cast<storage>(sign | overflow_code(on_overflow));
    if (u.significand == 0) return sign;

    const int exponent = bit_width(u.significand) - 1 + u.exponent;
    const int effective = larger(exponent, smallest_exponent);
    const stepped s = in_steps(u, effective - mantissa_bits);
    std::uint64_t magnitude = (static_cast<std::uint64_t>(effective - smallest_exponent) << mantissa_bits) + s.steps;
    // Magnitude codes are ordered as their values are, so the farther neighbour is the next code.
    if (rounding.away(s.rest, (magnitude & 1) != 0, u.negative, random)) ++magnitude;
    if (magnitude > largest_code) {
      magnitude = points_toward_zero<R>(u.negative) ? largest_code : overflow_code(on_overflow);
    }
    return static_cast<storage>(sign | magnitude);
  }

  MICROSCALE_HD static constexpr float largest() noexcept { return decode(largest_code); }
  MICROSCALE_HD static constexpr float smallest_normal() noexcept {
    return decode(static_cast<storage>(std::uint64_t{1} << mantissa_bits));
  }
  MICROSCALE_HD static constexpr float smallest_positive() noexcept { return decode(1); }

 private:
  MICROSCALE_HD static constexpr storage overflow_code(overflow on_overflow) noexcept {
    if (on_overflow == overflow::saturate) return largest_code;
    return has_infinity ? infinity_code : has_nan ? nan_code : largest_code;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Powers of two (OCP E8M0).

// Where a number half-way between two powers of two goes under nearest_even: `up`, as the conversion instructions
// and the software that follows them do (the one significand counts as odd), or to the `even` code.
enum class power_tie : std::uint8_t { up, even };

// An eight-bit exponent: 2^(code - 127), code 0xFF is NaN. There is no zero and no sign: zero, and whatever lies
// below 2^-127, negative numbers included, has code 0x00.
template <power_tie Tie>
struct power_of_two {
  using storage = std::uint8_t;
  static constexpr int bits = 8;
  static constexpr int bias = 127;
  static constexpr int mantissa_bits = 0;
  static constexpr bool has_sign = false;
  static constexpr bool has_infinity = false;
  static constexpr bool has_nan = true;
  static constexpr bool has_zero = false;
  static constexpr storage sign_mask = 0;
  static constexpr storage magnitude_mask = 0xFF;
  static constexpr storage nan_code = 0xFF;
  static constexpr storage largest_code = 0xFE;
  static constexpr int step_exponent = -127;

  MICROSCALE_HD static constexpr bool is_nan(storage code) noexcept { return code == nan_code; }
  MICROSCALE_HD static constexpr bool is_infinite(storage) noexcept { return false; }
  MICROSCALE_HD static constexpr bool is_finite(storage code) noexcept { return code != nan_code; }

  MICROSCALE_HD static constexpr unpacked unpack_code(storage code) noexcept {
    unpacked u;
    if (code == nan_code) {
      u.kind = number_class::nan;
    } else {
      u.significand = 1;
      u.exponent = static_cast<int>(code) - bias;
    }
    return u;
  }

  // 2^(code - 127); code 0 is a binary32 subnormal, which a shift into the exponent field would lose.
  MICROSCALE_HD static constexpr float decode(storage code) noexcept {
    if (code == nan_code) return fp32::quiet_nan();
    return fp32::from_bits(code == 0 ? 0x00400000u : static_cast<std::uint32_t>(code) << 23);
  }

  // As minifloat::encode; an infinity saturates to 2^127, or is NaN under overflow::ieee.
  template <rounding_mode R = nearest_even, real_number T>
  MICROSCALE_HD static constexpr storage encode(T x, R rounding = {}, overflow on_overflow = overflow::saturate,
                                                std::uint32_t random = 0) noexcept {
    const unpacked u = unpack(x);
    if (u.kind == number_class::nan) return nan_code;
    if (u.negative) return 0;
    const storage top = on_overflow == overflow::ieee ? nan_code : largest_code;
    if (u.kind == number_class::infinite) return top;
    if (u.significand == 0) return 0;
    const int exponent = bit_width(u.significand) - 1 + u.exponent;
    if (exponent < -bias) return 0;
    int code = exponent + bias;
    const bool odd = Tie == power_tie::up || (code & 1) != 0;
    if (rounding.away(in_steps(u, exponent).rest, odd, false, random)) ++code;
    if (code > largest_code) return points_toward_zero<R>(false) ? largest_code : top;
    return static_cast<storage>(code);
  }

  MICROSCALE_HD static constexpr float largest() noexcept { return decode(largest_code); }
  MICROSCALE_HD static constexpr float smallest_normal() noexcept { return decode(1); }
  MICROSCALE_HD static constexpr float smallest_positive() noexcept { return decode(0); }
};

// ---------------------------------------------------------------------------------------------------------------
// Two's complement fixed point (OCP MXINT8 and its 4-bit counterpart).

// Whether encode uses the most negative code; OCP leaves it to the implementation. It always decodes.
enum class integer_range : std::uint8_t { symmetric, full };

// value = code / 2^(Bits - 2), code in two's complement.
template <int Bits, integer_range Range>
struct fixed_point {
  static_assert(Bits >= 3 && Bits <= 8);
  using storage = std::uint8_t;
  static constexpr int bits = Bits;
  static constexpr int fraction_bits = Bits - 2;
  static constexpr int mantissa_bits = fraction_bits;
  static constexpr bool has_sign = true;
  static constexpr bool has_infinity = false;
  static constexpr bool has_nan = false;
  static constexpr bool has_zero = true;
  static constexpr storage code_mask = static_cast<storage>((1u << Bits) - 1u);
  static constexpr storage largest_code = static_cast<storage>((1u << (Bits - 1)) - 1u);
  // The code of the lowest value that encode yields.
  static constexpr storage lowest_code =
      static_cast<storage>((1u << (Bits - 1)) + (Range == integer_range::full ? 0u : 1u));
  static constexpr int step_exponent = -fraction_bits;

  MICROSCALE_HD static constexpr bool is_nan(storage) noexcept { return false; }
  MICROSCALE_HD static constexpr bool is_infinite(storage) noexcept { return false; }
  MICROSCALE_HD static constexpr bool is_finite(storage) noexcept { return true; }

  MICROSCALE_HD static constexpr unpacked unpack_code(storage code) noexcept {
    const int c = code & code_mask;
    unpacked u = unpack(c > largest_code ? c - (1 << Bits) : c);
    u.exponent = step_exponent;
    return u;
  }

  MICROSCALE_HD static constexpr float decode(storage code) noexcept {
    const int c = code & code_mask;
    const int n = c > largest_code ? c - (1 << Bits) : c;
    return static_cast<float>(n) * (1.0f / static_cast<float>(1 << fraction_bits));  // both factors exact
  }

  // As minifloat::encode, in steps of 2^-(Bits - 2); there is no -0, and NaN gives the largest value.
  template <rounding_mode R = nearest_even, real_number T>
  MICROSCALE_HD static constexpr storage encode(T x, R rounding = {}, overflow = overflow::saturate,
                                                std::uint32_t random = 0) noexcept {
    const unpacked u = unpack(x);
    const std::uint64_t limit =
        largest_code + (u.negative && Range == integer_range::full ? std::uint64_t{1} : std::uint64_t{0});
    std::uint64_t n = limit;
    if (u.kind == number_class::finite) {
      if (bit_width(u.significand) + u.exponent <= Bits) {  // otherwise far beyond the range
        const stepped s = in_steps(u, step_exponent);
        n = s.steps + (rounding.away(s.rest, (s.steps & 1) != 0, u.negative, random) ? 1 : 0);
        n = smaller(n, limit);
      }
    } else if (u.kind == number_class::nan) {
      return largest_code;
    }
    return static_cast<storage>((u.negative ? std::uint64_t{0} - n : n) & code_mask);
  }

  MICROSCALE_HD static constexpr float largest() noexcept { return decode(largest_code); }
  MICROSCALE_HD static constexpr float smallest_normal() noexcept { return decode(1); }
  MICROSCALE_HD static constexpr float smallest_positive() noexcept { return decode(1); }
};

// ---------------------------------------------------------------------------------------------------------------
// Concepts.

// What every part of the library asks of a format. Values are multiples of 2^step_exponent; `largest_code` is the code
// of the largest one, which is largest(). A code that is neither finite nor NaN is infinite.
template <class F>
concept number_format = requires(typename F::storage code, float x, nearest_even rounding) {
  { F::bits + 0 } -> std::same_as<int>;
  { F::step_exponent + 0 } -> std::same_as<int>;
  { F::has_sign&& F::has_zero&& F::has_nan } -> std::same_as<bool>;
  { F::largest_code } -> std::convertible_to<typename F::storage>;
  { F::is_finite(code) } -> std::same_as<bool>;
  { F::decode(code) } -> std::same_as<float>;
  { F::encode(x, rounding, overflow::saturate, 0u) } -> std::same_as<typename F::storage>;
  { F::unpack_code(code) } -> std::same_as<unpacked>;
  { F::is_nan(code) } -> std::same_as<bool>;
  { F::largest() } -> std::same_as<float>;
};

// Elements carry a sign and can be zero; scales are never negative.
template <class F>
concept element_format = number_format<F> && F::has_sign && F::has_zero &&(F::bits <= 16);

template <class F>
concept scale_format = number_format<F>;

}  // namespace microscale
