// Wide integers against sums kept digit by digit, and what a float makes of them.
#include <microscale/number/wide_integer.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/number/formats.hpp>

#include "support/adversarial.hpp"
#include "support/exact_sum.hpp"

namespace ms = microscale;

namespace {

template <int Words>
int wrong_sums(std::uint64_t seed) {
  adversarial::numbers random(seed);
  int wrong = 0;
  for (int n = 0; n < 400; ++n) {
    ms::wide_integer<Words> sum;
    exact::sum want;
    const int terms = 1 + static_cast<int>(random.below(20));
    for (int i = 0; i < terms; ++i) {
      // Bits everywhere, few bits, all ones; sums that leave five bits of headroom.
      const int room = 64 * Words - 6;
      const int bits_a = 1 + static_cast<int>(random.below(Words == 1 ? 28 : 64));
      const int bits_b = 1 + static_cast<int>(random.below(Words == 1 ? 28 : 64 * Words - 70 > 64 ? 64 : 50));
      const bool ones = random.below(3) == 0;
      const std::uint64_t a = (ones ? ~std::uint64_t{0} : random.bits()) >> (64 - bits_a);
      const std::uint64_t b = (ones ? ~std::uint64_t{0} : random.bits()) >> (64 - bits_b);
      const int most = room - bits_a - bits_b;
      if (most < 0) continue;
      const int shift = static_cast<int>(random.below(static_cast<unsigned>(most) + 1));
      const bool negative = random.below(2) != 0;
      sum.add_product(a, b, negative, shift);
      want.add_product(a, b, negative, shift);
      if (random.below(4) == 0) {  // and away again
        sum.add_product(a, b, !negative, shift);
        want.add_product(a, b, !negative, shift);
      }
    }
    for (const int exponent : {0, -64 * Words, -149, -64 * Words - 100}) {
      const ms::unpacked u = sum.to_unpacked(exponent);
      const float got =
          u.is_zero() ? 0.0f : ms::fp32::from_bits(ms::f32::encode(u, ms::nearest_even{}, ms::overflow::ieee));
      wrong += ms::fp32::bits(got) != ms::fp32::bits(want.nearest(exponent));
      const float down = u.is_zero() ? 0.0f : ms::fp32::from_bits(ms::f32::encode(u, ms::toward_zero{}));
      wrong += ms::fp32::bits(down) != ms::fp32::bits(want.toward_zero(exponent));
      wrong += u.negative != want.is_negative();
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("sums of products of every width, rounded both ways") {
  CHECK(wrong_sums<1>(1) == 0);
  CHECK(wrong_sums<2>(2) == 0);
  CHECK(wrong_sums<3>(3) == 0);
  CHECK(wrong_sums<9>(4) == 0);
}

TEST_CASE("a lone low bit is sticky, however far below, and carries run through all words") {
  ms::wide_integer<5> sum;
  sum.add_product(1, 1, false, 300);
  sum.add_product(1, 1, false, 0);
  const ms::unpacked u = sum.to_unpacked(0);
  CHECK((u.sticky && !u.negative && u.significand >> 63 == 1 && u.exponent == 300 - 63));
  sum.add_product(1, 1, true, 300);
  CHECK((sum.to_unpacked(0).significand == 1 && !sum.to_unpacked(0).sticky));
  sum.add_product(1, 1, true, 0);
  CHECK(sum.to_unpacked(0).is_zero());
  sum.add_product(1, 1, true, 0);  // -1: all ones
  CHECK((sum.to_unpacked(0).negative && sum.to_unpacked(0).significand == 1));
  sum.add_product(1, 1, false, 256);
  const ms::unpacked v = sum.to_unpacked(0);  // 2^256 - 1
  CHECK((!v.negative && v.significand == ~std::uint64_t{0} && v.sticky && v.exponent == 192));
}

TEST_CASE("constant expressions") {
  constexpr ms::unpacked u = [] {
    ms::wide_integer<2> sum;
    sum.add_product(~std::uint64_t{0}, 3, true, 17);
    return sum.to_unpacked(-17);
  }();
  // 3 * 2^64 - 3, whose top 64 of 66 bits are 3 * 2^62 - 1.
  CHECK((u.negative && u.sticky && u.exponent == 2 && u.significand == 0xBFFFFFFFFFFFFFFFu));
}
