// Matrix products in FP32 for what stays in high precision: attention, the output head, and the
// linear layers of the unquantized recipes.
#pragma once

#include "parallel.hpp"

namespace pretrain {

// A matrix to read, given by its strides in elements, so that a transpose is only another view.
struct matrix_view {
  const float* data;
  index_t rows, columns;
  index_t row_stride;
  index_t column_stride = 1;

  [[nodiscard]] matrix_view transposed() const { return {data, columns, rows, column_stride, row_stride}; }
  [[nodiscard]] matrix_view block(index_t row, index_t column, index_t row_count, index_t column_count) const {
    return {data + row * row_stride + column * column_stride, row_count, column_count, row_stride, column_stride};
  }
};

// c = a · b, with c row-major, its rows `c_stride` elements apart. Every element is the sum of its
// products in the order of k, each product rounded and then added: the same bits on every machine.
void matmul(matrix_view a, matrix_view b, float* c, index_t c_stride);

// The same on all threads of the pool.
void matmul(thread_pool& pool, matrix_view a, matrix_view b, float* c, index_t c_stride);

}  // namespace pretrain
