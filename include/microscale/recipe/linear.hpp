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

// Where a layer's operands lie, and the calls that differ with it. This is the host's; recipe/linear.cuh has the
// device's.
class host_memory {
 public:
  template <quantization_scheme S>
  using quantized_matrix = quantized<S>;
  using floats = std::vector<float>;

  // A matrix rounded to BF16, held as floats.
  class bf16_matrix {
   public:
    template <host_executor Executor>
    void assign(const Executor& executor, matrix_view<const float> m, axis along) {
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

  template <host_executor Executor>
  static float sample_amax(const Executor& executor, matrix_view<const float> m) {
    return amax(executor, m);
  }
  // A held reference, where the quantizer of this memory reads it.
  template <host_executor Executor>
  static const float* reference(const Executor&, operand_role, const float* held) noexcept {
    return held;
  }
  // Where a scheme with a constant tensor scale may look.
  template <host_executor Executor>
  static const float* unread_reference(const Executor&) noexcept {
    static constexpr float one = 1.0f;
    return &one;
  }
  template <quantization_scheme S>
  static void reshape(quantized<S>& q, index_t rows, index_t cols) {
    if (q.rows() != rows || q.cols() != cols) q = quantized<S>(rows, cols);
  }
  template <host_executor Executor, quantization_scheme S, rounding_mode R>
  static void quantize(const Executor& executor, matrix_view<const float> m, quantized<S>& q, R rounding,
                       const quantize_options& options) {
    quantize_with(executor, m, q.view(), rounding, options);
  }
  template <host_executor Executor, quantization_scheme S>
  static void transpose(const Executor&, const quantized<S>& in, quantized<S>& out) {
    transpose_into<S>(in.view(), out.view());
  }
  template <host_executor Executor, quantization_scheme S>
  static void dequantize(const Executor& executor, const quantized<S>& q, matrix_view<float> out) {
    dequantize_into(executor, q.view(), out);
  }
  template <host_executor Executor>
  static void transform(const Executor& executor, matrix_view<const float> in, matrix_view<float> out,
                        const hadamard_options& options) {
    hadamard_into(executor, in, out, options);
  }
  template <host_executor Executor, quantization_scheme S>
  static quantization_metrics measure(const Executor&, matrix_view<const float> m, const quantized<S>& q, axis along) {
    return microscale::measure(m, q, along);
  }
  template <class Accumulate, host_executor Executor, quantization_scheme A, quantization_scheme B>
  void multiply(const Executor& executor, const quantized<A>& a, const quantized<B>& b, matrix_view<float> c) {
    workspace_.resize(gemm_workspace<Accumulate>(executor, a.view(), b.view()));
    gemm_into<Accumulate>(executor, a.view(), b.view(), c, gemm_options{}, std::span<std::byte>(workspace_));
  }
  template <host_executor Executor>
  static void multiply_bf16(const Executor& executor, const bf16_matrix& a, const bf16_matrix& b,
                            matrix_view<float> c) {
    detail::gemm_f32(executor, a.view(), b.view(), c, 1.0f);
  }

 private:
  std::vector<std::byte> workspace_;
};

template <training_recipe Recipe, class Accumulate, class Memory>
class linear;

namespace detail {

struct no_layer {};

// The layer that takes over where a recipe has an alternative.
template <class Recipe, class Accumulate, class Memory>
struct alternative_layer {
  using type = no_layer;
};
template <has_alternative Recipe, class Accumulate, class Memory>
struct alternative_layer<Recipe, Accumulate, Memory> {
  using type = linear<typename Recipe::alternative, Accumulate, Memory>;
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
//
// A call that throws leaves state() as it was; what forward() keeps for backward() is lost then, and backward() throws.
template <training_recipe Recipe, class Accumulate = vendor, class Memory = host_memory>
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

  // An operand of one of the GEMMs as the last forward() or backward() quantized it, for looking at: a quantized matrix
  // of Memory. Of layers in high precision it is empty.
  template <gemm_role Gemm>
  const auto& left() const noexcept {
    if constexpr (Gemm == gemm_role::fprop) {
      return fprop_x_;
    } else if constexpr (Gemm == gemm_role::dgrad) {
      return dgrad_dy_;
    } else {
      return wgrad_dy_;
    }
  }
  template <gemm_role Gemm>
  const auto& right() const noexcept {
    if constexpr (Gemm == gemm_role::fprop) {
      return fprop_w_;
    } else if constexpr (Gemm == gemm_role::dgrad) {
      return dgrad_w_;
    } else {
      return wgrad_x_;
    }
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

  // Writes Y (tokens x out), and keeps what backward() wants of X (tokens x in) and W (out x in). Throws ms::error
  // where a shape is another's, and where a reference that the recipe reads is missing or is no finite number.
  template <class Executor, class Reduce = no_reduction>
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
    is_forward_done_ = false;
    bf16_dgrad_ = !is_quantized() || bf16_backward_ || !dgrad::is_quantized;
    bf16_wgrad_ = !is_quantized() || bf16_backward_ || !wgrad::is_quantized;
    const bool bf16_fprop = !is_quantized() || !fprop::is_quantized;
    if (bf16_fprop || bf16_wgrad_) saved_x_.assign(executor, x, axis::row);
    if (bf16_fprop || bf16_dgrad_) saved_w_.assign(executor, w, axis::row);
    if (bf16_fprop) memory_.multiply_bf16(executor, saved_x_, saved_w_, y);
    if (!is_quantized()) {
      is_forward_done_ = true;
      return;
    }

    linear_state next = state_;
    signs_at_ = at;
    const float* x_reference = reference(executor, at, operand_role::activation, next.activation, x, reduce);
    const float* w_reference = reference(executor, at, operand_role::weight, next.weight, w, reduce);
    prepare<typename fprop::left>(fprop_x_, executor, at, x, axis::row, x_reference, operand_role::activation,
                                  gemm_role::fprop, metrics_ ? &metrics_->activation : nullptr);
    prepare<typename fprop::right>(fprop_w_, executor, at, w, axis::row, w_reference, operand_role::weight,
                                   gemm_role::fprop, metrics_ ? &metrics_->weight : nullptr);
    multiply(executor, fprop_x_, fprop_w_, y);
    if (!bf16_wgrad_) {
      if constexpr (turns<typename fprop::left, typename wgrad::right>) {
        turn(executor, fprop_x_, wgrad_x_);
      } else {
        prepare<typename wgrad::right>(wgrad_x_, executor, at, as_saved(executor, fprop_x_, x), axis::col, x_reference,
                                       operand_role::activation, gemm_role::wgrad);
      }
    }
    if (!bf16_dgrad_) {
      if constexpr (turns<typename fprop::right, typename dgrad::right>) {
        turn(executor, fprop_w_, dgrad_w_);
      } else {
        prepare<typename dgrad::right>(dgrad_w_, executor, at, as_saved(executor, fprop_w_, w), axis::col, w_reference,
                                       operand_role::weight, gemm_role::dgrad);
      }
    }
    state_ = std::move(next);
    is_forward_done_ = true;
  }

  // Writes dX (tokens x in) and dW (out x in) from dY (tokens x out) and what the last forward() kept; both are
  // overwritten. Throws ms::error as forward() does, and where no forward() has succeeded before it.
  template <class Executor, class Reduce = no_reduction>
  void backward(const Executor& executor, const training_step& at, matrix_view<const float> dy, matrix_view<float> dx,
                matrix_view<float> dw, const Reduce& reduce = {}) {
    if constexpr (has_alternative<Recipe>) {
      if (other_) return other_->backward(executor, at, dy, dx, dw, reduce);
    }
    if (!is_forward_done_) detail::fail("backward()", "a forward() before it", "none, or one that threw");
    check("dY", dy, tokens_, out_);
    check("dX", dx, tokens_, in_);
    check("dW", dw, out_, in_);
    using dgrad = typename Recipe::dgrad;
    using wgrad = typename Recipe::wgrad;
    if (bf16_dgrad_) multiply_saved(executor, dy, axis::row, saved_w_, dx);
    if (bf16_wgrad_) multiply_saved(executor, dy, axis::col, saved_x_, dw);
    if (bf16_dgrad_ && bf16_wgrad_) return;

    linear_state next = state_;
    const float* held = reference(executor, at, operand_role::output_gradient, next.output_gradient, dy, reduce);
    if (!bf16_dgrad_) {
      prepare<typename dgrad::left>(dgrad_dy_, executor, at, dy, axis::row, held, operand_role::output_gradient,
                                    gemm_role::dgrad, metrics_ ? &metrics_->output_gradient : nullptr);
      multiply(executor, dgrad_dy_, dgrad_w_, dx);
    }
    if (!bf16_wgrad_) {
      if constexpr (turns<typename dgrad::left, typename wgrad::left>) {
        turn(executor, dgrad_dy_, wgrad_dy_);
      } else {
        prepare<typename wgrad::left>(wgrad_dy_, executor, at, dy, axis::col, held, operand_role::output_gradient,
                                      gemm_role::wgrad);
      }
      multiply(executor, wgrad_dy_, wgrad_x_, dw);
    }
    state_ = std::move(next);
  }

 private:
  // The stand-in for a quantized operand in recipes that quantize none.
  template <class Operand, bool = Operand::is_quantized>
  struct stored {
    using type = typename Memory::template quantized_matrix<typename Operand::scheme>;
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

  static void check(const char* what, const matrix_view<const float>& m, index_t rows, index_t cols) {
    detail::check_matrix(what, m);
    if (m.rows != rows || m.cols != cols) {
      detail::fail(what, detail::shape_text(rows, cols), detail::shape_text(m.rows, m.cols));
    }
  }

  // C = A B^T of `m`, rounded to BF16 and turned as `along` says, and what forward() saved.
  template <class Executor>
  void multiply_saved(const Executor& executor, matrix_view<const float> m, axis along,
                      const typename Memory::bf16_matrix& saved, matrix_view<float> c) {
    bf16_left_.assign(executor, m, along);
    bf16_right_.assign(executor, saved.view(), axis::col);
    memory_.multiply_bf16(executor, bf16_left_, bf16_right_, c);
  }

  template <class Executor, class Reduce>
  const float* reference(const Executor& executor, const training_step& at, operand_role operand,
                         reference_state& state, matrix_view<const float> m, const Reduce& reduce) {
    const float* held = update_reference(
        recipe_.scaling, state, at.step, [&] { return memory_.sample_amax(executor, m); }, reduce);
    return held == nullptr ? nullptr : memory_.reference(executor, operand, held);
  }

  // What the backward GEMMs quantize of an operand: itself, or what Fprop made of it where the recipe says so.
  template <class Executor, class Stored>
  matrix_view<const float> as_saved(const Executor& executor, const Stored& q, matrix_view<const float> m) {
    if constexpr (requires { q.view(), Recipe::backward_from_quantized; }) {
      if constexpr (Recipe::backward_from_quantized) {
        decoded_.resize(static_cast<std::size_t>(m.rows * m.cols));
        memory_.dequantize(executor, q, matrix(decoded_.data(), m.rows, m.cols));
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

  // The operand as the GEMM wants it, into `q`: transformed along K, then quantized along K. Adds to `measured` what
  // that cost.
  template <class Operand, class Executor>
  void prepare([[maybe_unused]] stored_t<Operand>& q, const Executor& executor, const training_step& at,
               matrix_view<const float> m, axis along, const float* reference, operand_role operand, gemm_role gemm,
               quantization_metrics* measured = nullptr) {
    if constexpr (Operand::is_quantized) {
      using scheme = typename Operand::scheme;
      const auto stream = [&](const training_step& step, operand_role of, draw_purpose purpose) {
        return random_key{step.seed, random_stream(step, position_.layer, of, gemm, purpose)};
      };
      quantize_options options;
      options.axis = along;
      if constexpr (scheme::has_tensor_scale) {
        options.reference = detail::reads_reference<scheme>() ? reference : memory_.unread_reference(executor);
      }
      options.target = target_of(operand, gemm);
      const auto rounding = detail::rounding_with<typename Operand::rounding>::keys(
          stream(at, operand, draw_purpose::elements), stream(at, operand, draw_purpose::scales));
      const bool along_rows = along == axis::row;
      memory_.reshape(q, along_rows ? m.rows : m.cols, along_rows ? m.cols : m.rows);
      if constexpr (Operand::transform::size > 1) {
        // The operands of a GEMM share their signs: the draw is that of the step of forward(), and of operand X.
        const random_key key = stream(signs_at_, operand_role::activation, draw_purpose::signs);
        const hadamard_options transform{.size = Operand::transform::size,
                                         .signs = detail::transform_signs<typename Operand::transform>(key),
                                         .axis = along};
        if constexpr (requires { memory_.hadamard_quantize(executor, m, q, rounding, transform, options); }) {
          if (measured == nullptr) return memory_.hadamard_quantize(executor, m, q, rounding, transform, options);
        }
        transformed_.resize(static_cast<std::size_t>(m.rows * m.cols));
        const matrix_view<float> t = matrix(transformed_.data(), m.rows, m.cols);
        memory_.transform(executor, m, t, transform);
        m = t;
      }
      memory_.quantize(executor, m, q, rounding, options);
      if (measured != nullptr) *measured += memory_.measure(executor, m, q, along);
    }
  }

  template <class Executor, class Stored>
  void turn(const Executor& executor, const Stored& in, Stored& out) {
    memory_.reshape(out, in.cols(), in.rows());
    memory_.transpose(executor, in, out);
  }

  template <class Executor, class A, class B>
  void multiply(const Executor& executor, const A& a, const B& b, matrix_view<float> c) {
    if constexpr (requires { a.view(); }) memory_.template multiply<Accumulate>(executor, a, b, c);
  }

  index_t in_;
  index_t out_;
  layer_position position_;
  Recipe recipe_;
  linear_state state_;
  std::optional<linear_metrics> metrics_;

  index_t tokens_ = 0;
  bool is_forward_done_ = false;
  bool bf16_backward_ = false;  // wanted, from the next forward() on
  bool bf16_dgrad_ = false;     // what forward() saved operands for
  bool bf16_wgrad_ = false;
  training_step signs_at_;
  Memory memory_;
  typename Memory::bf16_matrix saved_x_, saved_w_, bf16_left_, bf16_right_;
  stored_t<typename Recipe::fprop::left> fprop_x_;
  stored_t<typename Recipe::fprop::right> fprop_w_;
  stored_t<typename Recipe::dgrad::left> dgrad_dy_;
  stored_t<typename Recipe::dgrad::right> dgrad_w_;
  stored_t<typename Recipe::wgrad::left> wgrad_dy_;
  stored_t<typename Recipe::wgrad::right> wgrad_x_;
  typename Memory::floats transformed_, decoded_;
  // The layer in this one's place, where the recipe has an alternative and uses it here.
  std::optional<typename detail::alternative_layer<Recipe, Accumulate, Memory>::type> other_;
};

}  // namespace microscale
