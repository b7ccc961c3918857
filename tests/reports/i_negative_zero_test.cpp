// I. Negative zero.
#include "blocks.hpp"

#include "support/model.hpp"

using namespace reports;

TEST_CASE("I1 the sign of the input is the sign of the code, for zeros and for what rounds to zero") {
  CHECK((ms::e2m1::encode(-0.0f) == 8 && ms::e2m1::encode(-0.2f) == 8 && ms::e2m1::encode(-0.25f) == 8));
  CHECK((ms::e2m1::encode(0.2f) == 0 && ms::e4m3::encode(-0x1p-11f) == 0x80));
  const auto keeps = []<class F>(F) {
    for (float x = F::smallest_positive() / 2; x > 0; x /= 2) {
      CHECK(F::encode(-x) == F::sign_mask);
      CHECK(F::encode(x) == 0);
      CHECK(F::encode(static_cast<double>(-x)) == F::sign_mask);
      CHECK(F::encode(-x, ms::toward_zero{}) == F::sign_mask);
    }
    CHECK(F::encode(-0.0) == F::sign_mask);
    CHECK(ms::fp32::bits(F::decode(F::sign_mask)) == 0x80000000u);
  };
  keeps(ms::e2m1{});
  keeps(ms::e1m2{});
  keeps(ms::e2m3{});
  keeps(ms::e3m2{});
  keeps(ms::e4m3{});
  keeps(ms::e5m2{});
  keeps(ms::bf16{});
  keeps(ms::f16{});
  // Unsigned formats have one zero.
  CHECK((ms::ue4m3::encode(-0.0f) == 0 && ms::ue5m3::encode(-0.0f) == 0 && ms::e8m0::encode(-0.0f) == 0));
}

TEST_CASE("I1 in blocks: kept by the schemes that keep it, canonical in the two that say so") {
  const std::vector<float> x = {6.0f, -0.0f, -0.1f, 0.0f, 0.1f};
  for (const auto& o : {quantized<ms::nvfp4>(x, 2688.0f).codes, quantized<ms::nvfp4_single>(x).codes,
                        quantized<ms::nvfp4_exact>(x, 2688.0f).codes, quantized<ms::ue5m3_fp4>(x, 2688.0f).codes,
                        quantized<ms::nvfp4_torchao>(x, 2688.0f).codes, quantized<ms::mxfp4>(x).codes}) {
    CHECK((o[1] == 8 && o[2] == 8 && o[3] == 0 && o[4] == 0));
  }
  for (const auto& o :
       {quantized<ms::nvfp4_modelopt>(x, 2688.0f).codes, quantized<ms::nvfp4_compressed_tensors>(x, 2688.0f).codes}) {
    CHECK((o[1] == 0 && o[3] == 0));
  }
}

TEST_CASE("I3 the sign of a zero product is IEEE's: for every code under every zero scale") {
  CHECK(ms::fp32::bits(ms::decode_element<ms::nvfp4_single>(0xA, 0x00, {})) == 0x80000000u);
  for (unsigned code = 0; code < 16; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    const std::uint32_t want = code >= 8 ? 0x80000000u : 0u;
    const ms::tensor_factors t = ms::nvfp4::factors(3.0f);
    CHECK(ms::fp32::bits(ms::decode_element<ms::nvfp4_single>(c, 0, {})) == want);
    CHECK(ms::fp32::bits(ms::decode_element<ms::nvfp4>(c, 0, t)) == want);
    CHECK(ms::fp32::bits(ms::decode_element<ms::nvfp4_exact>(c, 0, {})) == want);
    CHECK(ms::fp32::bits(ms::decode_element<ms::ue5m3_single>(c, 0, {})) == want);
  }
}
