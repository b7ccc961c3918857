// Every arithmetic that differs from the others, once: each scale rule, each kind of element and scale format,
// policies, a stochastic rounding, the GEMM accumulations, the transform.
#include <microscale/block/rule_adaptors.hpp>

#include "checksums.hpp"

namespace ms = microscale;

// Rules made from rules: a search over neighbouring scales, with headroom.
using searching = ms::scheme<ms::e2m1, ms::ue4m3, ms::block<1, 16>,
                             ms::search_scale<ms::with_headroom<ms::amax_over_max, 17, 16>, ms::squared_error, 2, 3>>;

int main(int argc, char** argv) {
  using namespace checksums;
  if (!enter_environment(argc, argv)) return 2;
  scheme<ms::nvfp4, true>("nvfp4");
  scheme<ms::nvfp4_4over6, true>("nvfp4_4over6");
  scheme<ms::nvfp4_torchao>("nvfp4_torchao");
  scheme<ms::nvfp4_modelopt>("nvfp4_modelopt");
  scheme<ms::nvfp4_compressed_tensors>("nvfp4_compressed_tensors");
  scheme<ms::nvfp4_exact>("nvfp4_exact");
  scheme<ms::nvfp4_single>("nvfp4_single");
  scheme<ms::ue5m3_fp4, true>("ue5m3_fp4, stochastic", ms::stochastic_midpoint8{7, 3});
  scheme<ms::mxint8>("mxint8");
  scheme<ms::ufp4, true>("ufp4");
  policy<ms::mxfp8_e5m2, ms::nonfinite::owner>("mxfp8_e5m2/owner");
  policy<ms::nvfp4, ms::nonfinite::saturate>("nvfp4/saturate");
  scheme<searching>("a search over scales");
  // Operands of schemes above: 64-bit dot products, and the widest sums.
  gemms<ms::nvfp4, ms::nvfp4_exact>("nvfp4 nvfp4_exact");
  gemms<ms::mxint8, ms::ufp4>("mxint8 ufp4");
  transforms();
}
