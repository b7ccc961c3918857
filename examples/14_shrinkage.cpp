// Why a uniform grid: rounding Gaussian numbers to E2M1 makes them smaller on average, rounding to the evenly spaced
// E1M2 hardly does (the argument of UFP4, arXiv 2606.20381), and stochastic rounding never does.
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <microscale/recipe/shrinkage.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

namespace {

constexpr int rows = 2048, cols = 512;

// E2M1 and E1M2 with the same exact scale for each block, so that the grids alone differ.
struct on_e2m1 : ms::scheme<ms::e2m1, ms::f32, ms::block<1, 16>, ms::amax_over_max_or_one> {};
struct on_e1m2 : ms::scheme<ms::e1m2, ms::f32, ms::block<1, 16>, ms::amax_over_max_or_one> {};

template <class S>
double report(const char* what, ms::matrix_view<const float> x, const ms::any_rounding& rounding) {
  const auto q = ms::quantize<S>(ms::host{}, x, {.rounding = rounding});
  const double lost = ms::measure_shrinkage(x, q).of_projection();
  std::printf("%-20s loses %6.3f%% of x along x\n", what, 100.0 * lost);
  return lost;
}

// Which values of the grid lose it: the part of sum x (x - x') that comes from the numbers rounded to each of them.
template <class S>
void figure(const char* what, ms::matrix_view<const float> x) {
  const auto q = ms::quantize<S>(ms::host{}, x);
  double lost[8] = {}, signal = 0.0;
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < cols; ++k) {
      const float element = S::element::decode(q.view().code(r, k));
      const double exact = double{x(r, k)};
      lost[q.view().code(r, k) & 7] += exact * (exact - double{element * S::scale::decode(q.view().scale(r, k))});
      signal += exact * exact;
    }
  }
  std::printf("\n%s: what the numbers rounded to each value lose\n", what);
  for (int c = 0; c < 8; ++c) {
    const double percent = 100.0 * lost[c] / signal;
    std::printf("%5g %7.3f%% ", double{S::element::decode(static_cast<std::uint8_t>(c))}, percent);
    for (long i = std::lround(std::fabs(percent) * 50.0); i > 0; --i) std::putchar(percent > 0 ? '-' : '+');
    std::putchar('\n');
  }
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  std::vector<float> data(rows * cols);
  for (float& v : data) v = gaussian(random);
  const ms::matrix_view<const float> x = ms::matrix(data.data(), rows, cols);

  const ms::stochastic_midpoint8 stochastic{.seed = 1, .stream = 0};
  const double e2m1 = report<on_e2m1>("E2M1 to nearest", x, ms::nearest_even{});
  const double e1m2 = report<on_e1m2>("E1M2 to nearest", x, ms::nearest_even{});
  const double drawn = report<on_e2m1>("E2M1 stochastically", x, stochastic);
  figure<on_e2m1>("E2M1", x);
  figure<on_e1m2>("E1M2", x);
  return e2m1 > 4.0 * std::fabs(e1m2) && std::fabs(drawn) < 0.0005 ? 0 : 1;
}
