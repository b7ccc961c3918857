// The Hadamard transform and quantization: the definition, and one pass without a matrix in between.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <variant>
#include <vector>

#include "hadamard.hpp"
#include "quantize.hpp"

namespace microscale {

namespace detail {

// The amax of lines [first, last) of a transform, NaN passed over, piece by piece.
template <int Size, class Executor, class T>
float hadamard_amax_of_lines(const Executor& executor, matrix_view<T> in, const hadamard_options& options,
                             index_t first, index_t last) {
  constexpr index_t room = 4096;
  float memory[room];
  const bool along_row = options.axis == axis::row;
  const index_t height = along_row ? 1 : Size, width = room / height;
  const index_t first_row = along_row ? first : 0, end_row = along_row ? last : in.rows;
  const index_t first_col = along_row ? 0 : first, end_col = along_row ? in.cols : last;
  running_amax largest;
  for (index_t r = first_row; r < end_row; r += height) {
    for (index_t c = first_col; c < end_col; c += width) {
      const index_t n = smaller(width, end_col - c);
      const auto part = matrix(memory, height, n);
      const matrix_view<T> from{in.data + r * in.pitch + c, height, n, in.pitch};
      hadamard_range<Size>(executor, from, part, options, 0, along_row ? 1 : n);
      largest.see(ranges_of(executor).amax(part, 0, height));
    }
  }
  return largest.ignoring_nan();
}

}  // namespace detail

// max |y| over the elements y of the Hadamard transform of `in` in FP32 that are not NaN, 0 where there is none: the
// amax of what hadamard_into gives, and the reference of current tensor scaling where a transform comes before
// quantization.
template <host_executor Executor, readable_element T>
float hadamard_amax(const Executor& executor, matrix_view<T> in, const hadamard_options& options = {}) {
  detail::check_matrix("input", in);
  const bool along_row = options.axis == axis::row;
  const index_t length = along_row ? in.cols : in.rows;
  detail::check_hadamard(options, length);
  float largest = 0.0f;
  if (in.empty()) return largest;
  const hadamard_options run = detail::with_signs_read(options);
  detail::with_hadamard_size(options.size, [&]<int Size>() {
    largest =
        detail::largest_of_ranges(executor, along_row ? in.rows : in.cols, length, [&](index_t first, index_t last) {
          return detail::hadamard_amax_of_lines<Size>(executor, in, run, first, last);
        });
  });
  return largest;
}

namespace detail {

// The Hadamard transform of `in` in FP32, row-major; transform.axis is not read.
template <host_executor Executor, class T>
std::vector<float> transformed(const Executor& executor, matrix_view<T> in, hadamard_options transform, axis along) {
  check_matrix("input", in);
  transform.axis = along;
  check_hadamard(transform, along == axis::row ? in.cols : in.rows);
  std::vector<float> out(static_cast<std::size_t>(in.rows * in.cols));
  hadamard_into(executor, in, matrix(out, in.rows, in.cols), transform);
  return out;
}

}  // namespace detail

// Quantizes the Hadamard transform of `in`: hadamard_into to FP32 along options.axis (transform.axis is not read), then
// quantize_with. The amax of a call without a reference is that of the transform.
template <host_executor Executor, readable_element T, quantization_scheme S, rounding_mode R>
void hadamard_quantize_with(const Executor& executor, matrix_view<T> in, quantized_view<S> out, R rounding,
                            const hadamard_options& transform, const quantize_options& options = {}) {
  const std::vector<float> middle = detail::transformed(executor, in, transform, options.axis);
  quantize_with(executor, matrix(middle, in.rows, in.cols), out, rounding, options);
}

// The same with the rounding mode that the options name. Host executors need no workspace.
template <host_executor Executor, readable_element T, quantization_scheme S>
void hadamard_quantize_into(const Executor& executor, matrix_view<T> in, quantized_view<S> out,
                            const hadamard_options& transform, const quantize_options& options = {},
                            std::span<std::byte> /*workspace*/ = {}) {
  std::visit([&](auto rounding) { hadamard_quantize_with(executor, in, out, rounding, transform, options); },
             options.rounding);
}

// Fake quantization of the Hadamard transform of `in`: hadamard_into to FP32 along options.axis (transform.axis is not
// read), then fake_quantize_into. What comes out is of the transform, which is not undone. `out` may be the same
// memory.
template <quantization_scheme S, host_executor Executor, readable_element T, matrix_element U>
void hadamard_fake_quantize_into(const Executor& executor, matrix_view<T> in, matrix_view<U> out,
                                 const hadamard_options& transform, const quantize_options& options = {}) {
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  const std::vector<float> middle = detail::transformed(executor, in, transform, options.axis);
  fake_quantize_into<S>(executor, matrix(middle, in.rows, in.cols), out, options);
}

// Quantizes along the rows into `rows` and the Hadamard transform along the columns into `cols` (the transpose,
// K-major): quantize_with and hadamard_quantize_with, each with its own rounding and options, whose axes are not read.
// What a training step wants of X and of dY where the weight gradient's operands are transformed.
template <host_executor Executor, readable_element T, quantization_scheme S, rounding_mode RowR, rounding_mode ColR>
void hadamard_quantize_both_with(const Executor& executor, matrix_view<T> in, quantized_view<S> rows,
                                 quantized_view<S> cols, RowR row_rounding, ColR col_rounding,
                                 const hadamard_options& transform, quantize_options row_options = {},
                                 quantize_options col_options = {}) {
  detail::check_both(in, rows, cols);
  const std::vector<float> memory = detail::transformed(executor, in, transform, axis::col);
  const auto middle = matrix(memory, in.rows, in.cols);
  float own = 0.0f;
  detail::prepare_second<S>(executor, middle, detail::count_tiles(cols), row_options, col_options, own);
  quantize_with(executor, in, rows, row_rounding, row_options);
  quantize_with(executor, middle, cols, col_rounding, col_options);
}

// The same with the rounding modes that the options name. Host executors need no workspace.
template <host_executor Executor, readable_element T, quantization_scheme S>
void hadamard_quantize_both_into(const Executor& executor, matrix_view<T> in, quantized_view<S> rows,
                                 quantized_view<S> cols, const hadamard_options& transform,
                                 quantize_options row_options = {}, quantize_options col_options = {},
                                 std::span<std::byte> /*workspace*/ = {}) {
  detail::check_both(in, rows, cols);
  const std::vector<float> memory = detail::transformed(executor, in, transform, axis::col);
  const auto middle = matrix(memory, in.rows, in.cols);
  float own = 0.0f;
  detail::prepare_second<S>(executor, middle, detail::count_tiles(cols), row_options, col_options, own);
  quantize_into(executor, in, rows, row_options);
  quantize_into(executor, middle, cols, col_options);
}

// fake_quantize_into along the rows into `rows`, and hadamard_fake_quantize_into along the columns into `cols`; neither
// may overlap the input.
template <quantization_scheme S, host_executor Executor, readable_element T, matrix_element U>
void hadamard_fake_quantize_both_into(const Executor& executor, matrix_view<T> in, matrix_view<U> rows,
                                      matrix_view<U> cols, const hadamard_options& transform,
                                      quantize_options row_options = {}, quantize_options col_options = {}) {
  detail::check_both(in, rows, cols);
  const std::vector<float> memory = detail::transformed(executor, in, transform, axis::col);
  const auto middle = matrix(memory, in.rows, in.cols);
  float own = 0.0f;
  detail::prepare_second<S>(executor, middle, 1, row_options, col_options, own);
  fake_quantize_into<S>(executor, in, rows, row_options);
  fake_quantize_into<S>(executor, middle, cols, col_options);
}

namespace detail {

template <int Size, quantization_scheme S, class T, rounding_mode R>
void hadamard_quantize_one_block(matrix_view<T> in, const quantized_view<S>& out, const tensor_factors& t, axis along,
                                 const hadamard_signs& signs, const R& rounding, index_t block_row, index_t block_col) {
  using block = typename S::block;
  float x[block::elements] = {};
  const index_t row = block_row * block::rows, k = block_col * block::columns;
  const block_extent extent = out.extent(block_row, block_col);
  gather_block<S>(in, along, row, k, extent, x);
  for (int i = 0; i < extent.rows; ++i) {
    for (int j = 0; j < extent.columns; j += Size) {
      float run[Size];
      float* const from = x + i * block::columns + j;
      std::memcpy(run, from, sizeof run);
      hadamard_run<Size>(run, signs);
      std::memcpy(from, run, sizeof run);
    }
  }
  store_block(out, quantize_block_at<S>(x, t, rounding, row, k, out.cols, extent), block_row, block_col);
}

}  // namespace detail

// What hadamard_into over runs of Size along options.axis, into FP32, and then quantize_with would give, in one pass.
// Size divides the length of a block and the length along the axis. The reference (of the transformed data) has to be
// given where the scheme has a tensor scale, there is one tensor scale, no amax is asked for (options.amax), and the
// scheme does not reject.
template <int Size, host_executor Executor, readable_element T, quantization_scheme S, rounding_mode R>
void hadamard_quantize_with(const Executor& executor, matrix_view<T> in, quantized_view<S> out,
                            const hadamard_signs& signs, R rounding, const quantize_options& options) {
  static_assert(S::block::columns % Size == 0, "a block holds whole runs of the transform");
  static_assert(S::policy != nonfinite::reject, "transform first, so that what is rejected has a position");
  detail::check_matrix("input", in);
  detail::check_quantized("output", out);
  detail::check_stored_shape(in, out, options.axis);
  detail::check_hadamard({.size = Size, .signs = signs, .axis = options.axis}, out.cols);
  if (out.tile != tensor_tile{}) {
    detail::fail("output", "one tensor scale", "tiles of " + detail::shape_text(out.tile.rows, out.tile.cols));
  }
  if (S::has_tensor_scale && options.reference == nullptr) detail::fail("reference", "the amax to use", "none");
  if (options.amax != nullptr) detail::fail("amax", "a null pointer", "memory for that of the transform");
  const int target = detail::checked_target<S>(options.target);
  tensor_factors t;
  if constexpr (S::has_tensor_scale) {
    t = detail::factors_in_default_environment<S>(detail::checked_reference<S>(*options.reference), target);
  }
  detail::clear_scale_padding(out);
  const auto ranges = detail::ranges_of(executor);
  detail::run_ranges(executor, out.block_rows(), S::block::rows * out.cols, [&](index_t first, index_t last) {
    if constexpr (requires {
                    ranges.template hadamard_quantize<Size>(in, out, t, options.axis, signs, rounding, first, last);
                  }) {
      ranges.template hadamard_quantize<Size>(in, out, t, options.axis, signs, rounding, first, last);
    } else {
      for (index_t br = first; br < last; ++br) {
        for (index_t bc = 0; bc < out.block_cols(); ++bc) {
          detail::hadamard_quantize_one_block<Size>(in, out, t, options.axis, signs, rounding, br, bc);
        }
      }
    }
  });
  if constexpr (S::has_tensor_scale) *out.datum = S::stored(t);
}

}  // namespace microscale
