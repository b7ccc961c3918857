// The NVFP4 schemes on the GPU against the definition on the host.
#include "tensor_test.cuh"

int main(int argc, char** argv) {
  using namespace device_test;
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_scheme<ms::nvfp4, true>(t, r, "nvfp4");
  test_scheme<ms::nvfp4_2d>(t, r, "nvfp4_2d");
  test_scheme<ms::nvfp4_4over6>(t, r, "nvfp4_4over6");
  test_scheme<ms::nvfp4_torchao>(t, r, "nvfp4_torchao");
  test_scheme<ms::nvfp4_modelopt>(t, r, "nvfp4_modelopt");
  test_scheme<ms::nvfp4_compressed_tensors>(t, r, "nvfp4_compressed_tensors");
  test_scheme<ms::nvfp4_torchao_reciprocal>(t, r, "nvfp4_torchao_reciprocal");
  test_scheme<ms::nvfp4_modelopt_reciprocal>(t, r, "nvfp4_modelopt_reciprocal");
  test_scheme<ms::nvfp4_compressed_tensors_reciprocal>(t, r, "nvfp4_compressed_tensors_reciprocal");
  return r.finish();
}
