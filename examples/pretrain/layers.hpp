// The parts of the transformer that stay in high precision, each with its derivative. All matrices
// are row-major, one row per token; a `_backward` function takes the gradient of the outputs and
// gives the gradient of the inputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel.hpp"

namespace pretrain {

// y = x / rms(x) * gain, row by row; the reciprocals of the rms are kept for the backward pass.
void rms_norm(thread_pool& pool, std::span<const float> x, std::span<const float> gain, std::span<float> y,
              std::span<float> inverse_rms);

// *Adds* to dx, because a norm always branches off a residual stream.
void rms_norm_backward(thread_pool& pool, std::span<const float> dy, std::span<const float> x,
                       std::span<const float> gain, std::span<const float> inverse_rms, std::span<float> dx,
                       std::span<float> dgain);

// y = max(x, 0)^2
void squared_relu(thread_pool& pool, std::span<const float> x, std::span<float> y);
// In place: dy becomes dx.
void squared_relu_backward(thread_pool& pool, std::span<const float> x, std::span<float> dy);

// x += y
void add(thread_pool& pool, std::span<float> x, std::span<const float> y);

// Softmax cross-entropy of each row of logits against its target; in place, the logits become their
// gradient for the *mean* loss. Returns that mean, in nats.
double cross_entropy(thread_pool& pool, std::span<float> logits, std::span<const std::uint8_t> targets);

// Causal multi-head attention with rotary positions, on rows that hold the queries, keys and values
// of all heads side by side. It works in place on `qkv`, whose queries and keys stay rotated.
class attention {
 public:
  attention(index_t context, index_t heads, index_t head_width);

  void forward(thread_pool& pool, std::span<float> qkv, std::span<float> y, std::span<float> probabilities) const;

  void backward(thread_pool& pool, std::span<const float> dy, std::span<const float> qkv,
                std::span<const float> probabilities, std::span<float> dqkv) const;

  // Elements of `probabilities` per sequence.
  [[nodiscard]] index_t probabilities_per_sequence() const { return heads_ * context_ * context_; }

 private:
  // Rotates each pair (i, i + head_width / 2) of a row by its angle times `direction` (1 or -1).
  void rotate(float* row, index_t position, float direction) const;

  index_t context_, heads_, head_width_;
  float scale_;
  std::vector<float> cosine_, sine_;  // context × head_width / 2
};

}  // namespace pretrain
