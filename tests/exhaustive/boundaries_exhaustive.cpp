// Every encoder in every rounding mode, of both signs and under both overflow policies, on all bfloat16 numbers and on
// the neighbourhood of every boundary; and the stochastic modes with all 256 draws around every 512th of every
// interval.
#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <vector>

#include "support/formats.hpp"
#include "support/parallel.hpp"
#include "support/walk.hpp"

namespace ms = microscale;
using exhaustive::direction;

namespace {

// Non-negative patterns: every bfloat16, and three on either side of every value and midpoint.
std::vector<std::uint32_t> patterns(const exhaustive::format& f) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t b = 0; b <= exhaustive::infinity; b += 0x10000) all.push_back(b);
  for (const direction how : {direction::nearest_even, direction::toward_zero}) {
    for (const std::uint32_t start : exhaustive::walk(f, how)) {
      for (std::uint32_t b = start < 3 ? 0 : start - 3; b <= start + 3; ++b) {
        if (b <= exhaustive::infinity) all.push_back(b);
      }
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// The code of a magnitude (top + 1 is an overflow) and a sign.
unsigned code_of(const exhaustive::format& f, unsigned magnitude, bool negative, bool is_ieee, bool stays_at_top) {
  if (negative && !f.has_sign) return 0;
  if (magnitude > f.top) {
    magnitude = is_ieee && !stays_at_top && f.kind != exhaustive::family::fixed_point ? f.past : f.top;
  }
  if (f.kind == exhaustive::family::fixed_point) return (negative ? 0u - magnitude : magnitude) & (2 * f.top + 1);
  return magnitude | (negative ? 1u << (f.exponent_bits + f.mantissa_bits) : 0);
}

template <class F, class R>
int wrong_in(const exhaustive::format& f, direction positive, direction negative) {
  const std::vector<std::uint32_t> up = exhaustive::walk(f, positive), down = exhaustive::walk(f, negative);
  int wrong = 0;
  for (const std::uint32_t b : patterns(f)) {
    const auto magnitude = [b](const std::vector<std::uint32_t>& starts) {
      return static_cast<unsigned>(std::upper_bound(starts.begin(), starts.end(), b) - starts.begin()) - 1;
    };
    const float x = exhaustive::float_of(b), minus = exhaustive::float_of(b | 0x80000000u);
    const bool infinite = b == exhaustive::infinity;  // it overflows in every mode
    for (const bool is_ieee : {false, true}) {
      const auto policy = is_ieee ? ms::overflow::ieee : ms::overflow::saturate;
      const unsigned m = infinite ? f.top + 1 : magnitude(up), n = infinite ? f.top + 1 : magnitude(down);
      const bool top_up = positive == direction::toward_zero && !infinite;
      const bool top_down = negative == direction::toward_zero && !infinite;
      wrong += F::encode(x, R{}, policy) != code_of(f, m, false, is_ieee, top_up);
      wrong += F::encode(minus, R{}, policy) != code_of(f, n, true, is_ieee, top_down);
      wrong += F::encode(static_cast<double>(minus), R{}, policy) != F::encode(minus, R{}, policy);
    }
  }
  return wrong;
}

// All draws around lower + k / 512 of the interval between a magnitude and the next, the overflow's included.
template <class F>
std::int64_t wrong_with_draws(const exhaustive::format& f) {
  std::atomic<std::int64_t> wrong{0};
  exhaustive::in_parallel(f.top + 1, 4, [&](std::uint64_t begin, std::uint64_t end) {
    std::int64_t here = 0;
    for (auto m = static_cast<unsigned>(begin); m < end; ++m) {
      const double low = exhaustive::value(f, m), step = exhaustive::value(f, m + 1) - low;
      for (int k = 0; k < 512; ++k) {
        const double at = low + step * k / 512;
        for (const double x : {at, std::nextafter(at, low), std::nextafter(at, low + step)}) {
          const double delta = (x - low) / step;
          const int floor512 = static_cast<int>(std::floor(512 * delta)),
                    floor256 = static_cast<int>(std::floor(256 * delta));
          for (unsigned r = 0; r < 256; ++r) {
            const unsigned midpoint = m + (floor512 + 2 * static_cast<int>(r) + 1 >= 512 ? 1 : 0);
            const unsigned floor = m + (floor256 + static_cast<int>(r) >= 256 ? 1 : 0);
            here += F::encode(x, ms::stochastic_midpoint8{}, ms::overflow::saturate, r) !=
                    code_of(f, midpoint, false, false, false);
            here +=
                F::encode(-x, ms::stochastic_floor8{}, ms::overflow::ieee, r) != code_of(f, floor, true, true, false);
          }
        }
      }
    }
    wrong += here;
  });
  return wrong;
}

template <class F>
void hold(const exhaustive::format& f) {
  constexpr auto nearest = direction::nearest_even, in = direction::toward_zero, out = direction::away_from_zero;
  CHECK(wrong_in<F, ms::nearest_even>(f, nearest, nearest) == 0);
  CHECK(wrong_in<F, ms::toward_zero>(f, in, in) == 0);
  CHECK(wrong_in<F, ms::toward_positive>(f, out, in) == 0);
  CHECK(wrong_in<F, ms::toward_negative>(f, in, out) == 0);
}

template <class F>
void hold_with_draws(const exhaustive::format& f) {
  hold<F>(f);
  CHECK(wrong_with_draws<F>(f) == 0);
}

}  // namespace

TEST_CASE("elements") {
  SECTION("e2m1") { hold_with_draws<ms::e2m1>(exhaustive::e2m1); }
  SECTION("e1m2") { hold_with_draws<ms::e1m2>(exhaustive::e1m2); }
  SECTION("e2m3") { hold_with_draws<ms::e2m3>(exhaustive::e2m3); }
  SECTION("e3m2") { hold_with_draws<ms::e3m2>(exhaustive::e3m2); }
  SECTION("e4m3") { hold_with_draws<ms::e4m3>(exhaustive::e4m3); }
  SECTION("e5m2") { hold_with_draws<ms::e5m2>(exhaustive::e5m2); }
  SECTION("int4") { hold_with_draws<ms::int4>(exhaustive::int4); }
  SECTION("int8") { hold_with_draws<ms::int8>(exhaustive::int8); }
}

TEST_CASE("scales") {
  SECTION("ue4m3") { hold_with_draws<ms::ue4m3>(exhaustive::ue4m3); }
  SECTION("ue5m3") { hold_with_draws<ms::ue5m3>(exhaustive::ue5m3); }
  SECTION("ue5m3_ieee") { hold_with_draws<ms::ue5m3_ieee>(exhaustive::ue5m3_ieee); }
  SECTION("e8m0") { hold_with_draws<ms::e8m0>(exhaustive::e8m0); }
}

TEST_CASE("16 bits") {
  SECTION("bf16") { hold<ms::bf16>(exhaustive::bf16); }
  SECTION("f16") { hold<ms::f16>(exhaustive::f16); }
}
