// Every named scheme, whole tensors and block functions, and every policy of three of them.
#include <microscale/conformance/named_schemes.hpp>

#include "checksums.hpp"

namespace {

namespace ms = microscale;

template <class S>
void every_policy(const std::string& name) {
  checksums::policy<S, ms::nonfinite::owner>(name + "/owner");
  checksums::policy<S, ms::nonfinite::poison>(name + "/poison");
  checksums::policy<S, ms::nonfinite::reject>(name + "/reject");
  checksums::policy<S, ms::nonfinite::saturate>(name + "/saturate");
}

}  // namespace

int main(int argc, char** argv) {
  if (!checksums::enter_environment(argc, argv)) return 2;
  ms::conformance::visit_named_schemes([]<class S>(const char* name) { checksums::scheme<S, true>(name); });
  checksums::scheme<ms::ue5m3_fp4_scale_first, true>("ue5m3_fp4_scale_first");
  every_policy<ms::nvfp4>("nvfp4");
  every_policy<ms::mxfp8_e5m2>("mxfp8_e5m2");
  every_policy<ms::ufp4>("ufp4");
}
