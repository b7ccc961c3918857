#include "recipes.hpp"

#include <cstdint>
#include <memory>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>
#include <type_traits>

#include "matmul.hpp"
#include "pool_executor.hpp"

namespace pretrain {
namespace {

namespace ms = microscale;
namespace rows = microscale::recipes;

// Vector kernels take a second or so to compile for each scheme and rounding, so only the recipes that one trains with
// most have them here. The numbers are the same.
template <class Recipe>
using executor_for = std::conditional_t<std::is_same_v<Recipe, rows::nvfp4> || std::is_same_v<Recipe, rows::ue5m3>,
                                        vector_pool_executor, pool_executor>;

// A linear layer of the library under one of its recipes, or under one of your own.
template <ms::training_recipe Recipe>
class microscale_linear final : public linear_layer {
 public:
  microscale_linear(const linear_place& place, thread_pool& pool)
      : executor_{pool_executor{&pool}}, layer_(place.in, place.out, place.position), reduce_{place.everyone} {}

  void forward(std::span<const float> x, std::span<const float> w, std::span<float> y,
               const ms::training_step& at) override {
    at_ = at;
    fix_reference(&ms::linear_state::activation, of_inputs(x));
    fix_reference(&ms::linear_state::weight, of_inputs(w));
    layer_.forward(executor_, at_, of_inputs(x), of_inputs(w), of_outputs(y), reduce_);
  }

  void backward(std::span<const float> dy, std::span<float> dx, std::span<float> dw) override {
    fix_reference(&ms::linear_state::output_gradient, of_outputs(dy));
    layer_.backward(executor_, at_, of_outputs(dy), of_inputs(dx), of_inputs(dw), reduce_);
  }

  // At the step that training has reached, so that held references are the ones that training uses.
  void infer(std::span<const float> x, std::span<const float> w, std::span<float> y) override {
    const ms::linear_state before = layer_.state();
    ms::training_step at = at_;
    at.micro_batch = 0;  // whichever was the last
    layer_.forward(executor_, at, of_inputs(x), of_inputs(w), of_outputs(y));
    layer_.state() = before;
  }

  void set_bf16_backward(bool on) override { layer_.set_bf16_backward(on); }
  [[nodiscard]] const ms::linear_state& state() const override { return layer_.state(); }
  void restore(const ms::linear_state& state, const ms::training_step& at) override {
    layer_.state() = state;
    at_ = at;
  }

  void collect_metrics(bool on) override { layer_.collect_metrics(on); }
  [[nodiscard]] ms::linear_metrics metrics() const override { return layer_.metrics().value_or(ms::linear_metrics{}); }

 private:
  // Rows of in_features and of out_features elements, as many as there are.
  template <class T>
  ms::matrix_view<T> of_inputs(std::span<T> x) const {
    return ms::matrix(x.data(), std::ssize(x) / layer_.in_features(), layer_.in_features());
  }
  template <class T>
  ms::matrix_view<T> of_outputs(std::span<T> y) const {
    return ms::matrix(y.data(), std::ssize(y) / layer_.out_features(), layer_.out_features());
  }

  // Frozen references are for networks whose operands are normalized. This one is not: what the first step saw is
  // fixed, with room to grow.
  void fix_reference(ms::reference_state ms::linear_state::*operand, ms::matrix_view<const float> data) {
    if constexpr (std::is_same_v<decltype(Recipe::scaling), ms::frozen_scaling>) {
      constexpr float room = 8.0f;
      ms::reference_state& state = layer_.state().*operand;
      if (!state.is_set()) ms::set_reference(state, room * reduce_(ms::amax(executor_, data)), at_.step);
    }
  }

  executor_for<Recipe> executor_;
  ms::linear<Recipe> layer_;
  maximum_over_ranks reduce_;
  ms::training_step at_;
};

// No rounding at all: what the gradient check differentiates.
class f32_linear final : public linear_layer {
 public:
  f32_linear(const linear_place& place, thread_pool& pool) : in_(place.in), out_(place.out), pool_(pool) {}

  void forward(std::span<const float> x, std::span<const float> w, std::span<float> y,
               const ms::training_step&) override {
    x_ = x;
    w_ = w;
    infer(x, w, y);
  }

  void backward(std::span<const float> dy, std::span<float> dx, std::span<float> dw) override {
    matmul(pool_, rows(dy, out_), rows(w_, in_), dx.data(), in_);
    matmul(pool_, rows(dy, out_).transposed(), rows(x_, in_), dw.data(), in_);
  }

  void infer(std::span<const float> x, std::span<const float> w, std::span<float> y) override {
    matmul(pool_, rows(x, in_), rows(w, in_).transposed(), y.data(), out_);
  }

  void set_bf16_backward(bool) override {}
  [[nodiscard]] const ms::linear_state& state() const override { return nothing_; }
  void restore(const ms::linear_state&, const ms::training_step&) override {}
  void collect_metrics(bool) override {}
  [[nodiscard]] ms::linear_metrics metrics() const override { return {}; }

 private:
  static matrix_view rows(std::span<const float> x, index_t columns) {
    return {x.data(), std::ssize(x) / columns, columns, columns};
  }

  index_t in_, out_;
  thread_pool& pool_;
  std::span<const float> x_, w_;
  ms::linear_state nothing_;
};

template <class Layer>
std::unique_ptr<linear_layer> make(const linear_place& place, thread_pool& pool) {
  return std::make_unique<Layer>(place, pool);
}

template <ms::training_recipe Recipe>
constexpr recipe entry(std::string_view summary) {
  return {.name = Recipe::name, .summary = summary, .make_linear = make<microscale_linear<Recipe>>};
}

constexpr recipe by_default(recipe r) {
  r.by_default = true;
  return r;
}

// FP4 All the Way has a single level of scales, whose smallest is 2^-9: gradients of a mean loss lie far below.
constexpr recipe fp4_all_the_way() {
  recipe r = entry<rows::fp4_all_the_way>("NVFP4 without tensor scales; backward in BF16 once noise drowns gradients");
  r.watches_noise = true;
  r.loss_scale = 0x1p19f;
  return r;
}

// One line for each recipe.
constexpr recipe table[] = {
    by_default(entry<rows::bf16>("BF16 operands")),
    by_default(entry<rows::nvfp4>("NVFP4, Hadamard transform for dW, last block in BF16")),
    by_default(entry<rows::ue5m3>("FP4 under UE5M3 scales, tensor scales sampled every 50 steps")),
    entry<rows::ue5m3_b32>("the same in blocks of 32"),
    entry<rows::ue5m3_te>("UE5M3 scales, all else as nvfp4"),
    entry<rows::ue5m3_b32_te>("the same in blocks of 32"),
    entry<rows::nvfp4_everywhere>("nvfp4 in the last block, too"),
    entry<rows::nvfp4_no_rht>("nvfp4 without the Hadamard transform"),
    entry<rows::nvfp4_everywhere_no_rht>("nvfp4 without either"),
    fp4_all_the_way(),
    entry<rows::quartet2>("NVFP4, forward with 4 over 6, backward with MS-EDEN"),
    entry<rows::ngpt>("NVFP4 under tensor scales that never change"),
    entry<rows::transposition_invariant>("MXFP4 in square blocks, each operand quantized once; Q, K, V in MXFP8"),
    entry<rows::ufp4>("the uniform grid of E1M2, random Hadamard transform of everything"),
    entry<rows::fusion>("MXFP4 with its sixth folded away, Hadamard transform of 32 for dW"),
    entry<rows::fusion_h16>("the same with a transform of 16"),
    entry<rows::mxfp8>("E4M3 in blocks of 32"),
    {.name = "f32", .summary = "no rounding at all", .make_linear = make<f32_linear>},
};

}  // namespace

std::span<const recipe> recipes() { return table; }

const recipe* find_recipe(std::string_view name) {
  for (const recipe& r : table)
    if (r.name == name) return &r;
  return nullptr;
}

}  // namespace pretrain
