// A linear layer of the library under one of its recipes, or under one of your own. Included by the files that make
// such layers alone: a recipe takes seconds to compile.
#pragma once

#include <memory>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>
#include <span>
#include <type_traits>

#include "pool_executor.hpp"
#include "recipes.hpp"

namespace pretrain {

namespace ms = microscale;
namespace rows = microscale::recipes;

// Vector kernels take a second or so to compile for each scheme and rounding, so only the recipes that one trains with
// most have them here. The numbers are the same.
template <class Recipe>
using executor_for = std::conditional_t<std::is_same_v<Recipe, rows::nvfp4> || std::is_same_v<Recipe, rows::ue5m3>,
                                        vector_pool_executor, pool_executor>;

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

template <ms::training_recipe Recipe>
std::unique_ptr<linear_layer> make_layer(const linear_place& place, thread_pool& pool) {
  return std::make_unique<microscale_linear<Recipe>>(place, pool);
}

}  // namespace pretrain
