// An optimizer's second moment in four and a half bits: it spans decades and is used as 1 / sqrt(v), so its square
// root, less the mean and rotated, is what gets quantized (arXiv 2607.04422).
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <microscale/recipe/second_moment.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

int main() {
  constexpr int rows = 128, cols = 512;
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  // Gradients of about 1e-4, squared and averaged as Adam does.
  std::vector<float> v(rows * cols), root(v.size());
  for (float& e : v) {
    const float size = 1e-4f * std::exp(0.7f * gaussian(random));
    for (int step = 0; step < 100; ++step) {
      const float g = size * gaussian(random);
      e = 0.95f * e + 0.05f * g * g;
    }
  }
  const ms::matrix_view<const float> moment = ms::matrix(v, rows, cols);

  // How far Adam's step is off, and how often it would divide by (nearly) nothing.
  const auto report = [&](const char* what, const std::vector<float>& stored_root) {
    double error = 0.0;
    int lost = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double exact = std::sqrt(double{v[i]}), got = double{stored_root[i]};
      lost += got < 0.1 * exact ? 1 : 0;
      error += std::fabs(got - exact) / exact / static_cast<double>(v.size());
    }
    std::printf("%-32s mean error of sqrt(v) %5.1f%%, lost %d of %zu\n", what, 100.0 * error, lost, v.size());
    return lost;
  };

  const std::vector<float> direct = ms::fake_quantize<ms::nvfp4>(moment);
  for (std::size_t i = 0; i < v.size(); ++i) root[i] = std::sqrt(direct[i]);
  const int lost_directly = report("NVFP4 of v", root);

  std::vector<float> exact_root(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) exact_root[i] = std::sqrt(v[i]);
  const int lost_of_roots =
      report("NVFP4 of sqrt(v)", ms::fake_quantize<ms::nvfp4>(ms::matrix(exact_root, rows, cols)));

  const auto stored = ms::store_second_moment(ms::host{}, moment);
  ms::load_root_of_second_moment(ms::host{}, stored, ms::matrix(root, rows, cols));
  const int lost = report("NVFP4 of H(sqrt(v) - mean)", root);
  return lost < lost_of_roots && lost_of_roots < lost_directly ? 0 : 1;
}
