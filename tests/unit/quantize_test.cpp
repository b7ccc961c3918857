// quantize_into: inputs, outputs and options of every kind. That a whole tensor is its blocks, for every scheme, is in
// quantize_schemes_test.cpp; draws and errors are in files of their own.
#include <algorithm>
#include <microscale/tensor/quantize.hpp>
#include <utility>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <microscale/block/schemes.hpp>
#include <vector>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class S, class T = float>
plain quantized_to_plain(const std::vector<T>& x, index_t rows, index_t cols, const ms::quantize_options& options = {},
                         ms::scale_layout layout = ms::scale_layout::linear) {
  const bool along_rows = options.axis == ms::axis::row;
  guarded<S> out(along_rows ? rows : cols, along_rows ? cols : rows, 0, layout);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), out.view(), ms::nearest_even{}, options);
  CHECK(!out.spilled());
  return read(out.view());
}

template <class T>
std::vector<T> converted(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) y.push_back(ms::from_float<T>(v));
  return y;
}
template <class T>
std::vector<float> widened(const std::vector<T>& x) {
  std::vector<float> y;
  for (const T v : x) y.push_back(ms::to_float(v));
  return y;
}

}  // namespace

TEST_CASE("bfloat16 and binary16 inputs are quantized as the floats that they are") {
  const std::vector<float> x = difficult(19, 45, 1);
  const auto b = converted<ms::value<ms::bf16>>(x);
  const auto h = converted<ms::value<ms::f16>>(x);
  CHECK(quantized_to_plain<ms::nvfp4>(b, 19, 45) ==
        by_blocks<ms::nvfp4>(widened(b), 19, 45, largest_magnitude(widened(b))));
  CHECK(quantized_to_plain<ms::ue5m3_fp4>(h, 19, 45, {.axis = ms::axis::col}) ==
        by_blocks<ms::ue5m3_fp4>(transposed(widened(h), 19, 45), 45, 19, largest_magnitude(widened(h))));
}

TEST_CASE("pitched inputs: what lies between rows is not read, on either axis") {
  constexpr index_t rows = 21, cols = 35, pitch = 41;
  const std::vector<float> x = difficult(rows, cols, 2);
  std::vector<float> wide(size(rows * pitch), not_a_number);
  for (index_t r = 0; r < rows; ++r) std::copy_n(&x[size(r * cols)], cols, &wide[size(r * pitch)]);
  const ms::matrix_view<const float> in = ms::matrix(wide.data(), rows, cols, pitch);
  const float a = largest_magnitude(x);
  CHECK(ms::amax(ms::sequential{}, in) == a);
  guarded<ms::nvfp4_exact> out(rows, cols, 2), turned(cols, rows, 5);
  ms::quantize_with(ms::sequential{}, in, out.view(), ms::nearest_even{});
  CHECK(read(out.view()) == by_blocks<ms::nvfp4_exact>(x, rows, cols, a));
  ms::quantize_with(ms::sequential{}, in, turned.view(), ms::nearest_even{}, {.axis = ms::axis::col});
  CHECK(read(turned.view()) == by_blocks<ms::nvfp4_exact>(transposed(x, rows, cols), cols, rows, a));
  CHECK((!out.spilled() && !turned.spilled()));
}

TEST_CASE("the tile layout holds the linear scales elsewhere, and zeros") {
  constexpr index_t rows = 150, cols = 100;
  const std::vector<float> x = difficult(rows, cols, 3);
  const plain linear = quantized_to_plain<ms::nvfp4>(x, rows, cols);
  CHECK(quantized_to_plain<ms::nvfp4>(x, rows, cols, {}, ms::scale_layout::tile_128x4) == linear);
  guarded<ms::nvfp4> out(rows, cols, 0, ms::scale_layout::tile_128x4);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), out.view(), ms::nearest_even{});
  std::vector<bool> used(256 * 8);
  for (index_t r = 0; r < 150; ++r) {
    for (index_t c = 0; c < 7; ++c) used[size(place_of_scale(ms::scale_layout::tile_128x4, 0, 7, r, c))] = true;
  }
  int stale = 0;
  for (std::size_t i = 0; i < used.size(); ++i) stale += !used[i] && out.view().scales[i] != 0;
  CHECK(stale == 0);
  // And read back through it.
  std::vector<float> a(x.size()), b(x.size());
  guarded<ms::nvfp4> flat(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), flat.view(), ms::nearest_even{});
  ms::dequantize_into(ms::sequential{}, out.view(), ms::matrix(a, rows, cols));
  ms::dequantize_into(ms::sequential{}, flat.view(), ms::matrix(b, rows, cols));
  CHECK(different(a, b) == 0);
}

TEST_CASE("a reference given, none given, and zero of either sign") {
  const std::vector<float> x = difficult(5, 40, 4);
  const float half = largest_magnitude(x) / 2, zero = 0.0f, minus_zero = -0.0f, tiny = 1e-45f;
  CHECK(quantized_to_plain<ms::nvfp4>(x, 5, 40) == by_blocks<ms::nvfp4>(x, 5, 40, 2 * half));
  for (const float* reference : {&half, &zero, &tiny}) {
    CHECK(quantized_to_plain<ms::nvfp4>(x, 5, 40, {.reference = reference}) ==
          by_blocks<ms::nvfp4>(x, 5, 40, *reference));
    CHECK(quantized_to_plain<ms::ue5m3_fp4>(x, 5, 40, {.reference = reference}) ==
          by_blocks<ms::ue5m3_fp4>(x, 5, 40, *reference));
  }
  CHECK(quantized_to_plain<ms::nvfp4>(x, 5, 40, {.reference = &minus_zero}) ==
        quantized_to_plain<ms::nvfp4>(x, 5, 40, {.reference = &zero}));
  // Without a tensor scale it is not read, whatever it is.
  CHECK(quantized_to_plain<ms::mxfp4>(x, 5, 40, {.reference = &not_a_number}) == by_blocks<ms::mxfp4>(x, 5, 40, 1.0f));
}

TEST_CASE("an infinite reference is TransformerEngine's S = 1") {
  const std::vector<float> x = difficult(3, 32, 5);
  const plain p = quantized_to_plain<ms::nvfp4>(x, 3, 32, {.reference = &infinity});
  CHECK(p == by_blocks<ms::nvfp4>(x, 3, 32, infinity));
  CHECK(p.datum[0] == 0x7F800000u);
  CHECK(ms::nvfp4::factors(infinity).encode == 1.0f);
  // An infinite element makes the current amax infinite: taken as well.
  std::vector<float> y = x;
  y[7] = -infinity;
  CHECK(quantized_to_plain<ms::nvfp4>(y, 3, 32) == by_blocks<ms::nvfp4>(y, 3, 32, infinity));
}

TEST_CASE("the amax passes over NaN; NaN and infinities follow the scheme's policy") {
  std::vector<float> x = difficult(4, 48, 6);
  x[5] = not_a_number, x[100] = -not_a_number;
  const float a = largest_magnitude(x);
  CHECK(quantized_to_plain<ms::nvfp4>(x, 4, 48) == by_blocks<ms::nvfp4>(x, 4, 48, a));
  CHECK(quantized_to_plain<ms::nvfp4_torchao>(x, 4, 48) == by_blocks<ms::nvfp4_torchao>(x, 4, 48, a));
  CHECK(quantized_to_plain<ms::nvfp4_exact>(x, 4, 48) == by_blocks<ms::nvfp4_exact>(x, 4, 48, a));
  CHECK(quantized_to_plain<ms::mxfp8_e5m2>(x, 4, 48).scales[0] == 0xFF);
  // Under `saturate` an infinity is the largest number, in the reference too.
  using saturating = ms::with_nonfinite<ms::ue5m3_fp4, ms::nonfinite::saturate>;
  x[60] = -infinity;
  CHECK(quantized_to_plain<saturating>(x, 4, 48) == by_blocks<saturating>(x, 4, 48, ms::fp32::largest));
  // All NaN: an amax of zero.
  const std::vector<float> nothing(16, not_a_number);
  CHECK(ms::amax(ms::sequential{}, ms::matrix(nothing, 1, 16)) == 0.0f);
  CHECK(quantized_to_plain<ms::nvfp4>(nothing, 1, 16) == by_blocks<ms::nvfp4>(nothing, 1, 16, 0.0f));
}

TEST_CASE("the target is the block scale of a block whose amax is the reference") {
  std::vector<float> x(16, 0.25f);
  x[3] = -3.0f;
  for (const int target : {1, 448, 2048, 61440}) {
    const plain p = quantized_to_plain<ms::ue5m3_fp4>(x, 1, 16, {.target = target});
    CHECK(p == by_blocks<ms::ue5m3_fp4>(x, 1, 16, 3.0f, ms::nearest_even{}, target));
    CHECK(p.scales[0] == model::encode(model::ue5m3_ieee, target));
  }
  CHECK(quantized_to_plain<ms::nvfp4_exact>(x, 1, 16, {.target = 7}) ==
        by_blocks<ms::nvfp4_exact>(x, 1, 16, 3.0f, ms::nearest_even{}, 7));
  CHECK(quantized_to_plain<ms::nvfp4_compressed_tensors>(x, 1, 16, {.target = 12}) ==
        by_blocks<ms::nvfp4_compressed_tensors>(x, 1, 16, 3.0f, ms::nearest_even{}, 12));
  // The scheme's own, named or not.
  CHECK(quantized_to_plain<ms::nvfp4>(x, 1, 16, {.target = 448}) == quantized_to_plain<ms::nvfp4>(x, 1, 16));
}

namespace {

// A rounding of somebody's own: to the neighbour farther from zero, always.
struct away_from_zero {
  static constexpr int random_bits = 0;
  static constexpr bool away(ms::remainder rest, bool, bool, std::uint32_t) noexcept { return !rest.is_zero(); }
};

template <class R>
void same_by_option(const std::vector<float>& x, R rounding) {
  guarded<ms::mxfp4> out(6, 40);
  ms::quantize_into(ms::sequential{}, ms::matrix(x, 6, 40), out.view(), {.rounding = rounding});
  CHECK(read(out.view()) == by_blocks<ms::mxfp4>(x, 6, 40, 1, rounding));
}

}  // namespace

TEST_CASE("every rounding mode by its name, and one of one's own") {
  const std::vector<float> x = difficult(6, 40, 7);
  same_by_option(x, ms::nearest_even{});
  same_by_option(x, ms::toward_zero{});
  same_by_option(x, ms::toward_positive{});
  same_by_option(x, ms::toward_negative{});
  same_by_option(x, ms::stochastic_midpoint8{3, 4});
  same_by_option(x, ms::stochastic_midpoint16{3, 4});
  same_by_option(x, ms::stochastic_midpoint32{3, 4});
  same_by_option(x, ms::stochastic_floor8{3, 4});
  guarded<ms::mxfp4> out(6, 40);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, 6, 40), out.view(), away_from_zero{});
  CHECK(read(out.view()) == by_blocks<ms::mxfp4>(x, 6, 40, 1, away_from_zero{}));
}

TEST_CASE("an empty tensor writes no code and no scale, and a datum") {
  const std::vector<float> x;
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{0, 0}, {0, 33}, {33, 0}}) {
    guarded<ms::nvfp4> out(rows, cols);
    ms::quantize_with(ms::sequential{}, ms::matrix(x.data(), rows, cols), out.view(), ms::nearest_even{});
    CHECK(!out.spilled());
    CHECK(*out.view().datum == 0.0f);
  }
  CHECK(ms::amax(ms::sequential{}, ms::matrix(x.data(), 0, 5)) == 0.0f);
  CHECK(ms::quantize_workspace<ms::nvfp4>(ms::sequential{}, ms::matrix(x.data(), 0, 5)) == 0);
}

TEST_CASE("both axes at once: rows as they lie, columns as the transpose, each under its own options") {
  constexpr index_t rows = 21, cols = 35;
  const std::vector<float> x = difficult(rows, cols, 9);
  const float row_reference = 3.0f, col_reference = 7.5f;
  guarded<ms::ue5m3_fp4> along_rows(rows, cols), along_cols(cols, rows);
  // The axes of the options are not read.
  ms::quantize_both_with(ms::sequential{}, ms::matrix(x, rows, cols), along_rows.view(), along_cols.view(),
                         ms::nearest_even{}, ms::toward_zero{}, {.axis = ms::axis::col, .reference = &row_reference},
                         {.reference = &col_reference});
  CHECK(!along_rows.spilled());
  CHECK(!along_cols.spilled());
  CHECK(read(along_rows.view()) == by_blocks<ms::ue5m3_fp4>(x, rows, cols, row_reference));
  CHECK(read(along_cols.view()) ==
        by_blocks<ms::ue5m3_fp4>(transposed(x, rows, cols), cols, rows, col_reference, ms::toward_zero{}));
}

TEST_CASE("the amax of the input beside: whatever the reference, NaN passed over, zero for an empty matrix") {
  std::vector<float> x(size(4 * 20), 0.5f);
  x[33] = -6.25f;
  x[47] = not_a_number;
  const float reference = 100.0f;
  for (const float* given : {&reference, static_cast<const float*>(nullptr)}) {
    float amax = -1.0f;
    guarded<ms::nvfp4> out(4, 20);
    ms::quantize_with(ms::sequential{}, ms::matrix(x, 4, 20), out.view(), ms::nearest_even{},
                      {.reference = given, .amax = &amax});
    CHECK(amax == 6.25f);
  }
  float amax = -1.0f;
  guarded<ms::nvfp4> out(0, 5);
  ms::quantize_with(ms::sequential{}, ms::matrix(x.data(), 0, 5), out.view(), ms::nearest_even{}, {.amax = &amax});
  CHECK(amax == 0.0f);
  x[47] = infinity;
  ms::fake_quantize_into<ms::nvfp4>(ms::sequential{}, ms::matrix(std::as_const(x).data(), 4, 20), ms::matrix(x, 4, 20),
                                    {.reference = &reference, .amax = &amax});
  CHECK(amax == infinity);
}
