// Attention whose large products are of four-bit operands (arXiv 2607.04422): Q K^T, and backward the two products of
// dS, in a scheme; P V, and backward those of dO, of BF16 operands. One head; softmax and sums in FP32.
//
// The exponential is the C library's, so results are not promised to the bit across machines; they do not depend on
// threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../host/vendor_gemm.hpp"
#include "../tensor/quantized.hpp"

namespace microscale {

// What a call of attention decides.
struct attention_options {
  bool causal = true;  // a query sees keys up to its own position
  any_rounding gradient_rounding = nearest_even{};
};

namespace detail {

inline std::vector<float> rounded_to_bf16(matrix_view<const float> m, axis along = axis::row) {
  std::vector<float> out(static_cast<std::size_t>(m.rows * m.cols));
  for (index_t r = 0; r < m.rows; ++r) {
    for (index_t c = 0; c < m.cols; ++c) {
      out[static_cast<std::size_t>(along == axis::row ? r * m.cols + c : c * m.rows + r)] =
          to_float(from_float<value<bf16>>(m(r, c)));
    }
  }
  return out;
}

// C = A B^T of BF16 operands, A and B K-major.
template <host_executor Executor>
void product_bf16(const Executor& executor, const std::vector<float>& a, const std::vector<float>& b, index_t k,
                  matrix_view<float> c) {
  gemm_f32(executor, matrix_view<const float>{a.data(), c.rows, k, k}, matrix_view<const float>{b.data(), c.cols, k, k},
           c, 1.0f);
}

inline void check_attention(matrix_view<const float> q, matrix_view<const float> k, matrix_view<const float> v) {
  check_matrix("Q", q);
  check_matrix("K", k);
  check_matrix("V", v);
  if (k.cols != q.cols) fail("columns of K", std::to_string(q.cols), std::to_string(k.cols));
  if (v.rows != k.rows) fail("rows of V", std::to_string(k.rows), std::to_string(v.rows));
}

}  // namespace detail

// O = softmax(Q K^T / sqrt(d)) V; Q is queries x d, K keys x d, V keys x e, O queries x e. Returns the probabilities P,
// queries x keys, in BF16, which the backward pass wants.
template <quantization_scheme S = nvfp4, class Accumulate = vendor, host_executor Executor>
std::vector<float> attention_forward(const Executor& executor, matrix_view<const float> q, matrix_view<const float> k,
                                     matrix_view<const float> v, matrix_view<float> o,
                                     const attention_options& options = {}) {
  detail::check_attention(q, k, v);
  detail::check_matrix("O", o);
  if (o.rows != q.rows || o.cols != v.cols) {
    detail::fail("shape of O", detail::shape_text(q.rows, v.cols), detail::shape_text(o.rows, o.cols));
  }
  std::vector<float> p = gemm<Accumulate>(executor, quantize<S>(executor, q), quantize<S>(executor, k));
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(q.cols));
  detail::run_ranges(executor, q.rows, k.rows, [&](index_t first, index_t last) {
    for (index_t i = first; i < last; ++i) {
      float* row = p.data() + i * k.rows;
      const index_t seen = options.causal ? smaller(k.rows, i + 1) : k.rows;
      float largest = 0.0f, sum = 0.0f;
      for (index_t j = 0; j < seen; ++j) largest = j == 0 || row[j] > largest ? row[j] : largest;
      for (index_t j = 0; j < k.rows; ++j) {
        row[j] = j < seen ? __builtin_expf((row[j] - largest) * scale) : 0.0f;
        sum += row[j];
      }
      for (index_t j = 0; j < seen; ++j) row[j] = to_float(from_float<value<bf16>>(row[j] / sum));
    }
  });
  detail::product_bf16(executor, p, detail::rounded_to_bf16(v, axis::col), k.rows, o);
  return p;
}

// dQ = dS K and dK = dS^T Q in the scheme, dS = P * (dP - rowsum(dP * P)) / sqrt(d); dV = P^T dO and dP = dO V^T of
// BF16 operands.
template <quantization_scheme S = nvfp4, class Accumulate = vendor, host_executor Executor>
void attention_backward(const Executor& executor, matrix_view<const float> q, matrix_view<const float> k,
                        matrix_view<const float> v, const std::vector<float>& p, matrix_view<const float> d_o,
                        matrix_view<float> dq, matrix_view<float> dk, matrix_view<float> dv,
                        const attention_options& options = {}) {
  detail::check_attention(q, k, v);
  detail::check_matrix("dO", d_o);
  detail::check_matrix("dQ", dq);
  detail::check_matrix("dK", dk);
  detail::check_matrix("dV", dv);
  detail::check_same_shape(q, dq);
  detail::check_same_shape(k, dk);
  detail::check_same_shape(v, dv);
  if (static_cast<index_t>(p.size()) != q.rows * k.rows) {
    detail::fail("probabilities", std::to_string(q.rows * k.rows), std::to_string(p.size()));
  }
  if (d_o.rows != q.rows || d_o.cols != v.cols) {
    detail::fail("shape of dO", detail::shape_text(q.rows, v.cols), detail::shape_text(d_o.rows, d_o.cols));
  }
  const matrix_view<const float> probabilities{p.data(), q.rows, k.rows, k.rows};
  detail::product_bf16(executor, detail::rounded_to_bf16(probabilities, axis::col),
                       detail::rounded_to_bf16(d_o, axis::col), q.rows, dv);
  std::vector<float> ds(p.size());
  detail::product_bf16(executor, detail::rounded_to_bf16(d_o), detail::rounded_to_bf16(v), v.cols,
                       matrix(ds.data(), q.rows, k.rows));
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(q.cols));
  for (index_t i = 0; i < q.rows; ++i) {
    float* row = ds.data() + i * k.rows;
    float sum = 0.0f;
    for (index_t j = 0; j < k.rows; ++j) sum += row[j] * probabilities(i, j);
    for (index_t j = 0; j < k.rows; ++j) row[j] = probabilities(i, j) * (row[j] - sum) * scale;
  }
  const matrix_view<const float> ds_view{ds.data(), q.rows, k.rows, k.rows};
  const auto product = [&](axis along, matrix_view<const float> right, matrix_view<float> out) {
    quantize_options left;
    left.axis = along;
    left.rounding = options.gradient_rounding;
    quantize_options down;
    down.axis = axis::col;
    const std::vector<float> c =
        gemm<Accumulate>(executor, quantize<S>(executor, ds_view, left), quantize<S>(executor, right, down));
    for (index_t r = 0; r < out.rows; ++r) {
      for (index_t j = 0; j < out.cols; ++j) out(r, j) = c[static_cast<std::size_t>(r * out.cols + j)];
    }
  };
  product(axis::row, k, dq);
  product(axis::col, q, dk);
}

}  // namespace microscale
