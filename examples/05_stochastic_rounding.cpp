// Stochastic rounding: the bits are a function of (seed, stream, position), so one seed gives the same codes on any
// number of threads, and on a GPU; and rounded numbers are right on average.
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <vector>

namespace ms = microscale;

int main() {
  // In MXFP4, a row of 2.3 beside a 6 has scale 1: 2.3 lies between the codes for 2 and 3.
  constexpr int rows = 2048, cols = 512;
  std::vector<float> x(rows * cols, 2.3f);
  for (std::size_t i = 0; i < x.size(); i += 32) x[i] = 6.0f;
  const auto matrix = ms::matrix(x, rows, cols);

  const auto quantized_by = [&](int threads, std::uint64_t seed) {
    return ms::quantize<ms::mxfp4>(ms::host{.threads = threads}, matrix,
                                   {.rounding = ms::stochastic_midpoint8{.seed = seed, .stream = 0}});
  };
  const auto q = quantized_by(1, 42);
  const bool same_on_threads = q.codes() == quantized_by(7, 42).codes();
  const bool other_seed_differs = q.codes() != quantized_by(1, 43).codes();

  double sum = 0.0;
  for (const float y : ms::dequantize(q)) sum += y == 6.0f ? 0.0 : double{y};
  const double mean = sum / (31.0 / 32.0 * rows * cols);
  const float nearest = ms::fake_quantize<ms::mxfp4>(matrix)[1];
  std::printf("2.3 becomes %.4f on average; to nearest, %.4f always\n", mean, double{nearest});
  std::printf("1 and 7 threads: %s codes; another seed: %s codes\n", same_on_threads ? "the same" : "DIFFERENT",
              other_seed_differs ? "other" : "THE SAME");
  return same_on_threads && other_seed_differs && std::fabs(mean - 2.3) < 0.004 && nearest == 2.0f ? 0 : 1;
}
