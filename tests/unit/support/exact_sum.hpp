// Sums of products kept exactly, apart from the library: digits of 32 bits in a row, carried only when they are read.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace exact {

inline float float_of(bool negative, std::uint64_t significand, int exponent) {
  const double x = std::ldexp(static_cast<double>(significand), exponent);  // exact: at most 24 bits
  return static_cast<float>(negative ? -x : x);
}

// An integer of up to 2^15 digits, times 2^-`origin`: room for every product of four binary32 numbers.
class sum {
 public:
  explicit sum(int digits = 48, int origin = 0) : digit_(static_cast<std::size_t>(digits)), origin_(origin) {}

  // (negative ? -1 : 1) * a * b * 2^shift, in units of 2^-origin.
  void add_product(std::uint64_t a, std::uint64_t b, bool negative, int shift) {
    const std::uint64_t parts_a[2] = {a & 0xFFFFFFFFu, a >> 32}, parts_b[2] = {b & 0xFFFFFFFFu, b >> 32};
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) add(parts_a[i] * parts_b[j], negative, shift + 32 * (i + j));
    }
  }
  // x * y exactly, for binary64 numbers.
  void add_product(double x, double y) {
    int ex = 0, ey = 0;
    const double fx = std::frexp(std::fabs(x), &ex), fy = std::frexp(std::fabs(y), &ey);
    const auto mx = static_cast<std::uint64_t>(std::ldexp(fx, 53)), my = static_cast<std::uint64_t>(std::ldexp(fy, 53));
    add_product(mx, my, std::signbit(x) != std::signbit(y), ex - 53 + ey - 53 + origin_);
  }

  bool is_negative() const {
    std::vector<std::uint32_t> m;
    return magnitude(m);
  }
  // The sum * 2^exponent as a float: to the nearest, ties to even, infinite beyond the range; or toward zero, the
  // largest number beyond it. Zero is +0.
  float nearest(int exponent = 0) const { return rounded(exponent, true); }
  float toward_zero(int exponent = 0) const { return rounded(exponent, false); }

 private:
  void add(std::uint64_t value, bool negative, int shift) {
    if (value == 0) return;
    if (shift < 0) {  // only ever trailing zeros
      value >>= -shift;
      shift = 0;
    }
    const std::size_t first = static_cast<std::size_t>(shift) / 32;
    const int bit = shift % 32;
    const std::uint64_t low = value << bit, high = bit == 0 ? 0 : value >> (64 - bit);
    const std::int64_t parts[3] = {static_cast<std::int64_t>(low & 0xFFFFFFFFu), static_cast<std::int64_t>(low >> 32),
                                   static_cast<std::int64_t>(high)};
    for (std::size_t i = 0; i < 3; ++i) {
      if (parts[i] != 0) digit_.at(first + i) += negative ? -parts[i] : parts[i];
    }
  }

  // Digits with their carries done; returns whether the sum is negative.
  bool magnitude(std::vector<std::uint32_t>& m) const {
    const auto carried = [&](bool negate) {
      m.assign(digit_.size(), 0);
      std::int64_t carry = 0;
      for (std::size_t i = 0; i < digit_.size(); ++i) {
        const std::int64_t d = (negate ? -digit_[i] : digit_[i]) + carry;
        carry = d >> 32;
        m[i] = static_cast<std::uint32_t>(d);
      }
      return carry;
    };
    if (carried(false) >= 0) return false;
    carried(true);
    return true;
  }

  float rounded(int exponent, bool to_nearest) const {
    std::vector<std::uint32_t> m;
    const bool negative = magnitude(m);
    int top = static_cast<int>(m.size()) * 32 - 1;
    const auto bit = [&](int i) { return i >= 0 && (m[static_cast<std::size_t>(i) / 32] >> (i % 32) & 1) != 0; };
    while (top >= 0 && !bit(top)) --top;
    if (top < 0) return 0.0f;
    const int unit = exponent - origin_;  // bit i is worth 2^(i + unit)
    int last = top - 23;                  // the last bit that is kept
    if (last + unit < -149) last = -149 - unit;
    std::uint64_t kept = 0;
    for (int i = top; i >= last; --i) kept = kept << 1 | (bit(i) ? 1 : 0);
    bool rest = false;
    for (int i = 0; i < last - 1 && i <= top && !rest; ++i) rest = bit(i);
    const bool half = last - 1 <= top && bit(last - 1);
    if (to_nearest && half && (rest || (kept & 1) != 0)) ++kept;
    const int width = 64 - (kept == 0 ? 64 : __builtin_clzll(kept));
    if (width + last + unit > 128) {
      const float top_value = to_nearest ? HUGE_VALF : 0x1.fffffep127f;
      return negative ? -top_value : top_value;
    }
    return float_of(negative, kept, last + unit);
  }

  std::vector<std::int64_t> digit_;
  int origin_;
};

}  // namespace exact
