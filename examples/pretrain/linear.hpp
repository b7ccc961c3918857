// The one seam of this program: what the model asks of an internal linear layer. A recipe decides
// what stands behind it (recipes.cpp); the model never knows whether its operands are FP4.
#pragma once

#include <cstdint>
#include <microscale/recipe/linear.hpp>
#include <span>

namespace pretrain {

// y = x · wᵀ and its derivative, for row-major x (tokens × in), w (out × in) and y (tokens × out).
// The layer owns neither its weights nor its activations, only what its recipe carries from step to
// step.
class linear_layer {
 public:
  virtual ~linear_layer() = default;

  // One training step; steps count from 1. x and w stay as they are until its backward().
  virtual void forward(std::span<const float> x, std::span<const float> w, std::span<float> y, std::int64_t step) = 0;

  // dx = dy · w and dw = dyᵀ · x, both overwritten.
  virtual void backward(std::span<const float> dy, std::span<float> dx, std::span<float> dw) = 0;

  // The forward product alone, for evaluation: changes nothing that training will see.
  virtual void infer(std::span<const float> x, std::span<const float> w, std::span<float> y) = 0;

  // What quantization does to the operands, from the call of collect_metrics() on. It costs a pass
  // over each of them.
  virtual void collect_metrics() = 0;
  [[nodiscard]] virtual microscale::linear_metrics metrics() const = 0;
};

// Which layer of which model this is: enough for a recipe to exempt it and to draw random bits for it.
struct linear_place {
  microscale::layer_position position;
  microscale::index_t in, out;
  std::uint64_t seed;
};

}  // namespace pretrain
