#include "recipes.hpp"

#include <memory>
#include <microscale/recipe/recipes.hpp>

#include "matmul.hpp"

namespace pretrain {
namespace {

namespace ms = microscale;
namespace rows = microscale::recipes;

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

std::unique_ptr<linear_layer> make_f32(const linear_place& place, thread_pool& pool) {
  return std::make_unique<f32_linear>(place, pool);
}

template <ms::training_recipe Recipe>
constexpr recipe entry(std::string_view summary) {
  return {.name = Recipe::name, .summary = summary, .make_linear = make_layer<Recipe>};
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
    {.name = "f32", .summary = "no rounding at all", .make_linear = make_f32},
};

}  // namespace

std::span<const recipe> recipes() { return table; }

const recipe* find_recipe(std::string_view name) {
  for (const recipe& r : table)
    if (r.name == name) return &r;
  return nullptr;
}

}  // namespace pretrain
