// The rows of recipes.hpp: each layer's three products against the same ones written out from their operands, bit for
// bit, under exact sums.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/host/executor.hpp>
#include <microscale/recipe/gradient_noise.hpp>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>
#include <vector>

#include "support/adversarial.hpp"

namespace ms = microscale;
using ms::axis;
using ms::operand_role;

namespace {

using view = ms::matrix_view<const float>;

// X, W and dY of one layer: tokens, inputs and outputs are multiples of every block and transform, all different, and
// as small as that allows, since exact sums without optimization under sanitizers are slow.
struct problem {
  static constexpr int tokens = 32, in = 64, out = 96;
  std::vector<float> x, w, dy;

  explicit problem(std::uint64_t seed) : x(tokens * in), w(out * in), dy(tokens * out) {
    adversarial::numbers random(seed);
    for (float& v : x) v = static_cast<float>(random.normal());
    for (float& v : w) v = static_cast<float>(random.normal() * 0.1);
    for (float& v : dy) v = static_cast<float>(random.normal() * 0.25);
    x[5] = 30.0f, w[100] = -3.0f;
  }
  view x_view() const { return ms::matrix(x.data(), tokens, in); }
  view w_view() const { return ms::matrix(w.data(), out, in); }
  view dy_view() const { return ms::matrix(dy.data(), tokens, out); }
};

struct products {
  std::vector<float> y = std::vector<float>(problem::tokens * problem::out);
  std::vector<float> dx = std::vector<float>(problem::tokens * problem::in);
  std::vector<float> dw = std::vector<float>(problem::out * problem::in);
  friend bool operator==(const products&, const products&) = default;
};

constexpr ms::training_step at{.step = 12, .micro_batch = 3, .seed = 99};
constexpr ms::layer_position inner{.role = ms::layer_role::mlp_up, .index = 0, .count = 4, .layer = 17};

template <class Layer>
products run(Layer& layer, const problem& p, const ms::training_step& step = at) {
  products out;
  layer.forward(ms::host{.threads = 2}, step, p.x_view(), p.w_view(), ms::matrix(out.y.data(), p.tokens, p.out));
  layer.backward(ms::host{.threads = 2}, step, p.dy_view(), ms::matrix(out.dx.data(), p.tokens, p.in),
                 ms::matrix(out.dw.data(), p.out, p.in));
  return out;
}
template <class Recipe>
products run(const problem& p, ms::layer_position position = inner, Recipe recipe = {}) {
  ms::linear<Recipe, ms::exact_f32> layer(p.in, p.out, position, recipe);
  return run(layer, p);
}

template <class S, class R = ms::nearest_even>
ms::quantized<S> quantized(view m, axis along, R rounding = {}, int target = 0) {
  ms::quantized<S> q(along == axis::row ? m.rows : m.cols, along == axis::row ? m.cols : m.rows);
  ms::quantize_options options;
  options.axis = along;
  options.target = target;
  ms::quantize_with(ms::sequential{}, m, q.view(), rounding, options);
  return q;
}

template <class R>
R drawn(operand_role operand, ms::gemm_role gemm) {
  return R{at.seed, ms::random_stream(at, inner.layer, operand, gemm)};
}
const auto sr_dgrad = drawn<ms::stochastic_midpoint8>(operand_role::output_gradient, ms::gemm_role::dgrad);
const auto sr_wgrad = drawn<ms::stochastic_midpoint8>(operand_role::output_gradient, ms::gemm_role::wgrad);

// A transformed copy.
struct rotated {
  std::vector<float> data;
  ms::index_t rows, cols;
  rotated(view m, axis along, int size, ms::hadamard_signs signs)
      : data(static_cast<std::size_t>(m.rows * m.cols)), rows(m.rows), cols(m.cols) {
    ms::hadamard_into(ms::sequential{}, m, ms::matrix(data.data(), rows, cols),
                      {.size = size, .signs = signs, .axis = along});
  }
  operator view() const { return ms::matrix(data.data(), rows, cols); }
};
ms::hadamard_signs drawn_signs(ms::gemm_role gemm) {
  return ms::hadamard_signs::drawn(
      {at.seed, ms::random_stream(at, inner.layer, operand_role::activation, gemm, ms::draw_purpose::signs)});
}

// How far a product is from the unquantized one, relative to its norm.
double error(const std::vector<float>& c, view a, bool turn_a, view b, bool turn_b) {
  const ms::index_t m = turn_a ? a.cols : a.rows, n = turn_b ? b.cols : b.rows, depth = turn_a ? a.rows : a.cols;
  double difference = 0, norm = 0;
  for (ms::index_t i = 0; i < m; ++i) {
    for (ms::index_t j = 0; j < n; ++j) {
      double sum = 0;
      for (ms::index_t k = 0; k < depth; ++k) {
        sum += double{turn_a ? a(k, i) : a(i, k)} * double{turn_b ? b(k, j) : b(j, k)};
      }
      const double d = double{c[static_cast<std::size_t>(i * n + j)]} - sum;
      difference += d * d;
      norm += sum * sum;
    }
  }
  return std::sqrt(difference / norm);
}

template <class Recipe>
void check_near(double bound) {
  INFO(Recipe::name);
  const problem p(31);
  const products got = run<Recipe>(p);
  CHECK(error(got.y, p.x_view(), false, p.w_view(), false) < bound);
  CHECK(error(got.dx, p.dy_view(), false, p.w_view(), true) < bound);
  CHECK(error(got.dw, p.dy_view(), true, p.x_view(), true) < bound);
}

}  // namespace

TEST_CASE("every recipe computes the three products") {
  namespace r = ms::recipes;
  check_near<r::mxfp8>(0.06);
  check_near<r::ue5m3>(0.3);
  check_near<r::ue5m3_b32>(0.35);
  check_near<r::ue5m3_te>(0.3);
  check_near<r::ue5m3_b32_te>(0.35);
  check_near<r::nvfp4>(0.3);
  check_near<r::nvfp4_no_rht>(0.3);
  check_near<r::fp4_all_the_way>(0.3);
  check_near<r::quartet2>(0.3);
  check_near<r::transposition_invariant>(0.7);  // one outlier coarsens a square
  check_near<r::ufp4>(0.3);
  check_near<r::fusion>(0.7);  // square blocks clip the largest weights
  check_near<r::fusion_h16>(0.7);
}

TEST_CASE("UE5M3: a target of one operand of one layer") {
  const problem p(1);
  const products got = run<ms::recipes::ue5m3>(p, inner, {.targets = {.output_gradient = 2048}});
  const auto qx = quantized<ms::ue5m3_fp4>(p.x_view(), axis::row);
  const auto qw = quantized<ms::ue5m3_fp4_2d>(p.w_view(), axis::row);
  CHECK(got.y == ms::gemm(qx, qw));
  CHECK(got.dx == ms::gemm(quantized<ms::ue5m3_fp4>(p.dy_view(), axis::row, sr_dgrad, 2048), transpose(qw)));
  CHECK(got.dw == ms::gemm(quantized<ms::ue5m3_fp4>(p.dy_view(), axis::col, sr_wgrad, 2048),
                           quantized<ms::ue5m3_fp4>(p.x_view(), axis::col)));
  CHECK(quantized<ms::ue5m3_fp4>(p.dy_view(), axis::row, sr_dgrad).decode_multiplier() !=
        quantized<ms::ue5m3_fp4>(p.dy_view(), axis::row, sr_dgrad, 2048).decode_multiplier());
  CHECK(run<ms::recipes::ue5m3>(p).y == got.y);
}

namespace {

// A target by layer, operand and product.
struct targets_by_place : ms::recipes::ue5m3 {
  constexpr int target(ms::layer_role role, int index, int count, operand_role operand,
                       ms::gemm_role gemm) const noexcept {
    const bool here = role == ms::layer_role::mlp_down && index == count - 1;
    return here && operand == operand_role::output_gradient && gemm == ms::gemm_role::wgrad ? 1024 : 0;
  }
};

}  // namespace

TEST_CASE("a target by layer, operand and product") {
  const problem p(12);
  ms::layer_position last = inner;
  last.role = ms::layer_role::mlp_down, last.index = 3;
  const products got = run<targets_by_place>(p, last), elsewhere = run<targets_by_place>(p);
  CHECK(elsewhere == run<ms::recipes::ue5m3>(p));
  CHECK(got.dx == elsewhere.dx);
  CHECK(got.dw == ms::gemm(quantized<ms::ue5m3_fp4>(p.dy_view(), axis::col, sr_wgrad, 1024),
                           quantized<ms::ue5m3_fp4>(p.x_view(), axis::col)));
  CHECK(got.dw != elsewhere.dw);
}

TEST_CASE("UE5M3 under TransformerEngine's settings") {
  const problem p(2);
  const products got = run<ms::recipes::ue5m3_b32_te>(p);
  const auto te = ms::hadamard_signs::transformer_engine();
  CHECK(got.dw == ms::gemm(quantized<ms::ue5m3_fp4_b32>(rotated(p.dy_view(), axis::col, 16, te), axis::col, sr_wgrad),
                           quantized<ms::ue5m3_fp4_b32>(rotated(p.x_view(), axis::col, 16, te), axis::col)));
  CHECK(got.dx == ms::gemm(quantized<ms::ue5m3_fp4_b32>(p.dy_view(), axis::row, sr_dgrad),
                           transpose(quantized<ms::ue5m3_fp4_b32_2d>(p.w_view(), axis::row))));
}

TEST_CASE("which layers each recipe keeps in high precision") {
  namespace r = ms::recipes;
  using ms::layer_role;
  const auto kept = []<class R>(R, layer_role role) {
    std::vector<int> blocks;
    for (int i = 0; i < 12; ++i) {
      if (R::high_precision(role, i, 12)) blocks.push_back(i);
    }
    return blocks;
  };
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, none, last{11};
  CHECK(kept(r::nvfp4{}, layer_role::attention_v) == last);
  CHECK(kept(r::nvfp4_no_rht{}, layer_role::mlp_down) == last);
  CHECK(kept(r::nvfp4_keeping_last<3>{}, layer_role::mlp_down) == std::vector<int>{9, 10, 11});
  CHECK(kept(r::ue5m3_te{}, layer_role::mlp_down) == last);
  CHECK(kept(r::nvfp4_everywhere{}, layer_role::mlp_down) == none);
  CHECK(kept(r::nvfp4_everywhere_no_rht{}, layer_role::attention_q) == none);
  const auto only_outside = [&](auto recipe) {
    CHECK(kept(recipe, layer_role::attention_qkv) == none);
    CHECK(kept(recipe, layer_role::head) == all);
    CHECK(kept(recipe, layer_role::embedding) == all);
  };
  only_outside(r::ue5m3{});
  only_outside(r::nvfp4_everywhere_no_rht{});
  only_outside(r::fp4_all_the_way{});
  only_outside(r::quartet2{});
  only_outside(r::ngpt{});
  only_outside(r::transposition_invariant{});
  only_outside(r::ufp4{});
  only_outside(r::fusion{});
}

TEST_CASE("NVFP4 without the transform") {
  const problem p(3);
  const products got = run<ms::recipes::nvfp4_no_rht>(p);
  const auto sr = drawn<ms::stochastic_floor8>(operand_role::output_gradient, ms::gemm_role::wgrad);
  CHECK(got.dw ==
        ms::gemm(quantized<ms::nvfp4>(p.dy_view(), axis::col, sr), quantized<ms::nvfp4>(p.x_view(), axis::col)));
  const products with = run<ms::recipes::nvfp4>(p);
  CHECK(with.y == got.y);
  CHECK(with.dx == got.dx);
  CHECK(with.dw != got.dw);
}

TEST_CASE("FP4 All the Way: X is rounded to nearest forward and stochastically in Wgrad") {
  using S = ms::nvfp4_single;
  const problem p(4);
  const products got = run<ms::recipes::fp4_all_the_way>(p);
  CHECK(got.y == ms::gemm(quantized<S>(p.x_view(), axis::row), quantized<S>(p.w_view(), axis::row)));
  CHECK(got.dx == ms::gemm(quantized<S>(p.dy_view(), axis::row, sr_dgrad), quantized<S>(p.w_view(), axis::col)));
  const auto sr_x = drawn<ms::stochastic_midpoint8>(operand_role::activation, ms::gemm_role::wgrad);
  CHECK(got.dw == ms::gemm(quantized<S>(p.dy_view(), axis::col, sr_wgrad), quantized<S>(p.x_view(), axis::col, sr_x)));
}

TEST_CASE("the backward pass goes to BF16 at the next forward pass") {
  const problem p(5);
  const products quantized_run = run<ms::recipes::fp4_all_the_way>(p), bf16 = run<ms::recipes::bf16>(p);
  ms::linear<ms::recipes::fp4_all_the_way, ms::exact_f32> layer(p.in, p.out, inner);
  products got;
  layer.forward(ms::sequential{}, at, p.x_view(), p.w_view(), ms::matrix(got.y.data(), p.tokens, p.out));
  layer.set_bf16_backward(true);  // too late for this one
  const auto backward = [&] {
    layer.backward(ms::sequential{}, at, p.dy_view(), ms::matrix(got.dx.data(), p.tokens, p.in),
                   ms::matrix(got.dw.data(), p.out, p.in));
  };
  backward();
  CHECK(got == quantized_run);
  got = run(layer, p);
  CHECK(got.y == quantized_run.y);
  CHECK(got.dx == bf16.dx);
  CHECK(got.dw == bf16.dw);
  layer.set_bf16_backward(false);
  CHECK(run(layer, p) == quantized_run);
}

namespace {

// Only one of the three products in four bits.
struct fprop_only : ms::recipes::nvfp4_no_rht {
  using dgrad = ms::gemm_recipe<ms::operand<ms::bfloat16>, ms::operand<ms::bfloat16>>;
  using wgrad = dgrad;
};
struct dgrad_only : ms::recipes::nvfp4_no_rht {
  using fprop = ms::gemm_recipe<ms::operand<ms::bfloat16>, ms::operand<ms::bfloat16>>;
  using wgrad = fprop;
};
struct wgrad_only : ms::recipes::nvfp4_no_rht {
  using fprop = ms::gemm_recipe<ms::operand<ms::bfloat16>, ms::operand<ms::bfloat16>>;
  using dgrad = fprop;
};

}  // namespace

TEST_CASE("a product that a recipe leaves in BF16 is computed in BF16") {
  const problem p(13);
  const products four_bits = run<ms::recipes::nvfp4_no_rht>(p), bf16 = run<ms::recipes::bf16>(p);
  const products f = run<fprop_only>(p), d = run<dgrad_only>(p), w = run<wgrad_only>(p);
  CHECK((f.y == four_bits.y && f.dx == bf16.dx && f.dw == bf16.dw));
  CHECK((d.y == bf16.y && d.dx == four_bits.dx && d.dw == bf16.dw));
  CHECK((w.y == bf16.y && w.dx == bf16.dx && w.dw == four_bits.dw));
}

TEST_CASE("the test for that switch") {
  CHECK(ms::is_below_noise(1.732, 1.0));
  CHECK_FALSE(ms::is_below_noise(1.7321, 1.0));
  CHECK_FALSE(ms::is_below_noise(0.0, 0.0));
  CHECK_FALSE(ms::is_below_noise(std::nan(""), 1.0));
  ms::quantization_metrics m;
  m.signal = 2.9, m.noise = 1.0;  // squares: 3 is the limit
  CHECK(ms::is_below_noise(m));
  m.signal = 3.1;
  CHECK_FALSE(ms::is_below_noise(m));
}

TEST_CASE("transposition-invariant: each operand is quantized once") {
  using S = ms::mxfp4_ceil_2d;
  const problem p(6);
  const products got = run<ms::recipes::transposition_invariant>(p);
  const auto qx = quantized<S>(p.x_view(), axis::row), qw = quantized<S>(p.w_view(), axis::row);
  const auto qdy = quantized<S>(p.dy_view(), axis::row, sr_dgrad);
  CHECK(got.y == ms::gemm(qx, qw));
  CHECK(got.dx == ms::gemm(qdy, transpose(qw)));
  CHECK(got.dw == ms::gemm(transpose(qdy), transpose(qx)));
}

TEST_CASE("transposition-invariant: Q and K in MXFP8") {
  using S = ms::mxfp8_e4m3_ceil;
  const problem p(7);
  using layer = ms::linear<ms::recipes::transposition_invariant, ms::exact_f32>;
  for (const auto role : {ms::layer_role::attention_q, ms::layer_role::attention_k, ms::layer_role::attention_qkv}) {
    ms::layer_position position = inner;
    position.role = role;
    layer q(p.in, p.out, position);
    const products got = run(q, p);
    CHECK(got.y == ms::gemm(quantized<S>(p.x_view(), axis::row), quantized<S>(p.w_view(), axis::row)));
    CHECK(got.dx == ms::gemm(quantized<S>(p.dy_view(), axis::row), quantized<S>(p.w_view(), axis::col)));
    CHECK(got.dw == ms::gemm(quantized<S>(p.dy_view(), axis::col), quantized<S>(p.x_view(), axis::col)));
    CHECK(q.is_quantized());
    q.set_bf16_backward(true);
    CHECK(run(q, p).dw == run<ms::recipes::bf16>(p).dw);
    q.collect_metrics(true);
    run(q, p);
    CHECK(q.metrics()->activation.elements == p.tokens * p.in);
  }
  ms::layer_position position = inner;
  position.role = ms::layer_role::attention_v;
  CHECK(run<ms::recipes::transposition_invariant>(p, position) == run<ms::recipes::transposition_invariant>(p));
  position.role = ms::layer_role::head;
  CHECK_FALSE(layer(p.in, p.out, position).is_quantized());
}

TEST_CASE("UFP4: the transform on both operands of all three products, its signs drawn for each") {
  using S = ms::ufp4;
  using ms::gemm_role;
  const problem p(8);
  const products got = run<ms::recipes::ufp4>(p);
  const auto fprop = drawn_signs(gemm_role::fprop), dgrad = drawn_signs(gemm_role::dgrad),
             wgrad = drawn_signs(gemm_role::wgrad);
  CHECK((!(fprop == dgrad) && !(dgrad == wgrad)));
  CHECK(got.y == ms::gemm(quantized<S>(rotated(p.x_view(), axis::row, 16, fprop), axis::row),
                          quantized<S>(rotated(p.w_view(), axis::row, 16, fprop), axis::row)));
  CHECK(got.dx == ms::gemm(quantized<S>(rotated(p.dy_view(), axis::row, 16, dgrad), axis::row, sr_dgrad),
                           quantized<S>(rotated(p.w_view(), axis::col, 16, dgrad), axis::col)));
  CHECK(got.dw == ms::gemm(quantized<S>(rotated(p.dy_view(), axis::col, 16, wgrad), axis::col, sr_wgrad),
                           quantized<S>(rotated(p.x_view(), axis::col, 16, wgrad), axis::col)));
  // What the operands lost is measured against what was quantized, the transformed ones.
  ms::linear<ms::recipes::ufp4, ms::exact_f32> layer(p.in, p.out, inner);
  layer.collect_metrics(true);
  run(layer, p);
  CHECK(layer.metrics()->activation.sqnr_db() > 15.0);
  CHECK(layer.metrics()->weight.sqnr_db() > 15.0);
}

TEST_CASE("fusion: the sixth folded, stochastic rounding in Dgrad only, fixed signs in Wgrad") {
  using S = ms::mxfp4_folded;
  const problem p(9);
  const products got = run<ms::recipes::fusion>(p);
  const auto qw = quantized<ms::mxfp4_folded_2d>(p.w_view(), axis::row);
  CHECK(got.y == ms::gemm(quantized<S>(p.x_view(), axis::row), qw));
  CHECK(got.dx == ms::gemm(quantized<S>(p.dy_view(), axis::row, sr_dgrad), transpose(qw)));
  ms::hadamard_signs twice;
  for (const int i : {3, 5, 6, 7, 8, 9, 10, 12, 14, 15}) twice.negate(i), twice.negate(i + 16);
  CHECK(got.dw == ms::gemm(quantized<S>(rotated(p.dy_view(), axis::col, 32, twice), axis::col),
                           quantized<S>(rotated(p.x_view(), axis::col, 32, twice), axis::col)));
  // No operand was looked at for an amax of the tensor: an infinity poisons its own row alone.
  problem bad(9);
  bad.x[0] = ms::fp32::infinity();
  const products poisoned = run<ms::recipes::fusion>(bad);
  CHECK(std::isnan(poisoned.y[0]));
  CHECK(std::equal(poisoned.y.begin() + bad.out, poisoned.y.end(), got.y.begin() + bad.out));
}

TEST_CASE("Quartet II: 4 over 6 forward; MS-EDEN of the forward operands backward") {
  using F = ms::nvfp4_4over6;
  using B = ms::nvfp4_ms_eden;
  using ms::gemm_role;
  const problem p(10);
  const products got = run<ms::recipes::quartet2>(p);
  const auto qx = quantized<F>(p.x_view(), axis::row), qw = quantized<F>(p.w_view(), axis::row);
  CHECK(got.y == ms::gemm(qx, qw));
  const auto x = ms::dequantize(qx), w = ms::dequantize(qw);
  const auto scales = [](operand_role operand, gemm_role gemm) {
    return ms::with_scale_draws<>{
        .scales = {at.seed, ms::random_stream(at, inner.layer, operand, gemm, ms::draw_purpose::scales)}};
  };
  const auto eden = [&](view m, axis along, operand_role operand, gemm_role gemm) {
    return quantized<B>(rotated(m, along, 32, drawn_signs(gemm)), along, scales(operand, gemm));
  };
  CHECK(got.dx == ms::gemm(eden(p.dy_view(), axis::row, operand_role::output_gradient, gemm_role::dgrad),
                           eden(ms::matrix(w.data(), p.out, p.in), axis::col, operand_role::weight, gemm_role::dgrad)));
  CHECK(got.dw ==
        ms::gemm(eden(p.dy_view(), axis::col, operand_role::output_gradient, gemm_role::wgrad),
                 eden(ms::matrix(x.data(), p.tokens, p.in), axis::col, operand_role::activation, gemm_role::wgrad)));
}

TEST_CASE("a normalized network's tensor scales are fixed") {
  const problem p(11);
  ms::linear<ms::recipes::ngpt, ms::exact_f32> layer(p.in, p.out, inner);
  CHECK_THROWS_AS(run(layer, p), ms::error);
  ms::set_references(layer.state(), 32.0f, 4.0f, 0.125f);
  const ms::linear_state before = layer.state();
  const products first = run(layer, p);
  CHECK(layer.state() == before);
  ms::quantize_options options;
  const float x_reference = 32.0f, w_reference = 4.0f;
  options.reference = &x_reference;
  const auto qx = ms::quantize<ms::nvfp4>(p.x_view(), options);
  options.reference = &w_reference;
  CHECK(first.y == ms::gemm(qx, ms::quantize<ms::nvfp4_2d>(p.w_view(), options)));
  CHECK_THROWS_AS(ms::set_references(layer.state(), 1.0f, ms::fp32::quiet_nan(), 1.0f), ms::error);
}
