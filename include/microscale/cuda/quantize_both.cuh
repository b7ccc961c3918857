// Quantizing along the columns, or along both axes from one read: tiles pass through shared memory, from where a thread
// takes whole runs down the columns. Rows are quantized from registers on the way in. What does not fit takes the
// kernels of quantize.cuh; the bits are the same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "quantize_rows.cuh"

namespace microscale::detail::device {

// A tile of four runs down by 64 words across, for 256 threads.
template <class S, class T>
struct turning_tile {
  static constexpr int n = S::block::columns;
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  static constexpr int words = 64;  // of a row
  static constexpr int rows = 4 * n;
  static constexpr int cols = words * per_word;
  static constexpr int threads = 256;
  // Tiles below each other that thread blocks take one after another before they turn to the next ones to the right:
  // what they write down the columns then makes whole lines while it is in the cache.
  static constexpr int band = 8;
  static constexpr int adjacent = adjacent_runs<S, T>;
  static constexpr int row_width = n * adjacent;
  static constexpr int row_items = rows * (cols / row_width) / threads;  // of one thread
  static_assert(row_items * adjacent == per_word && words * 4 == threads);

  std::uint32_t word[rows * words];

  // Where word w of row r lies: moved about so that the four runs of a column are in different banks.
  static __device__ int index(int r, int w) { return r * words + (w ^ (r / n * 8)); }

  __device__ void put(int r, int w, const element_run<T, row_width>& run) {
#pragma unroll
    for (int i = 0; i < run.words; i += 4) {
      *reinterpret_cast<uint4*>(word + index(r, w + i)) =
          make_uint4(run.word[i], run.word[i + 1], run.word[i + 2], run.word[i + 3]);
    }
  }
  // The runs of the columns that share word w, from row `first`.
  __device__ void get(int first, int w, element_run<T, n> (&runs)[per_word]) const {
    if constexpr (per_word == 1) {
#pragma unroll
      for (int i = 0; i < n; ++i) runs[0].word[i] = word[index(first + i, w)];
    } else {
#pragma unroll
      for (int i = 0; i < n; i += 2) {
        const std::uint32_t a = word[index(first + i, w)], b = word[index(first + i + 1, w)];
        runs[0].word[i / 2] = __byte_perm(a, b, 0x5410);
        runs[1].word[i / 2] = __byte_perm(a, b, 0x7632);
      }
    }
  }
};

// In the place of a sink: nothing is quantized along this axis.
struct no_sink {};

template <class S, class T, class Transform>
struct both_call {
  quantize_call<S, T> row;  // where rows are quantized
  quantize_call<S, T> col;
  run_grid grid;        // of bands of tiles, tile by tile
  Transform transform;  // of the runs down the columns
  philox_keys row_keys;
  philox_keys col_keys;
  hidden_constants hidden;
};

// Stores the runs of neighbouring columns c, c + 1, ... from row r on.
template <class S, class T, int N, int Runs>
__device__ void store_columns(const packed_sink<S>& sink, index_t c, index_t r, const element_run<T, N> (&)[Runs],
                              const stored_run<S, N> (&runs)[Runs], const tensor_factors&) {
#pragma unroll
  for (int j = 0; j < Runs; ++j) {
    sink.write_scale(c + j, r / N, runs[j].scale);
    store_words(sink.out.codes + (c + j) * sink.out.code_pitch + r / 2, runs[j].codes);
  }
}
template <class S, class U, class T, int N, int Runs>
__device__ void store_columns(const decoded_sink<S, U>& sink, index_t c, index_t r, const element_run<T, N> (&x)[Runs],
                              const stored_run<S, N> (&runs)[Runs], const tensor_factors& back) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(U));
  std::uint32_t out[Runs][N / per_word];
#pragma unroll
  for (int j = 0; j < Runs; ++j) decode_run<S, U>(x[j], runs[j], back, out[j]);
  if constexpr (Runs == 2 && per_word == 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      *reinterpret_cast<std::uint32_t*>(sink.out.at(c, r + i)) =
          __byte_perm(out[0][i / 2], out[1][i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
    }
  } else {
#pragma unroll
    for (int j = 0; j < Runs; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float y[per_word];
        unpack_word<U>(out[j][i / per_word], y);
        *sink.out.at(c + j, r + i) = store_float<U>(y[i % per_word]);
      }
    }
  }
}

template <quantization_scheme S, rounding_mode R, class T, class RowSink, class ColSink, class Transform>
requires run_scheme<S, R> __global__ void __launch_bounds__(largest_thread_block)
    quantize_both_kernel(const both_call<S, T, Transform> both, const RowSink row_sink, const ColSink col_sink) {
  using tile = turning_tile<S, T>;
  constexpr int n = tile::n, width = tile::row_width, items = tile::cols / width;
  constexpr bool by_rows = !std::is_same_v<RowSink, no_sink>;
  __shared__ __align__(16) tile shared;
  const quantize_call<S, T>& col = both.col;
  const index_t rows = col.cols, cols = col.rows;  // of the input
  const int thread = static_cast<int>(threadIdx.x);
  std::uint32_t step = blockIdx.x;
  element_run<T, width> x[tile::row_items];
  index_t tile_row = 0, tile_col = 0;
  const auto load = [&] {
    const auto place = both.grid.at(step);
    tile_row = (place.row * tile::band + place.col % tile::band) * tile::rows;
    tile_col = place.col / tile::band * tile::cols;
#pragma unroll
    for (int g = 0; g < tile::row_items; ++g) {
      const int item = thread + g * tile::threads;
      const index_t r = tile_row + item / items, k = tile_col + item % items * width;
      if (r < rows && k < cols) {
        x[g].load(col.in.data + r * col.in.k_stride + k);
      } else {
        x[g] = {};
      }
    }
  };
  const float col_reference = load_reference(col);
  const float row_reference = by_rows ? load_reference(both.row) : 0.0f;
  load();
  const call_factors col_factors = share_factors<S>(col, col_reference, col_sink);
  call_factors row_factors;
  if constexpr (by_rows) {
    if constexpr (std::is_same_v<RowSink, ColSink>) __syncthreads();  // they pass through the same memory
    row_factors = share_factors<S>(both.row, row_reference, row_sink);
  }
  for (;;) {
#pragma unroll
    for (int g = 0; g < tile::row_items; ++g) {
      const int item = thread + g * tile::threads;
      shared.put(item / items, item % items * (width / tile::per_word), x[g]);
    }
    if constexpr (by_rows) {
#pragma unroll
      for (int g = 0; g < tile::row_items; ++g) {
        const int item = thread + g * tile::threads;
        const index_t r = tile_row + item / items, k = tile_col + item % items * width;
        stored_run<S, n> out[tile::adjacent];
#pragma unroll
        for (int j = 0; j < tile::adjacent; ++j) {
          const auto run = x[g].template slice<n>(j);
          out[j] = quantize_run<S, R>(run, run.largest_magnitude(), row_factors, both.row_keys,
                                      static_cast<std::uint64_t>(r * cols + k + j * n), both.hidden);
        }
        store_runs(row_sink, {r, k / n}, r < rows && k < cols, x[g], out, row_factors.back);
      }
    }
    __syncthreads();
    {
      const index_t r = tile_row + thread % 4 * n, c = tile_col + thread / 4 * tile::per_word;
      if (r < rows && c < cols) {
        element_run<T, n> runs[tile::per_word];
        shared.get(thread % 4 * n, thread / 4, runs);
        stored_run<S, n> out[tile::per_word];
#pragma unroll
        for (int j = 0; j < tile::per_word; ++j) {
          std::uint32_t largest = 0;
          const auto& run = both.transform(runs[j], largest);
          out[j] = quantize_run<S, R, Transform::power>(run, largest, col_factors, both.col_keys,
                                                        static_cast<std::uint64_t>((c + j) * rows + r), both.hidden);
        }
        store_columns(col_sink, c, r, runs, out, col_factors.back);
      }
    }
    step += gridDim.x;
    if (step >= both.grid.count) break;
    __syncthreads();
    load();
  }
}

// Whether quantizing along the columns takes quantize_both_kernel.
template <class S>
bool takes_columns(const packed_sink<S>& sink) noexcept {
  return is_aligned(sink.out.codes, sink.out.code_pitch, S::block::columns / 2);
}
template <class S, class U>
bool takes_columns(const decoded_sink<S, U>& sink) noexcept {
  return is_aligned(sink.out.data, sink.out.k_stride * static_cast<index_t>(sizeof(U)), 4);
}
template <class S, class T, class Sink>
bool fits_columns(const quantize_call<S, T>& call, const Sink& sink) noexcept {
  constexpr index_t n = S::block::columns;
  // `call` is the stored orientation: its rows are the columns of the input.
  return call.along == axis::col && is_aligned(call.in.data, call.in.k_stride * static_cast<index_t>(sizeof(T)), 16) &&
         !call.tiled && call.rows > 0 && call.cols > 0 && call.rows % turning_tile<S, T>::row_width == 0 &&
         call.cols % n == 0 && call.grid.rows == call.rows && call.grid.cols == call.cols / n &&
         call.rows <= most_runs / call.cols * 16 && takes_columns(sink);
}

template <rounding_mode R, class S, class T, class RowSink, class ColSink, class Transform = no_transform>
void launch_both(const cuda& executor, const char* what, const quantize_call<S, T>& row, const quantize_call<S, T>& col,
                 const RowSink& row_sink, const ColSink& col_sink, const Transform& transform = {}) {
  using tile = turning_tile<S, T>;
  const index_t per_row = ceil_div(col.rows, index_t{tile::cols}) * tile::band;  // tiles of a band
  const index_t count = ceil_div(col.cols, index_t{tile::rows * tile::band}) * per_row;
  const both_call<S, T, Transform> both{
      row,
      col,
      {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row))},
      transform,
      philox_keys(row.key),
      philox_keys(col.key),
      {}};
  cuda fixed = executor;
  fixed.launch.threads = tile::threads;
  launch(fixed, what, &quantize_both_kernel<S, R, T, RowSink, ColSink, Transform>, count, both, row_sink, col_sink);
}
template <rounding_mode R, class S, class T, class Sink, class Transform = no_transform>
void launch_columns(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink,
                    const Transform& transform = {}) {
  launch_both<R>(executor, what, call, call, no_sink{}, sink, transform);
}

}  // namespace microscale::detail::device
