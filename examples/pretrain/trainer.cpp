#include "trainer.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>

#include "math.hpp"

namespace pretrain {
namespace {

// Stream numbers of random_bits(): those of the model's parameters count from zero.
constexpr std::uint64_t batch_stream = 1u << 20;

struct batch {
  std::vector<std::uint8_t> tokens, targets;

  // A context and, one byte further on, what it should predict.
  void add(std::span<const std::uint8_t> text, std::size_t start, int context) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(start);
    tokens.insert(tokens.end(), begin, begin + context);
    targets.insert(targets.end(), begin + 1, begin + context + 1);
  }
};

// The batch of a step depends on the seed and the step alone: every recipe sees the same ones.
batch draw_batch(const training_config& config, std::span<const std::uint8_t> text, std::int64_t step) {
  batch result;
  const std::size_t starts = text.size() - static_cast<std::size_t>(config.model.context);
  for (int i = 0; i < config.sequences; ++i) {
    const auto index = static_cast<std::uint64_t>(step * config.sequences + i);
    result.add(text, random_bits(config.seed, batch_stream, index) % starts, config.model.context);
  }
  return result;
}

// The mean loss over contexts spread evenly over the held-out text.
double held_out_loss(transformer& model, const training_config& config, std::span<const std::uint8_t> text) {
  constexpr std::size_t most_contexts = 256;
  const auto context = static_cast<std::size_t>(config.model.context);
  if (text.size() <= context) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t starts = text.size() - context;
  const std::size_t count = std::min(most_contexts, (starts + context - 1) / context);
  double sum = 0;
  for (std::size_t i = 0; i < count;) {
    batch b;
    const std::size_t first = i;
    for (; i < count && i - first < static_cast<std::size_t>(config.sequences); ++i)
      b.add(text, i * starts / count, config.model.context);
    sum += model.evaluate(b.tokens, b.targets) * static_cast<double>(i - first);
  }
  return sum / static_cast<double>(count);
}

}  // namespace

training_result train(const training_config& config, const recipe& recipe, const corpus& text, thread_pool& pool,
                      const std::function<void(const progress&)>& report) {
  using clock = std::chrono::steady_clock;
  transformer model(config.model, recipe, config.seed, pool);
  adamw optimizer(config.optimizer, model.parameters(), pool);
  training_result result;
  result.recipe = recipe.name;

  const auto start = clock::now();
  for (std::int64_t step = 1; step <= config.steps; ++step) {
    const batch b = draw_batch(config, text.training, step);
    // Metrics take time that is not training: the last step alone pays for them.
    if (step == config.steps) model.collect_metrics();
    const double loss = model.forward(b.tokens, b.targets, step);
    model.backward();
    const float rate = learning_rate(config.optimizer, step, config.steps);
    const double norm = optimizer.step(rate);
    result.steps.push_back({rate, loss, norm});

    const double seconds = std::chrono::duration<double>(clock::now() - start).count();
    const auto tokens = static_cast<double>(step * config.sequences * config.model.context);
    result.tokens_per_second = tokens / seconds;
    report({step, config.steps, loss, result.tokens_per_second,
            seconds / static_cast<double>(step) * static_cast<double>(config.steps - step)});
  }

  const auto window = std::max<std::int64_t>(1, config.steps / 10);
  for (auto it = result.steps.end() - window; it != result.steps.end(); ++it)
    result.final_loss += it->loss / static_cast<double>(window);
  result.metrics = model.metrics();
  result.held_out_loss = held_out_loss(model, config, text.held_out);
  for (const parameter* p : model.parameters()) result.weights.push_back({p->name, p->shape, p->value, {}});
  return result;
}

}  // namespace pretrain
