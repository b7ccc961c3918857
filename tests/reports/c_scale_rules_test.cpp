// C. Division or reciprocal, and which scale rule.
#include <cmath>

#include "blocks.hpp"

#include "support/model.hpp"

using namespace reports;

namespace {

// Blocks of a scheme without tensor scale whose elements sit on a tie times the scale, and one pattern to either side:
// for each scale, each tie. `witnesses` counts those that a multiplication by the reciprocal would get wrong.
template <class S>
int wrong_on_ties(const model::format& scale_format, int& witnesses) {
  int wrong = 0;
  for (unsigned code = 1; code <= scale_format.top; ++code) {
    const float s = model::decode(scale_format, code);
    if (s < 0x1p-100f || s > 0x1p100f) continue;
    for (unsigned m = 0; m < 7; ++m) {
      const double tie = (model::magnitude(model::e2m1, m) + model::magnitude(model::e2m1, m + 1)) / 2;
      const auto x = static_cast<float>(tie * static_cast<double>(s));
      for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e35f)}) {
        const auto o = quantized<S>({6 * s, y, -y});
        const unsigned want = model::round_quotient(model::e2m1, static_cast<double>(y), static_cast<double>(s), false,
                                                    model::rounding::nearest_even, 0);
        wrong += o.scale != code || o.codes[1] != want || o.codes[2] != (want | 8);
        witnesses += model::encode(model::e2m1, static_cast<double>(model::mul(y, model::div(1.0f, s)))) != want;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("C1 elements are divided by their scale, and a reciprocal would not do") {
  int witnesses = 0;
  CHECK(wrong_on_ties<ms::nvfp4_single>(model::ue4m3, witnesses) == 0);
  CHECK(witnesses > 100);
  witnesses = 0;
  CHECK(wrong_on_ties<ms::ue5m3_single>(model::ue5m3, witnesses) == 0);
  CHECK(witnesses > 200);
  // The report's: scale 1.875.
  const auto o = quantized<ms::nvfp4_single>({11.25f, 2.34375f, 4.6875f, 9.375f});
  CHECK(o.scale == 0x3F);
  CHECK(has_codes(o, {7, 2, 4, 6}));
  CHECK(quantized<ms::nvfp4_single>({10.5f, 0x1.87fffep+1f}).codes[1] == 3);
  // The exact schemes decide by the exact quotient, under a tensor scale too.
  CHECK(has_codes(quantized<ms::nvfp4_exact>({11.25f, 2.34375f, 4.6875f, 9.375f}, 2688.0f), {7, 2, 4, 6}));
}

TEST_CASE("C4 the floor rule reads the exponent of the amax, not of the amax over six") {
  const auto o = quantized<ms::mxfp4>({2.2f});
  CHECK((o.scale == 126 && o.codes[0] == 6 && o.values[0] == 2.0f));
  // Each rule against a table, through two binades in steps of a thirty-second.
  for (int n = 32; n < 128; ++n) {
    const float a = static_cast<float>(n) / 32.0f * 4;  // 4 ... 16
    const double x = static_cast<double>(a);
    const unsigned floor = 127 + (x >= 8 ? 1 : 0);
    unsigned even = floor, ceil = 127 + (x > 6 ? 1 : 0) + (x > 12 ? 1 : 0);
    if (x >= 7 && x < 8) even = 128;
    if (x >= 14) even = 129;
    CHECK(quantized<ms::mxfp4>({-a}).scale == floor);
    CHECK(quantized<ms::mxfp4_even>({-a}).scale == even);
    CHECK(quantized<ms::mxfp4_ceil>({-a}).scale == ceil);
  }
}

TEST_CASE("C6 floor may clip by up to half its amax; ceil never clips") {
  const auto floor = quantized<ms::mxfp8_e4m3>({957});
  CHECK((floor.scale == 128 && floor.values[0] == 896));
  const auto ceil = quantized<ms::mxfp8_e4m3_ceil>({957});
  CHECK((ceil.scale == 129 && ceil.values[0] == 960));
  const auto e5m2 = quantized<ms::mxfp8_e5m2>({127.99999f});
  CHECK((e5m2.scale == 118 && e5m2.values[0] == 112));
  // The worst clip of each element format, just below a power of two: top / 2^(emax + 1).
  const float below = std::nextafter(1024.0f, 0.0f);
  CHECK(quantized<ms::mxfp4>({below}).values[0] == 1024 * 0.75f);
  CHECK(quantized<ms::mxfp8_e4m3>({below}).values[0] == 1024 * 0.875f);
  CHECK(quantized<ms::mxfp6_e2m3>({below}).values[0] == 1024 * 0.9375f);
  // Under ceil, x / s never exceeds the top.
  for (float a = 1; a < 5000; a *= 1.037f) {
    const auto o = quantized<ms::mxfp4_ceil>({a});
    CHECK(a <= 6 * ms::e8m0::decode(static_cast<std::uint8_t>(o.scale)));
    const auto p = quantized<ms::mxfp8_e5m2_ceil>({a});
    CHECK(a <= 57344 * ms::e8m0::decode(static_cast<std::uint8_t>(p.scale)));
  }
}
