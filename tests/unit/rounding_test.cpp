// The rounding modes against their definition in exact fractions, over all draws of 8 and 16 bits.
#include <microscale/number/rounding.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <vector>

namespace ms = microscale;

namespace {

__extension__ using wide = unsigned __int128;

// delta in units of 2^-65: a sticky remainder is somewhere between two multiples of 2^-64.
wide units(ms::remainder rest) { return 2 * wide{rest.fraction} + (rest.sticky ? 1 : 0); }
constexpr wide one = wide{1} << 65;

// k / 512 and its closest neighbours, below one.
std::vector<ms::remainder> deltas() {
  std::vector<ms::remainder> all;
  for (std::uint64_t k = 0; k < 512; ++k) {
    const std::uint64_t at = k << 55;
    all.push_back({at, false});
    all.push_back({at, true});
    all.push_back({at + 1, false});
    all.push_back({at - 1, true});  // for k = 0 just below one
    all.push_back({at - 1, false});
  }
  return all;
}

template <int Bits>
bool midpoint_goes_away(wide delta, std::uint64_t r) {
  return delta + ((2 * wide{r} + 1) << (64 - Bits)) >= one;  // delta + (2r + 1) / 2^(Bits + 1) >= 1
}
template <int Bits>
bool floor_goes_away(wide delta, std::uint64_t r) {
  return delta + (wide{r} << (65 - Bits)) >= one;  // delta + r / 2^Bits >= 1
}

template <class R>
bool away(ms::remainder rest, std::uint64_t r, bool odd = false, bool negative = false) {
  return R::away(rest, odd, negative, static_cast<std::uint32_t>(r));
}

}  // namespace

TEST_CASE("nearest and directed modes") {
  int wrong = 0;
  for (const ms::remainder rest : deltas()) {
    const wide delta = units(rest), half = one / 2;
    for (const bool odd : {false, true}) {
      for (const bool negative : {false, true}) {
        wrong += away<ms::nearest_even>(rest, 0, odd, negative) != (delta > half || (delta == half && odd));
        wrong += away<ms::toward_zero>(rest, 0, odd, negative);
        wrong += away<ms::toward_positive>(rest, 0, odd, negative) != (delta > 0 && !negative);
        wrong += away<ms::toward_negative>(rest, 0, odd, negative) != (delta > 0 && negative);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("stochastic modes of 8 bits, all draws") {
  int wrong = 0;
  for (const ms::remainder rest : deltas()) {
    for (std::uint64_t r = 0; r < 256; ++r) {
      for (const bool odd : {false, true}) {
        wrong += away<ms::stochastic_midpoint8>(rest, r, odd, !odd) != midpoint_goes_away<8>(units(rest), r);
        wrong += away<ms::stochastic_floor8>(rest, r, odd, odd) != floor_goes_away<8>(units(rest), r);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("stochastic modes of 16 and 32 bits") {
  int wrong = 0;
  for (std::uint64_t r = 0; r < 65536; ++r) {
    // The smallest delta that goes away, and what lies just below it.
    const std::uint64_t threshold = (std::uint64_t{1} << 17) - (2 * r + 1);
    const std::uint64_t at = threshold << 47;
    for (const ms::remainder rest :
         {ms::remainder{at, false}, ms::remainder{at, true}, ms::remainder{at - 1, false}, ms::remainder{at - 1, true},
          ms::remainder{at ^ (std::uint64_t{1} << 63), false}}) {
      wrong += away<ms::stochastic_midpoint16>(rest, r) != midpoint_goes_away<16>(units(rest), r);
      wrong += away<ms::stochastic_floor<16>>(rest, r) != floor_goes_away<16>(units(rest), r);
    }
    const std::uint64_t r32 = r * 65537;  // 32 bits, the ends included
    const std::uint64_t at32 = ((std::uint64_t{1} << 33) - (2 * r32 + 1)) << 31;
    for (const ms::remainder rest : {ms::remainder{at32, false}, ms::remainder{at32, true},
                                     ms::remainder{at32 - 1, false}, ms::remainder{at32 - 1, true}}) {
      wrong += away<ms::stochastic_midpoint32>(rest, r32) != midpoint_goes_away<32>(units(rest), r32);
      wrong += away<ms::stochastic_floor<32>>(rest, r32) != floor_goes_away<32>(units(rest), r32);
    }
  }
  for (const ms::remainder rest : deltas()) {
    for (const std::uint64_t r : {0u, 1u, 32767u, 32768u, 65534u, 65535u}) {
      wrong += away<ms::stochastic_midpoint16>(rest, r) != midpoint_goes_away<16>(units(rest), r);
      wrong += away<ms::stochastic_midpoint32>(rest, r) != midpoint_goes_away<32>(units(rest), r);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the stochastic modes are unbiased on their grid, and within half a grid step off it") {
  const auto count8 = [](auto mode, ms::remainder rest) {
    int count = 0;
    for (std::uint64_t r = 0; r < 256; ++r) count += away<decltype(mode)>(rest, r) ? 1 : 0;
    return count;
  };
  int wrong = 0;
  for (std::uint64_t k = 0; k < 256; ++k) {
    const int n = static_cast<int>(k);
    const ms::remainder on_grid{k << 56, false}, above{(k << 56) + 1, false}, half_way{(k << 56) + (1ull << 55), false};
    wrong += count8(ms::stochastic_midpoint8{}, on_grid) != n || count8(ms::stochastic_floor8{}, on_grid) != n;
    wrong += count8(ms::stochastic_midpoint8{}, above) != n || count8(ms::stochastic_floor8{}, above) != n;
    wrong += count8(ms::stochastic_midpoint8{}, half_way) != n + 1 || count8(ms::stochastic_floor8{}, half_way) != n;
  }
  CHECK(wrong == 0);

  // 3/1024 of the way: 8 bits know no better than 1/256, 16 bits get it right.
  const ms::remainder rest{std::uint64_t{3} << 54, false};
  CHECK(count8(ms::stochastic_midpoint8{}, rest) == 1);
  CHECK(count8(ms::stochastic_floor8{}, rest) == 0);
  int count16 = 0;
  for (std::uint64_t r = 0; r < 65536; ++r) count16 += away<ms::stochastic_midpoint16>(rest, r) ? 1 : 0;
  CHECK(count16 == 192);
}

TEST_CASE("the mean over all draws is the number, in every binade and both signs") {
  // E2M1: the quarter points of every interval; a fixed mask over the mantissa of a float would fail below 1.
  int wrong = 0;
  for (int c = 0; c < 7; ++c) {
    const double low = ms::e2m1::decode(static_cast<std::uint8_t>(c));
    const double high = ms::e2m1::decode(static_cast<std::uint8_t>(c + 1));
    for (int k = 0; k < 256; ++k) {
      const double x = low + (high - low) * k / 256;
      for (const double sign : {1.0, -1.0}) {
        double sum = 0;
        for (std::uint32_t r = 0; r < 256; ++r) {
          const auto code =
              ms::e2m1::encode(static_cast<float>(sign * x), ms::stochastic_midpoint8{}, ms::overflow::saturate, r);
          const double y = static_cast<double>(ms::e2m1::decode(code));
          wrong += y != sign * low && y != sign * high;
          sum += y;
        }
        wrong += sum != sign * x * 256;
      }
    }
  }
  CHECK(wrong == 0);
  // A subnormal of E5M2, half-way.
  int ups = 0;
  for (std::uint32_t r = 0; r < 256; ++r) {
    ups += ms::e5m2::encode(0x1.2p-14f, ms::stochastic_midpoint8{}, ms::overflow::saturate, r) == 5;
  }
  CHECK(ups == 128);
}
