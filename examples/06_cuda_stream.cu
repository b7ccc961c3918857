// Quantize two matrices and multiply them, on a stream, in memory that you own.
#include <cstdio>
#include <microscale/microscale.cuh>

namespace ms = microscale;

template <class T>
T* allocate(ms::index_t n) {
  void* p = nullptr;
  return cudaMalloc(&p, static_cast<std::size_t>(n) * sizeof(T)) == cudaSuccess ? static_cast<T*>(p) : nullptr;
}
ms::quantized_view<ms::nvfp4> allocate_nvfp4(ms::index_t rows, ms::index_t cols) {
  const auto size = ms::size_of<ms::nvfp4>(rows, cols);
  auto *codes = allocate<std::uint8_t>(size.code_bytes), *scales = allocate<std::uint8_t>(size.scales);
  return ms::quantized_view_of<ms::nvfp4>(codes, scales, allocate<float>(1), rows, cols);
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU here"), 0;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const auto x = ms::matrix(allocate<ms::value<ms::bf16>>(64 * 256), 64, 256);    // activations
  const auto w = ms::matrix(allocate<ms::value<ms::bf16>>(128 * 256), 128, 256);  // weights
  const auto y = ms::matrix(allocate<float>(64 * 128), 64, 128);
  cudaMemsetAsync(x.data, 0x3F, 64 * 256 * 2, stream);   // 0x3F3F is 0.74609375
  cudaMemsetAsync(w.data, 0x40, 128 * 256 * 2, stream);  // 0x4040 is 3

  const ms::cuda gpu{.stream = stream};
  const auto qx = allocate_nvfp4(64, 256), qw = allocate_nvfp4(128, 256);
  const std::span<std::byte> workspace(allocate<std::byte>(4), 4);  // as ms::quantize_workspace says
  ms::quantize_into(gpu, x, qx, {}, workspace);
  ms::quantize_into(gpu, w, qw, {}, workspace);
  ms::gemm_into<ms::blackwell_k64>(gpu, qx, qw, y);  // y = x wᵀ; nothing has waited so far
  float first = 0;
  cudaMemcpyAsync(&first, y.data, sizeof first, cudaMemcpyDeviceToHost, stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 1;
  std::printf("y[0] = %g\n", static_cast<double>(first));
}
