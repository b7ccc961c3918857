// The Hadamard transform and quantization without a matrix in between, on the device: the bits of
// tensor/hadamard_quantize.hpp.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <variant>

#include "../tensor/hadamard.hpp"
#include "hadamard.cuh"
#include "hadamard_amax.cuh"
#include "quantize.cuh"

namespace microscale {

namespace detail::device {

// Calls f with the transform that a kernel of whole blocks applies in registers, and returns whether there is one.
template <class S, class T, class F>
bool with_run_transform(const hadamard_options& options, F&& f) {
  constexpr int n = S::block::columns;
  if (options.size == 16) return f(hadamard_transform<T, 16>(options));
  if constexpr (n % 32 == 0) {
    if (options.size == 32) return f(hadamard_transform<T, 32>(options));
  }
  return false;
}

// Whether one kernel transforms and quantizes, given a reference.
template <class R, class S, class T, class Sink>
bool fits_transformed(const quantize_call<S, T>& call, const Sink& sink, const hadamard_options& transform) {
  if constexpr (run_scheme<S, R> && S::block::rows == 1) {
    const bool fits = fits_rows(call, sink) || fits_columns(call, sink);
    return fits && with_run_transform<S, T>(transform, [](const auto&) { return true; });
  } else {
    return false;
  }
}

// That kernel, where it fits, after the amax of the transform where that is the reference. `transform` has the axis of
// the call.
template <class R, class S, class T, class Sink>
bool try_transformed(const cuda& executor, const char* what, quantize_call<S, T> call, const Sink& sink,
                     const hadamard_options& transform, std::span<std::byte> workspace) {
  if (!fits_transformed<R>(call, sink, transform)) return false;
  if constexpr (run_scheme<S, R> && S::block::rows == 1) {
    if (call.own_reference) {
      float* const own = own_amax_memory(call, workspace);
      hadamard_amax_into(executor, input_of(call), own, transform);
      call.reference = own;
    }
    const bool by_rows = fits_rows(call, sink);
    if (!by_rows && call.amax != nullptr) hadamard_amax_into(executor, input_of(call), call.amax, transform);
    with_run_transform<S, T>(transform, [&](const auto& run) {
      by_rows ? launch_rows<R>(executor, what, call, sink, run) : launch_columns<R>(executor, what, call, sink, run);
      return true;
    });
  }
  return true;
}

inline hadamard_options along(hadamard_options transform, axis direction) {
  transform.axis = direction;
  return transform;
}

template <class T>
constexpr std::size_t transformed_bytes(const matrix_view<T>& in) noexcept {
  return static_cast<std::size_t>(in.rows * in.cols) * sizeof(float);
}

// The workspace of a call that is not one kernel: the transformed matrix in front, what quantizing it wants behind.
template <class T>
matrix_view<float> transformed_memory(const matrix_view<T>& in, std::span<std::byte> workspace, std::size_t needed) {
  check_workspace("workspace of a transform and quantization", workspace, needed);
  return matrix(reinterpret_cast<float*>(workspace.data()), in.rows, in.cols);
}

}  // namespace detail::device

// How many bytes of device workspace hadamard_quantize_into wants at most: room for the transformed matrix, which only
// calls want that are not one kernel, and for its amax.
template <class T, quantization_scheme S>
constexpr std::size_t hadamard_quantize_workspace(const cuda& executor, matrix_view<T> in, const quantized_view<S>& out,
                                                  const quantize_options& options = {}) {
  return detail::device::transformed_bytes(in) + quantize_workspace(executor, in, out, options);
}

// How many it wants of these arguments, matrices in their places: none for a matrix where the call is one kernel.
template <class T, quantization_scheme S, rounding_mode R>
requires matrix_element<std::remove_const_t<T>> std::size_t hadamard_quantize_workspace(
    const cuda& executor, matrix_view<T> in, const quantized_view<S>& out, const R& rounding,
    const hadamard_options& transform, const quantize_options& options = {}) {
  using element = std::remove_const_t<T>;
  auto call = detail::device::describe_quantize<S, R, element>(executor, in, rounding, options, out.tile);
  const auto sink = detail::device::sink_of(out, call);
  return detail::device::fits_transformed<R>(call, sink, transform)
             ? quantize_workspace(executor, in, out, options)
             : hadamard_quantize_workspace(executor, in, out, options);
}
// The same with the rounding mode that the options name.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>> std::size_t hadamard_quantize_workspace(
    const cuda& executor, matrix_view<T> in, const quantized_view<S>& out, const hadamard_options& transform,
    const quantize_options& options = {}) {
  return std::visit(
      [&](const auto& rounding) {
        return hadamard_quantize_workspace(executor, in, out, rounding, transform, options);
      },
      options.rounding);
}

// Quantizes the Hadamard transform of `in`, as the host's hadamard_quantize_with does. One kernel, after one for the
// amax of the transform where no reference is given, where the transform has size 16, or 32 under blocks of 32, and
// quantize_both_with would take one kernel; otherwise the transform goes through the workspace.
template <class T, quantization_scheme S, rounding_mode R>
requires matrix_element<std::remove_const_t<T>>
void hadamard_quantize_with(const cuda& executor, matrix_view<T> in, quantized_view<S> out, R rounding,
                            const hadamard_options& transform, const quantize_options& options = {},
                            std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_quantized("output", out);
  detail::check_stored_shape(in, out, options.axis);
  detail::check_hadamard(transform, options.axis == axis::row ? in.cols : in.rows);
  const hadamard_options run = detail::device::along(transform, options.axis);
  auto call = detail::device::describe_quantize<S, R, element>(executor, in, rounding, options, out.tile);
  const auto sink = detail::device::sink_of(out, call);
  if (detail::device::try_transformed<R>(executor, "transform and quantize", call, sink, run, workspace)) return;
  const std::size_t needed = hadamard_quantize_workspace(executor, in, out, options);
  const auto transformed = detail::device::transformed_memory(in, workspace, needed);
  hadamard_into(executor, in, transformed, run);
  quantize_with(executor, transformed, out, rounding, options,
                workspace.subspan(detail::device::transformed_bytes(in)));
}

// The same with the rounding mode that the options name.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>>
void hadamard_quantize_into(const cuda& executor, matrix_view<T> in, quantized_view<S> out,
                            const hadamard_options& transform, const quantize_options& options = {},
                            std::span<std::byte> workspace = {}) {
  std::visit([&](auto rounding) { hadamard_quantize_with(executor, in, out, rounding, transform, options, workspace); },
             options.rounding);
}

// How many bytes of device workspace hadamard_fake_quantize_into wants of these arguments.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>> std::size_t hadamard_fake_quantize_workspace(
    const cuda& executor, matrix_view<T> in, matrix_view<U> out, const hadamard_options& transform,
    const quantize_options& options = {}) {
  using element = std::remove_const_t<T>;
  const detail::device::decoded_sink<S, U> sink{detail::device::as_stored(out, options.axis)};
  const bool fits = std::visit(
      [&]<class R>(const R& rounding) {
        return detail::device::fits_transformed<R>(
            detail::device::describe_quantize<S, R, element>(executor, in, rounding, options), sink, transform);
      },
      options.rounding);
  const bool wants_matrix = !fits && !std::is_same_v<U, float>;
  return (wants_matrix ? detail::device::transformed_bytes(in) : 0) + quantize_workspace<S>(executor, in, options);
}

// Fake quantization of the Hadamard transform of `in`, as the host's hadamard_fake_quantize_into does: what decoding
// gives is of the transform, which is not undone. In one kernel where hadamard_quantize_with has one; otherwise the
// transform goes through the output, or where that is not FP32 through the workspace. `out` may be the same memory as
// `in` where the types are the same.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void hadamard_fake_quantize_into(const cuda& executor, matrix_view<T> in, matrix_view<U> out,
                                 const hadamard_options& transform, const quantize_options& options = {},
                                 std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  detail::check_hadamard(transform, options.axis == axis::row ? in.cols : in.rows);
  const hadamard_options run = detail::device::along(transform, options.axis);
  const bool done =
      !in.empty() &&
      std::visit(
          [&]<class R>(const R& rounding) {
            return detail::device::try_transformed<R>(
                executor, "transform and fake quantization",
                detail::device::describe_quantize<S, R, element>(executor, in, rounding, options),
                detail::device::decoded_sink<S, U>{detail::device::as_stored(out, options.axis)}, run, workspace);
          },
          options.rounding);
  if (done) return;
  if constexpr (std::is_same_v<U, float>) {
    hadamard_into(executor, in, out, run);
    fake_quantize_into<S>(executor, out, out, options, workspace);
  } else {
    const std::size_t matrix_bytes = detail::device::transformed_bytes(in);
    const auto transformed =
        detail::device::transformed_memory(in, workspace, matrix_bytes + quantize_workspace<S>(executor, in, options));
    hadamard_into(executor, in, transformed, run);
    fake_quantize_into<S>(executor, transformed, out, options, workspace.subspan(matrix_bytes));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Along the rows as it is, along the columns transformed.

namespace detail::device {

// Looks at what the call for the transformed columns can be refused for, before that for the rows enqueues anything.
template <class T, class S, class R>
void check_second_transformed(const cuda& executor, matrix_view<T> in, const quantized_view<S>& out, const R& rounding,
                              const hadamard_options& transform, const quantize_options& options,
                              std::span<std::byte> workspace) {
  check_workspace("workspace of a transform and quantization", workspace,
                  hadamard_quantize_workspace(executor, in, out, rounding, transform, options));
}

// Room for the amaxes of both calls at once.
template <class S>
constexpr std::size_t both_amax_bytes(const quantize_options& row, const quantize_options& col) {
  return ((takes_own_amax<S>(row) ? 1 : 0) + (takes_own_amax<S>(col) ? 1 : 0)) * sizeof(float);
}

// One kernel for both calls where it takes them, after one for the amaxes that they want.
template <class R, class S, class T, class RowSink, class ColSink>
bool try_both_transformed(const cuda& executor, const char* what, std::span<std::byte> workspace,
                          quantize_call<S, T> row, quantize_call<S, T> col, const RowSink& row_sink,
                          const ColSink& col_sink, const hadamard_options& transform) {
  if (!fits_rows(row, row_sink) || !fits_columns(col, col_sink)) return false;
  const auto in = input_of(row);
  return with_run_transform<S, T>(transform, [&](const auto& run) {
    if (row.own_reference && col.own_reference) {
      float* const own = amax_memory(2, workspace);
      both_amax_into(executor, in, own, transform);
      row.reference = own;
      col.reference = own + 1;
    } else if (row.own_reference) {
      float* const own = own_amax_memory(row, workspace);
      amax_into(executor, in, own);
      row.reference = own;
    } else if (col.own_reference) {
      float* const own = own_amax_memory(col, workspace);
      hadamard_amax_into(executor, in, own, transform);
      col.reference = own;
    }
    if (row.amax != nullptr) amax_into(executor, in, row.amax);
    if (col.amax != nullptr) hadamard_amax_into(executor, in, col.amax, transform);
    launch_both<R>(executor, what, row, col, row_sink, col_sink, run);
    return true;
  });
}

}  // namespace detail::device

// How many bytes of device workspace hadamard_quantize_both_into wants of these arguments.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>> std::size_t hadamard_quantize_both_workspace(
    const cuda& executor, matrix_view<T> in, const quantized_view<S>& rows, const quantized_view<S>& cols,
    const hadamard_options& transform, const quantize_options& row_options = {},
    const quantize_options& col_options = {}) {
  const auto col = detail::device::with_axis(col_options, axis::col);
  const std::size_t one_by_one = larger(quantize_workspace(executor, in, rows, row_options),
                                        hadamard_quantize_workspace(executor, in, cols, transform, col));
  return larger(one_by_one, detail::device::both_amax_bytes<S>(row_options, col_options));
}

// Quantizes along the rows into `rows`, and the Hadamard transform along the columns into `cols`, as the host's
// hadamard_quantize_both_with does. One read of the input, after one for the amaxes where references are not given,
// where quantize_both_with and hadamard_quantize_with have one; otherwise these are two calls.
template <class T, quantization_scheme S, rounding_mode RowR, rounding_mode ColR>
requires matrix_element<std::remove_const_t<T>>
void hadamard_quantize_both_with(const cuda& executor, matrix_view<T> in, quantized_view<S> rows,
                                 quantized_view<S> cols, RowR row_rounding, ColR col_rounding,
                                 const hadamard_options& transform, const quantize_options& row_options = {},
                                 const quantize_options& col_options = {}, std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  const auto row = detail::device::with_axis(row_options, axis::row);
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  detail::check_hadamard(transform, in.rows);
  if constexpr (detail::device::run_scheme<S, RowR> && S::block::rows == 1 && std::is_same_v<RowR, ColR>) {
    auto row_call = detail::device::describe_quantize<S, RowR, element>(executor, in, row_rounding, row, rows.tile);
    auto col_call = detail::device::describe_quantize<S, ColR, element>(executor, in, col_rounding, col, cols.tile);
    const auto row_sink = detail::device::sink_of(rows, row_call);
    const auto col_sink = detail::device::sink_of(cols, col_call);
    if (detail::device::try_both_transformed<RowR>(executor, "transform and quantize along both axes", workspace,
                                                   row_call, col_call, row_sink, col_sink,
                                                   detail::device::along(transform, axis::col))) {
      return;
    }
  }
  detail::device::check_second_transformed(executor, in, cols, col_rounding, transform, col, workspace);
  quantize_with(executor, in, rows, row_rounding, row, workspace);
  hadamard_quantize_with(executor, in, cols, col_rounding, transform, col, workspace);
}

// The same with the rounding modes that the options name.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>>
void hadamard_quantize_both_into(const cuda& executor, matrix_view<T> in, quantized_view<S> rows,
                                 quantized_view<S> cols, const hadamard_options& transform,
                                 const quantize_options& row_options = {}, const quantize_options& col_options = {},
                                 std::span<std::byte> workspace = {}) {
  const bool done =
      detail::device::with_common_rounding(row_options, col_options, [&]<class R>(const R& row, const R& col) {
        hadamard_quantize_both_with(executor, in, rows, cols, row, col, transform, row_options, col_options, workspace);
        return true;
      });
  if (done) return;
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  detail::check_hadamard(transform, in.rows);
  std::visit(
      [&](const auto& rounding) {
        detail::device::check_second_transformed(executor, in, cols, rounding, transform, col, workspace);
      },
      col.rounding);
  quantize_into(executor, in, rows, detail::device::with_axis(row_options, axis::row), workspace);
  hadamard_quantize_into(executor, in, cols, transform, col, workspace);
}

// How many bytes of device workspace hadamard_fake_quantize_both_into wants of these arguments.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>> std::size_t hadamard_fake_quantize_both_workspace(
    const cuda& executor, matrix_view<T> in, matrix_view<U> cols, const hadamard_options& transform,
    const quantize_options& row_options = {}, const quantize_options& col_options = {}) {
  const auto col = detail::device::with_axis(col_options, axis::col);
  return larger(hadamard_fake_quantize_workspace<S>(executor, in, cols, transform, col),
                detail::device::both_amax_bytes<S>(row_options, col_options));
}

// Fake quantization along the rows into `rows`, and of the Hadamard transform along the columns into `cols`, both of
// the shape of `in`, as the host's hadamard_fake_quantize_both_into does; neither may overlap the input. From one read
// where hadamard_quantize_both_into has one.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void hadamard_fake_quantize_both_into(const cuda& executor, matrix_view<T> in, matrix_view<U> rows, matrix_view<U> cols,
                                      const hadamard_options& transform, const quantize_options& row_options = {},
                                      const quantize_options& col_options = {}, std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  const auto row = detail::device::with_axis(row_options, axis::row);
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  detail::check_hadamard(transform, in.rows);
  const bool done = detail::device::with_common_rounding(row, col, [&]<class R>(const R& a, const R& b) {
    if constexpr (detail::device::run_scheme<S, R> && S::block::rows == 1) {
      return detail::device::try_both_transformed<R>(
          executor, "transform and fake quantization along both axes", workspace,
          detail::device::describe_quantize<S, R, element>(executor, in, a, row),
          detail::device::describe_quantize<S, R, element>(executor, in, b, col),
          detail::device::decoded_sink<S, U>{detail::device::as_stored(rows, axis::row)},
          detail::device::decoded_sink<S, U>{detail::device::as_stored(cols, axis::col)},
          detail::device::along(transform, axis::col));
    } else {
      return false;
    }
  });
  if (done) return;
  if (!in.empty()) {
    detail::device::check_workspace("workspace of a transform and quantization", workspace,
                                    hadamard_fake_quantize_workspace<S>(executor, in, cols, transform, col));
  }
  fake_quantize_into<S>(executor, in, rows, row, workspace);
  hadamard_fake_quantize_into<S>(executor, in, cols, transform, col, workspace);
}

}  // namespace microscale
