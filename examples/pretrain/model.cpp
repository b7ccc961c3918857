#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "math.hpp"
#include "matmul.hpp"

namespace pretrain {
namespace {

using microscale::layer_role;

parameter make_parameter(std::string name, std::vector<std::int64_t> shape) {
  std::size_t size = 1;
  for (const auto extent : shape) size *= static_cast<std::size_t>(extent);
  return {std::move(name), std::move(shape), std::vector<float>(size), std::vector<float>(size)};
}

parameter make_gain(std::string name, int width) {
  auto p = make_parameter(std::move(name), {width});
  std::ranges::fill(p.value, 1.0f);
  return p;
}

// Uniform with the given standard deviation; `stream` is a number of its own for every parameter.
parameter make_matrix(std::string name, int rows, int columns, double deviation, std::uint64_t seed,
                      std::uint64_t stream) {
  auto p = make_parameter(std::move(name), {rows, columns});
  const auto scale = static_cast<float>(deviation * std::sqrt(3.0));
  for (std::size_t i = 0; i < p.value.size(); ++i) p.value[i] = scale * random_uniform(seed, stream, i);
  return p;
}

}  // namespace

transformer::transformer(const model_config& config, const recipe& recipe, std::uint64_t seed, thread_pool& pool,
                         const ranks& everyone)
    : config_(config), pool_(pool), attention_(config.context, config.heads, config.width / config.heads) {
  const int width = config.width, hidden = config.hidden;
  // The branches that add to the residual stream start smaller, so that its variance does not grow
  // with the number of blocks; the head starts small, so that the first loss is near ln 256.
  const double deviation = 1 / std::sqrt(width);
  const double to_stream = 1 / std::sqrt(2.0 * config.blocks);
  std::uint32_t layer = 0;
  std::uint64_t stream = 0;
  const auto matrix = [&](std::string name, int rows, int columns, double sigma) {
    return make_matrix(std::move(name), rows, columns, sigma, seed, stream++);
  };

  embedding_ = matrix("embedding.weight", model_config::vocabulary, width, 1.0);
  for (int i = 0; i < config.blocks; ++i) {
    const std::string prefix = "blocks." + std::to_string(i) + '.';
    const auto linear = [&](layer_role role, int in, int out) {
      return recipe.make_linear({{role, i, config.blocks, layer++}, in, out, &everyone}, pool);
    };
    block b;
    b.attention_norm = make_gain(prefix + "attention_norm.weight", width);
    b.qkv = matrix(prefix + "attention.qkv.weight", 3 * width, width, deviation);
    b.attention_output = matrix(prefix + "attention.output.weight", width, width, deviation * to_stream);
    b.mlp_norm = make_gain(prefix + "mlp_norm.weight", width);
    b.mlp_up = matrix(prefix + "mlp.up.weight", hidden, width, deviation);
    b.mlp_down = matrix(prefix + "mlp.down.weight", width, hidden, to_stream / std::sqrt(hidden));
    b.qkv_linear = linear(layer_role::attention_qkv, width, 3 * width);
    b.attention_output_linear = linear(layer_role::attention_output, width, width);
    b.mlp_up_linear = linear(layer_role::mlp_up, width, hidden);
    b.mlp_down_linear = linear(layer_role::mlp_down, hidden, width);
    blocks_.push_back(std::move(b));
  }
  final_norm_ = make_gain("final_norm.weight", width);
  head_ = matrix("head.weight", model_config::vocabulary, width, 0.1 * deviation);
}

std::vector<parameter*> transformer::parameters() {
  std::vector<parameter*> all = {&embedding_};
  for (block& b : blocks_)
    all.insert(all.end(), {&b.attention_norm, &b.qkv, &b.attention_output, &b.mlp_norm, &b.mlp_up, &b.mlp_down});
  all.insert(all.end(), {&final_norm_, &head_});
  return all;
}

std::int64_t transformer::parameter_count() {
  std::int64_t count = 0;
  for (const parameter* p : parameters()) count += std::ssize(p->value);
  return count;
}

std::vector<linear_layer*> transformer::linears() {
  std::vector<linear_layer*> all;
  for (const block& b : blocks_)
    for (linear_layer* layer : b.linears()) all.push_back(layer);
  return all;
}

void transformer::collect_metrics(bool on) {
  for (linear_layer* layer : linears()) layer->collect_metrics(on);
}

microscale::linear_metrics transformer::metrics() const {
  microscale::linear_metrics sum;
  for (const block& b : blocks_)
    for (const linear_layer* layer : b.linears()) {
      const microscale::linear_metrics m = layer->metrics();
      sum.activation += m.activation;
      sum.weight += m.weight;
      sum.output_gradient += m.output_gradient;
    }
  return sum;
}

void transformer::resize_activations(std::size_t tokens) {
  const auto width = static_cast<std::size_t>(config_.width);
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto sequences = tokens / static_cast<std::size_t>(config_.context);
  for (block& b : blocks_) {
    for (auto* narrow : {&b.input, &b.attention_norm_out, &b.attention_out, &b.middle, &b.mlp_norm_out})
      narrow->resize(tokens * width);
    for (auto* per_token : {&b.attention_norm_rms, &b.mlp_norm_rms}) per_token->resize(tokens);
    b.qkv_out.resize(tokens * 3 * width);
    b.probabilities.resize(sequences * static_cast<std::size_t>(attention_.probabilities_per_sequence()));
    for (auto* wide : {&b.up_out, &b.activation}) wide->resize(tokens * hidden);
  }
  for (auto* narrow : {&stream_, &final_norm_out_, &branch_, &dstream_, &dnarrow_}) narrow->resize(tokens * width);
  dwide_.resize(tokens * std::max(3 * width, hidden));
  final_norm_rms_.resize(tokens);
  logits_.resize(tokens * static_cast<std::size_t>(model_config::vocabulary));
}

double transformer::forward(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets,
                            const microscale::training_step& at) {
  return run(tokens, targets, &at);
}

double transformer::evaluate(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets) {
  return run(tokens, targets, nullptr);
}

double transformer::run(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets,
                        const microscale::training_step* at) {
  const index_t width = config_.width;
  resize_activations(tokens.size());
  tokens_.assign(tokens.begin(), tokens.end());

  const auto linear = [&](linear_layer& layer, std::span<const float> x, const parameter& w, std::span<float> y) {
    if (at)
      layer.forward(x, w.value, y, *at);
    else
      layer.infer(x, w.value, y);
  };

  for (std::size_t t = 0; t < tokens.size(); ++t)
    std::copy_n(embedding_.value.begin() + tokens[t] * width, width, stream_.begin() + static_cast<index_t>(t) * width);

  for (block& b : blocks_) {
    b.input = stream_;
    rms_norm(pool_, b.input, b.attention_norm.value, b.attention_norm_out, b.attention_norm_rms);
    linear(*b.qkv_linear, b.attention_norm_out, b.qkv, b.qkv_out);
    attention_.forward(pool_, b.qkv_out, b.attention_out, b.probabilities);
    linear(*b.attention_output_linear, b.attention_out, b.attention_output, branch_);
    add(pool_, stream_, branch_);

    b.middle = stream_;
    rms_norm(pool_, b.middle, b.mlp_norm.value, b.mlp_norm_out, b.mlp_norm_rms);
    linear(*b.mlp_up_linear, b.mlp_norm_out, b.mlp_up, b.up_out);
    squared_relu(pool_, b.up_out, b.activation);
    linear(*b.mlp_down_linear, b.activation, b.mlp_down, branch_);
    add(pool_, stream_, branch_);
  }

  rms_norm(pool_, stream_, final_norm_.value, final_norm_out_, final_norm_rms_);
  const auto rows = std::ssize(tokens);
  const matrix_view head{head_.value.data(), model_config::vocabulary, width, width};
  matmul(pool_, {final_norm_out_.data(), rows, width, width}, head.transposed(), logits_.data(),
         model_config::vocabulary);
  return cross_entropy(pool_, logits_, targets);
}

void transformer::backward(float scale) {
  const index_t width = config_.width;
  const auto rows = std::ssize(tokens_);
  const auto wide = [&](index_t columns) {
    return std::span(dwide_).first(tokens_.size() * static_cast<std::size_t>(columns));
  };

  // cross_entropy() left the gradient in the logits.
  if (scale != 1.0f)
    for (float& g : logits_) g *= scale;
  const matrix_view dlogits{logits_.data(), rows, model_config::vocabulary, model_config::vocabulary};
  matmul(pool_, dlogits.transposed(), {final_norm_out_.data(), rows, width, width}, head_.gradient.data(), width);
  matmul(pool_, dlogits, {head_.value.data(), model_config::vocabulary, width, width}, dnarrow_.data(), width);
  std::ranges::fill(dstream_, 0.0f);
  rms_norm_backward(pool_, dnarrow_, stream_, final_norm_.value, final_norm_rms_, dstream_, final_norm_.gradient);

  // dstream_ is the gradient of the residual stream; each branch adds its own share.
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    block& b = blocks_[i];
    const auto dup = wide(config_.hidden);
    b.mlp_down_linear->backward(dstream_, dup, b.mlp_down.gradient);
    squared_relu_backward(pool_, b.up_out, dup);
    b.mlp_up_linear->backward(dup, dnarrow_, b.mlp_up.gradient);
    rms_norm_backward(pool_, dnarrow_, b.middle, b.mlp_norm.value, b.mlp_norm_rms, dstream_, b.mlp_norm.gradient);

    const auto dqkv = wide(3 * width);
    b.attention_output_linear->backward(dstream_, dnarrow_, b.attention_output.gradient);
    attention_.backward(pool_, dnarrow_, b.qkv_out, b.probabilities, dqkv);
    b.qkv_linear->backward(dqkv, dnarrow_, b.qkv.gradient);
    rms_norm_backward(pool_, dnarrow_, b.input, b.attention_norm.value, b.attention_norm_rms, dstream_,
                      b.attention_norm.gradient);
  }

  std::ranges::fill(embedding_.gradient, 0.0f);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const float* from = dstream_.data() + static_cast<index_t>(t) * width;
    float* to = embedding_.gradient.data() + tokens_[t] * width;
    for (index_t i = 0; i < width; ++i) to[i] += from[i];
  }
}

}  // namespace pretrain
