// nccl_maximum on a communicator of one rank: the number comes back as it was, by the host's call and in place on the
// device, and serves a layer as its reduction.
#include <microscale/recipe/linear.cuh>
#include <microscale/recipe/nccl.cuh>
#include <microscale/recipe/recipes.hpp>

#include "device_test.cuh"

using namespace device_test;
namespace ms = microscale;

int main() {
  need_gpu();
  results r;
  ncclComm_t communicator = nullptr;
  const int device = 0;
  if (ncclCommInitAll(&communicator, 1, &device) != ncclSuccess) {
    std::printf("FAILED: ncclCommInitAll\n");
    return 1;
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  {
    const device_array<float> buffer(1), amax(std::vector<float>{3.25f});
    const ms::nccl_maximum maximum{communicator, stream, buffer.data()};
    for (const float x : {0.0f, 1.5f, 0x1p-149f, 0x1.fffffep127f, bits_float(0x7F800000u)}) {
      r.expect(float_bits(maximum(x)) == float_bits(x), "a number of the host's");
    }
    maximum.on_device(amax.data());
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    r.expect(amax.host()[0] == 3.25f, "a number in device memory");

    // A layer whose references come through it is the layer without.
    ms::cuda_linear<ms::recipes::ue5m3, ms::exact_f32> layer(16, 16, {}), alone(16, 16, {});
    const device_array<float> x(std::vector<float>(256, -2.5f)), y(256), expected(256);
    const auto m = [](const device_array<float>& a) { return ms::matrix(a.data(), 16, 16); };
    layer.forward(ms::cuda{stream}, {}, m(x), m(x), m(y), maximum);
    alone.forward(ms::cuda{stream}, {}, m(x), m(x), m(expected));
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    r.expect(layer.state().activation.amax == 2.5f && layer.state() == alone.state(), "the references of a layer");
    r.expect(y.host() == expected.host() && y.host()[0] > 99.0f, "its output");
  }
  r.end_group("one rank");
  ncclCommDestroy(communicator);
  cudaStreamDestroy(stream);
  return r.finish();
}
