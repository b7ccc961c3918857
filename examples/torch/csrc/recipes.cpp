#include "recipes.hpp"

#include <microscale/conformance/named_schemes.hpp>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>

#include "typed.hpp"

namespace microscale_torch {

namespace {

// OCP MX v1.0 as it stands, in every internal linear layer: blocks of 32 along each product's reduction dimension, the
// floor rule for scales, dY rounded stochastically. Not the recipe of a paper: the plain form that the others improve
// on.
struct mxfp4 {
  static constexpr const char* name = "mxfp4";
  using fprop = ms::gemm_recipe<ms::operand<ms::mxfp4>, ms::operand<ms::mxfp4>>;
  using dgrad = ms::gemm_recipe<ms::operand<ms::mxfp4, ms::stochastic_midpoint8>, ms::operand<ms::mxfp4>>;
  using wgrad = dgrad;
  ms::no_references scaling = {};
  static constexpr bool high_precision(ms::layer_role role, int, int) noexcept { return ms::is_outside_blocks(role); }
};

// Variants of ue5m3 that tell what its parts are worth: dY to nearest; every operand rounded stochastically; weights in
// blocks along each product's reduction dimension, as X and dY are.
using ms::operand, ms::stochastic_midpoint8, ms::ue5m3_fp4, ms::ue5m3_fp4_2d;
struct ue5m3_nearest : ms::recipes::ue5m3 {
  static constexpr const char* name = "ue5m3_nearest";
  using dgrad = ms::gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4_2d>>;
  using wgrad = ms::gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4>>;
};
struct ue5m3_stochastic : ms::recipes::ue5m3 {
  static constexpr const char* name = "ue5m3_stochastic";
  using fprop = ms::gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4_2d, stochastic_midpoint8>>;
  using dgrad = fprop;
  using wgrad = ms::gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4, stochastic_midpoint8>>;
};
struct ue5m3_1d : ms::recipes::ue5m3 {
  static constexpr const char* name = "ue5m3_1d";
  using fprop = ms::gemm_recipe<operand<ue5m3_fp4>, operand<ue5m3_fp4>>;
  using dgrad = ms::gemm_recipe<operand<ue5m3_fp4, stochastic_midpoint8>, operand<ue5m3_fp4>>;
  using wgrad = dgrad;
};

template <class Transform>
ms::hadamard_signs signs_of(ms::random_key key) {
  return ms::detail::transform_signs<Transform>(key);
}

template <class Operand>
operand_description describe_operand() {
  operand_description d;
  if constexpr (Operand::is_quantized) {
    using transform = typename Operand::transform;
    d.scheme = facts_of<typename Operand::scheme>().name;
    d.rounding = kind_of<typename Operand::rounding>;
    d.transform_size = transform::size;
    if constexpr (transform::size > 1) {
      d.signs = &signs_of<transform>;
      d.transform_is_drawn = requires(ms::random_key key) { transform::signs(key); };
      if constexpr (requires(ms::random_key key) { transform::signs(key); }) {
        constexpr ms::random_key some{3, 5};
        static_assert(transform::signs(some) == ms::hadamard_signs::drawn(some), "what a GPU draws (linear.cpp)");
      }
    }
    d.reads_reference = ms::detail::reads_reference<typename Operand::scheme>();
  }
  return d;
}

template <class Gemm>
gemm_description describe_gemm() {
  return {Gemm::is_quantized, describe_operand<typename Gemm::left>(), describe_operand<typename Gemm::right>()};
}

// linear.hpp's rule: the same operand in square blocks, untransformed.
template <class First, class Second>
constexpr bool turns() {
  if constexpr (First::is_quantized && std::is_same_v<First, Second>) {
    return First::scheme::block::is_square && First::transform::size == 1;
  } else {
    return false;
  }
}

template <ms::training_recipe R>
recipe_description describe() {
  using fprop = typename R::fprop;
  using dgrad = typename R::dgrad;
  using wgrad = typename R::wgrad;
  using scaling = decltype(R::scaling);
  recipe_description d;
  d.name = R::name;
  d.fprop = describe_gemm<fprop>();
  d.dgrad = describe_gemm<dgrad>();
  d.wgrad = describe_gemm<wgrad>();
  if constexpr (std::is_same_v<scaling, ms::periodic_scaling>) {
    d.scaling = scaling_kind::periodic;
    d.period = R{}.scaling.period;
    d.first_step = R{}.scaling.first_step;
  } else if constexpr (std::is_same_v<scaling, ms::current_scaling>) {
    d.scaling = scaling_kind::current;
  } else if constexpr (std::is_same_v<scaling, ms::frozen_scaling>) {
    d.scaling = scaling_kind::frozen;
  } else {
    static_assert(std::is_same_v<scaling, ms::no_references>, "not offered here: this scaling policy");
  }
  d.turns_activation = turns<typename fprop::left, typename wgrad::right>();
  d.turns_weight = turns<typename fprop::right, typename dgrad::right>();
  d.turns_output_gradient = turns<typename dgrad::left, typename wgrad::left>();
  if constexpr (requires { R::backward_from_quantized; }) d.backward_from_quantized = R::backward_from_quantized;
  d.takes_targets = requires(R r) { r.targets; };
  d.high_precision = [](ms::layer_role role, int index, int count) { return R::high_precision(role, index, count); };
  if constexpr (ms::has_alternative<R>) {
    d.alternative = R::alternative::name;
    d.uses_alternative = [](ms::layer_role role, int index, int count) {
      return R::uses_alternative(role, index, count);
    };
  }
  return d;
}

}  // namespace

const std::vector<recipe_description>& all_recipes() {
  namespace r = ms::recipes;
  static const std::vector<recipe_description> all = {
      describe<r::bf16>(),
      describe<r::mxfp8>(),
      describe<r::ue5m3>(),
      describe<r::ue5m3_b32>(),
      describe<r::ue5m3_te>(),
      describe<r::ue5m3_b32_te>(),
      describe<r::nvfp4>(),
      describe<r::nvfp4_everywhere>(),
      describe<r::nvfp4_no_rht>(),
      describe<r::nvfp4_everywhere_no_rht>(),
      describe<r::fp4_all_the_way>(),
      describe<r::quartet2>(),
      describe<r::ngpt>(),
      describe<r::fusion>(),
      describe<r::fusion_h16>(),
      describe<mxfp4>(),
      describe<r::transposition_invariant>(),
      describe<r::ufp4>(),
      describe<ue5m3_nearest>(),
      describe<ue5m3_stochastic>(),
      describe<ue5m3_1d>(),
  };
  return all;
}

const recipe_description& find_recipe(std::string_view name) {
  for (const recipe_description& r : all_recipes()) {
    if (r.name == name) return r;
  }
  ms::detail::fail("recipe", "one of those that recipes() lists", std::string(name));
}

}  // namespace microscale_torch
