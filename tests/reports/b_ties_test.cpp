// B. Ties, midpoints, carry.
#include <cmath>

#include "blocks.hpp"

#include "support/model.hpp"

using namespace reports;

namespace {

// Every midpoint of a format, both signs, its neighbours in binary32, and what lies in the middle of each half.
template <class F>
int wrong_midpoints(const model::format& f) {
  int wrong = 0;
  const unsigned sign = F::has_sign ? f.top + 1 + (f.nan >= 0 ? 1u : 0u) : 0;
  for (unsigned m = 0; m < f.top; ++m) {
    const double low = model::magnitude(f, m), high = model::magnitude(f, m + 1);
    const auto half = static_cast<float>((low + high) / 2);
    const auto holds = [&](float x, unsigned want) {
      wrong += F::encode(x) != want;
      if (F::has_sign) wrong += F::encode(-x) != (want | F::sign_mask);
    };
    holds(half, m % 2 == 0 ? m : m + 1);
    holds(std::nextafter(half, 0.0f), m);
    holds(std::nextafter(half, 1e30f), m + 1);
    holds(static_cast<float>(low + (high - low) / 4), m);
    holds(static_cast<float>(low + (high - low) * 3 / 4), m + 1);
  }
  return wrong + (sign == 0 && F::has_sign);
}

}  // namespace

TEST_CASE("B1 all seven midpoints of E2M1 go to the even code, under both signs") {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const unsigned codes[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    CHECK(ms::e2m1::encode(ties[i]) == codes[i]);
    CHECK(ms::e2m1::encode(-ties[i]) == (codes[i] | 8));
    // In a block under a scale too, where the sum is still a tie.
    const auto o = quantized<ms::nvfp4_single>({6 * 1.75f, ties[i] * 1.75f, -ties[i] * 1.75f});
    CHECK(has_codes(o, {7, codes[i], codes[i] | 8}));
  }
}

TEST_CASE("B4 nearest even is the default: nothing is cut off, nothing goes up on a tie") {
  const float in[] = {4.25f, 4.75f, 200.5f, 232.03683f, 216.0f};
  const float out[] = {4, 5, 208, 240, 224};
  for (int i = 0; i < 5; ++i) CHECK(ms::e4m3::decode(ms::e4m3::encode(in[i])) == out[i]);
  CHECK(wrong_midpoints<ms::e2m1>(model::e2m1) == 0);
  CHECK(wrong_midpoints<ms::e1m2>(model::e1m2) == 0);
  CHECK(wrong_midpoints<ms::e2m3>(model::e2m3) == 0);
  CHECK(wrong_midpoints<ms::e3m2>(model::e3m2) == 0);
  CHECK(wrong_midpoints<ms::e4m3>(model::e4m3) == 0);
  CHECK(wrong_midpoints<ms::e5m2>(model::e5m2) == 0);
  CHECK(wrong_midpoints<ms::ue4m3>(model::ue4m3) == 0);
  CHECK(wrong_midpoints<ms::ue5m3>(model::ue5m3) == 0);
  CHECK(wrong_midpoints<ms::ue5m3_ieee>(model::ue5m3_ieee) == 0);
}
