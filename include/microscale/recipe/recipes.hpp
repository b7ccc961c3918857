// The recipes of the field, as declared by their sources.
#pragma once

#include "recipe.hpp"

namespace microscale::recipes {

// No quantization: operands in BF16, the baseline.
struct bf16 {
  static constexpr const char* name = "bf16";
  using fprop = gemm_recipe<operand<bfloat16>, operand<bfloat16>>;
  using dgrad = fprop;
  using wgrad = fprop;
  current_scaling scaling;
  static constexpr bool high_precision(layer_role, int, int) noexcept { return true; }
};

// arXiv 2609.02846: UE5M3 scales, periodic tensor scaling, stochastic rounding of dY alone with its own draw in each
// GEMM, square blocks for weights, no transform; every internal linear layer in FP4, the head in high precision.
struct ue5m3 {
  static constexpr const char* name = "ue5m3";
  using fprop = gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4>>;
  periodic_scaling scaling{.period = 50};
  static constexpr bool high_precision(layer_role role, int, int) noexcept {
    return role == layer_role::head || role == layer_role::embedding;
  }
};

// The same with blocks of 32.
struct ue5m3_b32 : ue5m3 {
  static constexpr const char* name = "ue5m3_b32";
  using fprop = gemm_recipe<operand<ue5m3_fp4_b32>, operand<ue5m3_fp4_b32_2d>>;
  using dgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8>, operand<ue5m3_fp4_b32_2d>>;
  using wgrad = gemm_recipe<operand<ue5m3_fp4_b32, stochastic_midpoint8>, operand<ue5m3_fp4_b32>>;
};

// arXiv 2509.25149 and TransformerEngine: current scaling, stochastic rounding of dY, the Hadamard transform on both
// operands of Wgrad, square blocks for weights; embedding, head and the last block in BF16.
struct nvfp4 {
  static constexpr const char* name = "nvfp4";
  using fprop = gemm_recipe<operand<microscale::nvfp4>, operand<nvfp4_2d>>;
  using dgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8>, operand<nvfp4_2d>>;
  using wgrad = gemm_recipe<operand<microscale::nvfp4, stochastic_floor8, hadamard16_te>,
                            operand<microscale::nvfp4, nearest_even, hadamard16_te>>;
  current_scaling scaling;
  static constexpr bool high_precision(layer_role role, int index, int count) noexcept {
    return role == layer_role::head || role == layer_role::embedding || index == count - 1;
  }
};

}  // namespace microscale::recipes
