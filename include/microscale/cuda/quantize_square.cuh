// Quantizing square blocks at the memory's speed: a warp takes one strip of blocks, 64 elements wide, so that it reads
// and writes whole sectors, and its lanes share the amax of a block through shuffles. What does not fit takes the
// kernels of quantize.cuh; the bits are the same.
#pragma once

#include <cstdint>

#include "quantize_rows.cuh"

namespace microscale::detail::device {

// Lane l of a warp holds eight elements of columns 8 (l % 8) ... of the rows l / 8, l / 8 + 4, ... of a strip.
template <class S>
struct square_strip {
  static constexpr int n = S::block::rows;
  static constexpr int width = 64;
  static constexpr int passes = n / 4;
  static_assert(S::block::is_square && n % 8 == 0 && width % n == 0);

  // The largest of a block's lanes, in each of them.
  static __device__ std::uint32_t largest_of_block(std::uint32_t own) {
#pragma unroll
    for (int distance = 1; distance < n / 8; distance *= 2) {
      own = larger(own, __shfl_xor_sync(~0u, own, distance));
    }
    own = larger(own, __shfl_xor_sync(~0u, own, 8));
    return larger(own, __shfl_xor_sync(~0u, own, 16));
  }

  // This lane's share of its block; all lanes of the warp together.
  template <rounding_mode R, class T>
  static __device__ void quantize(const element_run<T, 8> (&x)[passes], const call_factors& f,
                                  const hidden_constants& hidden, stored_run<S, 8> (&out)[passes]) {
    static_assert(R::random_bits == 0);
    const philox_stream no_draws(random_key{});
    std::uint32_t word = x[0].largest_word();
#pragma unroll
    for (int p = 1; p < passes; ++p) word = larger_magnitudes<T>(word, x[p].largest_word());
    const std::uint32_t largest = largest_of_block(element_run<T, 8>::largest_of(word));
    const bool plain = largest < fp32::infinity_bits && !f.refused;
    running_amax amax;
    if (!__all_sync(~0u, plain)) {
      running_amax own;
#pragma unroll
      for (int p = 0; p < passes; ++p) x[p].show_all(own);
      amax.see(fp32::from_bits(largest_of_block(fp32::bits(own.ignoring_nan()))));
      if (largest > fp32::infinity_bits) amax.see(fp32::quiet_nan());
    }
    typename S::scale::storage scale = 0;
    if (plain) {
      scale = S::rule::template scale<amax_scheme<S>>(fp32::from_bits(largest), f.forward);
      const run_encoder<S, R, 0> encoder(scale, f.forward, fp32::from_bits(largest));
      if (is_always_usable<S> || encoder.usable) {
#pragma unroll
        for (int p = 0; p < passes; ++p) encoder.encode(x[p], no_draws, 0, hidden, out[p].codes);
      } else {
#pragma unroll
        for (int p = 0; p < passes; ++p) encode_rare<S, R>(x[p], scale, f.forward, no_draws, 0, out[p].codes);
      }
    } else {
#pragma unroll
      for (int p = 0; p < passes; ++p) {
        const bool poisoned = poison_run<S>(amax, f, scale, out[p].codes);
        if (!is_always_poisoned<S> && !poisoned) encode_rare<S, R>(x[p], scale, f.forward, no_draws, 0, out[p].codes);
      }
    }
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      out[p].scale = scale;
      out[p].plain = plain;
    }
  }
};

// Independent strips of one warp, whose loads are all under way before the first is used.
template <class S>
inline constexpr int square_strips_a_warp = S::block::rows == 16 ? 2 : 1;

template <class S, class T>
struct square_call {
  quantize_call<S, T> call;
  run_grid grid;  // of strips
  hidden_constants hidden;
};

// Stores eight elements of a row.
template <class S, class T>
__device__ void store_eight(const packed_sink<S>& sink, index_t r, index_t k, const element_run<T, 8>&,
                            const stored_run<S, 8>& run, const tensor_factors&) {
  *reinterpret_cast<std::uint32_t*>(sink.out.codes + r * sink.out.code_pitch + k / 2) = run.codes[0];
}
template <class S, class U, class T>
__device__ void store_eight(const decoded_sink<S, U>& sink, index_t r, index_t k, const element_run<T, 8>& x,
                            const stored_run<S, 8>& run, const tensor_factors& back) {
  std::uint32_t out[2 * sizeof(U)];
  decode_run<S, U>(x, run, back, out);
  store_words(reinterpret_cast<std::uint8_t*>(sink.out.at(r, k)), out);
}

template <quantization_scheme S, rounding_mode R, class T, class Sink>
requires run_scheme<S, R> __global__ void __launch_bounds__(largest_thread_block)
    quantize_square_kernel(const square_call<S, T> square, const Sink sink) {
  using strip = square_strip<S>;
  constexpr int strips = square_strips_a_warp<S>;
  const quantize_call<S, T>& call = square.call;
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t warps = blockDim.x / 32;
  const auto cols = static_cast<std::uint32_t>(call.cols);
  std::uint32_t first = blockIdx.x * warps * strips + threadIdx.x / 32;
  element_run<T, 8> x[strips][strip::passes];
  std::uint32_t row[strips], k[strips];
  bool inside[strips];
  const auto load = [&] {
#pragma unroll
    for (int g = 0; g < strips; ++g) {
      const std::uint32_t i = first + g * warps, strip_row = square.grid.per_row(i);
      row[g] = strip_row * strip::n + lane / 8;
      k[g] = (i - strip_row * square.grid.per_row.divisor) * strip::width + lane % 8 * 8;
      inside[g] = i < square.grid.count && k[g] < cols;
      const T* from = call.in.data + (index_t{row[g]} * call.in.row_stride + k[g]);
#pragma unroll
      for (int p = 0; p < strip::passes; ++p) {
        if (inside[g]) {
          x[g][p].load(from);
        } else {
          x[g][p] = {};
        }
        from += 4 * call.in.row_stride;
      }
    }
  };
  const float reference = load_reference(call);
  load();
  const call_factors f = share_factors<S>(call, reference, sink);
  for (;;) {
#pragma unroll
    for (int g = 0; g < strips; ++g) {
      stored_run<S, 8> out[strip::passes];
      strip::template quantize<R>(x[g], f, square.hidden, out);
      if (!inside[g]) continue;
      if (lane / 8 == 0 && lane % 8 % (strip::n / 8) == 0) {
        sink.write_scale(row[g] / strip::n, k[g] / strip::n, out[0].scale);
      }
#pragma unroll
      for (int p = 0; p < strip::passes; ++p) store_eight(sink, row[g] + 4 * p, k[g], x[g][p], out[p], f.back);
    }
    first += gridDim.x * warps * strips;
    if (first - threadIdx.x / 32 >= square.grid.count) break;
    load();
  }
}

template <class S>
bool takes_eights(const packed_sink<S>& sink) noexcept {
  return is_aligned(sink.out.codes, sink.out.code_pitch, 4);
}
template <class S, class U>
bool takes_eights(const decoded_sink<S, U>& sink) noexcept {
  return sink.out.wide;
}

// Whether a call takes quantize_square_kernel.
template <class S, class T, class Sink>
bool fits_square(const quantize_call<S, T>& call, const Sink& sink) noexcept {
  constexpr int n = S::block::rows;
  return call.in.wide && !call.tiled && call.rows > 0 && call.rows <= most_runs && call.cols > 0 &&
         call.cols <= most_runs && call.rows % n == 0 && call.cols % n == 0 && call.grid.rows == call.rows / n &&
         call.grid.cols == call.cols / n && call.grid.rows <= most_runs / call.grid.cols && takes_eights(sink);
}

template <rounding_mode R, class S, class T, class Sink>
void launch_square(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink) {
  const index_t per_row = ceil_div(call.cols, index_t{square_strip<S>::width});
  const index_t count = call.rows / S::block::rows * per_row;
  const square_call<S, T> square{
      call,
      {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row))},
      hidden_constants_for<R>()};
  launch(executor, what, &quantize_square_kernel<S, R, T, Sink>,
         ceil_div(count, index_t{executor.launch.threads} / 32 * square_strips_a_warp<S>), square, sink);
}

}  // namespace microscale::detail::device
