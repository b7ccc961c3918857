// What holds for every block under every scheme: the order and signs of elements do not matter to each other, powers of
// two pass through, quantizing what was dequantized changes nothing, and nothing finite becomes anything else.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <vector>

#include "support/adversarial.hpp"

namespace ms = microscale;

namespace {

constexpr int tries = 1400;

template <class S>
struct quantized {
  ms::quantized_block<S> q;
  float out[S::block::elements] = {};
};

template <class S>
quantized<S> through(const std::vector<float>& x, float reference) {
  float in[S::block::elements];
  std::copy(x.begin(), x.end(), in);
  quantized<S> r{ms::quantize_block<S>(in, reference)};
  ms::dequantize_block(r.q, S::factors(reference), r.out);
  return r;
}

model::scheme hints(bool has_power_of_two_scale) {
  return has_power_of_two_scale ? model::scheme{.how = model::rule::mx_floor, .scale = model::e8m0}
                                : model::scheme{.how = model::rule::te};
}

template <class S>
bool same(const ms::quantized_block<S>& a, const ms::quantized_block<S>& b) {
  return a.scale == b.scale && std::equal(std::begin(a.codes), std::end(a.codes), std::begin(b.codes));
}

// `keeps_zero_sign`: ModelOpt and compressed-tensors turn -0 into +0. `is_ordered`: an error summed in element order,
// as in 4over6, may depend on it.
template <class S>
void holds(bool keeps_zero_sign = true, bool is_ordered = false) {
  constexpr int n = S::block::elements;
  constexpr bool mx = !S::scale::has_zero;
  adversarial::numbers random(17);
  int not_symmetric = 0, order_matters = 0, not_finite = 0, not_scaled = 0, monotone = 0;
  for (const adversarial::block& b : adversarial::blocks(hints(mx), n, n > 100 ? tries / 10 : tries, 5)) {
    const quantized<S> r = through<S>(b.values, b.reference);

    // Minus the numbers: the same scale, minus the values.
    std::vector<float> negated = b.values;
    for (float& x : negated) x = -x;
    const quantized<S> minus = through<S>(negated, b.reference);
    bool symmetric = minus.q.scale == r.q.scale;
    for (int i = 0; i < n; ++i) {
      const bool same_bits = ms::fp32::bits(minus.out[i]) == ms::fp32::bits(-r.out[i]);
      symmetric = symmetric && (same_bits || (!keeps_zero_sign && minus.out[i] == -r.out[i]) ||
                                (ms::fp32::is_nan(minus.out[i]) && ms::fp32::is_nan(r.out[i])));
    }
    not_symmetric += !symmetric;

    // A permutation: the same scale, the codes permuted.
    if (!is_ordered) {
      std::vector<int> at(static_cast<std::size_t>(n));
      for (int i = 0; i < n; ++i) at[static_cast<std::size_t>(i)] = i;
      for (int i = n - 1; i > 0; --i) {
        std::swap(at[static_cast<std::size_t>(i)], at[random.below(static_cast<unsigned>(i) + 1)]);
      }
      std::vector<float> shuffled(b.values.size());
      for (int i = 0; i < n; ++i) {
        shuffled[static_cast<std::size_t>(i)] = b.values[static_cast<std::size_t>(at[static_cast<std::size_t>(i)])];
      }
      const quantized<S> other = through<S>(shuffled, b.reference);
      bool permuted = other.q.scale == r.q.scale;
      for (int i = 0; i < n; ++i) permuted = permuted && other.q.codes[i] == r.q.codes[at[static_cast<std::size_t>(i)]];
      order_matters += !permuted;
    }

    // Larger elements never get smaller values within a block.
    for (int i = 1; i < n; ++i) {
      const float x = b.values[static_cast<std::size_t>(i - 1)], y = b.values[static_cast<std::size_t>(i)];
      if (x <= y ? r.out[i - 1] > r.out[i] : r.out[i - 1] < r.out[i]) ++monotone;
    }

    // Finite numbers under a reference that is not below them stay finite, and no farther than the amax allows.
    float amax = 0;
    for (const float x : b.values) amax = std::fmax(amax, std::fabs(x));
    if (b.reference >= amax && b.reference < 1e35f) {
      for (const float y : r.out) not_finite += !ms::fp32::is_finite(y);
      for (const float y : r.out) not_finite += std::fabs(y) > 2.1f * std::fmax(amax, b.reference);
    }

    // A power of two on numbers and reference alike passes through, far from the ends of binary32. MX scales move by
    // it, single-level ones only inside the normal range of their format.
    float low = 1e30f;
    for (const float x : b.values) low = x == 0 ? low : std::fmin(low, std::fabs(x));
    if (low > 1e-15f && amax < 1e15f && b.reference > 1e-15f && b.reference < 1e15f && (S::has_tensor_scale || mx)) {
      std::vector<float> scaled = b.values;
      for (float& x : scaled) x *= 0x1p-9f;
      const quantized<S> other = through<S>(scaled, b.reference * 0x1p-9f);
      quantized<S> want = r;
      if constexpr (mx) want.q.scale = static_cast<std::uint8_t>(r.q.scale - (amax > 0 ? 9 : 0));
      not_scaled += !same(other.q, want.q);
      for (int i = 0; i < n; ++i) not_scaled += other.out[i] != r.out[i] * 0x1p-9f;
    }
  }
  CHECK(not_symmetric == 0);
  CHECK(order_matters == 0);
  CHECK(monotone == 0);
  CHECK(not_finite == 0);
  CHECK(not_scaled == 0);
}

// Quantizing what was dequantized gives the same values. It holds where the largest element of a block decodes to the
// largest value: always for MX floor and even, and for the two-level schemes when scales do not round to another.
template <class S>
int changed_by_requantizing(float reference, std::uint64_t seed) {
  adversarial::numbers random(seed);
  int changed = 0;
  for (int k = 0; k < tries; ++k) {
    std::vector<float> x(S::block::elements);
    for (float& v : x) v = static_cast<float>(random.normal());
    const quantized<S> once = through<S>(x, reference);
    std::vector<float> y(std::begin(once.out), std::end(once.out));
    const quantized<S> twice = through<S>(y, reference);
    changed += !std::equal(y.begin(), y.end(), std::begin(twice.out));
  }
  return changed;
}

}  // namespace

TEST_CASE("two-level schemes") {
  SECTION("nvfp4") { holds<ms::nvfp4>(); }
  SECTION("nvfp4_2d") { holds<ms::nvfp4_2d>(); }
  SECTION("nvfp4_4over6") { holds<ms::nvfp4_4over6>(true, true); }
  SECTION("nvfp4_torchao") { holds<ms::nvfp4_torchao>(); }
  SECTION("nvfp4_modelopt") { holds<ms::nvfp4_modelopt>(false); }
  SECTION("nvfp4_compressed_tensors") { holds<ms::nvfp4_compressed_tensors>(false); }
  SECTION("nvfp4_exact") { holds<ms::nvfp4_exact>(); }
  SECTION("ue5m3_fp4") { holds<ms::ue5m3_fp4>(); }
  SECTION("ue5m3_fp4_2d") { holds<ms::ue5m3_fp4_2d>(); }
  SECTION("ue5m3_fp4_b32") { holds<ms::ue5m3_fp4_b32>(); }
  SECTION("ue5m3_fp4_exact") { holds<ms::ue5m3_fp4_exact>(); }
}

TEST_CASE("single-level schemes") {
  SECTION("nvfp4_single") { holds<ms::nvfp4_single>(); }
  SECTION("ue5m3_single") { holds<ms::ue5m3_single>(); }
  SECTION("ufp4") { holds<ms::ufp4>(); }
  SECTION("mxfp4") { holds<ms::mxfp4>(); }
  SECTION("mxfp4_even") { holds<ms::mxfp4_even>(); }
  SECTION("mxfp4_ceil") { holds<ms::mxfp4_ceil>(); }
  SECTION("mxfp6_e2m3") { holds<ms::mxfp6_e2m3>(); }
  SECTION("mxfp8_e4m3") { holds<ms::mxfp8_e4m3>(); }
  SECTION("mxfp8_e5m2_ceil") { holds<ms::mxfp8_e5m2_ceil>(); }
}

TEST_CASE("quantizing what was dequantized changes nothing") {
  CHECK(changed_by_requantizing<ms::mxfp4>(1, 1) == 0);
  CHECK(changed_by_requantizing<ms::mxfp8_e4m3>(1, 2) == 0);
  CHECK(changed_by_requantizing<ms::mxfp8_e5m2>(1, 3) == 0);
  CHECK(changed_by_requantizing<ms::nvfp4_single>(1, 4) == 0);
  CHECK(changed_by_requantizing<ms::ue5m3_single>(1, 5) == 0);
  CHECK(changed_by_requantizing<ms::nvfp4_exact>(4, 6) == 0);
  CHECK(changed_by_requantizing<ms::ue5m3_fp4_exact>(4, 7) == 0);
  CHECK(changed_by_requantizing<ms::ue5m3_fp4>(4, 8) == 0);
  CHECK(changed_by_requantizing<ms::nvfp4>(4, 9) == 0);
}
