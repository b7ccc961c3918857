// A. Double rounding, wrong intermediate precision.
#include <cmath>
#include <limits>

#include "blocks.hpp"

#include "support/adversarial.hpp"
#include "support/model.hpp"

using namespace reports;

namespace {

// Doubles a hair off a midpoint between two codes, where a detour through binary32 lands on the midpoint itself.
template <class F>
int rounded_twice(const model::format& f) {
  int wrong = 0;
  for (unsigned m = 0; m + 1 <= f.top; ++m) {
    const double half = (model::magnitude(f, m) + model::magnitude(f, m + 1)) / 2;
    for (const double hair : {0x1p-40, 0x1p-51, -0x1p-40, -0x1p-52}) {
      const double x = half * (1 + hair);
      const unsigned want = hair > 0 ? m + 1 : m;
      wrong += F::encode(x) != want;
      if (F::has_sign) wrong += F::encode(-x) != (want | F::sign_mask);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("A1 a double is rounded once, never by way of a float") {
  CHECK(ms::e4m3::encode(17 + 0x1p-40) == 0x59);
  CHECK(ms::e4m3::encode(-431.99999999999994) == 0xFD);
  CHECK(rounded_twice<ms::e2m1>(model::e2m1) == 0);
  CHECK(rounded_twice<ms::e2m3>(model::e2m3) == 0);
  CHECK(rounded_twice<ms::e3m2>(model::e3m2) == 0);
  CHECK(rounded_twice<ms::e4m3>(model::e4m3) == 0);
  CHECK(rounded_twice<ms::e5m2>(model::e5m2) == 0);
  CHECK(rounded_twice<ms::ue4m3>(model::ue4m3) == 0);
  CHECK(rounded_twice<ms::ue5m3>(model::ue5m3) == 0);
  CHECK(rounded_twice<ms::bf16>(model::bf16) == 0);
  CHECK(rounded_twice<ms::f16>(model::f16) == 0);
}

TEST_CASE("A1 an integer is rounded once") {
  // 2^24 + 1 and 2^53 + 1 are halved by a float, and by a double.
  CHECK(ms::bf16::encode((std::int64_t{1} << 30) + (1 << 22) + 1) == ms::bf16::encode(0x1.02p30));
  CHECK(ms::bf16::encode(-((std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1)) == ms::bf16::encode(-0x1.02p62));
  CHECK(ms::bf16::encode((std::uint64_t{1} << 63) + (std::uint64_t{1} << 55)) == ms::bf16::encode(0x1p63));  // a tie
  CHECK(ms::e4m3::encode(std::numeric_limits<std::int64_t>::min()) == 0xFE);
}

TEST_CASE("A4 the amax is found and its exponent read in the input's precision") {
  // The largest float below a power of two, which bfloat16 and half round up to it.
  for (int e = -20; e <= 20; ++e) {
    const float below = std::nextafter(std::ldexp(1.0f, e), 0.0f);
    const auto o = quantized<ms::mxfp4>({below});
    CHECK(o.scale == static_cast<unsigned>(127 + e - 1 - 2));
    CHECK(o.codes[0] == 7);
  }
  CHECK(quantized<ms::mxfp4>({7.999f}).scale == 127);
  // Under a rule with a tie: an amax just past it, by less than bfloat16 sees.
  const float tie = 6 * 1.0625f;  // between the scales 1 and 1.125
  CHECK(quantized<ms::nvfp4_single>({tie}).scale == 0x38);
  CHECK(quantized<ms::nvfp4_single>({std::nextafter(tie, 9.0f)}).scale == 0x39);
}
