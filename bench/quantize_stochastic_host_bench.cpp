// Stochastic rounding with Philox's bits, and rounding to nearest even beside it.
#include "host_bench.hpp"

int main(int argc, char** argv) {
  using namespace bench;
  add_memcpy();
  add_quantize<ms::nvfp4, float>("quantize", "nvfp4", ms::nearest_even{});
  add_quantize<ms::nvfp4, float>("quantize_stochastic", "nvfp4", ms::stochastic_midpoint8{7, 3});
  add_quantize<ms::ue5m3_fp4, float>("quantize_stochastic", "ue5m3_fp4", ms::stochastic_midpoint8{7, 3});
  add_quantize<ms::nvfp4, float>("quantize_stochastic_floor8", "nvfp4", ms::stochastic_floor8{7, 3});
  add_quantize<ms::nvfp4, float>("quantize_stochastic_16_bits", "nvfp4", ms::stochastic_midpoint16{7, 3});
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
