// Random bits as a function of (seed, stream, position): Philox4x32-10, a counter-based generator.
//
// Nothing here has state. The bits that round element (r, k) of an operand depend on the seed, the stream and the
// element's position alone, so one seed gives the same codes on one thread, on sixteen, or on a GPU.
#pragma once

#include <cstdint>

#include "config.hpp"
#include "rounding.hpp"

namespace microscale {

struct philox_words {
  std::uint32_t word[4] = {};

  friend constexpr bool operator==(const philox_words&, const philox_words&) = default;
};

namespace detail {

// The 64 bits of a * b. On the device the instruction itself: nvcc adds up a product of 64-bit numbers otherwise.
MICROSCALE_HD constexpr std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    std::uint64_t p;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
    return p;
  }
#endif
  return std::uint64_t{a} * b;
}

}  // namespace detail

// The keys of the ten rounds, for those who make many calls under one key.
struct philox_keys {
  std::uint32_t low[10], high[10];
  std::uint64_t stream;

  MICROSCALE_HD constexpr explicit philox_keys(random_key key) noexcept : low{}, high{}, stream(key.stream) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      low[round] = k0;
      high[round] = k1;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }
};

// Ten rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on the counter
// {index, stream} under the key {seed}, 64 bits each, low word first.
MICROSCALE_HD constexpr philox_words philox4x32(const philox_keys& keys, std::uint64_t index) noexcept {
  std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(keys.stream), c3 = static_cast<std::uint32_t>(keys.stream >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = detail::wide_product(0xD2511F53u, c0);
    const std::uint64_t p1 = detail::wide_product(0xCD9E8D57u, c2);
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ keys.low[round];
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ keys.high[round];
    c3 = static_cast<std::uint32_t>(p0);
  }
  return {{c0, c1, c2, c3}};
}
MICROSCALE_HD constexpr philox_words philox4x32(random_key key, std::uint64_t index) noexcept {
  return philox4x32(philox_keys(key), index);
}

// philox4x32 under one key, for those who make many calls with indices below 2^32: what the first rounds compute of the
// stream alone is computed once.
class philox_stream {
 public:
  MICROSCALE_HD constexpr explicit philox_stream(random_key key) noexcept : philox_stream(philox_keys(key)) {}
  MICROSCALE_HD constexpr explicit philox_stream(const philox_keys& keys) noexcept : keys_(keys) {
    const std::uint64_t first = detail::wide_product(0xCD9E8D57u, static_cast<std::uint32_t>(keys.stream));
    const std::uint64_t second =
        detail::wide_product(0xD2511F53u, static_cast<std::uint32_t>(first >> 32) ^ keys_.low[0]);
    keys_.high[0] ^= static_cast<std::uint32_t>(keys.stream >> 32);
    keys_.low[1] ^= static_cast<std::uint32_t>(first);
    keys_.high[1] ^= static_cast<std::uint32_t>(second >> 32);
    keys_.high[2] ^= static_cast<std::uint32_t>(second);
  }

  // philox4x32(key, index)
  MICROSCALE_HD constexpr philox_words operator()(std::uint32_t index) const noexcept {
    std::uint64_t p0 = detail::wide_product(0xD2511F53u, index);
    std::uint64_t p1 = detail::wide_product(0xCD9E8D57u, static_cast<std::uint32_t>(p0 >> 32) ^ keys_.high[0]);
    std::uint32_t c0 = static_cast<std::uint32_t>(p1 >> 32) ^ keys_.low[1], c1 = static_cast<std::uint32_t>(p1);
    std::uint32_t c2 = static_cast<std::uint32_t>(p0) ^ keys_.high[1], c3 = 0;  // which keys_.high[2] has
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int round = 2; round < 10; ++round) {
      p0 = detail::wide_product(0xD2511F53u, c0);
      p1 = detail::wide_product(0xCD9E8D57u, c2);
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ keys_.low[round];
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ keys_.high[round];
      c3 = static_cast<std::uint32_t>(p0);
    }
    return {{c0, c1, c2, c3}};
  }

 private:
  philox_keys keys_;  // with what the stream became
};

// How many draws of `Bits` bits one Philox call yields.
template <int Bits>
inline constexpr int draws_per_call = 128 / Bits;

// Draw j (0 <= j < draws_per_call<Bits>) of one Philox call: bytes and half-words count from the low end of word 0.
template <int Bits>
MICROSCALE_HD constexpr std::uint32_t extract_draw(const philox_words& words, int j) noexcept {
  if constexpr (Bits == 32) {
    return words.word[j];
  } else {
    constexpr int per_word = 32 / Bits;
    return (words.word[j / per_word] >> (Bits * (j % per_word))) & ((1u << Bits) - 1u);
  }
}

// The draw of `Bits` bits at `position`.
template <int Bits>
MICROSCALE_HD constexpr std::uint32_t draw(random_key key, std::uint64_t position) noexcept {
  constexpr std::uint64_t per_call = draws_per_call<Bits>;
  return extract_draw<Bits>(philox4x32(key, position / per_call), static_cast<int>(position % per_call));
}

// The position of element (row, k) of a quantized operand as stored, K-major with `k_extent` elements a row. Rows
// start at multiples of 16, so a block of 16 takes the 128 bits of one Philox call in either orientation.
MICROSCALE_HD constexpr std::uint64_t element_position(std::uint64_t row, std::uint64_t k,
                                                       std::uint64_t k_extent) noexcept {
  return row * ((k_extent + 15) / 16 * 16) + k;
}

}  // namespace microscale
