// E. Special codes and decoding of E8M0, UE5M3, UE4M3 and the OCP formats.
#include <cmath>

#include "blocks.hpp"

#include <microscale/number/value.hpp>

#include "support/model.hpp"

using namespace reports;

namespace {

// Every code by the formula, and its class.
template <class F>
int wrong_codes(const model::format& f) {
  int wrong = 0;
  for (unsigned code = 0; code < (1u << F::bits); ++code) {
    const auto c = static_cast<typename F::storage>(code);
    const float got = F::decode(c), want = model::decode(f, code);
    const bool nan = std::isnan(want), inf = std::isinf(want);
    wrong += nan ? !ms::fp32::is_nan(got) : ms::fp32::bits(got) != ms::fp32::bits(want);
    wrong += F::is_nan(c) != nan || F::is_infinite(c) != inf || F::is_finite(c) != (!nan && !inf);
    // The value type says the same, in binary32 and binary64.
    const auto v = ms::value<F>::from_code(c);
    wrong += !nan && static_cast<double>(v) != static_cast<double>(want);
  }
  return wrong;
}

}  // namespace

TEST_CASE("E1 all codes of UE5M3: the top exponent is finite, only FF is NaN") {
  const float top[] = {65536, 73728, 81920, 90112, 98304, 106496, 114688};
  for (unsigned i = 0; i < 7; ++i) CHECK(ms::ue5m3::decode(static_cast<std::uint8_t>(0xF8 + i)) == top[i]);
  CHECK(ms::fp32::is_nan(ms::ue5m3::decode(0xFF)));
  CHECK((ms::ue5m3::decode(0) == 0 && ms::ue5m3::decode(1) == 0x1p-17f && ms::ue5m3::decode(7) == 7 * 0x1p-17f));
  CHECK(ms::ue5m3::decode(8) == 0x1p-14f);
  CHECK(wrong_codes<ms::ue5m3>(model::ue5m3) == 0);
  CHECK(wrong_codes<ms::ue5m3_ieee>(model::ue5m3_ieee) == 0);
}

TEST_CASE("E2 E8M0: 00 is 2^-127 and FF is NaN, wherever it is decoded") {
  CHECK(ms::fp32::bits(ms::e8m0::decode(0x00)) == 0x00400000u);
  CHECK(ms::fp32::bits(ms::e8m0::decode(0x01)) == 0x00800000u);
  CHECK(ms::fp32::bits(ms::e8m0::decode(0xFE)) == 0x7F000000u);
  CHECK(ms::fp32::is_nan(ms::e8m0::decode(0xFF)));
  CHECK(wrong_codes<ms::e8m0>(model::e8m0) == 0);
  // A 1.0 under byte 0.
  CHECK(ms::fp32::bits(ms::decode_element<ms::mxfp8_e4m3>(0x38, 0x00, {})) == 0x00400000u);
  CHECK(ms::fp32::is_nan(ms::decode_element<ms::mxfp8_e4m3>(0x38, 0xFF, {})));
  CHECK(ms::bf16::encode(ms::e8m0::decode(0)) == 0x0040);
}

TEST_CASE("E4 dividing by the largest and the smallest power of two") {
  // The whole way: 2^127 under a scale of 2^125 is 4; 2^-127 under 2^-127 is 1.
  const auto large = quantized<ms::mxfp4>({0x1p127f, 0x1.8p126f, 0x1p124f});
  CHECK((large.scale == 0xFC && has_codes(large, {6, 5, 1})));
  const auto small = quantized<ms::mxfp4>({0x1p-127f, 0x1p-128f, 0x1p-129f});
  CHECK((small.scale == 0x00 && has_codes(small, {2, 1, 0})));
  CHECK(small.values[0] == 0x1p-127f);
  // Under FE itself, which integers reach.
  const auto top = quantized<ms::mxint8>({0x1.fp127f, 0x1p127f});
  CHECK((top.scale == 0xFE && has_codes(top, {124, 64}) && top.values[1] == 0x1p127f));
  // For every scale: its own value is code 1.0, twice that 2.0.
  int wrong = 0;
  for (unsigned code = 0; code < 0xFF; ++code) {
    const float s = ms::e8m0::decode(static_cast<std::uint8_t>(code));
    const auto divisor = ms::mxfp4::rule::divisor<ms::mxfp4>(static_cast<std::uint8_t>(code), {});
    wrong += ms::encode_element<ms::mxfp4>(s, divisor, ms::nearest_even{}, 0) != 2;
    wrong += ms::encode_element<ms::mxfp4>(-s / 2, divisor, ms::nearest_even{}, 0) != 9;
  }
  CHECK(wrong == 0);
}

TEST_CASE("E7 subnormals of E4M3 and UE4M3, all of them, and every other code") {
  for (unsigned m = 1; m <= 8; ++m) {
    CHECK(ms::e4m3::decode(static_cast<std::uint8_t>(m)) == static_cast<float>(m) * 0x1p-9f);
    CHECK(ms::ue4m3::decode(static_cast<std::uint8_t>(m)) == static_cast<float>(m) * 0x1p-9f);
  }
  CHECK(wrong_codes<ms::e4m3>(model::e4m3) == 0);
  CHECK(wrong_codes<ms::e2m1>(model::e2m1) == 0);
  CHECK(wrong_codes<ms::e2m3>(model::e2m3) == 0);
  CHECK(wrong_codes<ms::e3m2>(model::e3m2) == 0);
}

TEST_CASE("E9 roundings of E8M0 by name; the mantissa of a UE5M3 or UE4M3 scale counts") {
  const auto by = [](float x, auto rounding) { return ms::e8m0::encode(x, rounding); };
  CHECK((by(1.6f, ms::toward_zero{}) == 0x7F && by(1.6f, ms::toward_positive{}) == 0x80 &&
         by(1.6f, ms::nearest_even{}) == 0x80));
  CHECK((by(1.4f, ms::toward_negative{}) == 0x7F && by(1.4f, ms::toward_positive{}) == 0x80 &&
         by(1.4f, ms::nearest_even{}) == 0x7F));
  const auto divisor = ms::ue5m3_single::rule::divisor<ms::ue5m3_single>(0x84, {});
  CHECK(ms::encode_element<ms::ue5m3_single>(3.0f, divisor, ms::nearest_even{}, 0) == 2);
  CHECK(ms::decode_element<ms::ue5m3_single>(2, 0x84, {}) == 3.0f);
  for (unsigned code = 1; code <= 0xFE; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    CHECK(ms::decode_element<ms::ue5m3_single>(2, c, {}) == model::decode(model::ue5m3, code));
  }
}

TEST_CASE("E11 what is a NaN, on all codes") {
  for (unsigned code = 0; code < 256; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    CHECK(ms::e5m2::is_nan(c) == ((code & 0x7F) >= 0x7D));
    CHECK(ms::e4m3::is_nan(c) == ((code & 0x7F) == 0x7F));
  }
  CHECK(wrong_codes<ms::e5m2>(model::e5m2) == 0);
  CHECK(wrong_codes<ms::ue4m3>(model::ue4m3) == 0);
}
