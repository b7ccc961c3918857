// Views: who owns the memory is the caller's business, what it means is said here.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "../block/scheme.hpp"
#include "../number/value.hpp"
#include "error.hpp"
#include "layout.hpp"
#include "packing.hpp"

namespace microscale {

using index_t = std::int64_t;

// A matrix in row-major order: element (r, c) is data[r * pitch + c], pitch >= cols. Trivially copyable, so kernels
// take it by value; T is float, value<bf16> or value<f16>, const for inputs.
template <class T>
struct matrix_view {
  using element_type = T;

  T* data = nullptr;
  index_t rows = 0;
  index_t cols = 0;
  index_t pitch = 0;

  MICROSCALE_HD constexpr T& operator()(index_t r, index_t c) const noexcept { return data[r * pitch + c]; }
  MICROSCALE_HD constexpr bool empty() const noexcept { return rows == 0 || cols == 0; }
  template <std::same_as<const T> U>
  MICROSCALE_HD constexpr operator matrix_view<U>() const noexcept {
    return {data, rows, cols, pitch};
  }
};

template <class C>
concept contiguous_container = requires(C& container) {
  container.data() + container.size();
};

// A view of contiguous memory, or of rows that lie `pitch` elements apart.
template <class T>
constexpr matrix_view<T> matrix(T* data, index_t rows, index_t cols) noexcept {
  return {data, rows, cols, cols};
}
template <class T>
constexpr matrix_view<T> matrix(T* data, index_t rows, index_t cols, index_t pitch) noexcept {
  return {data, rows, cols, pitch};
}
// Of a container with data() and size(), such as a vector, which must hold that many elements, or more, and outlive the
// view.
template <contiguous_container Container>
constexpr auto matrix(Container& container, index_t rows, index_t cols) {
  const auto size = static_cast<index_t>(container.size());
  if (rows < 0 || cols < 0 || (rows > 0 && cols > size / rows)) {
    detail::fail("matrix over a container", std::to_string(size) + " elements at most", detail::shape_text(rows, cols));
  }
  return matrix(container.data(), rows, cols);
}

// What a matrix may hold on the way in and out.
template <class T>
concept matrix_element = std::is_same_v<T, float> || std::is_same_v<T, value<bf16>> || std::is_same_v<T, value<f16>>;

// The same, or const: what a matrix that is only read may hold.
template <class T>
concept readable_element = matrix_element<std::remove_const_t<T>>;

// The element as a float, exactly.
MICROSCALE_HD constexpr float to_float(float x) noexcept { return x; }
template <number_format F>
MICROSCALE_HD constexpr float to_float(value<F> x) noexcept {
  return F::decode(x.code());
}
// A float as the element, rounded to nearest even; beyond the range it becomes infinite, as IEEE 754 says.
template <matrix_element T>
MICROSCALE_HD constexpr T from_float(float x) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, value<bf16>>) {
    // bf16 is the upper half of binary32: encode's result by one addition, whose carry reaches the exponent as it
    // should.
    if (!fp32::is_nan(x)) {
      const std::uint32_t b = fp32::bits(x);
      return T::from_code(static_cast<std::uint16_t>((b + 0x7FFFu + (b >> 16 & 1u)) >> 16));
    }
    return T::from_code(bf16::encode(x));
  } else {
    return T::from_code(T::format::encode(x, nearest_even{}, overflow::ieee));
  }
}

// Which way blocks run.
//   row  along the rows of the input: what the first operand of a GEMM wants
//   col  down its columns: the blocks of the transpose, stored as the transpose, K-major and packed along K, which is
//        what the second operand wants
enum class axis : std::uint8_t { row, col };

// Which elements share one tensor scale: tiles of rows x cols elements as stored, 0 meaning all of them. {} is one
// tensor scale for the whole matrix, {1, 0} one per row. A tile is made of whole blocks.
struct tensor_tile {
  index_t rows = 0;
  index_t cols = 0;

  friend constexpr bool operator==(const tensor_tile&, const tensor_tile&) = default;
};

// A quantized matrix in memory of the caller's: `rows` x `cols` elements as stored, K-major, so blocks run along a
// row. Packed codes of row r begin at codes[r * code_pitch]; the scale of the block at (row, column) of the grid of
// blocks lies at scales[scale_offset(...)]; `datum` points at what the scheme stores of the tensor scale
// (tensor_scale.hpp), one float per tile in row-major order, and is not read by schemes without one. For inputs, S is
// const.
template <class S>
struct quantized_view {
  using scheme_type = std::remove_const_t<S>;
  template <class T>
  using as_stored = std::conditional_t<std::is_const_v<S>, const T, T>;
  using scale_storage = typename scheme_type::scale::storage;

  as_stored<std::uint8_t>* codes = nullptr;
  as_stored<scale_storage>* scales = nullptr;
  as_stored<float>* datum = nullptr;
  index_t rows = 0;
  index_t cols = 0;
  index_t code_pitch = 0;   // bytes from one row of codes to the next
  index_t scale_pitch = 0;  // scales from one row of the grid to the next; linear layout only
  scale_layout layout = scale_layout::linear;
  tensor_tile tile = {};

  MICROSCALE_HD constexpr bool empty() const noexcept { return rows == 0 || cols == 0; }
  // The grid of blocks.
  MICROSCALE_HD constexpr index_t block_rows() const noexcept {
    return ceil_div(rows, index_t{scheme_type::block::rows});
  }
  MICROSCALE_HD constexpr index_t block_cols() const noexcept {
    return ceil_div(cols, index_t{scheme_type::block::columns});
  }
  MICROSCALE_HD constexpr index_t scale_offset(index_t block_row, index_t block_col) const noexcept {
    return layout == scale_layout::linear ? block_row * scale_pitch + block_col
                                          : tile_128x4_offset(block_row, block_col, block_cols());
  }
  MICROSCALE_HD constexpr block_extent extent(index_t block_row, index_t block_col) const noexcept {
    using block = typename scheme_type::block;
    return {static_cast<int>(smaller(index_t{block::rows}, rows - block_row * block::rows)),
            static_cast<int>(smaller(index_t{block::columns}, cols - block_col * block::columns))};
  }
  // The code of element (r, k) and the scale above it.
  MICROSCALE_HD constexpr typename scheme_type::element::storage code(index_t r, index_t k) const noexcept {
    return load_code<typename scheme_type::element>(codes + r * code_pitch, k);
  }
  MICROSCALE_HD constexpr scale_storage scale(index_t r, index_t k) const noexcept {
    return scales[scale_offset(r / scheme_type::block::rows, k / scheme_type::block::columns)];
  }
  // The grid of tensor scales; an empty matrix still has one.
  MICROSCALE_HD constexpr index_t tile_rows() const noexcept {
    return tile.rows == 0 ? 1 : larger(index_t{1}, ceil_div(rows, tile.rows));
  }
  MICROSCALE_HD constexpr index_t tile_cols() const noexcept {
    return tile.cols == 0 ? 1 : larger(index_t{1}, ceil_div(cols, tile.cols));
  }
  MICROSCALE_HD constexpr index_t tile_index(index_t r, index_t k) const noexcept {
    return (tile.rows == 0 ? 0 : r / tile.rows) * tile_cols() + (tile.cols == 0 ? 0 : k / tile.cols);
  }
  // What decoding the elements of tile `index` needs.
  MICROSCALE_HD constexpr tensor_factors factors(index_t index = 0) const noexcept {
    return scheme_type::has_tensor_scale ? scheme_type::from_stored(datum[index]) : tensor_factors{};
  }
  template <std::same_as<const S> U>
  MICROSCALE_HD constexpr operator quantized_view<U>() const noexcept {
    return {codes, scales, datum, rows, cols, code_pitch, scale_pitch, layout, tile};
  }
};

// How much memory a quantized rows x cols matrix (as stored) takes, rows of codes and scales packed tightly.
template <quantization_scheme S>
struct quantized_size {
  index_t code_pitch;
  index_t code_bytes;
  index_t scale_pitch;
  index_t scales;  // a count of S::scale::storage
};

template <quantization_scheme S>
MICROSCALE_HD constexpr quantized_size<S> size_of(index_t rows, index_t cols,
                                                  scale_layout layout = scale_layout::linear) noexcept {
  const index_t block_rows = ceil_div(rows, index_t{S::block::rows});
  const index_t block_cols = ceil_div(cols, index_t{S::block::columns});
  const index_t pitch = packed_bytes(S::element::bits, cols);
  return {pitch, rows * pitch, block_cols, scale_count(layout, block_rows, block_cols)};
}

// The view of a rows x cols matrix in memory that size_of counts: rows of codes and scales lie next to each other. For
// inputs, S is const; `datum` may be null where the scheme has no tensor scale.
template <class S>
MICROSCALE_HD constexpr quantized_view<S> quantized_view_of(
    typename quantized_view<S>::template as_stored<std::uint8_t>* codes,
    typename quantized_view<S>::template as_stored<typename quantized_view<S>::scale_storage>* scales,
    typename quantized_view<S>::template as_stored<float>* datum, index_t rows, index_t cols,
    scale_layout layout = scale_layout::linear, tensor_tile tile = {}) noexcept {
  const auto size = size_of<typename quantized_view<S>::scheme_type>(rows, cols, layout);
  return {codes, scales, datum, rows, cols, size.code_pitch, size.scale_pitch, layout, tile};
}

}  // namespace microscale
