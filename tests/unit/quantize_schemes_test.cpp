// Whole-tensor quantization of every named scheme is its block functions, applied to each block: on both axes, for
// every shape, and with nothing written outside the matrix. Decoding is the block function too.
#include <catch2/catch_test_macros.hpp>
#include <microscale/conformance/named_schemes.hpp>
#include <microscale/tensor/quantize.hpp>
#include <string>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

struct shape {
  index_t rows, cols;
};
constexpr shape shapes[] = {{0, 0},  {0, 7},  {7, 0},   {1, 1},   {1, 16}, {1, 37},
                            {37, 1}, {2, 20}, {13, 17}, {33, 70}, {48, 64}};

// The decoded value of every element, by the definition.
template <class S>
std::vector<float> values(const plain& p, index_t rows, index_t cols) {
  std::vector<float> out(size(rows * cols));
  const ms::tensor_factors t =
      S::has_tensor_scale ? S::from_stored(ms::fp32::from_bits(p.datum[0])) : ms::tensor_factors{};
  const index_t grid_cols = (cols + S::block::columns - 1) / S::block::columns;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; ++k) {
      const index_t block = r / S::block::rows * grid_cols + k / S::block::columns;
      out[size(r * cols + k)] =
          ms::decode_element<S>(static_cast<typename S::element::storage>(p.codes[size(r * cols + k)]),
                                static_cast<typename S::scale::storage>(p.scales[size(block)]), t);
    }
  }
  return out;
}

template <class S>
std::string wrong_shapes() {
  std::string found;
  for (const shape& s : shapes) {
    const std::vector<float> x = difficult(s.rows, s.cols, static_cast<std::uint64_t>(s.rows * 100 + s.cols));
    const std::vector<float> turned = transposed(x, s.rows, s.cols);
    const ms::matrix_view<const float> in = ms::matrix(x.data(), s.rows, s.cols);
    for (const bool along_rows : {true, false}) {
      const index_t rows = along_rows ? s.rows : s.cols, cols = along_rows ? s.cols : s.rows;
      const std::vector<float>& stored = along_rows ? x : turned;
      const auto say = [&](const char* what) {
        found += std::string(what) + " at " + std::to_string(s.rows) + " x " + std::to_string(s.cols) +
                 (along_rows ? " along rows; " : " along columns; ");
      };
      const float reference = along_rows ? largest_magnitude(x) : 0.37f;  // its own amax, then one that is too small
      const plain want = by_blocks<S>(stored, rows, cols, reference);

      guarded<S> out(rows, cols, along_rows ? 0 : 3);
      ms::quantize_options options{.axis = along_rows ? ms::axis::row : ms::axis::col};
      if (!along_rows) options.reference = &reference;
      ms::quantize_with(backwards{}, in, out.view(), ms::nearest_even{}, options);
      if (read(out.view()) != want) say("other codes, scales or datum");
      if (out.spilled()) say("written outside");

      const std::vector<float> expected = values<S>(want, rows, cols);
      std::vector<float> back(x.size());
      ms::dequantize_into(backwards{}, out.view(), ms::matrix(back, s.rows, s.cols), options.axis);
      if (different(back, along_rows ? expected : transposed(expected, rows, cols)) != 0) say("other values");
    }
  }
  return found;
}

}  // namespace

TEST_CASE("every named scheme: a whole tensor is its blocks") {
  int schemes = 0;
  ms::conformance::visit_named_schemes([&]<class S>(const char* name) {
    INFO(name);
    CHECK(wrong_shapes<S>() == "");
    ++schemes;
  });
  CHECK(wrong_shapes<ms::ue5m3_fp4_scale_first>() == "");
  CHECK(schemes == 32);
}
