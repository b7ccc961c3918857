// Quantizing and decoding again, without storing codes.
#include "host_bench.hpp"

namespace {

using namespace bench;

template <class S>
void add_fake_quantize(const std::string& scheme) {
  for (const size& s : sizes) {
    add("fake_quantize/" + scheme + "/host/" + s.name, [&s](benchmark::State& state) {
      const auto in = ms::matrix(input(), s.rows, s.cols);
      const auto out = ms::matrix(output(), s.rows, s.cols);
      for (auto _ : state) {
        ms::fake_quantize_into<S>(one_thread, in, out, {.reference = &reference});
        benchmark::ClobberMemory();
      }
      count(state, s, 2.0 * sizeof(float));
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_memcpy();
  add_fake_quantize<ms::nvfp4>("nvfp4");
  add_fake_quantize<ms::ue5m3_fp4>("ue5m3_fp4");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
