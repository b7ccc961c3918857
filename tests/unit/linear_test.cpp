// linear<Recipe>: forward and backward are the three GEMMs composed by hand, bit for bit.
#include <microscale/recipe/linear.hpp>

#include <catch2/catch_test_macros.hpp>
#include <microscale/recipe/recipes.hpp>

#include "support/layers.hpp"

namespace ms = microscale;
using layers::data;
using layers::results;
using tensors::different;
using tensors::largest_magnitude;
using tensors::transposed;

namespace {

constexpr ms::layer_position position{.role = ms::layer_role::mlp_up, .index = 0, .count = 4, .layer = 37};

template <class Recipe>
using exact_layer = ms::linear<Recipe, ms::exact_f32>;

// One operand by hand: a row-major matrix whose rows run along the reduction.
template <class S, class R>
ms::quantized<S> by_hand(const std::vector<float>& x, ms::index_t rows, ms::index_t cols, R rounding, float reference) {
  ms::quantized<S> q(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), rounding, {.reference = &reference});
  return q;
}
template <class R>
R draws(const ms::training_step& at, ms::gemm_role gemm) {
  return {at.seed, ms::random_stream(at, position.layer, ms::operand_role::output_gradient, gemm)};
}

struct references {
  float x, w, dy;
};

results ue5m3_by_hand(const data& d, const ms::training_step& at, references g) {
  using sr = ms::stochastic_midpoint8;
  constexpr ms::nearest_even rne;
  const auto x_t = transposed(d.x, d.tokens, d.in), w_t = transposed(d.w, d.out, d.in),
             dy_t = transposed(d.dy, d.tokens, d.out);
  return {ms::gemm(by_hand<ms::ue5m3_fp4>(d.x, d.tokens, d.in, rne, g.x),
                   by_hand<ms::ue5m3_fp4_2d>(d.w, d.out, d.in, rne, g.w)),
          ms::gemm(by_hand<ms::ue5m3_fp4>(d.dy, d.tokens, d.out, draws<sr>(at, ms::gemm_role::dgrad), g.dy),
                   by_hand<ms::ue5m3_fp4_2d>(w_t, d.in, d.out, rne, g.w)),
          ms::gemm(by_hand<ms::ue5m3_fp4>(dy_t, d.out, d.tokens, draws<sr>(at, ms::gemm_role::wgrad), g.dy),
                   by_hand<ms::ue5m3_fp4>(x_t, d.in, d.tokens, rne, g.x))};
}

}  // namespace

TEST_CASE("ue5m3: the three GEMMs by hand, with tails everywhere") {
  for (const auto& [tokens, in, out] :
       {std::tuple<ms::index_t, ms::index_t, ms::index_t>{20, 37, 45}, {1, 16, 1}, {33, 64, 32}}) {
    const data d(tokens, in, out, 1);
    exact_layer<ms::recipes::ue5m3> layer(in, out, position);
    const ms::training_step at{.step = 3, .micro_batch = 2, .seed = 99};
    const references g{largest_magnitude(d.x), largest_magnitude(d.w), largest_magnitude(d.dy)};
    CHECK(layers::same(layers::run(layer, d, at), ue5m3_by_hand(d, at, g)));
  }
}

TEST_CASE("ue5m3: references are held between samples and kept as state") {
  const data first(20, 32, 16, 1), second(20, 32, 16, 7);
  ms::recipes::ue5m3 recipe;
  recipe.scaling.period = 3;
  exact_layer<ms::recipes::ue5m3> layer(32, 16, position, recipe);
  const references g{largest_magnitude(first.x), largest_magnitude(first.w), largest_magnitude(first.dy)};
  const references h{largest_magnitude(second.x), largest_magnitude(second.w), largest_magnitude(second.dy)};
  CHECK((g.x != h.x && g.w != h.w && g.dy != h.dy));
  layers::run(layer, first, {.step = 1});
  CHECK((layer.state().activation.amax == g.x && layer.state().weight.amax == g.w &&
         layer.state().output_gradient.amax == g.dy));
  CHECK(layers::same(layers::run(layer, second, {.step = 2}), ue5m3_by_hand(second, {.step = 2}, g)));
  CHECK(layers::same(layers::run(layer, second, {.step = 4}), ue5m3_by_hand(second, {.step = 4}, h)));
  // A layer that is given the state goes on where this one stood.
  exact_layer<ms::recipes::ue5m3> resumed(32, 16, position, recipe);
  resumed.state() = layer.state();
  CHECK(layers::same(layers::run(resumed, first, {.step = 5}), layers::run(layer, first, {.step = 5})));
  CHECK(resumed.state() == layer.state());
}

TEST_CASE("nvfp4: the Hadamard transform on both operands of Wgrad, amax taken after it") {
  const data d(32, 40, 50, 3);
  exact_layer<ms::recipes::nvfp4> layer(40, 50, position);
  const ms::training_step at{.step = 2, .seed = 5};
  const results got = layers::run(layer, d, at);

  using sr = ms::stochastic_floor8;
  constexpr ms::nearest_even rne;
  const auto spun = [&](std::vector<float> x, ms::index_t rows) {  // along the tokens
    ms::hadamard_into(ms::sequential{}, ms::matrix(x, rows, 32), ms::matrix(x, rows, 32),
                      {.size = 16, .signs = ms::hadamard_signs::transformer_engine()});
    return x;
  };
  const auto x_t = spun(transposed(d.x, 32, 40), 40), dy_t = spun(transposed(d.dy, 32, 50), 50);
  const auto w_t = transposed(d.w, 50, 40);
  const auto own = [](const std::vector<float>& x) { return largest_magnitude(x); };
  const results want{
      ms::gemm(by_hand<ms::nvfp4>(d.x, 32, 40, rne, own(d.x)), by_hand<ms::nvfp4_2d>(d.w, 50, 40, rne, own(d.w))),
      ms::gemm(by_hand<ms::nvfp4>(d.dy, 32, 50, draws<sr>(at, ms::gemm_role::dgrad), own(d.dy)),
               by_hand<ms::nvfp4_2d>(w_t, 40, 50, rne, own(d.w))),
      ms::gemm(by_hand<ms::nvfp4>(dy_t, 50, 32, draws<sr>(at, ms::gemm_role::wgrad), own(dy_t)),
               by_hand<ms::nvfp4>(x_t, 40, 32, rne, own(x_t)))};
  CHECK(different(got.y, want.y) == 0);
  CHECK(different(got.dx, want.dx) == 0);
  CHECK(different(got.dw, want.dw) == 0);
  CHECK(own(x_t) != own(d.x));                 // the transform does move it
  CHECK(layer.state() == ms::linear_state{});  // current scaling carries nothing
}

TEST_CASE("steps, micro-batches, layers and seeds draw apart; Dgrad and Wgrad too") {
  const data d(32, 32, 32, 4);
  const auto at_layer = [&](std::uint32_t number, const ms::training_step& at) {
    exact_layer<ms::recipes::ue5m3> layer(32, 32, {.layer = number});
    return layers::run(layer, d, at);
  };
  const results base = at_layer(1, {.step = 1, .micro_batch = 0, .seed = 1});
  CHECK(layers::same(at_layer(1, {.step = 1, .micro_batch = 0, .seed = 1}), base));
  for (const results& other :
       {at_layer(1, {.step = 2, .micro_batch = 0, .seed = 1}), at_layer(1, {.step = 1, .micro_batch = 1, .seed = 1}),
        at_layer(2, {.step = 1, .micro_batch = 0, .seed = 1}), at_layer(1, {.step = 1, .micro_batch = 0, .seed = 2})}) {
    CHECK(different(other.y, base.y) == 0);  // nothing is drawn in Fprop
    CHECK(different(other.dx, base.dx) > 0);
    CHECK(different(other.dw, base.dw) > 0);
  }
}

TEST_CASE("metrics are collected while asked for") {
  const data d(32, 40, 50, 5);
  exact_layer<ms::recipes::nvfp4> layer(40, 50, position);
  layers::run(layer, d, {});
  CHECK(!layer.metrics());
  layer.collect_metrics(true);
  layers::run(layer, d, {});
  layers::run(layer, d, {.step = 2});
  CHECK((layer.metrics()->activation.elements == 2 * 32 * 40 && layer.metrics()->weight.elements == 2 * 50 * 40));
  CHECK(layer.metrics()->output_gradient.elements == 2 * 32 * 50);
  CHECK(layer.metrics()->activation.sqnr_db() > 5);
  layer.collect_metrics(true);
  CHECK(layer.metrics()->activation.elements == 0);
}

TEST_CASE("shapes that do not fit are refused") {
  using tensors::message_of;
  using tensors::says;
  data d(20, 32, 16, 6);
  exact_layer<ms::recipes::nvfp4> layer(32, 16, position);
  CHECK((layer.in_features() == 32 && layer.out_features() == 16));
  std::vector<float> y(20 * 16), dx(20 * 32), dw(16 * 32);
  const auto forward = [&](ms::index_t in, ms::index_t out, ms::matrix_view<float> to) {
    return message_of([&] {
      layer.forward(ms::sequential{}, {}, ms::matrix(d.x.data(), 20, in), ms::matrix(d.w.data(), out, 32), to);
    });
  };
  CHECK(says(forward(31, 16, ms::matrix(y, 20, 16)), "X: expected 20 x 32, got 20 x 31"));
  CHECK(says(forward(32, 15, ms::matrix(y, 20, 16)), "W: expected 16 x 32, got 15 x 32"));
  CHECK(says(forward(32, 16, ms::matrix(y, 16, 20)), "Y: expected 20 x 16, got 16 x 20"));
  CHECK(says(forward(32, 16, ms::matrix<float>(nullptr, 20, 16)), "Y: expected memory"));
  // Twenty tokens are no multiple of sixteen, which the transform along the tokens needs.
  CHECK(says(forward(32, 16, ms::matrix(y, 20, 16)),
             "length of a Hadamard transform: expected a multiple of 16, got 20"));

  exact_layer<ms::recipes::ue5m3> other(32, 16, position);
  other.forward(ms::sequential{}, {}, d.x_view(), d.w_view(), ms::matrix(y, 20, 16));
  const auto backward = [&](ms::index_t tokens, ms::matrix_view<float> to_dx, ms::matrix_view<float> to_dw) {
    return message_of([&] { other.backward(ms::sequential{}, {}, ms::matrix(d.dy.data(), tokens, 16), to_dx, to_dw); });
  };
  CHECK(says(backward(19, ms::matrix(dx, 20, 32), ms::matrix(dw, 16, 32)), "dY: expected 20 x 16, got 19 x 16"));
  CHECK(says(backward(20, ms::matrix(dx, 32, 20), ms::matrix(dw, 16, 32)), "dX: expected 20 x 32, got 32 x 20"));
  CHECK(says(backward(20, ms::matrix(dx, 20, 32), ms::matrix(dw, 32, 16)), "dW: expected 16 x 32, got 32 x 16"));
}

TEST_CASE("an infinite operand is an error under periodic scaling and leaves every reference as it was") {
  const data good(16, 32, 16, 7);
  exact_layer<ms::recipes::ue5m3> layer(32, 16, position);
  layers::run(layer, good, {.step = 1});
  const ms::linear_state before = layer.state();
  for (std::vector<float> data::*const operand : {&data::x, &data::w, &data::dy}) {
    data d(16, 32, 16, 8);  // other numbers, and so other references
    (d.*operand)[100] = ms::fp32::infinity();
    exact_layer<ms::recipes::ue5m3> resumed(32, 16, position);
    resumed.state() = before;
    ms::linear_state expected = before;
    const auto call = [&] { layers::run(resumed, d, {.step = 51}); };
    CHECK(tensors::says(tensors::message_of(call), "reference amax"));
    if (operand == &data::dy) {  // forward() went through
      expected.activation = resumed.state().activation;
      expected.weight = resumed.state().weight;
      CHECK(expected.activation.sampled_step == 51);
    }
    CHECK(resumed.state() == expected);
    // Nothing is left for a backward pass where the forward pass ended early.
    std::vector<float> dx(d.x.size(), 9.0f), dw(d.w.size(), 9.0f);
    const std::string said = tensors::message_of([&] {
      resumed.backward(ms::sequential{}, {.step = 52}, good.dy_view(), ms::matrix(dx, 16, 32), ms::matrix(dw, 16, 32));
    });
    CHECK(tensors::says(said, "a forward() before it") == (operand != &data::dy));
    CHECK((dx == std::vector<float>(d.x.size(), 9.0f)) == (operand != &data::dy));
    CHECK_NOTHROW(layers::run(resumed, good, {.step = 53}));
  }
}

TEST_CASE("what the products took can be looked at") {
  CHECK((ms::host_memory::bf16_matrix{}.view().rows == 0 && ms::host_memory::bf16_matrix{}.view().cols == 0));
  const data d(20, 37, 45, 1);
  exact_layer<ms::recipes::ue5m3> layer(37, 45, position);
  layers::run(layer, d, {.step = 1, .seed = 5});
  const auto x = ms::quantize<ms::ue5m3_fp4>(d.x_view());
  CHECK(layer.left<ms::gemm_role::fprop>().codes() == x.codes());
  CHECK(layer.left<ms::gemm_role::fprop>().scales() == x.scales());
  const auto w = ms::quantize<ms::ue5m3_fp4_2d>(d.w_view(), {.axis = ms::axis::col});
  CHECK(layer.right<ms::gemm_role::dgrad>().codes() == w.codes());
  CHECK(layer.right<ms::gemm_role::wgrad>().rows() == 37);
  CHECK(layer.left<ms::gemm_role::wgrad>().rows() == 45);
  CHECK(layer.left<ms::gemm_role::dgrad>().codes() != layer.left<ms::gemm_role::wgrad>().codes());
}
