// A scheme of each kind of arithmetic and a GEMM of each, to be compiled with flags that change what a compiler makes
// of floating-point numbers (--use_fast_math, -ftz=true, -G): the bits must be those of the host all the same.
#include <microscale/cuda/gemm.cuh>

#include "tensor_test.cuh"

namespace {

using namespace device_test;

template <class S>
void test_both_ways(quantize_tester& t, results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  test_rounding<S, ms::nearest_even, true, float>(t, f, "nearest_even");
  test_rounding<S, ms::stochastic_midpoint8, false, bf16>(t, f, "stochastic_midpoint8");
  test_dequantize<S>(t, r, f);
  r.end_group(name);
}

// Products with scales and data in the subnormal range.
template <class P>
void test_product(quantize_tester& t, results& r, const char* name) {
  random_source random(9);
  constexpr index_t m = 24, k = 200;
  ms::quantized<ms::mxfp8_e5m2> a(m, k);
  const auto host = a.view();
  for (index_t i = 0; i < m * k; ++i) host.codes[i] = static_cast<std::uint8_t>(random.bits() & 0x83u);
  for (index_t i = 0; i < m * 7; ++i) host.scales[i] = static_cast<std::uint8_t>(50 + random.below(20));
  t.memory().reset();
  auto device = host;
  device.codes = t.memory().take(m * k);
  device.scales = t.memory().take(m * 7);
  check(cudaMemcpy(device.codes, host.codes, m * k, cudaMemcpyHostToDevice), "copy");
  check(cudaMemcpy(device.scales, host.scales, m * 7, cudaMemcpyHostToDevice), "copy");
  std::vector<float> expected(m * m);
  ms::gemm_into<P>(ms::sequential{}, host, host, ms::matrix(expected.data(), m, m), {.alpha = 0.75f});
  std::uint8_t* const c = t.memory().take(m * m * 4);
  ms::gemm_into<P>(ms::cuda{}, device, device, ms::matrix(reinterpret_cast<float*>(c), m, m), {.alpha = 0.75f});
  synchronize(name);
  r.expect(t.same_matrix(element_type::f32, c, m, m, m, expected.data()), name);
  r.add_elements(m * m);
  r.end_group(name);
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_both_ways<ms::nvfp4>(t, r, "nvfp4");
  test_both_ways<ms::nvfp4_4over6>(t, r, "nvfp4_4over6");
  test_both_ways<ms::nvfp4_compressed_tensors_reciprocal>(t, r, "nvfp4_compressed_tensors_reciprocal");
  test_both_ways<ms::ue5m3_fp4_2d>(t, r, "ue5m3_fp4_2d");
  test_both_ways<ms::nvfp4_exact>(t, r, "nvfp4_exact");
  test_both_ways<ms::mxfp8_e5m2>(t, r, "mxfp8_e5m2");
  test_both_ways<ms::ufp4>(t, r, "ufp4");
  test_product<ms::exact_f32>(t, r, "exact_f32");
  test_product<ms::f32_blocks>(t, r, "f32_blocks");
  test_product<ms::blackwell_k64>(t, r, "blackwell_k64");
  return r.finish();
}
