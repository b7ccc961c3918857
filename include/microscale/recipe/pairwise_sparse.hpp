// An activation as a sparse part and a dense residual, both in four bits, against one weight payload (arXiv 2606.26587,
// SharQ): Y = (S + D) W^T.
//
// S holds the large elements in the pattern that four-bit sparse tensor cores take, pairwise 4:8; D what S leaves, its
// own rounding errors included. W is quantized once and serves both products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../tensor/gemm.hpp"
#include "../tensor/quantized.hpp"

namespace microscale {

// Pairwise 4:8: of each run of eight elements along a row, as four pairs of neighbours, the two pairs with the largest
// amax keep their elements and the other two become zeros; of equal pairs, the first. A NaN counts as an infinity. A
// shorter run at the end of a row is a run whose missing elements are zeros.
template <host_executor Executor>
void keep_pairwise_4_of_8(const Executor& executor, matrix_view<const float> in, matrix_view<float> out) {
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  detail::run_ranges(executor, in.rows, in.cols, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      for (index_t start = 0; start < in.cols; start += 8) {
        std::uint32_t size[4] = {};
        for (index_t i = 0; i < smaller(index_t{8}, in.cols - start); ++i) {
          const std::uint32_t m = smaller(fp32::magnitude_bits(in(r, start + i)), fp32::infinity_bits);
          size[i / 2] = larger(size[i / 2], m);
        }
        for (index_t i = 0; i < smaller(index_t{8}, in.cols - start); ++i) {
          const index_t own = i / 2;
          int ahead = 0;  // pairs that are kept before this one
          for (index_t other = 0; other < 4; ++other) {
            ahead += size[other] > size[own] || (size[other] == size[own] && other < own) ? 1 : 0;
          }
          out(r, start + i) = ahead < 2 ? in(r, start + i) : 0.0f;
        }
      }
    }
  });
}

// The two parts of an activation, quantized.
template <quantization_scheme Sparse, quantization_scheme Dense>
struct sparse_and_dense {
  quantized<Sparse> sparse;
  quantized<Dense> dense;
};

// S = quantized(kept elements of x), D = quantized(x - decoded S).
template <quantization_scheme Sparse, quantization_scheme Dense, host_executor Executor>
sparse_and_dense<Sparse, Dense> split_pairwise(const Executor& executor, matrix_view<const float> x,
                                               const quantize_options& options = {}) {
  detail::check_matrix("X", x);
  std::vector<float> part(static_cast<std::size_t>(x.rows * x.cols)), decoded(part.size());
  const matrix_view<float> p = matrix(part.data(), x.rows, x.cols);
  keep_pairwise_4_of_8(executor, x, p);
  sparse_and_dense<Sparse, Dense> result;
  result.sparse = quantize<Sparse>(executor, p, options);
  dequantize_into(executor, result.sparse.view(), matrix(decoded.data(), x.rows, x.cols));
  detail::run_ranges(executor, x.rows, x.cols, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      for (index_t c = 0; c < x.cols; ++c) {
        p(r, c) = fp32::sub(x(r, c), decoded[static_cast<std::size_t>(r * x.cols + c)]);
      }
    }
  });
  result.dense = quantize<Dense>(executor, p, options);
  return result;
}

// fl(S W^T + D W^T), the two products each by P.
template <gemm_accumulation P = exact_f32, host_executor Executor, class Sparse, class Dense, quantized_operand W>
std::vector<float> gemm(const Executor& executor, const sparse_and_dense<Sparse, Dense>& x, const W& w) {
  std::vector<float> y = gemm<P>(executor, x.sparse, w);
  const std::vector<float> rest = gemm<P>(executor, x.dense, w);
  detail::in_default_environment([&] {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = fp32::add(y[i], rest[i]);
  });
  return y;
}

}  // namespace microscale
