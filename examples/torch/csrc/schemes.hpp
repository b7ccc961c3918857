// Which schemes, roundings and products of schemes are built: those that the recipes of recipes.cpp use. One source
// file per family instantiates them for each device, so that they compile side by side.
#pragma once

#include <tuple>

#include <microscale/block/schemes.hpp>

#include "typed.hpp"

namespace microscale_torch {

// Scheme<S, roundings> and Gemm<A, B> are the classes of one device; making an object of a family builds its entries.
template <template <class, class> class Scheme, template <class, class> class Gemm>
struct families {
  using ue5m3 =
      std::tuple<Scheme<ms::ue5m3_fp4, nearest_and_midpoint8>, Scheme<ms::ue5m3_fp4_2d, nearest_and_midpoint8>,
                 Gemm<ms::ue5m3_fp4, ms::ue5m3_fp4_2d>, Gemm<ms::ue5m3_fp4, ms::ue5m3_fp4>>;
  using ue5m3_b32 =
      std::tuple<Scheme<ms::ue5m3_fp4_b32, nearest_and_midpoint8>, Scheme<ms::ue5m3_fp4_b32_2d, nearest_only>,
                 Gemm<ms::ue5m3_fp4_b32, ms::ue5m3_fp4_b32_2d>, Gemm<ms::ue5m3_fp4_b32, ms::ue5m3_fp4_b32>>;
  using nvfp4 = std::tuple<Scheme<ms::nvfp4, nearest_and_floor8>, Scheme<ms::nvfp4_2d, nearest_only>,
                           Gemm<ms::nvfp4, ms::nvfp4_2d>, Gemm<ms::nvfp4, ms::nvfp4>>;
  using one_level =
      std::tuple<Scheme<ms::nvfp4_single, nearest_and_midpoint8>, Gemm<ms::nvfp4_single, ms::nvfp4_single>>;
  using mx = std::tuple<Scheme<ms::mxfp4, nearest_and_midpoint8>, Scheme<ms::mxfp4_ceil_2d, nearest_and_midpoint8>,
                        Gemm<ms::mxfp4, ms::mxfp4>, Gemm<ms::mxfp4_ceil_2d, ms::mxfp4_ceil_2d>>;
  using mx8 = std::tuple<Scheme<ms::mxfp8_e4m3_ceil, nearest_only>, Gemm<ms::mxfp8_e4m3_ceil, ms::mxfp8_e4m3_ceil>>;
  using mx_folded =
      std::tuple<Scheme<ms::mxfp4_folded, nearest_and_midpoint8>, Scheme<ms::mxfp4_folded_2d, nearest_only>,
                 Gemm<ms::mxfp4_folded, ms::mxfp4_folded_2d>, Gemm<ms::mxfp4_folded, ms::mxfp4_folded>>;
  using ufp4 = std::tuple<Scheme<ms::ufp4, nearest_and_midpoint8>, Gemm<ms::ufp4, ms::ufp4>>;
  using four_over_six = std::tuple<Scheme<ms::nvfp4_4over6, nearest_only>, Gemm<ms::nvfp4_4over6, ms::nvfp4_4over6>>;
  using ms_eden = std::tuple<Scheme<ms::nvfp4_ms_eden, scale_draws_only>, Gemm<ms::nvfp4_ms_eden, ms::nvfp4_ms_eden>>;
};

}  // namespace microscale_torch
