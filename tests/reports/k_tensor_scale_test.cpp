// K. Conventions of the tensor scale.
#include <algorithm>
#include <cmath>

#include "blocks.hpp"

#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/rescale.hpp>

#include "support/model.hpp"
#include "support/tensors.hpp"

using namespace reports;

namespace {

// A row of 4.0 under block scale 1.0 and what the scheme stores as `datum`.
template <class S>
float decoded_four(float datum) {
  ms::quantized<S> q(1, 16);
  std::fill_n(q.view().codes, 8, std::uint8_t{0x66});
  q.view().scales[0] = 0x38;
  *q.view().datum = datum;
  const float value = ms::dequantize(q)[5];
  // The factor of a GEMM says the same.
  CHECK(std::fabs(4 * q.decode_multiplier() / value - 1) < 1e-6f);
  return value;
}

}  // namespace

TEST_CASE("K1 what a tensor stores says its direction, and decoding follows it") {
  CHECK(decoded_four<ms::nvfp4_torchao>(0.25f) == 1.0f);
  CHECK(decoded_four<ms::nvfp4_modelopt>(0.25f) == 1.0f);
  CHECK(decoded_four<ms::nvfp4_exact>(0.25f) == 1.0f);
  CHECK(decoded_four<ms::nvfp4_compressed_tensors>(0.25f) == 16.0f);  // a divisor
  CHECK(decoded_four<ms::nvfp4>(672.0f) == 1.0f);                     // an amax: 672 / 2688 is 0.25
  using ms::tensor_datum;
  static_assert(ms::nvfp4::tensor_scale::stored == tensor_datum::reference);
  static_assert(ms::nvfp4_torchao::tensor_scale::stored == tensor_datum::decode);
  static_assert(ms::nvfp4_compressed_tensors::tensor_scale::stored == tensor_datum::encode);
  static_assert(ms::ue5m3_fp4::tensor_scale::stored == tensor_datum::decode);
}

TEST_CASE("K3 halves with two tensor scales are not merged by the larger one alone") {
  std::vector<float> left(16, 1.5f), right(16, 0.75f);
  left[0] = 2688, right[0] = 1344;  // tensor scales 1 and 0.5
  const auto a = tensors::to_nearest<ms::nvfp4_exact>(ms::matrix(left, 1, 16));
  auto b = tensors::to_nearest<ms::nvfp4_exact>(ms::matrix(right, 1, 16));
  CHECK((a.datum() == 1.0f && b.datum() == 0.5f));
  const std::vector<float> want = ms::dequantize(b);
  // Simply put under the other scale, the values double; folded into the block scales, they stay.
  const float own = b.datum();
  *b.view().datum = a.datum();
  CHECK(ms::dequantize(b)[0] == 2 * want[0]);
  *b.view().datum = own;
  CHECK(ms::rescale(b.view(), a.datum()) == 0);
  CHECK(ms::dequantize(b) == want);
  // Or each row keeps its own, in one tensor.
  std::vector<float> both = left;
  both.insert(both.end(), right.begin(), right.end());
  const auto q = tensors::to_nearest<ms::nvfp4_exact>(ms::matrix(both, 2, 16), {}, ms::scale_layout::linear, {1, 0});
  CHECK(q.data() == std::vector<float>{1.0f, 0.5f});
  const auto values = ms::dequantize(q);
  CHECK(std::vector<float>(values.begin() + 16, values.end()) == want);
}
