// Several tensor scales in one matrix: each tile is what a tensor of its own would be, and a GEMM applies each.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/block/schemes.hpp>
#include <microscale/host/vendor_gemm.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/metrics.hpp>
#include <microscale/tensor/quantized.hpp>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

// Rows of very different size.
std::vector<float> uneven(index_t rows, index_t cols, std::uint64_t seed) {
  std::vector<float> x = difficult(rows, cols, seed);
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c)
      x[size(r * cols + c)] *= std::exp2(static_cast<float>((r * 7 + c / 16) % 20 - 10));
  }
  return x;
}

// Quantizes tile by tile, each as a matrix of its own, and puts the parts together.
template <class S>
plain tile_by_tile(const std::vector<float>& x, index_t rows, index_t cols, ms::tensor_tile tile) {
  const index_t height = tile.rows == 0 ? rows : tile.rows, width = tile.cols == 0 ? cols : tile.cols;
  const index_t grid_cols = (cols + S::block::columns - 1) / S::block::columns;
  const index_t grid_rows = (rows + S::block::rows - 1) / S::block::rows;
  plain p{std::vector<unsigned>(x.size()), std::vector<std::uint32_t>(size(grid_rows * grid_cols)), {}};
  for (index_t r0 = 0; r0 < rows; r0 += height) {
    for (index_t k0 = 0; k0 < cols; k0 += width) {
      const index_t h = std::min(height, rows - r0), w = std::min(width, cols - k0);
      std::vector<float> part;
      for (index_t r = r0; r < r0 + h; ++r)
        part.insert(part.end(), &x[size(r * cols + k0)], &x[size(r * cols + k0)] + w);
      const plain one = by_blocks<S>(part, h, w, largest_magnitude(part));
      for (index_t r = 0; r < h; ++r) {
        for (index_t k = 0; k < w; ++k) p.codes[size((r0 + r) * cols + k0 + k)] = one.codes[size(r * w + k)];
      }
      const index_t part_cols = (w + S::block::columns - 1) / S::block::columns;
      for (std::size_t i = 0; i < one.scales.size(); ++i) {
        const index_t br = r0 / S::block::rows + static_cast<index_t>(i) / part_cols;
        const index_t bc = k0 / S::block::columns + static_cast<index_t>(i) % part_cols;
        p.scales[size(br * grid_cols + bc)] = one.scales[i];
      }
      p.datum.push_back(one.datum[0]);
    }
  }
  return p;
}

template <class S>
void is_tile_by_tile(index_t rows, index_t cols, ms::tensor_tile tile) {
  const std::vector<float> x = uneven(rows, cols, 1), turned = transposed(x, rows, cols);
  const auto q = tensors::to_nearest<S>(backwards{}, ms::matrix(x, rows, cols), {}, ms::scale_layout::linear, tile);
  CHECK(read(q.view()) == tile_by_tile<S>(x, rows, cols, tile));
  // The tile is one of the matrix as stored, on the other axis too.
  const auto t =
      tensors::to_nearest<S>(ms::matrix(turned, cols, rows), {.axis = ms::axis::col}, ms::scale_layout::linear, tile);
  CHECK(read(t.view()) == read(q.view()));
  // Decoded as the parts would be.
  const std::vector<float> values = ms::dequantize(q);
  const plain p = read(q.view());
  int wrong = 0;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; ++k) {
      const index_t i = q.view().tile_index(r, k);
      const float want = ms::decode_element<S>(q.view().code(r, k), q.view().scale(r, k),
                                               S::from_stored(ms::fp32::from_bits(p.datum[size(i)])));
      wrong += ms::fp32::bits(values[size(r * cols + k)]) != ms::fp32::bits(want);
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("a tensor scale per row, per column strip and per tile") {
  is_tile_by_tile<ms::nvfp4>(7, 50, {1, 0});
  is_tile_by_tile<ms::nvfp4>(7, 50, {3, 0});
  is_tile_by_tile<ms::nvfp4>(7, 50, {0, 32});
  is_tile_by_tile<ms::nvfp4>(70, 33, {0, 16});  // more rows than columns, and rows are not divided
  is_tile_by_tile<ms::ue5m3_fp4>(9, 70, {2, 16});
  is_tile_by_tile<ms::ue5m3_fp4_2d>(40, 50, {16, 32});
  is_tile_by_tile<ms::nvfp4_compressed_tensors>(5, 33, {1, 0});
}

TEST_CASE("references given one for each tile") {
  const std::vector<float> x = uneven(3, 32, 2);
  const float references[3] = {1.0f, 2.0f, 4.0f};
  const auto q =
      tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 3, 32), {.reference = references}, ms::scale_layout::linear, {1, 0});
  CHECK(q.data() == std::vector<float>{1.0f, 2.0f, 4.0f});
  for (index_t r = 0; r < 3; ++r) {
    const std::vector<float> row(&x[size(r * 32)], &x[size(r * 32)] + 32);
    const plain want = by_blocks<ms::nvfp4>(row, 1, 32, references[r]);
    for (index_t k = 0; k < 32; ++k) CHECK(q.view().code(r, k) == want.codes[size(k)]);
  }
}

TEST_CASE("an empty matrix with tiles, on both axes") {
  const std::vector<float> nothing;
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    for (const auto& [rows, cols] : {std::pair<index_t, index_t>{0, 40}, {40, 0}}) {
      const auto q = tensors::to_nearest<ms::nvfp4>(ms::matrix(nothing, rows, cols), {.axis = along},
                                                    ms::scale_layout::linear, {1, 0});
      CHECK(q.codes().empty());
      CHECK(q.data() == std::vector<float>(static_cast<std::size_t>(std::max<index_t>(1, q.rows())), 0.0f));
    }
  }
}

TEST_CASE("turning a tensor of square blocks turns its tiles") {
  const std::vector<float> x = uneven(40, 50, 3);
  const auto q = tensors::to_nearest<ms::nvfp4_2d>(ms::matrix(x, 40, 50), {}, ms::scale_layout::linear, {16, 32});
  const auto t = ms::transpose(q);
  CHECK(t.view().tile == ms::tensor_tile{32, 16});
  CHECK(read(t.view()) == tile_by_tile<ms::nvfp4_2d>(transposed(x, 40, 50), 50, 40, {32, 16}));
}

// How many outputs of a GEMM, exact and by the vendor, are not the unscaled sum times the one factor of their row and
// column.
int wrongly_scaled(ms::tensor_tile of_a, ms::tensor_tile of_b) {
  const std::vector<float> x = uneven(5, 48, 4), w = uneven(6, 48, 5);
  const auto a = tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 5, 48), {}, ms::scale_layout::linear, of_a);
  const auto b = tensors::to_nearest<ms::ue5m3_fp4>(ms::matrix(w, 6, 48), {}, ms::scale_layout::linear, of_b);
  const auto c = ms::gemm(a, b);
  const auto by_vendor = ms::gemm<ms::vendor>(backwards{}, a, b);
  int wrong = 0;
  for (index_t i = 0; i < 5; ++i) {
    for (index_t j = 0; j < 6; ++j) {
      const float sum = ms::exact_f32::dot<ms::nvfp4, ms::ue5m3_fp4>(a.view(), i, b.view(), j);
      const float da = ms::nvfp4::decode_multiplier(a.data()[size(of_a.rows == 0 ? 0 : i / of_a.rows)]);
      const float db = ms::ue5m3_fp4::decode_multiplier(b.data()[size(of_b.rows == 0 ? 0 : j / of_b.rows)]);
      const float want = model::mul(sum, model::mul(da, db));
      wrong += ms::fp32::bits(c[size(i * 6 + j)]) != ms::fp32::bits(want);
      wrong += std::fabs(by_vendor[size(i * 6 + j)] - want) > 1e-4f * std::fabs(want) + 1e-30f;
    }
  }
  return wrong;
}

TEST_CASE("a GEMM applies the tensor scale of the output's row and column, whichever operand has several") {
  CHECK(wrongly_scaled({1, 0}, {2, 0}) == 0);
  CHECK(wrongly_scaled({1, 0}, {}) == 0);
  CHECK(wrongly_scaled({}, {2, 0}) == 0);
  CHECK(wrongly_scaled({}, {}) == 0);
}

TEST_CASE("an alpha of the caller's replaces all tensor scales") {
  const std::vector<float> x = uneven(5, 48, 4), w = uneven(6, 48, 5);
  const auto a = tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 5, 48), {}, ms::scale_layout::linear, {1, 0});
  const auto b = tensors::to_nearest<ms::ue5m3_fp4>(ms::matrix(w, 6, 48), {}, ms::scale_layout::linear, {2, 0});
  const auto doubled = ms::gemm(a, b, {.alpha = 2.0f});
  CHECK(doubled[7] == 2 * ms::exact_f32::dot<ms::nvfp4, ms::ue5m3_fp4>(a.view(), 1, b.view(), 1));
}

TEST_CASE("tensor scales that change along K are refused by a GEMM") {
  const std::vector<float> x = uneven(4, 64, 6);
  const auto whole = tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 4, 64));
  const auto along_k = tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 4, 64), {}, ms::scale_layout::linear, {0, 32});
  CHECK(says(message_of([&] { ms::gemm(along_k, whole); }),
             "tensor scales of GEMM operand A: expected tiles of whole rows, got 0 x 32"));
  CHECK(says(message_of([&] { ms::gemm(whole, along_k); }), "tensor scales of GEMM operand B"));
  CHECK(says(message_of([&] { ms::gemm<ms::vendor>(whole, along_k); }), "tensor scales of GEMM operand B"));
}

TEST_CASE("metrics measure each tile under its own scale") {
  const std::vector<float> x = uneven(6, 64, 7);
  const auto rows = tensors::to_nearest<ms::nvfp4>(ms::matrix(x, 6, 64), {}, ms::scale_layout::linear, {1, 0});
  ms::quantization_metrics sum;
  for (index_t r = 0; r < 6; ++r) {
    const auto in = ms::matrix(x.data() + r * 64, 1, 64);
    sum += ms::measure(in, tensors::to_nearest<ms::nvfp4>(in).view());
  }
  const ms::quantization_metrics m = ms::measure(ms::matrix(x, 6, 64), rows.view());
  CHECK((m.noise == sum.noise || std::fabs(m.noise / sum.noise - 1) < 1e-12));
  CHECK((m.largest_error == sum.largest_error && m.blocks == 24 && m.underflowed_scales == sum.underflowed_scales));

  // Strips of columns that are 2^10 apart, every number a code of its own strip: nothing is lost.
  std::vector<float> strips(3 * 48);
  for (std::size_t i = 0; i < strips.size(); ++i) {
    strips[i] = (i % 5 == 0 ? 6.0f : 1.5f) * std::exp2(static_cast<float>(i % 48 / 16) * 10.0f);
  }
  const auto by_strip =
      tensors::to_nearest<ms::nvfp4_exact>(ms::matrix(strips, 3, 48), {}, ms::scale_layout::linear, {0, 16});
  const ms::quantization_metrics exact = ms::measure(ms::matrix(strips, 3, 48), by_strip.view());
  CHECK((exact.noise <= 1e-12 * exact.signal && exact.saturated_blocks == 0 && exact.underflowed_scales == 0));
}
