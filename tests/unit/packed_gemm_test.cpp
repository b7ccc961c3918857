// The host's GEMM on 4-bit codes: the bits of the definition, for each instruction set in turn.
#include <algorithm>

#include <microscale/host/packed_gemm.hpp>

#include <catch2/catch_test_macros.hpp>
#include <microscale/block/schemes.hpp>

#include "support/operands.hpp"
#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;
using operands::operand;

namespace {

constexpr ms::simd_level levels[] = {ms::simd_level::portable, ms::simd_level::neon, ms::simd_level::avx2,
                                     ms::simd_level::avx512};

bool served(ms::simd_level level) {
  return ms::usable_simd(level) == level && (level != ms::simd_level::neon || ms::available_simd() == level);
}

// An executor that cuts wherever it can, and says which instructions to use.
struct cut {
  ms::simd_level simd = ms::simd_level::avx512;
  template <class F>
  void for_ranges(index_t count, index_t /*cost*/, F&& f) const {
    for (index_t i = count; i-- > 0;) f(i, i + 1);
  }
};

struct shape {
  index_t m, n, k;
};

// How many outputs differ in a bit between `sequential`, the definition, and every way of computing them fast.
template <class P, class A, class B>
int wrong_under(const ms::quantized_view<const A>& a, const ms::quantized_view<const B>& b,
                const ms::gemm_options& options) {
  std::vector<float> want(size(a.rows * b.rows), 1.0f);
  ms::gemm_into<P>(ms::sequential{}, a, b, ms::matrix(want, a.rows, b.rows), options);
  const ms::packed_operand<B> packed(b);
  int count = 0;
  for (const ms::simd_level level : levels) {
    if (!served(level)) continue;
    std::vector<float> got(size(a.rows * (b.rows + 3)), 7.0f);
    const ms::matrix_view<float> c = ms::matrix(got.data(), a.rows, b.rows, b.rows + 3);
    const auto compare = [&] {
      for (index_t i = 0; i < a.rows; ++i) {
        for (index_t j = 0; j < b.rows; ++j) count += different({c(i, j)}, {want[size(i * b.rows + j)]});
        for (index_t j = b.rows; j < b.rows + 3; ++j) count += c(i, j) != 7.0f ? 1 : 0;
      }
    };
    ms::gemm_into<P>(cut{level}, a, b, c, options);
    compare();
    for (index_t i = 0; i < a.rows; ++i) std::fill_n(&c(i, 0), b.rows, 9.0f);
    ms::gemm_into<P>(cut{level}, a, packed, c, options);
    compare();
  }
  return count;
}
// Under each of P: all of them where nothing else is said.
template <class... P, class A, class B>
int wrong(const ms::quantized_view<const A>& a, const ms::quantized_view<const B>& b,
          const ms::gemm_options& options = {}) {
  if constexpr (sizeof...(P) == 0) return wrong<ms::f32_blocks, ms::exact_f32, ms::blackwell_k64>(a, b, options);
  return (wrong_under<P>(a, b, options) + ... + 0);
}

template <class A, class B, class... P>
void holds() {
  std::uint64_t seed = 1;
  // One row and two, which go without tiles, in one chunk of k and in two; tiles with a part of their columns; rows
  // that are left over; more rows than are laid out at once.
  const shape shapes[] = {{1, 1, 1}, {1, 18, 530}, {2, 33, 16}, {7, 17, 49}, {9, 34, 33}, {11, 2, 513}, {259, 1, 18}};
  for (const shape& s : shapes) {
    const int spread = seed % 4 == 1 ? 0 : 3;  // every second time all scales that there are
    INFO(s.m << " x " << s.n << " x " << s.k << ", spread " << spread);
    const operand<A> a(s.m, s.k, seed++, spread);
    const operand<B> b(s.n, s.k, seed++, spread);
    CHECK(wrong<P...>(a.view(), b.view()) == 0);
  }
}

// The same for a left operand of numbers.
template <class T, class B>
int wrong_numbers(const std::vector<float>& x, index_t m, const operand<B>& b) {
  std::vector<T> in;
  for (const float v : x) in.push_back(ms::from_float<T>(v));
  const auto a = ms::matrix(in.data(), m, b.cols);
  std::vector<float> want(size(m * b.rows)), got(want.size());
  ms::gemm_into<ms::f32_blocks>(ms::sequential{}, a, b.view(), ms::matrix(want, m, b.rows));
  const ms::packed_operand<B> packed(b.view());
  int count = 0;
  for (const ms::simd_level level : levels) {
    if (!served(level)) continue;
    const cut executor{level};
    std::fill(got.begin(), got.end(), 9.0f);
    ms::gemm_into<ms::f32_blocks>(executor, a, b.view(), ms::matrix(got, m, b.rows));
    count += different(got, want);
    std::fill(got.begin(), got.end(), 9.0f);
    ms::gemm_into<ms::f32_blocks>(executor, a, packed, ms::matrix(got, m, b.rows));
    count += different(got, want);
  }
  return count;
}
template <class T, class B>
void holds_for_numbers() {
  std::uint64_t seed = 1;
  for (const shape& s : {shape{1, 1, 1}, {1, 33, 100}, {2, 3, 541}, {11, 17, 541}, {5, 7, 0}, {259, 1, 40}}) {
    INFO(s.m << " x " << s.n << " x " << s.k);
    const operand<B> b(s.n, s.k, seed, seed % 4 == 1 ? 0 : 3);
    auto x = difficult(s.m, s.k, ++seed);
    ++seed;
    CHECK(wrong_numbers<T>(x, s.m, b) == 0);
    if (s.k < 40) continue;
    // Products that overflow although the sum would not, and what is no number.
    x[3] = 0x1.8p127f, x[4] = -0x1.cp127f, x[size(s.m * s.k) - 1] = ms::fp32::infinity();
    x[20] = ms::fp32::quiet_nan();
    CHECK(wrong_numbers<T>(x, s.m, b) == 0);
  }
}

// f32_blocks for elements that are not packed.
template <class A, class B>
void holds_for_values() {
  std::uint64_t seed = 1;
  for (const shape& s : {shape{1, 1, 1}, {1, 33, 100}, {11, 3, 541}, {5, 7, 0}, {259, 1, 40}}) {
    const int spread = seed % 4 == 1 ? 0 : 3;
    INFO(s.m << " x " << s.n << " x " << s.k << ", spread " << spread);
    operand<A> a(s.m, s.k, seed++, spread);
    const operand<B> b(s.n, s.k, seed++, spread);
    if (s.k == 541) a.codes[3] = 0x7F;  // NaN in E4M3
    std::vector<float> want(size(s.m * s.n)), got(want.size());
    ms::gemm_into<ms::f32_blocks>(ms::sequential{}, a.view(), b.view(), ms::matrix(want, s.m, s.n));
    for (const ms::simd_level level : levels) {
      if (!served(level)) continue;
      std::fill(got.begin(), got.end(), 9.0f);
      ms::gemm_into<ms::f32_blocks>(cut{level}, a.view(), b.view(), ms::matrix(got, s.m, s.n));
      CHECK(different(got, want) == 0);
    }
  }
}

template <class S>
bool same(const ms::quantized<S>& x, const ms::quantized<S>& y) {
  return read(x.view()) == read(y.view()) && x.codes() == y.codes();
}

}  // namespace

TEST_CASE("NVFP4 with itself") { holds<ms::nvfp4, ms::nvfp4>(); }
TEST_CASE("UE5M3 with squares") { holds<ms::ue5m3_fp4, ms::ue5m3_fp4_2d, ms::f32_blocks>(); }
TEST_CASE("MXFP4 with itself: scales from the smallest to the largest") { holds<ms::mxfp4, ms::mxfp4>(); }
TEST_CASE("NVFP4 with MXFP4: runs of two lengths") { holds<ms::nvfp4, ms::mxfp4>(); }
TEST_CASE("blocks of 32 with squares of 32") {
  holds<ms::ue5m3_fp4_b32, ms::ue5m3_fp4_b32_2d, ms::f32_blocks, ms::exact_f32>();
}
TEST_CASE("binary32 scales under another element") { holds<ms::ufp4, ms::nvfp4, ms::f32_blocks>(); }

TEST_CASE("MXFP8 with itself: sums in binary64") { holds_for_values<ms::mxfp8_e4m3, ms::mxfp8_e4m3>(); }
TEST_CASE("MXFP6 with MXINT8: sums in binary32") { holds_for_values<ms::mxfp6_e3m2, ms::mxint8>(); }
TEST_CASE("MXFP8 with NVFP4: elements and runs of two kinds") { holds_for_values<ms::mxfp8_e4m3, ms::nvfp4>(); }
TEST_CASE("E5M2: in binary64 beside narrow elements, else by its definition") {
  static_assert(!ms::detail::value_pair<ms::mxfp8_e5m2, ms::mxfp8_e4m3>::supported);
  holds_for_values<ms::mxfp8_e5m2, ms::mxfp6_e2m3>();
}

TEST_CASE("binary32 activations with FP4 weights") {
  holds_for_numbers<float, ms::nvfp4>();
  holds_for_numbers<float, ms::mxfp4>();
}
TEST_CASE("bf16 activations with FP4 weights in squares") {
  holds_for_numbers<ms::value<ms::bf16>, ms::ue5m3_fp4_2d>();
  holds_for_numbers<ms::value<ms::f16>, ms::ufp4>();
}
TEST_CASE("the sum of numbers and weights by hand") {
  // 1x16 blocks: 3 (1.5) + 5 (-6) = -25.5 under 0.5; then 2^-30 (1) under 2, which the sum keeps only in part.
  operand<ms::mxfp4> w(1, 33, 1);
  std::fill(w.codes.begin(), w.codes.end(), std::uint8_t{0});
  w.codes[0] = 0x03 | 0xF0, w.codes[16] = 0x02;
  w.scales = {126, 128};
  std::vector<float> x(33, 1000.0f), c(1);
  x[0] = 3.0f, x[1] = 5.0f, x[32] = 0x1p-22f;
  ms::gemm_into<ms::f32_blocks>(ms::sequential{}, ms::matrix(x, 1, 33), w.view(), ms::matrix(c, 1, 1));
  CHECK(c[0] == -12.75f + 0x1p-21f);
}

TEST_CASE("threads change nothing") {
  const operand<ms::nvfp4> a(100, 600, 1, 3), b(120, 600, 2, 3);
  for (const index_t m : {index_t{1}, index_t{100}}) {
    ms::quantized_view<const ms::nvfp4> rows = a.view();
    rows.rows = m;
    std::vector<float> want(size(m * 120)), got(want);
    ms::gemm_into<ms::f32_blocks>(cut{}, rows, b.view(), ms::matrix(want, m, 120));
    for (const int threads : {1, 2, 5}) {
      ms::gemm_into<ms::f32_blocks>(ms::host{.threads = threads}, rows, b.view(), ms::matrix(got, m, 120));
      CHECK(different(got, want) == 0);
      std::fill(got.begin(), got.end(), 9.0f);
    }
  }
}

TEST_CASE("every code with every code, row by row") {
  operand<ms::nvfp4> a(16, 16, 1), b(16, 16, 2);
  for (index_t r = 0; r < 16; ++r) {
    std::fill_n(a.codes.begin() + r * 8, 8, static_cast<std::uint8_t>(17 * r));
    std::fill_n(b.codes.begin() + r * 8, 8, static_cast<std::uint8_t>(17 * r));
  }
  for (std::size_t i = 0; i < 16; ++i) a.scales[i] = 0x38, b.scales[i] = static_cast<std::uint8_t>(8 * i + 7);
  for (index_t r = 0; r < 16; ++r) {
    ms::quantized_view<const ms::nvfp4> row = a.view();
    row.codes += r * row.code_pitch, row.scales += r * row.scale_pitch, row.rows = 1;
    CHECK(wrong_under<ms::f32_blocks>(row, b.view(), {}) == 0);
  }
}

TEST_CASE("scales that are NaN or zero, among the largest and the smallest") {
  operand<ms::nvfp4> a(10, 100, 1), b(35, 100, 2);
  a.scales[0] = 0x7F, a.scales[size(3 * 7 + 6)] = 0x7F, b.scales[size(34 * 7 + 2)] = 0x7F;
  std::fill_n(a.scales.begin() + 7, 7, std::uint8_t{0});
  std::fill_n(b.scales.begin() + 7, 7, std::uint8_t{0x7E});
  b.scales[14] = 1;
  CHECK(wrong(a.view(), b.view()) == 0);

  operand<ms::mxfp4> x(9, 70, 3), y(33, 70, 4);
  x.scales[0] = 0xFF, y.scales[5] = 0xFF;
  std::fill_n(x.scales.begin() + 3, 3, std::uint8_t{0});
  std::fill_n(y.scales.begin() + 3, 3, std::uint8_t{0xFE});
  CHECK(wrong(x.view(), y.view()) == 0);
}

TEST_CASE("every code with every code, at the ends of the scales") {
  for (const std::uint8_t scale : {std::uint8_t{0x01}, std::uint8_t{0x7E}}) {
    operand<ms::nvfp4> a(16, 80, 1), b(16, 80, 2);
    for (index_t r = 0; r < 16; ++r) {
      std::fill_n(a.codes.begin() + r * 40, 40, static_cast<std::uint8_t>(17 * r));
      std::fill_n(b.codes.begin() + r * 40, 40, static_cast<std::uint8_t>(17 * r));
    }
    std::fill(a.scales.begin(), a.scales.end(), scale);
    std::fill(b.scales.begin(), b.scales.end(), scale);
    CHECK(wrong(a.view(), b.view()) == 0);
  }
}

TEST_CASE("tensor scales per row, an alpha of the caller's, another layout of scales, and what lies beyond a row") {
  const index_t m = 5, n = 39, k = 77;
  const auto x = difficult(m, k, 1), y = difficult(n, k, 2);
  const auto a = to_nearest<ms::nvfp4>(ms::matrix(x, m, k), {}, ms::scale_layout::tile_128x4, {1, 0});
  const auto b = to_nearest<ms::nvfp4>(ms::matrix(y, n, k), {}, ms::scale_layout::tile_128x4, {3, 0});
  CHECK(wrong(a.view(), b.view()) == 0);
  CHECK(wrong(a.view(), b.view(), {.alpha = -0.3f}) == 0);

  operand<ms::nvfp4> odd(m, k, 3), other(n, k, 4);
  for (index_t r = 0; r < m; ++r) odd.codes[size(r * 39 + 38)] |= 0x70;
  for (index_t r = 0; r < n; ++r) other.codes[size(r * 39 + 38)] |= 0x70;
  CHECK(wrong(odd.view(), other.view()) == 0);
}

TEST_CASE("nothing to add, nothing to write, and operands that do not fit") {
  const operand<ms::nvfp4> a(3, 0, 1), b(2, 0, 2), none(0, 16, 3), some(4, 16, 4);
  CHECK(wrong(a.view(), b.view()) == 0);
  CHECK(wrong(none.view(), some.view()) == 0);
  CHECK(wrong(some.view(), none.view()) == 0);

  std::vector<float> c(16, 7.0f);
  const operand<ms::nvfp4> longer(4, 32, 5);
  const std::string text = message_of([&] {
    ms::gemm_into(ms::host{}, longer.view(), ms::packed_operand<ms::nvfp4>(some.view()), ms::matrix(c, 4, 4));
  });
  CHECK(says(text, "K of GEMM operand B: expected 32, got 16"));
  CHECK(c == std::vector<float>(16, 7.0f));
}

TEST_CASE("operands without an order of their own can be packed as well") {
  const index_t m = 3, n = 5, k = 70;
  const auto x = difficult(m, k, 1), y = difficult(n, k, 2);
  const auto check = [&]<class A, class B>(const ms::quantized<A>& a, const ms::quantized<B>& b) {
    const ms::packed_operand<B> packed = ms::pack_operand(b);
    CHECK(same(packed.unpacked(), b));
    CHECK(packed.rows() == n);
    CHECK(packed.cols() == k);
    CHECK(packed.size_bytes() >= size(n * k * B::element::bits / 8));
    for (const ms::simd_level level : levels) {
      CHECK(ms::gemm<ms::f32_blocks>(cut{level}, a, packed) == ms::gemm<ms::f32_blocks>(ms::sequential{}, a, b));
    }
    std::vector<float> got(size(m * n)), want(got);
    ms::gemm_into<ms::f32_blocks>(cut{}, ms::matrix(x, m, k), packed, ms::matrix(got, m, n));
    ms::gemm_into<ms::f32_blocks>(ms::sequential{}, ms::matrix(x, m, k), b.view(), ms::matrix(want, m, n));
    CHECK(different(got, want) == 0);
  };
  check(to_nearest<ms::nvfp4>(ms::matrix(x, m, k)), to_nearest<ms::mxfp8_e4m3>(ms::matrix(y, n, k)));
  check(to_nearest<ms::mxfp6_e2m3>(ms::matrix(x, m, k)),
        to_nearest<ms::mxfp6_e2m3>(ms::matrix(y, n, k), {}, ms::scale_layout::tile_128x4));
  check(to_nearest<ms::mxfp8_e5m2>(ms::matrix(x, m, k)), to_nearest<ms::nvfp4>(ms::matrix(y, n, k)));
  CHECK(ms::packed_operand<ms::mxfp8_e4m3>().rows() == 0);
}

TEST_CASE("a packed operand gives back what it was made of") {
  const index_t n = 37, k = 1043;
  const auto x = difficult(n, k, 5);
  const auto rows = to_nearest<ms::nvfp4>(ms::matrix(x, n, k), {}, ms::scale_layout::linear, {1, 0});
  CHECK(same(ms::pack_operand(rows).unpacked(), rows));
  const auto squares = to_nearest<ms::ue5m3_fp4_b32_2d>(ms::matrix(x, n, k));
  CHECK(same(ms::pack_operand(squares).unpacked(), squares));
  CHECK(ms::pack_operand(rows).size_bytes() > 0);
  CHECK(same(ms::packed_operand<ms::nvfp4>().unpacked(), ms::quantized<ms::nvfp4>()));
  CHECK(ms::gemm<ms::f32_blocks>(ms::host{}, rows.view(), ms::pack_operand(rows.view())) ==
        ms::gemm<ms::f32_blocks>(ms::sequential{}, rows, rows));
}
