// The owning forms, and turning a tensor of square blocks without quantizing it again.
#include <microscale/tensor/quantized.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <microscale/block/schemes.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/metrics.hpp>
#include <utility>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

// A format that is no layout: the sixteen values of NormalFloat, in steps of 2^-8. What the concept asks for is all
// that the library wants of it.
struct table16 {
  using storage = std::uint8_t;
  static constexpr int bits = 4, step_exponent = -8;
  static constexpr bool has_sign = true, has_zero = true, has_nan = false;
  static constexpr storage largest_code = 15;

  static constexpr int steps(storage code) noexcept {
    constexpr int values[16] = {-256, -178, -134, -101, -73, -47, -23, 0, 20, 41, 63, 87, 113, 144, 185, 256};
    return values[code & 15];
  }
  static constexpr bool is_nan(storage) noexcept { return false; }
  static constexpr bool is_finite(storage) noexcept { return true; }
  static constexpr float largest() noexcept { return 1.0f; }
  static constexpr float decode(storage code) noexcept { return static_cast<float>(steps(code)) / 256; }
  static constexpr ms::unpacked unpack_code(storage code) noexcept {
    return ms::scaled_by_power(ms::unpack(steps(code)), step_exponent);
  }
  template <ms::rounding_mode R = ms::nearest_even>
  static constexpr storage encode(float x, R = {}, ms::overflow = {}, std::uint32_t = 0) noexcept {
    storage code = 0;
    while (code < 15 && x > static_cast<float>(steps(code) + steps(code + 1)) / 512) ++code;
    return code;
  }
};
static_assert(ms::element_format<table16>);

template <class S>
plain by_hand(const std::vector<float>& x, index_t rows, index_t cols) {
  return by_blocks<S>(x, rows, cols, largest_magnitude(x));
}

}  // namespace

TEST_CASE("quantize owns what quantize_into writes") {
  const std::vector<float> x = difficult(21, 50, 1);
  const auto q = ms::quantize<ms::nvfp4>(ms::matrix(x, 21, 50));
  CHECK((q.rows() == 21 && q.cols() == 50));
  CHECK((q.codes().size() == 21 * 25 && q.scales().size() == 21 * 4 && q.data().size() == 1));
  CHECK(read(q.view()) == by_hand<ms::nvfp4>(x, 21, 50));
  CHECK(q.datum() == largest_magnitude(x));
  CHECK(q.decode_multiplier() == ms::nvfp4::factors(largest_magnitude(x)).decode);

  const auto turned = ms::quantize<ms::nvfp4>(ms::matrix(x, 21, 50), {.axis = ms::axis::col});
  CHECK((turned.rows() == 50 && turned.cols() == 21));
  CHECK(read(turned.view()) == by_hand<ms::nvfp4>(transposed(x, 21, 50), 50, 21));

  const auto tiles = ms::quantize<ms::nvfp4>(ms::matrix(x, 21, 50), {}, ms::scale_layout::tile_128x4);
  CHECK(tiles.scales().size() == 512);
  CHECK(read(tiles.view()) == read(q.view()));
}

TEST_CASE("a format that is a table of values works wherever a layout does") {
  using S = ms::scheme<table16, ms::ue4m3, ms::block<1, 16>, ms::amax_over_max, ms::encode_ratio<>>;
  const std::vector<float> x = difficult(21, 50, 3);
  const auto q = ms::quantize<S>(ms::matrix(x, 21, 50));
  CHECK(read(q.view()) == by_hand<S>(x, 21, 50));
  const std::vector<float> values = ms::dequantize(q);
  CHECK(values == ms::fake_quantize<S>(ms::matrix(x, 21, 50)));
  CHECK(ms::measure(ms::matrix(x, 21, 50), q.view()).elements > 0);
  // Sums of products of table values and scales, exact in binary64 within a block.
  const auto one = ms::quantize<S>(ms::matrix(x, 1, 16));
  const auto v = one.view();
  double sum = 0;
  for (index_t k = 0; k < 16; ++k)
    sum += static_cast<double>(table16::steps(v.code(0, k)) * table16::steps(v.code(0, k)));
  const double scale = static_cast<double>(ms::ue4m3::decode(v.scale(0, 0)));
  const float exact = static_cast<float>(sum / 65536 * scale * scale);
  const ms::gemm_options plain{.alpha = 1.0f};
  CHECK(ms::gemm<ms::exact_f32>(one, one, plain)[0] == exact);
  CHECK(ms::gemm<ms::f32_blocks>(one, one, plain)[0] == exact);
  CHECK(ms::gemm<ms::blackwell_k64>(one, one, plain)[0] == exact);
}

TEST_CASE("what only reads a quantized matrix takes an owner and a view of either kind, with one result") {
  const std::vector<float> x = difficult(21, 50, 4);
  const auto in = ms::matrix(x, 21, 50);
  auto a = ms::quantize<ms::nvfp4>(in);
  const auto b = ms::quantize<ms::mxfp4>(in);
  const ms::quantized_view<ms::nvfp4> writable = a.view();
  const ms::quantized_view<const ms::nvfp4> constant = writable;
  CHECK(ms::dequantize(writable) == ms::dequantize(a));
  CHECK(ms::dequantize(ms::sequential{}, constant, ms::axis::col) == ms::dequantize(a, ms::axis::col));
  CHECK(ms::measure(in, a).noise == ms::measure(in, writable).noise);
  CHECK(ms::measure(in, a).noise == ms::measure(ms::sequential{}, in, constant).noise);
  CHECK(ms::measure(in, a).noise > 0.0);
  const std::vector<float> product = ms::gemm(a, b);
  CHECK(ms::gemm(writable, b) == product);
  CHECK(ms::gemm(ms::sequential{}, constant, b.view()) == product);
}

TEST_CASE("a shape whose size would overflow is refused, and not allocated as what is left of it") {
  constexpr index_t large = index_t{1} << 32, huge = index_t{1} << 62;
  const std::pair<index_t, index_t> shapes[] = {
      {large * 2, large}, {large, large * 2}, {huge, 1}, {1, huge}, {huge, 0}};
  for (const auto& [rows, cols] : shapes) {
    CHECK(message_of([r = rows, c = cols] {
            ms::quantized<ms::nvfp4>(r, c);
          }).starts_with("microscale: quantized shape: expected at most 2^55 elements, got "));
  }
  const ms::quantized<ms::nvfp4> a(large, 0), b(large, 0);  // nothing to store, and too many outputs
  CHECK(message_of([&] { ms::dequantize(ms::quantized_view<ms::nvfp4>{.rows = large, .cols = large}); }) ==
        "microscale: quantized shape: expected at most 2^55 elements, got 4294967296 x 4294967296");
  CHECK(message_of([&] { ms::gemm(a, b); }) ==
        "microscale: GEMM output: expected at most 2^55 elements, got 4294967296 x 4294967296");
}

TEST_CASE("a new quantized matrix is one of zeros, and an empty one is whole") {
  const ms::quantized<ms::ue5m3_fp4> q(3, 20);
  const auto values = ms::dequantize(q);
  CHECK(values == std::vector<float>(60, 0.0f));
  const ms::quantized<ms::ue5m3_fp4> none;
  CHECK((none.rows() == 0 && none.cols() == 0 && none.datum() == 1.0f && none.view().empty()));
  CHECK((none.view().layout == ms::scale_layout::linear && none.view().tile == ms::tensor_tile{}));
  const std::vector<float> nothing;
  const auto empty = ms::quantize<ms::nvfp4_2d>(ms::matrix(nothing, 0, 20));
  CHECK((empty.rows() == 0 && empty.cols() == 20 && empty.codes().empty() && empty.scales().empty()));
  CHECK(ms::dequantize(empty).empty());
  CHECK(ms::transpose(empty).rows() == 20);
  CHECK(says(message_of([] { ms::quantized<ms::mxfp4>(-1, 5); }),
             "quantized shape: expected a shape that is not negative"));
  CHECK(says(message_of([&] { ms::quantize<ms::nvfp4>(ms::matrix(nothing.data(), -1, 5)); }), "input"));
  CHECK(says(message_of([&] { ms::quantize<ms::nvfp4>(ms::matrix<const float>(nullptr, 1, 5)); }), "null pointer"));
}

TEST_CASE("dequantize gives the orientation before quantization back") {
  const std::vector<float> x = difficult(18, 33, 2);
  const auto q = ms::quantize<ms::nvfp4>(ms::matrix(x, 18, 33), {.axis = ms::axis::col});
  const std::vector<float> stored = ms::dequantize(q);  // 33 x 18
  CHECK(different(ms::dequantize(q, ms::axis::col), transposed(stored, 33, 18)) == 0);
  CHECK(different(ms::dequantize(backwards{}, q, ms::axis::col), ms::dequantize(q, ms::axis::col)) == 0);
}

TEST_CASE("the transpose of square blocks is what quantizing the transpose gives") {
  const auto holds = []<class S>(S, index_t rows, index_t cols) {
    const std::vector<float> x = difficult(rows, cols, 3);
    const auto q = ms::quantize<S>(ms::matrix(x, rows, cols));
    const auto t = ms::transpose(q);
    CHECK(read(t.view()) == by_hand<S>(transposed(x, rows, cols), cols, rows));
    CHECK(read(ms::transpose(t).view()) == read(q.view()));
    CHECK(t.codes() == ms::quantize<S>(ms::matrix(x, rows, cols), {.axis = ms::axis::col}).codes());
  };
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{1, 1}, {16, 32}, {17, 50}, {33, 5}, {64, 48}}) {
    holds(ms::nvfp4_2d{}, rows, cols);
    holds(ms::mxfp4_ceil_2d{}, rows, cols);
  }
}

TEST_CASE("turning keeps the draws of the rows; quantizing the transpose takes its own") {
  const std::vector<float> x = difficult(48, 32, 4);
  const ms::quantize_options options{.rounding = ms::stochastic_midpoint8{5, 6}};
  const auto q = ms::quantize<ms::nvfp4_2d>(ms::matrix(x, 48, 32), options);
  const plain t = read(ms::transpose(q).view());
  CHECK(t.codes == transposed(read(q.view()).codes, 48, 32));
  const std::vector<float> turned = transposed(x, 48, 32);
  const auto again = ms::quantize<ms::nvfp4_2d>(ms::matrix(turned, 32, 48), options);
  CHECK(read(again.view()).scales == t.scales);
  CHECK(read(again.view()).codes != t.codes);
}

TEST_CASE("transpose_into: pitches, layouts, guards and refusals") {
  const std::vector<float> x = difficult(40, 70, 5);
  const auto q = ms::quantize<ms::nvfp4_2d>(ms::matrix(x, 40, 70));
  const plain want = read(ms::transpose(q).view());
  for (const auto layout : {ms::scale_layout::linear, ms::scale_layout::tile_128x4}) {
    guarded<ms::nvfp4_2d> out(70, 40, 3, layout);
    ms::transpose_into<ms::nvfp4_2d>(q.view(), out.view());
    CHECK(read(out.view()) == want);
    CHECK(!out.spilled());
    if (layout == ms::scale_layout::tile_128x4) {
      int set = 0;
      for (int i = 0; i < 512; ++i) set += out.view().scales[i] != 0;
      CHECK(set <= 5 * 3);  // padding is zero
    }
  }
  guarded<ms::nvfp4_2d> out(70, 40);
  auto wrong = out.view();
  wrong.rows = 40;
  CHECK(says(message_of([&] { ms::transpose_into<ms::nvfp4_2d>(q.view(), wrong); }),
             "transposed shape: expected 70 x 40, got 40 x 40"));
  wrong = out.view();
  wrong.tile = {16, 0};
  CHECK(says(message_of([&] { ms::transpose_into<ms::nvfp4_2d>(q.view(), wrong); }),
             "transposed tensor-scale tile: expected 0 x 0, got 16 x 0"));
  wrong = out.view();
  wrong.codes = nullptr;
  CHECK(says(message_of([&] { ms::transpose_into<ms::nvfp4_2d>(q.view(), wrong); }), "codes and scales"));
  CHECK(out.untouched());
}

TEST_CASE("fake quantization is quantization and back, on both axes, with and without draws") {
  const auto holds = []<class S>(S, const ms::quantize_options& options) {
    const std::vector<float> x = difficult(27, 53, 6);
    const auto in = ms::matrix(std::as_const(x), 27, 53);
    const std::vector<float> want = ms::dequantize(ms::quantize<S>(in, options), options.axis);
    CHECK(different(ms::fake_quantize<S>(backwards{}, in, options), want) == 0);
    // In place, and between memory with pitches.
    std::vector<float> y = x;
    ms::fake_quantize_into<S>(backwards{}, ms::matrix(std::as_const(y), 27, 53), ms::matrix(y, 27, 53), options);
    CHECK(different(y, want) == 0);
    std::vector<float> wide(27 * 60, 7.0f), expected = wide;
    for (index_t r = 0; r < 27; ++r) std::copy_n(&want[size(r * 53)], 53, &expected[size(r * 60)]);
    ms::fake_quantize_into<S>(backwards{}, ms::matrix(x, 27, 53), ms::matrix(wide.data(), 27, 53, 60), options);
    CHECK(different(wide, expected) == 0);
  };
  const float reference = 0.7f;
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    holds(ms::nvfp4{}, {.axis = along, .reference = &reference});
    holds(ms::ue5m3_fp4_b32_2d{}, {.axis = along, .rounding = ms::stochastic_midpoint8{1, 2}, .target = 2048});
    holds(ms::mxfp6_e3m2{}, {.axis = along});
  }
}

TEST_CASE("decoding and fake quantization into bfloat16 and binary16 round once more") {
  const std::vector<float> x = difficult(9, 40, 7);
  const auto q = ms::quantize<ms::nvfp4>(ms::matrix(x, 9, 40));
  const std::vector<float> values = ms::dequantize(q);
  std::vector<ms::value<ms::bf16>> b(360), f(360);
  std::vector<ms::value<ms::f16>> h(360);
  ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(b, 9, 40));
  ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(h, 9, 40));
  ms::fake_quantize_into<ms::nvfp4>(ms::sequential{}, ms::matrix(x, 9, 40), ms::matrix(f, 9, 40));
  int wrong = 0;
  for (std::size_t i = 0; i < 360; ++i) {
    wrong += b[i].code() != model::encode(model::bf16, static_cast<double>(values[i]));
    wrong += h[i].code() != model::encode(model::f16, static_cast<double>(values[i]));
    wrong += f[i].code() != b[i].code();
  }
  CHECK(wrong == 0);
}
