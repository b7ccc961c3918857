// Every encoder against the model: under each rounding mode and both overflow policies, on the neighbourhood of every
// boundary between codes, and on numbers of all magnitudes in binary32 and binary64.
#include <microscale/number/formats.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace ms = microscale;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Boundaries (codes, midpoints, quarters) and their neighbours in binary64, both signs; a part of them for 16 bits.
std::vector<double> boundaries(const model::format& f) {
  std::vector<double> x;
  const unsigned stride = f.top > 255 ? 37 : 1;
  for (unsigned m = 0; m <= f.top; m += stride) {
    const double low = model::magnitude(f, m), high = model::magnitude(f, m + 1);
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double at = low + (high - low) * part;
      for (const double v : {at, std::nextafter(at, 0), std::nextafter(at, infinity)}) {
        x.push_back(v);
        x.push_back(-v);
      }
    }
  }
  const double top = model::magnitude(f, f.top), past = model::magnitude(f, f.top + 1);
  for (const double v : {(top + past) / 2, past, 2 * past, 1e300, 5e-324, 0.0, infinity}) {
    x.push_back(v);
    x.push_back(-v);
  }
  return x;
}

// The overflow that vector files state: the model saturates; `ieee` differs where rounding leads past the top, unless
// it points to zero.
unsigned expected(const model::format& f, double x, model::rounding how, unsigned r, ms::overflow on_overflow) {
  const unsigned saturated = model::encode(f, x, how, r);
  if (on_overflow == ms::overflow::saturate || f.kind == model::family::fixed_point || std::isnan(x)) return saturated;
  const bool negative = std::signbit(x);
  if (negative && !f.has_sign) return saturated;
  const unsigned past = f.infinity >= 0 ? static_cast<unsigned>(f.infinity)
                        : f.nan >= 0    ? static_cast<unsigned>(f.nan)
                                        : f.top;
  const double top = model::magnitude(f, f.top), step = model::magnitude(f, f.top + 1) - top;
  const double beyond = (std::fabs(x) - top) / step;
  bool is_past = std::isinf(x);
  if (!is_past && beyond > 0) {
    switch (how) {
      case model::rounding::nearest_even:
        is_past = beyond > .5 || (beyond == .5 && (f.kind == model::family::power_of_two || f.top % 2 == 1));
        break;
      case model::rounding::toward_zero:
        is_past = false;
        break;
      case model::rounding::toward_positive:
        is_past = !negative;
        break;
      case model::rounding::toward_negative:
        is_past = negative;
        break;
      case model::rounding::midpoint8:
        is_past = beyond >= 1 - (2 * r + 1) / 512.0;
        break;
      case model::rounding::floor8:
        is_past = beyond >= 1 - r / 256.0;
        break;
    }
  }
  if (!is_past) return saturated;
  return past | (negative ? 1u << (f.exponent_bits + f.mantissa_bits) : 0);
}

struct tally {
  int wrong = 0;
  double x = 0;
  unsigned got = 0, want = 0, random = 0;
};

template <class F, class R>
tally against_model(const model::format& f, const std::vector<double>& numbers, model::rounding how) {
  tally t;
  for (const double x : numbers) {
    for (const auto on_overflow : {ms::overflow::saturate, ms::overflow::ieee}) {
      for (const unsigned r : {0u, 1u, 63u, 64u, 127u, 128u, 129u, 191u, 192u, 254u, 255u}) {
        if (R::random_bits == 0 && r > 0) break;
        const unsigned want = expected(f, x, how, r, on_overflow);
        const unsigned got = F::encode(x, R{}, on_overflow, r);
        const float narrow = static_cast<float>(x);
        const bool exact = static_cast<double>(narrow) == x;
        const unsigned from_float = exact ? F::encode(narrow, R{}, on_overflow, r) : got;
        if (got != want || from_float != want) {
          if (t.wrong++ == 0) t = {1, x, got != want ? got : from_float, want, r};
        }
      }
    }
  }
  return t;
}

template <class F>
void hold(const model::format& f) {
  std::vector<double> x = boundaries(f);
  adversarial::numbers random(7);
  for (int i = 0; i < 2000; ++i) x.push_back(static_cast<double>(random.any_float()));
  for (int i = 0; i < 2000; ++i) {
    x.push_back(random.normal() * std::exp2(static_cast<int>(random.below(60)) - 30));  // full binary64 significands
  }
  const auto check = [&](const char* mode, const tally& t) {
    INFO(mode << ": " << t.x << " with r = " << t.random << " gave " << t.got << ", not " << t.want);
    CHECK(t.wrong == 0);
  };
  check("nearest_even", against_model<F, ms::nearest_even>(f, x, model::rounding::nearest_even));
  check("toward_zero", against_model<F, ms::toward_zero>(f, x, model::rounding::toward_zero));
  check("toward_positive", against_model<F, ms::toward_positive>(f, x, model::rounding::toward_positive));
  check("toward_negative", against_model<F, ms::toward_negative>(f, x, model::rounding::toward_negative));
  // The model's stochastic modes need differences that binary64 can hold.
  x.erase(std::remove_if(x.begin(), x.end(), [](double v) { return v != 0 && std::fabs(v) < 1e-290; }), x.end());
  check("stochastic_midpoint8", against_model<F, ms::stochastic_midpoint8>(f, x, model::rounding::midpoint8));
  check("stochastic_floor8", against_model<F, ms::stochastic_floor8>(f, x, model::rounding::floor8));
}

}  // namespace

TEST_CASE("encoders of elements agree with the model") {
  SECTION("e2m1") { hold<ms::e2m1>(model::e2m1); }
  SECTION("e1m2") { hold<ms::e1m2>(model::e1m2); }
  SECTION("e2m3") { hold<ms::e2m3>(model::e2m3); }
  SECTION("e3m2") { hold<ms::e3m2>(model::e3m2); }
  SECTION("e4m3") { hold<ms::e4m3>(model::e4m3); }
  SECTION("e5m2") { hold<ms::e5m2>(model::e5m2); }
  SECTION("int4") { hold<ms::int4>(model::int4); }
  SECTION("int8") { hold<ms::int8>(model::int8); }
}

TEST_CASE("encoders of scales and of wide formats agree with the model") {
  SECTION("ue4m3") { hold<ms::ue4m3>(model::ue4m3); }
  SECTION("ue5m3") { hold<ms::ue5m3>(model::ue5m3); }
  SECTION("ue5m3_ieee") { hold<ms::ue5m3_ieee>(model::ue5m3_ieee); }
  SECTION("e8m0") { hold<ms::e8m0>(model::e8m0); }
  SECTION("bf16") { hold<ms::bf16>(model::bf16); }
  SECTION("f16") { hold<ms::f16>(model::f16); }
}

TEST_CASE("every code of the 16-bit formats") {
  const auto whole = [](auto format, const model::format& f) {
    using F = decltype(format);
    int wrong = 0;
    for (unsigned c = 0; c < 65536; ++c) {
      const auto code = static_cast<typename F::storage>(c);
      const float got = F::decode(code), want = model::decode(f, c);
      if (std::isnan(want)) {
        wrong += !ms::fp32::is_nan(got) || !F::is_nan(code) || F::is_infinite(code) || F::is_finite(code);
        continue;
      }
      wrong +=
          ms::fp32::bits(got) != ms::fp32::bits(want) || F::is_nan(code) || F::is_infinite(code) != std::isinf(want);
      wrong += F::encode(got, ms::nearest_even{}, ms::overflow::ieee) != code;
      wrong += !std::isinf(want) && F::encode(F::unpack_code(code)) != code;
    }
    return wrong;
  };
  CHECK(whole(ms::bf16{}, model::bf16) == 0);
  CHECK(whole(ms::f16{}, model::f16) == 0);
}

TEST_CASE("f32 as a format is the identity, and rounds binary64 as the processor does") {
  adversarial::numbers random(3);
  int wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = random.any_float();
    wrong += ms::f32::encode(x) != ms::fp32::bits(x) ||
             ms::fp32::bits(ms::f32::decode(ms::fp32::bits(x))) != ms::fp32::bits(x);
    const double wide = random.normal() * std::exp2(static_cast<int>(random.below(300)) - 170);
    const float narrow = static_cast<float>(wide);
    const auto code = ms::f32::encode(wide, ms::nearest_even{}, ms::overflow::ieee);
    wrong += code != ms::fp32::bits(narrow);
  }
  CHECK(wrong == 0);
  CHECK(ms::f32::encode(infinity) == 0x7F7FFFFF);
  CHECK(ms::fp32::is_nan(ms::f32::decode(0xFF800001)));
}

TEST_CASE("integers are rounded once") {
  adversarial::numbers random(5);
  int wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto n = static_cast<std::int64_t>(random.bits() >> random.below(64)) * (random.below(2) != 0 ? 1 : -1);
    if (std::abs(n) >> 53 == 0) {  // binary64 is exact
      wrong += ms::e5m2::encode(n) != ms::e5m2::encode(static_cast<double>(n));
      wrong += ms::bf16::encode(n) != ms::bf16::encode(static_cast<double>(n));
      wrong += ms::f16::encode(n) != ms::f16::encode(static_cast<double>(n));
    }
    // Nearest-even by integers alone: keep 8 bits.
    const std::uint64_t m = static_cast<std::uint64_t>(n < 0 ? -n : n);
    int shift = 0;
    while (m >> shift > 255) ++shift;
    std::uint64_t kept = m >> shift;
    const std::uint64_t rest = m - (kept << shift), half = shift > 0 ? std::uint64_t{1} << (shift - 1) : 0;
    if (shift > 0 && (rest > half || (rest == half && kept % 2 == 1))) ++kept;
    const double want = std::ldexp(static_cast<double>(kept), shift) * (n < 0 ? -1 : 1);
    wrong += static_cast<double>(ms::bf16::decode(ms::bf16::encode(n))) != want;
  }
  CHECK(wrong == 0);
}

TEST_CASE("the exact quotient of two numbers rounds as the fraction does") {
  adversarial::numbers random(9);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    // Up to 24 by 28 bits, as the exact schemes divide; often close to a boundary of the format.
    const double q = std::floor(random.unit() * 0x1p28) + 1;
    const unsigned m = random.below(model::e4m3.top);
    const double boundary = (model::magnitude(model::e4m3, m) + model::magnitude(model::e4m3, m + random.below(2))) / 2;
    const double p = std::fmax(0, std::floor(q * boundary * 256) + static_cast<int>(random.below(3)) - 1);
    if (p >= 0x1p53) continue;
    ms::unpacked n = ms::unpack(p), d = ms::unpack(static_cast<std::int64_t>(q));
    n.exponent -= 8;  // the factor of 256 above
    n.negative = random.below(2) != 0;
    const unsigned want = model::round_quotient(model::e4m3, p / 256, q, false, model::rounding::nearest_even, 0);
    wrong += ms::e4m3::encode(ms::exact_quotient(n, d)) != (want | (n.negative ? 0x80u : 0u));
  }
  CHECK(wrong == 0);
}
