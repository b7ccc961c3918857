// D. Saturation, overflow on rounding up, the top of the range.
#include "blocks.hpp"

using namespace reports;

TEST_CASE("D1 a scale encoder saturates: only a NaN gives the NaN code") {
  for (const float x : {448.0f, 464.0f, 464.00003f, 480.0f, 1e30f, infinity}) {
    CHECK(ms::ue4m3::encode(x) == 0x7E);
    CHECK(ms::ue5m3::encode(x * 256) == 0xFE);
    CHECK(ms::ue5m3_ieee::encode(x * 256) == 0xF7);
  }
  CHECK(ms::ue4m3::encode(not_a_number) == 0x7F);
  // Block scales of every scheme, however far beyond their range the amax lies.
  const auto stays = []<class S>(S) {
    for (const float a : {1e3f, 2784.0f, 2785.0f, 1e5f, 1e30f, ms::fp32::largest}) {
      const auto o = quantized<S>({-a, 1.0f}, S::has_tensor_scale ? 2.0f : 1.0f);
      CHECK(S::scale::is_finite(static_cast<typename S::scale::storage>(o.scale)));
      CHECK(all_finite({o.values[0], o.values[1]}));
    }
  };
  stays(ms::nvfp4{});
  stays(ms::nvfp4_4over6{});
  stays(ms::nvfp4_torchao{});
  stays(ms::nvfp4_modelopt{});
  stays(ms::nvfp4_compressed_tensors{});
  stays(ms::nvfp4_exact{});
  stays(ms::nvfp4_single{});
  stays(ms::ue5m3_fp4{});
  stays(ms::ue5m3_single{});
  stays(ms::mxfp4{});
}

TEST_CASE("D3 rounding comes first, then the test for overflow, under two named policies") {
  constexpr ms::nearest_even rne;
  constexpr auto ieee = ms::overflow::ieee;
  CHECK(ms::e4m3::encode(464.0f, rne, ieee) == 0x7E);
  CHECK(ms::e4m3::encode(465.0f, rne, ieee) == 0x7F);
  CHECK(ms::e4m3::encode(-465.0f, rne, ieee) == 0xFF);
  CHECK(ms::e4m3::encode(-not_a_number, rne, ieee) == 0xFF);
  CHECK((ms::e4m3::encode(infinity, rne, ieee) == 0x7F && ms::e4m3::encode(-infinity, rne, ieee) == 0xFF));
  CHECK((ms::e5m2::encode(58000.0f, rne, ieee) == 0x7B && ms::e5m2::encode(61439.0f, rne, ieee) == 0x7B));
  CHECK((ms::e5m2::encode(61440.0f, rne, ieee) == 0x7C && ms::e5m2::encode(-61440.0f, rne, ieee) == 0xFC));
  for (const float x : {465.0f, infinity}) CHECK((ms::e4m3::encode(x) == 0x7E && ms::e4m3::encode(-x) == 0xFE));
  for (const float x : {61440.0f, infinity}) CHECK(ms::e5m2::encode(x) == 0x7B);
  // A format with neither infinity nor NaN saturates under both.
  for (const auto policy : {ieee, ms::overflow::saturate}) CHECK(ms::e2m1::encode(-infinity, rne, policy) == 0xF);
  // Toward zero nothing passes the top.
  CHECK(ms::e5m2::encode(1e9f, ms::toward_zero{}, ieee) == 0x7B);
  CHECK(ms::e5m2::encode(1e9f, ms::toward_negative{}, ieee) == 0x7B);
  CHECK(ms::e5m2::encode(1e9f, ms::toward_positive{}, ieee) == 0x7C);
}

TEST_CASE("D6 E8M0 rounded up is clamped after the rounding, and looks at subnormals' bits") {
  const auto up = [](float x) { return ms::e8m0::encode(x, ms::toward_positive{}); };
  CHECK((up(0x1p127f) == 0xFE && up(0x1.8p127f) == 0xFE && up(ms::fp32::largest) == 0xFE && up(infinity) == 0xFE));
  CHECK((up(1.0f) == 0x7F && up(1.0000001f) == 0x80));
  CHECK((up(0x1p-127f) == 0x00 && up(0x1p-127f + 0x1p-149f) == 0x01 && up(0x1p-149f) == 0x00));
  CHECK(ms::e8m0::encode(ms::fp32::largest) == 0xFE);
  // In a scheme: the amax of a whole binade at the top, and below the smallest scale.
  CHECK(quantized<ms::mxfp8_e5m2_ceil>({ms::fp32::largest}).scale < 0xFF);
  CHECK(quantized<ms::mxfp4_ceil>({ms::fp32::largest}).scale == 127 + 126);
  CHECK(quantized<ms::mxfp4_ceil>({0x1p-149f}).scale == 0);
}
