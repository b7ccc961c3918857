// The program of a stranger who writes CUDA: the same two numbers, from a kernel where there is a GPU.
#include <cstdio>
#include <microscale/microscale.cuh>

float largest_ue5m3();  // other.cu

template <class Format>
__global__ void encode(float x, int* code) {
  *code = Format::encode(x);
}

int main() {
  namespace ms = microscale;
  int code = ms::e2m1::encode(2.5f);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    int* on_device = nullptr;
    if (cudaMalloc(&on_device, sizeof code) != cudaSuccess) return 1;
    encode<ms::e2m1><<<1, 1>>>(2.5f, on_device);
    if (cudaMemcpy(&code, on_device, sizeof code, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    cudaFree(on_device);
  }
  std::printf("microscale %d.%d.%d: e2m1(2.5) = %d, ue5m3(FE) = %.0f\n", ms::version_major, ms::version_minor,
              ms::version_patch, code, static_cast<double>(largest_ue5m3()));
}
