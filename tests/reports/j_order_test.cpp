// J. The order of rounding the scale, taking the amax, and casting.
#include <cmath>

#include "blocks.hpp"

#include "support/adversarial.hpp"
#include "support/model.hpp"

using namespace reports;

TEST_CASE("J1 elements are divided by the scale that is stored, not by the one before its rounding") {
  const auto o = quantized<ms::nvfp4_single>({5.1f, 1.09f});
  CHECK((o.scale == 0x36 && has_codes(o, {7, 2}) && o.values[0] == 5.25f && o.values[1] == 0.875f));
  // Where it matters: each element is the nearest value under the stored scale, for every scheme by division.
  adversarial::numbers random(1);
  int wrong = 0, would_differ = 0;
  for (int n = 0; n < 3000; ++n) {
    std::vector<float> x(16);
    float a = 0;
    for (float& v : x) v = static_cast<float>(random.normal()), a = std::fmax(a, std::fabs(v));
    const auto q = quantized<ms::nvfp4_single>(x);
    const float stored = model::decode(model::ue4m3, q.scale), ideal = model::div(a, 6.0f);
    for (std::size_t i = 0; i < 16; ++i) {
      const unsigned want = model::encode(model::e2m1, static_cast<double>(model::div(x[i], stored)));
      wrong += q.codes[i] != want;
      would_differ += want != model::encode(model::e2m1, static_cast<double>(model::div(x[i], ideal)));
    }
  }
  CHECK(wrong == 0);
  CHECK(would_differ > 500);
}

TEST_CASE("J3 an amax is of magnitudes: blocks and tensors of negative numbers") {
  const auto o = quantized<ms::nvfp4_single>({-12.0f, 1.0f});
  CHECK((o.scale == 0x40 && has_codes(o, {0xF, 1}) && o.values[0] == -12.0f && o.values[1] == 1.0f));
  const std::vector<float> negative(16, -3.0f);
  const auto all = quantized<ms::nvfp4>(negative, 3.0f);
  CHECK((all.scale == 0x7E && all.codes == std::vector<unsigned>(16, 0xF)));
  CHECK(quantized<ms::mxfp4>(std::vector<float>(32, -8.0f)).scale == 128);
  ms::running_amax amax;
  for (const float x : {-12.0f, 1.0f, -0.0f}) amax.see(x);
  CHECK(amax.ignoring_nan() == 12.0f);
}
