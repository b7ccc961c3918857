// H. NaN and infinity among the inputs.
#include "blocks.hpp"

#include <cstddef>
#include <microscale/number/value.hpp>
#include <microscale/tensor/view.hpp>

using namespace reports;

namespace {

template <class S>
bool is_all_nan(const outcome<S>& o) {
  for (const float v : o.values) {
    if (!ms::fp32::is_nan(v)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("H1 a NaN anywhere poisons its block: never a clean finite one") {
  const auto poisons = []<class S>(S) {
    for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
      for (const int at : {0, 1, 2, 14, 15}) {  // both lanes of a packed maximum, both ends
        std::vector<float> x(16, 0.5f);
        x[static_cast<std::size_t>(at)] = ms::fp32::from_bits(bits);
        const auto o = quantized<S>(x);
        CHECK(S::scale::is_nan(static_cast<typename S::scale::storage>(o.scale)));
        CHECK(is_all_nan(o));
      }
    }
  };
  poisons(ms::mxfp4{});
  poisons(ms::mxfp8_e4m3{});
  poisons(ms::mxint8{});
  poisons(ms::nvfp4_single{});
  poisons(ms::nvfp4_exact{});
  poisons(ms::with_nonfinite<ms::nvfp4, ms::nonfinite::poison>{});
  poisons(ms::with_nonfinite<ms::ue5m3_fp4, ms::nonfinite::reject>{});
  CHECK(quantized<ms::nvfp4_single>({1.0f, not_a_number}).scale == 0x7F);
  CHECK(quantized<ms::mxfp4>({1.0f, not_a_number, 2.0f}).scale == 0xFF);
  // A status that tells of it under every policy.
  float x[16] = {1, not_a_number};
  CHECK(ms::quantize_block<ms::nvfp4>(x, 1.0f).has_nonfinite);
  CHECK((ms::quantize_block<ms::with_nonfinite<ms::nvfp4, ms::nonfinite::saturate>>(x, 1.0f).has_nonfinite));
}

TEST_CASE("H3 one rule for infinity: poisoned by default, saturated on request, both signs and lanes alike") {
  const auto poisoned = quantized<ms::mxfp8_e4m3>({infinity, -infinity, 1.0f});
  CHECK((poisoned.scale == 0xFF && is_all_nan(poisoned)));
  using saturating = ms::with_nonfinite<ms::mxfp8_e4m3, ms::nonfinite::saturate>;
  const auto saturated = quantized<saturating>({infinity, -infinity, 1.0f, 0.0f});
  CHECK((saturated.scale == 127 + 127 - 8 && has_codes(saturated, {0x7E, 0xFE, 0x00, 0x00})));
  CHECK(all_finite(saturated.values));
  const auto swapped = quantized<saturating>({-infinity, infinity, 0.0f, 1.0f});
  CHECK(has_codes(swapped, {0xFE, 0x7E, 0x00, 0x00}));
  // In the schemes of owners: the largest finite scale, and the ends of E2M1.
  const auto te = quantized<ms::nvfp4>({infinity, -infinity, 1.0f}, 1.0f);
  CHECK((te.scale == 0x7E && has_codes(te, {7, 0xF})));
}

TEST_CASE("H5 special values survive widening, to every type") {
  const auto widened = []<class F>(F) {
    for (unsigned code = 0; code < 256; ++code) {
      const auto c = static_cast<std::uint8_t>(code);
      const float f = F::decode(c);
      const float b = ms::to_float(ms::from_float<ms::value<ms::bf16>>(f)),
                  h = ms::to_float(ms::from_float<ms::value<ms::f16>>(f));
      if (F::is_nan(c)) {
        CHECK((ms::fp32::is_nan(f) && ms::fp32::is_nan(b) && ms::fp32::is_nan(h)));
      } else {
        CHECK((ms::fp32::bits(b) == ms::fp32::bits(f) && ms::fp32::bits(h) == ms::fp32::bits(f)));
      }
    }
  };
  widened(ms::e4m3{});
  widened(ms::e5m2{});
  CHECK((ms::e5m2::decode(0x7C) == infinity && ms::e5m2::decode(0xFC) == -infinity && ms::e4m3::decode(0x7E) == 448));
}
