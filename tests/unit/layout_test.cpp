// Scale layouts: a place of its own for every scale, and nothing else in the padding.
#include <microscale/tensor/layout.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <set>

namespace ms = microscale;

TEST_CASE("the 128x4 layout gives every scale a place of its own inside the buffer") {
  for (const std::int64_t rows : {1, 31, 32, 33, 127, 128, 129, 300}) {
    for (const std::int64_t columns : {1, 3, 4, 5, 9}) {
      const std::int64_t count = ms::scale_count(ms::scale_layout::tile_128x4, rows, columns);
      CHECK(count == (rows + 127) / 128 * 128 * ((columns + 3) / 4 * 4));
      std::set<std::int64_t> places;
      bool inside = true;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t place = ms::tile_128x4_offset(r, c, columns);
          inside = inside && place >= 0 && place < count;
          places.insert(place);
        }
      }
      CHECK(inside);
      CHECK(static_cast<std::int64_t>(places.size()) == rows * columns);
    }
  }
}

TEST_CASE("a tile by its digits: row % 32, row / 32 % 4, column % 4, from high to low") {
  // Written out once more, tile by tile, in the order of memory.
  int wrong = 0;
  constexpr std::int64_t rows = 256, columns = 8;
  std::int64_t place = 0;
  for (std::int64_t tile_row = 0; tile_row < 2; ++tile_row) {
    for (std::int64_t tile_column = 0; tile_column < 2; ++tile_column) {
      for (std::int64_t low = 0; low < 32; ++low) {
        for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
          for (std::int64_t c = 0; c < 4; ++c, ++place) {
            const std::int64_t row = tile_row * 128 + quarter * 32 + low, column = tile_column * 4 + c;
            wrong += ms::tile_128x4_offset(row, column, columns) != place;
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(place == rows * columns);
  // Five columns take two tiles a row.
  CHECK(ms::tile_128x4_offset(128, 0, 5) == 1024);
  CHECK(ms::tile_128x4_offset(0, 4, 5) == 512);
}

TEST_CASE("counts: linear without padding, nothing for an empty grid, 64 bits throughout") {
  CHECK(ms::scale_count(ms::scale_layout::linear, 3, 5) == 15);
  CHECK(ms::scale_count(ms::scale_layout::linear, 0, 5) == 0);
  CHECK(ms::scale_count(ms::scale_layout::tile_128x4, 0, 5) == 0);
  CHECK(ms::scale_count(ms::scale_layout::tile_128x4, 5, 0) == 0);
  CHECK(ms::scale_count(ms::scale_layout::linear, 1 << 20, 1 << 20) == std::int64_t{1} << 40);
  CHECK(ms::tile_128x4_offset((std::int64_t{1} << 31) + 1, 2, 4) == (std::int64_t{1} << 31) * 4 + 16 + 2);
}
