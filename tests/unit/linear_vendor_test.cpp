// linear<Recipe> as it trains: the vendor GEMM, threads, and layers that stay in BF16.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/host/executor.hpp>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>

#include "support/layers.hpp"

namespace ms = microscale;
using layers::data;
using layers::results;
using tensors::different;

namespace {

// Outputs farther from the product of BF16-rounded operands, both K-major, than k 2^-24 sum |a b| allows.
int beyond_bound(const std::vector<float>& c, const std::vector<float>& a, const std::vector<float>& b, ms::index_t k) {
  const auto rounded = [](float x) {
    return static_cast<double>(model::decode(model::bf16, model::encode(model::bf16, static_cast<double>(x))));
  };
  const std::size_t depth = static_cast<std::size_t>(k), m = a.size() / depth, n = b.size() / depth;
  int beyond = c.size() == m * n ? 0 : -1;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::size_t p = 0; p < depth; ++p) {
        const double t = rounded(a[i * depth + p]) * rounded(b[j * depth + p]);
        sum += t;
        magnitude += std::fabs(t);
      }
      const double bound = static_cast<double>(k) * 0x1p-24 * magnitude * 1.001 + 0x1p-149;
      beyond += !(std::fabs(static_cast<double>(c[i * n + j]) - sum) <= bound);
    }
  }
  return beyond;
}

template <class Layer>
void is_bf16(Layer& layer, const data& d) {
  CHECK(!layer.is_quantized());
  const results r = layers::run(layer, d, {});
  const auto x_t = tensors::transposed(d.x, d.tokens, d.in), w_t = tensors::transposed(d.w, d.out, d.in);
  const auto dy_t = tensors::transposed(d.dy, d.tokens, d.out);
  CHECK(beyond_bound(r.y, d.x, d.w, d.in) == 0);
  CHECK(beyond_bound(r.dx, d.dy, w_t, d.out) == 0);
  CHECK(beyond_bound(r.dw, dy_t, x_t, d.tokens) == 0);
}

template <class Recipe>
bool quantizes(ms::layer_role role, int index, int count) {
  return ms::linear<Recipe>(16, 16, {.role = role, .index = index, .count = count}).is_quantized();
}

}  // namespace

TEST_CASE("the bf16 recipe is the GEMM of rounded operands, for any number of tokens") {
  for (const ms::index_t tokens : {1, 13, 32}) {
    const data d(tokens, 37, 21, 1);
    ms::linear<ms::recipes::bf16> layer(37, 21, {});
    is_bf16(layer, d);
  }
}

TEST_CASE("exempt layers of the other recipes are computed the same way") {
  const data d(19, 40, 24, 2);
  ms::linear<ms::recipes::ue5m3> head(40, 24, {.role = ms::layer_role::head, .index = 0, .count = 2});
  is_bf16(head, d);
  CHECK(head.state() == ms::linear_state{});
  ms::linear<ms::recipes::nvfp4> last(40, 24, {.role = ms::layer_role::mlp_down, .index = 1, .count = 2});
  is_bf16(last, d);
  ms::linear<ms::recipes::bf16> plain(40, 24, {});
  CHECK(layers::same(layers::run(last, d, {}), layers::run(plain, d, {})));
}

TEST_CASE("which layers each recipe quantizes") {
  using role = ms::layer_role;
  for (const role r : {role::attention_qkv, role::attention_output, role::mlp_up, role::mlp_down}) {
    CHECK(!quantizes<ms::recipes::bf16>(r, 0, 4));
    CHECK((quantizes<ms::recipes::ue5m3>(r, 0, 4) && quantizes<ms::recipes::ue5m3>(r, 3, 4)));  // every internal one
    CHECK((quantizes<ms::recipes::nvfp4>(r, 0, 4) && quantizes<ms::recipes::nvfp4>(r, 2, 4)));
    CHECK(!quantizes<ms::recipes::nvfp4>(r, 3, 4));  // not the last block
  }
  for (const role r : {role::head, role::embedding}) {
    CHECK((!quantizes<ms::recipes::ue5m3>(r, 0, 4) && !quantizes<ms::recipes::nvfp4>(r, 0, 4)));
  }
}

TEST_CASE("one seed gives the same bits on any number of threads") {
  const data d(256, 256, 288, 3);  // enough work to be shared
  const auto run = [&](auto executor) {
    ms::linear<ms::recipes::ue5m3> layer(256, 288, {});
    return layers::run(layer, d, {.step = 1, .seed = 7}, executor);
  };
  const results want = run(ms::host{.threads = 1});
  for (const int threads : {2, 3, 16}) CHECK(layers::same(run(ms::host{.threads = threads}), want));
}
