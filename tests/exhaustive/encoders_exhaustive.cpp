// Every encoder on every non-negative binary32 number, infinity included, against an independent walk along midpoints;
// and in a directed mode for an element and for a scale. What this leaves out is in boundaries_exhaustive.cpp.
#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <vector>

#include "support/formats.hpp"
#include "support/parallel.hpp"
#include "support/walk.hpp"

namespace ms = microscale;

namespace {

// The smallest pattern whose code is not the walk's; past infinity if there is none.
template <class F, class R>
std::uint64_t first_difference(const exhaustive::format& f, exhaustive::direction how) {
  const std::vector<std::uint32_t> starts = exhaustive::walk(f, how);
  const std::uint64_t count = std::uint64_t{exhaustive::infinity} + 1;
  std::atomic<std::uint64_t> first{count};
  exhaustive::in_parallel(count, std::uint64_t{1} << 20, [&](std::uint64_t begin, std::uint64_t end) {
    // Magnitudes past the top saturate; several magnitudes may start at one pattern, the last one counts.
    auto next = std::upper_bound(starts.begin(), starts.end(), begin);
    while (begin < end) {
      const unsigned magnitude = std::min(static_cast<unsigned>(next - starts.begin()) - 1, f.top);
      const std::uint64_t stop = next == starts.end() ? end : std::min<std::uint64_t>(*next, end);
      unsigned differs = 0;
      for (std::uint64_t b = begin; b < stop; ++b) {
        differs |= F::encode(exhaustive::float_of(static_cast<std::uint32_t>(b)), R{}) ^ magnitude;
      }
      for (std::uint64_t b = begin; differs != 0 && b < stop; ++b) {
        if (F::encode(exhaustive::float_of(static_cast<std::uint32_t>(b)), R{}) == magnitude) continue;
        std::uint64_t known = first;
        while (b < known && !first.compare_exchange_weak(known, b)) {
        }
        break;
      }
      begin = stop;
      while (next != starts.end() && *next <= begin) ++next;
    }
  });
  return first;
}

template <class F, class R = ms::nearest_even>
void hold(const exhaustive::format& f, exhaustive::direction how = exhaustive::direction::nearest_even) {
  const std::uint64_t first = first_difference<F, R>(f, how);
  INFO(f.name << ": the first difference is at pattern " << std::hex << first);
  CHECK(first == std::uint64_t{exhaustive::infinity} + 1);
}

}  // namespace

TEST_CASE("elements") {
  SECTION("e2m1") { hold<ms::e2m1>(exhaustive::e2m1); }
  SECTION("e1m2") { hold<ms::e1m2>(exhaustive::e1m2); }
  SECTION("e2m3") { hold<ms::e2m3>(exhaustive::e2m3); }
  SECTION("e3m2") { hold<ms::e3m2>(exhaustive::e3m2); }
  SECTION("e4m3") { hold<ms::e4m3>(exhaustive::e4m3); }
  SECTION("e5m2") { hold<ms::e5m2>(exhaustive::e5m2); }
  SECTION("int4") { hold<ms::int4>(exhaustive::int4); }
  SECTION("int8") { hold<ms::int8>(exhaustive::int8); }
}

TEST_CASE("scales") {
  SECTION("ue4m3") { hold<ms::ue4m3>(exhaustive::ue4m3); }
  SECTION("ue5m3") { hold<ms::ue5m3>(exhaustive::ue5m3); }
  SECTION("ue5m3_ieee") { hold<ms::ue5m3_ieee>(exhaustive::ue5m3_ieee); }
  SECTION("e8m0") { hold<ms::e8m0>(exhaustive::e8m0); }
}

TEST_CASE("16 bits") {
  SECTION("bf16") { hold<ms::bf16>(exhaustive::bf16); }
  SECTION("f16") { hold<ms::f16>(exhaustive::f16); }
}

TEST_CASE("away from zero") {
  constexpr auto away = exhaustive::direction::away_from_zero;
  SECTION("e2m1") { hold<ms::e2m1, ms::toward_positive>(exhaustive::e2m1, away); }
  SECTION("e8m0") { hold<ms::e8m0, ms::toward_positive>(exhaustive::e8m0, away); }
}
