// The library's recipe types as values: what Python asks, and what the linear layer runs by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <microscale/recipe/recipe.hpp>

#include "operations.hpp"

namespace microscale_torch {

struct operand_description {
  std::string scheme;
  rounding_kind rounding = rounding_kind::nearest_even;
  int transform_size = 1;
  bool transform_is_drawn = false;
  ms::hadamard_signs (*signs)(ms::random_key) = nullptr;
  bool reads_reference = false;

  friend bool operator==(const operand_description&, const operand_description&) = default;
};

struct gemm_description {
  bool is_quantized = false;
  operand_description left;
  operand_description right;
};

enum class scaling_kind : std::uint8_t { none, current, periodic, frozen };

struct recipe_description {
  std::string name;
  gemm_description fprop, dgrad, wgrad;
  scaling_kind scaling = scaling_kind::none;
  std::int64_t period = 0;
  std::int64_t first_step = 1;
  // One operand in two products, quantized once and turned (linear.hpp).
  bool turns_activation = false, turns_weight = false, turns_output_gradient = false;
  bool backward_from_quantized = false;  // the backward products quantize what Fprop made of X and W
  bool takes_targets = false;
  bool (*high_precision)(ms::layer_role, int index, int count) = nullptr;
  std::string alternative;  // the recipe that takes over layers, or empty
  bool (*uses_alternative)(ms::layer_role, int index, int count) = nullptr;
};

const std::vector<recipe_description>& all_recipes();
const recipe_description& find_recipe(std::string_view name);

}  // namespace microscale_torch
