// E2M1 under UE5M3 scales, the exact and the single-level schemes on the GPU against the definition on the host.
#include "tensor_test.cuh"

int main(int argc, char** argv) {
  using namespace device_test;
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_scheme<ms::ue5m3_fp4, true>(t, r, "ue5m3_fp4");
  test_scheme<ms::ue5m3_fp4_2d>(t, r, "ue5m3_fp4_2d");
  test_scheme<ms::ue5m3_fp4_b32>(t, r, "ue5m3_fp4_b32");
  test_scheme<ms::ue5m3_fp4_b32_2d>(t, r, "ue5m3_fp4_b32_2d");
  test_scheme<ms::ue5m3_fp4_scale_first>(t, r, "ue5m3_fp4_scale_first");
  test_scheme<ms::nvfp4_exact, true>(t, r, "nvfp4_exact");
  test_scheme<ms::ue5m3_fp4_exact>(t, r, "ue5m3_fp4_exact");
  test_scheme<ms::nvfp4_single>(t, r, "nvfp4_single");
  test_scheme<ms::ue5m3_single>(t, r, "ue5m3_single");
  test_scheme<ms::ufp4>(t, r, "ufp4");
  return r.finish();
}
