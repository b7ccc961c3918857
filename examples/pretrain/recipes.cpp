#include "recipes.hpp"

#include <cstdint>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>

#include "matmul.hpp"
#include "pool_executor.hpp"

namespace pretrain {
namespace {

namespace ms = microscale;

// A linear layer of the library under one of its recipes, or under one of your own.
template <ms::training_recipe Recipe>
class microscale_linear final : public linear_layer {
 public:
  microscale_linear(const linear_place& place, thread_pool& pool)
      : executor_{&pool}, layer_(place.in, place.out, place.position), at_{.seed = place.seed} {}

  void forward(std::span<const float> x, std::span<const float> w, std::span<float> y, std::int64_t step) override {
    at_.step = step;
    layer_.forward(executor_, at_, of_inputs(x), of_inputs(w), of_outputs(y));
  }

  void backward(std::span<const float> dy, std::span<float> dx, std::span<float> dw) override {
    layer_.backward(executor_, at_, of_outputs(dy), of_inputs(dx), of_inputs(dw));
  }

  // At the step that training has reached, so that held references are the ones that training uses.
  void infer(std::span<const float> x, std::span<const float> w, std::span<float> y) override {
    const ms::linear_state before = layer_.state();
    layer_.forward(executor_, at_, of_inputs(x), of_inputs(w), of_outputs(y));
    layer_.state() = before;
  }

  void collect_metrics() override { layer_.collect_metrics(true); }
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

  pool_executor executor_;
  ms::linear<Recipe> layer_;
  ms::training_step at_;
};

// No rounding at all: what the gradient check differentiates.
class f32_linear final : public linear_layer {
 public:
  f32_linear(const linear_place& place, thread_pool& pool) : in_(place.in), out_(place.out), pool_(pool) {}

  void forward(std::span<const float> x, std::span<const float> w, std::span<float> y, std::int64_t) override {
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

  void collect_metrics() override {}
  [[nodiscard]] ms::linear_metrics metrics() const override { return {}; }

 private:
  static matrix_view rows(std::span<const float> x, index_t columns) {
    return {x.data(), std::ssize(x) / columns, columns, columns};
  }

  index_t in_, out_;
  thread_pool& pool_;
  std::span<const float> x_, w_;
};

template <class Layer>
std::unique_ptr<linear_layer> make(const linear_place& place, thread_pool& pool) {
  return std::make_unique<Layer>(place, pool);
}

template <ms::training_recipe Recipe>
constexpr recipe entry(std::string_view summary, bool by_default) {
  return {Recipe::name, summary, make<microscale_linear<Recipe>>, by_default};
}

// One line for each recipe.
constexpr recipe table[] = {
    entry<ms::recipes::bf16>("BF16 operands", true),
    entry<ms::recipes::nvfp4>("NVFP4, Hadamard transform for dW, last block in BF16", true),
    entry<ms::recipes::ue5m3>("FP4 under UE5M3 scales, tensor scales sampled every 50 steps", true),
    entry<ms::recipes::ue5m3_b32>("the same in blocks of 32", false),
    {"f32", "no rounding at all", make<f32_linear>, false},
};

}  // namespace

std::span<const recipe> recipes() { return table; }

const recipe* find_recipe(std::string_view name) {
  for (const recipe& r : table)
    if (r.name == name) return &r;
  return nullptr;
}

}  // namespace pretrain
