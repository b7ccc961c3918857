// The formats that convert through CUDA's headers against the library's own: on the host, where the headers compute,
// for every float with any upper 20 bits and lower ones that are all zeros, one, or all ones (no format keeps more than
// five bits of a significand, so the rest only counts as zero or not); and through a scheme. On a GPU, where there is
// one, the same by its own conversions.
#include <cmath>

#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <microscale/cuda/toolkit_formats.cuh>

#include "device_test.cuh"

namespace {

namespace ms = microscale;
using namespace device_test;

constexpr std::uint32_t lower_bits[] = {0, 1, 0xFFF};

template <class F>
MICROSCALE_HD bool agrees(std::uint32_t upper, std::uint32_t lower) {
  const float x = ms::fp32::from_bits(upper << 12 | lower);
  return ms::toolkit_format<F>::encode(x) == F::encode(x);
}

template <class F>
__global__ void compare_kernel(unsigned long long* wrong) {
  const std::uint32_t upper = blockIdx.x * blockDim.x + threadIdx.x;
  const bool bad = !agrees<F>(upper, 0) || !agrees<F>(upper, 1) || !agrees<F>(upper, 0xFFF);
  if (bad) atomicAdd(wrong, 1ull);
}

template <class F>
void test_format(results& r, const char* name, bool has_gpu) {
  std::atomic<std::uint64_t> wrong{0};
  parallel_for(
      1 << 20,
      [&](std::int64_t upper) {
        for (const std::uint32_t lower : lower_bits) wrong += !agrees<F>(static_cast<std::uint32_t>(upper), lower);
      },
      4096);
  r.expect(wrong == 0, std::string(name) + " on the host: " + std::to_string(wrong.load()));
  r.add_elements(3 << 20);
  // Other roundings and overflows are the format's own.
  for (const float x : {1.3f, -0.7f, 1e9f, -1e-9f}) {
    using toolkit = ms::toolkit_format<F>;
    r.expect(toolkit::encode(x, ms::toward_zero{}) == F::encode(x, ms::toward_zero{}), name);
    r.expect(toolkit::encode(x, ms::nearest_even{}, ms::overflow::ieee) ==
                 F::encode(x, ms::nearest_even{}, ms::overflow::ieee),
             name);
  }
  if (has_gpu) {
    const device_array<unsigned long long> count(std::vector<unsigned long long>{0});
    compare_kernel<F><<<1 << 12, 1 << 8>>>(count.data());
    synchronize(name);
    r.expect(count.host()[0] == 0, std::string(name) + " on the GPU: " + std::to_string(count.host()[0]));
    r.add_elements(3 << 20);
  }
  r.end_group(name);
}

// A scheme whose elements are the toolkit's gives the blocks of the one it stands for.
using toolkit_mxfp8 =
    ms::scheme<ms::toolkit_format<ms::e4m3>, ms::e8m0, ms::block<1, 32>, ms::amax_over_max, ms::no_tensor_scale>;
using own_mxfp8 = ms::scheme<ms::e4m3, ms::e8m0, ms::block<1, 32>, ms::amax_over_max, ms::no_tensor_scale>;

void test_scheme(results& r) {
  random_source random(5);
  for (int i = 0; i < 1000; ++i) {
    float x[32];
    for (float& v : x) v = (random.uniform() - 0.5f) * std::ldexp(1.0f, random.below(30) - 15);
    const auto a = ms::quantize_block<toolkit_mxfp8>(x, 1.0f);
    const auto b = ms::quantize_block<own_mxfp8>(x, 1.0f);
    r.expect(a.scale == b.scale && std::memcmp(a.codes, b.codes, sizeof a.codes) == 0, "block " + std::to_string(i));
  }
  r.end_group("in a scheme");
}

}  // namespace

int main() {
  int devices = 0;
  const bool has_gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  results r;
  test_format<ms::e2m1>(r, "e2m1", has_gpu);
  test_format<ms::e2m3>(r, "e2m3", has_gpu);
  test_format<ms::e3m2>(r, "e3m2", has_gpu);
  test_format<ms::e4m3>(r, "e4m3", has_gpu);
  test_format<ms::e5m2>(r, "e5m2", has_gpu);
  test_scheme(r);
  return r.finish();
}
