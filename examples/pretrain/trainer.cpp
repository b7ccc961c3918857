#include "trainer.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <microscale/recipe/gradient_noise.hpp>
#include <microscale/recipe/state.hpp>
#include <span>
#include <sstream>
#include <utility>

#include "checkpoint.hpp"
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

// A micro-batch depends on the seed, the step and its number among all of the step's, those of other ranks included:
// every recipe sees the same ones.
batch draw_batch(const training_config& config, std::span<const std::uint8_t> text, std::int64_t number) {
  batch result;
  const std::size_t starts = text.size() - static_cast<std::size_t>(config.model.context);
  for (int i = 0; i < config.sequences; ++i) {
    const auto index = static_cast<std::uint64_t>(number * config.sequences + i);
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

// The sum over ranks, in their order.
microscale::quantization_metrics sum_over_ranks(const microscale::quantization_metrics& m, const ranks& everyone) {
  std::vector<double> numbers = {m.signal,
                                 m.noise,
                                 static_cast<double>(m.elements),
                                 static_cast<double>(m.blocks),
                                 static_cast<double>(m.underflowed_scales),
                                 static_cast<double>(m.saturated_blocks),
                                 static_cast<double>(m.nonfinite_blocks)};
  const std::size_t own_error = numbers.size() + static_cast<std::size_t>(everyone.rank());
  numbers.resize(numbers.size() + static_cast<std::size_t>(everyone.count()));
  numbers[own_error] = m.largest_error;
  everyone.sum(std::span(numbers));
  const auto count = [&](std::size_t i) { return static_cast<std::int64_t>(numbers[i]); };
  return {numbers[0], numbers[1], *std::max_element(numbers.begin() + 7, numbers.end()), count(2), count(3), count(4),
          count(5),   count(6)};
}

microscale::linear_metrics sum_over_ranks(const microscale::linear_metrics& m, const ranks& everyone) {
  return {sum_over_ranks(m.activation, everyone), sum_over_ranks(m.weight, everyone),
          sum_over_ranks(m.output_gradient, everyone)};
}

// A run between two steps: all that goes into a checkpoint, and the step.
class run {
 public:
  run(const training_config& config, const recipe& recipe, const corpus& text, thread_pool& pool, const ranks& everyone)
      : config_(config),
        recipe_(recipe),
        text_(text),
        everyone_(everyone),
        model_(config.model, recipe, config.seed, pool, everyone),
        optimizer_(config.optimizer, model_.parameters(), pool) {}

  [[nodiscard]] std::int64_t reached() const { return std::ssize(steps_); }
  [[nodiscard]] const std::vector<training_step>& steps() const { return steps_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  void add_seconds(double seconds) { seconds_ += seconds; }

  void step() {
    const std::int64_t step = reached() + 1;
    const bool is_last = step == config_.steps;
    const bool watches = recipe_.watches_noise && bf16_backward_since_ == 0 && step % noise_interval == 0;
    // Metrics take time that is not training: few steps pay for them.
    if (is_last || watches) model_.collect_metrics(true);
    const double loss = accumulate_gradients(step);
    const float rate = learning_rate(config_.optimizer, step, config_.steps);
    steps_.push_back({rate, loss, optimizer_.step(rate)});
    if (is_last || watches) {
      metrics_ = sum_over_ranks(model_.metrics(), everyone_);
      model_.collect_metrics(false);
    }
    if (watches && microscale::is_below_noise(metrics_.output_gradient)) {
      bf16_backward_since_ = step + 1;
      for (linear_layer* layer : model_.linears()) layer->set_bf16_backward(true);
    }
  }

  [[nodiscard]] training_result finish() {
    training_result result;
    result.recipe = recipe_.name;
    result.steps = steps_;
    result.metrics = metrics_;
    result.bf16_backward_since = bf16_backward_since_;
    if (seconds_ > 0) result.tokens_per_second = static_cast<double>(reached() * config_.tokens_per_step()) / seconds_;
    if (reached() < config_.steps) return result;
    const auto window = std::max<std::int64_t>(1, config_.steps / 10);
    for (auto it = steps_.end() - window; it != steps_.end(); ++it)
      result.final_loss += it->loss / static_cast<double>(window);
    result.held_out_loss = held_out_loss(model_, config_, text_.held_out);
    for (const parameter* p : model_.parameters()) result.weights.push_back({p->name, p->shape, p->value, {}});
    return result;
  }

  void save(const std::filesystem::path& file) {
    checkpoint_writer archive(identity());
    exchange(archive);
    archive.write(file);
  }
  void load(const std::filesystem::path& file) {
    checkpoint_reader archive(file, identity());
    exchange(archive);
    archive.finish();
    if (reached() < 1 || reached() > config_.steps) throw usage_error("checkpoint '" + file.string() + "' is damaged");
    for (linear_layer* layer : model_.linears()) layer->set_bf16_backward(bf16_backward_since_ != 0);
  }

 private:
  static constexpr std::int64_t noise_interval = 10;  // steps between two looks at the noise of gradients

  // The mean loss of the step; its mean gradient, in every parameter.
  double accumulate_gradients(std::int64_t step) {
    const std::vector<parameter*> parameters = model_.parameters();
    std::vector<std::vector<float>> sums(parameters.size());
    double loss = 0;
    for (int i = 0; i < config_.accumulate; ++i) {
      const int micro_batch = everyone_.rank() * config_.accumulate + i;
      const batch b = draw_batch(config_, text_.training, step * config_.micro_batches() + micro_batch);
      loss += model_.forward(b.tokens, b.targets, {.step = step, .micro_batch = micro_batch, .seed = config_.seed});
      model_.backward(recipe_.loss_scale);
      if (i > 0)
        for (std::size_t p = 0; p < parameters.size(); ++p)
          for (std::size_t j = 0; j < sums[p].size(); ++j) parameters[p]->gradient[j] += sums[p][j];
      if (i + 1 < config_.accumulate)
        for (std::size_t p = 0; p < parameters.size(); ++p) sums[p] = parameters[p]->gradient;
    }
    const float factor = 1.0f / (static_cast<float>(config_.micro_batches()) * recipe_.loss_scale);
    for (parameter* p : parameters) {
      everyone_.sum(std::span(p->gradient));
      if (factor != 1.0f)
        for (float& g : p->gradient) g *= factor;
    }
    everyone_.sum(std::span(&loss, 1));
    return loss / config_.micro_batches();
  }

  // What must be the same for a checkpoint to be one of this run.
  [[nodiscard]] std::string identity() const {
    const model_config& m = config_.model;
    std::string text;
    const auto add = [&](const char* name, const auto& value) {
      std::ostringstream out;
      out << value;
      text.append(text.empty() ? "" : ", ").append(name).append(" ").append(out.str());
    };
    add("recipe", recipe_.name);
    add("seed", config_.seed);
    add("steps", config_.steps);
    add("sequences", config_.sequences);
    add("accumulate", config_.accumulate);
    add("ranks", config_.ranks);
    add("text", text_.checksum);
    add("bytes", text_.bytes());
    for (const int size : {m.context, m.width, m.heads, m.hidden, m.blocks}) add("size", size);
    return text;
  }

  template <class Archive>
  void exchange(Archive& archive) {
    archive.list(steps_);
    archive.value(seconds_);
    archive.value(metrics_);
    archive.value(bf16_backward_since_);
    for (parameter* p : model_.parameters()) archive.values(std::span(p->value));
    optimizer_.exchange(archive);
    // References are all that layers carry: random draws are functions of seed, step and place.
    for (linear_layer* layer : model_.linears()) {
      std::string text;
      if constexpr (Archive::reads) {
        archive.text(text);
        std::istringstream in(text);
        layer->restore(microscale::read_state(in), {.step = reached(), .seed = config_.seed});
      } else {
        std::ostringstream out;
        microscale::write_state(out, layer->state());
        archive.text(out.str());
      }
    }
  }

  const training_config& config_;
  const recipe& recipe_;
  const corpus& text_;
  const ranks& everyone_;
  transformer model_;
  adamw optimizer_;
  std::vector<training_step> steps_;
  double seconds_ = 0;
  microscale::linear_metrics metrics_;
  std::int64_t bf16_backward_since_ = 0;
};

}  // namespace

training_result train(const training_config& config, const recipe& recipe, const corpus& text, thread_pool& pool,
                      const ranks& everyone, const checkpointing& checkpoints,
                      const std::function<void(const progress&)>& report) {
  using clock = std::chrono::steady_clock;
  run now(config, recipe, text, pool, everyone);
  if (checkpoints.resume && std::filesystem::exists(checkpoints.file)) now.load(checkpoints.file);
  const std::int64_t last = checkpoints.stop_at < 0 ? config.steps : std::min(checkpoints.stop_at, config.steps);
  const std::int64_t first = now.reached();
  double here = 0;  // seconds since then
  while (now.reached() < last) {
    const auto start = clock::now();
    now.step();
    const double seconds = std::chrono::duration<double>(clock::now() - start).count();
    now.add_seconds(seconds);
    here += seconds;
    const std::int64_t step = now.reached();
    const double per_step = here / static_cast<double>(step - first);
    if (everyone.is_first()) {
      if (step == last || step % checkpoints.every == 0) now.save(checkpoints.file);
      report({step, config.steps, now.steps().back().loss, static_cast<double>(config.tokens_per_step()) / per_step,
              per_step * static_cast<double>(last - step)});
    }
  }
  return now.finish();
}

}  // namespace pretrain
