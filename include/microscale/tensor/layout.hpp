// Where the scale of a block lies in memory.
#pragma once

#include <cstdint>

#include "../number/bits.hpp"

namespace microscale {

//   linear      row-major over the grid of blocks
//   tile_128x4  the layout of Blackwell's block-scaled tensor cores (cuBLASLt's VEC16_UE4M3 and VEC32_UE8M0): tiles of
//               128 rows by 4 columns of the grid, 512 scales each, tiles in row-major order, padding zero
enum class scale_layout : std::uint8_t { linear, tile_128x4 };

inline constexpr std::int64_t tile_rows = 128;
inline constexpr std::int64_t tile_columns = 4;
inline constexpr std::int64_t tile_size = tile_rows * tile_columns;

// The place of scale (row, column) of a grid in the 128x4 layout, of which `tiles` tiles make a row. Inside a tile,
// rows that lie 32 apart are neighbours: (row % 32) * 16 + (row / 32 % 4) * 4 + column % 4.
MICROSCALE_HD constexpr std::int64_t tile_128x4_place(std::int64_t row, std::int64_t column,
                                                      std::int64_t tiles) noexcept {
  const std::int64_t tile = row / tile_rows * tiles + column / tile_columns;
  return tile * tile_size + row % 32 * 16 + row % tile_rows / 32 * 4 + column % tile_columns;
}
// The same for a grid with `columns` columns.
MICROSCALE_HD constexpr std::int64_t tile_128x4_offset(std::int64_t row, std::int64_t column,
                                                       std::int64_t columns) noexcept {
  return tile_128x4_place(row, column, ceil_div(columns, tile_columns));
}

// How many scales a layout stores for a grid, padding included.
MICROSCALE_HD constexpr std::int64_t scale_count(scale_layout layout, std::int64_t rows,
                                                 std::int64_t columns) noexcept {
  return layout == scale_layout::linear ? rows * columns : round_up(rows, tile_rows) * round_up(columns, tile_columns);
}

}  // namespace microscale
