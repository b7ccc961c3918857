// The library's own linear layer behind a C function, for the tests to hold the extension's against.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <microscale/host/executor.hpp>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>

namespace ms = microscale;

namespace {

struct job {
  std::int64_t tokens, in, out, first_step, steps;
  std::uint64_t seed;
  std::uint32_t layer;
  const float *x, *w, *dy;  // x and dy: one matrix after the other, a step each
  float *y, *dx, *dw;       // likewise
  float* references;        // three, after the last step
  // Of the last step, unless null: X of Wgrad, W of Dgrad, dY of Dgrad, dY of Wgrad, as they lie before quantization,
  // each element times its block scale; and the decode multiplier of each.
  float* operands[4];
  float* multipliers;
};

struct without_tensor_scale {
  template <class S>
  static constexpr float decoded(float element, float s, const ms::tensor_factors&) noexcept {
    return ms::fp32::mul(element, s);
  }
};

template <class S>
void write(const ms::quantized<S>& quantized, ms::axis along, float* out, float& multiplier) {
  using plain = ms::scheme<typename S::element, typename S::scale, typename S::block, without_tensor_scale>;
  const ms::quantized_view<const S> q = quantized.view();
  const ms::quantized_view<const plain> unscaled{q.codes, q.scales,     nullptr,      q.rows,
                                                 q.cols,  q.code_pitch, q.scale_pitch};
  const bool by_row = along == ms::axis::row;
  ms::dequantize_into(ms::sequential{}, unscaled, ms::matrix(out, by_row ? q.rows : q.cols, by_row ? q.cols : q.rows),
                      along);
  multiplier = q.factors().decode;
}

template <class Recipe, class Accumulate>
void run(const job& j) {
  ms::linear<Recipe, Accumulate> layer(j.in, j.out,
                                       {.role = ms::layer_role::mlp_up, .index = 0, .count = 2, .layer = j.layer});
  const ms::host executor{.threads = 2};
  for (std::int64_t s = 0; s < j.steps; ++s) {
    const ms::training_step at{j.first_step + s, 0, j.seed};
    layer.forward(executor, at, ms::matrix(j.x + s * j.tokens * j.in, j.tokens, j.in), ms::matrix(j.w, j.out, j.in),
                  ms::matrix(j.y + s * j.tokens * j.out, j.tokens, j.out));
    layer.backward(executor, at, ms::matrix(j.dy + s * j.tokens * j.out, j.tokens, j.out),
                   ms::matrix(j.dx + s * j.tokens * j.in, j.tokens, j.in),
                   ms::matrix(j.dw + s * j.out * j.in, j.out, j.in));
  }
  if (j.multipliers != nullptr) {
    using ms::axis, ms::gemm_role;
    write(layer.template right<gemm_role::wgrad>(), axis::col, j.operands[0], j.multipliers[0]);
    write(layer.template right<gemm_role::dgrad>(), axis::col, j.operands[1], j.multipliers[1]);
    write(layer.template left<gemm_role::dgrad>(), axis::row, j.operands[2], j.multipliers[2]);
    write(layer.template left<gemm_role::wgrad>(), axis::col, j.operands[3], j.multipliers[3]);
  }
  j.references[0] = layer.state().activation.amax;
  j.references[1] = layer.state().weight.amax;
  j.references[2] = layer.state().output_gradient.amax;
}

template <class Accumulate>
bool run_named(const char* recipe, const job& j) {
  namespace r = ms::recipes;
  const auto is = [&](const char* name) { return std::strcmp(recipe, name) == 0; };
  if (is("ue5m3")) return run<r::ue5m3, Accumulate>(j), true;
  if (is("ue5m3_b32_te")) return run<r::ue5m3_b32_te, Accumulate>(j), true;
  if (is("nvfp4")) return run<r::nvfp4, Accumulate>(j), true;
  if (is("quartet2")) return run<r::quartet2, Accumulate>(j), true;
  if (is("transposition_invariant")) return run<r::transposition_invariant, Accumulate>(j), true;
  if (is("fusion")) return run<r::fusion, Accumulate>(j), true;
  if (is("ufp4")) return run<r::ufp4, Accumulate>(j), true;
  return false;
}

}  // namespace

extern "C" bool run_linear(const char* recipe, const job* j) { return run_named<ms::f32_blocks>(recipe, *j); }
