// Packed codes: a little-endian bit stream, the first code in the lowest bits. Four-bit codes therefore go two a
// byte, element 0 in the low nibble; the last byte of a row is filled with zeros.
#pragma once

#include <cstdint>

#include "../number/bits.hpp"

namespace microscale {

// Bytes that `count` codes of `bits` bits take.
MICROSCALE_HD constexpr std::int64_t packed_bytes(int bits, std::int64_t count) noexcept {
  return bits % 8 == 0 ? count * (bits / 8) : ceil_div(count * bits, std::int64_t{8});
}

// Code `index` of the stream at `bytes`.
template <class Format>
MICROSCALE_HD constexpr typename Format::storage load_code(const std::uint8_t* bytes, std::int64_t index) noexcept {
  constexpr int bits = Format::bits;
  if constexpr (bits == 8) {
    return bytes[index];
  } else if constexpr (bits == 4) {
    return static_cast<typename Format::storage>((bytes[index / 2] >> (4 * (index % 2))) & 0xF);
  } else {
    const std::int64_t first = index * bits;
    std::uint32_t window = 0;
    for (int shift = 0; shift < bits + static_cast<int>(first % 8); shift += 8) {
      window |= std::uint32_t{bytes[first / 8 + shift / 8]} << shift;
    }
    return static_cast<typename Format::storage>((window >> (first % 8)) & ((1u << bits) - 1u));
  }
}

// Writes `count` codes, one per element of `codes`, to packed_bytes(bits, count) bytes.
template <class Format>
MICROSCALE_HD constexpr void store_codes(std::uint8_t* bytes, const typename Format::storage* codes,
                                         std::int64_t count) noexcept {
  constexpr int bits = Format::bits;
  if constexpr (bits == 8) {
    for (std::int64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(codes[i]);
  } else {
    std::uint32_t pending = 0;
    int held = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      pending |= static_cast<std::uint32_t>(codes[i]) << held;
      for (held += bits; held >= 8; held -= 8) {
        *bytes++ = static_cast<std::uint8_t>(pending);
        pending >>= 8;
      }
    }
    if (held > 0) *bytes = static_cast<std::uint8_t>(pending);
  }
}

}  // namespace microscale
