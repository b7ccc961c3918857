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
//
// What a recipe may say besides:
//   int target(role, index, count, operand, gemm) const
//       the target of an operand's tensor scale in a layer, 0 for the scheme's own; operand_targets below is a member
//       that such a function can return from, so that a layer's recipe object carries its own
//   using alternative = another recipe;  static constexpr bool uses_alternative(role, index, count)
//       layers that are quantized, but by another recipe
//   static constexpr bool backward_from_quantized = true
//       the backward GEMMs quantize what X and W became in Fprop, and not X and W again
#pragma once

#include <concepts>
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
  // The parts of attention_qkv, where they are layers of their own.
  attention_q,
  attention_k,
  attention_v,
};

// Whether a layer lies outside the blocks of the model: what every recipe here keeps in high precision.
constexpr bool is_outside_blocks(layer_role role) noexcept {
  return role == layer_role::embedding || role == layer_role::head;
}

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
// The same signs twice, of runs of 32.
struct hadamard32_fixed {
  static constexpr int size = 32;
  static constexpr hadamard_signs signs() noexcept {
    hadamard_signs s = hadamard_signs::transformer_engine();
    s.word[0] |= s.word[0] << 16;
    return s;
  }
};
// The random Hadamard transform: signs drawn for each step, micro-batch, layer and GEMM, the same for both operands.
template <int Size>
struct random_hadamard {
  static constexpr int size = Size;
  static constexpr hadamard_signs signs(random_key key) noexcept { return hadamard_signs::drawn(key); }
};

namespace detail {

// The signs of a transform whose draws, if it takes any, come from `key`.
template <class Transform>
constexpr hadamard_signs transform_signs(random_key key) noexcept {
  if constexpr (requires { Transform::signs(key); }) {
    return Transform::signs(key);
  } else {
    return Transform::signs();
  }
}

// A rounding of type R whose draws, if it takes any, come from these keys.
template <rounding_mode R>
struct rounding_with {
  static constexpr R keys(random_key elements, random_key) noexcept {
    if constexpr (stochastic_mode<R>) {
      return R{elements.seed, elements.stream};
    } else {
      return R{};
    }
  }
};
template <class Elements>
struct rounding_with<with_scale_draws<Elements>> {
  static constexpr with_scale_draws<Elements> keys(random_key elements, random_key scales) noexcept {
    return {rounding_with<Elements>::keys(elements, scales), scales};
  }
};

}  // namespace detail

// Targets that a recipe object carries for its layer; 0 means the scheme's own.
struct operand_targets {
  int activation = 0;
  int weight = 0;
  int output_gradient = 0;

  constexpr int of(operand_role operand) const noexcept {
    return operand == operand_role::activation ? activation
           : operand == operand_role::weight   ? weight
                                               : output_gradient;
  }
};

// An operand of a GEMM: its scheme (bfloat16: not quantized), how elements are rounded, and what it is transformed by
// before.
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

// What the head of this file describes.
template <class R>
concept training_recipe = requires(R recipe, layer_role role) {
  typename R::fprop;
  typename R::dgrad;
  typename R::wgrad;
  recipe.scaling.samples(1);
  { R::high_precision(role, 0, 1) } -> std::same_as<bool>;
};

// A recipe that hands some layers to another one.
template <class R>
concept has_alternative = requires(layer_role role) {
  typename R::alternative;
  { R::uses_alternative(role, 0, 1) } -> std::same_as<bool>;
};

}  // namespace microscale
