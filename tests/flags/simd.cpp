// The host's vector kernels at every level that the machine has: the sequential statement's bits, under any flag.
#include <microscale/host/packed_gemm.hpp>

#include <cstring>

#include "checksums.hpp"

namespace {

using namespace checksums;

bool failed = false;

template <class S, class R>
void host(const std::string& name, R rounding) {
  const float reference = number(0x123457, -20, false);
  const auto in = ms::matrix(finite.data(), rows, cols);
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    const bool row = along == ms::axis::row;
    const auto shape = [&](memory<S>& m) { return m.view(row ? rows : cols, row ? cols : rows); };
    memory<S> expected;
    ms::quantize_with(ms::sequential{}, in, shape(expected), rounding, {.axis = along, .reference = &reference});
    std::vector<float> decoded(finite.size());
    ms::dequantize_into(ms::sequential{}, shape(expected), ms::matrix(decoded, rows, cols), along);
    checksum sum;
    expected.add_to(sum);
    for (const float y : decoded) sum.add_float(y);
    sum.print("whole", name + (row ? " along rows" : " down columns"));
    for (const ms::simd_level level : {ms::simd_level::portable, ms::simd_level::avx2, ms::simd_level::avx512}) {
      const ms::host executor{.threads = 1, .simd = level};
      memory<S> m;
      ms::quantize_with(executor, in, shape(m), rounding, {.axis = along, .reference = &reference});
      std::vector<float> y(finite.size()), faked(finite.size());
      ms::dequantize_into(executor, shape(m), ms::matrix(y, rows, cols), along);
      ms::fake_quantize_into<S>(executor, in, ms::matrix(faked, rows, cols),
                                {.axis = along, .rounding = rounding, .reference = &reference});
      checksum at_level;
      m.add_to(at_level);
      for (const float e : faked) at_level.add_float(e);
      at_level.print("whole", name + (row ? " along rows, level " : " down columns, level ") +
                                  std::to_string(static_cast<int>(level)));
      const std::size_t bytes = y.size() * sizeof(float);
      if (m.codes != expected.codes || m.scales != expected.scales || m.datum != expected.datum ||
          std::memcmp(y.data(), decoded.data(), bytes) != 0 || std::memcmp(faked.data(), decoded.data(), bytes) != 0) {
        std::fprintf(stderr, "%s at level %d differs from the sequential statement\n", name.c_str(),
                     static_cast<int>(level));
        failed = true;
      }
    }
  }
}

// Quantized rows and rows of numbers times quantized ones, by tiles and row by row.
template <class S>
void products(const std::string& name) {
  memory<S> a, b;
  const float reference = number(5, -1, false);
  for (memory<S>* m : {&a, &b}) {
    ms::quantize_with(ms::sequential{}, ms::matrix(finite.data(), rows, cols), m->view(rows, cols), ms::nearest_even{},
                      {.reference = &reference});
  }
  const auto right = b.view(rows, cols);
  for (const ms::index_t count : {rows, ms::index_t{1}}) {
    auto left = a.view(rows, cols);
    left.rows = count;
    const auto numbers = ms::matrix(finite.data(), count, cols);
    std::vector<float> c(static_cast<std::size_t>(count * rows)), d(c), by_codes(c), by_numbers(c);
    ms::gemm_into<ms::f32_blocks>(ms::sequential{}, left, right, ms::matrix(c, count, rows));
    ms::gemm_into<ms::f32_blocks>(ms::sequential{}, numbers, right, ms::matrix(d, count, rows));
    checksum sum;
    for (const float y : c) sum.add_float(y);
    for (const float y : d) sum.add_float(y);
    sum.print("whole", "products of " + std::to_string(count) + " rows of " + name);
    for (const ms::simd_level level : {ms::simd_level::portable, ms::simd_level::avx2, ms::simd_level::avx512}) {
      const ms::host executor{.threads = 1, .simd = level};
      ms::gemm_into<ms::f32_blocks>(executor, left, right, ms::matrix(by_codes, count, rows));
      ms::gemm_into<ms::f32_blocks>(executor, numbers, right, ms::matrix(by_numbers, count, rows));
      const std::size_t bytes = c.size() * sizeof(float);
      if (std::memcmp(by_codes.data(), c.data(), bytes) != 0 || std::memcmp(by_numbers.data(), d.data(), bytes) != 0) {
        std::fprintf(stderr, "products of %s at level %d differ from the sequential statement\n", name.c_str(),
                     static_cast<int>(level));
        failed = true;
      }
    }
  }
}

// 1 times -1 under scales of 2^-127: -0, which is added to +0.
void first_term_underflows() {
  const std::uint8_t one[16] = {0x02}, minus_one[16] = {0x0A}, scale[1] = {0};
  const float datum = 1.0f;
  const ms::quantized_view<const ms::mxfp4> a{one, scale, &datum, 1, 32, 16, 1},
      b{minus_one, scale, &datum, 1, 32, 16, 1};
  for (const ms::simd_level level : {ms::simd_level::portable, ms::simd_level::avx2, ms::simd_level::avx512}) {
    float c = 1.0f;
    ms::gemm_into<ms::f32_blocks>(ms::host{.threads = 1, .simd = level}, a, b, ms::matrix(&c, 1, 1));
    if (ms::fp32::bits(c) != 0) {
      std::fprintf(stderr, "level %d: 0 + -0 is not +0\n", static_cast<int>(level));
      failed = true;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!enter_environment(argc, argv)) return 2;
  host<ms::ue5m3_fp4>("ue5m3_fp4, stochastic", ms::stochastic_midpoint8{7, 3});  // products, Philox
  host<ms::nvfp4_modelopt>("nvfp4_modelopt", ms::nearest_even{});                // quotients
  products<ms::nvfp4>("nvfp4");                                                  // exact terms
  products<ms::mxfp4>("mxfp4");  // one operation at a time where they are not
  first_term_underflows();
  return failed ? 1 : 0;
}
