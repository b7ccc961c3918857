// The shape of a block: the elements that share one scale.
#pragma once

#include <cstdint>

#include "../number/config.hpp"

namespace microscale {

// `Rows` x `Columns` elements, columns along the reduction dimension K of the GEMM that the operand is for. Either
// a run of N along K, or a square of N x N, which serves both orientations of a weight.
template <int Rows, int Columns>
struct block {
  static_assert(Rows >= 1 && Columns >= 1 && (Rows == 1 || Rows == Columns), "a block is 1 x N along K, or N x N");
  static constexpr int rows = Rows;
  static constexpr int columns = Columns;
  static constexpr int elements = Rows * Columns;
  static constexpr bool is_square = Rows == Columns && Rows > 1;
};

// How much of a block exists: blocks at the edge of a tensor are shorter, never padded. Element i of a block lies
// at row i / columns, column i % columns, whatever the extent.
struct block_extent {
  int rows;
  int columns;
};

template <class Block>
MICROSCALE_HD constexpr block_extent full_extent() noexcept {
  return {Block::rows, Block::columns};
}

template <class Block>
MICROSCALE_HD constexpr bool is_inside(block_extent extent, int i) noexcept {
  return i / Block::columns < extent.rows && i % Block::columns < extent.columns;
}

// What happens to a block that holds a NaN or an infinity.
//   owner     whatever the arithmetic of the scheme's owner does; the default of schemes named after one
//   poison    the block's scale becomes NaN (the largest scale where its format has no NaN), and every element the
//             code of a NaN; the default of MX, of the schemes of this library and of a user's own
//   reject    as poison, and a whole-tensor call reports the lowest such position as an error
//   saturate  an infinity counts as the largest finite number; a NaN is passed over by the block maximum and
//             becomes the code of a NaN itself
enum class nonfinite : std::uint8_t { owner, poison, reject, saturate };

}  // namespace microscale
