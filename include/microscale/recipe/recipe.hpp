// A recipe: which scheme, rounding and transform each operand of the three GEMMs of a linear layer uses.
//
// A recipe is a type that reads like a row of a table:
//   struct mine {
//     static constexpr const char* name = "mine";
//     using fprop = gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4_2d>>;                        // X,  W
//     using dgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4_2d>>;  // dY, W
//     using wgrad = gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4>>;     // dY, X
//     periodic_scaling scaling{.period = 50};
//     static constexpr bool high_precision(layer_role role, int index, int count) { return role == layer_role::head; }
//   };
// Facts are types, numbers that a run may change (a period, a target) are members of the recipe object. Blocks run
// along each GEMM's reduction dimension: along the features for X and W in Fprop, along the outputs for dY and W in
// Dgrad, along the tokens for dY and X in Wgrad.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../block/schemes.hpp"
#include "../tensor/hadamard.hpp"
#include "reference.hpp"
#include "stream.hpp"

namespace microscale {

// What a linear layer is in its model; recipes keep some roles, or some positions, in high precision.
enum class layer_role : std::uint8_t {
  embedding,
  attention_qkv,
  attention_output,
  mlp_up,
  mlp_down,
  head,
};

// The scheme of an operand that is not quantized: its elements are rounded to BF16.
struct bfloat16 {};

// Transforms of an operand along its reduction dimension, before it is quantized.
struct no_transform {
  static constexpr int size = 1;
};
// The Hadamard transform with the fixed signs of TransformerEngine, of runs of 16.
struct hadamard16_te {
  static constexpr int size = 16;
  static constexpr hadamard_signs signs() noexcept { return hadamard_signs::transformer_engine(); }
};

template <class Scheme, rounding_mode Rounding = nearest_even, class Transform = no_transform>
struct operand {
  using scheme = Scheme;
  using rounding = Rounding;
  using transform = Transform;
  static constexpr bool is_quantized = !std::is_same_v<Scheme, bfloat16>;
};

// The two operands of a GEMM. Both are quantized or neither, and both are transformed alike, so that the transforms
// cancel in the product.
template <class Left, class Right>
struct gemm_recipe {
  static_assert(Left::is_quantized == Right::is_quantized, "a GEMM takes two quantized operands or none");
  static_assert(std::is_same_v<typename Left::transform, typename Right::transform>,
                "the transforms of the two operands must cancel");
  using left = Left;
  using right = Right;
  static constexpr bool is_quantized = Left::is_quantized;
};

template <class R>
concept training_recipe = requires(R recipe, layer_role role) {
  typename R::fprop;
  typename R::dgrad;
  typename R::wgrad;
  recipe.scaling.samples(1);
  { R::high_precision(role, 0, 1) } -> std::same_as<bool>;
};

}  // namespace microscale
