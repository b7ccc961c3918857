// R. The reference GEMM.
#include <algorithm>

#include "blocks.hpp"

#include <microscale/host/vendor_gemm.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/quantized.hpp>

#include "support/tensors.hpp"

using namespace reports;
using tensors::index_t;

TEST_CASE("R1 scales are decoded on every path: M and N from 1 to 9 against decoding, then multiplying") {
  ms::quantized<ms::mxfp4> a(1, 32), b(1, 32);
  std::fill_n(a.view().codes, 16, std::uint8_t{0x22});
  std::fill_n(b.view().codes, 16, std::uint8_t{0x22});
  a.view().scales[0] = 126, b.view().scales[0] = 127;
  CHECK(ms::gemm(a, b) == std::vector<float>{16.0f});
  CHECK(ms::gemm<ms::vendor>(a, b) == std::vector<float>{16.0f});
  for (index_t m = 1; m <= 9; ++m) {
    for (index_t n = 1; n <= 9; ++n) {
      // Integers, so that every sum is exact in any order.
      std::vector<float> x, w;
      for (index_t i = 0; i < m * 40; ++i)
        x.push_back(static_cast<float>(i * 7 % 5 - 2) * (i / 32 % 2 == 0 ? 1.0f : 4.0f));
      for (index_t i = 0; i < n * 40; ++i)
        w.push_back(static_cast<float>(i * 5 % 7 - 3) * (i / 32 % 2 == 0 ? 2.0f : 0.5f));
      const auto qx = tensors::to_nearest<ms::mxfp4>(ms::matrix(x, m, 40)),
                 qw = tensors::to_nearest<ms::mxfp4>(ms::matrix(w, n, 40));
      const auto dx = ms::dequantize(qx), dw = ms::dequantize(qw);
      std::vector<float> want;
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < n; ++j) {
          double sum = 0;
          for (index_t k = 0; k < 40; ++k) {
            sum += static_cast<double>(dx[static_cast<std::size_t>(i * 40 + k)]) *
                   static_cast<double>(dw[static_cast<std::size_t>(j * 40 + k)]);
          }
          want.push_back(static_cast<float>(sum) + 0.0f);
        }
      }
      CHECK(ms::gemm<ms::exact_f32>(qx, qw) == want);
      CHECK(ms::gemm<ms::f32_blocks>(qx, qw) == want);
      CHECK(ms::gemm<ms::blackwell_k64>(qx, qw) == want);
      CHECK(ms::gemm<ms::vendor>(qx, qw) == want);
    }
  }
}

TEST_CASE("R3 scales of both operands run along K: one per row of A and of B, per block of K") {
  ms::quantized<ms::nvfp4_single> a(2, 16), b(2, 16);
  std::fill_n(a.view().codes, 16, std::uint8_t{0x22});
  std::fill_n(b.view().codes, 16, std::uint8_t{0x22});
  a.view().scales[0] = 0x38, a.view().scales[1] = 0x40;  // 1, 2
  b.view().scales[0] = 0x38, b.view().scales[1] = 0x48;  // 1, 4
  const std::vector<float> want = {16, 64, 32, 128};
  CHECK(ms::gemm(a, b) == want);
  CHECK(ms::gemm<ms::vendor>(a, b) == want);
  // And along K: two blocks, each with its own product of scales.
  ms::quantized<ms::nvfp4_single> c(1, 32), d(1, 32);
  std::fill_n(c.view().codes, 16, std::uint8_t{0x22});
  std::fill_n(d.view().codes, 16, std::uint8_t{0x22});
  c.view().scales[0] = 0x38, c.view().scales[1] = 0x40;
  d.view().scales[0] = 0x48, d.view().scales[1] = 0x38;
  CHECK(ms::gemm(c, d) == std::vector<float>{16 * 4 + 16 * 2});
}
