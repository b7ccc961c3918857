// A training step's quantization in a CUDA graph, with a tensor scale that is sampled once and then held.
#include <cstdio>

#include <microscale/microscale.cuh>

namespace ms = microscale;

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU here"), 0;
  constexpr ms::index_t rows = 256, cols = 512;
  const auto size = ms::size_of<ms::ue5m3_fp4>(rows, cols);
  std::uint8_t *codes, *scales;
  float *in, *state;  // state: the tensor scale's datum, then the held reference
  cudaMalloc(&in, rows * cols * sizeof(float)), cudaMalloc(&state, 2 * sizeof(float));
  cudaMalloc(&codes, static_cast<std::size_t>(size.code_bytes)),
      cudaMalloc(&scales, static_cast<std::size_t>(size.scales));
  cudaMemset(in, 0x41, rows * cols * sizeof(float));  // 0x41414141 is 12.078431

  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const ms::cuda gpu{.stream = stream};
  const auto x = ms::matrix(static_cast<const float*>(in), rows, cols);
  const auto q = ms::quantized_view_of<ms::ue5m3_fp4>(codes, scales, state, rows, cols);

  ms::amax_into(gpu, x, state + 1);  // step 1 samples the reference; the next 49 hold it
  cudaGraph_t graph;
  cudaGraphExec_t step;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  ms::quantize_into(gpu, x, q, {.reference = state + 1});  // one kernel, no amax
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&step, graph, 0);
  for (int i = 0; i < 49; ++i) cudaGraphLaunch(step, stream);

  float datum = 0;
  cudaMemcpyAsync(&datum, state, sizeof datum, cudaMemcpyDeviceToHost, stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 1;
  std::printf("decode multiplier %g\n", static_cast<double>(datum));
}
