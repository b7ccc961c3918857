// Decoding to FP32 and to BF16.
#include "host_bench.hpp"

namespace {

using namespace bench;

template <class S, class T>
void add_dequantize(const std::string& operation, const std::string& scheme) {
  for (const size& s : sizes) {
    add(operation + "/" + scheme + "/host/" + s.name, [&s](benchmark::State& state) {
      const auto q = stored<S>(s).view();
      ms::quantize_with(one_thread, ms::matrix(input(), s.rows, s.cols), q, ms::nearest_even{},
                        {.reference = &reference});
      const auto out = ms::matrix(reinterpret_cast<T*>(output()), s.rows, s.cols);
      for (auto _ : state) {
        ms::dequantize_into(one_thread, q, out);
        benchmark::ClobberMemory();
      }
      count(state, s, sizeof(T) + stored_bytes<S>);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_memcpy();
  add_dequantize<ms::nvfp4, float>("dequantize", "nvfp4");
  add_dequantize<ms::ue5m3_fp4, float>("dequantize", "ue5m3_fp4");
  add_dequantize<ms::nvfp4, ms::value<ms::bf16>>("dequantize_bf16", "nvfp4");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
