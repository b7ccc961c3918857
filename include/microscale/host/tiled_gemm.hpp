// The loops around the tiles of a GEMM: chunks of k, blocks of rows, panels of columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../tensor/executor.hpp"
#include "packed_operand.hpp"

namespace microscale::detail {

// One product, for any range of rows and columns of its output. Parts lays out operands and multiplies tiles:
//   columns()                                        of a tile
//   left_words(rows), right_bytes()                  memory for a chunk of so many rows, and of one panel
//   pack_left(chunk, i, rows, left)                  rows [i, i + rows)
//   pack_right(chunk, panel, packed, right)          `packed` is memory for a panel in packed order
//   prefetch_right(chunk, panel, panels, part, parts) a part of what pack_right will read
//   multiply(tile_place)                             at most left_rows rows
//   by_row()                                         whether there is:
//   multiply_row(tile_place, panel, packed, memory)  one row by one panel that is not laid out; `memory` as for one
struct tile_place {
  index_t chunk;
  const std::int32_t* left;
  index_t row;  // of `left`
  const std::byte* right;
  int rows;
  float alpha;
  float* c;
  index_t c_pitch;
  double* wide;  // where sums wait if they are no floats
};

template <class Parts>
class tiled_gemm {
 public:
  tiled_gemm(const Parts& parts, index_t k, const matrix_view<float>& c, float alpha, bool wide)
      : parts_(parts), c_(c), chunks_(ceil_div(k, gemm_chunk)), alpha_(alpha), wide_(wide) {}

  // Outputs [row, row_end) x [column, column_end), the column a multiple of a tile's. Between chunks sums wait in c, so
  // that a panel is packed once per block of rows; wide ones are finished before the next columns instead.
  void run_range(index_t row, index_t row_end, index_t column, index_t column_end) const {
    const index_t rows = smaller(
        wide_ ? smaller(rows_at_once, left_rows * larger(index_t{1}, 64 / chunks_)) : rows_at_once, row_end - row);
    memory m(parts_, rows, wide_ ? chunks_ : 1, wide_);
    for (index_t i = row; i < row_end; i += rows) {
      const index_t here = smaller(rows, row_end - i);
      if (wide_) {
        for (index_t chunk = 0; chunk < chunks_; ++chunk) parts_.pack_left(chunk, i, here, m.chunk(chunk));
        for (index_t j = column; j < column_end; j += parts_.columns()) {
          for (index_t chunk = 0; chunk < chunks_; ++chunk) tiles(m, chunk, m.chunk(chunk), i, here, j);
          round_wide(m.wide.data(), i, here, j);
        }
      } else {
        for (index_t chunk = 0; chunk < chunks_; ++chunk) {
          parts_.pack_left(chunk, i, here, m.chunk(0));
          for (index_t j = column; j < column_end; j += parts_.columns()) tiles(m, chunk, m.chunk(0), i, here, j);
        }
      }
    }
  }

 private:
  static constexpr index_t rows_at_once = 256;
  static constexpr index_t rows_by_row = 2;  // so few that laying out a panel costs more than it saves

  struct memory {
    index_t left_words;
    aligned_vector<std::int32_t> left;
    aligned_vector<std::byte> right;
    aligned_vector<std::uint8_t> packed;
    aligned_vector<double> wide;

    memory(const Parts& parts, index_t rows, index_t chunks, bool with_wide)
        : left_words(parts.left_words(round_up(rows, left_rows))),
          left(static_cast<std::size_t>(left_words * chunks)),
          right(static_cast<std::size_t>(parts.columns() / panel_columns * parts.right_bytes())),
          packed(static_cast<std::size_t>(parts.packed_bytes())),
          wide(static_cast<std::size_t>(with_wide ? rows * parts.columns() : 0)) {}
    std::int32_t* chunk(index_t i) noexcept { return left.data() + i * left_words; }
  };

  // One tile of columns of one chunk, for `rows` rows from i.
  void tiles(memory& m, index_t chunk, const std::int32_t* left, index_t i, index_t rows, index_t j) const {
    const index_t panel = j / panel_columns, panels = parts_.columns() / panel_columns;
    if (!wide_ && rows <= rows_by_row && parts_.by_row()) {
      for (index_t p = 0; p < smaller(panels, ceil_div(c_.cols - j, panel_columns)); ++p) {
        for (index_t r = 0; r < rows; ++r) {
          multiply_into(
              i + r, j + p * panel_columns, panel_columns, place(m, chunk, left, r, 1),
              [&](const tile_place& t) { parts_.multiply_row(t, panel + p, m.packed.data(), m.right.data()); });
        }
      }
      return;
    }
    for (index_t p = 0; p < panels; ++p) {
      parts_.pack_right(chunk, panel + p, m.packed.data(), m.right.data() + p * parts_.right_bytes());
    }
    for (index_t r = 0; r < rows; r += left_rows) {
      parts_.prefetch_right(chunk, panel + panels, panels, r / left_rows, ceil_div(rows, left_rows));
      const tile_place t = place(m, chunk, left, r, static_cast<int>(smaller(left_rows, rows - r)));
      if (wide_) {
        parts_.multiply(t);
      } else {
        multiply_into(i + r, j, parts_.columns(), t, [&](const tile_place& at) { parts_.multiply(at); });
      }
    }
  }

  tile_place place(memory& m, index_t chunk, const std::int32_t* left, index_t r, int rows) const noexcept {
    return {chunk,          left,     r,
            m.right.data(), rows,     chunk + 1 == chunks_ ? alpha_ : 1.0f,
            nullptr,        c_.pitch, m.wide.data() + (wide_ ? r * parts_.columns() : 0)};
  }

  // multiply(t) where outputs begin at (i, j) and are `width` columns wide, of which only some may be there.
  template <class Multiply>
  void multiply_into(index_t i, index_t j, index_t width, tile_place t, const Multiply& multiply) const {
    const index_t columns = smaller(width, c_.cols - j);
    if (columns == width) {
      t.c = &c_(i, j);
      return multiply(t);
    }
    float tile[left_rows * 2 * panel_columns] = {};
    t.c = tile;
    t.c_pitch = width;
    for (index_t r = 0; t.chunk > 0 && r < t.rows; ++r) {
      for (index_t k = 0; k < columns; ++k) tile[r * width + k] = c_(i + r, j + k);
    }
    multiply(t);
    for (index_t r = 0; r < t.rows; ++r) {
      for (index_t k = 0; k < columns; ++k) c_(i + r, j + k) = tile[r * width + k];
    }
  }

  void round_wide(const double* wide, index_t i, index_t rows, index_t j) const noexcept {
    const index_t columns = smaller(parts_.columns(), c_.cols - j);
    for (index_t r = 0; r < rows; ++r) {
      for (index_t k = 0; k < columns; ++k) {
        c_(i + r, j + k) = fp32::mul(static_cast<float>(wide[r * parts_.columns() + k]), alpha_);
      }
    }
  }

  const Parts& parts_;
  const matrix_view<float>& c_;
  index_t chunks_;
  float alpha_;
  bool wide_;
};

// All of C, then the factors that differ from output to output: alpha_of(i, j), unless `one_alpha` was the only one.
template <class Executor, class Parts, class Alpha>
void tiled_gemm_into(const Executor& executor, const Parts& parts, index_t k, const matrix_view<float>& c, bool wide,
                     bool one_alpha, const Alpha& alpha_of) {
  float alpha = 1.0f;
  if (one_alpha) in_default_environment([&] { alpha = alpha_of(0, 0); });
  const tiled_gemm<Parts> gemm(parts, k, c, alpha, wide);
  constexpr index_t products_per_cost = 64;  // how many of them take as long as an element of other operations
  const bool split_rows = c.rows > c.cols;
  const index_t unit = split_rows ? left_rows : parts.columns();
  const index_t extent = split_rows ? c.rows : c.cols, other = split_rows ? c.cols : c.rows;
  run_ranges(executor, ceil_div(extent, unit), unit * other * k / products_per_cost, [&](index_t first, index_t last) {
    const index_t begin = first * unit, end = smaller(last * unit, extent);
    if (split_rows) return gemm.run_range(begin, end, 0, c.cols);
    gemm.run_range(0, c.rows, begin, end);
  });
  if (one_alpha) return;
  run_ranges(executor, c.rows, c.cols, [&](index_t first, index_t last) {
    for (index_t i = first; i < last; ++i) {
      for (index_t j = 0; j < c.cols; ++j) c(i, j) = fp32::mul(c(i, j), alpha_of(i, j));
    }
  });
}

}  // namespace microscale::detail
