// The Hadamard transform of runs along an axis, on the device: the sums of tensor/hadamard.hpp in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../tensor/hadamard.hpp"
#include "quantize_rows.cuh"

namespace microscale {

namespace detail::device {

template <class T>
struct hadamard_call {
  strided_matrix<const T> in;
  block_grid grid;  // rows x chunks of 16
  index_t length;   // of a row along the transform
  int size;
  float factor;
  hadamard_signs signs;  // repeated, so that every thread finds its own 16
};

inline constexpr int hadamard_chunk = 16;
// A run of `size` elements lies in size / 16 neighbouring threads (in one thread where it is shorter). Chunks are laid
// out in groups of this many, the most that a run takes, so that every run sits in one warp.
inline constexpr int hadamard_threads = largest_hadamard / hadamard_chunk;
using hadamard_split = block_split<block<1, largest_hadamard>>;

// Where chunks of the transform go: to memory, or into its amax (hadamard_amax.cuh).
template <class U>
struct transform_sink {
  strided_matrix<U> out;

  __device__ void put(index_t row, index_t k, int n, const float (&x)[hadamard_chunk]) const {
    if (n > 0) store_chunk(out.at(row, k), out.k_stride, n, out.wide, x);
  }
  __device__ void finish() const {}
};

template <class T, class Sink>
__global__ void __launch_bounds__(largest_thread_block) hadamard_kernel(const hadamard_call<T> call, Sink sink) {
  static_assert(hadamard_split::threads == hadamard_threads && hadamard_split::passes == 1);
  const block_team<hadamard_split> team(call.grid.order);
  // The lane that holds the chunk next to this one along the run.
  const int step_lane = call.grid.order == block_order::tiled ? hadamard_split::groups : 1;
  const std::uint32_t signs =
      static_cast<std::uint32_t>(call.signs.word[team.member / 4] >> (team.member % 4 * hadamard_chunk)) & 0xFFFFu;
  const index_t steps = count_thread_blocks<hadamard_split>(call.grid, index_t{blockDim.x});
#pragma unroll 1
  for (index_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const block_place place = place_of<hadamard_split>(call.grid, step, team.group);
    if (!place.inside) continue;
    const index_t k = place.col * largest_hadamard + team.member * hadamard_chunk;
    const int n = static_cast<int>(larger(index_t{0}, smaller(index_t{hadamard_chunk}, call.length - k)));
    float x[hadamard_chunk];
    load_chunk(call.in.at(place.row, k), call.in.k_stride, n, call.in.wide, x);
#pragma unroll
    for (int i = 0; i < hadamard_chunk; ++i) {
      x[i] = fp32::from_bits(fp32::bits(x[i]) ^ (signs >> i & 1u) << 31);
    }
#pragma unroll
    for (int stride = 1; stride < hadamard_chunk; stride *= 2) {
      if (stride < call.size) {
#pragma unroll
        for (int i = 0; i < hadamard_chunk; ++i) {
          if ((i & stride) == 0) {
            const float u = x[i], v = x[i + stride];
            x[i] = fp32::add(u, v);
            x[i + stride] = fp32::sub(u, v);
          }
        }
      }
    }
#pragma unroll 1
    for (int distance = 1; distance * hadamard_chunk < call.size; distance *= 2) {
      const bool upper = (team.member & distance) != 0;
#pragma unroll
      for (int i = 0; i < hadamard_chunk; ++i) {
        const float other = __shfl_xor_sync(team.mask, x[i], distance * step_lane);
        // u + v in the lower half, u - v in the upper one, where `other` is u.
        x[i] = upper ? fp32::sub(other, x[i]) : fp32::add(x[i], other);
      }
    }
#pragma unroll
    for (int i = 0; i < hadamard_chunk; ++i) x[i] = fp32::mul(x[i], call.factor);
    sink.put(place.row, k, n, x);
  }
  sink.finish();
}

template <class T, class Sink>
void launch_hadamard(const cuda& executor, const matrix_view<const T>& in, const hadamard_options& options,
                     const Sink& sink) {
  const bool along_row = options.axis == axis::row;
  hadamard_call<T> call = {};
  call.in = as_stored(in, options.axis);
  call.length = along_row ? in.cols : in.rows;
  call.grid = {along_row ? in.rows : in.cols, ceil_div(call.length, index_t{largest_hadamard}),
               along_row ? block_order::row_major : block_order::tiled};
  call.size = options.size;
  call.factor = hadamard_factor(options.size);
  for (int i = 0; i < largest_hadamard; ++i) {
    if (options.signs.negative(i % options.size)) call.signs.negate(i);
  }
  const index_t blocks = count_thread_blocks<hadamard_split>(call.grid, index_t{executor.launch.threads});
  launch(executor, "Hadamard transform", &hadamard_kernel<T, Sink>, blocks, call, sink);
}

// ---------------------------------------------------------------------------------------------------------------
// Runs of 16 and 32 at the memory's speed, where they are aligned; each thread has whole runs in registers.

template <class T, class U, int Size>
struct hadamard_runs_call {
  strided_matrix<const T> in;
  strided_matrix<U> out;
  run_grid grid;
  hadamard_transform<T, Size> transform;
  hadamard_transform<float, Size> wide_transform;
  hidden_constants hidden;
};

// A transformed run with what hadamard_transform leaves of the factor.
template <class Transform, int N>
__device__ float finished(const element_run<float, N>& y, int i) {
  constexpr float rest = fp32::from_bits(static_cast<std::uint32_t>(127 - Transform::power) << 23);
  return Transform::power == 0 ? y.at(i) : fp32::mul(y.at(i), rest);
}

// Two neighbours in memory, in one access.
template <class T>
__device__ void load_pair(const T* p, float (&x)[2]) {
  if constexpr (sizeof(T) == 4) {
    const float2 v = *reinterpret_cast<const float2*>(p);
    x[0] = v.x, x[1] = v.y;
  } else {
    unpack_word<T>(*reinterpret_cast<const std::uint32_t*>(p), x);
  }
}
template <class T>
__device__ void store_pair(T* p, const float (&x)[2]) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(p) = make_float2(x[0], x[1]);
  } else {
    *reinterpret_cast<std::uint32_t*>(p) = pack_word<T>(x);
  }
}

// A run of a row for each thread.
template <class T, class U, int Size>
__global__ void __launch_bounds__(largest_thread_block)
    hadamard_rows_kernel(const hadamard_runs_call<T, U, Size> call) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(U));
  for (std::uint32_t first = blockIdx.x * blockDim.x; first < call.grid.count; first += gridDim.x * blockDim.x) {
    const std::uint32_t i = first + threadIdx.x;
    const bool inside = i < call.grid.count;
    element_run<T, Size> x = {};
    if (inside) x.load(call.in.data + call.grid.template offset<Size>(i, call.in.row_stride));
    std::uint32_t largest = 0;
    const auto y = call.transform(x, largest, call.hidden);
    std::uint32_t out[Size / per_word];
#pragma unroll
    for (int j = 0; j < Size; j += per_word) {
      float words[per_word];
#pragma unroll
      for (int k = 0; k < per_word; ++k) words[k] = finished<hadamard_transform<T, Size>>(y, j + k);
      out[j / per_word] = pack_word<U>(words);
    }
    U* const to = call.out.data + call.grid.template offset<Size>(i, call.out.row_stride);
    store_paired(inside ? reinterpret_cast<std::uint8_t*>(to) : nullptr, out);
  }
}

// The runs of two neighbouring columns from p on.
template <class T, int Size>
__device__ void load_columns(const T* p, index_t pitch, element_run<float, Size> (&x)[2]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    float pair[2];
    load_pair(p + i * pitch, pair);
    x[0].word[i] = fp32::bits(pair[0]);
    x[1].word[i] = fp32::bits(pair[1]);
  }
}

// The runs of two neighbouring columns for each thread, threads side by side; so rows are read and written as they lie.
template <class T, class U, int Size>
__global__ void __launch_bounds__(largest_thread_block)
    hadamard_columns_kernel(const hadamard_runs_call<T, U, Size> call) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < call.grid.count; i += gridDim.x * blockDim.x) {
    const run_grid::place place = call.grid.at(i);
    const index_t row = place.row * Size, col = place.col * 2;
    element_run<float, Size> x[2], y[2];
    load_columns(call.in.data + row * call.in.k_stride + col, call.in.k_stride, x);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      std::uint32_t largest = 0;
      y[c] = call.wide_transform(x[c], largest, call.hidden);
    }
    U* const to = call.out.data + row * call.out.k_stride + col;
#pragma unroll
    for (int j = 0; j < Size; ++j) {
      using transform = hadamard_transform<float, Size>;
      const float pair[2] = {finished<transform>(y[0], j), finished<transform>(y[1], j)};
      store_pair(to + j * call.out.k_stride, pair);
    }
  }
}

// Whether rows begin on two elements, and the columns of a matrix make pairs.
template <class T>
bool has_column_pairs(const matrix_view<T>& m) noexcept {
  constexpr auto bytes = static_cast<index_t>(sizeof(T));
  return m.cols % 2 == 0 && is_aligned(m.data, m.pitch * bytes, 2 * bytes);
}

// The grid of those kernels, if it is one that they count.
template <int Size, class T>
bool count_hadamard_runs(const matrix_view<const T>& in, axis along, run_grid& grid) {
  const index_t per_row = along == axis::row ? in.cols / Size : in.cols / 2;
  const index_t lines = along == axis::row ? in.rows : in.rows / Size;
  if (lines > most_runs / per_row) return false;
  grid.count = static_cast<std::uint32_t>(lines * per_row);
  grid.per_row = quick_divider(static_cast<std::uint32_t>(per_row));
  return true;
}

// Launches the one or the other, and returns whether it does: not for misaligned memory.
template <int Size, class T, class U>
bool try_hadamard_runs(const cuda& executor, const matrix_view<const T>& in, const matrix_view<U>& out,
                       const hadamard_options& options) {
  const bool along_row = options.axis == axis::row;
  const auto from = as_stored(in, options.axis);
  const auto to = as_stored(out, options.axis);
  const bool aligned = along_row ? from.wide && to.wide : has_column_pairs(in) && has_column_pairs(out);
  run_grid grid;
  if (!aligned || !count_hadamard_runs<Size>(in, options.axis, grid)) return false;
  const hadamard_runs_call<T, U, Size> call{
      from, to, grid, hadamard_transform<T, Size>(options.signs), hadamard_transform<float, Size>(options.signs), {}};
  const index_t blocks = ceil_div(index_t{grid.count}, index_t{executor.launch.threads});
  launch(executor, "Hadamard transform",
         along_row ? &hadamard_rows_kernel<T, U, Size> : &hadamard_columns_kernel<T, U, Size>, blocks, call);
  return true;
}

}  // namespace detail::device

// Transforms each run of options.size elements along the chosen axis, as the host's hadamard_into does. `out` may be
// the same memory as `in` where the types are the same.
template <class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void hadamard_into(const cuda& executor, matrix_view<T> in, matrix_view<U> out, const hadamard_options& options = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  const bool along_row = options.axis == axis::row;
  const index_t length = along_row ? in.cols : in.rows;
  detail::check_hadamard(options, length);
  detail::device::check_launch(executor.launch);
  if (in.empty()) return;
  const matrix_view<const element> from = in;
  if (options.size == 16 && detail::device::try_hadamard_runs<16>(executor, from, out, options)) return;
  if (options.size == 32 && detail::device::try_hadamard_runs<32>(executor, from, out, options)) return;
  detail::device::launch_hadamard(executor, from, options,
                                  detail::device::transform_sink<U>{detail::device::as_stored(out, options.axis)});
}

}  // namespace microscale
