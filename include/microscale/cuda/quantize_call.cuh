// What the kernels that quantize share: the description of a call, where codes go, and how elements become codes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "block.cuh"

namespace microscale {

// A stochastic mode whose stream is known when a kernel runs, not when it is enqueued: it draws as `mode` with the
// stream mode.stream + *offset, `offset` being device memory that the kernel reads. In a CUDA graph, arguments of
// kernels stay what they were when it was captured, and so would draws; with this mode a replay draws from the offset
// that is there then. Of a training step that is stream_offset (recipe/stream.hpp), beside the stream of a step 0.
//
// For quantize_with, quantize_both_with and their hadamard_ forms of ms::cuda, at the speed of `mode` but for the read.
// Around with_scale_draws it moves both streams, that of the elements' draws and that of the scales'; within it, the
// elements' alone: scales draw from the key that they are given.
template <stochastic_mode R>
struct with_stream_offset {
  static constexpr int random_bits = R::random_bits;

  R mode = {};
  const std::uint64_t* offset = nullptr;

  MICROSCALE_HD static constexpr bool away(remainder rest, bool odd, bool negative, std::uint32_t r) noexcept {
    return R::away(rest, odd, negative, r);
  }
};

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
  const std::uint64_t* stream_offset;  // of key, or of both keys (mode_parts), or null
  cuda_status* status;
  float* amax;  // where that of the input goes; null: nowhere

  __device__ index_t tile_index(index_t r, index_t k) const {
    return (tile.rows == 0 ? 0 : r / tile.rows) * tile_cols + (tile.cols == 0 ? 0 : k / tile.cols);
  }
  __device__ bool begins_tile(index_t r, index_t k) const {
    return (tile.rows == 0 ? r == 0 : r % tile.rows == 0) && (tile.cols == 0 ? k == 0 : k % tile.cols == 0);
  }
};

// Of a mode, `elements`, which kernels are compiled for, `rule`, which rounds a number, `draws`, which a kernel gets as
// a parameter to draw by, whether scales draw too, and the keys.
template <class R>
struct mode_parts {
  using elements = R;
  using rule = R;
  using draws = philox_stream;
  static constexpr bool draws_scales = false;
  static random_key element_key(const R& mode) noexcept {
    if constexpr (stochastic_mode<R>) {
      return mode.key();
    } else {
      return {};
    }
  }
  static random_key scale_key(const R&) noexcept { return {}; }
  static const std::uint64_t* stream_offset(const R&) noexcept { return nullptr; }
};
template <class R>
struct mode_parts<with_stream_offset<R>> {
  using parts = mode_parts<R>;
  static_assert(std::is_same_v<typename parts::draws, philox_stream>, "a mode reads one offset");
  using elements = with_stream_offset<R>;
  using rule = typename parts::rule;
  using draws = philox_keys;
  static constexpr bool draws_scales = parts::draws_scales;
  static random_key element_key(const elements& given) noexcept { return parts::element_key(given.mode); }
  static random_key scale_key(const elements& given) noexcept { return parts::scale_key(given.mode); }
  static const std::uint64_t* stream_offset(const elements& given) {
    if (given.offset == nullptr) fail("with_stream_offset", "an offset in device memory", "null");
    return given.offset;
  }
};
template <class Elements>
struct mode_parts<with_scale_draws<Elements>> {
  using parts = mode_parts<Elements>;
  using elements = Elements;
  using rule = typename parts::rule;
  using draws = typename parts::draws;
  static constexpr bool draws_scales = true;
  static random_key element_key(const with_scale_draws<Elements>& mode) noexcept {
    return parts::element_key(mode.elements);
  }
  static random_key scale_key(const with_scale_draws<Elements>& mode) noexcept { return mode.scales; }
  static const std::uint64_t* stream_offset(const with_scale_draws<Elements>& mode) {
    return parts::stream_offset(mode.elements);
  }
};

// What a kernel draws by.
__device__ inline const philox_stream& stream_of(const philox_stream& draws, const std::uint64_t*) { return draws; }
__device__ inline philox_stream stream_of(philox_keys draws, const std::uint64_t* offset) {
  draws.stream += *offset;
  return philox_stream(draws);
}
// The call with the keys that elements and scales are drawn by.
template <class R, class S, class T>
__device__ decltype(auto) with_stream(const quantize_call<S, T>& call) {
  if constexpr (std::is_same_v<typename mode_parts<R>::draws, philox_stream>) {
    return (call);
  } else {
    quantize_call<S, T> own = call;
    own.key.stream += *call.stream_offset;
    if constexpr (mode_parts<R>::draws_scales) own.scale_key.stream += *call.stream_offset;
    return own;
  }
}

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

// The reference of a call with one tensor scale, in thread `leader`. Kernels ask for it before they ask for data, so
// that factors are there when data is.
template <class S, class T>
__device__ float load_reference(const quantize_call<S, T>& call, unsigned leader = 0) {
  return S::has_tensor_scale && !call.tiled && threadIdx.x == leader ? *call.reference : 0.0f;
}

// Where one thread leaves the factors of a call with one tensor scale for its thread block.
template <bool Decodes>
struct shared_factors {
  float value[Decodes ? 6 : 3];
  int refused;

  // By the thread that has the reference; the first thread block writes the datum.
  template <quantization_scheme S, class T, class Sink>
  __device__ void put(const quantize_call<S, T>& call, float reference, const Sink& sink) {
    const call_factors f = derive_factors<S>(reference, call.own_reference, call.target);
    value[0] = f.forward.reference, value[1] = f.forward.encode, value[2] = f.forward.decode;
    if constexpr (Decodes) value[3] = f.back.reference, value[4] = f.back.encode, value[5] = f.back.decode;
    refused = f.refused ? 1 : 0;
    if (blockIdx.x == 0) {
      sink.write_datum(0, S::stored(f.forward));
      if (f.refused) report(call.status, cuda_status::reference_refused);
    }
  }
  template <quantization_scheme S>
  __device__ call_factors get(int target) const {
    call_factors f;
    f.forward = {value[0], value[1], value[2], target};
    if constexpr (Decodes) f.back = {value[3], value[4], value[5], S::tensor_scale::default_target};
    f.refused = refused != 0;
    return f;
  }
};

// The factors of a call with one tensor scale, derived once a thread block from thread 0's reference.
template <quantization_scheme S, class T, class Sink>
__device__ call_factors share_factors(const quantize_call<S, T>& call, float reference, const Sink& sink) {
  if constexpr (!S::has_tensor_scale) {
    return {};
  } else {
    if (call.tiled) return {};
    __shared__ shared_factors<Sink::decodes> shared;
    if (threadIdx.x == 0) shared.template put<S>(call, reference, sink);
    __syncthreads();
    return shared.template get<S>(call.target);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Where codes go: to memory, or through the decoder back into a matrix.

template <class S>
struct packed_sink {
  using chunk_format = typename S::element;
  static constexpr bool decodes = false;

  quantized_view<S> out;
  bool aligned;         // codes of full chunks begin on a multiple of packed_chunk::access
  index_t scale_tiles;  // of a row, which kernels would count again and again

  __device__ void write_datum(index_t tile, float datum) const { out.datum[tile] = datum; }
  __device__ typename S::scale::storage* scale_at(index_t block_row, index_t block_col) const {
    return out.scales + (out.layout == scale_layout::linear ? block_row * out.scale_pitch + block_col
                                                            : tile_128x4_place(block_row, block_col, scale_tiles));
  }
  __device__ void write_scale(index_t block_row, index_t block_col, typename S::scale::storage scale) const {
    *scale_at(block_row, block_col) = scale;
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
  static constexpr bool decodes = true;

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

// Schemes of small elements under power-of-two scales: an element is rounded from its product with 2^-exponent, exact
// but for results so far below the format's smallest step that they count as nothing.
template <quantization_scheme S>
inline constexpr bool multiplies_by_power =
    is_mx_rule<typename S::rule>&& small_minifloat<typename S::element>&& S::scale::bits == 8 && S::scale::bias == 127;

// Schemes whose elements are rounded from the product with a number that the block shares, where that number is finite.
template <class Rule>
inline constexpr bool multiplies_by_float = std::is_same_v<Rule, transformer_engine_rule>;
template <decode_order Order>
inline constexpr bool multiplies_by_float<ue5m3_paper_rule<Order>> = true;
template <constant_division How>
inline constexpr bool multiplies_by_float<torchao_rule<How>> = true;

// Those of them where that number is a capped reciprocal.
template <class Rule>
inline constexpr bool multiplies_by_reciprocal =
    multiplies_by_float<Rule>&& std::is_base_of_v<capped_reciprocal_rule, Rule>;

// That number.
template <quantization_scheme S, class Divisor>
__device__ float multiplier_of(const Divisor& divisor) {
  if constexpr (multiplies_by_power<S>) {
    const int e = -divisor;  // -128 ... 127
    return fp32::from_bits(e > -127 ? static_cast<std::uint32_t>(e + 127) << 23 : 0x00400000u >> (-127 - e));
  } else {
    return divisor;
  }
}

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
  if constexpr (multiplies_by_power<S> && ignores_tiny_remainders<R>) {
    return encode_float<element, R>(fp32::is_nan(y) ? y : fp32::mul(y, multiplier_of<S>(divisor)), random);
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

}  // namespace detail::device
}  // namespace microscale
