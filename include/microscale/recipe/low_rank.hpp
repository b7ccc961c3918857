// A weight as a low-rank part in BF16 and a four-bit residual, with smoothing (arXiv 2411.05007, SVDQuant; 2607.05711).
//
// Y = X W^T = (X / l) (W l)^T, l one factor for each input feature that moves outliers of X into W; W l = U V + R, U
// and V of a small rank in BF16, R in four bits. What is hard to quantize in W l then lies in U V.
//
// These are functions of binary64 sums in a fixed order: the same on any number of threads, not under -ffast-math.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../host/vendor_gemm.hpp"
#include "../tensor/quantized.hpp"

namespace microscale {

// l_j = (max_i |X_ij|)^alpha / (max_i |W_ij|)^(1 - alpha), 1 where either column is zero. X is a sample of the layer's
// input, tokens x in; W is out x in.
inline std::vector<float> smoothing_factors(matrix_view<const float> x, matrix_view<const float> w,
                                            double alpha = 0.5) {
  detail::check_matrix("X", x);
  detail::check_matrix("W", w);
  if (x.cols != w.cols) detail::fail("columns of X", std::to_string(w.cols), std::to_string(x.cols));
  const auto column_amax = [](matrix_view<const float> m, index_t c) {
    return double{amax(sequential{}, matrix_view<const float>{m.data + c, m.rows, 1, m.pitch})};
  };
  std::vector<float> factors(static_cast<std::size_t>(w.cols), 1.0f);
  for (index_t c = 0; c < w.cols; ++c) {
    const double a = column_amax(x, c), b = column_amax(w, c);
    if (a > 0.0 && b > 0.0) {
      factors[static_cast<std::size_t>(c)] =
          static_cast<float>(__builtin_pow(a, alpha) / __builtin_pow(b, 1.0 - alpha));
    }
  }
  return factors;
}

// W as up · down, out x rank times rank x in, both of BF16 numbers, row-major.
struct low_rank_factors {
  index_t rows = 0, cols = 0, rank = 0;
  std::vector<float> up, down;
};

namespace detail {

// Makes the columns of `m` (rows x rank, row-major) orthonormal, from the first to the last; a column that depends on
// those before it becomes zero.
inline void orthonormalize(std::vector<double>& m, index_t rows, index_t rank) {
  const auto at = [&](index_t r, index_t c) -> double& { return m[static_cast<std::size_t>(r * rank + c)]; };
  for (index_t c = 0; c < rank; ++c) {
    double before = 0.0, length = 0.0;
    for (index_t r = 0; r < rows; ++r) before += at(r, c) * at(r, c);
    for (int twice = 0; twice < 2; ++twice) {  // once more, for what rounding left
      for (index_t other = 0; other < c; ++other) {
        double dot = 0.0;
        for (index_t r = 0; r < rows; ++r) dot += at(r, c) * at(r, other);
        for (index_t r = 0; r < rows; ++r) at(r, c) -= dot * at(r, other);
      }
    }
    for (index_t r = 0; r < rows; ++r) length += at(r, c) * at(r, c);
    const double inverse = length > 1e-24 * before ? 1.0 / __builtin_sqrt(length) : 0.0;
    for (index_t r = 0; r < rows; ++r) at(r, c) *= inverse;
  }
}

// x as a BF16 number, rounded once.
inline float as_bf16(double x) { return bf16::decode(bf16::encode(x, nearest_even{}, overflow::ieee)); }

}  // namespace detail

// The leading `rank` singular directions of W, by `iterations` rounds of subspace iteration from drawn vectors.
inline low_rank_factors factorize(matrix_view<const float> w, index_t rank, int iterations = 16, random_key key = {}) {
  detail::check_matrix("W", w);
  if (rank < 0 || rank > w.rows || rank > w.cols) {
    detail::fail("rank", "0 to the smaller side of W", std::to_string(rank));
  }
  const auto index = [&](index_t r, index_t c) { return static_cast<std::size_t>(r * rank + c); };
  std::vector<double> left(static_cast<std::size_t>(w.rows * rank)), right(static_cast<std::size_t>(w.cols * rank));
  for (std::size_t i = 0; i < right.size(); ++i) right[i] = static_cast<double>(draw<32>(key, i)) * 0x1p-32 - 0.5;
  detail::orthonormalize(right, w.cols, rank);
  const auto multiply_left = [&] {  // left = W right
    left.assign(left.size(), 0.0);
    for (index_t r = 0; r < w.rows; ++r) {
      for (index_t k = 0; k < w.cols; ++k) {
        for (index_t c = 0; c < rank; ++c) left[index(r, c)] += double{w(r, k)} * right[index(k, c)];
      }
    }
  };
  for (int i = 0; i < iterations; ++i) {
    multiply_left();
    detail::orthonormalize(left, w.rows, rank);
    right.assign(right.size(), 0.0);  // right = W^T left
    for (index_t r = 0; r < w.rows; ++r) {
      for (index_t k = 0; k < w.cols; ++k) {
        for (index_t c = 0; c < rank; ++c) right[index(k, c)] += double{w(r, k)} * left[index(r, c)];
      }
    }
    detail::orthonormalize(right, w.cols, rank);
  }
  multiply_left();
  low_rank_factors f{w.rows, w.cols, rank, std::vector<float>(left.size()), std::vector<float>(right.size())};
  for (std::size_t i = 0; i < left.size(); ++i) f.up[i] = detail::as_bf16(left[i]);
  for (index_t c = 0; c < rank; ++c) {
    for (index_t k = 0; k < w.cols; ++k) {
      f.down[static_cast<std::size_t>(c * w.cols + k)] = detail::as_bf16(right[index(k, c)]);
    }
  }
  return f;
}

// W - up · down, so that the residual takes in what rounding the factors lost.
inline std::vector<float> residual_of(matrix_view<const float> w, const low_rank_factors& f) {
  detail::check_matrix("W", w);
  if (w.rows != f.rows || w.cols != f.cols) {
    detail::fail("shape of W", detail::shape_text(f.rows, f.cols), detail::shape_text(w.rows, w.cols));
  }
  std::vector<float> residual(static_cast<std::size_t>(w.rows * w.cols));
  for (index_t r = 0; r < w.rows; ++r) {
    for (index_t k = 0; k < w.cols; ++k) {
      double sum = double{w(r, k)};
      for (index_t c = 0; c < f.rank; ++c) {
        sum -= double{f.up[static_cast<std::size_t>(r * f.rank + c)]} *
               double{f.down[static_cast<std::size_t>(c * f.cols + k)]};
      }
      residual[static_cast<std::size_t>(r * w.cols + k)] = static_cast<float>(sum);
    }
  }
  return residual;
}

// A weight prepared so, for inference: X and the residual in the schemes `X` and `Residual`.
template <quantization_scheme X, quantization_scheme Residual = X, class Accumulate = vendor>
class low_rank_linear {
 public:
  // `sample` is a sample of the input that smoothing is calibrated on; without rows, nothing is smoothed.
  low_rank_linear(matrix_view<const float> w, index_t rank, matrix_view<const float> sample, double alpha = 0.5) {
    detail::check_matrix("W", w);
    inverse_.assign(static_cast<std::size_t>(w.cols), 1.0f);
    std::vector<float> smoothed(static_cast<std::size_t>(w.rows * w.cols));
    std::vector<float> l(static_cast<std::size_t>(w.cols), 1.0f);
    if (sample.rows > 0) l = smoothing_factors(sample, w, alpha);
    for (index_t r = 0; r < w.rows; ++r) {
      for (index_t k = 0; k < w.cols; ++k) {
        smoothed[static_cast<std::size_t>(r * w.cols + k)] = w(r, k) * l[static_cast<std::size_t>(k)];
      }
    }
    for (std::size_t k = 0; k < l.size(); ++k) inverse_[k] = 1.0f / l[k];
    const matrix_view<const float> m = matrix(smoothed.data(), w.rows, w.cols);
    factors_ = factorize(m, rank);
    const std::vector<float> rest = residual_of(m, factors_);
    residual_ = quantize<Residual>(matrix(rest.data(), w.rows, w.cols));
  }

  const low_rank_factors& factors() const noexcept { return factors_; }
  const quantized<Residual>& residual() const noexcept { return residual_; }
  // 1 / l of each input feature.
  const std::vector<float>& inverse_smoothing() const noexcept { return inverse_; }

  // Y = (X / l) R^T + ((X / l) V^T) U^T: the first product in four bits, the others of BF16 operands.
  template <host_executor Executor>
  void forward(const Executor& executor, matrix_view<const float> x, matrix_view<float> y) const {
    detail::check_matrix("X", x);
    detail::check_matrix("Y", y);
    const index_t tokens = x.rows, rank = factors_.rank;
    if (x.cols != factors_.cols) detail::fail("columns of X", std::to_string(factors_.cols), std::to_string(x.cols));
    if (y.rows != tokens || y.cols != factors_.rows) {
      detail::fail("Y", detail::shape_text(tokens, factors_.rows), detail::shape_text(y.rows, y.cols));
    }
    std::vector<float> smooth(static_cast<std::size_t>(tokens * x.cols)), in_bf16(smooth.size());
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t k = 0; k < x.cols; ++k) {
        const std::size_t i = static_cast<std::size_t>(t * x.cols + k);
        smooth[i] = x(t, k) * inverse_[static_cast<std::size_t>(k)];
        in_bf16[i] = detail::as_bf16(double{smooth[i]});
      }
    }
    const auto qx = quantize<X>(executor, matrix(smooth.data(), tokens, x.cols));
    const std::vector<float> four_bits = gemm<Accumulate>(executor, qx, residual_);

    std::vector<float> middle(static_cast<std::size_t>(tokens * rank));
    std::vector<float> low(static_cast<std::size_t>(tokens * factors_.rows));
    const auto constant = [](const std::vector<float>& m, index_t rows, index_t cols) {
      return matrix_view<const float>{m.data(), rows, cols, cols};
    };
    detail::gemm_f32(executor, constant(in_bf16, tokens, x.cols), constant(factors_.down, rank, x.cols),
                     matrix(middle.data(), tokens, rank), 1.0f);
    for (float& v : middle) v = detail::as_bf16(double{v});
    detail::gemm_f32(executor, constant(middle, tokens, rank), constant(factors_.up, factors_.rows, rank),
                     matrix(low.data(), tokens, factors_.rows), 1.0f);
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t r = 0; r < y.cols; ++r) {
        const std::size_t i = static_cast<std::size_t>(t * y.cols + r);
        y(t, r) = four_bits[i] + low[i];
      }
    }
  }

 private:
  std::vector<float> inverse_;
  low_rank_factors factors_;
  quantized<Residual> residual_;
};

}  // namespace microscale
