// ms::host against the sequential statement, bit for bit: every level of vector instructions that this machine has, on
// data made to hurt, in awkward shapes.
#include <catch2/catch_test_macros.hpp>
#include <microscale/conformance/adversarial.hpp>
#include <microscale/host/executor.hpp>
#include <microscale/tensor/hadamard_quantize.hpp>
#include <microscale/tensor/quantized.hpp>

#include <cstring>
#include <vector>

namespace ms = microscale;

namespace {

constexpr ms::simd_level levels[] = {ms::simd_level::portable, ms::simd_level::neon, ms::simd_level::avx2,
                                     ms::simd_level::avx512};

struct shape {
  ms::index_t rows, cols, gap;  // gap: elements between rows that are not the matrix's
};
constexpr shape shapes[] = {{0, 5, 0},  {1, 1, 0},  {3, 16, 0},  {1, 17, 3},   {67, 1, 0}, {16, 256, 0},
                            {5, 95, 1}, {2, 33, 0}, {37, 48, 0}, {33, 300, 2}, {3, 0, 0},  {19, 530, 0}};
// With rows long enough to be written past the caches.
constexpr shape shapes_of_values[] = {{0, 5, 0},   {1, 17, 3}, {67, 1, 0},   {5, 95, 1},  {37, 48, 0},
                                      {33, 96, 0}, {3, 0, 0},  {2, 2085, 1}, {3, 2048, 0}};

// Blocks made to hurt, one after the other; every third matrix has NaN and infinities among them.
template <class S>
std::vector<float> hard_data(std::size_t count, std::uint64_t seed, float& reference) {
  ms::conformance::adversary<S> adversary(seed);
  std::vector<float> x;
  const auto group = adversary.group(static_cast<int>(count / S::block::elements) + 1, seed % 3 == 0);
  for (const auto& b : group.blocks) x.insert(x.end(), std::begin(b.x), std::end(b.x));
  x.resize(count);
  reference = group.reference;
  return x;
}

template <class T>
std::vector<T> as_elements(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float e : x) y.push_back(ms::from_float<T>(e));
  return y;
}

// A quantized tensor in memory that begins with a known byte everywhere, so that what is not written shows.
template <class S>
struct result {
  std::vector<std::uint8_t> codes;
  std::vector<typename S::scale::storage> scales;
  float datum = -1.0f;

  template <class Executor, class T, class R>
  result(const Executor& executor, ms::matrix_view<const T> in, const R& rounding, const ms::quantize_options& options,
         ms::scale_layout layout) {
    const bool row = options.axis == ms::axis::row;
    const ms::index_t rows = row ? in.rows : in.cols, cols = row ? in.cols : in.rows;
    const auto size = ms::size_of<S>(rows, cols, layout);
    const ms::index_t pitch = size.code_pitch + rows % 2;
    codes.assign(static_cast<std::size_t>(rows * pitch), 0xA5);
    scales.assign(static_cast<std::size_t>(size.scales), typename S::scale::storage{0xA5});
    const ms::quantized_view<S> out{codes.data(), scales.data(),    &datum, rows, cols,
                                    pitch,        size.scale_pitch, layout, {}};
    ms::quantize_with(executor, in, out, rounding, options);
  }
  bool operator==(const result&) const = default;
};

template <class S, class T, class R>
void check_quantize(const R& rounding, bool tiled_scales = false) {
  std::uint64_t seed = 0;
  for (const shape& s : shapes) {
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      float reference = 1.0f;
      const ms::index_t pitch = s.cols + s.gap;
      const auto x = as_elements<T>(hard_data<S>(static_cast<std::size_t>(s.rows * pitch + 1), ++seed, reference));
      const ms::matrix_view<const T> in{x.data() + 1, s.rows, s.cols, pitch};
      const ms::quantize_options options{.axis = along, .reference = &reference};
      const ms::scale_layout layout = tiled_scales ? ms::scale_layout::tile_128x4 : ms::scale_layout::linear;
      const result<S> expected(ms::sequential{}, in, rounding, options, layout);
      for (const ms::simd_level level : levels) {
        CAPTURE(s.rows, s.cols, static_cast<int>(along), static_cast<int>(level), seed);
        CHECK(result<S>(ms::host{.threads = 1, .simd = level}, in, rounding, options, layout) == expected);
      }
      CHECK(result<S>(ms::host{.threads = 3}, in, rounding, options, layout) == expected);
    }
  }
}

// Decodes what the tensor of a hard matrix stores, and fake-quantizes the matrix, also in place.
template <class S, class T, class R>
void check_values(const R& rounding) {
  std::uint64_t seed = 100;
  for (const shape& s : shapes_of_values) {
    float reference = 1.0f;
    const ms::index_t pitch = s.cols + s.gap;
    const auto x = as_elements<T>(hard_data<S>(static_cast<std::size_t>(s.rows * pitch + 1), ++seed, reference));
    const ms::matrix_view<const T> in{x.data() + 1, s.rows, s.cols, pitch};
    const auto bits_of = [&](const auto& run) {
      std::vector<T> y(x.size(), ms::from_float<T>(3.0f));
      run(ms::matrix_view<T>{y.data() + 1, s.rows, s.cols, pitch});
      std::vector<std::uint8_t> bytes(y.size() * sizeof(T));
      std::memcpy(bytes.data(), static_cast<const void*>(y.data()), bytes.size());
      return bytes;
    };
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      const ms::quantize_options options{.axis = along, .rounding = rounding, .reference = &reference};
      const auto q = ms::quantize<S>(in, options);
      const auto decoded = [&](const auto& executor) {
        return bits_of([&](ms::matrix_view<T> y) { ms::dequantize_into(executor, q.view(), y, along); });
      };
      const auto faked = [&](const auto& executor) {
        return bits_of([&](ms::matrix_view<T> y) { ms::fake_quantize_into<S>(executor, in, y, options); });
      };
      const auto faked_in_place = [&](const auto& executor) {
        return bits_of([&](ms::matrix_view<T> y) {
          for (ms::index_t r = 0; r < y.rows; ++r) {
            for (ms::index_t c = 0; c < y.cols; ++c) y(r, c) = in(r, c);
          }
          ms::fake_quantize_into<S>(executor, ms::matrix_view<const T>(y), y, options);
        });
      };
      const auto expected = decoded(ms::sequential{}), expected_fake = faked(ms::sequential{});
      for (const ms::simd_level level : levels) {
        for (const ms::index_t streamed : {ms::index_t{1}, ms::index_t{1} << 30}) {
          const ms::host executor{.threads = 1, .simd = level, .streamed_bytes = streamed};
          CAPTURE(s.rows, s.cols, static_cast<int>(along), static_cast<int>(level), streamed, seed);
          CHECK(decoded(executor) == expected);
          CHECK(faked(executor) == expected_fake);
          CHECK(faked_in_place(executor) == expected_fake);
        }
        const ms::host executor{.threads = 1, .simd = level};
        CHECK(ms::fp32::bits(ms::amax(executor, in)) == ms::fp32::bits(ms::amax(ms::sequential{}, in)));
      }
    }
  }
}

}  // namespace

TEST_CASE("Quantizing on the host: the schemes of four-bit elements") {
  check_quantize<ms::nvfp4, float>(ms::nearest_even{});
  check_quantize<ms::ue5m3_fp4, float>(ms::nearest_even{}, true);
  check_quantize<ms::ue5m3_fp4_b32, ms::value<ms::bf16>>(ms::nearest_even{});
  check_quantize<ms::mxfp4, float>(ms::nearest_even{});
  check_quantize<ms::mxfp4_even, float>(ms::nearest_even{});
  check_quantize<ms::mxfp4_ceil, ms::value<ms::bf16>>(ms::nearest_even{});
  check_quantize<ms::nvfp4, ms::value<ms::bf16>>(ms::nearest_even{});
}
TEST_CASE("Quantizing on the host: other rules") {
  check_quantize<ms::nvfp4_torchao, float>(ms::nearest_even{});
  check_quantize<ms::nvfp4_modelopt, float>(ms::nearest_even{});
  check_quantize<ms::nvfp4_compressed_tensors_reciprocal, float>(ms::nearest_even{});
  check_quantize<ms::ue5m3_single, float>(ms::nearest_even{});
}
// What a format or a rule allows and lanes do not reach: an MX scale up to 2^127, and steps that are hardly normal
// floats.
struct far_down : ms::minifloat<ms::float_layout{.exponent_bits = 3, .mantissa_bits = 2, .bias = 120}> {};
TEST_CASE("Quantizing on the host: formats that no kernel is for") {
  check_quantize<ms::scheme<ms::e1m2, ms::e8m0, ms::block<1, 32>, ms::mx_rule<ms::mx_scale::floor>>, float>(
      ms::nearest_even{});
  check_quantize<ms::scheme<far_down, ms::ue4m3, ms::block<1, 16>, ms::amax_over_max, ms::encode_ratio<>>, float>(
      ms::stochastic_midpoint8{3, 4});
}
TEST_CASE("Quantizing on the host: elements of six and eight bits") {
  check_quantize<ms::mxfp6_e2m3, float>(ms::nearest_even{});
  check_quantize<ms::mxfp6_e3m2, float>(ms::nearest_even{});
  check_quantize<ms::mxfp8_e4m3, float>(ms::nearest_even{});
  check_quantize<ms::mxfp8_e5m2_ceil, float>(ms::nearest_even{});
}
TEST_CASE("Quantizing on the host: stochastic roundings") {
  check_quantize<ms::ue5m3_fp4, float>(ms::stochastic_midpoint8{7, 3});
  check_quantize<ms::nvfp4, float>(ms::stochastic_floor8{1ull << 63 | 5, 1ull << 40});
  check_quantize<ms::mxfp4, float>(ms::stochastic_midpoint16{11, 2});
  check_quantize<ms::mxfp8_e4m3, float>(ms::stochastic_midpoint8{7, 1});
}
TEST_CASE("Quantizing on the host: square blocks") {
  check_quantize<ms::nvfp4_2d, float>(ms::nearest_even{});
  check_quantize<ms::mxfp4_ceil_2d, ms::value<ms::bf16>>(ms::stochastic_midpoint8{3, 1});
}
TEST_CASE("Dequantizing and fake quantization on the host") {
  check_values<ms::nvfp4, float>(ms::nearest_even{});
  check_values<ms::ue5m3_fp4, ms::value<ms::bf16>>(ms::stochastic_midpoint8{5, 1});
  check_values<ms::mxfp4, float>(ms::stochastic_floor8{5, 1});
  check_values<ms::nvfp4_torchao, float>(ms::nearest_even{});
  check_values<ms::mxfp8_e5m2, float>(ms::nearest_even{});
  check_values<ms::mxfp6_e3m2, float>(ms::nearest_even{});
}
TEST_CASE("Every code and every scale decodes on the host as the format says") {
  using scheme = ms::with_block<ms::scheme<ms::e4m3, ms::e8m0, ms::block<1, 32>, ms::mx_rule<ms::mx_scale::floor>>,
                                ms::block<1, 16>>;
  ms::quantized<scheme> q(256, 256);
  const auto v = q.view();
  for (int i = 0; i < 256 * 256; ++i) v.codes[i] = static_cast<std::uint8_t>(i);
  for (int i = 0; i < 256 * 16; ++i) v.scales[i] = static_cast<std::uint8_t>(i / 16);
  const auto expected = ms::dequantize(q);
  for (const ms::simd_level level : levels) {
    const auto y = ms::dequantize(ms::host{.threads = 1, .simd = level}, q);
    CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
  }
}
TEST_CASE("A tensor scale for each row, and for each three, on the host") {
  float unused = 0.0f;
  const auto x = hard_data<ms::nvfp4>(37 * 100, 2, unused);
  for (const ms::index_t height : {1, 3}) {
    for (const ms::index_t cols : {96, 100}) {
      const auto in = ms::matrix(x.data(), 37, cols);
      const auto expected = ms::quantize<ms::nvfp4>(in, {}, ms::scale_layout::linear, {height, 0});
      const auto q = ms::quantize<ms::nvfp4>(ms::host{.threads = 2}, in, {}, ms::scale_layout::linear, {height, 0});
      CAPTURE(height, cols);
      CHECK(q.codes() == expected.codes());
      CHECK(q.scales() == expected.scales());
      CHECK(q.data() == expected.data());
      const auto decoded = ms::dequantize(expected);
      for (const ms::simd_level level : levels) {
        const auto y = ms::dequantize(ms::host{.threads = 2, .simd = level}, q);
        REQUIRE(y.size() == decoded.size());
        CHECK(std::memcmp(y.data(), decoded.data(), y.size() * sizeof(float)) == 0);
      }
    }
  }
}
TEST_CASE("The Hadamard transform on the host") {
  std::uint64_t seed = 200;
  for (const int size : {16, 32}) {
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      for (const ms::index_t runs : {1, 3, 21}) {
        for (const bool huge : {false, true}) {
          const ms::index_t lines = 19, length = runs * size, pitch = along == ms::axis::row ? length + 3 : lines + 2;
          float unused = 0.0f;
          auto x = hard_data<ms::nvfp4>(static_cast<std::size_t>((along == ms::axis::row ? lines : length) * pitch),
                                        seed++, unused);
          if (huge) x[x.size() / 2] = ms::fp32::largest;
          const auto in = along == ms::axis::row ? ms::matrix(x.data(), lines, length, pitch)
                                                 : ms::matrix(x.data(), length, lines, pitch);
          const ms::hadamard_options options{
              .size = size, .signs = ms::hadamard_signs::drawn({9, seed}), .axis = along};
          const auto transformed = [&](const auto& executor) {
            std::vector<float> y(x.size(), 7.0f);
            ms::hadamard_into(executor, in, ms::matrix_view<float>{y.data(), in.rows, in.cols, pitch}, options);
            std::vector<std::uint32_t> bits;
            for (const float e : y) bits.push_back(ms::fp32::is_nan(e) ? ms::fp32::quiet_nan_bits : ms::fp32::bits(e));
            return bits;
          };
          for (const ms::simd_level level : levels) {
            CAPTURE(size, static_cast<int>(along), runs, huge, static_cast<int>(level));
            CHECK(transformed(ms::host{.threads = 1, .simd = level}) == transformed(ms::sequential{}));
          }
        }
      }
    }
  }
}
TEST_CASE("The Hadamard transform and quantization in one pass are the two in turn") {
  const auto signs = ms::hadamard_signs::transformer_engine();
  std::uint64_t seed = 300;
  const auto check = [&]<int Size, class S>(auto rounding) {
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      for (const ms::index_t runs : {1, 3, 17}) {
        const ms::index_t lines = 21, length = runs * Size;
        const ms::index_t rows = along == ms::axis::row ? lines : length,
                          cols = along == ms::axis::row ? length : lines;
        float reference = 1.0f;
        const auto x = hard_data<S>(static_cast<std::size_t>(rows * cols), ++seed, reference);
        const auto in = ms::matrix(x.data(), rows, cols);
        std::vector<float> transformed(x.size());
        ms::hadamard_into(ms::sequential{}, in, ms::matrix(transformed, rows, cols),
                          {.size = Size, .signs = signs, .axis = along});
        const ms::quantize_options options{.axis = along, .reference = &reference};
        ms::quantized<S> expected(lines, length);
        ms::quantize_with(ms::sequential{}, ms::matrix(transformed, rows, cols), expected.view(), rounding, options);
        const auto in_one_pass = [&](const auto& executor) {
          ms::quantized<S> q(lines, length);
          ms::hadamard_quantize_with<Size>(executor, in, q.view(), signs, rounding, options);
          CAPTURE(Size, static_cast<int>(along), runs, seed);
          CHECK(q.codes() == expected.codes());
          CHECK(q.scales() == expected.scales());
          CHECK(q.datum() == expected.datum());
        };
        in_one_pass(ms::sequential{});
        for (const ms::simd_level level : levels) in_one_pass(ms::host{.threads = 1, .simd = level});
        in_one_pass(ms::host{.threads = 3});
      }
    }
  };
  check.operator()<16, ms::nvfp4>(ms::nearest_even{});
  check.operator()<16, ms::ue5m3_fp4_b32>(ms::stochastic_midpoint8{7, 3});
  check.operator()<32, ms::mxfp4>(ms::nearest_even{});
  float unused = 0.0f;
  const auto x = hard_data<ms::nvfp4>(64, 1, unused);
  ms::quantized<ms::nvfp4> q(2, 32);
  CHECK_THROWS_AS(ms::hadamard_quantize_with<16>(ms::sequential{}, ms::matrix(x.data(), 2, 32), q.view(), signs,
                                                 ms::nearest_even{}, {}),
                  ms::error);
}
