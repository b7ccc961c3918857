// An activation as two four-bit operands on one four-bit weight: its large pairs in the pairwise 4:8 pattern of sparse
// tensor cores, and what they leave as a dense residual (SharQ, arXiv 2606.26587).
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <microscale/recipe/pairwise_sparse.hpp>
#include <random>
#include <vector>

namespace ms = microscale;

// The sparse part has a scale for 32 elements, 16 of which are stored.
struct sparse_nvfp4 : ms::with_block<ms::nvfp4, ms::block<1, 32>> {};

int main() {
  constexpr int tokens = 64, in = 512, out = 96;
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  std::vector<float> x(tokens * in), w(out * in);
  for (float& v : w) v = 0.05f * gaussian(random);
  for (float& v : x) v = std::exp(1.2f * gaussian(random)) * gaussian(random);  // heavy tails
  const ms::matrix_view<const float> xm = ms::matrix(x, tokens, in);
  const auto qw = ms::quantize<ms::nvfp4>(ms::matrix(w, out, in));  // once, for both products

  const auto parts = ms::split_pairwise<sparse_nvfp4, ms::nvfp4>(ms::host{}, xm);
  const std::vector<float> both = ms::gemm(ms::host{}, parts, qw);
  const std::vector<float> dense = ms::gemm(ms::host{}, ms::quantize<ms::nvfp4>(xm), qw);

  const std::vector<float> decoded = ms::dequantize(qw);
  double error_of_both = 0.0, error_of_dense = 0.0, norm = 0.0;
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < out; ++r) {
      double exact = 0.0;
      for (int k = 0; k < in; ++k) exact += double{xm(t, k)} * double{decoded[static_cast<std::size_t>(r * in + k)]};
      const auto i = static_cast<std::size_t>(t * out + r);
      error_of_both += (double{both[i]} - exact) * (double{both[i]} - exact);
      error_of_dense += (double{dense[i]} - exact) * (double{dense[i]} - exact);
      norm += exact * exact;
    }
  }
  error_of_both = std::sqrt(error_of_both / norm);
  error_of_dense = std::sqrt(error_of_dense / norm);
  std::printf("one dense operand    relative error %.4f\n", error_of_dense);
  std::printf("sparse and residual  relative error %.4f\n", error_of_both);

  // Every eight neighbours have at most two pairs in the sparse part.
  int broken = 0;
  for (int t = 0; t < tokens; ++t) {
    for (int k = 0; k < in; k += 8) {
      int pairs = 0;
      for (int i = 0; i < 8; i += 2) {
        const auto q = parts.sparse.view();
        pairs += (q.code(t, k + i) & 7) != 0 || (q.code(t, k + i + 1) & 7) != 0 ? 1 : 0;
      }
      broken += pairs > 2 ? 1 : 0;
    }
  }
  return broken == 0 && error_of_both < 0.3 * error_of_dense ? 0 : 1;
}
