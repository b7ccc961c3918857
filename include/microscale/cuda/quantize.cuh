// Quantizing and dequantizing whole matrices on the device: the bits of tensor/quantize.hpp.
//
// Where the host throws because of the *data* (a reference that cannot be one, a NaN under nonfinite::reject), the
// device writes poison and says so in the executor's status word (executor.cuh).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "../tensor/options.hpp"
#include "../tensor/quantized.hpp"
#include "amax.cuh"
#include "quantize_both.cuh"
#include "quantize_call.cuh"
#include "quantize_rows.cuh"
#include "quantize_square.cuh"

namespace microscale {

namespace detail::device {

// One thread's share of one block.
template <quantization_scheme S, class Split, class T>
struct block_share {
  const quantize_call<S, T>& call;
  index_t row;  // of the block's first element, as stored
  index_t k;
  block_extent extent;
  int member;

  struct piece {
    index_t row;
    index_t k;
    int n;  // elements that exist
  };

  __device__ piece at(int pass) const {
    constexpr int per_row = S::block::columns / Split::chunk;
    const int c = member + Split::threads * pass;
    // Threads side by side take rows side by side; one thread alone takes its elements in order.
    const int i = Split::threads > 1 ? c % S::block::rows : c / per_row;
    const int j = (Split::threads > 1 ? c / S::block::rows : c % per_row) * Split::chunk;
    const int n = i < extent.rows ? smaller(extent.columns - j, int{Split::chunk}) : 0;
    return {row + i, k + j, larger(n, 0)};
  }
  // The elements of a piece, zeros beyond; `amax` sees them.
  __device__ void load(const piece& p, float (&x)[Split::chunk], running_amax& amax) const {
    load_chunk(call.in.at(p.row, p.k), call.in.k_stride, p.n, call.in.wide, x);
    std::uint32_t largest = 0;  // as integers, NaN sorts on top
#pragma unroll
    for (int i = 0; i < Split::chunk; ++i) largest = larger(largest, fp32::magnitude_bits(x[i]));
    if (largest <= fp32::infinity_bits) {
      amax.see(fp32::from_bits(largest));
    } else {
#pragma unroll
      for (int i = 0; i < Split::chunk; ++i) {
        if (fp32::is_nan(x[i])) x[i] = decoded_nan<T>(x[i]);
        amax.see(x[i]);
      }
    }
  }
  __device__ void load(const piece& p, float (&x)[Split::chunk]) const {
    running_amax ignored;
    load(p, x, ignored);
  }
  __device__ std::uint64_t position(const piece& p) const {
    return element_position(static_cast<std::uint64_t>(p.row), static_cast<std::uint64_t>(p.k),
                            static_cast<std::uint64_t>(call.cols));
  }
  // Of the input, row by row.
  __device__ std::uint64_t input_position(const piece& p, int i) const {
    return static_cast<std::uint64_t>(call.along == axis::row ? p.row * call.cols + p.k + i
                                                              : (p.k + i) * call.rows + p.row);
  }
};

// Whether the threads of a block may see its elements in any order.
template <quantization_scheme S>
inline constexpr bool is_order_free = !has_candidates<S> && !refines_scale<S>;
template <quantization_scheme S>
using quantize_split = block_split<typename S::block, is_order_free<S>>;

// The scale that is stored, from the one that elements are encoded under; see quantize_block.
template <quantization_scheme S, rounding_mode R, class Split, class T>
__device__ typename S::scale::storage refined_scale(const block_share<S, Split, T>& share,
                                                    typename S::scale::storage scale, const tensor_factors& t,
                                                    float (&x)[Split::chunk]) {
  const auto divisor = S::rule::template divisor<S>(scale, t);
  typename S::rule::correlation sums;
#pragma unroll 1
  for (int pass = 0; pass < Split::passes; ++pass) {
    const auto p = share.at(pass);
    if constexpr (Split::passes > 1) share.load(p, x);
    const auto codes = encode_chunk<S, R>(x, p.n, divisor, share.call.key, share.position(p));
#pragma unroll
    for (int i = 0; i < Split::chunk; ++i) {
      if (i < p.n) see_element<S>(sums, x[i], decode_code<typename S::element>(codes.get(i)), divisor);
    }
  }
  const std::uint64_t position =
      scale_position(static_cast<std::uint64_t>(share.row), static_cast<std::uint64_t>(share.k),
                     static_cast<std::uint64_t>(share.call.cols), std::uint64_t{S::block::columns});
  return S::rule::template refined<S>(scale, sums, draw<32>(share.call.scale_key, position));
}

// The scale of the candidate with the smallest error; see quantize_block.
template <quantization_scheme S, rounding_mode R, class Split, class T>
__device__ typename S::scale::storage best_candidate(const block_share<S, Split, T>& share, const running_amax& amax,
                                                     const tensor_factors& t, float (&x)[Split::chunk]) {
  typename S::scale::storage best = 0;
  float least = 0.0f;
#pragma unroll 1
  for (int which = 0; which < S::rule::candidates; ++which) {
    const auto scale =
        which == 0 ? first_block_scale<S>(amax, t) : S::rule::template candidate<S>(effective_amax<S>(amax), t, which);
    const auto divisor = S::rule::template divisor<S>(scale, t);
    const float s = S::scale::decode(scale);
    float error = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < Split::passes; ++pass) {
      const auto p = share.at(pass);
      if constexpr (Split::passes > 1) share.load(p, x);
      const auto codes = encode_chunk<S, R>(x, p.n, divisor, share.call.key, share.position(p));
#pragma unroll
      for (int i = 0; i < Split::chunk; ++i) {
        const float element = decode_code<typename S::element>(codes.get(i));
        const float y = S::policy == nonfinite::saturate ? finite_or_nan(x[i]) : x[i];
        const float next = S::rule::template accumulate_error<S>(error, y, element, s, t);
        if (i < p.n) error = next;
      }
    }
    const bool wins = !fp32::is_nan(error) && !fp32::is_nan(least) && fp32::less(error, least);
    if (which == 0 || wins) {
      least = error;
      best = scale;
    }
  }
  return best;
}

template <quantization_scheme S, rounding_mode R, class Split, class T, class Sink>
__device__ void quantize_share(const block_share<S, Split, T>& share, const block_place& place, unsigned mask,
                               const call_factors& f, const Sink& sink) {
  using element = typename S::element;
  float x[Split::chunk];
  running_amax own;
#pragma unroll 1
  for (int pass = 0; pass < Split::passes; ++pass) {
    share.load(share.at(pass), x, own);
  }
  if constexpr (S::policy == nonfinite::reject) {
    if (own.has_nonfinite() && share.call.status != nullptr) {
#pragma unroll 1
      for (int pass = 0; pass < Split::passes; ++pass) {
        const auto p = share.at(pass);
        if constexpr (Split::passes > 1) share.load(p, x);
#pragma unroll
        for (int i = 0; i < Split::chunk; ++i) {
          if (!fp32::is_finite(x[i])) report(share.call.status, share.input_position(p, i));
        }
      }
    }
  }
  const running_amax amax = combine<Split>(own, mask);

  const bool poisoned = f.refused || is_poisoned<S>(amax);
  typename S::scale::storage scale = S::scale::encode(fp32::quiet_nan());
  if (!poisoned) {
    if constexpr (has_candidates<S>) {
      scale = best_candidate<S, R>(share, amax, f.forward, x);
    } else {
      scale = first_block_scale<S>(amax, f.forward);
    }
  }
  const auto divisor = S::rule::template divisor<S>(scale, f.forward);
  if constexpr (refines_scale<S>) {
    if (!poisoned) scale = refined_scale<S, R>(share, scale, f.forward, x);
  }
  if (share.member == 0) sink.write_scale(place.row, place.col, scale);

#pragma unroll 1
  for (int pass = 0; pass < Split::passes; ++pass) {
    const auto p = share.at(pass);
    packed_chunk<element, Split::chunk> codes;
    if (poisoned) {
      const std::uint32_t code = element::encode(fp32::quiet_nan());
#pragma unroll
      for (int i = 0; i < Split::chunk; ++i) codes.put(i, i < p.n ? code : 0);
    } else {
      if constexpr (Split::passes > 1) share.load(p, x);
      codes = encode_chunk<S, R>(x, p.n, divisor, share.call.key, share.position(p));
    }
    sink.write_chunk(p.row, p.k, p.n, codes, scale, f.back);
  }
}

template <quantization_scheme S, rounding_mode R, class T, class Sink>
__global__ void __launch_bounds__(largest_thread_block)
    quantize_kernel(const quantize_call<S, T> given, const Sink sink) {
  using split = quantize_split<S>;
  const auto& call = with_stream<R>(given);
  call_factors factors = share_factors<S>(call, load_reference(call), sink);
  const index_t block_rows = ceil_div(call.rows, index_t{S::block::rows});
  const index_t block_cols = ceil_div(call.cols, index_t{S::block::columns});
  if constexpr (S::has_tensor_scale) {
    if (call.tiled && (call.rows == 0 || call.cols == 0)) {  // no block to begin a tile
      for (index_t tile = blockIdx.x * index_t{blockDim.x} + threadIdx.x; tile < call.tiles;
           tile += index_t{gridDim.x} * blockDim.x) {
        const call_factors f = derive_factors<S>(call.reference[tile], call.own_reference, call.target);
        sink.write_datum(tile, S::stored(f.forward));
        if (f.refused) report(call.status, cuda_status::reference_refused);
      }
    }
  }
  const block_team<split> team(call.grid.order);
  const index_t steps = count_thread_blocks<split>(call.grid, index_t{blockDim.x});
#pragma unroll 1
  for (index_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const block_place place = place_of<split>(call.grid, step, team.group);
    if (!place.inside) continue;
    if (place.row >= block_rows || place.col >= block_cols) {  // padding of the scale layout
      if (team.member == 0) sink.write_scale(place.row, place.col, 0);
      continue;
    }
    const index_t row = place.row * S::block::rows, k = place.col * S::block::columns;
    const block_extent extent{static_cast<int>(smaller(index_t{S::block::rows}, call.rows - row)),
                              static_cast<int>(smaller(index_t{S::block::columns}, call.cols - k))};
    if constexpr (S::has_tensor_scale) {
      if (call.tiled) {
        const index_t tile = call.tile_index(row, k);
        factors = derive_factors<S>(call.reference[tile], call.own_reference, call.target);
        if (team.member == 0 && call.begins_tile(row, k)) {
          sink.write_datum(tile, S::stored(factors.forward));
          if (factors.refused) report(call.status, cuda_status::reference_refused);
        }
      }
    }
    quantize_share<S, typename mode_parts<R>::rule>(block_share<S, split, T>{call, row, k, extent, team.member}, place,
                                                    team.mask, factors, sink);
  }
}

// The amax of every tile, NaN passed over, into `out`, which holds zeros.
template <quantization_scheme S, class T>
__global__ void __launch_bounds__(largest_thread_block)
    tile_amax_kernel(const quantize_call<S, T> call, std::uint32_t* out) {
  using split = block_split<typename S::block>;
  const block_team<split> team(call.grid.order);
  const index_t steps = count_thread_blocks<split>(call.grid, index_t{blockDim.x});
#pragma unroll 1
  for (index_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const block_place place = place_of<split>(call.grid, step, team.group);
    if (!place.inside) continue;
    const index_t row = place.row * S::block::rows, k = place.col * S::block::columns;
    const block_extent extent{static_cast<int>(smaller(index_t{S::block::rows}, call.rows - row)),
                              static_cast<int>(smaller(index_t{S::block::columns}, call.cols - k))};
    const block_share<S, split, T> share{call, row, k, extent, team.member};
    running_amax own;
    float x[split::chunk];
#pragma unroll 1
    for (int pass = 0; pass < split::passes; ++pass) share.load(share.at(pass), x, own);
    const float amax = combine<split>(own, team.mask).ignoring_nan();
    if (team.member == 0) atomicMax(out + call.tile_index(row, k), fp32::bits(amax));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The host's side of a call.

template <quantization_scheme S>
constexpr bool takes_own_amax(const quantize_options& options) noexcept {
  return S::has_tensor_scale && options.reference == nullptr;
}

// Describes a call, but for the reference of one that takes its own amax.
template <quantization_scheme S, class R, class T>
quantize_call<S, T> describe_quantize(const cuda& executor, matrix_view<const T> in, const R& rounding,
                                      const quantize_options& options, tensor_tile tile = {}) {
  static_assert(!refines_scale<S> || mode_parts<R>::draws_scales,
                "this scheme draws for its scale: see with_scale_draws");
  quantize_call<S, T> call = {};
  call.in = as_stored(in, options.axis);
  call.rows = options.axis == axis::row ? in.rows : in.cols;
  call.cols = options.axis == axis::row ? in.cols : in.rows;
  call.grid.rows = ceil_div(call.rows, index_t{S::block::rows});
  call.grid.cols = ceil_div(call.cols, index_t{S::block::columns});
  call.grid.order = options.axis == axis::row ? block_order::row_major
                    : S::block::rows == 1     ? block_order::tiled
                                              : block_order::col_major;
  call.along = options.axis;
  call.reference = options.reference;
  call.own_reference = takes_own_amax<S>(options);
  call.target = checked_target<S>(options.target);
  call.key = mode_parts<R>::element_key(rounding);
  call.scale_key = mode_parts<R>::scale_key(rounding);
  call.stream_offset = mode_parts<R>::stream_offset(rounding);
  call.status = executor.status;
  call.amax = options.amax;
  const quantized_view<S> grid{.rows = call.rows, .cols = call.cols, .tile = tile};
  call.tiles = grid.tile_rows() * grid.tile_cols();
  call.tiled = S::has_tensor_scale && call.tiles > 1;
  call.tile = tile;
  call.tile_cols = grid.tile_cols();
  return call;
}

// A workspace is as large as the call needs, and aligned for floats.
inline void check_workspace(const char* what, std::span<std::byte> workspace, std::size_t needed) {
  if (workspace.size() < needed || !is_aligned(workspace.data(), 0, alignof(float))) {
    fail(what, std::to_string(needed) + " bytes of device memory, aligned to 4",
         std::to_string(workspace.size()) + " bytes");
  }
}
// The floats of a workspace.
inline float* amax_memory(index_t count, std::span<std::byte> workspace) {
  check_workspace("quantization workspace", workspace, static_cast<std::size_t>(count) * sizeof(float));
  return reinterpret_cast<float*>(workspace.data());
}
// Those that a call without a reference keeps its amax, or those of its tiles, in.
template <class S, class T>
float* own_amax_memory(const quantize_call<S, T>& call, std::span<std::byte> workspace) {
  return amax_memory(call.tiles, workspace);
}

// Enqueues the amax of `in`, or of its tiles, where that is this call's reference, and describes the call.
template <quantization_scheme S, class R, class T>
quantize_call<S, T> begin_quantize(const cuda& executor, matrix_view<const T> in, const R& rounding,
                                   const quantize_options& options, std::span<std::byte> workspace,
                                   tensor_tile tile = {}) {
  auto call = describe_quantize<S>(executor, in, rounding, options, tile);
  if (!call.own_reference) return call;
  float* const own = own_amax_memory(call, workspace);
  if (!call.tiled) {
    amax_into(executor, in, own);
  } else {
    check_launch(executor.launch);
    clear_bytes(executor, "amax", own, static_cast<std::size_t>(call.tiles) * sizeof(float));
    if (!in.empty()) {
      const index_t blocks =
          count_thread_blocks<block_split<typename S::block>>(call.grid, index_t{executor.launch.threads});
      launch(executor, "amax of tiles", &tile_amax_kernel<S, T>, blocks, call, reinterpret_cast<std::uint32_t*>(own));
    }
  }
  call.reference = own;
  return call;
}

// The sink of an output, whose padding the call then covers.
template <class S, class T>
packed_sink<S> sink_of(const quantized_view<S>& out, quantize_call<S, T>& call) {
  if (out.layout == scale_layout::tile_128x4) {
    call.grid.rows = round_up(call.grid.rows, tile_rows);
    call.grid.cols = round_up(call.grid.cols, tile_columns);
  }
  constexpr int access = packed_chunk<typename S::element, block_split<typename S::block>::chunk>::access;
  return {out, is_aligned(out.codes, out.code_pitch, access), ceil_div(out.block_cols(), tile_columns)};
}

// The input of a call as it lies.
template <class S, class T>
matrix_view<const T> input_of(const quantize_call<S, T>& call) noexcept {
  return call.along == axis::row ? matrix_view<const T>{call.in.data, call.rows, call.cols, call.in.row_stride}
                                 : matrix_view<const T>{call.in.data, call.cols, call.rows, call.in.k_stride};
}

template <rounding_mode R, class S, class T, class Sink>
void launch_quantize(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink) {
  check_launch(executor.launch);
  using elements = typename mode_parts<R>::elements;
  if constexpr (run_scheme<S, elements> && S::block::rows == 1) {
    if (fits_rows(call, sink)) return launch_rows<elements>(executor, what, call, sink);
  }
  if (call.amax != nullptr) amax_into(executor, input_of(call), call.amax);
  if constexpr (run_scheme<S, elements> && S::block::rows == 1) {
    if (fits_columns(call, sink)) return launch_columns<elements>(executor, what, call, sink);
  }
  if constexpr (run_scheme<S, elements> && S::block::is_square && std::is_same_v<elements, nearest_even>) {
    if (fits_square(call, sink)) return launch_square<elements>(executor, what, call, sink);
  }
  const index_t blocks = count_thread_blocks<quantize_split<S>>(call.grid, index_t{executor.launch.threads});
  launch(executor, what, &quantize_kernel<S, elements, T, Sink>, larger(blocks, index_t{1}), call, sink);
}

}  // namespace detail::device

// How many bytes of device workspace quantize_into and fake_quantize_into want: room for the amax of a call that has no
// reference, nothing otherwise.
template <quantization_scheme S, class T>
constexpr std::size_t quantize_workspace(const cuda&, matrix_view<T>, const quantize_options& options = {}) {
  return detail::device::takes_own_amax<S>(options) ? sizeof(float) : 0;
}
// The same for an output with several tensor scales: room for the amax of each tile.
template <class T, quantization_scheme S>
constexpr std::size_t quantize_workspace(const cuda&, matrix_view<T>, const quantized_view<S>& out,
                                         const quantize_options& options = {}) {
  const auto tiles = static_cast<std::size_t>(out.tile_rows() * out.tile_cols());
  return detail::device::takes_own_amax<S>(options) ? tiles * sizeof(float) : 0;
}

// Quantizes `in` into the caller's memory, as the host's quantize_with does. A call with a reference is one kernel;
// without one, the amax comes first and is left in the workspace. An empty matrix still gets its datum.
// The reference may not lie where the call writes.
template <class T, quantization_scheme S, rounding_mode R>
requires matrix_element<std::remove_const_t<T>>
void quantize_with(const cuda& executor, matrix_view<T> in, quantized_view<S> out, R rounding,
                   const quantize_options& options = {}, std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_quantized("output", out);
  detail::check_stored_shape(in, out, options.axis);
  if (in.empty() && !S::has_tensor_scale) {
    if (options.amax != nullptr) amax_into(executor, in, options.amax);
    return;
  }
  auto call = detail::device::begin_quantize<S, R, element>(executor, in, rounding, options, workspace, out.tile);
  const auto sink = detail::device::sink_of(out, call);
  detail::device::launch_quantize<R>(executor, "quantize", call, sink);
}

// The same with the rounding mode that the options name.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>>
void quantize_into(const cuda& executor, matrix_view<T> in, quantized_view<S> out, const quantize_options& options = {},
                   std::span<std::byte> workspace = {}) {
  std::visit([&](auto rounding) { quantize_with(executor, in, out, rounding, options, workspace); }, options.rounding);
}

// Quantize, then dequantize, without storing codes; `out` has the shape of `in` whatever the axis, and may be the same
// memory where the types are the same.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void fake_quantize_into(const cuda& executor, matrix_view<T> in, matrix_view<U> out,
                        const quantize_options& options = {}, std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  if (in.empty()) {
    if (options.amax != nullptr) amax_into(executor, in, options.amax);
    return;
  }
  std::visit(
      [&](auto rounding) {
        using R = decltype(rounding);
        const auto call = detail::device::begin_quantize<S, R, element>(executor, in, rounding, options, workspace);
        const detail::device::decoded_sink<S, U> sink{detail::device::as_stored(out, options.axis)};
        detail::device::launch_quantize<R>(executor, "fake quantization", call, sink);
      },
      options.rounding);
}

namespace detail::device {

// Calls f with the roundings that both options name, and returns whether it took the work; false where they differ in
// kind.
template <class F>
bool with_common_rounding(const quantize_options& a, const quantize_options& b, F&& f) {
  if (a.rounding.index() != b.rounding.index()) return false;
  return std::visit([&](auto rounding) { return f(rounding, std::get<decltype(rounding)>(b.rounding)); }, a.rounding);
}

inline quantize_options with_axis(quantize_options options, axis direction) {
  options.axis = direction;
  return options;
}

// Looks at what the second of two calls can be refused for, before the first enqueues anything.
template <quantization_scheme S, class R, class T>
void check_second(const cuda& executor, matrix_view<const T> in, const R& rounding, const quantize_options& options,
                  std::span<std::byte> workspace, tensor_tile tile = {}) {
  const auto call = describe_quantize<S>(executor, in, rounding, options, tile);
  if (call.own_reference) own_amax_memory(call, workspace);
}
// The same with the rounding mode that the options name.
template <quantization_scheme S, class T>
void check_second(const cuda& executor, matrix_view<const T> in, const quantize_options& options,
                  std::span<std::byte> workspace, tensor_tile tile = {}) {
  std::visit(
      [&]<class R>(const R& rounding) { check_second<S, R, T>(executor, in, rounding, options, workspace, tile); },
      options.rounding);
}

// One kernel for both calls, where it takes them; the amax of the input goes before it where a call wants that.
template <class R, class S, class T, class RowSink, class ColSink>
bool try_both(const cuda& executor, const char* what, matrix_view<const T> in, std::span<std::byte> workspace,
              quantize_call<S, T> row, quantize_call<S, T> col, const RowSink& row_sink, const ColSink& col_sink) {
  if (!fits_rows(row, row_sink) || !fits_columns(col, col_sink)) return false;
  if (row.own_reference || col.own_reference) {
    float* const own = own_amax_memory(row, workspace);
    amax_into(executor, in, own);
    if (row.own_reference) row.reference = own;
    if (col.own_reference) col.reference = own;
  }
  if (row.amax != nullptr) amax_into(executor, in, row.amax);
  if (col.amax != nullptr) amax_into(executor, in, col.amax);
  launch_both<R>(executor, what, row, col, row_sink, col_sink);
  return true;
}

}  // namespace detail::device

// How many bytes of device workspace quantize_both_into wants.
template <class T, quantization_scheme S>
constexpr std::size_t quantize_both_workspace(const cuda& executor, matrix_view<T> in, const quantized_view<S>& rows,
                                              const quantized_view<S>& cols, const quantize_options& row_options = {},
                                              const quantize_options& col_options = {}) {
  return larger(quantize_workspace(executor, in, rows, row_options),
                quantize_workspace(executor, in, cols, col_options));
}

// Quantizes along the rows into `rows` and along the columns into `cols`, as the host's quantize_both_with does. One
// read of the input serves both where the elements are E2M1 under a multiplying rule, both roundings are nearest_even,
// both stochastic_midpoint8 or both stochastic_floor8, blocks are whole and memory is aligned to 16 bytes; otherwise
// these are two calls.
template <class T, quantization_scheme S, rounding_mode RowR, rounding_mode ColR>
requires matrix_element<std::remove_const_t<T>>
void quantize_both_with(const cuda& executor, matrix_view<T> in, quantized_view<S> rows, quantized_view<S> cols,
                        RowR row_rounding, ColR col_rounding, const quantize_options& row_options = {},
                        const quantize_options& col_options = {}, std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  const auto row = detail::device::with_axis(row_options, axis::row);
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  if constexpr (detail::device::run_scheme<S, RowR> && S::block::rows == 1 && std::same_as<RowR, ColR>) {
    auto row_call = detail::device::describe_quantize<S, RowR, element>(executor, in, row_rounding, row, rows.tile);
    auto col_call = detail::device::describe_quantize<S, ColR, element>(executor, in, col_rounding, col, cols.tile);
    const auto row_sink = detail::device::sink_of(rows, row_call);
    const auto col_sink = detail::device::sink_of(cols, col_call);
    if (detail::device::try_both<RowR, S, element>(executor, "quantize along both axes", in, workspace, row_call,
                                                   col_call, row_sink, col_sink)) {
      return;
    }
  }
  detail::device::check_second<S, ColR, element>(executor, in, col_rounding, col, workspace, cols.tile);
  quantize_with(executor, in, rows, row_rounding, row, workspace);
  quantize_with(executor, in, cols, col_rounding, col, workspace);
}

// The same with the rounding modes that the options name.
template <class T, quantization_scheme S>
requires matrix_element<std::remove_const_t<T>>
void quantize_both_into(const cuda& executor, matrix_view<T> in, quantized_view<S> rows, quantized_view<S> cols,
                        const quantize_options& row_options = {}, const quantize_options& col_options = {},
                        std::span<std::byte> workspace = {}) {
  const bool done =
      detail::device::with_common_rounding(row_options, col_options, [&]<class R>(const R& row, const R& col) {
        quantize_both_with(executor, in, rows, cols, row, col, row_options, col_options, workspace);
        return true;
      });
  if (done) return;
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  detail::device::check_second<S, std::remove_const_t<T>>(executor, in, col, workspace, cols.tile);
  quantize_into(executor, in, rows, detail::device::with_axis(row_options, axis::row), workspace);
  quantize_into(executor, in, cols, col, workspace);
}

// Fake quantization along the rows into `rows` and along the columns into `cols`, both of the shape of `in`, as the
// host's fake_quantize_both_into does; neither may overlap the input. From one read where quantize_both_into has one.
template <quantization_scheme S, class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void fake_quantize_both_into(const cuda& executor, matrix_view<T> in, matrix_view<U> rows, matrix_view<U> cols,
                             const quantize_options& row_options = {}, const quantize_options& col_options = {},
                             std::span<std::byte> workspace = {}) {
  using element = std::remove_const_t<T>;
  const auto row = detail::device::with_axis(row_options, axis::row);
  const auto col = detail::device::with_axis(col_options, axis::col);
  detail::check_both(in, rows, cols);
  const bool done = detail::device::with_common_rounding(row, col, [&]<class R>(const R& a, const R& b) {
    if constexpr (detail::device::run_scheme<S, R> && S::block::rows == 1) {
      const detail::device::decoded_sink<S, U> row_sink{detail::device::as_stored(rows, axis::row)};
      const detail::device::decoded_sink<S, U> col_sink{detail::device::as_stored(cols, axis::col)};
      return detail::device::try_both<R, S, element>(
          executor, "fake quantization along both axes", in, workspace,
          detail::device::describe_quantize<S, R, element>(executor, in, a, row),
          detail::device::describe_quantize<S, R, element>(executor, in, b, col), row_sink, col_sink);
    } else {
      return false;
    }
  });
  if (done) return;
  if (!in.empty()) detail::device::check_second<S, element>(executor, in, col, workspace);
  fake_quantize_into<S>(executor, in, rows, row, workspace);
  fake_quantize_into<S>(executor, in, cols, col, workspace);
}

// Owning forms hold host memory; on the device, memory is the caller's.
template <quantization_scheme S, class T>
quantized<S> quantize(const cuda&, matrix_view<T>, const quantize_options& = {}, scale_layout = scale_layout::linear,
                      tensor_tile = {}) = delete;
template <quantization_scheme S, class T>
std::vector<float> fake_quantize(const cuda&, matrix_view<T>, const quantize_options& = {}) = delete;
template <quantization_scheme S>
std::vector<float> dequantize(const cuda&, const quantized<S>&, axis = axis::row) = delete;

// ---------------------------------------------------------------------------------------------------------------
// Dequantization.

namespace detail::device {

// A thread decodes up to 8 codes of one row and one block.
template <class S>
inline constexpr int decode_chunk = common_divisor(8, S::block::columns);
template <class S>
using decode_split = block_split<block<1, decode_chunk<S>>>;

template <class S, class T>
struct dequantize_call {
  quantized_view<const S> in;
  strided_matrix<T> out;
  block_grid grid;  // of chunks
  bool aligned;     // codes of full chunks begin on a multiple of packed_chunk::access
};

template <quantization_scheme S, class T>
__global__ void __launch_bounds__(largest_thread_block) dequantize_kernel(const dequantize_call<S, T> call) {
  using split = decode_split<S>;
  constexpr int chunk = decode_chunk<S>;
  const bool tiled = call.in.tile != tensor_tile{};
  tensor_factors t = tiled ? tensor_factors{} : call.in.factors();
  const block_team<split> team(call.grid.order);
  const index_t steps = count_thread_blocks<split>(call.grid, index_t{blockDim.x});
#pragma unroll 1
  for (index_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const block_place place = place_of<split>(call.grid, step, team.group);
    if (!place.inside) continue;
    const index_t r = place.row, k = place.col * chunk;
    const int n = static_cast<int>(smaller(index_t{chunk}, call.in.cols - k));
    packed_chunk<typename S::element, chunk> codes;
    codes.load(call.in.codes + r * call.in.code_pitch + k * S::element::bits / 8, n, call.aligned);
    const float s = S::scale::decode(call.in.scale(r, k));
    if constexpr (S::has_tensor_scale) {
      if (tiled) t = call.in.factors(call.in.tile_index(r, k));
    }
    float y[chunk];
#pragma unroll
    for (int i = 0; i < chunk; ++i) {
      y[i] = S::rule::template decoded<S>(decode_code<typename S::element>(codes.get(i)), s, t);
    }
    store_chunk(call.out.at(r, k), call.out.k_stride, n, call.out.wide, y);
  }
}

}  // namespace detail::device

// Decodes into the caller's memory, as the host's dequantize_into does.
template <class S, matrix_element T>
void dequantize_into(const cuda& executor, quantized_view<S> in, matrix_view<T> out, axis along = axis::row) {
  using scheme = typename quantized_view<S>::scheme_type;
  using split = detail::device::decode_split<scheme>;
  detail::check_quantized("input", in);
  detail::check_matrix("output", out);
  detail::check_stored_shape(out, in, along);
  detail::device::check_launch(executor.launch);
  if (in.empty()) return;
  if constexpr (detail::device::has_chunk_decoding<scheme>) {
    const auto stored = detail::device::as_stored(out, along);
    const quantized_view<const scheme> read = in;
    if (detail::device::fits_decode_rows(read, stored)) {
      return detail::device::launch_decode_rows<detail::device::decode_chunks_a_thread>(executor, read, stored);
    }
  }
  detail::device::dequantize_call<scheme, T> call = {};
  call.in = in;
  call.out = detail::device::as_stored(out, along);
  call.grid = {in.rows, ceil_div(in.cols, index_t{detail::device::decode_chunk<scheme>}),
               along == axis::row ? detail::device::block_order::row_major : detail::device::block_order::tiled};
  constexpr int access =
      detail::device::packed_chunk<typename scheme::element, detail::device::decode_chunk<scheme>>::access;
  call.aligned = detail::device::is_aligned(in.codes, in.code_pitch, access);
  const index_t blocks = detail::device::count_thread_blocks<split>(call.grid, index_t{executor.launch.threads});
  detail::device::launch(executor, "dequantize", &detail::device::dequantize_kernel<scheme, T>, blocks, call);
}

}  // namespace microscale
