// Quantizing and dequantizing whole matrices on the device: the bits of tensor/quantize.hpp.
//
// Where the host throws because of the *data* (a reference that cannot be one, a NaN under nonfinite::reject), the
// device writes poison and says so in the executor's status word (executor.cuh).
#pragma once

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
#include "block.cuh"

namespace microscale {

namespace detail::device {

// ---------------------------------------------------------------------------------------------------------------
// What all blocks of a call share.

template <class S, class T>
struct quantize_call {
  strided_matrix<const T> in;
  index_t rows;  // as stored
  index_t cols;
  block_grid grid;  // with the padding of the scale layout
  axis along;
  const float* reference;
  bool own_reference;  // the amax of this very matrix
  bool tiled;          // several tensor scales: one reference and one datum for each tile
  tensor_tile tile;
  index_t tiles;
  index_t tile_cols;  // of the grid of tiles
  int target;
  random_key key;
  random_key scale_key;
  cuda_status* status;

  __device__ index_t tile_index(index_t r, index_t k) const {
    return (tile.rows == 0 ? 0 : r / tile.rows) * tile_cols + (tile.cols == 0 ? 0 : k / tile.cols);
  }
  __device__ bool begins_tile(index_t r, index_t k) const {
    return (tile.rows == 0 ? r == 0 : r % tile.rows == 0) && (tile.cols == 0 ? k == 0 : k % tile.cols == 0);
  }
};

// The rounding of the elements of a mode, and its keys.
template <class R>
struct mode_parts {
  using elements = R;
  static random_key element_key(const R& mode) noexcept {
    if constexpr (stochastic_mode<R>) {
      return mode.key();
    } else {
      return {};
    }
  }
  static random_key scale_key(const R&) noexcept { return {}; }
};
template <class Elements>
struct mode_parts<with_scale_draws<Elements>> {
  using elements = Elements;
  static random_key element_key(const with_scale_draws<Elements>& mode) noexcept {
    return mode_parts<Elements>::element_key(mode.elements);
  }
  static random_key scale_key(const with_scale_draws<Elements>& mode) noexcept { return mode.scales; }
};

struct call_factors {
  tensor_factors forward;
  tensor_factors back;  // what decoding has of them
  bool refused = false;
};

__device__ inline void report(cuda_status* status, std::uint64_t word) {
  if (status != nullptr) {
    atomicMin(reinterpret_cast<unsigned long long*>(&status->word), static_cast<unsigned long long>(word));
  }
}

template <quantization_scheme S>
__device__ call_factors derive_factors(float reference, bool own, int target) {
  call_factors f;
  if (own && S::policy == nonfinite::saturate) reference = finite_or_nan(reference);
  const bool usable = fp32::is_finite(reference) || (S::tensor_scale::accepts_infinity && fp32::is_infinite(reference));
  f.refused = !usable || (fp32::is_negative(reference) && !fp32::is_zero(reference));
  if (f.refused) {
    f.forward = {fp32::quiet_nan(), fp32::quiet_nan(), fp32::quiet_nan(), target};
  } else {
    f.forward = S::factors(fp32::abs(reference), target);
  }
  f.back = S::from_stored(S::stored(f.forward));
  return f;
}

// The factors of a call with one tensor scale, derived once a thread block; the first one writes the datum.
template <quantization_scheme S, class T, class Sink>
__device__ call_factors share_factors(const quantize_call<S, T>& call, const Sink& sink) {
  if constexpr (!S::has_tensor_scale) {
    return {};
  } else {
    if (call.tiled) return {};
    __shared__ float shared[6];
    __shared__ int refused;
    if (threadIdx.x == 0) {
      const call_factors f = derive_factors<S>(*call.reference, call.own_reference, call.target);
      const float values[6] = {f.forward.reference, f.forward.encode, f.forward.decode,
                               f.back.reference,    f.back.encode,    f.back.decode};
#pragma unroll
      for (int i = 0; i < 6; ++i) shared[i] = values[i];
      refused = f.refused ? 1 : 0;
      if (blockIdx.x == 0) {
        sink.write_datum(0, S::stored(f.forward));
        if (f.refused) report(call.status, cuda_status::reference_refused);
      }
    }
    __syncthreads();
    call_factors f;
    f.forward = {shared[0], shared[1], shared[2], call.target};
    f.back = {shared[3], shared[4], shared[5], S::tensor_scale::default_target};
    f.refused = refused != 0;
    return f;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Where codes go: to memory, or through the decoder back into a matrix.

template <class S>
struct packed_sink {
  using chunk_format = typename S::element;

  quantized_view<S> out;
  bool aligned;  // codes of full chunks begin on a multiple of packed_chunk::access

  __device__ void write_datum(index_t tile, float datum) const { out.datum[tile] = datum; }
  __device__ void write_scale(index_t block_row, index_t block_col, typename S::scale::storage scale) const {
    out.scales[out.scale_offset(block_row, block_col)] = scale;
  }
  template <int Chunk>
  __device__ void write_chunk(index_t r, index_t k, int n, const packed_chunk<chunk_format, Chunk>& codes,
                              typename S::scale::storage, const tensor_factors&) const {
    if (n > 0) codes.store(out.codes + r * out.code_pitch + k * S::element::bits / 8, n, aligned);
  }
};

template <class S, class U>
struct decoded_sink {
  using chunk_format = typename S::element;

  strided_matrix<U> out;

  __device__ void write_datum(index_t, float) const {}
  __device__ void write_scale(index_t, index_t, typename S::scale::storage) const {}
  template <int Chunk>
  __device__ void write_chunk(index_t r, index_t k, int n, const packed_chunk<chunk_format, Chunk>& codes,
                              typename S::scale::storage scale, const tensor_factors& back) const {
    const float s = S::scale::decode(scale);
    float y[Chunk];
#pragma unroll
    for (int i = 0; i < Chunk; ++i) {
      y[i] = S::rule::template decoded<S>(decode_code<typename S::element>(codes.get(i)), s, back);
    }
    store_chunk(out.at(r, k), out.k_stride, n, out.wide, y);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Chunks of one block.

template <class Rule>
inline constexpr bool is_mx_rule = false;
template <mx_scale How>
inline constexpr bool is_mx_rule<mx_rule<How>> = true;

// Modes that give the same answer for all remainders below 2^-32 of a step, zero included.
template <class R>
inline constexpr bool ignores_tiny_remainders = std::is_same_v<R, nearest_even>;
template <int Bits>
inline constexpr bool ignores_tiny_remainders<stochastic_midpoint<Bits>> = true;
template <int Bits>
inline constexpr bool ignores_tiny_remainders<stochastic_floor<Bits>> = true;

// encode_element<S, R>, fast where a float carries what the element is rounded from.
template <quantization_scheme S, rounding_mode R, class Divisor>
__device__ typename S::element::storage encode_in_block(float x, const Divisor& divisor, std::uint32_t random) {
  using element = typename S::element;
  const float y = S::policy == nonfinite::saturate ? finite_or_nan(x) : x;
  if constexpr (is_mx_rule<typename S::rule> && small_minifloat<element> && ignores_tiny_remainders<R> &&
                S::scale::bits == 8 && S::scale::bias == 127) {
    // By 2^-exponent, exactly but for results so far below the format's smallest step that they count as nothing.
    const int e = -divisor;  // -128 ... 127
    const std::uint32_t power = e > -127 ? static_cast<std::uint32_t>(e + 127) << 23 : 0x00400000u >> (-127 - e);
    return encode_float<element, R>(fp32::is_nan(y) ? y : fp32::mul(y, fp32::from_bits(power)), random);
  } else {
    auto scaled = S::rule::template scaled<S>(y, divisor);
    if constexpr (std::is_same_v<decltype(scaled), float>) {
      if constexpr (element::has_nan) {
        if (fp32::is_nan(scaled)) scaled = fp32::copy_sign(fp32::quiet_nan(), x);
      }
      return encode_float<element, R>(scaled, random);
    } else {
      return element::encode(scaled, R{}, overflow::saturate, random);
    }
  }
}

// The codes of a chunk whose first element has `position` (random.hpp); 0 beyond n.
template <quantization_scheme S, rounding_mode R, int Chunk, class Divisor>
__device__ packed_chunk<typename S::element, Chunk> encode_chunk(const float (&x)[Chunk], int n, const Divisor& divisor,
                                                                 random_key key, std::uint64_t position) {
  packed_chunk<typename S::element, Chunk> codes;
  if constexpr (R::random_bits == 0) {
#pragma unroll
    for (int i = 0; i < Chunk; ++i) {
      const std::uint32_t code = encode_in_block<S, R>(x[i], divisor, 0);
      codes.put(i, i < n ? code : 0);
    }
  } else {
    constexpr int per_call = draws_per_call<R::random_bits>;
    if constexpr (Chunk % per_call == 0) {  // chunks begin with the first draw of a call
      philox_words words;
#pragma unroll
      for (int i = 0; i < Chunk; ++i) {
        if (i % per_call == 0) {
          words = philox4x32(key, position / per_call + static_cast<std::uint64_t>(i / per_call));
        }
        const std::uint32_t random = extract_draw<R::random_bits>(words, i % per_call);
        const std::uint32_t code = encode_in_block<S, R>(x[i], divisor, random);
        codes.put(i, i < n ? code : 0);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Chunk; ++i) {
        const std::uint64_t p = position + static_cast<std::uint64_t>(i);
        const std::uint32_t random =
            select_draw<R::random_bits>(philox4x32(key, p / per_call), static_cast<unsigned>(p % per_call));
        const std::uint32_t code = encode_in_block<S, R>(x[i], divisor, random);
        codes.put(i, i < n ? code : 0);
      }
    }
  }
  return codes;
}

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
      const float y = S::policy == nonfinite::saturate ? finite_or_nan(x[i]) : x[i];
      if (i < p.n) {
        S::rule::see(sums, S::rule::template scaled<S>(y, divisor), decode_code<typename S::element>(codes.get(i)));
      }
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
    quantize_kernel(const quantize_call<S, T> call, const Sink sink) {
  using split = quantize_split<S>;
  call_factors factors = share_factors<S>(call, sink);
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
    quantize_share<S, R>(block_share<S, split, T>{call, row, k, extent, team.member}, place, team.mask, factors, sink);
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

// Enqueues the amax of `in`, or of its tiles, where that is this call's reference, and describes the call.
template <quantization_scheme S, class R, class T>
quantize_call<S, T> begin_quantize(const cuda& executor, matrix_view<const T> in, const R& rounding,
                                   const quantize_options& options, std::span<std::byte> workspace,
                                   tensor_tile tile = {}) {
  static_assert(!refines_scale<S> || !std::is_same_v<R, typename mode_parts<R>::elements>,
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
  call.target = checked_target<S>(options.target);
  call.key = mode_parts<R>::element_key(rounding);
  call.scale_key = mode_parts<R>::scale_key(rounding);
  call.status = executor.status;
  const quantized_view<S> grid{.rows = call.rows, .cols = call.cols, .tile = tile};
  const index_t tiles = grid.tile_rows() * grid.tile_cols();
  call.tiled = S::has_tensor_scale && tiles > 1;
  call.tile = tile;
  call.tiles = tiles;
  call.tile_cols = grid.tile_cols();
  if (takes_own_amax<S>(options)) {
    const std::size_t needed = static_cast<std::size_t>(tiles) * sizeof(float);
    if (workspace.size() < needed || !is_aligned(workspace.data(), 0, alignof(float))) {
      fail("quantization workspace", std::to_string(needed) + " bytes of device memory, aligned to 4",
           std::to_string(workspace.size()) + " bytes");
    }
    float* const own = reinterpret_cast<float*>(workspace.data());
    if (!call.tiled) {
      amax_into(executor, in, own);
    } else {
      check_launch(executor.launch);
      clear_bytes(executor, "amax", own, needed);
      if (!in.empty()) {
        const index_t blocks =
            count_thread_blocks<block_split<typename S::block>>(call.grid, index_t{executor.launch.threads});
        launch(executor, "amax of tiles", &tile_amax_kernel<S, T>, blocks, call, reinterpret_cast<std::uint32_t*>(own));
      }
    }
    call.reference = own;
    call.own_reference = true;
  }
  return call;
}

template <rounding_mode R, class S, class T, class Sink>
void launch_quantize(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink) {
  check_launch(executor.launch);
  const index_t blocks = count_thread_blocks<quantize_split<S>>(call.grid, index_t{executor.launch.threads});
  launch(executor, what, &quantize_kernel<S, typename mode_parts<R>::elements, T, Sink>, larger(blocks, index_t{1}),
         call, sink);
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
  if (in.empty() && !S::has_tensor_scale) return;
  auto call = detail::device::begin_quantize<S, R, element>(executor, in, rounding, options, workspace, out.tile);
  if (out.layout == scale_layout::tile_128x4) {
    call.grid.rows = round_up(call.grid.rows, tile_rows);
    call.grid.cols = round_up(call.grid.cols, tile_columns);
  }
  constexpr int access =
      detail::device::packed_chunk<typename S::element, detail::device::block_split<typename S::block>::chunk>::access;
  const detail::device::packed_sink<S> sink{out, detail::device::is_aligned(out.codes, out.code_pitch, access)};
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
  if (in.empty()) return;
  std::visit(
      [&](auto rounding) {
        using R = decltype(rounding);
        const auto call = detail::device::begin_quantize<S, R, element>(executor, in, rounding, options, workspace);
        const detail::device::decoded_sink<S, U> sink{detail::device::as_stored(out, options.axis)};
        detail::device::launch_quantize<R>(executor, "fake quantization", call, sink);
      },
      options.rounding);
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
