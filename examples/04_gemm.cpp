// A product of operands in two schemes, summed in four ways: activations in UE5M3-scaled FP4, weights in NVFP4.
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

int main() {
  constexpr int tokens = 48, features = 1024, outputs = 64;
  std::mt19937 random(7);
  std::normal_distribution<float> gaussian;
  std::vector<float> x(tokens * features), w(outputs * features);
  for (float& value : x) value = std::exp(2.0f * gaussian(random)) * gaussian(random);  // of widely different sizes
  for (float& value : w) value = 0.02f * gaussian(random);

  // Both operands have their blocks along the features, which the product sums over: Y = X W^T.
  const auto qx = ms::quantize<ms::ue5m3_fp4>(ms::matrix(x, tokens, features));
  const auto qw = ms::quantize<ms::nvfp4_2d>(ms::matrix(w, outputs, features));  // one scale for 16 x 16 weights

  const std::vector<float> exact = ms::gemm<ms::exact_f32>(qx, qw);  // the exact sum, rounded once
  double worst = 0.0;
  const auto compare = [&](const char* name, const std::vector<float>& y) {
    double error = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) error = std::fmax(error, std::fabs(double{y[i]} - double{exact[i]}));
    std::printf("%-14s differs from the exact sums by at most %.2e\n", name, error);
    worst = std::fmax(worst, error);
  };
  compare("f32_blocks", ms::gemm<ms::f32_blocks>(qx, qw));        // one FP32 addition for every 16 products
  compare("blackwell_k64", ms::gemm<ms::blackwell_k64>(qx, qw));  // a model of the tensor core's order
  compare("vendor", ms::gemm<ms::vendor>(qx, qw));                // decode, then an ordinary FP32 GEMM

  const bool same_bits = ms::gemm<ms::exact_f32>(ms::host{.threads = 4}, qx, qw) == exact;
  return same_bits && worst < 1e-4 ? 0 : 1;
}
