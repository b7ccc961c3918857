// Integers wide enough that a sum of products never rounds.
#pragma once

#include <cstdint>

#include "bits.hpp"
#include "config.hpp"
#include "format.hpp"

namespace microscale {

// A two's complement integer of 64 * Words bits. Sums that do not fit wrap; whoever picks Words sees to it that none
// does.
template <int Words>
class wide_integer {
  static_assert(Words >= 1);

 public:
  // Adds (negative ? -1 : 1) * a * b * 2^shift, for 0 <= shift.
  MICROSCALE_HD constexpr void add_product(std::uint64_t a, std::uint64_t b, bool negative, int shift) noexcept {
    // The product as 128 bits, from 32-bit halves.
    const std::uint64_t mask = 0xFFFFFFFFu;
    const std::uint64_t ll = (a & mask) * (b & mask), lh = (a & mask) * (b >> 32);
    const std::uint64_t hl = (a >> 32) * (b & mask), hh = (a >> 32) * (b >> 32);
    const std::uint64_t middle = (ll >> 32) + (lh & mask) + (hl & mask);
    const std::uint64_t low = (middle << 32) | (ll & mask);
    const std::uint64_t high = hh + (lh >> 32) + (hl >> 32) + (middle >> 32);

    const int first = shift / 64, bit = shift % 64;
    const std::uint64_t part[3] = {low << bit, bit == 0 ? high : (high << bit) | (low >> (64 - bit)),
                                   bit == 0 ? 0 : high >> (64 - bit)};
    std::uint64_t carry = negative ? 1 : 0;
    for (int i = 0; i < Words; ++i) {
      const int p = i - first;
      const std::uint64_t magnitude = p == 0 ? part[0] : p == 1 ? part[1] : p == 2 ? part[2] : 0;
      const std::uint64_t addend = negative ? ~magnitude : magnitude;
      const std::uint64_t sum = word_[i] + addend;
      const std::uint64_t out = sum + carry;
      carry = (sum < addend ? 1u : 0u) + (out < sum ? 1u : 0u);
      word_[i] = out;
    }
  }

  // The integer times 2^exponent, as 64 significant bits and whether anything lies below them.
  MICROSCALE_HD constexpr unpacked to_unpacked(int exponent) const noexcept {
    unpacked u;
    u.negative = (word_[Words - 1] >> 63) != 0;
    std::uint64_t magnitude[Words] = {};
    std::uint64_t carry = u.negative ? 1 : 0;
    for (int i = 0; i < Words; ++i) {
      magnitude[i] = (u.negative ? ~word_[i] : word_[i]) + carry;
      carry = carry != 0 && magnitude[i] == 0 ? 1 : 0;
    }
    int top = Words - 1;
    while (top > 0 && magnitude[top] == 0) --top;
    u.significand = magnitude[top];
    u.exponent = exponent + 64 * top;
    if (top > 0) {
      const int lift = 64 - bit_width(magnitude[top]);
      if (lift > 0) {
        u.significand = (magnitude[top] << lift) | (magnitude[top - 1] >> (64 - lift));
        u.exponent -= lift;
        u.sticky = (magnitude[top - 1] << lift) != 0;
      } else {
        u.sticky = magnitude[top - 1] != 0;
      }
      for (int i = 0; i + 1 < top; ++i) u.sticky = u.sticky || magnitude[i] != 0;
    }
    return u;
  }

 private:
  std::uint64_t word_[Words] = {};
};

}  // namespace microscale
