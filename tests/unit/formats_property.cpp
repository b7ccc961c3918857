// What holds for every number in every format: order, symmetry, idempotence, scaling, and the neighbours of a value.
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <microscale/number/value.hpp>
#include <type_traits>

#include "support/adversarial.hpp"

namespace ms = microscale;

namespace {

constexpr int tries = 20000;

// Numbers near the range of a format, and any others.
template <class F>
float number(adversarial::numbers& random) {
  if (random.below(4) == 0) return random.any_float();
  const auto code = static_cast<typename F::storage>(random.bits());
  const float at = F::decode(code);
  if (!ms::fp32::is_finite(at) || random.below(3) == 0) return random.log_uniform(-30, 20);
  const std::uint32_t b = ms::fp32::bits(at) + random.below(9) - 4;  // a few patterns from a value
  const float x = ms::fp32::from_bits(b);
  return ms::fp32::is_finite(x) ? x : at;
}

template <class F, class R>
void holds_for(std::uint64_t seed) {
  adversarial::numbers random(seed);
  int not_monotone = 0, not_symmetric = 0, not_a_neighbour = 0, not_idempotent = 0, not_scaled = 0, not_widened = 0;
  for (int i = 0; i < tries; ++i) {
    const float x = number<F>(random), y = number<F>(random);
    const std::uint32_t r = R::random_bits > 0 ? random.below(256) : 0;
    const auto encode = [&](auto v) { return F::encode(v, R{}, ms::overflow::saturate, r); };
    const auto cx = encode(x), cy = encode(y);
    const float vx = F::decode(cx), vy = F::decode(cy);

    // x <= y gives a value that is no larger, for one and the same draw.
    if (x <= y ? vx > vy : vx < vy) ++not_monotone;

    // -x gives minus the value: modes that do not look at the sign; formats that have one.
    if constexpr (F::has_sign && !std::is_same_v<R, ms::toward_positive> && !std::is_same_v<R, ms::toward_negative>) {
      if (F::decode(encode(-x)) != -vx) ++not_symmetric;
    }

    // The value is x, or one of the two next to it; past the ends it is the end.
    if constexpr (F::has_zero) {
      const float down = F::decode(F::encode(x, ms::toward_negative{}));
      const float up = F::decode(F::encode(x, ms::toward_positive{}));
      const float low = -F::largest(), high = F::largest();
      if (vx != down && vx != up) ++not_a_neighbour;
      if (x >= (F::has_sign ? low : 0.0f) && x <= high && !(down <= x && x <= up)) ++not_a_neighbour;
      if (x > high && vx != high) ++not_a_neighbour;
    }

    // A value stays what it is, under any mode and draw.
    if (F::is_finite(cx) && encode(vx) != cx && !(F::decode(encode(vx)) == 0 && vx == 0)) ++not_idempotent;

    // binary32, binary64 and the unpacked form are the same number.
    if (encode(static_cast<double>(x)) != cx || encode(ms::unpack(x)) != cx) ++not_widened;

    // A power of two moves the exponent alone, where nothing under- or overflows.
    if constexpr (F::bits > 4 && !std::is_same_v<F, ms::int8>) {
      const float small = F::smallest_normal() * 4, big = F::largest() / 8;
      const float m = ms::fp32::abs(x);
      const bool has_value = F::has_zero || x > 0;  // a power of two cannot stand for what is negative
      if (has_value && m >= small && m <= big && F::decode(encode(x * 2)) != 2 * vx) ++not_scaled;
    }
  }
  CHECK(not_monotone == 0);
  CHECK(not_symmetric == 0);
  CHECK(not_a_neighbour == 0);
  CHECK(not_idempotent == 0);
  CHECK(not_scaled == 0);
  CHECK(not_widened == 0);
}

template <class F>
void holds() {
  holds_for<F, ms::nearest_even>(1);
  holds_for<F, ms::toward_zero>(2);
  holds_for<F, ms::toward_positive>(3);
  holds_for<F, ms::toward_negative>(4);
  holds_for<F, ms::stochastic_midpoint8>(5);
  holds_for<F, ms::stochastic_floor8>(6);
}

}  // namespace

TEST_CASE("properties of element formats") {
  SECTION("e2m1") { holds<ms::e2m1>(); }
  SECTION("e1m2") { holds<ms::e1m2>(); }
  SECTION("e2m3") { holds<ms::e2m3>(); }
  SECTION("e3m2") { holds<ms::e3m2>(); }
  SECTION("e4m3") { holds<ms::e4m3>(); }
  SECTION("e5m2") { holds<ms::e5m2>(); }
  SECTION("int8") { holds<ms::int8>(); }
}

TEST_CASE("properties of scale formats and of wide ones") {
  SECTION("ue4m3") { holds<ms::ue4m3>(); }
  SECTION("ue5m3") { holds<ms::ue5m3>(); }
  SECTION("ue5m3_ieee") { holds<ms::ue5m3_ieee>(); }
  SECTION("e8m0") { holds<ms::e8m0>(); }
  SECTION("bf16") { holds<ms::bf16>(); }
  SECTION("f16") { holds<ms::f16>(); }
}

TEST_CASE("a value converts as its format encodes, and compares as its numbers do") {
  adversarial::numbers random(11);
  int wrong = 0;
  for (int i = 0; i < tries; ++i) {
    const float x = number<ms::e4m3>(random), y = number<ms::e4m3>(random);
    const ms::value<ms::e4m3> a(x), b(y);
    const float va = static_cast<float>(a), vb = static_cast<float>(b);
    wrong += a.code() != ms::e4m3::encode(x);
    wrong += (a < b) != (va < vb) || (a == b) != (va == vb) || (a >= b) != (va >= vb) || (a != b) != (va != vb);
    wrong += static_cast<float>(-a) != -va;
  }
  CHECK(wrong == 0);
}
