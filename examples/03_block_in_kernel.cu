// Your own kernel, with a quantization step in it: a block of 16 in registers becomes codes and a scale.
#include <cstdio>
#include <vector>

#include <microscale/microscale.cuh>

namespace ms = microscale;

template <class Scheme>
__global__ void square_and_quantize(const float* in, float reference, ms::quantized_block<Scheme>* out) {
  const int block = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float x[16];
  for (int i = 0; i < 16; ++i) x[i] = in[16 * block + i] * in[16 * block + i];  // whatever the kernel is for
  out[block] = ms::quantize_block<Scheme>(x, reference);
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU here"), 0;
  constexpr int blocks = 64;
  std::vector<float> in(16 * blocks);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 23) - 11.0f;

  float* device_in = nullptr;
  ms::quantized_block<ms::ue5m3_fp4>* device_out = nullptr;
  cudaMalloc(&device_in, in.size() * sizeof(float));
  cudaMalloc(&device_out, blocks * sizeof *device_out);
  cudaMemcpy(device_in, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice);
  square_and_quantize<<<1, blocks>>>(device_in, 121.0f, device_out);

  ms::quantized_block<ms::ue5m3_fp4> first;
  if (cudaMemcpy(&first, device_out, sizeof first, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  std::printf("scale %02x, codes", first.scale);
  for (const auto code : first.codes) std::printf(" %x", code);
  std::printf("\n");
  cudaFree(device_in), cudaFree(device_out);
}
