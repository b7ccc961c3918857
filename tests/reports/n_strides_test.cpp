// N. Strided and transposed data.
#include "blocks.hpp"

#include <array>
#include <microscale/tensor/quantized.hpp>
#include <utility>

#include "support/tensors.hpp"

using namespace reports;
using tensors::index_t;

TEST_CASE("N1 a transposed reading of a matrix is an option, and it is honoured") {
  std::vector<float> x(32);  // 16 x 2: a column of 6, 0.5, ... and one of 96, 8, ...
  for (std::size_t i = 0; i < 16; ++i) x[2 * i] = 0.5f, x[2 * i + 1] = 8.0f;
  x[0] = 6.0f, x[1] = 96.0f;
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(x, 16, 2), {.axis = ms::axis::col});
  CHECK((q.rows() == 2 && q.cols() == 16));
  CHECK(q.scales() == std::vector<std::uint8_t>{0x38, 0x58});
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(q.codes()[8 * r] == 0x17);
    for (std::size_t i = 1; i < 8; ++i) CHECK(q.codes()[8 * r + i] == 0x11);
  }
  CHECK(ms::dequantize(q, ms::axis::col) == x);
}

TEST_CASE("N1 rows apart: part of a matrix is quantized as if it were copied out") {
  const auto big = tensors::difficult(20, 90, 1);
  for (const auto& [row, col, rows, cols] :
       {std::array<index_t, 4>{3, 7, 5, 33}, {0, 0, 20, 16}, {19, 89, 1, 1}, {2, 50, 17, 40}}) {
    std::vector<float> copy;
    for (index_t r = row; r < row + rows; ++r) {
      const auto from = big.begin() + r * 90 + col;
      copy.insert(copy.end(), from, from + cols);
    }
    const auto part = ms::matrix(big.data() + row * 90 + col, rows, cols, 90);
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      const auto a = tensors::to_nearest<ms::ue5m3_fp4>(part, {.axis = along});
      const auto b = tensors::to_nearest<ms::ue5m3_fp4>(ms::matrix(std::as_const(copy), rows, cols), {.axis = along});
      CHECK(tensors::read(a.view()) == tensors::read(b.view()));
    }
  }
}

TEST_CASE("N3 quantizing down the columns is quantizing the copied transpose, bit for bit") {
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{2, 16}, {16, 2}, {33, 50}, {1, 40}, {40, 1}}) {
    const auto x = tensors::difficult(rows, cols, 2), t = tensors::transposed(x, rows, cols);
    const auto a = ms::quantize<ms::ue5m3_fp4>(ms::matrix(x, rows, cols),
                                               {.axis = ms::axis::col, .rounding = ms::stochastic_midpoint8{3, 4}});
    const auto b = ms::quantize<ms::ue5m3_fp4>(ms::matrix(t, cols, rows), {.rounding = ms::stochastic_midpoint8{3, 4}});
    CHECK((a.codes() == b.codes() && a.scales() == b.scales() && a.datum() == b.datum()));
    // The round trip along the other axis is as good: no 500 times the error.
    const auto y = ms::dequantize(a, ms::axis::col);
    CHECK(tensors::different(tensors::transposed(y, rows, cols), ms::dequantize(b)) == 0);
  }
}
