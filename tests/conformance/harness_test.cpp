// The harness for other people's functions: quiet about the right ones, and it finds what implementations get wrong.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cfenv>
#include <microscale/conformance/check.hpp>
#include <microscale/microscale.hpp>

namespace ms = microscale;
namespace mc = microscale::conformance;

namespace {

template <class S>
using theirs_block = ms::quantized_block<S>;

// The library's own block function under another rule or policy, in the type of scheme S.
template <class S, class Other>
theirs_block<S> quantize_as(const float (&x)[S::block::elements], float reference) {
  const auto q = ms::quantize_block<Other>(x, reference);
  theirs_block<S> out;
  for (int i = 0; i < S::block::elements; ++i) out.codes[i] = q.codes[i];
  out.scale = q.scale;
  return out;
}

// Half-way away from zero, which is what adding half and truncating does.
struct half_away {
  static constexpr int random_bits = 0;
  static constexpr bool away(ms::remainder rest, bool, bool, std::uint32_t) noexcept {
    return rest.fraction >= ms::half_step;
  }
};

// (a S) fl(1/6) where the scheme has a (S fl(1/6)).
struct reordered : ms::transformer_engine_rule {
  template <class S>
  static constexpr auto scale(float amax, const ms::tensor_factors& t) noexcept {
    return S::scale::encode(ms::fp32::mul(ms::fp32::mul(amax, t.encode), 1.0f / 6.0f));
  }
};

const mc::options few{.blocks = 3000};

std::uint64_t differing(const mc::report& r, mc::block_kind kind) {
  return r.by_kind[static_cast<std::size_t>(kind)].different;
}

template <class S>
void expect_agreement() {
  const auto r = mc::check_quantizer<S>(
      [](const float(&x)[S::block::elements], float reference) { return ms::quantize_block<S>(x, reference); },
      mc::options{.blocks = 600});
  INFO(r.text());
  CHECK(r.passed());
  CHECK(r.cases == 600);
}

}  // namespace

TEST_CASE("the library agrees with itself", "[harness]") {
  expect_agreement<ms::nvfp4>();
  expect_agreement<ms::nvfp4_2d>();
  expect_agreement<ms::nvfp4_4over6>();
  expect_agreement<ms::nvfp4_exact>();
  expect_agreement<ms::ue5m3_fp4>();
  expect_agreement<ms::mxfp4>();
  expect_agreement<ms::mxfp8_e5m2>();
  expect_agreement<ms::mxint8>();
  expect_agreement<ms::ufp4>();
  CHECK(mc::check_encoder<ms::e2m1>([](float x) { return ms::e2m1::encode(x); }).passed());
  CHECK(mc::check_encoder<ms::e8m0>([](float x) { return ms::e8m0::encode(x); }).passed());
  CHECK(mc::check_decoder<ms::bf16>([](ms::bf16::storage code) { return ms::bf16::decode(code); }).passed());
}

TEST_CASE("the floating-point environment of the caller's changes neither blocks nor what is expected", "[harness]") {
  const auto theirs = [](const float(&x)[16], float reference) {
    ms::quantized_block<ms::nvfp4> q;
    ms::detail::in_default_environment([&] { q = ms::quantize_block<ms::nvfp4>(x, reference); });
    return q;
  };
  std::fesetround(FE_UPWARD);
  const auto r = mc::check_quantizer<ms::nvfp4>(theirs, few);
  const int rounding = std::fegetround();
  std::fesetround(FE_TONEAREST);
  INFO(r.text());
  CHECK(r.passed());
  CHECK(rounding == FE_UPWARD);
}

TEST_CASE("a scheme of one's own needs nothing more", "[harness]") {
  struct ue3m4 : ms::minifloat<ms::float_layout{.exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false}> {
  };
  using mine = ms::scheme<ms::e2m1, ue3m4, ms::block<1, 16>, ms::amax_over_max>;
  const auto r = mc::check_quantizer<mine>(
      [](const float(&x)[16], float reference) { return ms::quantize_block<mine>(x, reference); }, few);
  INFO(r.text());
  CHECK(r.passed());
}

TEST_CASE("many at once", "[harness]") {
  const auto encode = [](const float* x, std::size_t count, ms::e2m1::storage* codes) {
    for (std::size_t i = 0; i < count; ++i) codes[i] = ms::e2m1::encode(x[i]);
  };
  CHECK(mc::check_encoder<ms::e2m1>(encode).passed());

  const auto quantize = [](const float* x, std::size_t blocks, float reference, std::uint8_t* codes,
                           std::uint8_t* scales) {
    for (std::size_t b = 0; b < blocks; ++b) {
      float block[16];
      std::copy_n(x + 16 * b, 16, block);
      const auto q = ms::quantize_block<ms::nvfp4>(block, reference);
      std::copy_n(q.codes, 16, codes + 16 * b);
      scales[b] = q.scale;
    }
  };
  const auto r = mc::check_quantizer<ms::nvfp4>(quantize, few);
  INFO(r.text());
  CHECK(r.passed());
}

TEST_CASE("an encoder that breaks ties away from zero", "[harness]") {
  const auto r = mc::check_encoder<ms::e2m1>([](float x) { return ms::e2m1::encode(x, half_away{}); });
  CHECK(r.different == 8);  // .25, 1.25, 2.5 and 5 of both signs, where the even neighbour is nearer zero
  CHECK(r.first.size() == 8);
  CHECK(r.first[0].input == "0.25 (3e800000)");
  CHECK(r.first[0].expected == "00 = 0 (00000000)");
  CHECK(r.first[0].got == "01 = 0.5 (3f000000)");
}

TEST_CASE("an encoder that truncates", "[harness]") {
  const auto r = mc::check_encoder<ms::e4m3>([](float x) { return ms::e4m3::encode(x, ms::toward_zero{}); });
  CHECK(r.different > 200);
}

TEST_CASE("an encoder that rounds twice, by way of half precision", "[harness]") {
  const auto by_half = [](float x) {
    return ms::e4m3::encode(ms::f16::decode(ms::f16::encode(x, ms::nearest_even{}, ms::overflow::ieee)));
  };
  CHECK_FALSE(mc::check_encoder<ms::e4m3>(by_half).passed());
}

TEST_CASE("UE5M3 rounded to three bits first and to a subnormal afterwards", "[harness]") {
  // The intermediate format has the same fraction and an exponent that never runs out.
  struct three_bits
      : ms::minifloat<ms::float_layout{
            .exponent_bits = 8, .mantissa_bits = 3, .bias = 127, .has_sign = false, .top = ms::specials::ieee}> {};
  const auto twice = [](float x) {
    return ms::fp32::is_finite(x) ? ms::ue5m3::encode(three_bits::decode(three_bits::encode(x))) : ms::ue5m3::encode(x);
  };
  const auto r = mc::check_encoder<ms::ue5m3>(twice);
  CHECK_FALSE(r.passed());
  for (const auto& d : r.first) INFO(d.input);
  // Only below the smallest normal number, 2^-14.
  const auto above = mc::check_encoder<ms::ue5m3>(
      [&](float x) { return ms::fp32::less(x, 0x1p-14f) ? ms::ue5m3::encode(x) : twice(x); });
  CHECK(above.passed());
}

TEST_CASE("an encoder that loses the sign of zero", "[harness]") {
  const auto unsigned_zero = [](float x) {
    const auto code = ms::e2m1::encode(x);
    return code == 8 ? ms::e2m1::storage{0} : code;
  };
  CHECK_FALSE(mc::check_encoder<ms::e2m1>(unsigned_zero).passed());
  CHECK(mc::check_encoder<ms::e2m1>(unsigned_zero, {.negative_zero = false}).passed());
}

TEST_CASE("an encoder that is wrong about one number", "[harness]") {
  const auto wrong_about = [](std::uint32_t bits) {
    return [bits](float x) {
      const auto code = ms::e2m1::encode(x);
      return ms::fp32::bits(x) == bits ? static_cast<ms::e2m1::storage>(code ^ 1) : code;
    };
  };
  // The largest finite numbers, which infinities follow; infinities; a NaN of either sign.
  for (const std::uint32_t bits : {0x7F7FFFFFu, 0xFF7FFFFFu, 0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00000u}) {
    const bool finite = ms::fp32::is_finite(ms::fp32::from_bits(bits));
    CHECK(mc::check_encoder<ms::e2m1>(wrong_about(bits)).different == 1);
    const auto r = mc::check_encoder<ms::e2m1>(wrong_about(bits), {.nonfinite = false});
    CHECK(r.different == (finite ? 1 : 0));
    CHECK(r.cases + 4 == mc::check_encoder<ms::e2m1>(wrong_about(bits)).cases);
  }
}

TEST_CASE("every float, in the order of its bits", "[harness]") {
  std::uint64_t seen = 0, in_order = 0;
  const auto two_chunks = [&](const float* x, std::size_t count, ms::e2m1::storage*) {
    const bool is_second = seen > 0;
    for (std::size_t i = 0; i < count; ++i) in_order += ms::fp32::bits(x[i]) == seen++ ? 1 : 0;
    if (is_second) throw seen;
  };
  CHECK_THROWS_AS(mc::check_encoder<ms::e2m1>(two_chunks, {.every_float = true}), std::uint64_t);
  CHECK(seen == 2 << 20);
  CHECK(in_order == seen);
}

TEST_CASE("a stochastic encoder that is off by one draw", "[harness]") {
  using midpoint = ms::stochastic_midpoint8;
  const auto right = [](float x, std::uint32_t r) {
    return ms::e2m1::encode(x, midpoint{}, ms::overflow::saturate, r);
  };
  const auto floored = [](float x, std::uint32_t r) {
    return ms::e2m1::encode(x, ms::stochastic_floor8{}, ms::overflow::saturate, r);
  };
  CHECK(mc::check_encoder<ms::e2m1, midpoint>(right).passed());
  const auto r = mc::check_encoder<ms::e2m1, midpoint>(floored);
  CHECK_FALSE(r.passed());
  CHECK(r.first[0].input.find("r = ") != std::string::npos);
}

TEST_CASE("E8M0 decoded by a shift into the exponent field", "[harness]") {
  const auto shifted = [](std::uint8_t code) { return ms::fp32::from_bits(std::uint32_t{code} << 23); };
  const auto r = mc::check_decoder<ms::e8m0>(shifted);
  CHECK(r.different == 2);  // 00 gives 0, FF gives infinity
  CHECK(r.first[0].input == "code 00");
  CHECK(r.first[1].input == "code ff");
}

TEST_CASE("UE5M3 whose largest exponent is taken for infinity and NaN", "[harness]") {
  const auto r = mc::check_decoder<ms::ue5m3>([](std::uint8_t code) { return ms::ue5m3_ieee::decode(code); });
  CHECK(r.different == 7);  // F8 ... FE
}

TEST_CASE("one order of operations in the name of another", "[harness]") {
  // Division by the scale where the scheme multiplies with a reciprocal, and the other way round.
  const auto as_modelopt = mc::check_quantizer<ms::nvfp4>(quantize_as<ms::nvfp4, ms::nvfp4_modelopt>, few);
  CHECK_FALSE(as_modelopt.passed());
  CHECK(as_modelopt.instead() == "nvfp4_modelopt");
  const auto as_nvfp4 = mc::check_quantizer<ms::nvfp4_modelopt>(quantize_as<ms::nvfp4_modelopt, ms::nvfp4>, few);
  CHECK_FALSE(as_nvfp4.passed());
  CHECK(as_nvfp4.instead() == "nvfp4");
  CHECK(differing(as_nvfp4, mc::block_kind::on_ties) > 0);
  CHECK(as_nvfp4.text().find("every result is that of nvfp4") != std::string::npos);

  // A constant's reciprocal in place of a division by it.
  const auto reciprocal =
      mc::check_quantizer<ms::nvfp4_torchao>(quantize_as<ms::nvfp4_torchao, ms::nvfp4_torchao_reciprocal>, few);
  CHECK_FALSE(reciprocal.passed());
  CHECK(reciprocal.instead() == "nvfp4_torchao_reciprocal");
}

TEST_CASE("a block scale by another order of the same factors", "[harness]") {
  using other =
      ms::scheme<ms::e2m1, ms::ue4m3, ms::block<1, 16>, reordered, ms::stored_amax<448>, ms::nonfinite::owner>;
  const auto r = mc::check_quantizer<ms::nvfp4>(quantize_as<ms::nvfp4, other>, few);
  CHECK_FALSE(r.passed());
  CHECK(r.instead().empty());
  CHECK(differing(r, mc::block_kind::on_scale_ties) > 0);
  CHECK(differing(r, mc::block_kind::normal) == 0);
}

TEST_CASE("MX floor in place of round-up", "[harness]") {
  const auto r = mc::check_quantizer<ms::mxfp4_ceil>(quantize_as<ms::mxfp4_ceil, ms::mxfp4>, few);
  CHECK_FALSE(r.passed());
  CHECK(r.instead() == "mxfp4");
}

TEST_CASE("quantizers that no named scheme explains", "[harness]") {
  using S = ms::nvfp4;
  SECTION("ties away from zero") {
    const auto r = mc::check_quantizer<S>(
        [](const float(&x)[16], float reference) { return ms::quantize_block<S>(x, reference, half_away{}); }, few);
    CHECK_FALSE(r.passed());
    CHECK(r.instead().empty());
    CHECK(differing(r, mc::block_kind::on_ties) > 0);
    CHECK(differing(r, mc::block_kind::normal) == 0);  // which is why random data is no test
  }
  SECTION("truncation") {
    const auto r = mc::check_quantizer<S>(
        [](const float(&x)[16], float reference) { return ms::quantize_block<S>(x, reference, ms::toward_zero{}); },
        few);
    CHECK(differing(r, mc::block_kind::normal) > 0);
  }
  SECTION("a scale of one where the scale underflows") {
    const auto r = mc::check_quantizer<S>(
        [](const float(&x)[16], float reference) {
          auto q = ms::quantize_block<S>(x, reference);
          if (q.scale == 0) q.scale = 0x38;
          return q;
        },
        few);
    CHECK_FALSE(r.passed());
    CHECK(differing(r, mc::block_kind::on_ties) == 0);
    CHECK(differing(r, mc::block_kind::zero) > 0);
    CHECK(differing(r, mc::block_kind::underflow) > 0);
  }
  SECTION("subnormal inputs flushed to zero") {
    const auto r = mc::check_quantizer<ms::mxfp4>(
        [](const float(&x)[32], float reference) {
          float flushed[32];
          for (int i = 0; i < 32; ++i) {
            flushed[i] = ms::fp32::magnitude_bits(x[i]) < 0x00800000u ? ms::fp32::copy_sign(0.0f, x[i]) : x[i];
          }
          return ms::quantize_block<ms::mxfp4>(flushed, reference);
        },
        few);
    CHECK_FALSE(r.passed());
    CHECK(differing(r, mc::block_kind::subnormal) > 0);
    CHECK(differing(r, mc::block_kind::normal) == 0);
  }
  SECTION("an E8M0 scale that is a plain shift of the byte") {
    // Bytes 00 and FF decode to 0 and infinity: elements of the smallest blocks become infinite multiples.
    const auto r = mc::check_quantizer<ms::mxfp8_e4m3>(
        [](const float(&x)[32], float reference) {
          auto q = ms::quantize_block<ms::mxfp8_e4m3>(x, reference);
          const float scale = ms::fp32::from_bits(std::uint32_t{q.scale} << 23);
          for (int i = 0; i < 32; ++i) q.codes[i] = ms::e4m3::encode(ms::fp32::div(x[i], scale));
          return q;
        },
        few);
    CHECK_FALSE(r.passed());
    CHECK(differing(r, mc::block_kind::subnormal) > 0);
    CHECK(differing(r, mc::block_kind::on_ties) == 0);
  }
}

TEST_CASE("the blocks are the same every time", "[harness]") {
  mc::adversary<ms::ue5m3_fp4> a(7), b(7), c(8);
  const auto x = a.group(64, true), y = b.group(64, true), z = c.group(64, true);
  bool same = true, other = true;
  for (std::size_t i = 0; i < 64; ++i) {
    for (int j = 0; j < 16; ++j) {
      same = same && ms::fp32::bits(x.blocks[i].x[j]) == ms::fp32::bits(y.blocks[i].x[j]);
      other = other && ms::fp32::bits(x.blocks[i].x[j]) == ms::fp32::bits(z.blocks[i].x[j]);
    }
  }
  CHECK(same);
  CHECK_FALSE(other);
}
