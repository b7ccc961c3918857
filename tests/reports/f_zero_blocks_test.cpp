// F. Zero blocks.
#include "blocks.hpp"

#include <microscale/conformance/named_schemes.hpp>

using namespace reports;

TEST_CASE("F1 a block of zeros, of either sign, is zeros under every scheme and every reference") {
  ms::conformance::visit_named_schemes([]<class S>(const char* name) {
    INFO(name);
    for (const float reference : {0.0f, 1e-45f, 1e-30f, 1.0f, 2688.0f, 1e30f}) {
      for (const float zero : {0.0f, -0.0f}) {
        const auto o = quantized<S>(std::vector<float>(S::block::elements, zero), reference);
        CHECK(S::scale::is_finite(static_cast<typename S::scale::storage>(o.scale)));
        bool zeros = true;
        for (int i = 0; i < S::block::elements; ++i) {
          const auto at = static_cast<std::size_t>(i);
          zeros = zeros && o.values[at] == 0.0f && (zero < 0 || (o.codes[at] & 7) == 0);
        }
        CHECK(zeros);
      }
    }
  });
}

TEST_CASE("F3 what stands in for the scale of a zero block is chosen after all scaling") {
  // A zero block in a tensor whose amax is tiny: 1.0 times the encode multiplier must not reach the scale.
  for (const float amax : {1e-4f, 1e-10f, 1e-30f, 1e-38f}) {
    CHECK(quantized<ms::nvfp4_modelopt>({}, amax).scale == 0x38);
    CHECK(quantized<ms::nvfp4_compressed_tensors>({}, amax).scale == 0x20);
    CHECK(quantized<ms::nvfp4_torchao>({}, amax).scale == 0x08);
    CHECK(quantized<ms::nvfp4>({}, amax).scale == 0x00);
    CHECK(quantized<ms::ue5m3_fp4>({}, amax).scale == 0x78);
    CHECK(quantized<ms::nvfp4_modelopt>({amax}, amax).scale == 0x7E);  // its neighbour
  }
}
