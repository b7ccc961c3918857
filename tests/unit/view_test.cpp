// Views: where an element lies, and how floats become what a matrix holds.
#include <microscale/tensor/view.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/block/schemes.hpp>
#include <type_traits>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace ms = microscale;
using bf16 = ms::value<ms::bf16>;
using f16 = ms::value<ms::f16>;

static_assert(std::is_trivially_copyable_v<ms::matrix_view<float>>);
static_assert(std::is_trivially_copyable_v<ms::quantized_view<ms::nvfp4>>);
static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);
static_assert(std::is_convertible_v<ms::matrix_view<float>, ms::matrix_view<const float>>);
static_assert(!std::is_convertible_v<ms::matrix_view<const float>, ms::matrix_view<float>>);
static_assert(std::is_convertible_v<ms::quantized_view<ms::nvfp4>, ms::quantized_view<const ms::nvfp4>>);
static_assert(!std::is_convertible_v<ms::quantized_view<const ms::nvfp4>, ms::quantized_view<ms::nvfp4>>);
static_assert(ms::matrix_element<bf16> && ms::matrix_element<f16> && ms::matrix_element<float>);
static_assert(!ms::matrix_element<double> && !ms::matrix_element<const float> && ms::readable_element<const float>);

TEST_CASE("an element lies at row * pitch + column") {
  std::vector<float> x(60);
  const ms::matrix_view<float> m = ms::matrix(x.data(), 5, 10, 12);
  m(3, 7) = 1.0f;
  CHECK(x[43] == 1.0f);
  const ms::matrix_view<float> tight = ms::matrix(x, 6, 10);
  CHECK(tight.pitch == 10);
  CHECK(&tight(4, 3) == x.data() + 43);
  const std::vector<float>& constant = x;
  CHECK(std::is_same_v<decltype(ms::matrix(constant, 6, 10)), ms::matrix_view<const float>>);
  CHECK((ms::matrix(x, 0, 10).empty() && ms::matrix(x, 10, 0).empty() && !tight.empty()));
}

TEST_CASE("a container holds the matrix that is made of it") {
  std::vector<float> x(60);
  CHECK(ms::matrix(x, 5, 11).rows == 5);  // with room to spare
  CHECK_THROWS_AS(ms::matrix(x, 6, 11), ms::error);
  CHECK_THROWS_AS(ms::matrix(x, 61, 1), ms::error);
  CHECK_THROWS_AS(ms::matrix(x, -1, 10), ms::error);
  CHECK_THROWS_AS(ms::matrix(x, 10, -1), ms::error);
  CHECK_THROWS_AS(ms::matrix(x, ms::index_t{1} << 62, 8), ms::error);  // a product that wraps
  const std::vector<float> none;
  CHECK(ms::matrix(none, 0, 7).cols == 7);
  CHECK_THROWS_AS(ms::matrix(none, 1, 1), ms::error);
  constexpr float four[] = {1, 2, 3, 4};
  CHECK(ms::matrix(four, 2, 2)(1, 0) == 3.0f);
}

TEST_CASE("elements become floats exactly, every code of both formats") {
  int wrong = 0;
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto c = static_cast<std::uint16_t>(code);
    for (const auto& [got, want] : {std::pair{ms::to_float(bf16::from_code(c)), model::decode(model::bf16, code)},
                                    std::pair{ms::to_float(f16::from_code(c)), model::decode(model::f16, code)}}) {
      const bool both_nan = model::is_nan(got) && model::is_nan(want);
      wrong += !both_nan && ms::fp32::bits(got) != ms::fp32::bits(want);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats become bfloat16 and binary16 by one rounding to nearest even, infinite beyond the range") {
  const auto ieee = [](const model::format& f, float x) {
    // Past half a step above the top lies infinity.
    const double limit = (model::magnitude(f, f.top) + model::magnitude(f, f.top + 1)) / 2;
    const unsigned sign = (ms::fp32::bits(x) >> 31) << 15;
    if (!model::is_nan(x) && (x < 0 ? -static_cast<double>(x) : static_cast<double>(x)) >= limit) {
      return sign | static_cast<unsigned>(f.infinity);
    }
    return model::encode(f, static_cast<double>(x));
  };
  adversarial::numbers random(3);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    // Any pattern; then patterns near a bfloat16 midpoint.
    std::uint32_t b = static_cast<std::uint32_t>(random.bits());
    if (i % 2 == 0) b = (b & 0xFFFF0000u) + 0x8000u + (random.below(3) - 1u);
    const float x = ms::fp32::from_bits(b);
    wrong += ms::from_float<bf16>(x).code() != ieee(model::bf16, x);
    wrong += ms::from_float<f16>(x).code() != ieee(model::f16, x);
  }
  CHECK(wrong == 0);
  CHECK(ms::from_float<bf16>(3.4e38f).code() == 0x7F80);
  CHECK(ms::from_float<f16>(-65520.0f).code() == 0xFC00);
  CHECK(ms::from_float<f16>(65519.0f).code() == 0x7BFF);
}

TEST_CASE("a view of tightly packed memory has the pitches that size_of counts") {
  std::uint8_t codes[5 * 25] = {}, scales[512] = {};
  float datum = 2.0f;
  const auto q = ms::quantized_view_of<ms::nvfp4>(codes, scales, &datum, 5, 50);
  CHECK((q.codes == codes && q.scales == scales && q.datum == &datum && q.rows == 5 && q.cols == 50));
  CHECK((q.code_pitch == 25 && q.scale_pitch == 4 && q.layout == ms::scale_layout::linear));
  CHECK(q.tile == ms::tensor_tile{});
  const auto tiled =
      ms::quantized_view_of<const ms::nvfp4>(codes, scales, &datum, 5, 50, ms::scale_layout::tile_128x4, {1, 0});
  CHECK((tiled.layout == ms::scale_layout::tile_128x4 && tiled.tile == ms::tensor_tile{1, 0}));
  CHECK(&tiled.scales[tiled.scale_offset(4, 3)] == scales + 4 * 16 + 3);
}

TEST_CASE("a quantized view counts its blocks, tiles and bytes") {
  using S = ms::nvfp4_2d;
  const auto size = ms::size_of<S>(33, 50);
  CHECK((size.code_pitch == 25 && size.code_bytes == 33 * 25 && size.scale_pitch == 4 && size.scales == 12));
  CHECK(ms::size_of<ms::mxfp6_e2m3>(2, 33).code_pitch == 25);
  CHECK(ms::size_of<ms::nvfp4>(1, 1, ms::scale_layout::tile_128x4).scales == 512);
  const auto big = ms::size_of<ms::nvfp4>(std::int64_t{1} << 20, std::int64_t{1} << 20);
  CHECK((big.code_bytes == std::int64_t{1} << 39 && big.scales == std::int64_t{1} << 36));

  const ms::quantized_view<S> v{.rows = 33, .cols = 50, .tile = {16, 32}};
  CHECK((v.block_rows() == 3 && v.block_cols() == 4));
  CHECK((v.extent(0, 0).rows == 16 && v.extent(2, 3).rows == 1 && v.extent(2, 3).columns == 2));
  CHECK((v.tile_rows() == 3 && v.tile_cols() == 2));
  CHECK((v.tile_index(15, 31) == 0 && v.tile_index(16, 31) == 2 && v.tile_index(32, 32) == 5));
  const ms::quantized_view<S> whole{.rows = 0, .cols = 50, .tile = {16, 0}};
  CHECK((whole.tile_rows() == 1 && whole.tile_cols() == 1));
}

TEST_CASE("a view that was given nothing is empty, and points nowhere") {
  constexpr ms::matrix_view<float> m;
  CHECK((m.data == nullptr && m.rows == 0 && m.cols == 0 && m.pitch == 0 && m.empty()));
  constexpr ms::quantized_view<ms::nvfp4> q;
  CHECK((q.codes == nullptr && q.scales == nullptr && q.datum == nullptr && q.rows == 0 && q.cols == 0 && q.empty()));
  CHECK((q.code_pitch == 0 && q.scale_pitch == 0 && q.layout == ms::scale_layout::linear));
  CHECK(q.tile == ms::tensor_tile{0, 0});
}
