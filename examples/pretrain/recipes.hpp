// The recipes that --recipe can name.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "linear.hpp"
#include "parallel.hpp"

namespace pretrain {

struct recipe {
  std::string_view name;
  std::string_view summary;  // half a line, for --help
  std::unique_ptr<linear_layer> (*make_linear)(const linear_place&, thread_pool&);
  bool by_default;  // part of a run without --recipe
};

// All of them, in the order in which a default run takes them.
[[nodiscard]] std::span<const recipe> recipes();

// The recipe of that name, or null.
[[nodiscard]] const recipe* find_recipe(std::string_view name);

}  // namespace pretrain
