#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "math.hpp"
#include "matmul.hpp"

namespace pretrain {
namespace {

constexpr index_t rows_per_piece = 64;
constexpr index_t elements_per_piece = 1 << 15;

}  // namespace

void rms_norm(thread_pool& pool, std::span<const float> x, std::span<const float> gain, std::span<float> y,
              std::span<float> inverse_rms) {
  constexpr float epsilon = 1e-6f;
  const auto width = std::ssize(gain);
  for_each_piece(pool, std::ssize(inverse_rms), rows_per_piece, [&](auto begin, auto end) {
    for (auto row = begin; row < end; ++row) {
      const float* in = x.data() + row * width;
      float* out = y.data() + row * width;
      const float scale = 1.0f / std::sqrt(dot(in, in, width) / static_cast<float>(width) + epsilon);
      inverse_rms.data()[row] = scale;
      for (index_t i = 0; i < width; ++i) out[i] = in[i] * scale * gain.data()[i];
    }
  });
}

// With n = x * r and r = 1/rms: dx = r * (g - n * mean(g * n)) for g = dy * gain, dgain = sum dy * n.
void rms_norm_backward(thread_pool& pool, std::span<const float> dy, std::span<const float> x,
                       std::span<const float> gain, std::span<const float> inverse_rms, std::span<float> dx,
                       std::span<float> dgain) {
  const auto width = std::ssize(gain);
  const auto rows = std::ssize(inverse_rms);
  // Each piece of rows sums its own part of dgain; the parts are added in order below.
  const auto pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  std::vector<float> parts(static_cast<std::size_t>(pieces * width));
  for_each_piece(pool, rows, rows_per_piece, [&](auto begin, auto end) {
    float* part = parts.data() + begin / rows_per_piece * width;
    for (auto row = begin; row < end; ++row) {
      const float* in = x.data() + row * width;
      const float* g = dy.data() + row * width;
      float* out = dx.data() + row * width;
      const float scale = inverse_rms.data()[row];
      const float sum = lane_sum(width, [&](auto i) { return g[i] * gain.data()[i] * in[i]; });
      const float along = sum * scale * scale / static_cast<float>(width);
      for (index_t i = 0; i < width; ++i) {
        out[i] += scale * (g[i] * gain.data()[i] - in[i] * along);
        part[i] += g[i] * in[i] * scale;
      }
    }
  });
  std::ranges::fill(dgain, 0.0f);
  for (index_t piece = 0; piece < pieces; ++piece)
    for (index_t i = 0; i < width; ++i) dgain.data()[i] += parts.data()[piece * width + i];
}

void squared_relu(thread_pool& pool, std::span<const float> x, std::span<float> y) {
  for_each_piece(pool, std::ssize(x), elements_per_piece, [&](auto begin, auto end) {
    const float* in = x.data();
    for (auto i = begin; i < end; ++i) y.data()[i] = in[i] > 0.0f ? in[i] * in[i] : 0.0f;
  });
}

void squared_relu_backward(thread_pool& pool, std::span<const float> x, std::span<float> dy) {
  for_each_piece(pool, std::ssize(x), elements_per_piece, [&](auto begin, auto end) {
    for (auto i = begin; i < end; ++i) dy.data()[i] *= x.data()[i] > 0.0f ? 2.0f * x.data()[i] : 0.0f;
  });
}

void add(thread_pool& pool, std::span<float> x, std::span<const float> y) {
  for_each_piece(pool, std::ssize(x), elements_per_piece, [&](auto begin, auto end) {
    for (auto i = begin; i < end; ++i) x.data()[i] += y.data()[i];
  });
}

double cross_entropy(thread_pool& pool, std::span<float> logits, std::span<const std::uint8_t> targets) {
  const auto rows = std::ssize(targets);
  const auto classes = std::ssize(logits) / rows;
  const float weight = 1.0f / static_cast<float>(rows);
  std::vector<double> losses(targets.size());
  for_each_piece(pool, rows, rows_per_piece, [&](auto begin, auto end) {
    for (auto row = begin; row < end; ++row) {
      float* x = logits.data() + row * classes;
      const auto target = targets.data()[row];
      const double of_target = x[target];
      const softmax_sums sums = softmax(x, classes);
      losses.data()[row] = std::log(static_cast<double>(sums.sum)) + sums.largest - of_target;
      x[target] -= 1.0f;
      for (index_t i = 0; i < classes; ++i) x[i] *= weight;
    }
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(rows);
}

attention::attention(index_t context, index_t heads, index_t head_width)
    : context_(context),
      heads_(heads),
      head_width_(head_width),
      scale_(1.0f / std::sqrt(static_cast<float>(head_width))) {
  const index_t pairs = head_width / 2;
  for (index_t position = 0; position < context; ++position)
    for (index_t i = 0; i < pairs; ++i) {
      const double frequency = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
      const double angle = static_cast<double>(position) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
}

void attention::rotate(float* row, index_t position, float direction) const {
  const index_t pairs = head_width_ / 2;
  const float* cosine = cosine_.data() + position * pairs;
  const float* sine = sine_.data() + position * pairs;
  for (index_t i = 0; i < pairs; ++i) {
    const float a = row[i], b = row[i + pairs], s = direction * sine[i];
    row[i] = a * cosine[i] - b * s;
    row[i + pairs] = a * s + b * cosine[i];
  }
}

void attention::forward(thread_pool& pool, std::span<float> qkv, std::span<float> y,
                        std::span<float> probabilities) const {
  const index_t width = heads_ * head_width_, stride = 3 * width;
  const index_t sequences = std::ssize(y) / (width * context_);
  pool.for_each(sequences * heads_, [&](index_t i) {
    const index_t first_row = i / heads_ * context_;
    float* q = qkv.data() + first_row * stride + i % heads_ * head_width_;
    float* k = q + width;
    for (index_t t = 0; t < context_; ++t) {
      rotate(q + t * stride, t, 1.0f);
      rotate(k + t * stride, t, 1.0f);
    }
    const matrix_view queries{q, context_, head_width_, stride};
    const matrix_view keys{k, context_, head_width_, stride};
    const matrix_view values{k + width, context_, head_width_, stride};
    float* p = probabilities.data() + i * context_ * context_;
    matmul(queries, keys.transposed(), p, context_);
    for (index_t t = 0; t < context_; ++t) {
      float* row = p + t * context_;
      for (index_t s = 0; s <= t; ++s) row[s] *= scale_;
      softmax(row, t + 1);
      std::fill(row + t + 1, row + context_, 0.0f);
    }
    float* out = y.data() + first_row * width + i % heads_ * head_width_;
    matmul({p, context_, context_, context_}, values, out, width);
  });
}

// For one head, with P the probabilities: dV = Pᵀ · dY, dP = dY · Vᵀ, dS = P * (dP - sum(dP * P)),
// dQ = dS · K and dK = dSᵀ · Q, both rotated back.
void attention::backward(thread_pool& pool, std::span<const float> dy, std::span<const float> qkv,
                         std::span<const float> probabilities, std::span<float> dqkv) const {
  const index_t width = heads_ * head_width_, stride = 3 * width;
  const index_t sequences = std::ssize(dy) / (width * context_);
  pool.for_each(sequences * heads_, [&](index_t i) {
    const index_t first_row = i / heads_ * context_;
    const index_t offset = first_row * stride + i % heads_ * head_width_;
    const float* q = qkv.data() + offset;
    const matrix_view queries{q, context_, head_width_, stride};
    const matrix_view keys{q + width, context_, head_width_, stride};
    const matrix_view values{q + 2 * width, context_, head_width_, stride};
    const float* p = probabilities.data() + i * context_ * context_;
    const matrix_view p_view{p, context_, context_, context_};
    const matrix_view dy_view{dy.data() + first_row * width + i % heads_ * head_width_, context_, head_width_, width};
    float* dq = dqkv.data() + offset;
    float* dk = dq + width;
    matmul(p_view.transposed(), dy_view, dk + width, stride);

    std::vector<float> ds(static_cast<std::size_t>(context_ * context_));
    const matrix_view ds_view{ds.data(), context_, context_, context_};
    matmul(dy_view, values.transposed(), ds.data(), context_);
    for (index_t t = 0; t < context_; ++t) {
      float* row = ds.data() + t * context_;
      const float* p_row = p + t * context_;
      const float sum = dot(row, p_row, context_);
      for (index_t s = 0; s < context_; ++s) row[s] = p_row[s] * (row[s] - sum) * scale_;
    }
    matmul(ds_view, keys, dq, stride);
    matmul(ds_view.transposed(), queries, dk, stride);
    for (index_t t = 0; t < context_; ++t) {
      rotate(dq + t * stride, t, -1.0f);
      rotate(dk + t * stride, t, -1.0f);
    }
  });
}

}  // namespace pretrain
