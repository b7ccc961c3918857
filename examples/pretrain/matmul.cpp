#include "matmul.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace pretrain {
namespace {

// A tile of c is held in registers while k runs; `depth` values of k at a time keep the packed
// panels of b in the cache.
constexpr index_t tile_rows = 4;
constexpr index_t tile_columns = 8;
constexpr index_t depth = 256;

// Copies a block of the operand into panels: for each k, the `Width` elements of a tile side by
// side, zeros beyond the edge.
template <index_t Width>
void pack(matrix_view m, std::vector<float>& panels) {
  const index_t rows = (m.rows + Width - 1) / Width * Width;
  panels.resize(static_cast<std::size_t>(rows * m.columns));
  float* out = panels.data();
  for (index_t first = 0; first < m.rows; first += Width) {
    const float* in = m.data + first * m.row_stride;
    if (m.rows - first >= Width && m.column_stride == 1) {
      for (index_t k = 0; k < m.columns; ++k, out += Width)
        for (index_t i = 0; i < Width; ++i) out[i] = in[i * m.row_stride + k];
    } else if (m.rows - first >= Width && m.row_stride == 1) {
      for (index_t k = 0; k < m.columns; ++k, out += Width) std::copy_n(in + k * m.column_stride, Width, out);
    } else {
      for (index_t k = 0; k < m.columns; ++k, out += Width)
        for (index_t i = 0; i < Width; ++i)
          out[i] = first + i < m.rows ? in[i * m.row_stride + k * m.column_stride] : 0.0f;
    }
  }
}

// One tile of c, whole: c = (first ? 0 : c) + a · b over `k_count` values of k. The loops over the
// tile unroll into vector registers, whose lanes run across columns: no sum is reordered.
void multiply_tile_anywhere(const float* a, const float* b, index_t k_count, float* c, index_t c_stride, bool first) {
  float tile[tile_rows][tile_columns] = {};
  if (!first)
    for (index_t i = 0; i < tile_rows; ++i)
      for (index_t j = 0; j < tile_columns; ++j) tile[i][j] = c[i * c_stride + j];
  for (index_t k = 0; k < k_count; ++k)
    for (index_t i = 0; i < tile_rows; ++i)
      for (index_t j = 0; j < tile_columns; ++j) tile[i][j] += a[k * tile_rows + i] * b[k * tile_columns + j];
  for (index_t i = 0; i < tile_rows; ++i)
    for (index_t j = 0; j < tile_columns; ++j) c[i * c_stride + j] = tile[i][j];
}

using tile_function = void (*)(const float*, const float*, index_t, float*, index_t, bool);

#if defined(__x86_64__) && defined(__GNUC__)

// The same operations in the same order, a whole row of the tile at a time, for processors that can:
// this program is built for any x86-64, and so the choice falls when it starts.
__attribute__((target("avx2"))) void multiply_tile_avx2(const float* a, const float* b, index_t k_count, float* c,
                                                        index_t c_stride, bool first) {
  using vector = float __attribute__((vector_size(sizeof(float) * static_cast<std::size_t>(tile_columns))));
  vector tile[tile_rows] = {};
  if (!first)
    for (index_t i = 0; i < tile_rows; ++i) std::memcpy(&tile[i], c + i * c_stride, sizeof(vector));
  for (index_t k = 0; k < k_count; ++k) {
    vector row;
    std::memcpy(&row, b + k * tile_columns, sizeof(vector));
#pragma GCC unroll 4
    for (index_t i = 0; i < tile_rows; ++i) tile[i] += a[k * tile_rows + i] * row;
  }
  for (index_t i = 0; i < tile_rows; ++i) std::memcpy(c + i * c_stride, &tile[i], sizeof(vector));
}

const tile_function multiply_tile = __builtin_cpu_supports("avx2") ? multiply_tile_avx2 : multiply_tile_anywhere;

#else
constexpr tile_function multiply_tile = multiply_tile_anywhere;
#endif

// The same for a tile that c cuts off: by way of a whole one.
void multiply_edge(const float* a, const float* b, index_t k_count, float* c, index_t c_stride, index_t rows,
                   index_t columns, bool first) {
  float tile[tile_rows * tile_columns] = {};
  for (index_t i = 0; i < rows && !first; ++i) std::copy_n(c + i * c_stride, columns, tile + i * tile_columns);
  multiply_tile(a, b, k_count, tile, tile_columns, false);
  for (index_t i = 0; i < rows; ++i) std::copy_n(tile + i * tile_columns, columns, c + i * c_stride);
}

}  // namespace

void matmul(matrix_view a, matrix_view b, float* c, index_t c_stride) {
  static thread_local std::vector<float> a_panels, b_panels;
  for (index_t k = 0; k < a.columns; k += depth) {
    const index_t k_count = std::min(depth, a.columns - k);
    pack<tile_columns>(b.block(k, 0, k_count, b.columns).transposed(), b_panels);
    pack<tile_rows>(a.block(0, k, a.rows, k_count), a_panels);
    for (index_t row = 0; row < a.rows; row += tile_rows) {
      const index_t rows = std::min(tile_rows, a.rows - row);
      for (index_t column = 0; column < b.columns; column += tile_columns) {
        const index_t columns = std::min(tile_columns, b.columns - column);
        const float* a_panel = a_panels.data() + row * k_count;
        const float* b_panel = b_panels.data() + column * k_count;
        float* tile = c + row * c_stride + column;
        if (rows == tile_rows && columns == tile_columns)
          multiply_tile(a_panel, b_panel, k_count, tile, c_stride, k == 0);
        else
          multiply_edge(a_panel, b_panel, k_count, tile, c_stride, rows, columns, k == 0);
      }
    }
  }
}

void matmul(thread_pool& pool, matrix_view a, matrix_view b, float* c, index_t c_stride) {
  const index_t tiles = (a.rows + tile_rows - 1) / tile_rows;
  const index_t rows = std::max<index_t>(1, (tiles + pool.size() - 1) / pool.size()) * tile_rows;
  for_each_piece(pool, a.rows, rows, [&](index_t begin, index_t end) {
    matmul(a.block(begin, 0, end - begin, a.columns), b, c + begin * c_stride, c_stride);
  });
}

}  // namespace pretrain
