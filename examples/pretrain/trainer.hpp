// One run: a model, a text and a recipe, from the first step to the last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "parallel.hpp"
#include "ranks.hpp"
#include "recipes.hpp"

namespace pretrain {

struct training_config {
  model_config model;
  optimizer_config optimizer;
  int sequences = 2;   // of a micro-batch
  int accumulate = 1;  // micro-batches of a step, on each rank
  int ranks = 1;
  std::int64_t steps = 1000;
  std::uint64_t seed = 1;

  [[nodiscard]] int micro_batches() const { return accumulate * ranks; }
  [[nodiscard]] std::int64_t tokens_per_step() const {
    return std::int64_t{sequences} * micro_batches() * model.context;
  }
};

// Where a run leaves what it needs to go on, and when.
struct checkpointing {
  std::filesystem::path file;
  std::int64_t every = 100;   // steps between checkpoints; one more follows the last step
  std::int64_t stop_at = -1;  // leave after this step; -1: after the last
  bool resume = false;        // begin where the file says, if there is one
};

struct training_step {
  float learning_rate;
  double loss;  // nats per byte
  double gradient_norm;
};

struct training_result {
  std::string recipe;
  std::vector<training_step> steps;  // fewer than were asked for where the run was stopped
  double final_loss = 0;             // mean of the last tenth of the steps
  double held_out_loss = 0;          // NaN without a held-out text
  double tokens_per_second = 0;
  microscale::linear_metrics metrics;    // of the last step, over all internal linear layers
  std::int64_t bf16_backward_since = 0;  // the step before which noise had the backward pass go to BF16; 0: none
  std::vector<parameter> weights;
};

// What is known after each step.
struct progress {
  std::int64_t step, steps;
  double loss;
  double tokens_per_second;
  double seconds_left;
};

// Every rank calls this with the same arguments and gets the same result; the first one reports and writes.
[[nodiscard]] training_result train(const training_config& config, const recipe& recipe, const corpus& text,
                                    thread_pool& pool, const ranks& everyone, const checkpointing& checkpoints,
                                    const std::function<void(const progress&)>& report);

}  // namespace pretrain
