// The recipes of the field, as declared by their sources. docs/recipes.md says of each what is a reading of its paper.
//
// A row names X and W (Fprop), dY and W (Dgrad), dY and X (Wgrad); what is not said is rounded to nearest and not
// transformed.
#pragma once

#include "recipe.hpp"

namespace microscale::recipes {

// No quantization: operands in BF16, the baseline.
struct bf16 {
  static constexpr const char* name = "bf16";
  using fprop = gemm_recipe<operand<bfloat16>, operand<bfloat16>>;
  using dgrad = fprop;
  using wgrad = fprop;
  current_scaling scaling = {};
  static constexpr bool high_precision(layer_role, int, int) noexcept { return true; }
};

// MXFP8 (arXiv 2506.08027): E4M3 in blocks of 32 under powers of two that clip nothing.
struct mxfp8 {
  static constexpr const char* name = "mxfp8";
  using fprop = gemm_recipe<operand<mxfp8_e4m3_ceil>, operand<mxfp8_e4m3_ceil>>;
  using dgrad = fprop;
  using wgrad = fprop;
  no_references scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// ---------------------------------------------------------------------------------------------------------------
// UE5M3 scales

// arXiv 2609.02846: UE5M3 scales, periodic tensor scaling, stochastic rounding of dY alone with its own draw in each
// GEMM, square blocks for weights, no transform; every internal linear layer in FP4, the head in high precision.
// `targets` are those of one layer: linear<ue5m3>(in, out, position, {.targets = {.output_gradient = 2048}}).
struct ue5m3 {
  static constexpr const char* name = "ue5m3";
  using fprop = gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4>>;
  periodic_scaling scaling{.period = 50};
  operand_targets targets = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept {
    return role == layer_role::head || role == layer_role::embedding;
  }
  constexpr int target(layer_role, int, int, operand_role operand, gemm_role) const noexcept {
    return targets.of(operand);
  }
};

// The same with blocks of 32.
struct ue5m3_b32 : ue5m3 {
  static constexpr const char* name = "ue5m3_b32";
  using fprop = gemm_recipe<operand<ue5m3_fp4_b32>, operand<ue5m3_fp4_b32_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8>, operand<ue5m3_fp4_b32_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8>, operand<ue5m3_fp4_b32>>;
};

// UE5M3 scales under TransformerEngine's settings for NVFP4: Hadamard transform on Wgrad, current scaling, the last
// block in BF16.
struct ue5m3_te {
  static constexpr const char* name = "ue5m3_te";
  using fprop = gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8, hadamard16_te>,
                            operand<ue5m3_fp4, nearest_even, hadamard16_te>>;
  current_scaling scaling = {};
  operand_targets targets = {};
  static constexpr bool high_precision(layer_role role, int index, int count) noexcept {
    return is_outside_blocks(role) || index == count - 1;
  }
  constexpr int target(layer_role, int, int, operand_role operand, gemm_role) const noexcept {
    return targets.of(operand);
  }
};

// The same in blocks of 32.
struct ue5m3_b32_te : ue5m3_te {
  static constexpr const char* name = "ue5m3_b32_te";
  using fprop = gemm_recipe<operand<ue5m3_fp4_b32>, operand<ue5m3_fp4_b32_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8>, operand<ue5m3_fp4_b32_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8, hadamard16_te>,
                            operand<ue5m3_fp4_b32, nearest_even, hadamard16_te>>;
};

// ---------------------------------------------------------------------------------------------------------------
// UE4M3 scales

// arXiv 2509.25149 and TransformerEngine: current scaling, stochastic rounding of dY, the Hadamard transform on both
// operands of Wgrad, square blocks for weights; embedding, head and the last block in BF16.
struct nvfp4 {
  static constexpr const char* name = "nvfp4";
  using fprop = gemm_recipe<operand<microscale::nvfp4>, operand<nvfp4_2d>>;
  using dgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8>, operand<nvfp4_2d>>;
  using wgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8, hadamard16_te>,
                            operand<microscale::nvfp4, nearest_even, hadamard16_te>>;
  current_scaling scaling = {};
  static constexpr bool high_precision(layer_role role, int index, int count) noexcept {
    return role == layer_role::head || role == layer_role::embedding || index == count - 1;
  }
};

// The same with the last `Blocks` blocks in BF16: 8 in the 8B runs of arXiv 2609.02846.
template <int Blocks>
struct nvfp4_keeping_last : nvfp4 {
  static constexpr const char* name = "nvfp4_keeping_last";
  static constexpr bool high_precision(layer_role role, int index, int count) noexcept {
    return is_outside_blocks(role) || index >= count - Blocks;
  }
};

// In every internal linear layer.
struct nvfp4_everywhere : nvfp4 {
  static constexpr const char* name = "nvfp4_everywhere";
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// Without the transform.
struct nvfp4_no_rht : nvfp4 {
  static constexpr const char* name = "nvfp4_no_rht";
  using wgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8>, operand<microscale::nvfp4>>;
};

// Without either: what arXiv 2609.02846 holds its recipe against.
struct nvfp4_everywhere_no_rht : nvfp4_no_rht {
  static constexpr const char* name = "nvfp4_everywhere_no_rht";
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// arXiv 2505.19115, FP4 All the Way: one level of scales; stochastic rounding of dY and, in Wgrad, of X. Later in a run
// the backward pass goes to BF16: is_below_noise (gradient_noise.hpp), linear::set_bf16_backward.
struct fp4_all_the_way {
  static constexpr const char* name = "fp4_all_the_way";
  using fprop = gemm_recipe<operand<nvfp4_single>, operand<nvfp4_single>>;
  using dgrad = gemm_recipe<operand<nvfp4_single, stochastic_midpoint8>, operand<nvfp4_single>>;
  using wgrad = gemm_recipe<operand<nvfp4_single, stochastic_midpoint8>, operand<nvfp4_single, stochastic_midpoint8>>;
  no_references scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// arXiv 2601.22813, Quartet II: forward to nearest with 4 over 6; backward with MS-EDEN under a random Hadamard
// transform, of what the forward pass made of X and W.
struct quartet2 {
  static constexpr const char* name = "quartet2";
  using eden = operand<nvfp4_ms_eden, with_scale_draws<nearest_even>, random_hadamard<32>>;
  using fprop = gemm_recipe<operand<nvfp4_4over6>, operand<nvfp4_4over6>>;
  using dgrad = gemm_recipe<eden, eden>;
  using wgrad = gemm_recipe<eden, eden>;
  static constexpr bool backward_from_quantized = true;
  current_scaling scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// arXiv 2605.06067: networks that keep X and W on a sphere need no amax; tensor scales are fixed before the first step
// (set_references).
struct ngpt {
  static constexpr const char* name = "ngpt";
  using fprop = gemm_recipe<operand<microscale::nvfp4>, operand<nvfp4_2d>>;
  using dgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8>, operand<nvfp4_2d>>;
  using wgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8>, operand<microscale::nvfp4>>;
  frozen_scaling scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// ---------------------------------------------------------------------------------------------------------------
// Powers of two, and FP32 scales

// arXiv 2607.24953: one 32x32 block serves both orientations of every operand, so each is quantized once and turned;
// the projections of Q and K in MXFP8.
struct transposition_invariant {
  static constexpr const char* name = "transposition_invariant";
  using fprop = gemm_recipe<operand<mxfp4_ceil_2d>, operand<mxfp4_ceil_2d>>;
  using dgrad = gemm_recipe<operand<mxfp4_ceil_2d, stochastic_midpoint8>, operand<mxfp4_ceil_2d>>;
  using wgrad = gemm_recipe<operand<mxfp4_ceil_2d, stochastic_midpoint8>, operand<mxfp4_ceil_2d>>;
  no_references scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }

  using alternative = mxfp8;
  static constexpr bool uses_alternative(layer_role role, int, int) noexcept {
    return role == layer_role::attention_q || role == layer_role::attention_k || role == layer_role::attention_qkv;
  }
};

// arXiv 2606.20381: the uniform grid of E1M2 under FP32 scales, a random Hadamard transform on both operands of all
// three GEMMs, stochastic rounding of dY only.
struct ufp4 {
  static constexpr const char* name = "ufp4";
  template <class Rounding>
  using rotated = operand<microscale::ufp4, Rounding, random_hadamard<16>>;
  using fprop = gemm_recipe<rotated<nearest_even>, rotated<nearest_even>>;
  using dgrad = gemm_recipe<rotated<stochastic_midpoint8>, rotated<nearest_even>>;
  using wgrad = gemm_recipe<rotated<stochastic_midpoint8>, rotated<nearest_even>>;
  no_references scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// arXiv 2610.00053, format-aware fusion: MXFP4 whose sixth is folded into the product, square blocks for weights with
// the 0.87 test, stochastic rounding of Dgrad's dY only, a Hadamard transform with fixed signs on the operands of
// Wgrad.
struct fusion {
  static constexpr const char* name = "fusion";
  using fprop = gemm_recipe<operand<mxfp4_folded>, operand<mxfp4_folded_2d>>;
  using dgrad = gemm_recipe<operand<mxfp4_folded, stochastic_midpoint8>, operand<mxfp4_folded_2d>>;
  using wgrad = gemm_recipe<operand<mxfp4_folded, nearest_even, hadamard32_fixed>,
                            operand<mxfp4_folded, nearest_even, hadamard32_fixed>>;
  no_references scaling = {};
  static constexpr bool high_precision(layer_role role, int, int) noexcept { return is_outside_blocks(role); }
};

// With the transform of 16.
struct fusion_h16 : fusion {
  static constexpr const char* name = "fusion_h16";
  using wgrad = gemm_recipe<operand<mxfp4_folded, nearest_even, hadamard16_te>,
                            operand<mxfp4_folded, nearest_even, hadamard16_te>>;
};

}  // namespace microscale::recipes
