// Rules made from rules, against the search or the rounding done by hand with the model's formats.
#include <microscale/block/rule_adaptors.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace ms = microscale;

namespace {

template <class Rule>
using under = ms::scheme<ms::e2m1, ms::ue4m3, ms::block<1, 16>, Rule>;

const model::scheme single{.how = model::rule::single};

template <class S>
ms::quantized_block<S> quantized(const std::vector<float>& x) {
  float in[16];
  std::copy(x.begin(), x.end(), in);
  return ms::quantize_block<S>(in, 1.0f);
}

float amax_of(const std::vector<float>& x) {
  float a = 0;
  for (const float v : x) a = std::fmax(a, std::fabs(v));
  return a;
}

// What a block becomes under a scale, and how far that is from it.
struct attempt {
  std::vector<unsigned> codes;
  float squared = 0, absolute = 0;
};
attempt under_scale(const std::vector<float>& x, unsigned scale) {
  attempt a;
  const float s = model::decode(model::ue4m3, scale);
  for (const float v : x) {
    a.codes.push_back(model::encode(model::e2m1, s == 0 ? std::copysign(0.0f, v) : model::div(v, s)));
    const float d = model::add(model::mul(model::decode(model::e2m1, a.codes.back()), s), -v);
    a.squared = model::add(a.squared, model::mul(d, d));
    a.absolute = model::add(a.absolute, std::fabs(d));
  }
  return a;
}

template <class S>
int wrong_searches(const std::vector<int>& offsets, bool is_squared) {
  int wrong = 0, moved = 0;
  for (const adversarial::block& b : adversarial::blocks(single, 16, 1400, 3)) {
    const unsigned base = model::encode(model::ue4m3, model::div(amax_of(b.values), 6.0f));
    unsigned best = base;
    attempt least = under_scale(b.values, base);
    for (const int offset : offsets) {
      const auto scale = static_cast<unsigned>(std::clamp(static_cast<int>(base) + offset, 0, 0x7E));
      const attempt other = under_scale(b.values, scale);
      if (is_squared ? other.squared < least.squared : other.absolute < least.absolute) least = other, best = scale;
    }
    const auto got = quantized<S>(b.values);
    wrong += got.scale != best || !std::equal(least.codes.begin(), least.codes.end(), std::begin(got.codes));
    moved += best != base;
  }
  CHECK(moved > 50);  // the search finds something
  return wrong;
}

}  // namespace

TEST_CASE("a search tries the neighbours of the rule's scale, nearest and lower first") {
  using ms::absolute_error;
  using ms::amax_over_max;
  using ms::squared_error;
  CHECK(wrong_searches<under<ms::search_scale<amax_over_max, squared_error, 1, 1>>>({-1, 1}, true) == 0);
  CHECK(wrong_searches<under<ms::search_scale<amax_over_max, absolute_error, 3, 1>>>({-1, 1, -2, -3}, false) == 0);
  CHECK(wrong_searches<under<ms::search_scale<amax_over_max, squared_error, 0, 2>>>({1, 2}, true) == 0);
  CHECK(wrong_searches<under<ms::search_scale<amax_over_max, squared_error, 2, 3>>>({-1, 1, -2, 2, 3}, true) == 0);
}

TEST_CASE("a scale rounded up is the first one under which nothing clips") {
  using rule = ms::amax_over_max_rounded<ms::toward_positive>;
  int wrong = 0;
  for (const adversarial::block& b : adversarial::blocks(single, 16, 1400, 4)) {
    const float ideal = model::div(amax_of(b.values), 6.0f);
    unsigned scale = 0;
    while (scale < 0x7E && model::decode(model::ue4m3, scale) < ideal) ++scale;
    wrong += quantized<under<rule>>(b.values).scale != scale;
  }
  CHECK(wrong == 0);
}

TEST_CASE("headroom is room above the largest element") {
  using rule = ms::with_headroom<ms::amax_over_max, 17, 16>;
  int wrong = 0, moved = 0;
  for (const adversarial::block& b : adversarial::blocks(single, 16, 1400, 5)) {
    const float a = amax_of(b.values);
    const unsigned scale = model::encode(model::ue4m3, model::div(model::mul(a, 1.0625f), 6.0f));
    wrong += quantized<under<rule>>(b.values).scale != scale;
    moved += scale != model::encode(model::ue4m3, model::div(a, 6.0f));
  }
  CHECK(wrong == 0);
  CHECK(moved > 50);
}
