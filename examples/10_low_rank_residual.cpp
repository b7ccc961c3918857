// A weight that four bits alone cannot hold: smoothing moves the outliers of the input into it, a low-rank part in BF16
// takes them over, and what is left fits into four bits (SVDQuant, arXiv 2411.05007).
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <microscale/recipe/low_rank.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

namespace {

constexpr int tokens = 64, in = 256, out = 192;

double relative_error(const std::vector<float>& y, const std::vector<double>& exact) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    difference += (double{y[i]} - exact[i]) * (double{y[i]} - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  std::vector<float> x(tokens * in), w(out * in);
  for (float& v : x) v = gaussian(random);
  for (float& v : w) v = 0.02f * gaussian(random);
  for (int t = 0; t < tokens; ++t) {
    for (int k = 5; k < in; k += 64) x[static_cast<std::size_t>(t * in + k)] *= 50.0f;  // four features stand out
  }
  const ms::matrix_view<const float> xm = ms::matrix(x, tokens, in), wm = ms::matrix(w, out, in);

  std::vector<double> exact(tokens * out);
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < out; ++r) {
      double sum = 0.0;
      for (int k = 0; k < in; ++k) sum += double{xm(t, k)} * double{wm(r, k)};
      exact[static_cast<std::size_t>(t * out + r)] = sum;
    }
  }

  const auto plain = ms::gemm(ms::quantize<ms::nvfp4>(xm), ms::quantize<ms::nvfp4>(wm));
  const double error_of_plain = relative_error(plain, exact);
  std::printf("NVFP4 alone             relative error %.4f\n", error_of_plain);

  double error = 0.0;
  std::vector<float> y(tokens * out);
  for (const int rank : {0, 4, 16}) {
    const ms::low_rank_linear<ms::nvfp4> layer(wm, rank, xm);
    layer.forward(ms::host{}, xm, ms::matrix(y, tokens, out));
    error = relative_error(y, exact);
    std::printf("smoothing and rank %-4d relative error %.4f\n", rank, error);
  }
  return error < 0.8 * error_of_plain ? 0 : 1;
}
