// What a run leaves behind: the tables that it prints, its curves as CSV and as a plot.
#pragma once

#include <string>
#include <vector>

#include "trainer.hpp"

namespace pretrain {

// Two tables in Markdown: the losses, and what quantization did to each operand.
[[nodiscard]] std::string to_table(const std::vector<training_result>& results);

// One line for each step of each recipe.
[[nodiscard]] std::string to_csv(const std::vector<training_result>& results, const training_config& config);

// The losses, and beneath them their distance from BF16 where it was among the recipes.
[[nodiscard]] std::string to_plot(const std::vector<training_result>& results, const training_config& config,
                                  const corpus& text);

}  // namespace pretrain
