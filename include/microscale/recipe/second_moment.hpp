// An optimizer's second moment in four bits (arXiv 2607.04422): square root, minus the mean, Hadamard transform, NVFP4.
//
// The second moment spans many decades and is used as 1 / sqrt(v). Its square root halves the decades; taking the mean
// away leaves a signed number that four bits are made for; the transform spreads outliers over their run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../tensor/hadamard.hpp"
#include "../tensor/quantized.hpp"

namespace microscale {

// The stored moment of a parameter of rows x cols: four-bit codes and one mean a row.
template <quantization_scheme S = nvfp4>
struct stored_moment {
  quantized<S> codes;
  std::vector<float> means;
};

// u = sqrt(v); m = the mean of a row of u, a binary64 sum in order, rounded to FP32; codes of H(u - m), H the transform
// of runs of `size` along a row. v must not be negative or NaN; cols must be a multiple of `size`.
template <quantization_scheme S = nvfp4, host_executor Executor>
stored_moment<S> store_second_moment(const Executor& executor, matrix_view<const float> v, int size = 16) {
  detail::check_matrix("second moment", v);
  stored_moment<S> stored;
  stored.means.resize(static_cast<std::size_t>(v.rows));
  std::vector<float> centred(static_cast<std::size_t>(v.rows * v.cols));
  const matrix_view<float> u = matrix(centred.data(), v.rows, v.cols);
  for (index_t r = 0; r < v.rows; ++r) {
    for (index_t c = 0; c < v.cols; ++c) {
      if (!fp32::is_finite(v(r, c)) || fp32::less(v(r, c), 0.0f)) {
        detail::fail("second moment", "finite numbers that are not negative", std::to_string(v(r, c)));
      }
    }
  }
  detail::run_ranges(executor, v.rows, v.cols, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      double sum = 0.0;
      for (index_t c = 0; c < v.cols; ++c) {
        u(r, c) = fp32::sqrt(fp32::abs(v(r, c)));
        sum += double{u(r, c)};
      }
      const float mean = v.cols == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(v.cols));
      stored.means[static_cast<std::size_t>(r)] = mean;
      for (index_t c = 0; c < v.cols; ++c) u(r, c) = fp32::sub(u(r, c), mean);
    }
  });
  hadamard_into(executor, u, u, {.size = size});
  stored.codes = quantize<S>(executor, u);
  return stored;
}

// sqrt(v) as stored, what Adam divides by: H of the decoded numbers (the transform is its own inverse) plus the mean,
// below zero raised to `floor`. Squares of it are v.
template <quantization_scheme S, host_executor Executor>
void load_root_of_second_moment(const Executor& executor, const stored_moment<S>& stored, matrix_view<float> root,
                                int size = 16, float floor = 0.0f) {
  if (static_cast<index_t>(stored.means.size()) != stored.codes.rows()) {
    detail::fail("means of a stored moment", std::to_string(stored.codes.rows()), std::to_string(stored.means.size()));
  }
  dequantize_into(executor, stored.codes.view(), root);
  hadamard_into(executor, root, root, {.size = size});
  detail::run_ranges(executor, root.rows, root.cols, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      for (index_t c = 0; c < root.cols; ++c) {
        root(r, c) = fp32::max_number(fp32::add(root(r, c), stored.means[static_cast<std::size_t>(r)]), floor);
      }
    }
  });
}

}  // namespace microscale
