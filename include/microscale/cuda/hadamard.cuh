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
  hadamard_signs signs;
  const hadamard_signs* read_signs;  // in device memory, in the place of those, or null
};

inline constexpr int hadamard_chunk = 16;
// A run of `size` elements lies in size / 16 neighbouring threads (in one thread where it is shorter). Chunks are laid
// out in groups of this many, the most that a run takes, so that every run sits in one warp.
inline constexpr int hadamard_threads = largest_hadamard / hadamard_chunk;
using hadamard_split = block_split<block<1, largest_hadamard>>;

// The signs of the 16 elements from 16 * member on, of runs of that size, which repeat.
template <class T>
__device__ std::uint32_t signs_of_chunk(const hadamard_call<T>& call, unsigned member) {
  const unsigned first = member * hadamard_chunk % static_cast<unsigned>(call.size);
  const hadamard_signs* const read = call.read_signs;
  const std::uint64_t word = read != nullptr ? read->word[first / 64] : call.signs.word[first / 64];
  const std::uint32_t signs = static_cast<std::uint32_t>(word >> first % 64) & 0xFFFFu;
  if (call.size >= hadamard_chunk) return signs;
  const std::uint32_t run = (1u << call.size) - 1;
  return (signs & run) * (0xFFFFu / run);
}

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
  const std::uint32_t signs = signs_of_chunk(call, static_cast<unsigned>(team.member));
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
  call.signs = options.signs;
  call.read_signs = options.read_signs;
  const index_t blocks = count_thread_blocks<hadamard_split>(call.grid, index_t{executor.launch.threads});
  launch(executor, "Hadamard transform", &hadamard_kernel<T, Sink>, blocks, call, sink);
}

// ---------------------------------------------------------------------------------------------------------------
// Runs of 16 and 32 at the memory's speed, where they are aligned; each thread has whole runs in registers.

// `Held` is what elements are while they are transformed: T of rows, whose elements lie packed in registers, float of
// columns.
template <class T, class U, class Held, int Size>
struct hadamard_runs_call {
  strided_matrix<const T> in;
  strided_matrix<U> out;
  run_grid grid;
  hadamard_transform<Held, Size> transform;
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
struct element_pair {
  std::uint32_t word[sizeof(T) / 2];

  __device__ void load(const T* p) {
    if constexpr (sizeof(T) == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      word[0] = v.x, word[1] = v.y;
    } else {
      word[0] = *reinterpret_cast<const std::uint32_t*>(p);
    }
  }
  // Negates both where bit `i` of `signs` is set.
  __device__ void negate(std::uint32_t signs, int i) {
    const std::uint32_t one = (i < 16 ? signs : signs >> 16) & 1u << (i % 16);
    constexpr std::uint32_t sign_bits = sizeof(T) == 4 ? 0x80000000u : 0x80008000u;
#pragma unroll
    for (std::uint32_t& w : word) w ^= one * (sign_bits >> (i % 16));
  }
  __device__ void unpack(float (&x)[2]) const {
    if constexpr (sizeof(T) == 4) {
      x[0] = fp32::from_bits(word[0]), x[1] = fp32::from_bits(word[1]);
    } else {
      unpack_word<T>(word[0], x);
    }
  }
};
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
    hadamard_rows_kernel(const hadamard_runs_call<T, U, T, Size> call) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(U));
  const std::uint32_t signs = call.transform.read_signs();
  for (std::uint32_t first = blockIdx.x * blockDim.x; first < call.grid.count; first += gridDim.x * blockDim.x) {
    const std::uint32_t i = first + threadIdx.x;
    const bool inside = i < call.grid.count;
    element_run<T, Size> x = {};
    if (inside) x.load(call.in.data + call.grid.template offset<Size>(i, call.in.row_stride));
    call.transform.negate_read(x, signs);
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

// The runs of two neighbouring columns from p on, with the transform's signs if they are read.
template <class T, int Size>
__device__ void load_columns(const T* p, index_t pitch, const hadamard_transform<float, Size>& transform,
                             std::uint32_t signs, element_run<float, Size> (&x)[2]) {
  element_pair<T> pairs[Size];
#pragma unroll
  for (int i = 0; i < Size; ++i) pairs[i].load(p + i * pitch);
  if (transform.reads != 0) {
    const std::uint32_t now = opaque(signs);
#pragma unroll
    for (int i = 0; i < Size; ++i) pairs[i].negate(now, i);
  }
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    float pair[2];
    pairs[i].unpack(pair);
    x[0].word[i] = fp32::bits(pair[0]);
    x[1].word[i] = fp32::bits(pair[1]);
  }
}

// The runs of two neighbouring columns for each thread, threads side by side; so rows are read and written as they lie.
template <class T, class U, int Size>
__global__ void __launch_bounds__(largest_thread_block)
    hadamard_columns_kernel(const hadamard_runs_call<T, U, float, Size> call) {
  const std::uint32_t signs = call.transform.read_signs();
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < call.grid.count; i += gridDim.x * blockDim.x) {
    const run_grid::place place = call.grid.at(i);
    const index_t row = place.row * Size, col = place.col * 2;
    element_run<float, Size> x[2], y[2];
    load_columns(call.in.data + row * call.in.k_stride + col, call.in.k_stride, call.transform, signs, x);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      std::uint32_t largest = 0;
      y[c] = call.transform(x[c], largest, call.hidden);
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
  const index_t blocks = ceil_div(index_t{grid.count}, index_t{executor.launch.threads});
  const auto start = [&]<class Held>(void (*kernel)(hadamard_runs_call<T, U, Held, Size>)) {
    launch(executor, "Hadamard transform", kernel, blocks,
           hadamard_runs_call<T, U, Held, Size>{from, to, grid, hadamard_transform<Held, Size>(options), {}});
  };
  if (along_row) {
    start(&hadamard_rows_kernel<T, U, Size>);
  } else {
    start(&hadamard_columns_kernel<T, U, Size>);
  }
  return true;
}

// 64 signs a thread.
template <class = void>
__global__ void draw_signs_kernel(random_key key, const std::uint64_t* stream_offset, hadamard_signs* out) {
  static_assert(sizeof(hadamard_signs) * 8 == largest_hadamard);
  key.stream += *stream_offset;
  if (threadIdx.x >= largest_hadamard / 64) return;
  const std::uint64_t low = draw<32>(key, 2 * threadIdx.x), high = draw<32>(key, 2 * threadIdx.x + 1);
  out->word[threadIdx.x] = high << 32 | low;
}

}  // namespace detail::device

// Writes hadamard_signs::drawn of `key`, its stream plus *stream_offset, to *out, both of which are device memory: for
// hadamard_options::read_signs, where a CUDA graph is to draw other signs in each replay (with_stream_offset does the
// same for roundings).
inline void draw_signs_into(const cuda& executor, random_key key, const std::uint64_t* stream_offset,
                            hadamard_signs* out) {
  if (stream_offset == nullptr) detail::fail("draw of signs", "a stream offset in device memory", "a null pointer");
  if (out == nullptr) detail::fail("draw of signs", "memory for the result", "a null pointer");
  detail::device::launch(executor, "draw of signs", &detail::device::draw_signs_kernel<>, 1, key, stream_offset, out);
}

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
