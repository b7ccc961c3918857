// The figures of one quantized matrix, worked by hand and against a plain double loop.
#include <microscale/tensor/metrics.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <microscale/block/schemes.hpp>
#include <microscale/host/executor.hpp>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

template <class S>
ms::quantization_metrics measured(const std::vector<float>& x, index_t rows, index_t cols, float reference) {
  guarded<S> q(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{},
                    {.reference = &reference});
  return ms::measure(ms::matrix(x, rows, cols), q.view());
}

// One block of sixteen whose amax is `a`, under a reference of 2688: a tensor scale of 1.
template <class S>
ms::quantization_metrics of_amax(float a) {
  std::vector<float> x(16);
  x[3] = -a;
  return measured<S>(x, 1, 16, S::has_tensor_scale ? 2688.0f : 1.0f);
}

}  // namespace

TEST_CASE("signal, noise and the largest error by hand") {
  // Scale 1: 5 rounds to 4, 0.3 to 0.5, 6 and -2 are kept.
  std::vector<float> x(16);
  x[0] = 6, x[1] = 5, x[2] = 0.3f, x[3] = -2;
  const auto m = measured<ms::nvfp4_single>(x, 1, 16, 1.0f);
  const double e = 0.5 - static_cast<double>(0.3f);
  CHECK(m.signal == 36 + 25 + static_cast<double>(0.3f) * static_cast<double>(0.3f) + 4);
  CHECK(m.noise == 1 + e * e);
  CHECK(m.largest_error == 1.0);
  CHECK((m.elements == 16 && m.blocks == 1 && m.saturated_blocks == 0 && m.underflowed_scales == 0));
  CHECK(std::fabs(m.sqnr_db() - 10 * std::log10(m.signal / m.noise)) < 1e-12);
}

TEST_CASE("both axes, tails and bfloat16 sources against a plain loop") {
  const std::vector<float> x = difficult(21, 37, 1);
  std::vector<ms::value<ms::bf16>> b;
  for (const float v : x) b.push_back(ms::from_float<ms::value<ms::bf16>>(v));
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    const bool along_rows = along == ms::axis::row;
    guarded<ms::ue5m3_fp4> q(along_rows ? 21 : 37, along_rows ? 37 : 21);
    ms::quantize_with(ms::sequential{}, ms::matrix(b, 21, 37), q.view(), ms::nearest_even{}, {.axis = along});
    std::vector<float> y(x.size());
    ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(y, 21, 37), along);
    double signal = 0, noise = 0, largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = static_cast<double>(ms::to_float(b[i])), d = exact - static_cast<double>(y[i]);
      signal += exact * exact;
      noise += d * d;
      largest = std::fmax(largest, std::fabs(d));
    }
    const auto m = ms::measure(ms::matrix(b, 21, 37), q.view(), along);
    CHECK(std::fabs(m.signal / signal - 1) < 1e-12);
    CHECK(std::fabs(m.noise / noise - 1) < 1e-12);
    CHECK(m.largest_error == largest);
    CHECK((m.elements == 21 * 37 && m.blocks == (along_rows ? 21 * 3 : 37 * 2)));
  }
}

namespace {

// Every figure is the same, to the bit.
bool same(const ms::quantization_metrics& a, const ms::quantization_metrics& b) {
  const auto bits = [](double x) { return ms::bit_cast<std::uint64_t>(x); };
  return bits(a.signal) == bits(b.signal) && bits(a.noise) == bits(b.noise) &&
         bits(a.largest_error) == bits(b.largest_error) && a.elements == b.elements && a.blocks == b.blocks &&
         a.underflowed_scales == b.underflowed_scales && a.saturated_blocks == b.saturated_blocks &&
         a.nonfinite_blocks == b.nonfinite_blocks && a.nan_scales == b.nan_scales &&
         bits(a.worst_ratio) == bits(b.worst_ratio) && a.worst_row == b.worst_row && a.worst_col == b.worst_col;
}

// On threads and in vector registers, over tails, blocks with a NaN or an infinity, and scales that are NaN.
template <class S, class T>
void held_to_the_plain_loop(index_t rows, index_t cols, std::uint64_t seed) {
  std::vector<T> x;
  for (const float v : difficult(rows, cols, seed)) x.push_back(ms::from_float<T>(v));
  x[static_cast<std::size_t>(cols + 1)] = ms::from_float<T>(std::numeric_limits<float>::quiet_NaN());
  x[static_cast<std::size_t>(2 * cols)] = ms::from_float<T>(std::numeric_limits<float>::infinity());
  const float reference = 1e4f;
  ms::quantized<S> q(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{},
                    {.reference = &reference});
  q.view().scales[1] = S::scale::encode(std::numeric_limits<float>::quiet_NaN());
  const ms::quantization_metrics plain = ms::measure(ms::matrix(x, rows, cols), q.view());
  CHECK(plain.nonfinite_blocks > 0);
  for (const int threads : {1, 3}) {
    for (const auto level : {ms::simd_level::portable, ms::simd_level::avx2, ms::simd_level::avx512}) {
      const ms::host on{.threads = threads, .simd = level};
      CHECK(same(plain, ms::measure(on, ms::matrix(x, rows, cols), q.view())));
    }
  }
}

}  // namespace

TEST_CASE("ms::host measures the same figures, to the bit") {
  held_to_the_plain_loop<ms::nvfp4, float>(70, 16 * 37 + 5, 2);
  held_to_the_plain_loop<ms::nvfp4_2d, float>(70, 16 * 37 + 5, 3);
  held_to_the_plain_loop<ms::mxfp8_e4m3, ms::value<ms::bf16>>(21, 32 * 40, 4);
}

TEST_CASE("saturated: the ideal scale would round past the largest one") {
  // UE4M3 ends at 448, so 464 is the midpoint past it; UE5M3 of the paper at 61440, 63488; E8M0 at 2^127.
  CHECK(of_amax<ms::nvfp4>(464.0f * 6).saturated_blocks == 0);
  CHECK(of_amax<ms::nvfp4>(std::nextafter(464.0f * 6, 1e9f)).saturated_blocks == 1);
  CHECK(of_amax<ms::nvfp4_single>(464.0f * 6).saturated_blocks == 0);
  CHECK(of_amax<ms::nvfp4_single>(2785.0f).saturated_blocks == 1);
  CHECK(of_amax<ms::ue5m3_fp4>(63488.0f * 6).saturated_blocks == 0);
  CHECK(of_amax<ms::ue5m3_fp4>(63489.0f * 6).saturated_blocks == 1);
  CHECK(of_amax<ms::nvfp4>(3000.0f).saturated_share() == 1.0);
}

TEST_CASE("underflowed: the ideal scale lies below half the smallest one, whatever the scheme makes of it") {
  const float limit = 0x1p-10f * 6;
  CHECK(of_amax<ms::nvfp4>(limit).underflowed_scales == 0);
  CHECK(of_amax<ms::nvfp4>(std::nextafter(limit, 0.0f)).underflowed_scales == 1);
  CHECK(of_amax<ms::nvfp4_torchao>(std::nextafter(limit, 0.0f)).underflowed_scales == 1);
  CHECK(of_amax<ms::ue5m3_fp4>(0x1p-18f * 6).underflowed_scales == 0);
  CHECK(of_amax<ms::ue5m3_fp4>(0x1.8p-19f * 6).underflowed_scales == 1);
  CHECK(of_amax<ms::nvfp4>(0.0f).underflowed_scales == 0);  // nothing to lose
}

TEST_CASE("blocks with a NaN or an infinity are counted, and nowhere else") {
  std::vector<float> x(48, 1.0f);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[20] = std::numeric_limits<float>::infinity();
  const auto m = measured<ms::nvfp4>(x, 1, 48, 6.0f);
  CHECK((m.nonfinite_blocks == 2 && m.blocks == 3 && m.elements == 16 && m.signal == 16.0));
}

TEST_CASE("sums add up; shares and ratios where there is nothing to divide by") {
  ms::quantization_metrics a{
      .signal = 100, .noise = 1, .largest_error = 0.5, .elements = 10, .blocks = 2, .underflowed_scales = 1};
  const ms::quantization_metrics b{.signal = 50,
                                   .noise = 2,
                                   .largest_error = 0.7,
                                   .elements = 5,
                                   .blocks = 2,
                                   .saturated_blocks = 2,
                                   .nonfinite_blocks = 1};
  a += b;
  CHECK((a.signal == 150 && a.noise == 3 && a.largest_error == 0.7 && a.elements == 15 && a.blocks == 4));
  CHECK((a.underflowed_share() == 0.25 && a.saturated_share() == 0.5 && a.nonfinite_blocks == 1));
  const ms::quantization_metrics none;
  CHECK(std::isnan(none.sqnr_db()));
  CHECK(none.saturated_share() == 0.0);
  CHECK(std::isinf(ms::quantization_metrics{.signal = 1}.sqnr_db()));
}

TEST_CASE("the worst block, by hand and added up") {
  // Scale 1 everywhere. (0, 0) is exact, (0, 16) loses 1 of 61, (1, 0) 1/16 of 41.0625, (1, 16) has no signal.
  std::vector<float> x(64);
  x[0] = 6;
  x[16] = 6, x[17] = 5;
  x[32] = 6, x[33] = 2.25f;
  const auto m = measured<ms::nvfp4_single>(x, 2, 32, 1.0f);
  CHECK((m.worst_row == 0 && m.worst_col == 16 && m.worst_ratio == 1.0 / 61.0));
  CHECK(std::fabs(m.worst_db() - 10 * std::log10(61.0)) < 1e-12);
  x[33] = 2.5f;  // rounds to 2: .25 of 42.25, still less
  CHECK(measured<ms::nvfp4_single>(x, 2, 32, 1.0f).worst_col == 16);

  ms::quantization_metrics sum, tie = m;
  CHECK(std::isnan(sum.worst_db()));
  sum += m;
  tie.worst_row = 7;
  sum += tie;
  CHECK((sum.worst_row == 0 && sum.worst_ratio == m.worst_ratio));
  tie.worst_ratio *= 2;
  sum += tie;
  CHECK(sum.worst_row == 7);

  x[0] = std::numeric_limits<float>::quiet_NaN();
  const auto poisoned = measured<ms::nvfp4_exact>(x, 2, 32, 2688.0f);
  CHECK((poisoned.nan_scales == 1 && poisoned.nonfinite_blocks == 1 && poisoned.worst_col == 16));
}

TEST_CASE("a matrix large enough for a table of values, against its rows one by one") {
  const index_t rows = 120, cols = 300;
  const std::vector<float> x = difficult(rows, cols, 2);
  float reference = 0.0f;
  for (const float v : x) reference = std::isfinite(v) ? std::max(reference, std::fabs(v)) : reference;
  const auto whole = measured<ms::nvfp4>(x, rows, cols, reference);
  ms::quantization_metrics sum;
  for (index_t r = 0; r < rows; ++r) {
    const auto* row = x.data() + r * cols;
    auto one = measured<ms::nvfp4>({row, row + cols}, 1, cols, reference);
    one.worst_row = r;
    sum += one;
  }
  CHECK((whole.largest_error == sum.largest_error && whole.worst_ratio == sum.worst_ratio));
  CHECK((whole.worst_row == sum.worst_row && whole.worst_col == sum.worst_col && whole.blocks == sum.blocks));
  // Terms that are not negative, added in another order: 120 * 19 roundings of 2^-53 each way.
  CHECK(std::fabs(whole.noise - sum.noise) <= 2 * 120 * 19 * 0x1p-53 * sum.noise);
}

TEST_CASE("measure refuses a source of another shape") {
  const std::vector<float> x(60);
  guarded<ms::nvfp4> q(3, 20);
  CHECK(says(message_of([&] { ms::measure(ms::matrix(x, 20, 3), q.view()); }),
             "quantized shape: expected 20 x 3, got 3 x 20"));
  auto bad = q.view();
  bad.datum = nullptr;
  CHECK(says(message_of([&] { ms::measure(ms::matrix(x, 3, 20), bad); }), "datum"));
}
