// The scale rules that recipes brought along, against their formulas in plain arithmetic.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/hadamard.hpp>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace ms = microscale;

namespace {

float amax_of(const std::vector<float>& x) {
  float a = 0;
  for (const float v : x) a = std::fmax(a, std::fabs(v));
  return a;
}

template <class S, class R, class Draws>
ms::quantized_block<S> quantized(const std::vector<float>& x, float reference, R rounding, Draws draws,
                                 ms::block_extent extent = ms::full_extent<typename S::block>()) {
  float in[S::block::elements] = {};
  std::copy(x.begin(), x.end(), in);
  return ms::quantize_block<S>(in, reference, rounding, draws, extent);
}

struct eden_block {
  unsigned scale = 0;
  std::vector<unsigned> codes;
};

// MS-EDEN by its formulas; `random` is the 32-bit draw.
eden_block eden(const std::vector<float>& x, float reference, std::uint32_t random) {
  using model::ue4m3;
  const float v = model::div(6.0f, static_cast<float>(17.0 / 16.0 * 0.93));
  float d = model::div(model::div(reference, 255.99f), v);
  if (d == 0) d = 1;
  eden_block b;
  unsigned first = model::encode(ue4m3, model::div(model::div(amax_of(x), v), d));
  if (first == 0) first = 0x38;
  const float s = model::decode(ue4m3, first);
  const float inverse = std::fmin(model::div(1.0f, model::mul(s, d)), 3.4028234663852886e38f);
  float yy = 0, yq = 0;
  for (const float e : x) {
    const float y = model::mul(e, inverse);
    b.codes.push_back(model::encode(model::e2m1, y));
    yy = model::add(yy, model::mul(y, y));
    yq = model::add(yq, model::mul(y, model::decode(model::e2m1, b.codes.back())));
  }
  b.scale = first;
  if (yq != 0) {
    const double target = model::mul(s, model::div(yy, yq));
    if (!(target < 448)) {
      b.scale = 0x7E;
    } else {
      unsigned below = 0;
      while (model::decode(ue4m3, below + 1) <= target) ++below;
      const double low = model::decode(ue4m3, below);
      const double step = model::magnitude(ue4m3, below + 1) - low;  // 448 is the end of the grid, not of the steps
      const bool up = (target - low) / step + (2.0 * random + 1) / 0x1p33 >= 1;
      b.scale = std::min(below + (up ? 1u : 0u), 0x7Eu);
    }
  }
  return b;
}

struct fixed_scale_draw {
  std::uint32_t bits;
  constexpr std::uint32_t operator()(int) const { return 0; }
  constexpr std::uint32_t scale() const { return bits; }
};

// All of it is a constant expression. 6 x 16 under reference 6: y y = 36.8... each, q = 6, so the scale is raised by
// y / 6 = 1.012 from 256 on, and the draw decides between 256 and 288.
constexpr float sixes[16] = {6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6};
constexpr std::uint8_t scale_of_sixes(std::uint32_t draw) {
  return ms::quantize_block<ms::nvfp4_ms_eden>(sixes, 6.0f, ms::with_scale_draws<>{}, fixed_scale_draw{draw}).scale;
}
static_assert(ms::ue4m3::decode(scale_of_sixes(0)) == 256.0f);
static_assert(ms::ue4m3::decode(scale_of_sixes(0xFFFFFFFFu)) == 288.0f);

}  // namespace

TEST_CASE("MS-EDEN is its formulas, with a draw for the scale") {
  int wrong = 0, corrected = 0, up = 0;
  adversarial::numbers random(7);
  const model::scheme like{.how = model::rule::te, .target = 256};
  for (const adversarial::block& b : adversarial::blocks(like, 16, 3000, 11)) {
    const auto draw = static_cast<std::uint32_t>(random.bits());
    for (const std::uint32_t r : {draw, 0u, 0xFFFFFFFFu}) {
      const eden_block e = eden(b.values, b.reference, r);
      const auto q = quantized<ms::nvfp4_ms_eden>(b.values, b.reference, ms::with_scale_draws<>{}, fixed_scale_draw{r});
      wrong += q.scale != e.scale || !std::equal(e.codes.begin(), e.codes.end(), std::begin(q.codes));
    }
    const unsigned low = eden(b.values, b.reference, 0).scale, high = eden(b.values, b.reference, 0xFFFFFFFFu).scale;
    up += low != high;
    const float y = model::div(amax_of(b.values), model::div(6.0f, 0.988125f));
    const float d = ms::nvfp4_ms_eden::factors(b.reference).decode;
    corrected += low != model::encode(model::ue4m3, model::div(y, d));
  }
  CHECK(wrong == 0);
  CHECK(corrected > 100);
  CHECK(up > 100);
}

TEST_CASE("MS-EDEN at the edges") {
  using S = ms::nvfp4_ms_eden;
  const fixed_scale_draw draw{0x80000000u};
  const std::vector<float> zeros(16, 0.0f);
  CHECK(quantized<S>(zeros, 1.0f, ms::with_scale_draws<>{}, draw).scale == 0x38);
  CHECK(quantized<S>(zeros, 0.0f, ms::with_scale_draws<>{}, draw).scale == 0x38);
  // A reference that is far too small: the first scale and its correction saturate, nothing becomes NaN.
  for (const float x : {1.0f, 1e30f, 3e38f}) {
    std::vector<float> large(16, x);
    large[3] = -x;
    const auto q = quantized<S>(large, 1e-30f, ms::with_scale_draws<>{}, draw);
    CHECK(q.scale == 0x7E);
    CHECK((q.codes[0] == 7 && q.codes[3] == 0xF));
  }
  std::vector<float> bad(16, 1.0f);
  bad[5] = ms::fp32::quiet_nan();
  CHECK(quantized<S>(bad, 1.0f, ms::with_scale_draws<>{}, draw).scale == 0x7F);
  // Under `saturate` a NaN counts for nothing, in the amax and in the correction.
  using saturating = ms::with_nonfinite<S, ms::nonfinite::saturate>;
  std::vector<float> without(16, 1.0f);
  without[5] = 0.0f;
  for (const float x : {bad[5], ms::fp32::negate(bad[5])}) {
    bad[5] = x;
    const auto q = quantized<saturating>(bad, 1.0f, ms::with_scale_draws<>{}, draw);
    CHECK(q.scale == quantized<S>(without, 1.0f, ms::with_scale_draws<>{}, draw).scale);
    CHECK((q.codes[4] == 7 && q.codes[5] == 7));
  }
  // What lies outside the extent counts for nothing.
  std::vector<float> part(16, 0.7f);
  const auto whole = quantized<S>(std::vector<float>(5, 0.7f), 1.0f, ms::with_scale_draws<>{}, draw, {1, 5});
  const auto cut = quantized<S>(part, 1.0f, ms::with_scale_draws<>{}, draw, {1, 5});
  CHECK(whole.scale == cut.scale);
}

TEST_CASE("the scale's draw belongs to the block's place and a stream of its own") {
  const ms::random_key elements{.seed = 5, .stream = 8}, scales{.seed = 5, .stream = 9};
  using R = ms::with_scale_draws<ms::stochastic_midpoint8>;
  const R rounding{.elements = {elements.seed, elements.stream}, .scales = scales};
  // Row 3, element 32 of rows of 70: the third of five blocks.
  ms::block_draws<R, ms::block<1, 16>> draws(rounding, 3, 32, 70);
  CHECK(draws.scale() == ms::draw<32>(scales, 3 * 5 + 2));
  CHECK(draws(7) == ms::draw<8>(elements, 3 * 80 + 32 + 7));

  // Whole tensors take the same draws in every split.
  std::vector<float> x(37 * 50);
  adversarial::numbers random(3);
  for (float& v : x) v = static_cast<float>(random.normal());
  const auto in = ms::matrix(x.data(), 37, 50);
  ms::quantized<ms::nvfp4_ms_eden> q(37, 50);
  const ms::with_scale_draws<> nearest{.scales = scales};
  ms::quantize_with(ms::sequential{}, in, q.view(), nearest);
  const float reference = ms::amax(ms::sequential{}, in);
  int wrong = 0;
  for (int r = 0; r < 37; ++r) {
    for (int k = 0; k < 50; k += 16) {
      const int n = std::min(16, 50 - k);
      const std::vector<float> b(x.begin() + r * 50 + k, x.begin() + r * 50 + k + n);
      const auto draw = ms::draw<32>(scales, static_cast<std::uint64_t>(r * 4 + k / 16));
      wrong += q.view().scale(r, k) != eden(b, reference, draw).scale;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("corrections of several blocks add up") {
  constexpr float x[16] = {1, 2, 3, 0.3f}, y[16] = {0.2f, -5, 0.9f};
  constexpr auto t = ms::nvfp4_ms_eden::factors(6.0f);
  ms::quantized_block<ms::nvfp4_ms_eden> a{}, b{};
  a.scale = b.scale = 0x38;
  auto sums = ms::block_correlation<ms::nvfp4_ms_eden>(x, a, t);
  const auto other = ms::block_correlation<ms::nvfp4_ms_eden>(y, b, t);
  const float together = sums.scaled_scaled + other.scaled_scaled;
  sums += other;
  CHECK(sums.scaled_scaled == together);
}

TEST_CASE("the correction is the quotient of its sums, not a product with a reciprocal") {
  using S = ms::nvfp4_ms_eden;
  int pairs = 0, wrong = 0;
  for (int i = 1; i < 400; ++i) {
    const float b = 1.0f + static_cast<float>(i) * 0.37f, a = b * 1.06f;
    const float c = model::div(a, b);
    if (c == model::mul(a, model::div(1.0f, b))) continue;
    ++pairs;
    // Under a scale of 1 the corrected one lies between 1 and 1.125: the first draw that takes it away from 1.
    const double left = 1 - (static_cast<double>(c) - 1) * 8;  // of the step, a multiple of 2^-20
    const auto first = static_cast<std::uint32_t>(left * 0x1p32);
    wrong += ms::ms_eden_rule::refined<S>(0x38, {a, b}, first) != 0x39;
    wrong += ms::ms_eden_rule::refined<S>(0x38, {a, b}, first - 1) != 0x38;
  }
  CHECK(pairs > 10);
  CHECK(wrong == 0);
}

TEST_CASE("MS-EDEN keeps a block's projection on itself, on average over the scale's draws") {
  // sum x x' / sum x x is 1 for the corrected scale, so the mean over evenly spread draws is off by at most half of
  // 2^-8 steps of a scale (each at most 1/8 of it), and a few roundings of FP32.
  adversarial::numbers random(4);
  double worst = 0, worst_to_nearest = 0;
  for (int trial = 0; trial < 200; ++trial) {
    float x[16];
    double length = 0;
    for (float& v : x) {
      v = static_cast<float>(random.normal());
      length += double{v} * double{v};
    }
    const auto t = ms::nvfp4_ms_eden::factors(4.0f);
    const auto projection = [&](const auto& q) {
      float y[16];
      ms::dequantize_block<ms::nvfp4_ms_eden>(q, t, y);
      double sum = 0;
      for (int i = 0; i < 16; ++i) sum += double{x[i]} * double{y[i]};
      return sum / length;
    };
    double mean = 0;
    for (std::uint32_t i = 0; i < 256; ++i) {
      const fixed_scale_draw draw{(i << 24) + 0x800000u};
      mean += projection(ms::quantize_block<ms::nvfp4_ms_eden>(x, t, ms::with_scale_draws<>{}, draw)) / 256;
    }
    worst = std::fmax(worst, std::fabs(mean - 1));
    // The same codes under the first scale.
    auto first = ms::quantize_block<ms::nvfp4_ms_eden>(x, t, ms::with_scale_draws<>{}, fixed_scale_draw{0});
    ms::running_amax amax;
    for (const float v : x) amax.see(v);
    first.scale = ms::first_block_scale<ms::nvfp4_ms_eden>(amax, t);
    worst_to_nearest = std::fmax(worst_to_nearest, std::fabs(projection(first) - 1));
  }
  CHECK(worst < 1.0 / 4096 + 1e-5);
  CHECK(worst_to_nearest > 0.01);
}

TEST_CASE("the folded rule: the power of two above the amax, six times finer grid, one sixth at the end") {
  using S = ms::mxfp4_folded;
  int wrong = 0;
  const model::scheme like{.how = model::rule::mx_ceil, .scale = model::e8m0, .policy = model::nonfinite::poison};
  for (const adversarial::block& b : adversarial::blocks(like, 32, 2000, 21)) {
    const float a = amax_of(b.values);
    if (a == 0) continue;
    int e = 0;
    const double f = std::frexp(a, &e);  // a = f 2^e, f in [1/2, 1)
    if (f == 0.5) --e;                   // ceil(log2 a)
    e = std::clamp(e, -127, 127);
    float x[32];
    std::copy(b.values.begin(), b.values.end(), x);
    const auto q = ms::quantize_block<S>(x, 1.0f);
    wrong += q.scale != static_cast<unsigned>(e + 127);
    float out[32];
    ms::dequantize_block<S>(q, S::factors(0.0f), out);
    for (std::size_t i = 0; i < 32; ++i) {
      const double exact = 6.0 * b.values[i] * std::ldexp(1.0, -e);
      wrong += q.codes[i] != model::encode(model::e2m1, exact);
      const float c = model::decode(model::e2m1, q.codes[i]);
      const float cs = model::mul(c, model::decode(model::e8m0, q.scale));
      wrong += ms::fp32::bits(out[i]) != ms::fp32::bits(model::mul(cs, model::div(1.0f, 6.0f)));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the folded rule gives a block of zeros the smallest scale, and keeps their signs") {
  float x[32] = {};
  x[3] = -0.0f;
  const auto q = ms::quantize_block<ms::mxfp4_folded>(x, 1.0f);
  CHECK((q.scale == 0 && q.codes[0] == 0 && q.codes[3] == 8));
}

TEST_CASE("the folded rule halves the scale of a square block iff a / s < 0.87") {
  using S = ms::mxfp4_folded_2d;
  const auto scale_of = [](float a) {
    float x[1024] = {};
    x[17] = -a;
    return static_cast<int>(ms::quantize_block<S>(x, 0.0f).scale) - 127;
  };
  const float edge = 0.87f;
  for (const int e : {-140, -126, -3, 0, 5, 120}) {
    const auto times = [&](float a) { return std::ldexp(a, e); };
    if (e >= -126) {
      CHECK(scale_of(times(1.0f)) == e);
      CHECK(scale_of(times(edge)) == e);
      CHECK(scale_of(times(ms::fp32::from_bits(ms::fp32::bits(edge) - 1))) == std::max(e - 1, -127));
      CHECK(scale_of(times(0.5f)) == std::max(e - 1, -127));  // a power of two itself: a / s is 1
      CHECK(scale_of(times(0.75f)) == std::max(e - 1, -127));
    } else {
      CHECK(scale_of(times(1.0f)) == -127);  // clamped
    }
  }
  float x[1024] = {};
  x[0] = 0.8f, x[1] = 0.1f;  // under 1/2: 9.6 clips to 6, 1.2 becomes 1
  const auto q = ms::quantize_block<S>(x, 0.0f);
  CHECK((q.codes[0] == 7 && q.codes[1] == 2));
}

TEST_CASE("the sixth is applied once by a GEMM") {
  std::vector<float> a(32, 0.0f), b(32, 0.0f);
  a[0] = 1.0f, a[1] = -0.5f, b[0] = 2.0f, b[1] = 4.0f;
  const auto qa = ms::quantize<ms::mxfp4_folded>(ms::matrix(a.data(), 1, 32));
  const auto qb = ms::quantize<ms::mxfp4_folded>(ms::matrix(b.data(), 1, 32));
  // Codes 6 and -3 under 1; 3 and 6 under 4: (6 * 3 - 3 * 6) * 4 = 0, whatever the factor.
  CHECK(ms::gemm(qa, qb)[0] == 0.0f);
  b[1] = 0.0f;
  const auto qc = ms::quantize<ms::mxfp4_folded>(ms::matrix(b.data(), 1, 32));
  const float sixth = 1.0f / 6.0f;
  CHECK(ms::gemm(qa, qc)[0] == 72.0f * (sixth * sixth));
}
