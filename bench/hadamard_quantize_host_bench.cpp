// The 16-point Hadamard transform and quantization in one pass, beside quantization alone and the transform alone.
#include <microscale/tensor/hadamard_quantize.hpp>

#include "host_bench.hpp"

namespace {

using namespace bench;

template <class S>
void add_hadamard_quantize(const std::string& scheme) {
  for (const size& s : sizes) {
    add("hadamard_quantize/" + scheme + "/host/" + s.name, [&s](benchmark::State& state) {
      const auto in = ms::matrix(input(), s.rows, s.cols);
      const auto signs = ms::hadamard_signs::transformer_engine();
      for (auto _ : state) {
        ms::hadamard_quantize_with<16>(one_thread, in, stored<S>(s).view(), signs, ms::nearest_even{},
                                       {.reference = &reference});
        benchmark::ClobberMemory();
      }
      count(state, s, sizeof(float) + stored_bytes<S>);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_memcpy();
  add_quantize<ms::nvfp4, float>("quantize", "nvfp4", ms::nearest_even{});
  add_hadamard_quantize<ms::nvfp4>("nvfp4");
  for (const size& s : sizes) {
    add(std::string("hadamard/f32/host/") + s.name, [&s](benchmark::State& state) {
      const auto in = ms::matrix(input(), s.rows, s.cols);
      const auto out = ms::matrix(output(), s.rows, s.cols);
      for (auto _ : state) {
        ms::hadamard_into(one_thread, in, out, {.size = 16});
        benchmark::ClobberMemory();
      }
      count(state, s, 2.0 * sizeof(float));
    });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
