// GEMM under its three exact accumulations, against sums of any width, for pairs of schemes, shapes, tails and scales.
#include <microscale/tensor/gemm.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <microscale/block/schemes.hpp>
#include <string>

#include "support/operands.hpp"
#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;
using operands::operand;
using operands::order;

namespace {

template <class P>
constexpr order order_of = std::is_same_v<P, ms::exact_f32>    ? order::exact
                           : std::is_same_v<P, ms::f32_blocks> ? order::blocks
                                                               : order::blackwell;

template <class P, class A, class B>
int wrong_outputs(const operand<A>& a, const operand<B>& b, float alpha) {
  std::vector<float> c(size(a.rows * b.rows), 99.0f);
  ms::gemm_into<P>(backwards{3}, a.view(), b.view(), ms::matrix(c, a.rows, b.rows));
  int wrong = 0;
  for (index_t i = 0; i < a.rows; ++i) {
    for (index_t j = 0; j < b.rows; ++j) {
      const float want = model::mul(operands::model_dot(a, i, b, j, order_of<P>), alpha);
      wrong += different({c[size(i * b.rows + j)]}, {want});
    }
  }
  return wrong;
}

// `alpha`: what the default must be for the data of the two operands.
template <class A, class B>
void holds(float datum_a = 1.0f, float datum_b = 1.0f, float alpha = 1.0f) {
  std::uint64_t seed = 1;
  for (const int spread : {3, 40, 0}) {
    for (const index_t k : {1, 5, 16, 17, 33, 64, 65, 130, 193}) {
      operand<A> a(k % 4 + 1, k, seed++, spread);
      operand<B> b(k % 3 + 2, k, seed++, spread);
      a.datum = datum_a;
      b.datum = datum_b;
      INFO("k " << k << ", spread " << spread);
      CHECK(wrong_outputs<ms::exact_f32>(a, b, alpha) == 0);
      CHECK(wrong_outputs<ms::f32_blocks>(a, b, alpha) == 0);
      CHECK(wrong_outputs<ms::blackwell_k64>(a, b, alpha) == 0);
    }
  }
}

}  // namespace

TEST_CASE("NVFP4 with itself, and the two tensor scales in one factor") {
  const auto decode = [](float amax) { return model::div(1.0f, model::div(2688.0f, amax)); };
  holds<ms::nvfp4, ms::nvfp4>(3.7f, 0.3f, model::mul(decode(3.7f), decode(0.3f)));
}
TEST_CASE("UE5M3 with squares") { holds<ms::ue5m3_fp4, ms::ue5m3_fp4_2d>(0.3f, 1.1f, model::mul(0.3f, 1.1f)); }
TEST_CASE("NVFP4 with MXFP4: runs of two lengths") { holds<ms::nvfp4, ms::mxfp4>(2688.0f); }
TEST_CASE("MXFP8 with MXFP8: the widest elements under the widest scales") { holds<ms::mxfp8_e5m2, ms::mxfp8_e4m3>(); }
TEST_CASE("binary32 scales with integers") { holds<ms::ufp4, ms::mxint8>(); }

TEST_CASE("M and N from 1 to 9, with a tail in K") {
  for (index_t m = 1; m <= 9; ++m) {
    for (index_t n = 1; n <= 9; ++n) {
      const operand<ms::mxfp4> a(m, 37, static_cast<std::uint64_t>(m), 5),
          b(n, 37, static_cast<std::uint64_t>(20 + n), 5);
      CHECK(wrong_outputs<ms::exact_f32>(a, b, 1.0f) == 0);
    }
  }
}

TEST_CASE("square blocks have one scale for all their rows") {
  const operand<ms::nvfp4_2d> a(35, 40, 1), b(18, 40, 2);
  CHECK(wrong_outputs<ms::f32_blocks>(a, b, [] {
          const float d = model::div(1.0f, model::div(2688.0f, 1.0f));
          return model::mul(d, d);
        }()) == 0);
}

TEST_CASE("K = 0 gives zeros, M = 0 or N = 0 nothing") {
  const operand<ms::mxfp4> a(3, 0, 1), b(2, 0, 2), none(0, 0, 3);
  std::vector<float> c(6, 5.0f);
  ms::gemm_into(ms::sequential{}, a.view(), b.view(), ms::matrix(c, 3, 2));
  CHECK(different(c, std::vector<float>(6, 0.0f)) == 0);
  c.assign(6, 5.0f);
  ms::gemm_into<ms::blackwell_k64>(ms::sequential{}, a.view(), none.view(), ms::matrix(c, 3, 0));
  CHECK(c == std::vector<float>(6, 5.0f));
}

TEST_CASE("alpha of the caller's; the output's pitch; a sum that cancels is +0") {
  operand<ms::mxfp4> a(2, 32, 1), b(2, 32, 2);
  std::vector<float> c(10, 7.0f);
  const ms::gemm_options options{.alpha = -0.75f};
  ms::gemm_into<ms::exact_f32>(ms::sequential{}, a.view(), b.view(), ms::matrix(c.data(), 2, 2, 5), options);
  for (const index_t i : {0, 1}) {
    for (const index_t j : {0, 1}) {
      const float want = model::mul(operands::model_dot(a, i, b, j, order::exact), -0.75f);
      CHECK(ms::fp32::bits(c[size(i * 5 + j)]) == ms::fp32::bits(want));
    }
  }
  CHECK((c[2] == 7.0f && c[4] == 7.0f && c[9] == 7.0f));
  // 6 * 6 - 6 * 6, and products of zeros of both signs.
  std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0xF7});
  std::fill(b.codes.begin(), b.codes.end(), std::uint8_t{0x77});
  CHECK(ms::fp32::bits(ms::exact_f32::dot(a.view(), 0, b.view(), 0)) == 0);
  CHECK(ms::fp32::bits(ms::blackwell_k64::dot(a.view(), 0, b.view(), 0)) == 0);
  std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0x88});
  CHECK(ms::fp32::bits(ms::exact_f32::dot(a.view(), 0, b.view(), 0)) == 0);
  CHECK(ms::fp32::bits(ms::f32_blocks::dot(a.view(), 0, b.view(), 0)) == 0);
}

TEST_CASE("a NaN scale or a NaN element poisons its row or column, zeros included, and nothing else") {
  operand<ms::mxfp8_e5m2> a(3, 64, 1, 2), b(3, 64, 2, 2);
  a.scales[2 + 1] = 0xFF;                                  // row 1, second block
  b.codes[2 * 64 + 5] = 0x7C;                              // row 2: an infinity
  for (index_t k = 32; k < 64; ++k) b.codes[size(k)] = 0;  // row 0: zeros against the NaN
  const auto check = [&]<class P>(P) {
    std::vector<float> c(9);
    ms::gemm_into<P>(ms::sequential{}, a.view(), b.view(), ms::matrix(c, 3, 3));
    for (std::size_t i = 0; i < 9; ++i) CHECK(ms::fp32::is_nan(c[i]) == (i / 3 == 1 || i % 3 == 2));
  };
  check(ms::exact_f32{});
  check(ms::f32_blocks{});
  check(ms::blackwell_k64{});
}

TEST_CASE("the accumulations differ where they should") {
  // Groups of 64 whose sums are 2^25 and 1: nearest keeps the even neighbour, toward zero drops what does not fit.
  operand<ms::mxfp4> a(1, 192, 1), b(1, 192, 2);
  std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0});
  std::fill(b.codes.begin(), b.codes.end(), std::uint8_t{0x22});  // 1
  std::fill(a.scales.begin(), a.scales.end(), std::uint8_t{127});
  std::fill(b.scales.begin(), b.scales.end(), std::uint8_t{127});
  a.codes[0] = 0x02, a.scales[0] = 127 + 24;  // 2^24 at k = 0
  a.codes[32] = 0x04;                         // 2 at k = 64
  a.codes[64] = 0x03;                         // 1.5 at k = 128
  CHECK(ms::exact_f32::dot(a.view(), 0, b.view(), 0) == 0x1p24f + 4);
  CHECK(ms::f32_blocks::dot(a.view(), 0, b.view(), 0) == 0x1p24f + 4);  // 2^24 + 2, then + 1.5 up
  CHECK(ms::blackwell_k64::dot(a.view(), 0, b.view(), 0) == 0x1p24f + 2);
}

TEST_CASE("operands that do not fit are refused, and nothing is written") {
  const operand<ms::nvfp4> a(4, 32, 1), b(5, 32, 2), longer(5, 48, 3);
  std::vector<float> c(20, 7.0f);
  const auto refused = [&](const auto& x, const auto& y, ms::matrix_view<float> out) {
    const std::string text = message_of([&] { ms::gemm_into(ms::sequential{}, x, y, out); });
    CHECK(c == std::vector<float>(20, 7.0f));
    return text;
  };
  CHECK(says(refused(a.view(), longer.view(), ms::matrix(c, 4, 5)), "K of GEMM operand B: expected 32, got 48"));
  CHECK(says(refused(a.view(), b.view(), ms::matrix(c, 5, 4)), "GEMM output shape: expected 4 x 5, got 5 x 4"));
  CHECK(says(refused(a.view(), b.view(), ms::matrix<float>(nullptr, 4, 5)), "GEMM output: expected memory"));
  CHECK(says(refused(a.view(), b.view(), ms::matrix(c.data(), 4, 5, 4)), "pitch of at least 5"));
  auto bad = a.view();
  bad.scales = nullptr;
  CHECK(says(refused(bad, b.view(), ms::matrix(c, 4, 5)), "GEMM operand A: expected memory for codes and scales"));
  bad = b.view();
  bad.code_pitch = 3;
  CHECK(says(refused(a.view(), bad, ms::matrix(c, 4, 5)), "GEMM operand B: expected a code pitch"));
}
