// Quantizes a matrix to NVFP4 and back: four bits an element, and one byte of scale for every sixteen of them.
#include <cstdio>
#include <microscale/microscale.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

int main() {
  constexpr int rows = 256, cols = 1024;
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  std::vector<float> source(rows * cols);
  for (float& value : source) value = gaussian(random);
  const auto x = ms::matrix(source, rows, cols);  // a view: the memory stays yours

  const auto q = ms::quantize<ms::nvfp4>(x);  // owns packed codes, block scales and the tensor's amax
  const std::vector<float> decoded = ms::dequantize(q);
  const auto y = ms::matrix(decoded, rows, cols);

  // The first block: its scale, then each number, its code, and what the code means under both scales.
  const float scale = ms::ue4m3::decode(q.view().scale(0, 0));
  std::printf("amax of the tensor %g, scale of the first block %g\n\n", double{q.datum()}, double{scale});
  for (int k = 0; k < 16; ++k) {
    std::printf("%9.4f  %X  %9.4f\n", double{x(0, k)}, unsigned{q.view().code(0, k)}, double{y(0, k)});
  }

  const double bits = 8.0 * static_cast<double>(q.codes().size() + q.scales().size()) / (rows * cols);
  const double sqnr = ms::measure(x, q).sqnr_db();
  std::printf("\n%g bits an element, SQNR %.2f dB\n", bits, sqnr);
  return bits == 4.5 && sqnr > 20.0 ? 0 : 1;
}
