// Block scales as tensor cores and their kernels want them: tiles of the grid of blocks, and back to rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../tensor/error.hpp"
#include "../tensor/layout.hpp"
#include "../tensor/view.hpp"

namespace microscale::interop {

//   t128x4  cuBLASLt's VEC16_UE4M3 and VEC32_UE8M0, CUTLASS's Sm1xxBlockScaledBasicChunk: scale_layout::tile_128x4
//   t8x4    FlashInfer and TensorRT-LLM for few rows: tiles of 8 rows by 4 columns, 32 scales each, in row-major order
//           inside a tile and of tiles
enum class scale_tile : std::uint8_t { t128x4, t8x4 };

// The place of scale (row, column) of a grid with `columns` columns.
MICROSCALE_HD constexpr index_t scale_tile_offset(scale_tile tile, index_t row, index_t column,
                                                  index_t columns) noexcept {
  if (tile == scale_tile::t128x4) return tile_128x4_offset(row, column, columns);
  return (row / 8 * ceil_div(columns, index_t{4}) + column / 4) * 32 + row % 8 * 4 + column % 4;
}

// How many scales the tiles of a grid hold, padding included.
MICROSCALE_HD constexpr index_t scale_tile_count(scale_tile tile, index_t rows, index_t columns) noexcept {
  return round_up(rows, tile == scale_tile::t128x4 ? tile_rows : index_t{8}) * round_up(columns, index_t{4});
}

namespace detail {

inline void check_grid(index_t rows, index_t columns, index_t pitch) {
  if (rows < 0 || columns < 0) {
    microscale::detail::fail("grid of scales", "a shape that is not negative",
                             microscale::detail::shape_text(rows, columns));
  }
  if (rows > 1 && pitch < columns) {
    microscale::detail::fail("grid of scales", "a pitch of at least " + std::to_string(columns), std::to_string(pitch));
  }
}

}  // namespace detail

// Scales in rows, `pitch` apart, to tiles: writes scale_tile_count() scales, padding zero.
template <class Scale>
void scales_to_tiles(scale_tile tile, const Scale* in, index_t rows, index_t columns, index_t pitch, Scale* out) {
  detail::check_grid(rows, columns, pitch);
  std::fill_n(out, scale_tile_count(tile, rows, columns), Scale{});
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; ++c) out[scale_tile_offset(tile, r, c, columns)] = in[r * pitch + c];
  }
}

// The inverse: writes rows x columns scales and reads no padding.
template <class Scale>
void scales_from_tiles(scale_tile tile, const Scale* in, index_t rows, index_t columns, Scale* out, index_t pitch) {
  detail::check_grid(rows, columns, pitch);
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; ++c) out[r * pitch + c] = in[scale_tile_offset(tile, r, c, columns)];
  }
}

}  // namespace microscale::interop
