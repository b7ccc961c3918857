// Quantizing along the columns, or along both axes from one read: tiles pass through shared memory, from where a thread
// takes whole runs down the columns. Rows are quantized from registers on the way in. What does not fit takes the
// kernels of quantize.cuh; the bits are the same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "quantize_rows.cuh"

namespace microscale::detail::device {

// Four matrices of eight rows by eight 16-bit elements, each turned around, from the rows that lanes 0 to 7, 8 to 15,
// ... of the warp point at.
__device__ inline void load_turned(const std::uint32_t* row, std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                   std::uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

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
  static constexpr int rounds = 4;  // tiles of a thread block, where there are enough
  static constexpr int adjacent = adjacent_runs<S, T>;
  static constexpr int row_width = n * adjacent;
  static constexpr int row_items = rows * (cols / row_width) / threads;  // of one thread
  static_assert(row_items * adjacent == per_word && words * 4 == threads);

  alignas(16) std::uint32_t word[rows * words];

  // Where word w of row r lies, and word w + i, for w a multiple of 4, at that ^ i where w ^ i is w + i. Words move
  // about in fours, so that none of these meets a bank twice: eight lanes that write four words each, in two or four
  // rows; four runs of a column times eight words; the rows 2 i and 2 i + 1 of four runs, four words each.
  static __device__ unsigned index(unsigned r, unsigned w) {
    return r * words + (w ^ 4 * ((r & 1) ^ (r & 2) * 2 ^ (r / n % 4) * 2 ^ (w >> 5) * 2));
  }

  __device__ void put(unsigned r, unsigned w, const element_run<T, row_width>& run) {
#pragma unroll
    for (unsigned i = 0; i < run.words; i += 4) {
      *reinterpret_cast<uint4*>(word + (index(r, w) ^ i)) =
          make_uint4(run.word[i], run.word[i + 1], run.word[i + 2], run.word[i + 3]);
    }
  }

  // A thread's share of the columns: `per_word` runs from row `first` on, in columns `column` and, of 16-bit elements,
  // column + 8.
  static constexpr int columns_apart = 8;
  static __device__ unsigned first(unsigned thread) { return thread % 4 * n; }
  static __device__ unsigned column(unsigned thread) {
    return per_word == 1 ? thread / 4 : thread / 32 * 16 + thread % 32 / 4;
  }
  __device__ void get(unsigned thread, element_run<T, n> (&runs)[per_word]) const {
    if constexpr (per_word == 1) {
#pragma unroll
      for (unsigned i = 0; i < n; ++i) runs[0].word[i] = word[index(first(thread) + i, column(thread))];
    } else {
      // Matrices of eight rows by eight elements, turned while they are loaded: lane l gets of each the rows
      // 2 (l % 4) and 2 (l % 4) + 1 of column l / 4. So rows of a matrix are pairs out of each of the four runs.
      const unsigned lane = thread % 32, row = lane % 8;
      const unsigned pair = row / 2 * n + row % 2 + lane / 8 * 2;  // matrix lane / 8 of four
      const unsigned at = index(pair, thread / 32 * 8);
#pragma unroll
      for (unsigned j = 0; j < per_word; ++j) {
        const std::uint32_t* const from = word + (at ^ j * (columns_apart / per_word));
#pragma unroll
        for (unsigned i = 0; i < n; i += 8) {  // eight rows further all words lie the same
          std::uint32_t* const to = runs[j].word + i / 2;
          load_turned(from + i * words, to[0], to[1], to[2], to[3]);
        }
      }
    }
  }
};

// In the place of a sink: nothing is quantized along this axis.
struct no_sink {};

template <class S, class T, class Transform, class Draws>
struct both_call {
  quantize_call<S, T> row;  // where rows are quantized
  quantize_call<S, T> col;
  run_grid grid;        // of bands of tiles, tile by tile
  Transform transform;  // of the runs down the columns
  Draws row_draws;
  Draws col_draws;
  hidden_constants hidden;
};

// Stores the runs of columns c, c + Apart, ... from row r on. `lanes` are those of the warp that have any; in pairs,
// eight columns side by side.
template <int Apart, class S, class T, int N, int Runs>
__device__ void store_columns(const packed_sink<S>& sink, index_t c, index_t r, unsigned,
                              const element_run<T, N> (&)[Runs], const stored_run<S, N> (&runs)[Runs],
                              const tensor_factors&) {
#pragma unroll
  for (int j = 0; j < Runs; ++j) {
    sink.write_scale(c + j * Apart, r / N, runs[j].scale);
    store_words(sink.out.codes + (c + j * Apart) * sink.out.code_pitch + r / 2, runs[j].codes);
  }
}
template <int Apart, class S, class U, class T, int N, int Runs>
__device__ void store_columns(const decoded_sink<S, U>& sink, index_t c, index_t r, unsigned lanes,
                              const element_run<T, N> (&x)[Runs], const stored_run<S, N> (&runs)[Runs],
                              const tensor_factors& back) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(U));
  std::uint32_t out[Runs][N / per_word];
#pragma unroll
  for (int j = 0; j < Runs; ++j) decode_run<S, U>(x[j], runs[j], back, out[j]);
  if constexpr (Runs == 2 && per_word == 2) {
    // Lanes of neighbouring columns trade, so that each has two neighbours to store at once: c and c + 1 the one, and
    // the other those that are `Apart` further.
    const bool odd = c % 2 != 0;
    const index_t first = odd ? c - 1 + Apart : c;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const std::uint32_t received = __shfl_xor_sync(lanes, odd ? out[0][i] : out[1][i], 4);
      const std::uint32_t a = odd ? received : out[0][i], b = odd ? out[1][i] : received;
      *reinterpret_cast<std::uint32_t*>(sink.out.at(first, r + 2 * i)) = __byte_perm(a, b, 0x5410);
      *reinterpret_cast<std::uint32_t*>(sink.out.at(first, r + 2 * i + 1)) = __byte_perm(a, b, 0x7632);
    }
  } else {
#pragma unroll
    for (int j = 0; j < Runs; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float y[per_word];
        unpack_word<U>(out[j][i / per_word], y);
        *sink.out.at(c + j * Apart, r + i) = store_float<U>(y[i % per_word]);
      }
    }
  }
}

template <quantization_scheme S, rounding_mode R, class T, class RowSink, class ColSink, class Transform>
requires run_scheme<S, R> __global__ void __launch_bounds__(largest_thread_block)
    quantize_both_kernel(const both_call<S, T, Transform, typename mode_parts<R>::draws> both, const RowSink row_sink,
                         const ColSink col_sink) {
  using rule = typename mode_parts<R>::rule;
  using tile = turning_tile<S, T>;
  constexpr unsigned n = tile::n, width = tile::row_width, items = tile::cols / width;
  constexpr bool by_rows = !std::is_same_v<RowSink, no_sink>;
  // The next tile is read while the columns of this one are quantized, where registers allow.
  constexpr bool loads_ahead = tile::row_items == 1;
  __shared__ tile shared;
  const quantize_call<S, T>& col = both.col;
  const auto rows = static_cast<std::uint32_t>(col.cols), cols = static_cast<std::uint32_t>(col.rows);  // of the input
  const auto& row_stream = stream_of(both.row_draws, both.row.stream_offset);
  const auto& col_stream = stream_of(both.col_draws, col.stream_offset);
  const unsigned thread = threadIdx.x;
  std::uint32_t step = blockIdx.x, tile_row = 0, tile_col = 0;
  element_run<T, width> x[tile::row_items];
  const auto load = [&] {
    const std::uint32_t row = both.grid.per_row(step), place = step - row * both.grid.per_row.divisor;
    tile_row = (row * tile::band + place % tile::band) * tile::rows;
    tile_col = place / tile::band * tile::cols;
#pragma unroll
    for (unsigned g = 0; g < tile::row_items; ++g) {
      const unsigned item = thread + g * tile::threads;
      const std::uint32_t r = tile_row + item / items, k = tile_col + item % items * width;
      if (r < rows && k < cols) x[g].load(col.in.data + (index_t{r} * col.in.k_stride + k));
    }
  };
  // Two warps derive the factors of the two calls at once.
  constexpr unsigned row_leader = 32;
  const float col_reference = load_reference(col);
  const float row_reference = by_rows ? load_reference(both.row, row_leader) : 0.0f;
  const std::uint32_t signs = both.transform.read_signs();
  load();
  call_factors col_factors, row_factors;
  if constexpr (S::has_tensor_scale) {
    __shared__ shared_factors<ColSink::decodes> shared_col, shared_row;
    if (threadIdx.x == 0) shared_col.template put<S>(col, col_reference, col_sink);
    if constexpr (by_rows) {
      if (threadIdx.x == row_leader) shared_row.template put<S>(both.row, row_reference, row_sink);
    }
    __syncthreads();
    col_factors = shared_col.template get<S>(col.target);
    if constexpr (by_rows) row_factors = shared_row.template get<S>(both.row.target);
  }
  for (;;) {
#pragma unroll
    for (unsigned g = 0; g < tile::row_items; ++g) {
      const unsigned item = thread + g * tile::threads;
      shared.put(item / items, item % items * (width / tile::per_word), x[g]);
    }
    if constexpr (by_rows) {
#pragma unroll
      for (unsigned g = 0; g < tile::row_items; ++g) {
        const unsigned item = thread + g * tile::threads;
        const std::uint32_t r = tile_row + item / items, k = tile_col + item % items * width;
        element_run<T, n> y[tile::adjacent];
        stored_run<S, n> out[tile::adjacent];
#pragma unroll
        for (unsigned j = 0; j < tile::adjacent; ++j) {
          y[j] = x[g].template slice<n>(j);
          out[j] = quantize_run<S, rule>(y[j], y[j].largest_magnitude(), row_factors, row_stream,
                                         std::uint64_t{r} * cols + k + j * n, both.hidden);
        }
        store_runs(row_sink, spot_at<width>(row_sink, r, k), r < rows && k < cols, y, out, row_factors.back);
      }
    }
    __syncthreads();
    const std::uint32_t r = tile_row + tile::first(thread), c = tile_col + tile::column(thread);
    step += gridDim.x;
    const bool last = step >= both.grid.count;
    if (!last && loads_ahead) load();
    element_run<T, n> runs[tile::per_word];
    shared.get(thread, runs);
    const bool inside = r < rows && c < cols;
    const unsigned lanes = __ballot_sync(~0u, inside);
    if (inside) {
      typename Transform::template result<T, n> y[tile::per_word];
      stored_run<S, n> out[tile::per_word];
      both.transform.negate_read(runs, signs);
#pragma unroll
      for (unsigned j = 0; j < tile::per_word; ++j) {
        std::uint32_t largest = 0;
        y[j] = both.transform(runs[j], largest, both.hidden);
        out[j] = quantize_run<S, rule, Transform::power>(
            y[j], largest, col_factors, col_stream, std::uint64_t{c + j * tile::columns_apart} * rows + r, both.hidden);
      }
      store_columns<tile::columns_apart>(col_sink, c, r, lanes, y, out, col_factors.back);
    }
    if (last) break;
    if (!loads_ahead) load();
    __syncthreads();
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
  using draws = typename mode_parts<R>::draws;
  const both_call<S, T, Transform, draws> both{
      row,
      col,
      {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row))},
      transform,
      draws(row.key),
      draws(col.key),
      hidden_constants_for<typename mode_parts<R>::rule>()};
  cuda fixed = executor;
  fixed.launch.threads = tile::threads;
  launch(fixed, what, &quantize_both_kernel<S, R, T, RowSink, ColSink, Transform>, in_rounds(count, tile::rounds), both,
         row_sink, col_sink);
}
template <rounding_mode R, class S, class T, class Sink, class Transform = no_transform>
void launch_columns(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink,
                    const Transform& transform = {}) {
  launch_both<R>(executor, what, call, call, no_sink{}, sink, transform);
}

}  // namespace microscale::detail::device
