// Philox against the known answers of its authors (Random123, kat_vectors), and the settled order of the draws.
#include <cstdint>
#include <microscale/number/random.hpp>
#include <type_traits>

namespace ms = microscale;

namespace {

constexpr ms::random_key key(std::uint64_t seed, std::uint64_t stream) { return {seed, stream}; }

static_assert(ms::philox4x32(key(0, 0), 0) == ms::philox_words{{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}});
constexpr std::uint64_t ones = ~std::uint64_t{0};
static_assert(ms::philox4x32(key(ones, ones), ones) ==
              ms::philox_words{{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}});
// The digits of pi. The counter is {index, stream}, the key is the seed; low words first.
constexpr ms::random_key pi = key(0x299F31D0A4093822u, 0x0370734413198A2Eu);
static_assert(ms::philox4x32(pi, 0x85A308D3243F6A88u) ==
              ms::philox_words{{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}});

// The same words by 8, 16 and 32 bits: byte j is bits 8 (j mod 4) of word j / 4, and half-words likewise.
constexpr std::uint64_t index = 0x05A308D3243F6A88u;  // times 16 it is still a 64-bit position
constexpr ms::philox_words words = ms::philox4x32(pi, index);
constexpr bool draws_are_in_order() {
  for (int j = 0; j < 16; ++j) {
    const std::uint32_t byte = words.word[j / 4] >> (8 * (j % 4)) & 0xFF;
    if (ms::draw<8>(pi, index * 16 + static_cast<std::uint64_t>(j)) != byte) return false;
  }
  for (int j = 0; j < 8; ++j) {
    const std::uint32_t half = words.word[j / 2] >> (16 * (j % 2)) & 0xFFFF;
    if (ms::draw<16>(pi, index * 8 + static_cast<std::uint64_t>(j)) != half) return false;
  }
  for (int j = 0; j < 4; ++j) {
    if (ms::draw<32>(pi, index * 4 + static_cast<std::uint64_t>(j)) != words.word[j]) return false;
  }
  return true;
}
static_assert(draws_are_in_order());
static_assert(ms::draw<8>(key(0, 0), 0) == 0xD5 && ms::draw<8>(key(0, 0), 5) == 0xC5 &&
              ms::draw<8>(key(0, 0), 15) == 0x9B);
static_assert(ms::draw<16>(key(0, 0), 0) == 0xE8D5 && ms::draw<16>(key(0, 0), 3) == 0xE169);
static_assert(ms::draw<32>(key(0, 0), 3) == 0x9B00DBD8);
static_assert(ms::draws_per_call<8> == 16 && ms::draws_per_call<16> == 8 && ms::draws_per_call<32> == 4);

// Positions: rows start at multiples of 16, and neither rows nor columns are bounded by 32 bits.
static_assert(ms::element_position(0, 0, 5) == 0 && ms::element_position(0, 4, 5) == 4);
static_assert(ms::element_position(1, 0, 5) == 16 && ms::element_position(3, 2, 16) == 50);
static_assert(ms::element_position(3, 2, 17) == 98 && ms::element_position(7, 0, 0) == 0);
static_assert(ms::element_position(std::uint64_t{1} << 33, 1, 1) == (std::uint64_t{1} << 37) + 1);

// The seed and the stream both matter, in each of their halves.
static_assert(!(ms::philox4x32(key(1, 0), 0) == ms::philox4x32(key(0, 1), 0)));
static_assert(!(ms::philox4x32(key(ones - 0xFFFFFFFF, 0), 0) == ms::philox4x32(key(0, 0), 0)));
static_assert(!(ms::philox4x32(key(0, ones - 0xFFFFFFFF), 0) == ms::philox4x32(key(0, 0), 0)));
// Many calls under one key: the same words, for indices of 32 bits.
constexpr bool stream_agrees(ms::random_key k) {
  const ms::philox_stream stream(k);
  std::uint32_t i = 0xFFFFFFFFu;
  for (int n = 0; n < 33; ++n, i /= 2) {
    if (!(stream(i) == ms::philox4x32(k, i) && stream(~i) == ms::philox4x32(k, ~i))) return false;
  }
  return true;
}
static_assert(stream_agrees(key(0, 0)) && stream_agrees(key(ones, ones)) && stream_agrees(pi));
static_assert(stream_agrees(key(7, 3)) && stream_agrees(key(std::uint64_t{7} << 32, std::uint64_t{3} << 32)));
static_assert(ms::stochastic_midpoint8{.seed = 7, .stream = 3}.key() == key(7, 3));
static_assert(ms::stochastic_floor8{7, 3}.key() == key(7, 3));

static_assert(std::is_trivially_copyable_v<ms::philox_words> && sizeof(ms::philox_words) == 16);
static_assert(std::is_trivially_copyable_v<ms::random_key> && sizeof(ms::random_key) == 16);

}  // namespace
