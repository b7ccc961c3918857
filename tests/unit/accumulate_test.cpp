// Addition toward zero, against the processor's own and against exact sums.
#include <microscale/tensor/accumulate.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cfenv>
#include <cstdint>
#include <microscale/block/schemes.hpp>

#include "support/adversarial.hpp"
#include "support/exact_sum.hpp"

namespace ms = microscale;

namespace {

// The processor's sum of each pair, rounding toward zero.
float by_processor(float a, float b) {
  const int before = std::fegetround();
  std::fesetround(FE_TOWARDZERO);
  const volatile float x = a, y = b;
  const volatile float sum = x + y;
  std::fesetround(before);
  return sum;
}

bool same(float a, float b) {
  return ms::fp32::bits(a) == ms::fp32::bits(b) || (ms::fp32::is_nan(a) && ms::fp32::is_nan(b));
}

}  // namespace

TEST_CASE("add_toward_zero is the processor's addition toward zero") {
  adversarial::numbers random(1);
  int wrong = 0;
  for (int i = 0; i < 400000; ++i) {
    float a = ms::fp32::from_bits(static_cast<std::uint32_t>(random.bits()));
    float b = ms::fp32::from_bits(static_cast<std::uint32_t>(random.bits()));
    switch (i % 6) {
      case 1:  // near cancellation
        b = ms::fp32::from_bits(ms::fp32::bits(-a) + random.below(5) - 2);
        break;
      case 2:  // exponents within reach of each other
        b = ms::fp32::from_bits((ms::fp32::bits(a) & 0x7F800000u) + (random.below(80) << 23) - (40u << 23) +
                                (static_cast<std::uint32_t>(random.bits()) & 0x807FFFFFu));
        break;
      case 3:  // subnormals
        a = ms::fp32::from_bits(static_cast<std::uint32_t>(random.bits()) & 0x80FFFFFFu);
        b = ms::fp32::from_bits(static_cast<std::uint32_t>(random.bits()) & 0x80FFFFFFu);
        break;
      case 4:  // near the top
        a = ms::fp32::from_bits((static_cast<std::uint32_t>(random.bits()) & 0x80FFFFFFu) | 0x7E800000u);
        b = ms::fp32::from_bits((static_cast<std::uint32_t>(random.bits()) & 0x80FFFFFFu) | 0x7E800000u);
        break;
      case 5:  // one far below the other's last bit
        a = ms::fp32::from_bits((static_cast<std::uint32_t>(random.bits()) & 0x80000000u) | (100u + random.below(100))
                                                                                                << 23);
        b = random.log_uniform(-149, -60);
        break;
      default:
        break;
    }
    const bool ok =
        same(ms::add_toward_zero(a, b), by_processor(a, b)) && same(ms::add_toward_zero(b, a), by_processor(b, a));
    wrong += !ok;
  }
  CHECK(wrong == 0);
}

TEST_CASE("add_toward_zero is the exact sum, cut off") {
  adversarial::numbers random(2);
  int wrong = 0;
  for (int i = 0; i < 20000; ++i) {
    const float a = random.any_float();
    const float b =
        i % 2 == 0 ? random.any_float() : ms::fp32::from_bits(ms::fp32::bits(-a) ^ (1u << random.below(27)));
    if (!ms::fp32::is_finite(b)) continue;
    exact::sum sum(16, 300);
    sum.add_product(static_cast<double>(a), 1.0);
    sum.add_product(static_cast<double>(b), 1.0);
    const float want = sum.toward_zero();
    wrong += ms::fp32::is_zero(want) ? !ms::fp32::is_zero(ms::add_toward_zero(a, b))
                                     : !same(ms::add_toward_zero(a, b), want);
  }
  CHECK(wrong == 0);
}

TEST_CASE("addition toward zero by hand") {
  constexpr float inf = ms::fp32::infinity();
  static_assert(ms::add_toward_zero(1.0f, 0x1p-30f) == 1.0f);
  static_assert(ms::add_toward_zero(1.0f, -0x1p-30f) == 0x1.fffffep-1f);
  static_assert(ms::add_toward_zero(-1.0f, 0x1p-149f) == -0x1.fffffep-1f);
  static_assert(ms::add_toward_zero(ms::fp32::largest, ms::fp32::largest) == ms::fp32::largest);
  static_assert(ms::add_toward_zero(-ms::fp32::largest, -0x1p127f) == -ms::fp32::largest);
  CHECK(ms::fp32::bits(ms::add_toward_zero(5.0f, -5.0f)) == 0);
  CHECK(ms::fp32::bits(ms::add_toward_zero(-0.0f, 0.0f)) == 0);
  CHECK(ms::fp32::bits(ms::add_toward_zero(-0.0f, -0.0f)) == 0x80000000u);
  CHECK(ms::add_toward_zero(inf, -1.0f) == inf);
  CHECK(ms::fp32::is_nan(ms::add_toward_zero(inf, -inf)));
  CHECK(ms::fp32::is_nan(ms::add_toward_zero(ms::fp32::quiet_nan(), 1.0f)));
}

TEST_CASE("where runs end") {
  using ms::detail::run_end;
  static_assert(run_end<ms::nvfp4, ms::nvfp4>(0, 100, 100) == 16);
  static_assert(run_end<ms::nvfp4, ms::mxfp4>(16, 100, 100) == 32);
  static_assert(run_end<ms::mxfp4, ms::mxfp4>(0, 100, 100) == 32);
  static_assert(run_end<ms::mxfp4, ms::mxfp4>(32, 40, 40) == 40);
  static_assert(run_end<ms::mxfp4, ms::mxfp4>(64, 100, 64) == 96);
  static_assert(run_end<ms::with_block<ms::nvfp4, ms::block<1, 128>>, ms::with_block<ms::nvfp4, ms::block<1, 96>>>(
                    64, 300, 64) == 96);
  static_assert(run_end<ms::with_block<ms::nvfp4, ms::block<1, 128>>, ms::with_block<ms::nvfp4, ms::block<1, 128>>>(
                    0, 300, 64) == 64);
  SUCCEED();
}
