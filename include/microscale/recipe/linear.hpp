// A linear layer under a recipe: Y = X W^T forward, dX = dY W and dW = dY^T X backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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

// What quantization did to the operands since the figures were last cleared.
struct linear_metrics {
  quantization_metrics activation;
  quantization_metrics weight;
  quantization_metrics output_gradient;
};

// One layer of `out_features` x `in_features`. Matrices are row-major FP32: X is tokens x in, W is out x in, Y and dY
// are tokens x out. Accumulate is the GEMMs' accumulation policy. forward() keeps X as Wgrad wants it (already
// quantized along the tokens) and W where Dgrad can use it as it is; backward() must follow its forward().
template <training_recipe Recipe, class Accumulate = vendor>
class linear {
 public:
  linear(index_t in_features, index_t out_features, layer_position position, Recipe recipe = {})
      : in_(in_features), out_(out_features), position_(position), recipe_(std::move(recipe)) {}

  index_t in_features() const noexcept { return in_; }
  index_t out_features() const noexcept { return out_; }
  const Recipe& recipe() const noexcept { return recipe_; }
  // Whether this layer is quantized, or exempt and computed with BF16 operands.
  bool is_quantized() const noexcept {
    return !Recipe::high_precision(position_.role, position_.index, position_.count);
  }

  linear_state& state() noexcept { return state_; }
  const linear_state& state() const noexcept { return state_; }

  // Metrics are collected only while asked for: they cost a pass over each operand.
  void collect_metrics(bool on) { metrics_ = on ? std::optional<linear_metrics>(linear_metrics{}) : std::nullopt; }
  const std::optional<linear_metrics>& metrics() const noexcept { return metrics_; }

  template <host_executor Executor>
  void forward(const Executor& executor, const training_step& at, matrix_view<const float> x,
               matrix_view<const float> w, matrix_view<float> y) {
    check("X", x, x.rows, in_);
    check("W", w, out_, in_);
    check("Y", y, x.rows, out_);
    tokens_ = x.rows;
    if (!is_quantized()) {
      saved_x_.assign(x, executor, axis::row);
      saved_w_.assign(w, executor, axis::row);
      return bf16_gemm(executor, saved_x_, saved_w_, y);
    }
    const float* x_reference = update_reference(recipe_.scaling, state_.activation, executor, at.step, x);
    const float* w_reference = update_reference(recipe_.scaling, state_.weight, executor, at.step, w);
    auto qx = prepare<typename Recipe::fprop::left>(executor, at, x, axis::row, x_reference, operand_role::activation,
                                                    gemm_role::fprop);
    auto qw = prepare<typename Recipe::fprop::right>(executor, at, w, axis::row, w_reference, operand_role::weight,
                                                     gemm_role::fprop);
    if (metrics_) {
      metrics_->activation += measured<typename Recipe::fprop::left>(x, qx, axis::row);
      metrics_->weight += measured<typename Recipe::fprop::right>(w, qw, axis::row);
    }
    multiply(executor, qx, qw, y);
    wgrad_x_ = prepare<typename Recipe::wgrad::right>(executor, at, x, axis::col, x_reference, operand_role::activation,
                                                      gemm_role::wgrad);
    if constexpr (weight_turns) {
      dgrad_w_ = transpose(qw);
    } else {
      dgrad_w_ = prepare<typename Recipe::dgrad::right>(executor, at, w, axis::col, w_reference, operand_role::weight,
                                                        gemm_role::dgrad);
    }
  }

  // Writes dX (tokens x in) and dW (out x in); both are overwritten.
  template <host_executor Executor>
  void backward(const Executor& executor, const training_step& at, matrix_view<const float> dy, matrix_view<float> dx,
                matrix_view<float> dw) {
    check("dY", dy, tokens_, out_);
    check("dX", dx, tokens_, in_);
    check("dW", dw, out_, in_);
    if (!is_quantized()) {
      bf16_matrix gradient, gradient_t, w_t, x_t;
      gradient.assign(dy, executor, axis::row);
      w_t.assign(saved_w_.view(), executor, axis::col);
      bf16_gemm(executor, gradient, w_t, dx);
      gradient_t.assign(dy, executor, axis::col);
      x_t.assign(saved_x_.view(), executor, axis::col);
      return bf16_gemm(executor, gradient_t, x_t, dw);
    }
    const float* reference = update_reference(recipe_.scaling, state_.output_gradient, executor, at.step, dy);
    auto dgrad_dy = prepare<typename Recipe::dgrad::left>(executor, at, dy, axis::row, reference,
                                                          operand_role::output_gradient, gemm_role::dgrad);
    if (metrics_) metrics_->output_gradient += measured<typename Recipe::dgrad::left>(dy, dgrad_dy, axis::row);
    multiply(executor, dgrad_dy, dgrad_w_, dx);
    auto wgrad_dy = prepare<typename Recipe::wgrad::left>(executor, at, dy, axis::col, reference,
                                                          operand_role::output_gradient, gemm_role::wgrad);
    multiply(executor, wgrad_dy, wgrad_x_, dw);
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

  // Dgrad can use the forward weight turned around if the blocks are square and the operand is otherwise the same.
  static constexpr bool weight_turns = [] {
    if constexpr (!Recipe::fprop::is_quantized) {
      return false;
    } else {
      using forward_w = typename Recipe::fprop::right;
      return std::is_same_v<forward_w, typename Recipe::dgrad::right> && forward_w::scheme::block::is_square &&
             forward_w::transform::size == 1;
    }
  }();

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

  // The operand as the GEMM wants it: transformed along K, then quantized along K.
  template <class Operand, host_executor Executor>
  stored_t<Operand> prepare(const Executor& executor, const training_step& at, matrix_view<const float> m, axis along,
                            const float* reference, operand_role operand, gemm_role gemm) {
    if constexpr (!Operand::is_quantized) {
      return {};
    } else {
      using rounding_type = typename Operand::rounding;
      quantize_options options{.axis = along, .reference = reference};
      if constexpr (stochastic_mode<rounding_type>) {
        options.rounding = rounding_type{at.seed, random_stream(at, position_.layer, operand, gemm)};
      } else {
        options.rounding = rounding_type{};
      }
      if constexpr (Operand::transform::size > 1) {
        transformed_.resize(static_cast<std::size_t>(m.rows * m.cols));
        const matrix_view<float> t = matrix(transformed_.data(), m.rows, m.cols);
        hadamard_into(executor, m, t,
                      {.size = Operand::transform::size, .signs = Operand::transform::signs(), .axis = along});
        return quantize<typename Operand::scheme>(executor, t, options);
      } else {
        return quantize<typename Operand::scheme>(executor, m, options);
      }
    }
  }

  template <class Operand>
  static quantization_metrics measured(matrix_view<const float> m, const stored_t<Operand>& q, axis along) {
    if constexpr (Operand::is_quantized) return measure(m, q.view(), along);
    return {};
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
  bf16_matrix saved_x_, saved_w_;
  stored_t<typename Recipe::wgrad::right> wgrad_x_;
  stored_t<typename Recipe::dgrad::right> dgrad_w_;
  std::vector<float> transformed_;
  std::vector<std::byte> workspace_;
};

}  // namespace microscale
