// A number in a format, as a value type.
#pragma once

#include <compare>
#include <limits>

#include "config.hpp"
#include "formats.hpp"

namespace microscale {

// One number stored in format F. Conversions in and out are explicit; the one in rounds to nearest even and
// saturates, as F::encode does by default. Comparison is by value: zeros of both signs are equal, and a NaN is
// unordered. The size is that of F::storage, so arrays of value<bf16> are arrays of bfloat16.
template <number_format F>
class value {
 public:
  using format = F;
  using storage = typename F::storage;

  value() = default;

  template <real_number T>
  MICROSCALE_HD constexpr explicit value(T x) noexcept : code_(F::encode(x)) {}

  MICROSCALE_HD static constexpr value from_code(storage code) noexcept {
    value v;
    v.code_ = code;
    return v;
  }

  MICROSCALE_HD constexpr storage code() const noexcept { return code_; }
  MICROSCALE_HD constexpr explicit operator float() const noexcept { return F::decode(code_); }
  MICROSCALE_HD constexpr explicit operator double() const noexcept { return static_cast<double>(F::decode(code_)); }

  MICROSCALE_HD constexpr value operator-() const noexcept requires(F::has_sign&& requires { F::sign_mask; }) {
    return from_code(static_cast<storage>(code_ ^ F::sign_mask));
  }

  MICROSCALE_HD friend constexpr bool operator==(value a, value b) noexcept {
    return (a <=> b) == std::partial_ordering::equivalent;
  }
  MICROSCALE_HD friend constexpr std::partial_ordering operator<=>(value a, value b) noexcept {
    const float x = F::decode(a.code_), y = F::decode(b.code_);
    if (fp32::is_nan(x) || fp32::is_nan(y)) return std::partial_ordering::unordered;
    if (fp32::less(x, y)) return std::partial_ordering::less;
    return fp32::less(y, x) ? std::partial_ordering::greater : std::partial_ordering::equivalent;
  }

 private:
  storage code_ = 0;
};

}  // namespace microscale

template <microscale::number_format F>
class std::numeric_limits<microscale::value<F>> {
  using value = microscale::value<F>;

 public:
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = F::has_sign;
  static constexpr bool is_integer = false;
  static constexpr bool is_exact = false;
  static constexpr bool is_bounded = true;
  static constexpr bool is_modulo = false;
  static constexpr bool is_iec559 = false;
  static constexpr bool has_infinity = F::has_infinity;
  static constexpr bool has_quiet_NaN = F::has_nan;
  static constexpr bool has_signaling_NaN = false;
  static constexpr bool traps = false;
  static constexpr bool tinyness_before = false;
  static constexpr std::float_round_style round_style = std::round_to_nearest;
  static constexpr int radix = 2;
  static constexpr int digits = F::mantissa_bits + 1;

  MICROSCALE_HD static constexpr value(max)() noexcept { return value::from_code(F::largest_code); }
  MICROSCALE_HD static constexpr value lowest() noexcept {
    if constexpr (requires { F::lowest_code; }) {
      return value::from_code(F::lowest_code);
    } else {
      return value(fp32_negated_largest());
    }
  }
  // The smallest positive normal value.
  MICROSCALE_HD static constexpr value(min)() noexcept { return value(F::smallest_normal()); }
  MICROSCALE_HD static constexpr value denorm_min() noexcept { return value(F::smallest_positive()); }
  // The distance from 1 to the next value.
  MICROSCALE_HD static constexpr value epsilon() noexcept {
    return value(microscale::unpacked{.exponent = -F::mantissa_bits, .significand = 1});
  }
  MICROSCALE_HD static constexpr value round_error() noexcept { return value(0.5f); }
  MICROSCALE_HD static constexpr value infinity() noexcept requires(F::has_infinity) {
    return value::from_code(F::infinity_code);
  }
  MICROSCALE_HD static constexpr value quiet_NaN() noexcept requires(F::has_nan) {
    return value::from_code(F::nan_code);
  }

 private:
  // Zero, or the smallest scale, where the format has no negative numbers.
  MICROSCALE_HD static constexpr float fp32_negated_largest() noexcept {
    return F::has_sign ? microscale::fp32::negate(F::largest()) : 0.0f;
  }
};
