// Quantizing to nearest even, under a reference that is given.
#include "host_bench.hpp"

int main(int argc, char** argv) {
  using namespace bench;
  using ms::nearest_even;
  add_memcpy();
  add_quantize<ms::nvfp4, float>("quantize", "nvfp4", nearest_even{});
  add_quantize<ms::ue5m3_fp4, float>("quantize", "ue5m3_fp4", nearest_even{});
  add_quantize<ms::mxfp4, float>("quantize", "mxfp4", nearest_even{});
  add_quantize<ms::mxfp8_e4m3, float>("quantize", "mxfp8_e4m3", nearest_even{});
  add_quantize<ms::nvfp4, ms::value<ms::bf16>>("quantize_bf16", "nvfp4", nearest_even{});
  add_quantize<ms::nvfp4, float>("quantize_columns", "nvfp4", nearest_even{}, ms::axis::col);
  add_quantize<ms::nvfp4_2d, float>("quantize", "nvfp4_2d", nearest_even{});
  add_quantize<ms::nvfp4, float>("quantize_2_threads", "nvfp4", nearest_even{}, ms::axis::row, {.threads = 2});
  add_quantize<ms::nvfp4, float>("quantize_avx2", "nvfp4", nearest_even{}, ms::axis::row,
                                 {.threads = 1, .simd = ms::simd_level::avx2});
  add_quantize<ms::nvfp4, float>("quantize_portable", "nvfp4", nearest_even{}, ms::axis::row,
                                 {.threads = 1, .simd = ms::simd_level::portable});
  add("quantize/nvfp4/sequential/l2", [](benchmark::State& state) {
    const auto in = ms::matrix(input(), sizes[0].rows, sizes[0].cols);
    for (auto _ : state) {
      ms::quantize_with(ms::sequential{}, in, stored<ms::nvfp4>(sizes[0]).view(), nearest_even{},
                        {.reference = &reference});
      benchmark::ClobberMemory();
    }
    count(state, sizes[0], sizeof(float) + stored_bytes<ms::nvfp4>);
  });
  // Rows of 4099 elements that lie 4101 apart: a tail in each, nothing aligned.
  add("quantize_awkward/nvfp4/host/l2", [](benchmark::State& state) {
    constexpr size s{"l2", 12, 4099};
    const auto in = ms::matrix(input() + 1, s.rows, s.cols, s.cols + 2);
    static ms::quantized<ms::nvfp4> q(s.rows, s.cols);
    for (auto _ : state) {
      ms::quantize_with(one_thread, in, q.view(), nearest_even{}, {.reference = &reference});
      benchmark::ClobberMemory();
    }
    count(state, s, sizeof(float) + stored_bytes<ms::nvfp4>);
  });
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
