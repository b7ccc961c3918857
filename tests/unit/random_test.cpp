// Draws by position: a block takes the same bits whoever computes it, in whatever order.
#include <microscale/number/random.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <set>

namespace ms = microscale;

TEST_CASE("Philox gives the known answers at run time too") {
  volatile std::uint64_t zero = 0;
  const ms::philox_words w = ms::philox4x32({zero, zero}, zero);
  CHECK((w.word[0] == 0x6627E8D5 && w.word[1] == 0xE169C58D && w.word[2] == 0xBC57AC4C && w.word[3] == 0x9B00DBD8));
  const std::uint64_t ones = ~zero;
  const ms::philox_words v = ms::philox4x32({ones, ones}, ones);
  CHECK((v.word[0] == 0x408F276D && v.word[1] == 0x41C83B0E && v.word[2] == 0xA20BC7C6 && v.word[3] == 0x6D5451FD));
}

namespace {

template <class R, class Block>
int wrong_draws(std::uint64_t row, std::uint64_t k, std::uint64_t extent) {
  const R rounding{0x0123456789ABCDEFu, 0xFEDCBA9876543210u};
  ms::block_draws<R, Block> forward(rounding, row, k, extent), backward(rounding, row, k, extent);
  int wrong = 0;
  const auto want = [&](int i) {
    const std::uint64_t r = row + static_cast<std::uint64_t>(i / Block::columns);
    const std::uint64_t c = k + static_cast<std::uint64_t>(i % Block::columns);
    const std::uint64_t position = r * ((extent + 15) / 16 * 16) + c;
    // The definition of docs/numerics.md, section 3, by bytes.
    const int bytes = R::random_bits / 8;
    const std::uint64_t per_call = 16 / static_cast<std::uint64_t>(bytes);
    const ms::philox_words words = ms::philox4x32(rounding.key(), position / per_call);
    std::uint64_t draw = 0;
    for (int b = 0; b < bytes; ++b) {
      const int j = static_cast<int>(position % per_call) * bytes + b;
      draw |= std::uint64_t{words.word[j / 4] >> (8 * (j % 4)) & 0xFF} << (8 * b);
    }
    return draw;
  };
  for (int i = 0; i < Block::elements; ++i) wrong += forward(i) != want(i);
  for (int i = Block::elements - 1; i >= 0; --i) wrong += backward(i) != want(i);
  return wrong;
}

}  // namespace

TEST_CASE("the draws of a block are those of its elements' positions") {
  CHECK(wrong_draws<ms::stochastic_midpoint8, ms::block<1, 16>>(0, 0, 16) == 0);
  CHECK(wrong_draws<ms::stochastic_midpoint8, ms::block<1, 32>>(7, 32, 50) == 0);
  CHECK(wrong_draws<ms::stochastic_floor8, ms::block<16, 16>>(48, 16, 33) == 0);
  CHECK(wrong_draws<ms::stochastic_midpoint16, ms::block<1, 16>>(3, 16, 31) == 0);
  CHECK(wrong_draws<ms::stochastic_midpoint32, ms::block<32, 32>>(64, 0, 100) == 0);
  // Positions beyond 32 bits.
  CHECK(wrong_draws<ms::stochastic_midpoint8, ms::block<1, 16>>(std::uint64_t{1} << 40, 16, 1000) == 0);
}

TEST_CASE("rounding a block by position and by given draws is the same") {
  const ms::stochastic_midpoint8 rounding{.seed = 42, .stream = 9};
  float x[32];
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>((i * 37) % 101 - 50) / 7.0f;
  struct table {
    std::uint32_t draws[32];
    std::uint32_t operator()(int i) const noexcept { return draws[i]; }
  } given{};
  for (int i = 0; i < 32; ++i) {
    given.draws[i] = ms::draw<8>(rounding.key(), ms::element_position(5, 32 + static_cast<std::uint64_t>(i), 64));
  }
  const auto by_position = ms::quantize_block<ms::ue5m3_fp4_b32>(
      x, 10.0f, rounding, ms::block_draws<ms::stochastic_midpoint8, ms::block<1, 32>>(rounding, 5, 32, 64));
  const auto by_table = ms::quantize_block<ms::ue5m3_fp4_b32>(x, 10.0f, rounding, given);
  CHECK(by_position.scale == by_table.scale);
  int wrong = 0;
  for (int i = 0; i < 32; ++i) wrong += by_position.codes[i] != by_table.codes[i];
  CHECK(wrong == 0);
}

TEST_CASE("draws look uniform, and streams and seeds are apart") {
  int histogram[256] = {};
  for (std::uint64_t p = 0; p < 256 * 1024; ++p) ++histogram[ms::draw<8>({1, 2}, p)];
  int low = 1 << 30, high = 0;
  for (const int n : histogram) low = n < low ? n : low, high = n > high ? n : high;
  CHECK(low > 1024 - 6 * 32);
  CHECK(high < 1024 + 6 * 32);

  std::set<std::uint32_t> seen;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    for (std::uint64_t stream = 0; stream < 32; ++stream) seen.insert(ms::draw<32>({seed, stream}, 0));
  }
  CHECK(seen.size() == 1024);
}
