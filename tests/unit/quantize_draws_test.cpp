// Stochastic rounding of whole tensors: each element has draws of its own, by its position as stored, and nobody who
// splits the work can change them.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/block/schemes.hpp>
#include <microscale/host/executor.hpp>
#include <microscale/tensor/quantize.hpp>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;
using midpoint = ms::stochastic_midpoint8;

namespace {

template <class S, class R, class Executor>
plain quantized_by(const Executor& executor, const std::vector<float>& x, index_t rows, index_t cols, R rounding,
                   ms::axis along = ms::axis::row) {
  const bool along_rows = along == ms::axis::row;
  guarded<S> out(along_rows ? rows : cols, along_rows ? cols : rows);
  ms::quantize_with(executor, ms::matrix(x, rows, cols), out.view(), rounding, {.axis = along});
  return read(out.view());
}

}  // namespace

TEST_CASE("the draw of an element is that of its position as stored, on both axes") {
  constexpr index_t rows = 37, cols = 83;
  const std::vector<float> x = difficult(rows, cols, 1), turned = transposed(x, rows, cols);
  const float a = largest_magnitude(x);
  const auto holds = [&]<class S, class R>(S, R rounding) {
    CHECK(quantized_by<S>(ms::sequential{}, x, rows, cols, rounding) == by_blocks<S>(x, rows, cols, a, rounding));
    CHECK(quantized_by<S>(backwards{7}, x, rows, cols, rounding, ms::axis::col) ==
          by_blocks<S>(turned, cols, rows, a, rounding));
  };
  holds(ms::ue5m3_fp4{}, midpoint{1, 2});
  holds(ms::nvfp4_2d{}, ms::stochastic_floor8{0, 0});
  holds(ms::mxfp8_e4m3{}, ms::stochastic_midpoint16{~std::uint64_t{0}, 5});
  holds(ms::nvfp4_4over6{}, ms::stochastic_midpoint32{9, ~std::uint64_t{0}});
}

TEST_CASE("a row starts at a multiple of sixteen draws, whatever its length") {
  // All elements half-way between 0.5 and 1: whether one rounds up is its draw's top bit.
  constexpr index_t rows = 5, cols = 21;
  std::vector<float> x(size(rows * cols), 0.75f);
  for (index_t r = 0; r < rows; ++r) x[size(r * cols)] = x[size(r * cols + 16)] = 6.0f;
  const midpoint rounding{11, 12};
  const plain p = quantized_by<ms::nvfp4_single>(ms::sequential{}, x, rows, cols, rounding);
  int wrong = 0, up = 0;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; ++k) {
      if (k % 16 == 0) continue;
      const unsigned drawn = ms::draw<8>(rounding.key(), static_cast<std::uint64_t>(r * 32 + k));
      wrong += p.codes[size(r * cols + k)] != (drawn >= 128 ? 2u : 1u);
      up += drawn >= 128;
    }
  }
  CHECK(wrong == 0);
  CHECK((up > 20 && up < 75));
}

TEST_CASE("one seed gives the same codes on one, two, three and sixteen threads") {
  constexpr index_t rows = 1100, cols = 500;  // enough work for sixteen
  const std::vector<float> x = difficult(rows, cols, 2);
  const midpoint rounding{.seed = 3, .stream = 4};
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    const bool along_rows = along == ms::axis::row;
    const auto in = ms::matrix(x, rows, cols);
    const auto run = [&](auto executor) {
      std::vector<std::uint8_t> memory(size(rows * cols));
      std::vector<std::uint8_t> scales(size(rows * cols));
      float datum = 0;
      const index_t r = along_rows ? rows : cols, c = along_rows ? cols : rows;
      const ms::quantized_view<ms::ue5m3_fp4> out{memory.data(), scales.data(), &datum, r, c,
                                                  (c + 1) / 2,   (c + 15) / 16};
      ms::quantize_with(executor, in, out, rounding, {.axis = along});
      scales.push_back(static_cast<std::uint8_t>(ms::fp32::bits(datum) >> 8));
      memory.insert(memory.end(), scales.begin(), scales.end());
      return memory;
    };
    const auto want = run(ms::sequential{});
    for (const int threads : {1, 2, 3, 16}) CHECK(run(ms::host{.threads = threads}) == want);
  }
}

TEST_CASE("another seed or another stream draws otherwise; seed zero is a seed") {
  std::vector<float> x(4096, 0.25f);
  for (std::size_t i = 0; i < x.size(); i += 16) x[i] = 6.0f;
  const auto codes = [&](std::uint64_t seed, std::uint64_t stream) {
    return quantized_by<ms::nvfp4_single>(ms::sequential{}, x, 1, 4096, midpoint{seed, stream}).codes;
  };
  const auto zero = codes(0, 0);
  CHECK(codes(0, 0) == zero);
  for (const auto& other :
       {codes(1, 0), codes(0, 1), codes(std::uint64_t{1} << 32, 0), codes(0, std::uint64_t{1} << 63)}) {
    int apart = 0;
    for (std::size_t i = 0; i < zero.size(); ++i) apart += zero[i] != other[i];
    CHECK((apart > 1500 && apart < 2400));  // 3840 elements, each apart with probability a half
  }
}
