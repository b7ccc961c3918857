// The one seam of this program: what the model asks of an internal linear layer. A recipe decides
// what stands behind it (recipe_layer.hpp); the model never knows whether its operands are FP4.
#pragma once

#include <microscale/recipe/linear.hpp>
#include <span>

#include "ranks.hpp"

namespace pretrain {

// y = x · wᵀ and its derivative, for row-major x (tokens × in), w (out × in) and y (tokens × out).
// The layer owns neither its weights nor its activations, only what its recipe carries from step to
// step.
class linear_layer {
 public:
  virtual ~linear_layer() = default;

  // One micro-batch of a training step. x and w stay as they are until its backward().
  virtual void forward(std::span<const float> x, std::span<const float> w, std::span<float> y,
                       const microscale::training_step& at) = 0;

  // dx = dy · w and dw = dyᵀ · x, both overwritten.
  virtual void backward(std::span<const float> dy, std::span<float> dx, std::span<float> dw) = 0;

  // The forward product alone, for evaluation: changes nothing that training will see.
  virtual void infer(std::span<const float> x, std::span<const float> w, std::span<float> y) = 0;

  // From the next forward() on, both products of the backward pass are of BF16 operands.
  virtual void set_bf16_backward(bool on) = 0;

  // What the layer carries from step to step besides its weights.
  [[nodiscard]] virtual const microscale::linear_state& state() const = 0;
  // Sets it, for a layer that is to go on after the step `at`.
  virtual void restore(const microscale::linear_state& state, const microscale::training_step& at) = 0;

  // What quantization does to the operands, from the call of collect_metrics(true) on. It costs a
  // pass over each of them.
  virtual void collect_metrics(bool on) = 0;
  [[nodiscard]] virtual microscale::linear_metrics metrics() const = 0;
};

// Which layer of which model this is: enough for a recipe to exempt it and to draw random bits for it.
struct linear_place {
  microscale::layer_position position;
  microscale::index_t in, out;
  const ranks* everyone;
};

}  // namespace pretrain
