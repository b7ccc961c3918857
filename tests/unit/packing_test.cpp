// Packed codes: which bit lies where, for every width, count and code.
#include <microscale/tensor/packing.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <microscale/number/formats.hpp>
#include <vector>

namespace ms = microscale;

namespace {

// A five-bit format and one of twelve bits: streams that the field does not use, but a user's own format may.
struct e2m2 : ms::minifloat<ms::float_layout{.exponent_bits = 2, .mantissa_bits = 2, .bias = 1}> {};
struct e5m6 : ms::minifloat<ms::float_layout{.exponent_bits = 5, .mantissa_bits = 6, .bias = 15}> {};

template <class F>
std::vector<typename F::storage> some_codes(std::int64_t count) {
  std::vector<typename F::storage> codes;
  std::uint64_t state = 12345;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    codes.push_back(static_cast<typename F::storage>((state >> 40) & ((std::uint64_t{1} << F::bits) - 1)));
  }
  return codes;
}

// Bit b of code i is bit (i * bits + b) of the stream; all else is zero. The memory is exactly as long as the stream,
// so that a sanitizer sees every access beyond it.
template <class F>
int wrong_streams() {
  int wrong = 0;
  for (std::int64_t count = 0; count <= 70; ++count) {
    const auto codes = some_codes<F>(count);
    const std::int64_t bytes = (count * F::bits + 7) / 8;
    wrong += ms::packed_bytes(F::bits, count) != bytes;
    const auto memory = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(bytes));
    std::memset(memory.get(), 0xFF, static_cast<std::size_t>(bytes));
    ms::store_codes<F>(memory.get(), codes.data(), count);
    for (std::int64_t bit = 0; bit < bytes * 8; ++bit) {
      const std::int64_t i = bit / F::bits;
      const int want = i < count ? codes[static_cast<std::size_t>(i)] >> (bit % F::bits) & 1 : 0;
      wrong += (memory[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 1) != want;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      wrong += ms::load_code<F>(memory.get(), i) != codes[static_cast<std::size_t>(i)];
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("codes of every width are a little-endian bit stream, for every count") {
  CHECK(wrong_streams<ms::e2m1>() == 0);
  CHECK(wrong_streams<ms::int4>() == 0);
  CHECK(wrong_streams<e2m2>() == 0);
  CHECK(wrong_streams<ms::e2m3>() == 0);
  CHECK(wrong_streams<ms::e3m2>() == 0);
  CHECK(wrong_streams<ms::e4m3>() == 0);
  CHECK(wrong_streams<ms::int8>() == 0);
  CHECK(wrong_streams<e5m6>() == 0);
  CHECK(wrong_streams<ms::bf16>() == 0);
}

TEST_CASE("packed by hand: low nibble first, four six-bit codes in three bytes") {
  std::uint8_t nibbles[3] = {0xFF, 0xFF, 0xFF};
  const std::uint8_t four[5] = {7, 0xF, 2, 0xA, 1};
  ms::store_codes<ms::e2m1>(nibbles, four, 5);
  CHECK((nibbles[0] == 0xF7 && nibbles[1] == 0xA2 && nibbles[2] == 0x01));

  std::uint8_t six[3] = {0xFF, 0xFF, 0xFF};
  const std::uint8_t codes[4] = {0x3F, 0x00, 0x2A, 0x15};
  ms::store_codes<ms::e2m3>(six, codes, 4);
  CHECK((six[0] == 0x3F && six[1] == 0xA0 && six[2] == 0x56));
}

TEST_CASE("the unused bits of the last byte are ignored when read") {
  const std::uint8_t nibble[1] = {0xF3};
  CHECK(ms::load_code<ms::e2m1>(nibble, 0) == 3);
  const std::uint8_t six[1] = {0xC5};
  CHECK(ms::load_code<ms::e3m2>(six, 0) == 5);
}

TEST_CASE("sizes are computed in 64 bits") {
  const std::int64_t n = (std::int64_t{1} << 31) + 33;
  CHECK(ms::packed_bytes(4, n) == (std::int64_t{1} << 30) + 17);
  CHECK(ms::packed_bytes(6, n) == (n * 6 + 7) / 8);
  CHECK(ms::packed_bytes(8, n) == n);
  CHECK(ms::packed_bytes(4, std::int64_t{1} << 60) == std::int64_t{1} << 59);
}
