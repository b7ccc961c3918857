// L. Tails, rows, empty and odd sizes.
#include "blocks.hpp"

#include <algorithm>
#include <microscale/host/executor.hpp>
#include <microscale/tensor/quantized.hpp>
#include <utility>

#include "support/tensors.hpp"

using namespace reports;
using tensors::index_t;

TEST_CASE("L1 blocks end with their row: a tail never shares a scale with the next row") {
  std::vector<float> x;
  for (const float unit : {1.0f, 0.5f}) {
    x.insert(x.end(), 16, 1.5f * unit);
    x.insert(x.end(), 4, 24.0f * (unit == 1.0f ? 1.0f : 0.25f));
  }
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(x, 2, 20));
  CHECK(q.scales() == std::vector<std::uint8_t>{0x28, 0x48, 0x20, 0x38});
  CHECK(q.codes() == std::vector<std::uint8_t>(20, 0x77));
  CHECK(ms::dequantize(q) == x);
  // For any width: a row alone is what it is among others.
  for (index_t cols = 1; cols <= 50; ++cols) {
    const auto m = tensors::difficult(3, cols, static_cast<std::uint64_t>(cols));
    const auto whole = tensors::read(tensors::to_nearest<ms::nvfp4_single>(ms::matrix(m, 3, cols)).view());
    tensors::plain parts;
    for (index_t r = 0; r < 3; ++r) {
      const auto row =
          tensors::read(tensors::to_nearest<ms::nvfp4_single>(ms::matrix(m.data() + r * cols, 1, cols)).view());
      parts.codes.insert(parts.codes.end(), row.codes.begin(), row.codes.end());
      parts.scales.insert(parts.scales.end(), row.scales.begin(), row.scales.end());
    }
    CHECK(whole == parts);
    CHECK(whole.scales.size() == static_cast<std::size_t>(3 * ((cols + 15) / 16)));
  }
}

TEST_CASE("L1 the amax of a tail is over the elements that exist") {
  // A large number just past the end of each row, inside the pitch.
  std::vector<float> x(2 * 24, 1e6f);
  for (index_t r = 0; r < 2; ++r) std::fill_n(&x[static_cast<std::size_t>(r * 24)], 20, 1.5f);
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(x.data(), 2, 20, 24));
  CHECK(q.scales() == std::vector<std::uint8_t>(4, 0x28));
}

TEST_CASE("L3 empty tensors succeed everywhere and write nothing (on the device: tests/device)") {
  const std::vector<float> x;
  std::vector<float> none;
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{0, 0}, {0, 16}, {16, 0}, {0, 1}, {1, 0}}) {
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      const auto q = tensors::to_nearest<ms::nvfp4>(ms::host{}, ms::matrix(x, rows, cols), {.axis = along});
      CHECK((q.codes().empty() && q.scales().empty()));
      CHECK(ms::dequantize(ms::host{}, q, along).empty());
      ms::fake_quantize_into<ms::nvfp4>(ms::host{}, ms::matrix(x, rows, cols), ms::matrix(none, rows, cols),
                                        {.axis = along});
    }
  }
}
