// A linear layer's data, and its six calls under exact accumulation.
#pragma once

#include <microscale/recipe/linear.hpp>
#include <vector>

#include "tensors.hpp"

namespace layers {

namespace ms = microscale;
using ms::index_t;

struct data {
  index_t tokens, in, out;
  std::vector<float> x, w, dy;
  data(index_t t, index_t i, index_t o, std::uint64_t seed)
      : tokens(t),
        in(i),
        out(o),
        x(tensors::difficult(t, i, seed)),
        w(tensors::difficult(o, i, seed + 1)),
        dy(tensors::difficult(t, o, seed + 2)) {}
  ms::matrix_view<const float> x_view() const { return ms::matrix(x.data(), tokens, in); }
  ms::matrix_view<const float> w_view() const { return ms::matrix(w.data(), out, in); }
  ms::matrix_view<const float> dy_view() const { return ms::matrix(dy.data(), tokens, out); }
};

struct results {
  std::vector<float> y, dx, dw;
};

template <class Layer, class Executor = ms::sequential>
results run(Layer& layer, const data& d, const ms::training_step& at, const Executor& executor = {}) {
  results r{std::vector<float>(d.dy.size(), 9.0f), std::vector<float>(d.x.size(), 9.0f),
            std::vector<float>(d.w.size(), 9.0f)};
  layer.forward(executor, at, d.x_view(), d.w_view(), ms::matrix(r.y, d.tokens, d.out));
  layer.backward(executor, at, d.dy_view(), ms::matrix(r.dx, d.tokens, d.in), ms::matrix(r.dw, d.out, d.in));
  return r;
}

inline bool same(const results& a, const results& b) {
  return tensors::different(a.y, b.y) == 0 && tensors::different(a.dx, b.dx) == 0 &&
         tensors::different(a.dw, b.dw) == 0;
}

}  // namespace layers
