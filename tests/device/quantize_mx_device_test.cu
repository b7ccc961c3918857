// The MX schemes on the GPU against the definition on the host.
#include "tensor_test.cuh"

int main(int argc, char** argv) {
  using namespace device_test;
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_scheme<ms::mxfp4>(t, r, "mxfp4");
  test_scheme<ms::mxfp4_even>(t, r, "mxfp4_even");
  test_scheme<ms::mxfp4_ceil>(t, r, "mxfp4_ceil");
  test_scheme<ms::mxfp4_ceil_2d>(t, r, "mxfp4_ceil_2d");
  test_scheme<ms::mxfp6_e2m3>(t, r, "mxfp6_e2m3");
  test_scheme<ms::mxfp6_e3m2>(t, r, "mxfp6_e3m2");
  test_scheme<ms::mxfp8_e4m3, true>(t, r, "mxfp8_e4m3");
  test_scheme<ms::mxfp8_e5m2>(t, r, "mxfp8_e5m2");
  test_scheme<ms::mxfp8_e4m3_ceil>(t, r, "mxfp8_e4m3_ceil");
  test_scheme<ms::mxfp8_e5m2_ceil>(t, r, "mxfp8_e5m2_ceil");
  test_scheme<ms::mxint8>(t, r, "mxint8");
  test_scheme<ms::mxint8_full>(t, r, "mxint8_full");
  test_scheme<ms::mxfp4_folded>(t, r, "mxfp4_folded");
  test_scheme<ms::mxfp4_folded_2d>(t, r, "mxfp4_folded_2d");
  return r.finish();
}
