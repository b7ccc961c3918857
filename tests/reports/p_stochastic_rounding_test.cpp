// P. Stochastic rounding. On the device, with no FP4 instructions (P7): tests/device.
#include <algorithm>
#include <cmath>

#include "blocks.hpp"

#include <microscale/tensor/quantized.hpp>

#include "support/model.hpp"

using namespace reports;

namespace {

// For a magnitude m of a format and each quarter of the way to the next: how many of all draws go up, and where else.
template <class F, class R>
int wrong_shares(const model::format& f) {
  constexpr unsigned draws = 1u << R::random_bits;
  int wrong = 0;
  for (unsigned m = 0; m<f.top; m += f.top> 200 ? 5 : 1) {
    const double low = model::magnitude(f, m), high = model::magnitude(f, m + 1);
    for (unsigned sixteenths = 0; sixteenths < 16; ++sixteenths) {
      const auto x = static_cast<float>(low + (high - low) * sixteenths / 16);
      for (const float y : {x, -x}) {
        const unsigned sign = y < 0 || (sixteenths == 0 && m == 0 && std::signbit(y)) ? F::sign_mask : 0u;
        unsigned up = 0;
        for (unsigned r = 0; r < draws; ++r) {
          const unsigned code = F::encode(y, R{}, ms::overflow::saturate, r);
          if (code == ((m + 1) | sign)) {
            ++up;
          } else {
            wrong += code != (m | sign);  // neither neighbour
          }
        }
        wrong += up != sixteenths * draws / 16;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE(
    "P1 the share of draws that go up is the way to the next code: every binade, both signs, both neighbours only") {
  CHECK(wrong_shares<ms::e2m1, ms::stochastic_midpoint8>(model::e2m1) == 0);
  CHECK(wrong_shares<ms::e2m1, ms::stochastic_floor8>(model::e2m1) == 0);
  CHECK(wrong_shares<ms::e3m2, ms::stochastic_midpoint8>(model::e3m2) == 0);
  CHECK(wrong_shares<ms::e5m2, ms::stochastic_midpoint8>(model::e5m2) == 0);
  CHECK(wrong_shares<ms::e4m3, ms::stochastic_floor8>(model::e4m3) == 0);
  // The report's: -0.3 is 0.6 of the way to -0.5.
  unsigned away = 0;
  for (unsigned r = 0; r < 256; ++r)
    away += ms::e2m1::encode(-0.3f, ms::stochastic_midpoint8{}, ms::overflow::saturate, r) == 9;
  CHECK((away == 153 || away == 154));
}

TEST_CASE("P3 the bias over all draws: within half a draw for the midpoint rule, one-sided for the floor rule") {
  // x = 0.5 + 0.5 * 3/1024: three quarters of one draw in 256.
  const float x = 0.5f + 0.5f * 3 / 1024;
  const auto ups = [&](auto rounding, std::uint64_t draws) {
    std::uint64_t up = 0;
    for (std::uint64_t r = 0; r < draws; ++r)
      up += ms::e2m1::encode(x, rounding, ms::overflow::saturate, static_cast<std::uint32_t>(r)) == 2;
    return up;
  };
  CHECK(ups(ms::stochastic_midpoint8{}, 256) == 1);
  CHECK(ups(ms::stochastic_floor8{}, 256) == 0);
  CHECK(ups(ms::stochastic_midpoint16{}, 65536) == 192);
  for (int n = 0; n < 4096; ++n) {
    const float y = 1.0f + static_cast<float>(n) / 4096 / 2;  // between 1 and 1.5
    double midpoint = 0, floor = 0;
    for (unsigned r = 0; r < 256; ++r) {
      midpoint += ms::e2m1::encode(y, ms::stochastic_midpoint8{}, ms::overflow::saturate, r) == 3;
      floor += ms::e2m1::encode(y, ms::stochastic_floor8{}, ms::overflow::saturate, r) == 3;
    }
    const double ideal = n / 16.0;
    if (!(std::fabs(midpoint - ideal) <= 0.5 && floor <= ideal && ideal - floor < 1))
      FAIL("at " << n << ": " << midpoint << ", " << floor);
  }
}

TEST_CASE("P5 same key, same bits; another seed or stream, others; seed zero is as good as any") {
  std::vector<float> x(4096, 0.25f);
  for (std::size_t i = 0; i < x.size(); i += 16) x[i] = 6.0f;
  const auto codes = [&](std::uint64_t seed, std::uint64_t stream) {
    return ms::quantize<ms::nvfp4_single>(ms::matrix(x, 64, 64), {.rounding = ms::stochastic_midpoint8{seed, stream}})
        .codes();
  };
  std::vector<std::vector<std::uint8_t>> all = {codes(0, 0), codes(0, 1), codes(1, 0), codes(1, 1),
                                                codes(std::uint64_t{1} << 63, 0)};
  CHECK(codes(0, 0) == all[0]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(all[i] != all[j]);
    int up = 0;
    for (const std::uint8_t byte : all[i]) up += ((byte & 0xF) == 1) + (byte >> 4 == 1);
    CHECK((up > 1720 && up < 2120));  // of 3840, six standard deviations
  }
  // No row, no column and no block repeats another.
  for (int r = 1; r < 64; ++r) CHECK(!std::equal(all[0].begin(), all[0].begin() + 32, all[0].begin() + 32 * r));
}
