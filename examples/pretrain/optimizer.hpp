// AdamW with a clipped gradient, and the learning rate over a run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "math.hpp"
#include "model.hpp"
#include "parallel.hpp"

namespace pretrain {

struct optimizer_config {
  float peak_learning_rate = 4e-3f;
  float final_share = 0.05f;    // of the peak, reached at the last step
  float warm_up_share = 0.05f;  // of the steps
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // on matrices, not on gains
  float largest_norm = 1.0f;  // of the gradient of the whole model
};

// A linear warm-up, then half a cosine. Steps count from 1.
[[nodiscard]] inline float learning_rate(const optimizer_config& config, std::int64_t step, std::int64_t steps) {
  const double warm_up =
      std::max(1.0, std::floor(static_cast<double>(steps) * static_cast<double>(config.warm_up_share)));
  const auto now = static_cast<double>(step);
  if (now <= warm_up) return static_cast<float>(config.peak_learning_rate * now / warm_up);
  const double progress = (now - warm_up) / std::max(1.0, static_cast<double>(steps) - warm_up);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  const double share = config.final_share + (1 - config.final_share) * cosine;
  return static_cast<float>(config.peak_learning_rate * share);
}

class adamw {
 public:
  adamw(const optimizer_config& config, std::vector<parameter*> parameters, thread_pool& pool)
      : config_(config), parameters_(std::move(parameters)), pool_(pool) {
    for (const parameter* p : parameters_) {
      first_.emplace_back(p->value.size());
      second_.emplace_back(p->value.size());
    }
  }

  // One update of every parameter from its gradient. Returns the gradient's norm before clipping.
  double step(float learning_rate) {
    const double norm = gradient_norm();
    const double limit = config_.largest_norm;
    const auto clip = static_cast<float>(norm > limit ? limit / norm : 1.0);
    power1_ *= config_.beta1;
    power2_ *= config_.beta2;
    const auto correction1 = static_cast<float>(1 / (1 - power1_));
    const auto correction2 = static_cast<float>(1 / (1 - power2_));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameter& p = *parameters_[i];
      const float decay = p.is_matrix() ? learning_rate * config_.weight_decay : 0.0f;
      for_each_piece(pool_, std::ssize(p.value), 1 << 14, [&](auto begin, auto end) {
        float* value = p.value.data();
        float* m = first_[i].data();
        float* v = second_[i].data();
        for (auto j = begin; j < end; ++j) {
          const float g = p.gradient.data()[j] * clip;
          m[j] += (1 - config_.beta1) * (g - m[j]);
          v[j] += (1 - config_.beta2) * (g * g - v[j]);
          const float update = m[j] * correction1 / (std::sqrt(v[j] * correction2) + config_.epsilon);
          value[j] -= learning_rate * update + decay * value[j];
        }
      });
    }
    return norm;
  }

  // Hands what it carries from step to step to an archive (checkpoint.hpp), for writing or for reading.
  template <class Archive>
  void exchange(Archive& archive) {
    for (auto* moments : {&first_, &second_})
      for (auto& m : *moments) archive.values(std::span(m));
    archive.value(power1_);
    archive.value(power2_);
  }

 private:
  [[nodiscard]] double gradient_norm() {
    std::vector<double> squares(parameters_.size());
    pool_.for_each(std::ssize(parameters_), [&](index_t i) {
      const auto index = static_cast<std::size_t>(i);
      const auto& g = parameters_[index]->gradient;
      squares[index] = dot(g.data(), g.data(), std::ssize(g));
    });
    double sum = 0;
    for (const double square : squares) sum += square;
    return std::sqrt(sum);
  }

  optimizer_config config_;
  std::vector<parameter*> parameters_;
  thread_pool& pool_;
  std::vector<std::vector<float>> first_, second_;  // moments
  double power1_ = 1, power2_ = 1;                  // of the betas
};

}  // namespace pretrain
