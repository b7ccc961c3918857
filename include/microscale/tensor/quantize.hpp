// Quantizing and dequantizing whole matrices: the sequential statement, in terms of the block functions.
//
// Every function takes any shape (empty, one row, one column, odd counts, tails) and any data. Blocks at the edge are
// shorter. Shapes and pointers are checked first and reported by microscale::error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "../block/schemes.hpp"
#include "executor.hpp"
#include "options.hpp"

namespace microscale {

namespace detail {

// The largest |x| over rows [first, last), NaN passed over; 0 for none.
template <class T>
running_amax amax_of_rows(matrix_view<T> in, index_t first, index_t last) {
  running_amax amax;
  for (index_t r = first; r < last; ++r) {
    for (index_t c = 0; c < in.cols; ++c) amax.see(to_float(in(r, c)));
  }
  return amax;
}

// The block at (block_row, block_col) of the stored grid, from the input as it lies.
template <quantization_scheme S, class T>
void gather_block(matrix_view<T> in, axis along, index_t row, index_t k, block_extent extent,
                  float (&x)[S::block::elements]) {
  // No extent is larger than a block; g++ 13 warns of one that might be.
  const int rows = smaller(extent.rows, S::block::rows), columns = smaller(extent.columns, S::block::columns);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      x[i * S::block::columns + j] = to_float(along == axis::row ? in(row + i, k + j) : in(k + j, row + i));
    }
  }
}

template <quantization_scheme S, rounding_mode R>
quantized_block<S> quantize_block_at(const float (&x)[S::block::elements], const tensor_factors& t, R rounding,
                                     index_t row, index_t k, index_t k_extent, block_extent extent) {
  if constexpr (stochastic_mode<R>) {
    const block_draws<R, typename S::block> draws(rounding, static_cast<std::uint64_t>(row),
                                                  static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(k_extent));
    return quantize_block<S>(x, t, rounding, draws, extent);
  } else {
    return quantize_block<S>(x, t, rounding, no_draws{}, extent);
  }
}

// Writes a block's codes and scale to where the stored grid has it.
template <quantization_scheme S>
void store_block(const quantized_view<S>& out, const quantized_block<S>& q, index_t block_row, index_t block_col) {
  using block = typename S::block;
  const block_extent extent = out.extent(block_row, block_col);
  out.scales[out.scale_offset(block_row, block_col)] = q.scale;
  for (int i = 0; i < extent.rows; ++i) {
    store_codes<typename S::element>(
        out.codes + (block_row * block::rows + i) * out.code_pitch + block_col * block::columns * S::element::bits / 8,
        q.codes + i * block::columns, extent.columns);
  }
}

// The block at (block_row, block_col) of the stored grid.
template <quantization_scheme S, class T, rounding_mode R>
void quantize_one_block(matrix_view<T> in, const quantized_view<S>& out, const tensor_factors& t, axis along,
                        const R& rounding, index_t block_row, index_t block_col) {
  using block = typename S::block;
  float x[block::elements] = {};
  const index_t row = block_row * block::rows, k = block_col * block::columns;
  const block_extent extent = out.extent(block_row, block_col);
  gather_block<S>(in, along, row, k, extent, x);
  store_block(out, quantize_block_at<S>(x, t, rounding, row, k, out.cols, extent), block_row, block_col);
}

// f(block row, block column, tensor factors) for the blocks of block rows [first, last) of a stored grid; factors_at(i)
// gives the factors of tile i.
template <class S, class FactorsAt, class F>
void for_blocks(const quantized_view<S>& q, const FactorsAt& factors_at, index_t first, index_t last, const F& f) {
  using block = typename quantized_view<S>::scheme_type::block;
  index_t tile = -1;
  tensor_factors t;
  for (index_t br = first; br < last; ++br) {
    for (index_t bc = 0; bc < q.block_cols(); ++bc) {
      if (const index_t here = q.tile_index(br * block::rows, bc * block::columns); here != tile) {
        tile = here;
        t = factors_at(tile);
      }
      f(br, bc, t);
    }
  }
}

// Block rows [first, last) of the stored grid, with the factors of each tile.
template <quantization_scheme S, class T, class FactorsAt, rounding_mode R>
void quantize_block_rows(matrix_view<T> in, quantized_view<S> out, const FactorsAt& factors_at, axis along, R rounding,
                         index_t first, index_t last) {
  for_blocks(out, factors_at, first, last, [&](index_t br, index_t bc, const tensor_factors& t) {
    quantize_one_block(in, out, t, along, rounding, br, bc);
  });
}

template <class S>
void clear_scale_padding(const quantized_view<S>& out) {
  if (out.layout == scale_layout::linear) return;
  const index_t count = scale_count(out.layout, out.block_rows(), out.block_cols());
  for (index_t i = 0; i < count; ++i) out.scales[i] = 0;
}

template <quantization_scheme S, class T>
void refuse_nonfinite(matrix_view<T> in) {
  if constexpr (S::policy == nonfinite::reject) {
    for (index_t r = 0; r < in.rows; ++r) {
      for (index_t c = 0; c < in.cols; ++c) {
        if (!fp32::is_finite(to_float(in(r, c)))) {
          fail("input", "finite numbers",
               "a NaN or an infinity at row " + std::to_string(r) + ", column " + std::to_string(c));
        }
      }
    }
  }
}

// The block at (block_row, block_col) of a dequantization; with axis::col the stored matrix is the transpose of `out`.
template <class S, matrix_element T>
void dequantize_one_block(const quantized_view<S>& in, matrix_view<T> out, const tensor_factors& t, axis along,
                          index_t block_row, index_t block_col) {
  using scheme = typename quantized_view<S>::scheme_type;
  using block = typename scheme::block;
  const block_extent extent = in.extent(block_row, block_col);
  const auto scale = in.scales[in.scale_offset(block_row, block_col)];
  for (int i = 0; i < extent.rows; ++i) {
    for (int j = 0; j < extent.columns; ++j) {
      const index_t r = block_row * block::rows + i, k = block_col * block::columns + j;
      const T y = from_float<T>(decode_element<scheme>(in.code(r, k), scale, t));
      (along == axis::row ? out(r, k) : out(k, r)) = y;
    }
  }
}

// Block rows [first, last) of a dequantization.
template <class S, matrix_element T>
void dequantize_block_rows(quantized_view<S> in, matrix_view<T> out, axis along, index_t first, index_t last) {
  for_blocks(
      in, [&](index_t tile) { return in.factors(tile); }, first, last,
      [&](index_t br, index_t bc, const tensor_factors& t) { dequantize_one_block(in, out, t, along, br, bc); });
}

// What decoding gets to see of the factors that data was quantized under.
template <quantization_scheme S>
tensor_factors factors_as_stored(const tensor_factors& t) noexcept {
  return S::has_tensor_scale ? S::from_stored(S::stored(t)) : tensor_factors{};
}

// One block of a fake quantization, and block rows [first, last) of it.
template <quantization_scheme S, class T, matrix_element U, rounding_mode R>
void fake_quantize_one_block(matrix_view<T> in, matrix_view<U> out, const tensor_factors& t, const tensor_factors& back,
                             axis along, const R& rounding, index_t block_row, index_t block_col) {
  using block = typename S::block;
  const quantized_view<S> grid{.rows = along == axis::row ? in.rows : in.cols,
                               .cols = along == axis::row ? in.cols : in.rows};
  float x[block::elements] = {};
  const index_t row = block_row * block::rows, k = block_col * block::columns;
  const block_extent extent = grid.extent(block_row, block_col);
  gather_block<S>(in, along, row, k, extent, x);
  const auto q = quantize_block_at<S>(x, t, rounding, row, k, grid.cols, extent);
  dequantize_block<S>(q, back, x, extent);
  for (int i = 0; i < extent.rows; ++i) {
    for (int j = 0; j < extent.columns; ++j) {
      const U y = from_float<U>(x[i * block::columns + j]);
      (along == axis::row ? out(row + i, k + j) : out(k + j, row + i)) = y;
    }
  }
}
template <quantization_scheme S, class T, matrix_element U, rounding_mode R>
void fake_quantize_block_rows(matrix_view<T> in, matrix_view<U> out, const tensor_factors& t, axis along, R rounding,
                              index_t first, index_t last) {
  const index_t block_cols = ceil_div(along == axis::row ? in.cols : in.rows, index_t{S::block::columns});
  const tensor_factors back = factors_as_stored<S>(t);
  for (index_t br = first; br < last; ++br) {
    for (index_t bc = 0; bc < block_cols; ++bc) fake_quantize_one_block<S>(in, out, t, back, along, rounding, br, bc);
  }
}

// How the ranges of an operation are done by the statement of it. An executor may bring its own, with the same bits:
// a member ranges() that returns a type with these functions, derived from this one where it has nothing faster.
struct plain_ranges {
  template <class T>
  float amax(matrix_view<T> in, index_t first, index_t last) const {
    return amax_of_rows(in, first, last).ignoring_nan();
  }
  template <quantization_scheme S, class T, class FactorsAt, rounding_mode R>
  void quantize(matrix_view<T> in, quantized_view<S> out, const FactorsAt& factors_at, axis along, const R& rounding,
                index_t first, index_t last) const {
    quantize_block_rows(in, out, factors_at, along, rounding, first, last);
  }
  template <class S, matrix_element T>
  void dequantize(quantized_view<S> in, matrix_view<T> out, axis along, index_t first, index_t last) const {
    dequantize_block_rows(in, out, along, first, last);
  }
  template <quantization_scheme S, class T, matrix_element U, rounding_mode R>
  void fake_quantize(matrix_view<T> in, matrix_view<U> out, const tensor_factors& t, axis along, const R& rounding,
                     index_t first, index_t last) const {
    fake_quantize_block_rows<S>(in, out, t, along, rounding, first, last);
  }
  // Whether rounding R is worth an instantiation of its own.
  template <quantization_scheme S, class T, rounding_mode R>
  static constexpr bool has_kernel = false;
};

template <host_executor Executor>
auto ranges_of(const Executor& executor) {
  if constexpr (requires { executor.ranges(); }) {
    return executor.ranges();
  } else {
    return plain_ranges{};
  }
}

// The largest of the magnitudes that f(first, last) gives for an executor's ranges of [0, count).
template <host_executor Executor, class F>
float largest_of_ranges(const Executor& executor, index_t count, index_t cost, const F& f) {
  std::atomic<std::uint32_t> largest{0};  // magnitudes are ordered as their bits
  run_ranges(executor, count, cost, [&](index_t first, index_t last) {
    const std::uint32_t m = fp32::bits(f(first, last));
    std::uint32_t seen = largest.load();
    while (seen < m && !largest.compare_exchange_weak(seen, m)) {
    }
  });
  return fp32::from_bits(largest.load());
}

}  // namespace detail

// max |x| over the elements that are not NaN, 0 where there is none: the reference of current tensor scaling.
template <host_executor Executor, readable_element T>
float amax(const Executor& executor, matrix_view<T> in) {
  detail::check_matrix("input", in);
  return detail::largest_of_ranges(executor, in.rows, in.cols, [&](index_t first, index_t last) {
    return detail::ranges_of(executor).amax(in, first, last);
  });
}

namespace detail {

// The reference of a tensor, or of one tile of it: the one given, or its own amax.
template <quantization_scheme S, host_executor Executor, class T>
float resolve_reference(const Executor& executor, matrix_view<T> in, const float* given) {
  float reference = given != nullptr ? *given : amax(executor, in);
  if (given == nullptr && S::policy == nonfinite::saturate) reference = finite_or_nan(reference);
  return checked_reference<S>(reference);
}

// Throws what options can be refused for, and takes the amax where no reference is given. With one tensor scale the
// options then point at it, in `own`; with several, each tile takes its own later. Returns the target.
template <quantization_scheme S, host_executor Executor, class T>
int resolve_options(const Executor& executor, matrix_view<T> in, index_t tiles, quantize_options& options, float& own) {
  const int target = checked_target<S>(options.target);
  if (!S::has_tensor_scale || tiles == 0) return target;
  if (options.reference != nullptr) {
    for (index_t i = 0; i < tiles; ++i) checked_reference<S>(options.reference[i]);
    return target;
  }
  own = resolve_reference<S>(executor, in, nullptr);  // the largest of any tile, too
  if (tiles == 1) options.reference = &own;
  return target;
}
template <class S>
index_t count_tiles(const quantized_view<S>& out) noexcept {
  return S::has_tensor_scale ? out.tile_rows() * out.tile_cols() : 0;
}

template <quantization_scheme S>
tensor_factors factors_in_default_environment(float reference, int target) {
  tensor_factors t;
  in_default_environment([&] { t = S::factors(reference, target); });
  return t;
}

// The part of `in` that becomes tile (i, j) of `out`.
template <class T, class S>
matrix_view<T> tile_of(matrix_view<T> in, const quantized_view<S>& out, axis along, index_t i, index_t j) {
  const index_t height = out.tile.rows == 0 ? out.rows : out.tile.rows;
  const index_t width = out.tile.cols == 0 ? out.cols : out.tile.cols;
  const index_t r = i * height, k = j * width;
  const index_t rows = smaller(height, out.rows - r), cols = smaller(width, out.cols - k);
  if (in.empty()) return in;  // no memory to point into
  return along == axis::row ? matrix_view<T>{in.data + r * in.pitch + k, rows, cols, in.pitch}
                            : matrix_view<T>{in.data + k * in.pitch + r, cols, rows, in.pitch};
}

// Calls f with the rounding as a type where it is to nearest or the ranges have a kernel for it, and as a
// chosen_rounding otherwise: one instantiation for all modes that are nobody's hot path.
template <class Ranges, quantization_scheme S, class T, class F>
void with_rounding(const any_rounding& rounding, F&& f) {
  if (const auto* nearest = std::get_if<nearest_even>(&rounding)) return f(*nearest);
  if constexpr (Ranges::template has_kernel<S, T, stochastic_midpoint8>) {
    if (const auto* drawn = std::get_if<stochastic_midpoint8>(&rounding)) return f(*drawn);
  }
  f(chosen_rounding(rounding));
}

}  // namespace detail

// Quantizes `in` into the caller's memory, with a rounding mode of any type, also one of your own; options.rounding is
// not read. With axis::row, `out` has the shape of `in`; with axis::col, that of its transpose. Writes every code,
// every scale (padding included) and the datum of the tensor scale. Under nonfinite::reject, throws before writing
// anything if the input holds a NaN or an infinity.
template <host_executor Executor, readable_element T, quantization_scheme S, rounding_mode R>
void quantize_with(const Executor& executor, matrix_view<T> in, quantized_view<S> out, R rounding,
                   quantize_options options = {}) {
  detail::check_matrix("input", in);
  detail::check_quantized("output", out);
  detail::check_stored_shape(in, out, options.axis);
  detail::refuse_nonfinite<S>(in);
  const index_t tiles = detail::count_tiles(out);
  float own = 0.0f;
  const int target = detail::resolve_options<S>(executor, in, tiles, options, own);
  // With several tensor scales, `datum` holds the references until the blocks are done.
  tensor_factors whole;
  if (tiles == 1) {
    whole = detail::factors_in_default_environment<S>(detail::checked_reference<S>(*options.reference), target);
  }
  if (tiles > 1) {
    for (index_t i = 0; i < tiles; ++i) {
      const auto part = detail::tile_of(in, out, options.axis, i / out.tile_cols(), i % out.tile_cols());
      const float* given = options.reference != nullptr ? options.reference + i : nullptr;
      out.datum[i] = detail::resolve_reference<S>(executor, part, given);
    }
  }
  const auto factors_at = [&](index_t tile) { return tiles > 1 ? S::factors(out.datum[tile], target) : whole; };

  detail::clear_scale_padding(out);
  detail::run_ranges(executor, out.block_rows(), S::block::rows * out.cols, [&](index_t first, index_t last) {
    detail::ranges_of(executor).quantize(in, out, factors_at, options.axis, rounding, first, last);
  });
  if (options.amax != nullptr) *options.amax = amax(executor, in);
  if constexpr (S::has_tensor_scale) {
    for (index_t i = 0; i < tiles; ++i) {
      out.datum[i] = S::stored(tiles == 1 ? whole : detail::factors_in_default_environment<S>(out.datum[i], target));
    }
  }
}

// The same with the rounding mode that the options name. Host executors need no workspace.
template <host_executor Executor, readable_element T, quantization_scheme S>
void quantize_into(const Executor& executor, matrix_view<T> in, quantized_view<S> out,
                   const quantize_options& options = {}, std::span<std::byte> /*workspace*/ = {}) {
  using ranges = decltype(detail::ranges_of(executor));
  detail::with_rounding<ranges, S, T>(options.rounding,
                                      [&](auto rounding) { quantize_with(executor, in, out, rounding, options); });
}

// How many bytes of workspace quantize_into wants.
template <quantization_scheme S, host_executor Executor, class T>
constexpr std::size_t quantize_workspace(const Executor&, matrix_view<T>, const quantize_options& = {}) {
  return 0;
}

// Decodes into the caller's memory. With axis::row, `out` has the shape of `in` as stored; with axis::col, that of its
// transpose: the orientation that was quantized with axis::col.
template <host_executor Executor, class S, matrix_element T>
void dequantize_into(const Executor& executor, quantized_view<S> in, matrix_view<T> out, axis along = axis::row) {
  detail::check_quantized("input", in);
  detail::check_matrix("output", out);
  detail::check_stored_shape(out, in, along);
  using scheme = typename quantized_view<S>::scheme_type;
  detail::run_ranges(executor, in.block_rows(), scheme::block::rows * in.cols, [&](index_t first, index_t last) {
    detail::ranges_of(executor).dequantize(in, out, along, first, last);
  });
}

// Quantize, then dequantize, without storing codes, under one tensor scale; `out` has the shape of `in` whatever the
// axis, and may be the same memory.
template <quantization_scheme S, host_executor Executor, readable_element T, matrix_element U>
void fake_quantize_into(const Executor& executor, matrix_view<T> in, matrix_view<U> out,
                        quantize_options options = {}) {
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  detail::refuse_nonfinite<S>(in);
  float own = 0.0f;
  const int target = detail::resolve_options<S>(executor, in, 1, options, own);
  tensor_factors t;
  if constexpr (S::has_tensor_scale) {
    t = detail::factors_in_default_environment<S>(detail::checked_reference<S>(*options.reference), target);
  }
  if (options.amax != nullptr) *options.amax = amax(executor, in);  // the output may be the same memory
  const bool along_rows = options.axis == axis::row;
  const index_t block_rows = ceil_div(along_rows ? in.rows : in.cols, index_t{S::block::rows});
  using ranges = decltype(detail::ranges_of(executor));
  detail::with_rounding<ranges, S, T>(options.rounding, [&](auto rounding) {
    detail::run_ranges(
        executor, block_rows, S::block::rows * (along_rows ? in.cols : in.rows), [&](index_t first, index_t last) {
          detail::ranges_of(executor).template fake_quantize<S>(in, out, t, options.axis, rounding, first, last);
        });
  });
}

namespace detail {

// Looks at the arguments of the second of two calls, that for the columns, before the first writes, and takes its amax
// for it. `in` is what the second quantizes.
template <quantization_scheme S, host_executor Executor, class T>
void prepare_second(const Executor& executor, matrix_view<T> in, index_t tiles, quantize_options& row,
                    quantize_options& col, float& own) {
  row.axis = axis::row;
  col.axis = axis::col;
  if (col.reference != nullptr && col.reference == row.amax) return;  // which the first call is to write
  refuse_nonfinite<S>(in);
  resolve_options<S>(executor, in, tiles, col, own);
}

// The same where both quantize `in`: the amax is that of the first as well where no reference is given.
template <quantization_scheme S, host_executor Executor, class T>
void prepare_both(const Executor& executor, matrix_view<T> in, index_t row_tiles, index_t col_tiles,
                  quantize_options& row, quantize_options& col, float& own) {
  const bool shares = S::has_tensor_scale && row.reference == nullptr && col.reference == nullptr;
  prepare_second<S>(executor, in, col_tiles, row, col, own);
  if (shares && row_tiles == 1 && col_tiles == 1) row.reference = &own;
}

}  // namespace detail

// Quantizes along the rows into `rows` and along the columns into `cols` (the transpose, K-major): quantize_with twice,
// each with its own rounding and options, whose axes are not read. What a training step wants of X and of dY.
template <host_executor Executor, readable_element T, quantization_scheme S, rounding_mode RowR, rounding_mode ColR>
void quantize_both_with(const Executor& executor, matrix_view<T> in, quantized_view<S> rows, quantized_view<S> cols,
                        RowR row_rounding, ColR col_rounding, quantize_options row_options = {},
                        quantize_options col_options = {}) {
  detail::check_both(in, rows, cols);
  float own = 0.0f;
  detail::prepare_both<S>(executor, in, detail::count_tiles(rows), detail::count_tiles(cols), row_options, col_options,
                          own);
  quantize_with(executor, in, rows, row_rounding, row_options);
  quantize_with(executor, in, cols, col_rounding, col_options);
}

// The same with the rounding modes that the options name. Host executors need no workspace.
template <host_executor Executor, readable_element T, quantization_scheme S>
void quantize_both_into(const Executor& executor, matrix_view<T> in, quantized_view<S> rows, quantized_view<S> cols,
                        quantize_options row_options = {}, quantize_options col_options = {},
                        std::span<std::byte> /*workspace*/ = {}) {
  detail::check_both(in, rows, cols);
  float own = 0.0f;
  detail::prepare_both<S>(executor, in, detail::count_tiles(rows), detail::count_tiles(cols), row_options, col_options,
                          own);
  quantize_into(executor, in, rows, row_options);
  quantize_into(executor, in, cols, col_options);
}

// fake_quantize_into along the rows into `rows`, and along the columns into `cols`; neither may overlap the input.
template <quantization_scheme S, host_executor Executor, readable_element T, matrix_element U>
void fake_quantize_both_into(const Executor& executor, matrix_view<T> in, matrix_view<U> rows, matrix_view<U> cols,
                             quantize_options row_options = {}, quantize_options col_options = {}) {
  detail::check_both(in, rows, cols);
  float own = 0.0f;
  detail::prepare_both<S>(executor, in, 1, 1, row_options, col_options, own);
  fake_quantize_into<S>(executor, in, rows, row_options);
  fake_quantize_into<S>(executor, in, cols, col_options);
}

}  // namespace microscale
