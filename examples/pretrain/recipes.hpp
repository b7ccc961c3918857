// The recipes that --recipe can name.
#pragma once

#include <memory>
#include <microscale/recipe/recipe.hpp>
#include <span>
#include <string_view>

#include "linear.hpp"
#include "parallel.hpp"

namespace pretrain {

struct recipe {
  std::string_view name;
  std::string_view summary;  // half a line, for --list
  std::unique_ptr<linear_layer> (*make_linear)(const linear_place&, thread_pool&);
  bool by_default = false;  // part of a run without --recipe
  // The backward pass goes to BF16 once gradients no longer stand out of what quantizing them adds.
  bool watches_noise = false;
  // A power of two that gradients are multiplied by on their way back: what block scales without a tensor scale need to
  // reach them.
  float loss_scale = 1.0f;
};

// A layer under a recipe of the library: recipe_layer.hpp has it, and recipes_*.cpp make one of each.
template <microscale::training_recipe Recipe>
std::unique_ptr<linear_layer> make_layer(const linear_place& place, thread_pool& pool);

// All of them, in the order in which a default run takes them.
[[nodiscard]] std::span<const recipe> recipes();

// The recipe of that name, or null.
[[nodiscard]] const recipe* find_recipe(std::string_view name);

}  // namespace pretrain
