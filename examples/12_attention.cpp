// Attention with four-bit scores: Q K^T in NVFP4, the product with V in BF16 (arXiv 2607.04422), one head.
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <microscale/recipe/attention.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

namespace {

constexpr int positions = 128, width = 64;
using head = std::vector<float>;

ms::matrix_view<const float> view(const head& m) { return ms::matrix(m.data(), positions, width); }

// The same in binary64.
std::vector<double> exact_attention(const head& q, const head& k, const head& v) {
  std::vector<double> out(positions * width);
  for (int i = 0; i < positions; ++i) {
    std::vector<double> weight(positions);
    double sum = 0.0;
    for (int j = 0; j <= i; ++j) {
      double score = 0.0;
      for (int c = 0; c < width; ++c) score += double{view(q)(i, c)} * double{view(k)(j, c)};
      weight[static_cast<std::size_t>(j)] = std::exp(score / 8.0);  // 8 = sqrt(width)
      sum += weight[static_cast<std::size_t>(j)];
    }
    for (int j = 0; j <= i; ++j) {
      for (int c = 0; c < width; ++c) {
        out[static_cast<std::size_t>(i * width + c)] +=
            weight[static_cast<std::size_t>(j)] / sum * double{view(v)(j, c)};
      }
    }
  }
  return out;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  head q(positions * width), k(q.size()), v(q.size()), o(q.size()), d_o(q.size());
  for (head* m : {&q, &k, &v, &d_o}) {
    for (float& e : *m) e = gaussian(random);
  }
  const auto p = ms::attention_forward(ms::host{}, view(q), view(k), view(v), ms::matrix(o, positions, width));

  const std::vector<double> exact = exact_attention(q, k, v);
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    difference += (double{o[i]} - exact[i]) * (double{o[i]} - exact[i]);
    norm += exact[i] * exact[i];
  }
  const double error = std::sqrt(difference / norm);
  std::printf("O: relative error %.3f\n", error);

  // Backward, the gradient of the scores rounded stochastically.
  head dq(q.size()), dk(q.size()), dv(q.size());
  ms::attention_backward(ms::host{}, view(q), view(k), view(v), p, view(d_o), ms::matrix(dq, positions, width),
                         ms::matrix(dk, positions, width), ms::matrix(dv, positions, width),
                         {.gradient_rounding = ms::stochastic_midpoint8{.seed = 1, .stream = 2}});
  // The first query sees one key, whose weight cannot change.
  std::printf("dQ of the first query: %g\n", double{dq[0]});
  return error < 0.2 && dq[0] == 0.0f ? 0 : 1;
}
