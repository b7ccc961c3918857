// A decoder-only transformer over bytes: embedding, pre-norm blocks of causal attention and a
// squared-ReLU MLP, final norm, output head. Weights and activations are FP32; the four linear
// layers inside every block go through the recipe, the embedding and the head do not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layers.hpp"
#include "linear.hpp"
#include "parallel.hpp"
#include "ranks.hpp"
#include "recipes.hpp"

namespace pretrain {

struct model_config {
  int context = 128;  // tokens a prediction can look back on
  int width = 64;
  int heads = 2;
  int hidden = 256;  // of the MLP
  int blocks = 3;

  static constexpr int vocabulary = 256;  // bytes
};

// A tensor of weights with its gradient.
struct parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> value, gradient;

  [[nodiscard]] bool is_matrix() const noexcept { return shape.size() == 2; }
};

class transformer {
 public:
  transformer(const model_config& config, const recipe& recipe, std::uint64_t seed, thread_pool& pool,
              const ranks& everyone);

  // The mean loss in nats over whole contexts of `tokens`, laid end to end, each predicting the
  // target at its place. `evaluate` is the same without a trace in the recipe's state.
  double forward(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets,
                 const microscale::training_step& at);
  double evaluate(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets);

  // The gradient of the last forward() times `scale`, into every parameter.
  void backward(float scale = 1.0f);

  // What the recipe does to the operands of the internal linear layers, all of them together, from
  // the call of collect_metrics(true) on.
  void collect_metrics(bool on);
  [[nodiscard]] microscale::linear_metrics metrics() const;

  // The internal linear layers, in order.
  [[nodiscard]] std::vector<linear_layer*> linears();

  [[nodiscard]] std::vector<parameter*> parameters();
  [[nodiscard]] std::int64_t parameter_count();

 private:
  struct block {
    parameter attention_norm, qkv, attention_output, mlp_norm, mlp_up, mlp_down;
    std::unique_ptr<linear_layer> qkv_linear, attention_output_linear, mlp_up_linear, mlp_down_linear;

    [[nodiscard]] std::array<linear_layer*, 4> linears() const {
      return {qkv_linear.get(), attention_output_linear.get(), mlp_up_linear.get(), mlp_down_linear.get()};
    }

    // Activations that the backward pass needs.
    std::vector<float> input, attention_norm_rms, attention_norm_out, qkv_out, probabilities, attention_out, middle,
        mlp_norm_rms, mlp_norm_out, up_out, activation;
  };

  // `at` is null for an evaluation.
  double run(std::span<const std::uint8_t> tokens, std::span<const std::uint8_t> targets,
             const microscale::training_step* at);
  void resize_activations(std::size_t tokens);

  model_config config_;
  thread_pool& pool_;
  attention attention_;
  parameter embedding_, final_norm_, head_;
  std::vector<block> blocks_;

  std::vector<std::uint8_t> tokens_;
  std::vector<float> stream_, final_norm_rms_, final_norm_out_, logits_;
  std::vector<float> branch_;                     // the output of a block's branch
  std::vector<float> dstream_, dnarrow_, dwide_;  // gradients on their way back
};

}  // namespace pretrain
