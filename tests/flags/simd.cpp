// The host's vector kernels at every level that the machine has: the sequential statement's bits, under any flag.
#include <microscale/host/executor.hpp>

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

}  // namespace

int main(int argc, char** argv) {
  if (!enter_environment(argc, argv)) return 2;
  host<ms::ue5m3_fp4>("ue5m3_fp4, stochastic", ms::stochastic_midpoint8{7, 3});  // products, Philox
  host<ms::nvfp4_modelopt>("nvfp4_modelopt", ms::nearest_even{});                // quotients
  return failed ? 1 : 0;
}
