// One run: a model, a text and a recipe, from the first step to the last.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "parallel.hpp"
#include "recipes.hpp"

namespace pretrain {

struct training_config {
  model_config model;
  optimizer_config optimizer;
  int sequences = 2;  // per step
  std::int64_t steps = 1500;
  std::uint64_t seed = 1;
};

struct training_step {
  float learning_rate;
  double loss;  // nats per byte
  double gradient_norm;
};

struct training_result {
  std::string recipe;
  std::vector<training_step> steps;
  double final_loss = 0;     // mean of the last tenth of the steps
  double held_out_loss = 0;  // NaN without a held-out text
  double tokens_per_second = 0;
  microscale::linear_metrics metrics;  // of the last step, over all internal linear layers
  std::vector<parameter> weights;
};

// What is known after each step.
struct progress {
  std::int64_t step, steps;
  double loss;
  double tokens_per_second;
  double seconds_left;
};

[[nodiscard]] training_result train(const training_config& config, const recipe& recipe, const corpus& text,
                                    thread_pool& pool, const std::function<void(const progress&)>& report);

}  // namespace pretrain
