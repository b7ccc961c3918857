// Moving a tensor under another tensor scale: exact by powers of two, to the nearest scale otherwise, counted honestly.
#include <microscale/tensor/rescale.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <microscale/block/schemes.hpp>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

template <class S>
guarded<S> quantized(const std::vector<float>& x, index_t rows, index_t cols, float reference) {
  guarded<S> q(rows, cols, 2);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{},
                    {.reference = &reference});
  return q;
}

template <class S>
std::vector<float> values(guarded<S>& q) {
  std::vector<float> y(size(q.view().rows * q.view().cols));
  ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(y, q.view().rows, q.view().cols));
  return y;
}

}  // namespace

TEST_CASE("by powers of two nothing changes but the scales") {
  std::vector<float> x(3 * 40);
  adversarial::numbers random(1);
  for (float& v : x) v = static_cast<float>(random.normal());
  const auto holds = [&]<class S>(S, float factor) {
    auto q = quantized<S>(x, 3, 40, 8.0f);
    const plain before = read(q.view());
    const std::vector<float> old = values(q);
    const float datum = *q.view().datum * factor;
    CHECK(ms::rescale(q.view(), datum) == 0);
    CHECK(*q.view().datum == datum);
    CHECK(read(q.view()).codes == before.codes);
    CHECK(read(q.view()).scales != before.scales);
    CHECK(different(values(q), old) == 0);
    CHECK(!q.spilled());
    // And back again: the tensor that it was.
    CHECK(ms::rescale(q.view(), datum / factor) == 0);
    CHECK(read(q.view()) == before);
  };
  holds(ms::nvfp4{}, 2.0f);
  holds(ms::nvfp4{}, 0.5f);
  holds(ms::ue5m3_fp4{}, 4.0f);
  holds(ms::nvfp4_compressed_tensors{}, 0.25f);
  holds(ms::nvfp4_exact{}, 2.0f);
}

TEST_CASE("otherwise each scale is the nearest to s D / D', and those that moved in value are counted") {
  const std::vector<float> x = difficult(7, 100, 2);
  auto q = quantized<ms::nvfp4_torchao>(x, 7, 100, 5.0f);
  const plain before = read(q.view());
  const float from = *q.view().datum, to = from * 1.3f;
  const std::int64_t changed = ms::rescale(q.view(), to);
  const plain after = read(q.view());
  std::int64_t moved = 0;
  int wrong = 0;
  for (std::size_t i = 0; i < before.scales.size(); ++i) {
    // s D has 28 bits: exact in binary64, and so are D' and its products with midpoints.
    const double numerator = model::magnitude(model::ue4m3, before.scales[i]) * static_cast<double>(from);
    wrong += after.scales[i] != model::round_quotient(model::ue4m3, numerator, static_cast<double>(to), false,
                                                      model::rounding::nearest_even, 0);
    moved += model::magnitude(model::ue4m3, after.scales[i]) * static_cast<double>(to) != numerator;
  }
  CHECK(wrong == 0);
  CHECK(moved == changed);
  CHECK(changed > 0);
}

TEST_CASE("scales that leave the range saturate or vanish, and are counted; a NaN stays") {
  std::vector<float> x(48, 1.0f);
  x[0] = 6.0f, x[16] = 6.0f;
  x[33] = std::numeric_limits<float>::quiet_NaN();
  auto q = quantized<ms::nvfp4_exact>(x, 1, 48, 6.0f);  // scales 448 and NaN
  CHECK((q.view().scales[0] == 0x7E && q.view().scales[2] == 0x7F));
  const float datum = *q.view().datum;
  CHECK(ms::rescale(q.view(), datum / 2) == 2);
  CHECK((q.view().scales[0] == 0x7E && q.view().scales[1] == 0x7E && q.view().scales[2] == 0x7F));
  CHECK(ms::rescale(q.view(), datum * 0x1p40f) == 2);
  CHECK((q.view().scales[0] == 0 && q.view().scales[2] == 0x7F));

  // E8M0 has no zero: what falls below 2^-127 stays there, every rounding alike, and has moved all the same.
  auto powers = quantized<ms::mxfp4_folded>(x, 1, 32, 1.0f);
  powers.view().scales[0] = 1;
  const float sixth = *powers.view().datum;
  CHECK((ms::rescale(powers.view(), sixth * 2) == 0 && powers.view().scales[0] == 0));
  CHECK((ms::rescale(powers.view(), sixth * 4) == 1 && powers.view().scales[0] == 0));
  powers.view().scales[0] = 0xFE;
  CHECK((ms::rescale(powers.view(), sixth * 2) == 1 && powers.view().scales[0] == 0xFE));
}

TEST_CASE("two halves under different tensor scales join under the larger one") {
  std::vector<float> x(16, 1.5f), w(16, 0.75f);
  x[0] = 6.0f, w[0] = 3.0f;
  auto a = quantized<ms::nvfp4>(x, 1, 16, 6.0f), b = quantized<ms::nvfp4>(w, 1, 16, 3.0f);
  const std::vector<float> old = values(b);
  CHECK(ms::rescale(b.view(), *a.view().datum) == 0);
  CHECK(different(values(b), old) == 0);
  CHECK(*b.view().datum == 6.0f);
}

TEST_CASE("data that are no tensor scale, and tensors with several, are refused") {
  const std::vector<float> x = difficult(2, 32, 3);
  auto q = quantized<ms::ue5m3_fp4>(x, 2, 32, 1.0f);
  const plain before = read(q.view());
  for (const float bad :
       {0.0f, -0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(
        says(message_of([&] { ms::rescale(q.view(), bad); }), "tensor scale datum: expected a positive finite number"));
  }
  auto several = q.view();
  several.tile = {1, 0};
  CHECK(says(message_of([&] { ms::rescale(several, 1.0f); }), "tensor to rescale: expected one tensor scale"));
  CHECK(read(q.view()) == before);
  // 1e-45 is an encode multiplier whose decode multiplier is infinite: scales must not become NaN by it.
  auto encoded = quantized<ms::nvfp4_compressed_tensors>(x, 2, 32, 1.0f);
  const plain as_it_was = read(encoded.view());
  CHECK(says(message_of([&] { ms::rescale(encoded.view(), 1e-45f); }), "decode multipliers of the tensor scales"));
  CHECK(read(encoded.view()) == as_it_was);
}
