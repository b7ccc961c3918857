// The vendor GEMM: no bit promise, so its stated bound; the same bits whoever splits the work; every edge of its tiles.
#include <microscale/host/vendor_gemm.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/block/schemes.hpp>
#include <microscale/tensor/quantized.hpp>

#include "support/operands.hpp"
#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;
using operands::operand;

namespace {

template <class A, class B, class Executor>
std::vector<float> product(const Executor& executor, const operand<A>& a, const operand<B>& b,
                           const ms::gemm_options& options = {}) {
  std::vector<float> c(size(a.rows * b.rows), 99.0f);
  std::vector<std::byte> workspace(ms::gemm_workspace<ms::vendor>(executor, a.view(), b.view()));
  ms::gemm_into<ms::vendor>(executor, a.view(), b.view(), ms::matrix(c, a.rows, b.rows), options, std::span(workspace));
  return c;
}

// Outputs beyond |C - exact| <= k 2^-24 sum |a b| (1 + k 2^-24), alpha being 1.
template <class A, class B>
int beyond_bound(const operand<A>& a, const operand<B>& b) {
  const std::vector<float> c = product(backwards{}, a, b, {.alpha = 1.0f});
  int beyond = 0;
  for (index_t i = 0; i < a.rows; ++i) {
    for (index_t j = 0; j < b.rows; ++j) {
      double sum = 0, magnitude = 0;  // binary64: far more exact than the bound
      for (index_t k = 0; k < a.cols; ++k) {
        const std::size_t x = size(i * a.cols + k), y = size(j * a.cols + k);
        const double p = a.element[x] * a.scale[x] * b.element[y] * b.scale[y];
        sum += p;
        magnitude += std::fabs(p);
      }
      const double terms = static_cast<double>(a.cols) * 0x1p-24;
      beyond +=
          !(std::fabs(static_cast<double>(c[size(i * b.rows + j)]) - sum) <= terms * magnitude * (1 + terms) * 1.0001);
    }
  }
  return beyond;
}

}  // namespace

TEST_CASE("within the bound, for every edge of the tiles") {
  std::uint64_t seed = 1;
  for (const index_t m : {1, 2, 5, 6, 7, 13}) {
    for (const index_t n : {1, 8, 15, 17, 63, 65}) {
      for (const index_t k : {1, 16, 33}) {
        const operand<ms::nvfp4> a(m, k, seed++, 30);
        const operand<ms::nvfp4> b(n, k, seed++, 30);
        CHECK(beyond_bound(a, b) == 0);
      }
    }
  }
  CHECK(beyond_bound(operand<ms::ue5m3_fp4>(9, 1000, 1, 40), operand<ms::nvfp4>(20, 1000, 2)) == 0);
  CHECK(beyond_bound(operand<ms::mxfp4>(9, 100, 1, 30), operand<ms::mxfp4>(20, 100, 2, 30)) == 0);
  CHECK(beyond_bound(operand<ms::nvfp4>(9, 100, 1, 30), operand<ms::nvfp4>(5, 100, 2, 30)) == 0);
}

TEST_CASE("exact where every partial sum is: the decoded operands, their tails and square scales") {
  const operand<ms::ue5m3_fp4> a(7, 20, 1, 1);
  const operand<ms::nvfp4> b(18, 20, 2, 1);
  const auto c = product(ms::sequential{}, a, b, {.alpha = 0.5f});
  int wrong = 0;
  for (index_t i = 0; i < 7; ++i) {
    for (index_t j = 0; j < 18; ++j) {
      const float want = 0.5f * operands::model_dot(a, i, b, j, operands::order::exact);
      wrong += c[size(i * 18 + j)] != want;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the same bits on any number of threads") {
  const operand<ms::nvfp4> a(70, 200, 1, 30), b(300, 200, 2, 30);
  const auto want = product(ms::sequential{}, a, b);
  for (const int threads : {1, 2, 3, 16}) CHECK(different(product(ms::host{.threads = threads}, a, b), want) == 0);
  CHECK(different(product(backwards{9}, a, b), want) == 0);
}

TEST_CASE("a NaN scale poisons its row and its column, and nothing else") {
  operand<ms::mxfp4> a(7, 40, 1, 3), b(17, 40, 2, 3);
  a.scales[2 * 3 + 1] = 0xFF;
  b.scales[2 * 5] = 0xFF;
  const auto c = product(ms::sequential{}, a, b);
  int wrong = 0;
  for (index_t i = 0; i < 7; ++i) {
    for (index_t j = 0; j < 17; ++j) wrong += ms::fp32::is_nan(c[size(i * 17 + j)]) != (i == 3 || j == 5);
  }
  CHECK(wrong == 0);
}

TEST_CASE("empty operands, the output's pitch, the workspace") {
  const operand<ms::mxfp4> a(3, 0, 1), b(2, 0, 2), none(0, 0, 3);
  CHECK(different(product(ms::sequential{}, a, b), std::vector<float>(6, 0.0f)) == 0);
  CHECK(product(ms::sequential{}, none, b).empty());

  const operand<ms::mxfp4> x(3, 33, 1, 2), y(2, 33, 2, 2);
  const auto tight = product(ms::sequential{}, x, y);
  std::vector<float> c(12, 7.0f);
  std::vector<std::byte> workspace(ms::gemm_workspace<ms::vendor>(ms::sequential{}, x.view(), y.view()) + 3);
  // Memory that is not aligned for floats will do.
  ms::gemm_into<ms::vendor>(ms::sequential{}, x.view(), y.view(), ms::matrix(c.data(), 3, 2, 4), {},
                            std::span(workspace).subspan(3));
  for (std::size_t i = 0; i < 12; ++i) CHECK(c[i] == (i % 4 < 2 ? tight[i / 4 * 2 + i % 4] : 7.0f));
  c.assign(12, 7.0f);
  const std::string text = message_of([&] {
    ms::gemm_into<ms::vendor>(ms::sequential{}, x.view(), y.view(), ms::matrix(c, 3, 2), {},
                              std::span(workspace).subspan(4));
  });
  CHECK(says(text, "GEMM workspace: expected "));
  CHECK(c == std::vector<float>(12, 7.0f));
}
