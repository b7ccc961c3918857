// The product of a few BF16 rows with packed E2M1 weights, near the speed at which memory yields the weights: what a
// decoder does at small batch.
//
//   y(i, j) = fl(fl(sum over k of x(i, k) w(j, k)) D_j)
//
// w being element times block scale and D the tensor scale's decode multiplier (or options.alpha). The sum is FP32, of
// exact products, by the tensor core in an order that depends on the shape and on whether the weights are repacked, and
// on nothing else: two calls give the same bits. It is no accumulation with a definition (tensor/accumulate.hpp), but
// bounded: |sum - exact| <= (1.25 k + 16) 2^-23 sum |x w| + k 2^-109. A weight that BF16 cannot hold (2^128 and above,
// under E8M0 scales of 2^126 and 2^127) counts as infinite; NaN and infinity go where arithmetic takes them.
//
// Weights are taken as stored, or repacked once into the order in which the threads read them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "../tensor/gemm.hpp"
#include "block.cuh"
#include "executor.cuh"
#include "tensor_core.cuh"

namespace microscale {

// What skinny_gemm_into takes: E2M1 under 8-bit scales with a mantissa of at most 5 bits, blocks of whole 16 along K.
template <class S>
concept skinny_scheme = quantization_scheme<S> && detail::device::decodes_by_sixteen<S>;

// Repacked weights in device memory: `data` on a multiple of 16 bytes, `datum` and `tile` those of the quantized
// matrix.
template <class S>
struct repacked_view {
  using scheme_type = std::remove_const_t<S>;

  std::conditional_t<std::is_const_v<S>, const std::uint8_t, std::uint8_t>* data = nullptr;
  const float* datum = nullptr;
  index_t rows = 0;
  index_t cols = 0;
  tensor_tile tile = {};

  template <std::same_as<const S> U>
  MICROSCALE_HD constexpr operator repacked_view<U>() const noexcept {
    return {data, datum, rows, cols, tile};
  }
};

namespace detail::device {

// ---------------------------------------------------------------------------------------------------------------
// How a warp reads weights: pieces of 16 rows by 512 along k, cut into four parts of 128. In part c, lane l has the 32
// weights from 128 c + 32 (l % 4) of rows l / 4 and l / 4 + 8: 16 bytes each.
inline constexpr int skinny_rows = 16;
inline constexpr int skinny_depth = 512;
inline constexpr int skinny_threads = 256;
inline constexpr int skinny_warps = skinny_threads / 32;

template <class S>
struct skinny_scales {
  static constexpr bool two = S::block::columns % 32 != 0;  // for the 32 weights of a lane's row
  static constexpr int words = two ? 4 : 2;

  std::uint32_t word[words];  // a byte for each row and half, parts in order

  // Scale `half` of row `which` of part `part`; constants after unrolling.
  __device__ std::uint32_t get(int part, int which, int half) const {
    const int at = two ? part * 4 + which * 2 + half : part * 2 + which;
    return (word[at / 4] >> (8 * (at % 4))) & 0xFFu;
  }
  __device__ void clear() {
#pragma unroll
    for (std::uint32_t& w : word) w = 0;
  }
};
template <class S>
struct skinny_piece {
  static constexpr int scale_words = skinny_scales<S>::words;
  static constexpr int bytes = skinny_rows * skinny_depth / 2 + 32 * 4 * scale_words;

  uint4 codes[8];  // of part c: row l / 4 at 2c, row l / 4 + 8 at 2c + 1
};

// 16 bytes that are read once.
__device__ inline uint4 load_streaming(const std::uint8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Weights as stored.
template <class S>
struct stored_weights {
  static constexpr bool repacked = false;
  quantized_view<const S> w;
  bool wide_codes;   // rows of codes begin on 16 bytes
  bool wide_scales;  // the scales of a row are neighbours, those of 32 weights on a multiple of their size

  // A lane's place in a piece.
  struct cursor {
    const std::uint8_t* codes;  // of row l / 4
    const typename S::scale::storage* scales;
    index_t row;
    index_t k;
    bool whole_codes;  // no bounds to check
    bool whole_scales;
  };
  __device__ cursor at(index_t strip, index_t step, int lane) const {
    cursor c;
    c.row = strip * skinny_rows + lane / 4;
    c.k = step * skinny_depth + lane % 4 * 32;
    c.codes = w.codes + c.row * w.code_pitch + c.k / 2;
    const bool inside = (strip + 1) * skinny_rows <= w.rows && (step + 1) * skinny_depth <= w.cols;
    c.whole_codes = inside && wide_codes;
    c.whole_scales = inside && wide_scales;
    c.scales = w.scales + (c.whole_scales ? c.row * w.scale_pitch + c.k / S::block::columns : 0);
    return c;
  }
  __device__ void load_codes(const cursor& c, int part, skinny_piece<S>& p) const {
    if (c.whole_codes) {
      p.codes[2 * part] = load_streaming(c.codes + part * 64);
      p.codes[2 * part + 1] = load_streaming(c.codes + 8 * w.code_pitch + part * 64);
    } else {
      p.codes[2 * part] = codes_at(c.row, c.k + part * 128);
      p.codes[2 * part + 1] = codes_at(c.row + 8, c.k + part * 128);
    }
  }
  __device__ void load_scales(const cursor& c, skinny_scales<S>& s) const {
    constexpr int per_part = 128 / S::block::columns;
    s.clear();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        std::uint32_t code;
        if (c.whole_scales) {
          const auto* const from = c.scales + which * 8 * w.scale_pitch + part * per_part;
          code = skinny_scales<S>::two ? *reinterpret_cast<const std::uint16_t*>(from) : *from;
        } else {
          code = scales_at(c.row + which * 8, c.k + part * 128);
        }
        if constexpr (skinny_scales<S>::two) {
          s.word[part] |= code << (16 * which);
        } else {
          s.word[part / 2] |= code << (16 * (part % 2) + 8 * which);
        }
      }
    }
  }

 private:
  // The 32 codes from (row, k), zeros beyond the matrix.
  __device__ __noinline__ uint4 codes_at(index_t row, index_t k) const {
    std::uint32_t words[4] = {};
    const std::uint8_t* const from = w.codes + row * w.code_pitch + k / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const index_t left = w.cols - k - 8 * i;
      if (row < w.rows && left > 0) {
        words[i] = load_eight(from + 4 * i, static_cast<int>(smaller(left, index_t{8})), false);
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  // The scales above them.
  __device__ __noinline__ std::uint32_t scales_at(index_t row, index_t k) const {
    if (row >= w.rows || k >= w.cols) return 0;
    std::uint32_t codes = w.scale(row, k);
    if (skinny_scales<S>::two && k + 16 < w.cols) codes |= std::uint32_t{w.scale(row, k + 16)} << 8;
    return codes;
  }
};

// Repacked weights: pieces one after another, those of 16 rows together.
template <class S>
struct repacked_weights {
  static constexpr bool repacked = true;
  repacked_view<const S> w;

  struct cursor {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
  };
  __device__ cursor at(index_t strip, index_t step, int lane) const {
    const index_t steps = ceil_div(w.cols, index_t{skinny_depth});
    const std::uint8_t* const piece = w.data + (strip * steps + step) * skinny_piece<S>::bytes;
    return {piece + lane * 16, piece + 4096 + lane * 4 * skinny_piece<S>::scale_words};
  }
  __device__ void load_codes(const cursor& c, int part, skinny_piece<S>& p) const {
#pragma unroll
    for (int i = 2 * part; i < 2 * part + 2; ++i) p.codes[i] = load_streaming(c.codes + i * 512);
  }
  __device__ void load_scales(const cursor& c, skinny_scales<S>& s) const {
    if constexpr (skinny_scales<S>::two) {
      const uint4 four = load_streaming(c.scales);
      s.word[0] = four.x, s.word[1] = four.y, s.word[2] = four.z, s.word[3] = four.w;
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(c.scales);
      s.word[0] = two.x, s.word[1] = two.y;
    }
  }
};

// Eight codes in the order of repacked weights: pairs of neighbours in nibbles i and i + 4.
__device__ inline std::uint32_t pair_neighbours(std::uint32_t codes) {
  std::uint32_t r = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) r |= ((codes >> (4 * i)) & 0xFu) << (4 * (i / 2 + i % 2 * 4));
  return r;
}

template <quantization_scheme S>
__global__ void __launch_bounds__(largest_thread_block)
    repack_kernel(const stored_weights<S> from, std::uint8_t* const out) {
  const index_t steps = ceil_div(from.w.cols, index_t{skinny_depth});
  const index_t pieces = ceil_div(from.w.rows, index_t{skinny_rows}) * steps;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (index_t i = blockIdx.x * index_t{blockDim.x / 32} + threadIdx.x / 32; i < pieces;
       i += gridDim.x * index_t{blockDim.x / 32}) {
    skinny_piece<S> p;
    skinny_scales<S> s;
    const auto at = from.at(i / steps, i % steps, lane);
#pragma unroll
    for (int part = 0; part < 4; ++part) from.load_codes(at, part, p);
    from.load_scales(at, s);
    std::uint8_t* const to = out + i * skinny_piece<S>::bytes;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      *reinterpret_cast<uint4*>(to + c * 512 + lane * 16) =
          make_uint4(pair_neighbours(p.codes[c].x), pair_neighbours(p.codes[c].y), pair_neighbours(p.codes[c].z),
                     pair_neighbours(p.codes[c].w));
    }
    std::uint32_t* const scales = reinterpret_cast<std::uint32_t*>(to + 4096 + lane * 4 * skinny_piece<S>::scale_words);
#pragma unroll
    for (int w = 0; w < skinny_piece<S>::scale_words; ++w) scales[w] = s.word[w];
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Scales as multipliers of value * 2^-126, which is what spread_e2m1 gives.

// Formats that leave room: all scales times 2^shift are BF16 numbers, so one multiplication gives element * scale *
// 2^(shift - 126), and the sum is multiplied back at the end. Otherwise elements are multiplied by 2^126 first.
template <class Scale>
struct skinny_scale {
  static constexpr int top_exponent = span_bits<Scale>() - 1 + Scale::step_exponent;  // all are below 2^this
  static constexpr bool folds = span_bits<Scale>() <= 64;
  static constexpr int shift = folds ? 127 - top_exponent : 0;

  MICROSCALE_HD static constexpr float power_of_two(int exponent) noexcept {
    return fp32::from_bits(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
  // What a sum is multiplied by.
  MICROSCALE_HD static constexpr float back() noexcept { return power_of_two(folds ? 126 - shift : 0); }
  __device__ static std::uint32_t bf16x2(std::uint32_t code) {
    const auto s = static_cast<typename Scale::storage>(code);
    const float x = Scale::is_finite(s) ? decode_code<Scale>(s) : fp32::quiet_nan();
    return twice(exact_bf16(fp32::mul(x, power_of_two(shift))));
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The product. A thread block takes `strips` strips of 16 rows of weights; its warps divide the strips and, along k,
// the pieces of a strip. The rows of x that a step needs lie in shared memory, two steps at a time.

struct skinny_call {
  const value<bf16>* x;
  index_t x_pitch;
  bool wide;  // rows of x begin on 16 bytes
  float* y;
  index_t y_pitch;
  index_t m;  // rows of x of the only group
  index_t n;  // rows of weights of a group
  index_t k;
  const std::int32_t* offsets;  // group g has rows offsets[g] ... offsets[g + 1] of x; null if there is one group
  const float* datum;
  tensor_tile tile;
  bool has_alpha;
  float alpha;
  int strips;
  int rows;  // of x at a time
  e2m1_places places;
};

MICROSCALE_HD constexpr int skinny_stage_bytes(int strips, int rows) noexcept {
  return skinny_warps / strips * rows * skinny_depth * 2;
}
// Two stages of x (afterwards the sums of the warps), and the multipliers of all scales.
MICROSCALE_HD constexpr int skinny_shared_bytes(int strips, int rows) noexcept {
  return 1024 + larger(2 * skinny_stage_bytes(strips, rows), skinny_warps * skinny_rows * rows * 4);
}

// Where 16-byte piece u of row r of a step's x lies: pieces that four lanes of two rows read together are in different
// banks.
__device__ inline int skinny_piece_of(int r, int u) { return u ^ (u >> 3 & 1) ^ (r & 1) << 1; }

// Brings x(first + r, ...), r < rows, for step `step` of each share of k into shared memory, zeros beyond the matrix.
__device__ inline void load_activations(const skinny_call& call, std::uint8_t* shared, index_t first, index_t last,
                                        index_t step, int shares) {
  constexpr int per_row = skinny_depth / 8;
  const int pieces = shares * call.rows * per_row;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += skinny_threads) {
    const int u = i % per_row, r = i / per_row % call.rows, share = i / per_row / call.rows;
    const index_t row = first + r, k = (step * shares + share) * skinny_depth + 8 * u;
    std::uint8_t* const to = shared + ((share * call.rows + r) * per_row + skinny_piece_of(r, u)) * 16;
    const value<bf16>* const from = call.x + row * call.x_pitch + k;
    if (call.wide && row < last && k + 8 <= call.k) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
    } else {
      std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (row < last && k + e < call.k) words[e / 2] |= std::uint32_t{from[e].code()} << (16 * (e % 2));
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Two tiles of 16 weights along k from eight codes of each of two rows.
template <class Scale>
__device__ void decode_fragments(std::uint32_t low_row, std::uint32_t high_row, std::uint32_t low_scale,
                                 std::uint32_t high_scale, const e2m1_places& places, std::uint32_t (&a)[2][4]) {
  std::uint32_t low[4], high[4];
  spread_e2m1(low_row, places, low);
  spread_e2m1(high_row, places, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (!skinny_scale<Scale>::folds) {
      low[i] = multiply_bf16x2(low[i], twice(0x7E80));
      high[i] = multiply_bf16x2(high[i], twice(0x7E80));
    }
    a[i / 2][i % 2 * 2] = multiply_bf16x2(low[i], low_scale);
    a[i / 2][i % 2 * 2 + 1] = multiply_bf16x2(high[i], high_scale);
  }
}

// Where a lane finds its eights of x in a step's rows in shared memory: bytes, for the four eights of a part, in row
// l / 4. Parts lie 256 bytes apart, tiles of eight rows 8 rows.
struct skinny_offsets {
  int of_eight[4];

  __device__ explicit skinny_offsets(int lane) {
    const int r = lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_eight[i] = (r * (skinny_depth / 8) + skinny_piece_of(r, lane % 4 * 4 + i)) * 16;
  }
};

// Adds a part of a piece: sums[tile of eight rows of x][which of two chains].
template <class Weights, class S, int Tiles>
__device__ void add_part(const skinny_piece<S>& p, const skinny_scales<S>& codes_of_scales, int part,
                         const std::uint8_t* x, const skinny_offsets& offsets, const std::uint32_t* multipliers,
                         int rows, const e2m1_places& places, float (&sums)[Tiles][2][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t scales[2][2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales[which][half] =
          half == 0 || skinny_scales<S>::two ? multipliers[codes_of_scales.get(part, which, half)] : scales[which][0];
    }
  }
  const uint4 low = p.codes[2 * part], high = p.codes[2 * part + 1];
  const std::uint32_t low_words[4] = {low.x, low.y, low.z, low.w}, high_words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t a[2][4];
    decode_fragments<typename S::scale>(low_words[i], high_words[i], scales[0][i / 2], scales[1][i / 2], places, a);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      uint4 b = make_uint4(0, 0, 0, 0);
      if (t * 8 + lane / 4 < rows) {
        b = *reinterpret_cast<const uint4*>(x + offsets.of_eight[i] + part * 256 + t * 8 * skinny_depth * 2);
      }
      if constexpr (!Weights::repacked) {
        b = make_uint4(select_bytes(b.x, b.z, 0x5410), select_bytes(b.x, b.z, 0x7632), select_bytes(b.y, b.w, 0x5410),
                       select_bytes(b.y, b.w, 0x7632));
      }
      const std::uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
      multiply_tile(sums[t][0], a[0], first, sums[t][0]);
      multiply_tile(sums[t][1], a[1], second, sums[t][1]);
    }
  }
}

// The factor of output column j.
template <class S>
__device__ float skinny_alpha(const skinny_call& call, index_t weight_row) {
  if (call.has_alpha) return call.alpha;
  if constexpr (S::has_tensor_scale) {
    return S::from_stored(call.datum[call.tile.rows == 0 ? 0 : weight_row / call.tile.rows]).decode;
  } else {
    return tensor_factors{}.decode;
  }
}

// Rows [first, last) of x, at most 8 Tiles of them, against the strips of this thread block.
template <class S, class Weights, int Tiles>
__device__ void skinny_rows_of(const skinny_call& call, const Weights& weights, std::uint8_t* shared,
                               const std::uint32_t* multipliers, index_t group, index_t first, index_t last) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int shares = skinny_warps / call.strips, share = warp / call.strips;
  const int stage_bytes = skinny_stage_bytes(call.strips, call.rows);
  const index_t group_strip = blockIdx.x * index_t{static_cast<unsigned>(call.strips)} + warp % call.strips;
  const index_t strips = ceil_div(call.n, index_t{skinny_rows});
  const index_t strip = group * strips + group_strip;
  const index_t steps = ceil_div(call.k, index_t{skinny_depth}), rounds = ceil_div(steps, index_t{shares});
  const auto step_of = [&](index_t round) { return round * shares + share; };
  const auto exists = [&](index_t round) { return group_strip < strips && step_of(round) < steps; };
  const skinny_offsets offsets(lane);
  float sums[Tiles][2][4] = {};
  skinny_piece<S> piece = {};
  skinny_scales<S> scales = {}, next_scales = {};
  if (exists(0)) {
    const auto at = weights.at(strip, step_of(0), lane);
#pragma unroll
    for (int part = 0; part < 4; ++part) weights.load_codes(at, part, piece);
    weights.load_scales(at, scales);
  }
  load_activations(call, shared, first, last, 0, shares);
#pragma unroll 1
  for (index_t round = 0; round < rounds; ++round) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    const bool next = exists(round + 1);
    if (round + 1 < rounds) {
      load_activations(call, shared + (round + 1) % 2 * stage_bytes, first, last, round + 1, shares);
    }
    const auto at = weights.at(strip, step_of(round + 1), lane);
    if (next) weights.load_scales(at, next_scales);
    if (exists(round)) {
      const std::uint8_t* const x = shared + round % 2 * stage_bytes + share * call.rows * skinny_depth * 2;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        add_part<Weights>(piece, scales, part, x, offsets, multipliers, static_cast<int>(last - first), call.places,
                          sums);
        // The next step's codes take the place of those just used.
        if (next) weights.load_codes(at, part, piece);
      }
    }
    scales = next_scales;
  }
  // The shares of each output, added in order.
  __syncthreads();
  float* const parts = reinterpret_cast<float*>(shared);  // [share][strip][row of weights][row of x]
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e / 2 * 8, r = t * 8 + lane % 4 * 2 + e % 2;
      if (r < call.rows) parts[(warp * skinny_rows + row) * call.rows + r] = fp32::add(sums[t][0][e], sums[t][1][e]);
    }
  }
  __syncthreads();
  const int outputs = call.strips * skinny_rows * call.rows;
  for (int o = static_cast<int>(threadIdx.x); o < outputs; o += skinny_threads) {
    const int weight = o % (call.strips * skinny_rows), r = o / (call.strips * skinny_rows);
    const index_t j = blockIdx.x * index_t{static_cast<unsigned>(call.strips)} * skinny_rows + weight;
    if (j >= call.n || first + r >= last) continue;
    float sum = parts[weight * call.rows + r];
    for (int s = 1; s < shares; ++s) sum = fp32::add(sum, parts[s * outputs + weight * call.rows + r]);
    sum = fp32::mul(sum, skinny_scale<typename S::scale>::back());
    call.y[(first + r) * call.y_pitch + j] = fp32::mul(sum, skinny_alpha<S>(call, group * call.n + j));
  }
}

template <quantization_scheme S, class Weights, int Tiles>
__global__ void __launch_bounds__(skinny_threads, 2) skinny_kernel(const skinny_call call, const Weights weights) {
  extern __shared__ uint4 skinny_shared[];
  std::uint32_t* const multipliers = reinterpret_cast<std::uint32_t*>(skinny_shared);
  std::uint8_t* const shared = reinterpret_cast<std::uint8_t*>(skinny_shared) + 1024;
  multipliers[threadIdx.x] = skinny_scale<typename S::scale>::bf16x2(threadIdx.x);
  const index_t group = blockIdx.y;
  const index_t begin = call.offsets == nullptr ? 0 : call.offsets[group];
  const index_t end = call.offsets == nullptr ? call.m : call.offsets[group + 1];
#pragma unroll 1
  for (index_t first = begin; first < end; first += call.rows) {
    skinny_rows_of<S, Weights, Tiles>(call, weights, shared, multipliers, group, first,
                                      smaller(end, first + call.rows));
    __syncthreads();
  }
}

// How many strips a thread block takes: the fewest that leave no more than two thread blocks for each of 132
// multiprocessors, and that keep the rows of x in shared memory small. The same on every GPU, since sums depend on it.
inline int skinny_strips(index_t strips, int rows) noexcept {
  int per_block = 1;
  while (per_block < skinny_warps &&
         (ceil_div(strips, index_t{per_block}) > 264 || skinny_shared_bytes(per_block, rows) > 96 * 1024)) {
    per_block *= 2;
  }
  return per_block;
}

template <class S, class Weights>
void launch_skinny(const cuda& executor, skinny_call call, const Weights& weights, index_t groups) {
  const index_t strips = ceil_div(call.n, index_t{skinny_rows});
  call.strips = skinny_strips(strips * groups, call.rows);
  const auto kernel = call.rows <= 8 ? &skinny_kernel<S, Weights, 1> : &skinny_kernel<S, Weights, 2>;
  const int bytes = skinny_shared_bytes(call.strips, call.rows);
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda("skinny GEMM", cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), pending);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(strips, index_t{call.strips})), static_cast<unsigned>(groups));
  config.blockDim = dim3(skinny_threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = executor.stream;
  check_cuda("skinny GEMM", cudaLaunchKernelEx(&config, kernel, call, weights), pending);
}

template <class S>
stored_weights<S> as_weights(const quantized_view<const S>& w) noexcept {
  constexpr index_t scales = skinny_scales<S>::two ? 2 : 1;
  const bool side_by_side =
      w.layout == scale_layout::linear && S::block::rows == 1 && (S::block::columns == 16 || S::block::columns == 32);
  return {w, is_aligned(w.codes, w.code_pitch, 16), side_by_side && is_aligned(w.scales, w.scale_pitch, scales)};
}
template <class S>
repacked_weights<S> as_weights(const repacked_view<const S>& w) noexcept {
  return {w};
}
template <class S>
void check_weights(const quantized_view<const S>& w) {
  check_quantized("skinny GEMM weights", w);
}
template <class S>
void check_weights(const repacked_view<const S>& w) {
  if (w.rows < 0 || w.cols < 0) fail("repacked weights", "a shape that is not negative", shape_text(w.rows, w.cols));
  if (w.rows > 0 && w.cols > 0 && (w.data == nullptr || !is_aligned(w.data, 0, 16))) {
    fail("repacked weights", "memory on a multiple of 16 bytes", "other memory");
  }
}

// Both products: `groups` matrices of w.rows / groups rows, one under another.
template <class S, class W>
void multiply_skinny(const cuda& executor, matrix_view<const value<bf16>> x, const std::int32_t* offsets,
                     index_t groups, const W& w, matrix_view<float> y, const gemm_options& options) {
  check_matrix("skinny GEMM input", x);
  check_matrix("skinny GEMM output", y);
  check_weights(w);
  const index_t n = groups == 0 ? 0 : w.rows / groups;
  if (x.cols != w.cols) fail("K of skinny GEMM weights", std::to_string(x.cols), std::to_string(w.cols));
  if (y.rows != x.rows || y.cols != n) {
    fail("skinny GEMM output shape", shape_text(x.rows, n), shape_text(y.rows, y.cols));
  }
  if (w.tile.cols != 0) {
    fail("tensor scales of skinny GEMM weights", "tiles of whole rows", shape_text(w.tile.rows, w.tile.cols));
  }
  if (y.empty()) return;
  skinny_call call = {};
  call.x = x.data;
  call.x_pitch = x.pitch;
  call.wide = is_aligned(x.data, x.pitch * 2, 16);
  call.y = y.data;
  call.y_pitch = y.pitch;
  call.m = x.rows;
  call.n = n;
  call.k = x.cols;
  call.offsets = offsets;
  call.datum = w.datum;
  call.tile = w.tile;
  call.has_alpha = options.alpha.has_value();
  call.alpha = options.alpha.value_or(1.0f);
  call.rows = static_cast<int>(smaller(x.rows, offsets == nullptr ? index_t{16} : index_t{8}));
  launch_skinny<S>(executor, call, as_weights(w), groups);
}

}  // namespace detail::device

// Bytes that repacked weights take.
template <skinny_scheme S>
MICROSCALE_HD constexpr std::size_t repacked_bytes(index_t rows, index_t cols) noexcept {
  return static_cast<std::size_t>(ceil_div(rows, index_t{detail::device::skinny_rows}) *
                                  ceil_div(cols, index_t{detail::device::skinny_depth}) *
                                  detail::device::skinny_piece<S>::bytes);
}

// Repacks weights into `memory` (repacked_bytes, on a multiple of 16) for skinny_gemm_into. The view that comes back
// shares the quantized matrix's datum.
template <class Q>
repacked_view<const typename quantized_view<Q>::scheme_type> repack_into(const cuda& executor, quantized_view<Q> w_in,
                                                                         std::byte* memory) {
  using S = typename quantized_view<Q>::scheme_type;
  static_assert(skinny_scheme<S>);
  const quantized_view<const S> w = w_in;
  std::uint8_t* const data = reinterpret_cast<std::uint8_t*>(memory);
  const repacked_view<const S> out{data, w.datum, w.rows, w.cols, w.tile};
  detail::device::check_weights(w);
  detail::device::check_weights(out);
  if (w.empty()) return out;
  const index_t pieces =
      ceil_div(w.rows, index_t{detail::device::skinny_rows}) * ceil_div(w.cols, index_t{detail::device::skinny_depth});
  detail::device::check_launch(executor.launch);
  detail::device::launch(executor, "repack", &detail::device::repack_kernel<S>,
                         ceil_div(pieces, index_t{executor.launch.threads / 32}), detail::device::as_weights(w), data);
  return out;
}

// y = x W^T (m x n, from x: m x k and W: n x k) as the head of this file says. Made for m up to 16; more rows take a
// pass over the weights for each 16. K = 0 gives zeros. Rows of x that begin on 16 bytes are read faster, and so are
// rows of codes.
template <class Q>
void skinny_gemm_into(const cuda& executor, matrix_view<const value<bf16>> x, quantized_view<Q> w, matrix_view<float> y,
                      const gemm_options& options = {}) {
  using S = typename quantized_view<Q>::scheme_type;
  static_assert(skinny_scheme<S>);
  const quantized_view<const S> weights = w;
  detail::device::multiply_skinny<S>(executor, x, nullptr, 1, weights, y, options);
}
template <class Q>
void skinny_gemm_into(const cuda& executor, matrix_view<const value<bf16>> x, repacked_view<Q> w, matrix_view<float> y,
                      const gemm_options& options = {}) {
  using S = typename repacked_view<Q>::scheme_type;
  static_assert(skinny_scheme<S>);
  const repacked_view<const S> weights = w;
  detail::device::multiply_skinny<S>(executor, x, nullptr, 1, weights, y, options);
}

// The same for a mixture of experts: `w` holds `experts` matrices of n rows one under another (n a multiple of 16
// unless there is one expert; tensor scales by a tile of n rows, say), and rows offsets[e] ... offsets[e + 1] of x
// belong to expert e. `offsets` are experts + 1 ascending numbers in device memory, at most x.rows; rows of x that
// belong to none leave their rows of y alone.
template <class W>
void grouped_skinny_gemm_into(const cuda& executor, matrix_view<const value<bf16>> x, const std::int32_t* offsets,
                              index_t experts, W w, matrix_view<float> y, const gemm_options& options = {}) {
  if (experts < 1 || experts > 65535 || w.rows % experts != 0 || (experts > 1 && w.rows / experts % 16 != 0)) {
    detail::fail("experts of a grouped GEMM", "1 to 65535 of a multiple of 16 rows each",
                 std::to_string(experts) + " in " + std::to_string(w.rows) + " rows");
  }
  using S = typename W::scheme_type;
  static_assert(skinny_scheme<S>);
  if constexpr (requires { w.codes; }) {
    const quantized_view<const S> weights = w;
    detail::device::multiply_skinny<S>(executor, x, offsets, experts, weights, y, options);
  } else {
    const repacked_view<const S> weights = w;
    detail::device::multiply_skinny<S>(executor, x, offsets, experts, weights, y, options);
  }
}

}  // namespace microscale
