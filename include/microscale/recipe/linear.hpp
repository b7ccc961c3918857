// A linear layer under a recipe: Y = X W^T forward, dX = dY W and dW = dY^T X backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../host/vendor_gemm.hpp"
#include "../tensor/metrics.hpp"
#include "recipe.hpp"

namespace microscale {

// Where a layer stands in its model: the recipe decides from it whether the layer is quantized, and the random streams
// of layers differ by `layer`.
struct layer_position {
  layer_role role = layer_role::mlp_up;
  int index = 0;            // of the layer's block, from 0
  int count = 1;            // how many blocks the model has
  std::uint32_t layer = 0;  // a number of its own among all linear layers of the model
};

// The references that a layer carries from step to step; a checkpoint stores these.
struct linear_state {
  reference_state activation;
  reference_state weight;
  reference_state output_gradient;

  friend constexpr bool operator==(const linear_state&, const linear_state&) = default;
};

// Sets all three references at once, to what calibration or a normalization says: what frozen scaling needs before the
// first step.
inline void set_references(linear_state& state, float activation, float weight, float output_gradient,
                           std::int64_t step = 1) {
  set_reference(state.activation, activation, step);
  set_reference(state.weight, weight, step);
  set_reference(state.output_gradient, output_gradient, step);
}

// What quantization did to the operands since the figures were last cleared.
struct linear_metrics {
  quantization_metrics activation;
  quantization_metrics weight;
  quantization_metrics output_gradient;
};

template <training_recipe Recipe, class Accumulate>
class linear;

namespace detail {

struct no_layer {};

// The layer that takes over where a recipe has an alternative.
template <class Recipe, class Accumulate>
struct alternative_layer {
  using type = no_layer;
};
template <has_alternative Recipe, class Accumulate>
struct alternative_layer<Recipe, Accumulate> {
  using type = linear<typename Recipe::alternative, Accumulate>;
};

template <class Scheme>
constexpr bool reads_reference() noexcept {
  if constexpr (requires { Scheme::tensor_scale::reads_reference; }) {
    return Scheme::tensor_scale::reads_reference;
  } else {
    return Scheme::has_tensor_scale;
  }
}

}  // namespace detail

// One layer of `out_features` x `in_features`. Matrices are row-major FP32: X is tokens x in, W is out x in, Y and dY
// are tokens x out. Accumulate is the GEMMs' accumulation policy. forward() keeps X as Wgrad wants it (already
// quantized along the tokens) and W where Dgrad can use it as it is; backward() must follow its forward().
//
// Where Fprop and a backward GEMM take the same operand in square blocks, or the two backward GEMMs do, it is quantized
// once and turned: its draws are those of the first use. `reduce` of forward and backward is what update_reference
// makes of it.
template <training_recipe Recipe, class Accumulate = vendor>
class linear {
 public:
  linear(index_t in_features, index_t out_features, layer_position position, Recipe recipe = {})
      : in_(in_features), out_(out_features), position_(position), recipe_(std::move(recipe)) {
    if constexpr (has_alternative<Recipe>) {
      if (Recipe::uses_alternative(position.role, position.index, position.count)) {
        other_.emplace(in_features, out_features, position);
      }
    }
  }

  index_t in_features() const noexcept { return in_; }
  index_t out_features() const noexcept { return out_; }
  const Recipe& recipe() const noexcept { return recipe_; }
  // Whether this layer is quantized, or exempt and computed with BF16 operands.
  bool is_quantized() const noexcept {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->is_quantized();
    }
    return !Recipe::high_precision(position_.role, position_.index, position_.count);
  }

  linear_state& state() noexcept {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->state();
    }
    return state_;
  }
  const linear_state& state() const noexcept {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->state();
    }
    return state_;
  }

  // From the next forward() on, both backward GEMMs are computed with BF16 operands (is_below_noise says when that
  // pays).
  void set_bf16_backward(bool on) noexcept {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->set_bf16_backward(on);
    }
    bf16_backward_ = on;
  }

  // Metrics are collected only while asked for: they cost a pass over each operand.
  void collect_metrics(bool on) {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->collect_metrics(on);
    }
    metrics_ = on ? std::optional<linear_metrics>(linear_metrics{}) : std::nullopt;
  }
  const std::optional<linear_metrics>& metrics() const noexcept {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->metrics();
    }
    return metrics_;
  }

  template <host_executor Executor, class Reduce = no_reduction>
  void forward(const Executor& executor, const training_step& at, matrix_view<const float> x,
               matrix_view<const float> w, matrix_view<float> y, const Reduce& reduce = {}) {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->forward(executor, at, x, w, y, reduce);
    }
    check("X", x, x.rows, in_);
    check("W", w, out_, in_);
    check("Y", y, x.rows, out_);
    using fprop = typename Recipe::fprop;
    using dgrad = typename Recipe::dgrad;
    using wgrad = typename Recipe::wgrad;
    tokens_ = x.rows;
    bf16_dgrad_ = !is_quantized() || bf16_backward_ || !dgrad::is_quantized;
    bf16_wgrad_ = !is_quantized() || bf16_backward_ || !wgrad::is_quantized;
    const bool bf16_fprop = !is_quantized() || !fprop::is_quantized;
    if (bf16_fprop || bf16_wgrad_) saved_x_.assign(x, executor, axis::row);
    if (bf16_fprop || bf16_dgrad_) saved_w_.assign(w, executor, axis::row);
    if (bf16_fprop) bf16_gemm(executor, saved_x_, saved_w_, y);
    if (!is_quantized()) return;

    signs_at_ = at;
    const float* x_reference = update_reference(recipe_.scaling, state_.activation, executor, at.step, x, reduce);
    const float* w_reference = update_reference(recipe_.scaling, state_.weight, executor, at.step, w, reduce);
    auto qx = prepare<typename fprop::left>(executor, at, x, axis::row, x_reference, operand_role::activation,
                                            gemm_role::fprop, metrics_ ? &metrics_->activation : nullptr);
    auto qw = prepare<typename fprop::right>(executor, at, w, axis::row, w_reference, operand_role::weight,
                                             gemm_role::fprop, metrics_ ? &metrics_->weight : nullptr);
    multiply(executor, qx, qw, y);
    if (!bf16_wgrad_) {
      if constexpr (turns<typename fprop::left, typename wgrad::right>) {
        wgrad_x_ = transpose(qx);
      } else {
        wgrad_x_ = prepare<typename wgrad::right>(executor, at, as_saved(executor, qx, x), axis::col, x_reference,
                                                  operand_role::activation, gemm_role::wgrad);
      }
    }
    if (!bf16_dgrad_) {
      if constexpr (turns<typename fprop::right, typename dgrad::right>) {
        dgrad_w_ = transpose(qw);
      } else {
        dgrad_w_ = prepare<typename dgrad::right>(executor, at, as_saved(executor, qw, w), axis::col, w_reference,
                                                  operand_role::weight, gemm_role::dgrad);
      }
    }
  }

  // Writes dX (tokens x in) and dW (out x in); both are overwritten.
  template <host_executor Executor, class Reduce = no_reduction>
  void backward(const Executor& executor, const training_step& at, matrix_view<const float> dy, matrix_view<float> dx,
                matrix_view<float> dw, const Reduce& reduce = {}) {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->backward(executor, at, dy, dx, dw, reduce);
    }
    check("dY", dy, tokens_, out_);
    check("dX", dx, tokens_, in_);
    check("dW", dw, out_, in_);
    using dgrad = typename Recipe::dgrad;
    using wgrad = typename Recipe::wgrad;
    bf16_matrix left, right;
    if (bf16_dgrad_) {
      left.assign(dy, executor, axis::row);
      right.assign(saved_w_.view(), executor, axis::col);
      bf16_gemm(executor, left, right, dx);
    }
    if (bf16_wgrad_) {
      left.assign(dy, executor, axis::col);
      right.assign(saved_x_.view(), executor, axis::col);
      bf16_gemm(executor, left, right, dw);
    }
    if (bf16_dgrad_ && bf16_wgrad_) return;

    const float* reference = update_reference(recipe_.scaling, state_.output_gradient, executor, at.step, dy, reduce);
    const auto quantize_for_dgrad = [&] {
      return prepare<typename dgrad::left>(executor, at, dy, axis::row, reference, operand_role::output_gradient,
                                           gemm_role::dgrad, metrics_ ? &metrics_->output_gradient : nullptr);
    };
    const auto quantize_for_wgrad = [&] {
      return prepare<typename wgrad::left>(executor, at, dy, axis::col, reference, operand_role::output_gradient,
                                           gemm_role::wgrad);
    };
    if constexpr (turns<typename dgrad::left, typename wgrad::left>) {
      const auto q = quantize_for_dgrad();
      multiply(executor, q, dgrad_w_, dx);
      multiply(executor, transpose(q), wgrad_x_, dw);
    } else {
      if (!bf16_dgrad_) multiply(executor, quantize_for_dgrad(), dgrad_w_, dx);
      if (!bf16_wgrad_) multiply(executor, quantize_for_wgrad(), wgrad_x_, dw);
    }
  }

 private:
  // The stand-in for a quantized operand in recipes that quantize none.
  template <class Operand, bool = Operand::is_quantized>
  struct stored {
    using type = quantized<typename Operand::scheme>;
  };
  template <class Operand>
  struct stored<Operand, false> {
    struct type {};
  };
  template <class Operand>
  using stored_t = typename stored<Operand>::type;

  // Whether `Second`, over the transpose, is what `First` is: the blocks are square and all else is the same.
  template <class First, class Second>
  static constexpr bool are_turned() noexcept {
    if constexpr (First::is_quantized && std::is_same_v<First, Second>) {
      return First::scheme::block::is_square && First::transform::size == 1;
    } else {
      return false;
    }
  }
  template <class First, class Second>
  static constexpr bool turns = are_turned<First, Second>();

  // A matrix rounded to BF16, held as floats.
  class bf16_matrix {
   public:
    template <host_executor Executor>
    void assign(matrix_view<const float> m, const Executor& executor, axis along) {
      rows_ = along == axis::row ? m.rows : m.cols;
      cols_ = along == axis::row ? m.cols : m.rows;
      data_.resize(static_cast<std::size_t>(rows_ * cols_));
      detail::run_ranges(executor, rows_, cols_, [&](index_t first, index_t last) {
        // In runs of rows, so that a transposed read comes back to a cache line while it is still there.
        constexpr index_t run = 16;
        for (index_t r0 = first; r0 < last; r0 += run) {
          const index_t r1 = smaller(last, r0 + run);
          if (along == axis::row) {
            for (index_t r = r0; r < r1; ++r) {
              for (index_t c = 0; c < cols_; ++c) put(r, c, m(r, c));
            }
          } else {
            for (index_t c = 0; c < cols_; ++c) {
              for (index_t r = r0; r < r1; ++r) put(r, c, m(c, r));
            }
          }
        }
      });
    }
    matrix_view<const float> view() const noexcept { return matrix(data_.data(), rows_, cols_); }

   private:
    void put(index_t r, index_t c, float x) {
      data_[static_cast<std::size_t>(r * cols_ + c)] = to_float(from_float<value<bf16>>(x));
    }

    std::vector<float> data_;
    index_t rows_ = 0;
    index_t cols_ = 0;
  };

  static void check(const char* what, const matrix_view<const float>& m, index_t rows, index_t cols) {
    detail::check_matrix(what, m);
    if (m.rows != rows || m.cols != cols) {
      detail::fail(what, detail::shape_text(rows, cols), detail::shape_text(m.rows, m.cols));
    }
  }

  template <host_executor Executor>
  static void bf16_gemm(const Executor& executor, const bf16_matrix& a, const bf16_matrix& b, matrix_view<float> c) {
    detail::gemm_f32(executor, a.view(), b.view(), c, 1.0f);
  }

  // What the backward GEMMs quantize of an operand: itself, or what Fprop made of it where the recipe says so.
  template <host_executor Executor, class Stored>
  matrix_view<const float> as_saved(const Executor& executor, const Stored& q, matrix_view<const float> m) {
    if constexpr (requires { q.view(), Recipe::backward_from_quantized; }) {
      if constexpr (Recipe::backward_from_quantized) {
        decoded_.resize(static_cast<std::size_t>(m.rows * m.cols));
        dequantize_into(executor, q.view(), matrix(decoded_.data(), m.rows, m.cols));
        return matrix(decoded_.data(), m.rows, m.cols);
      }
    }
    return m;
  }

  int target_of(operand_role operand, gemm_role gemm) const {
    if constexpr (requires { recipe_.target(layer_role{}, 0, 1, operand, gemm); }) {
      return recipe_.target(position_.role, position_.index, position_.count, operand, gemm);
    } else {
      return 0;
    }
  }

  // The operand as the GEMM wants it: transformed along K, then quantized along K. Adds to `measured` what that cost.
  template <class Operand, host_executor Executor>
  stored_t<Operand> prepare(const Executor& executor, const training_step& at, matrix_view<const float> m, axis along,
                            const float* reference, operand_role operand, gemm_role gemm,
                            quantization_metrics* measured = nullptr) {
    if constexpr (!Operand::is_quantized) {
      return {};
    } else {
      using scheme = typename Operand::scheme;
      const auto stream = [&](const training_step& step, operand_role of, draw_purpose purpose) {
        return random_key{step.seed, random_stream(step, position_.layer, of, gemm, purpose)};
      };
      if constexpr (Operand::transform::size > 1) {
        transformed_.resize(static_cast<std::size_t>(m.rows * m.cols));
        const matrix_view<float> t = matrix(transformed_.data(), m.rows, m.cols);
        // The operands of a GEMM share their signs: the draw is that of the step of forward(), and of operand X.
        const random_key key = stream(signs_at_, operand_role::activation, draw_purpose::signs);
        hadamard_into(executor, m, t,
                      {.size = Operand::transform::size,
                       .signs = detail::transform_signs<typename Operand::transform>(key),
                       .axis = along});
        m = t;
      }
      static constexpr float unread = 1.0f;
      quantize_options options;
      options.axis = along;
      options.reference = detail::reads_reference<scheme>() ? reference : &unread;
      options.target = target_of(operand, gemm);
      const bool along_rows = along == axis::row;
      stored_t<Operand> q(along_rows ? m.rows : m.cols, along_rows ? m.cols : m.rows);
      quantize_with(executor, m, q.view(),
                    detail::rounding_with<typename Operand::rounding>::keys(stream(at, operand, draw_purpose::elements),
                                                                            stream(at, operand, draw_purpose::scales)),
                    options);
      if (measured != nullptr) *measured += measure(m, q.view(), along);
      return q;
    }
  }

  template <host_executor Executor, class A, class B>
  void multiply(const Executor& executor, const A& a, const B& b, matrix_view<float> c) {
    if constexpr (requires { a.view(); }) {
      workspace_.resize(gemm_workspace<Accumulate>(executor, a.view(), b.view()));
      gemm_into<Accumulate>(executor, a.view(), b.view(), c, gemm_options{}, std::span<std::byte>(workspace_));
    }
  }

  index_t in_;
  index_t out_;
  layer_position position_;
  Recipe recipe_;
  linear_state state_;
  std::optional<linear_metrics> metrics_;

  index_t tokens_ = 0;
  bool bf16_backward_ = false;  // wanted, from the next forward() on
  bool bf16_dgrad_ = false;     // what forward() saved operands for
  bool bf16_wgrad_ = false;
  training_step signs_at_;
  bf16_matrix saved_x_, saved_w_;
  stored_t<typename Recipe::wgrad::right> wgrad_x_;
  stored_t<typename Recipe::dgrad::right> dgrad_w_;
  std::vector<float> transformed_, decoded_;
  std::vector<std::byte> workspace_;
  // The layer in this one's place, where the recipe has an alternative and uses it here.
  std::optional<typename detail::alternative_layer<Recipe, Accumulate>::type> other_;
};

}  // namespace microscale
