#include <microscale/cuda/hadamard.cuh>

#include "cuda.cuh"

namespace microscale_torch {
namespace {

template <class = void>
__global__ void multiply_kernel(const float* a, const float* b, float* out) {
  out[0] = ms::fp32::mul(*a, *b);
  out[1] = 0.0f;
}

class cuda_device final : public device_operations {
 public:
  cuda_device() { add_device(backend::cuda, this); }

  void amax(const place& at, const matrix_memory& in, float* out) const override {
    with_view(in, [&](auto view) { ms::amax_into(cuda::executor(at), view, out); });
  }
  void hadamard(const place& at, const matrix_memory& in, const matrix_memory& out,
                const ms::hadamard_options& options) const override {
    with_view(in, [&](auto from) {
      with_view(out, [&](auto to) { ms::hadamard_into(cuda::executor(at), from, to, options); });
    });
  }
  void draw_signs(const place& at, ms::random_key key, const std::uint64_t* stream_offset,
                  ms::hadamard_signs* out) const override {
    ms::draw_signs_into(cuda::executor(at), key, stream_offset, out);
  }
  void multiply(const place& at, const float* a, const float* b, float* out) const override {
    multiply_kernel<><<<1, 1, 0, static_cast<cudaStream_t>(at.stream)>>>(a, b, out);
  }
};

const cuda_device built;

}  // namespace
}  // namespace microscale_torch
