// S. Host and device, fast math. This file is compiled with -O3 -ffast-math; comparisons are of bits. Builds under
// every flag, with whole tensors: tests/flags; host against device: tests/device.
#include "blocks.hpp"

#include <microscale/tensor/view.hpp>

using namespace reports;

namespace {

// A float that the optimizer knows nothing about, by its bits.
float hidden(std::uint32_t bits) {
  volatile std::uint32_t b = bits;
  return ms::fp32::from_bits(b);
}

}  // namespace

TEST_CASE("S1 NaN, infinity, zero and saturation under -ffast-math") {
  for (const std::uint32_t bits : {0x7FC00000u, 0x7F800001u, 0x7FFFFFFFu}) {
    CHECK(ms::e4m3::encode(hidden(bits)) == 0x7F);
    CHECK(ms::e4m3::encode(hidden(bits | 0x80000000u)) == 0xFF);
    CHECK(ms::ue4m3::encode(hidden(bits)) == 0x7F);
    CHECK(ms::e2m1::encode(hidden(bits)) == 7);
    CHECK(ms::from_float<ms::value<ms::bf16>>(hidden(bits)).code() == 0x7FFF);
    CHECK(ms::fp32::is_nan(hidden(bits)));
    float x[32] = {};
    x[7] = hidden(bits);
    CHECK(ms::quantize_block<ms::mxfp4>(x, 1.0f).scale == 0xFF);  // H1
  }
  CHECK((ms::e4m3::encode(hidden(0x7F800000u)) == 0x7E && ms::e5m2::encode(hidden(0xFF800000u)) == 0xFB));
  CHECK(ms::e4m3::encode(hidden(0x7F800000u), ms::nearest_even{}, ms::overflow::ieee) == 0x7F);
  // H3: one rule for both signs.
  using saturating = ms::with_nonfinite<ms::mxfp8_e4m3, ms::nonfinite::saturate>;
  float y[32] = {hidden(0x7F800000u), hidden(0xFF800000u), 1.0f};
  const auto q = ms::quantize_block<saturating>(y, 1.0f);
  CHECK((q.scale == 246 && q.codes[0] == 0x7E && q.codes[1] == 0xFE && q.codes[2] == 0));
  // I1: signs of zeros.
  CHECK((ms::e2m1::encode(hidden(0x80000000u)) == 8 && ms::e2m1::encode(hidden(0xBE4CCCCDu)) == 8));
  CHECK(ms::fp32::bits(ms::decode_element<ms::nvfp4_single>(8, 0x38, {})) == 0x80000000u);
}

TEST_CASE("S1 the golden cases of the order of operations under -ffast-math") {
  // C1: a division, not a reciprocal.
  float x[16] = {11.25f, 2.34375f, 4.6875f, 9.375f};
  const auto single = ms::quantize_block<ms::nvfp4_single>(x, 1.0f);
  CHECK((single.scale == 0x3F && single.codes[1] == 2 && single.codes[2] == 4 && single.codes[3] == 6));
  // The paper's order: a tie of the scale, and an element exactly on a quarter.
  float a[16] = {7.209771652307365e-15f};
  CHECK(ms::ue5m3_ieee::decode(ms::quantize_block<ms::ue5m3_fp4>(a, 8.30072435974513e-17f).scale) == 40960);
  float b[16] = {8.410989948970382e-08f, 2.7757528175464845e-18f};
  const auto q = ms::quantize_block<ms::ue5m3_fp4>(b, 4.857566965417253e-19f);
  CHECK((q.scale == 0xF7 && q.codes[1] == 0));
}

TEST_CASE("S3 one rounding whatever the path: all bfloat16 patterns as floats, doubles and integers of a wider type") {
  int wrong = 0;
  for (unsigned code = 0; code < 0x10000; ++code) {
    const float x = ms::bf16::decode(static_cast<std::uint16_t>(code));
    if (!ms::fp32::is_finite(x)) continue;
    const ms::unpacked u = ms::unpack(x);
    // The same number with its bits at the other end of the significand.
    ms::unpacked moved = u;
    const int lift = u.significand == 0 ? 0 : 64 - ms::bit_width(u.significand);
    moved.significand <<= lift;
    moved.exponent -= lift;
    wrong += ms::e2m1::encode(x) != ms::e2m1::encode(moved);
    wrong += ms::e4m3::encode(x) != ms::e4m3::encode(moved);
    wrong += ms::e5m2::encode(x) != ms::e5m2::encode(moved);
    wrong += ms::e3m2::encode(x) != ms::e3m2::encode(moved);
    wrong += ms::from_float<ms::value<ms::bf16>>(x).code() != code;
  }
  CHECK(wrong == 0);
}
