// The schemes of the field, by name. A name says whose arithmetic it is; scale_rule.hpp and tensor_scale.hpp carry
// the operations and their sources.
#pragma once

#include "../number/formats.hpp"
#include "folded_rule.hpp"
#include "ms_eden_rule.hpp"
#include "scheme.hpp"

namespace microscale {

// E2M1 under UE5M3 scales, arXiv 2609.02846: 1x16 and 1x32 for activations and gradients, squares for weights.
struct ue5m3_fp4 : scheme<e2m1, ue5m3_ieee, block<1, 16>, ue5m3_paper_rule<>, encode_ratio<448>, nonfinite::owner> {};
struct ue5m3_fp4_2d : with_block<ue5m3_fp4, block<16, 16>> {};
struct ue5m3_fp4_b32 : with_block<ue5m3_fp4, block<1, 32>> {};
struct ue5m3_fp4_b32_2d : with_block<ue5m3_fp4, block<32, 32>> {};
// Decoded as code (s D), as the authors' portable reference does; the same codes and scales.
struct ue5m3_fp4_scale_first : scheme<e2m1, ue5m3_ieee, block<1, 16>, ue5m3_paper_rule<decode_order::scale_first>,
                                      encode_ratio<448>, nonfinite::owner> {};

// NVFP4: E2M1 under UE4M3 scales, in the arithmetic of five owners.
struct nvfp4 : scheme<e2m1, ue4m3, block<1, 16>, transformer_engine_rule, stored_amax<448>, nonfinite::owner> {};
struct nvfp4_2d : with_block<nvfp4, block<16, 16>> {};
struct nvfp4_4over6 : scheme<e2m1, ue4m3, block<1, 16>, four_over_six_rule, stored_amax<256>, nonfinite::owner> {};
struct nvfp4_torchao : scheme<e2m1, ue4m3, block<1, 16>, torchao_rule<>, decode_ratio<>, nonfinite::owner> {};
struct nvfp4_modelopt : scheme<e2m1, ue4m3, block<1, 16>, modelopt_rule, decode_ratio<>, nonfinite::owner> {};
struct nvfp4_compressed_tensors
    : scheme<e2m1, ue4m3, block<1, 16>, compressed_tensors_rule<>, encode_product<>, nonfinite::owner> {};
// The same three as torch computes them on CUDA, where a division by a constant is a multiplication.
struct nvfp4_torchao_reciprocal : scheme<e2m1, ue4m3, block<1, 16>, torchao_rule<constant_division::reciprocal>,
                                         decode_ratio<constant_division::reciprocal>, nonfinite::owner> {};
struct nvfp4_modelopt_reciprocal
    : scheme<e2m1, ue4m3, block<1, 16>, modelopt_rule, decode_ratio<constant_division::reciprocal>, nonfinite::owner> {
};
struct nvfp4_compressed_tensors_reciprocal
    : scheme<e2m1, ue4m3, block<1, 16>, compressed_tensors_rule<constant_division::reciprocal>, encode_product<>,
             nonfinite::owner> {};

// This library's own: every rounding is the rounding of the exact quotient.
struct nvfp4_exact : scheme<e2m1, ue4m3, block<1, 16>, exact_rule, exact_ratio<448>> {};
struct ue5m3_fp4_exact : scheme<e2m1, ue5m3_ieee, block<1, 16>, exact_rule, exact_ratio<448>> {};

// One level only, no tensor scale: s = RNE(amax / 6), division.
struct nvfp4_single : scheme<e2m1, ue4m3, block<1, 16>, amax_over_max> {};
struct ue5m3_single : scheme<e2m1, ue5m3, block<1, 16>, amax_over_max> {};

// OCP MX v1.0 and the other two scale rules in use.
struct mxfp4 : scheme<e2m1, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxfp4_even : scheme<e2m1, e8m0, block<1, 32>, mx_rule<mx_scale::even>> {};
struct mxfp4_ceil : scheme<e2m1, e8m0, block<1, 32>, mx_rule<mx_scale::ceil>> {};
struct mxfp4_ceil_2d : with_block<mxfp4_ceil, block<32, 32>> {};
struct mxfp6_e2m3 : scheme<e2m3, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxfp6_e3m2 : scheme<e3m2, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxfp8_e4m3 : scheme<e4m3, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxfp8_e5m2 : scheme<e5m2, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxfp8_e4m3_ceil : scheme<e4m3, e8m0, block<1, 32>, mx_rule<mx_scale::ceil>> {};
struct mxfp8_e5m2_ceil : scheme<e5m2, e8m0, block<1, 32>, mx_rule<mx_scale::ceil>> {};
struct mxint8 : scheme<int8, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};
struct mxint8_full : scheme<int8_full, e8m0, block<1, 32>, mx_rule<mx_scale::floor>> {};

// arXiv 2606.20381: the uniform grid of E1M2, one FP32 scale per block.
struct ufp4 : scheme<e1m2, f32, block<1, 16>, amax_over_max_or_one, no_tensor_scale, nonfinite::owner> {};

// arXiv 2601.22813 (Quartet II): E2M1 under UE4M3 scales that are corrected and rounded stochastically. Its rounding is
// with_scale_draws<>.
struct nvfp4_ms_eden : scheme<e2m1, ue4m3, block<1, 16>, ms_eden_rule, ms_eden_ratio> {};

// arXiv 2610.00053: MXFP4 with the sixth of E2M1 folded into the tensor's factor.
struct mxfp4_folded : scheme<e2m1, e8m0, block<1, 32>, folded_rule<halving::never>, folded_largest> {};
struct mxfp4_folded_2d : scheme<e2m1, e8m0, block<32, 32>, folded_rule<halving::below_87>, folded_largest> {};

}  // namespace microscale
