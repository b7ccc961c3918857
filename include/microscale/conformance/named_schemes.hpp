// The named schemes, with their names as text; but for nvfp4_ms_eden, whose scales are drawn, and which has no result
// without the draws.
#pragma once

#include <type_traits>

#include "../block/schemes.hpp"

namespace microscale::conformance {

// Calls f<S>(name) for each named scheme.
template <class F>
void visit_named_schemes(F&& f) {
  f.template operator()<nvfp4>("nvfp4");
  f.template operator()<nvfp4_2d>("nvfp4_2d");
  f.template operator()<nvfp4_4over6>("nvfp4_4over6");
  f.template operator()<nvfp4_torchao>("nvfp4_torchao");
  f.template operator()<nvfp4_torchao_reciprocal>("nvfp4_torchao_reciprocal");
  f.template operator()<nvfp4_modelopt>("nvfp4_modelopt");
  f.template operator()<nvfp4_modelopt_reciprocal>("nvfp4_modelopt_reciprocal");
  f.template operator()<nvfp4_compressed_tensors>("nvfp4_compressed_tensors");
  f.template operator()<nvfp4_compressed_tensors_reciprocal>("nvfp4_compressed_tensors_reciprocal");
  f.template operator()<nvfp4_exact>("nvfp4_exact");
  f.template operator()<nvfp4_single>("nvfp4_single");
  f.template operator()<ue5m3_fp4>("ue5m3_fp4");
  f.template operator()<ue5m3_fp4_2d>("ue5m3_fp4_2d");
  f.template operator()<ue5m3_fp4_b32>("ue5m3_fp4_b32");
  f.template operator()<ue5m3_fp4_b32_2d>("ue5m3_fp4_b32_2d");
  f.template operator()<ue5m3_fp4_exact>("ue5m3_fp4_exact");
  f.template operator()<ue5m3_single>("ue5m3_single");
  f.template operator()<mxfp4>("mxfp4");
  f.template operator()<mxfp4_even>("mxfp4_even");
  f.template operator()<mxfp4_ceil>("mxfp4_ceil");
  f.template operator()<mxfp4_ceil_2d>("mxfp4_ceil_2d");
  f.template operator()<mxfp4_folded>("mxfp4_folded");
  f.template operator()<mxfp4_folded_2d>("mxfp4_folded_2d");
  f.template operator()<mxfp6_e2m3>("mxfp6_e2m3");
  f.template operator()<mxfp6_e3m2>("mxfp6_e3m2");
  f.template operator()<mxfp8_e4m3>("mxfp8_e4m3");
  f.template operator()<mxfp8_e5m2>("mxfp8_e5m2");
  f.template operator()<mxfp8_e4m3_ceil>("mxfp8_e4m3_ceil");
  f.template operator()<mxfp8_e5m2_ceil>("mxfp8_e5m2_ceil");
  f.template operator()<mxint8>("mxint8");
  f.template operator()<mxint8_full>("mxint8_full");
  f.template operator()<ufp4>("ufp4");
}

// The name of S, or null where it has none.
template <quantization_scheme S>
const char* scheme_name() {
  const char* name = nullptr;
  visit_named_schemes([&]<class T>(const char* text) {
    if constexpr (std::is_same_v<S, T>) name = text;
  });
  return name;
}

// Whether results of T can be held against those of S: the same elements, blocks and size of a scale.
template <class S, class T>
inline constexpr bool is_comparable =
    S::element::bits ==
    T::element::bits&& std::is_same_v<typename S::scale::storage, typename T::scale::storage>&& S::block::rows ==
    T::block::rows&& S::block::columns == T::block::columns;

// Calls f<T>(name) for each named scheme whose results can be held against those of S.
template <quantization_scheme S, class F>
void visit_comparable_schemes(F&& f) {
  visit_named_schemes([&]<class T>(const char* name) {
    if constexpr (is_comparable<S, T>) f.template operator()<T>(name);
  });
}

}  // namespace microscale::conformance
