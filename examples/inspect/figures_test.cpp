// What the program measures tile by tile, on threads, is what measuring the whole matrix says.
#include <microscale/host/executor.hpp>
#include <microscale/tensor/metrics.hpp>
#include <microscale/tensor/quantized.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "work.hpp"

namespace {

using namespace inspect;

// Several tiles of rows, the last of them short, and tails of blocks.
constexpr index_t rows = 133, cols = 6011;

std::vector<float> numbers() {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  std::uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = std::ldexp(static_cast<float>(static_cast<int>(state >> 16) - 32768), -static_cast<int>(state >> 28));
  }
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[70 * cols] = -std::numeric_limits<float>::infinity();
  return x;
}

item item_of(const std::vector<float>& x, ms::interop::stored_tensor& t) {
  t.name = "x.weight";
  t.type = ms::interop::stored_type::f32;
  t.shape = {rows, cols};
  t.bytes = {reinterpret_cast<const std::uint8_t*>(x.data()), x.size() * sizeof(float)};
  item it;
  it.name = t.name;
  it.stored = storage::plain;
  it.shape = t.shape;
  it.rows = rows;
  it.cols = cols;
  it.parts = {&t};
  return it;
}

template <class S>
ms::quantization_metrics of_whole(const std::vector<float>& x, float amax) {
  ms::quantized<S> q(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{}, {.reference = &amax});
  return ms::measure(ms::matrix(x, rows, cols), q.view());
}

// Sums of the same numbers, none negative, in two orders: each of fewer additions than there are blocks and rows.
bool near(double a, double b) {
  constexpr double additions = rows * (cols / 16 + 2), unit = 0x1p-53;
  return std::fabs(a - b) <= 2.0 * additions * unit * std::fmax(a, b);
}

void check_same(const ms::quantization_metrics& a, const ms::quantization_metrics& b) {
  CHECK(near(a.signal, b.signal));
  CHECK(near(a.noise, b.noise));
  CHECK(a.largest_error == b.largest_error);
  CHECK((a.elements == b.elements && a.blocks == b.blocks));
  CHECK((a.underflowed_scales == b.underflowed_scales && a.saturated_blocks == b.saturated_blocks));
  CHECK((a.nonfinite_blocks == b.nonfinite_blocks && a.nan_scales == b.nan_scales));
  CHECK(a.worst_ratio == b.worst_ratio);
  CHECK((a.worst_row == b.worst_row && a.worst_col == b.worst_col));
}

}  // namespace

TEST_CASE("figures of tiles add up to those of the matrix") {
  const std::vector<float> x = numbers();
  ms::interop::stored_tensor t;
  const item it = item_of(x, t);
  REQUIRE(tiles_of(rows, cols).size() > 3);
  const float amax = find_amax(ms::host{.threads = 2}, it);
  float largest = 0.0f;
  for (const float v : x) {
    if (std::isfinite(v)) largest = std::fmax(largest, std::fabs(v));
  }
  CHECK(amax == largest);

  const std::vector<const scheme*> schemes = {find_scheme("nvfp4"), find_scheme("nvfp4_2d"), find_scheme("mxfp4")};
  const auto measured = measure(ms::host{.threads = 2}, it, schemes, amax, false);
  check_same(measured[0].metrics, of_whole<ms::nvfp4>(x, amax));
  check_same(measured[1].metrics, of_whole<ms::nvfp4_2d>(x, amax));
  check_same(measured[2].metrics, of_whole<ms::mxfp4>(x, amax));
}
