// G. Subnormals, flush-to-zero, underflowing scales. Flush-to-zero set by the caller or by the linker is in
// tests/flags.
#include "blocks.hpp"

#include <cmath>
#include <microscale/conformance/named_schemes.hpp>

using namespace reports;

TEST_CASE("G1 a block below the smallest E8M0 scale stays finite under byte 0") {
  const auto o = quantized<ms::mxfp8_e4m3>({2.8094e-36f, -7.6774e-38f, 9.1835e-40f, 0.0f});
  CHECK((o.scale == 0 && has_codes(o, {0x7E, 0xD5, 0x22, 0x00})));
  CHECK((o.values[0] == 448 * 0x1p-127f && o.values[1] == -13 * 0x1p-127f && o.values[2] == 0.15625f * 0x1p-127f));
  // Subnormal inputs throughout.
  for (float a = 0x1p-149f; a < 0x1p-120f; a *= 2) {
    const auto q = quantized<ms::mxfp8_e5m2>({a, -a / 2, a / 4});
    CHECK(all_finite(q.values));
    // The smallest E5M2 under 2^-127 is 2^-143; half of it is a tie that goes to zero.
    CHECK(q.values[0] == (a >= 0x1p-143f ? a : 0.0f));
  }
}

TEST_CASE("G3 a scale that underflows: flattened or clamped as each scheme says, never infinite or NaN") {
  const auto single = quantized<ms::nvfp4_single>({0.005f, -0.005f});
  CHECK((single.scale == 0x00 && has_codes(single, {0, 8}) && single.values[0] == 0));
  const auto wide = quantized<ms::ue5m3_single>({0.005f});
  CHECK((wide.scale == 0x26 && wide.codes[0] == 7 && wide.values[0] == 0.00512695312f));
  CHECK(quantized<ms::nvfp4_exact>({1e-6f}, 1.0f).scale == 0x01);  // clamped
  // Every scheme, for amaxes all the way down, under references up to 2^60 times larger.
  ms::conformance::visit_named_schemes([]<class S>(const char* name) {
    INFO(name);
    bool finite = true;
    for (int e = -149; e < -10; e += 3) {
      const float a = std::ldexp(1.0f, e);
      for (const int above : {0, 1, 9, 12, 20, 60}) {
        const auto o = quantized<S>({a, -a, a / 3}, std::ldexp(1.0f, e + above));
        finite =
            finite && all_finite(o.values) && S::scale::is_finite(static_cast<typename S::scale::storage>(o.scale));
      }
    }
    CHECK(finite);
  });
}

TEST_CASE("G5 scales are converted one by one: no bit of one reaches its neighbour") {
  const float scales[] = {1.0f, 3.0f, 0.5f, 0x1p-127f};
  const unsigned down[] = {0x7F, 0x80, 0x7E, 0x00}, up[] = {0x7F, 0x81, 0x7E, 0x00};
  for (int i = 0; i < 4; ++i) {
    CHECK(ms::e8m0::encode(scales[i], ms::toward_zero{}) == down[i]);
    CHECK(ms::e8m0::encode(scales[i], ms::toward_positive{}) == up[i]);
  }
}
