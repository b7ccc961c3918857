// Bit-level helpers that host, device and constant evaluation share.
#pragma once

#include <cstdint>

#include "config.hpp"

namespace microscale {

// The bits of `from` read as a `To` of the same size. std::bit_cast is not callable from device code without a flag;
// the builtin it is made of is.
template <class To, class From>
MICROSCALE_HD constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// The number of bits that `x` needs: 0 for 0, otherwise 1 + floor(log2(x)).
MICROSCALE_HD constexpr int bit_width(std::uint64_t x) noexcept {
  if (__builtin_is_constant_evaluated()) {
    int width = 0;
    for (; x != 0; x >>= 1) ++width;
    return width;
  }
#if defined(__CUDA_ARCH__)
  return 64 - __clzll(static_cast<long long>(x));
#else
  return x == 0 ? 0 : 64 - __builtin_clzll(x);
#endif
}

// ceil(a / b) for a >= 0, b > 0, without the overflow of (a + b - 1) / b.
template <class Int>
MICROSCALE_HD constexpr Int ceil_div(Int a, Int b) noexcept {
  return static_cast<Int>(a / b + (a % b != 0 ? 1 : 0));
}

// The smallest multiple of b that is not below a, for a >= 0, b > 0.
template <class Int>
MICROSCALE_HD constexpr Int round_up(Int a, Int b) noexcept {
  return static_cast<Int>(ceil_div(a, b) * b);
}

template <class Number>
MICROSCALE_HD constexpr Number smaller(Number a, Number b) noexcept {
  return b < a ? b : a;
}

template <class Number>
MICROSCALE_HD constexpr Number larger(Number a, Number b) noexcept {
  return a < b ? b : a;
}

}  // namespace microscale
