// The binary32 helpers on every pair of difficult numbers. Compiled twice: as it is, and with -ffast-math, which must
// change nothing; so this file compares bits and leaves arithmetic to the model, compiled without such flags.
#include <microscale/number/fp32.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace fp32 = microscale::fp32;

namespace {

std::vector<float> difficult_numbers() {
  std::vector<float> x;
  for (const std::uint32_t b :
       {0x00000000u, 0x00000001u, 0x00000002u, 0x00400000u, 0x007FFFFFu, 0x00800000u, 0x00800001u,
        0x01000000u, 0x1F800000u, 0x20000000u, 0x33800000u, 0x3E2AAAABu, 0x3EAAAAABu, 0x3F000000u,
        0x3F7FFFFFu, 0x3F800000u, 0x3F800001u, 0x3FC00000u, 0x40000000u, 0x40400000u, 0x40C00000u,
        0x43E00000u, 0x4B7FFFFFu, 0x4B800000u, 0x5F7FFFFFu, 0x7E800000u, 0x7F000000u, 0x7F7FFFFEu,
        0x7F7FFFFFu, 0x7F800000u, 0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu}) {
    x.push_back(fp32::from_bits(b));
    x.push_back(fp32::from_bits(b | 0x80000000u));
  }
  return x;
}

// Bits, all NaNs alike.
std::uint32_t canonical(float x) {
  const std::uint32_t b = __builtin_bit_cast(std::uint32_t, x);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : b;
}

bool nan_by_bits(float x) { return canonical(x) == 0x7FC00000u; }

}  // namespace

TEST_CASE("classification looks at the bits") {
  int wrong = 0;
  for (const float x : difficult_numbers()) {
    const std::uint32_t b = __builtin_bit_cast(std::uint32_t, x), m = b & 0x7FFFFFFFu;
    wrong += fp32::bits(x) != b || fp32::magnitude_bits(x) != m;
    wrong += fp32::is_nan(x) != (m > 0x7F800000u) || fp32::is_infinite(x) != (m == 0x7F800000u);
    wrong += fp32::is_finite(x) != (m < 0x7F800000u) || fp32::is_zero(x) != (m == 0);
    wrong += fp32::is_negative(x) != (b >> 31 == 1);
    wrong += fp32::bits(fp32::abs(x)) != m || fp32::bits(fp32::negate(x)) != (b ^ 0x80000000u);
  }
  CHECK(wrong == 0);
}

TEST_CASE("each operation is one IEEE 754 operation") {
  std::vector<float> x = difficult_numbers();
  adversarial::numbers random(1);
  for (int i = 0; i < 500; ++i) x.push_back(random.any_float());
  int wrong = 0;
  float a_wrong = 0, b_wrong = 0;
  for (const float a : x) {
    for (const float b : x) {
      const bool same = canonical(fp32::mul(a, b)) == canonical(model::mul(a, b)) &&
                        canonical(fp32::div(a, b)) == canonical(model::div(a, b)) &&
                        canonical(fp32::add(a, b)) == canonical(model::add(a, b)) &&
                        canonical(fp32::sub(a, b)) == canonical(model::add(a, fp32::negate(b)));
      if (!same && wrong++ == 0) a_wrong = a, b_wrong = b;
    }
    wrong += canonical(fp32::sqrt(a)) != canonical(model::square_root(a));
  }
  INFO(std::hex << fp32::bits(a_wrong) << " and " << fp32::bits(b_wrong));
  CHECK(wrong == 0);
}

TEST_CASE("no operation is contracted, reassociated or turned into a reciprocal") {
  adversarial::numbers random(2);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const float a = random.log_uniform(-3, 3), b = random.log_uniform(-3, 3), c = random.log_uniform(-6, 6);
    wrong += fp32::bits(fp32::add(fp32::mul(a, b), c)) != canonical(model::add(model::mul(a, b), c));
    wrong += fp32::bits(fp32::mul(fp32::mul(a, b), c)) != canonical(model::mul(model::mul(a, b), c));
    wrong += fp32::bits(fp32::add(fp32::add(a, b), c)) != canonical(model::add(model::add(a, b), c));
    wrong += fp32::bits(fp32::div(a, b)) != canonical(model::div(a, b));
    wrong += fp32::bits(fp32::div(fp32::div(a, b), c)) != canonical(model::div(model::div(a, b), c));
    wrong += fp32::bits(fp32::mul(a, fp32::div(1.0f, b))) != canonical(model::mul(a, model::div(1.0f, b)));
    wrong += fp32::bits(fp32::sub(fp32::add(a, b), a)) != canonical(model::add(model::add(a, b), -a));
  }
  // A loop over a constant divisor is what compilers like to replace.
  float x[64], y[64];
  for (float& v : x) v = random.log_uniform(-20, 20);
  for (int i = 0; i < 64; ++i) y[i] = fp32::div(x[i], 6.0f);
  for (int i = 0; i < 64; ++i) wrong += fp32::bits(y[i]) != canonical(model::div(x[i], 6.0f));
  CHECK(wrong == 0);
}

TEST_CASE("order and selection, with NaN and zeros of both signs") {
  const std::vector<float> x = difficult_numbers();
  int wrong = 0;
  for (const float a : x) {
    for (const float b : x) {
      const bool a_nan = nan_by_bits(a), b_nan = nan_by_bits(b);
      const std::uint32_t low = fp32::bits(fp32::min_number(a, b)), high = fp32::bits(fp32::max_number(a, b));
      if (a_nan || b_nan) {
        wrong += low != fp32::bits(a_nan ? b : a) || high != fp32::bits(a_nan ? b : a);
        continue;
      }
      const bool below = model::less(a, b), above = model::less(b, a);
      wrong += fp32::less(a, b) != below;
      if (fp32::is_zero(a) && fp32::is_zero(b)) {  // the negative one is the smaller
        wrong += low != (fp32::bits(a) | fp32::bits(b)) || high != (fp32::bits(a) & fp32::bits(b));
      } else {
        wrong += low != fp32::bits(above ? b : a) || high != fp32::bits(below ? b : a);
      }
      wrong += fp32::bits(fp32::copy_sign(a, b)) != ((fp32::bits(a) & 0x7FFFFFFFu) | (fp32::bits(b) & 0x80000000u));
      for (const float v : x) {
        if (below) {
          const std::uint32_t moved = canonical(fp32::clamp(v, a, b));
          const float want = nan_by_bits(v) ? v : model::less(v, a) ? a : model::less(b, v) ? b : v;
          wrong += moved != canonical(want);
        }
      }
    }
  }
  CHECK(wrong == 0);
}
