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
#include <limits>
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
// How a warp reads weights: parts of 16 rows by 256 along k, in two halves. Lane l multiplies the 32 weights of a half
// from 32 (l % 4) of rows l / 4 and l / 4 + 8, 16 bytes each, and copies those itself into a ring of parts in shared
// memory. What is under way takes no registers, and a lane waits for its own copies only.
inline constexpr int skinny_rows = 16;
inline constexpr int skinny_depth = 256;
inline constexpr int skinny_threads = 256;
inline constexpr int skinny_warps = skinny_threads / 32;
inline constexpr int skinny_ring = 3;
inline constexpr int skinny_code_bytes = skinny_rows * skinny_depth / 2;

template <class S>
struct skinny_part {
  static constexpr bool two = S::block::columns % 32 != 0;  // scales above the 32 weights of a lane's row
  using lane_scales = std::conditional_t<two, std::uint16_t, std::uint8_t>;
  static constexpr int of_lane = 4 * static_cast<int>(sizeof(lane_scales));
  static constexpr int row_scale_bytes = 2 * of_lane;
  static constexpr int bytes = skinny_code_bytes + 32 * of_lane;

  // The codes of a half, in row l / 4 + 8 which, behind a lane's own 16 bytes.
  __device__ static constexpr int codes_at(int half, int which) { return half * 1024 + which * 512; }
};

// A number that the compiler keeps in a register, and does not compute again for every part.
__device__ inline int held(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// Where a lane finds its codes and scales in a part.
struct skinny_place {
  int lane;
  int codes;
  int scales;

  __device__ skinny_place(int lane_in, int scales_in)
      : lane(held(lane_in)), codes(held(lane_in * 16)), scales(held(scales_in)) {}
};

// Multipliers that kernels get as arguments, so that a shift to the left is a multiplication, which takes another pipe
// than the masks that follow it.
struct skinny_multipliers {
  e2m1_places places;
  std::uint32_t two = 2;
  std::uint32_t four = 4;
  std::uint32_t eight = 8;
  std::uint32_t sixty_four = 64;
};

// Weights as stored. The scales of a part lie in shared memory row by row; rows are copied by one lane each.
// `Whole`: nothing but whole parts, whose rows and scales begin where copies want them to.
template <class S, bool Whole = false>
struct stored_weights {
  static constexpr bool repacked = false;
  using part = skinny_part<S>;

  quantized_view<const S> w;
  bool wide_codes;   // rows of codes begin on 16 bytes
  bool wide_scales;  // the scales of a row are neighbours, those of 256 weights on a multiple of their size

  // A lane's place in a strip of 16 rows.
  struct cursor {
    const std::uint8_t* codes;                 // of row l / 4
    const typename S::scale::storage* scales;  // of row l % 16
    const std::uint8_t* lower_codes;           // of row l / 4 + 8
    index_t row;                               // the strip's first
    int part;
    int whole;  // parts before this one lie inside the matrix
  };
  __device__ cursor at(index_t strip, int part_of_strip, int lane) const {
    const index_t row = strip * skinny_rows, k = index_t{part_of_strip} * skinny_depth;
    const std::uint8_t* const codes = w.codes + (row + lane / 4) * w.code_pitch + k / 2 + lane % 4 * 16;
    return {codes,
            w.scales + (row + lane % skinny_rows) / S::block::rows * w.scale_pitch + k / S::block::columns,
            codes + 8 * w.code_pitch,
            row,
            part_of_strip,
            row + skinny_rows <= w.rows ? static_cast<int>(w.cols / skinny_depth) : 0};
  }
  // Copies the part at `c`, and goes on to the next.
  __device__ void copy(cursor& c, std::uint8_t* to, const skinny_place& place) const {
    const bool inside = Whole || c.part < c.whole;
    const int lane = place.lane;
    std::uint8_t* const own = to + place.codes;
    if (Whole || (inside && wide_codes)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        copy_async<16>(own + part::codes_at(half, 0), c.codes + half * 64);
        copy_async<16>(own + part::codes_at(half, 1), c.lower_codes + half * 64);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint4*>(own + part::codes_at(i / 2, i % 2)) =
            codes_of(row_of(c, lane, i), column_of(c, lane, i));
      }
    }
    if (Whole || (inside && wide_scales)) {
      if (lane < skinny_rows) {
        copy_async<part::row_scale_bytes>(to + skinny_code_bytes + lane * part::row_scale_bytes, c.scales);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<lane_scales*>(to + place.scales + scale_offset(i / 2, i % 2)) =
            static_cast<lane_scales>(scales_of(row_of(c, lane, i), column_of(c, lane, i)));
      }
    }
    ++c.part;
    c.codes += skinny_depth / 2;
    c.lower_codes += skinny_depth / 2;
    c.scales += skinny_depth / S::block::columns;
  }
  __device__ static void spread(std::uint32_t word, const skinny_multipliers& by, std::uint32_t (&pairs)[4]) {
    spread_e2m1(word, by.places, pairs);
  }
  // Where in a part a lane finds its scales, and those themselves.
  __device__ static int scales_at(int lane) {
    return skinny_code_bytes + lane / 4 * part::row_scale_bytes + lane % 4 * static_cast<int>(sizeof(lane_scales));
  }
  __device__ static void load_scales(const std::uint8_t* from, std::uint32_t (&codes)[2][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        codes[half][which] = *reinterpret_cast<const lane_scales*>(from + scale_offset(half, which));
      }
    }
  }

 private:
  using lane_scales = typename part::lane_scales;

  // Of a lane's i-th 32 weights.
  __device__ static index_t row_of(const cursor& c, int lane, int i) { return c.row + lane / 4 + 8 * (i % 2); }
  __device__ static index_t column_of(const cursor& c, int lane, int i) {
    return index_t{c.part} * skinny_depth + i / 2 * 128 + lane % 4 * 32;
  }
  __device__ static constexpr int scale_offset(int half, int which) {
    return half * part::of_lane + which * 8 * part::row_scale_bytes;
  }
  // The 32 codes from (row, k), zeros beyond the matrix.
  __device__ __noinline__ uint4 codes_of(index_t row, index_t k) const {
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
  __device__ __noinline__ std::uint32_t scales_of(index_t row, index_t k) const {
    if (row >= w.rows || k >= w.cols) return 0;
    std::uint32_t codes = w.scale(row, k);
    if (part::two && k + 16 < w.cols) codes |= std::uint32_t{w.scale(row, k + 16)} << 8;
    return codes;
  }
};

// Repacked weights: parts one after another as a ring holds them, those of 16 rows together. The scales lie lane by
// lane, those of a half together. Eight codes lie in a word so that few instructions turn pairs of neighbours into
// BF16: the first of each pair in the lower 16 bits, the sign of pair p in bit sign_of(p), the rest from bit
// rest_of(p).
template <class S>
struct repacked_weights {
  static constexpr bool repacked = true;
  using part = skinny_part<S>;

  repacked_view<const S> w;

  struct cursor {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
  };
  __device__ cursor at(index_t strip, int part_of_strip, int lane) const {
    const index_t parts = ceil_div(w.cols, index_t{skinny_depth});
    const std::uint8_t* const from = w.data + (strip * parts + part_of_strip) * part::bytes;
    return {from + lane * 16, from + scales_at(lane)};
  }
  __device__ void copy(cursor& c, std::uint8_t* to, const skinny_place& place) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_async<16>(to + place.codes + i * 512, c.codes + i * 512);
    copy_async<part::of_lane>(to + place.scales, c.scales);
    c.codes += part::bytes;
    c.scales += part::bytes;
  }
  __device__ static constexpr int sign_of(int pair) { return pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13; }
  __device__ static constexpr int rest_of(int pair) { return pair == 0 ? 6 : pair == 1 ? 3 : pair == 2 ? 0 : 9; }
  // Eight codes, element i in bits 4i ... 4i + 3, in the order of a word.
  __device__ static std::uint32_t pack(std::uint32_t codes) {
    std::uint32_t r = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t code = codes >> (4 * i) & 0xFu;
      r |= (code >> 3) << (sign_of(i / 2) + i % 2 * 16) | (code & 7u) << (rest_of(i / 2) + i % 2 * 16);
    }
    return r;
  }
  // The other way, to BF16 numbers value * 2^-126, neighbours in a word.
  __device__ static void spread(std::uint32_t word, const skinny_multipliers& by, std::uint32_t (&pairs)[4]) {
    constexpr std::uint32_t signs = 0x80008000u, rests = 0x01C001C0u;
    pairs[0] = word & (signs | rests);
    pairs[1] = word * by.eight & (signs | rests);
    pairs[2] = (word * by.sixty_four & rests) | (word * by.two & signs);
    pairs[3] = (word >> 3 & rests) | (word * by.four & signs);
  }
  __device__ static int scales_at(int lane) { return skinny_code_bytes + lane * part::of_lane; }
  __device__ static void load_scales(const std::uint8_t* from, std::uint32_t (&codes)[2][2]) {
    if constexpr (part::two) {
      const uint2 halves = *reinterpret_cast<const uint2*>(from);
      codes[0][0] = halves.x & 0xFFFFu, codes[0][1] = halves.x >> 16;
      codes[1][0] = halves.y & 0xFFFFu, codes[1][1] = halves.y >> 16;
    } else {
      const std::uint32_t all = *reinterpret_cast<const std::uint32_t*>(from);
      codes[0][0] = all & 0xFFu, codes[0][1] = all >> 8 & 0xFFu;
      codes[1][0] = all >> 16 & 0xFFu, codes[1][1] = all >> 24;
    }
  }
  // What load_scales reads.
  __device__ static void store_scales(std::uint8_t* to, const std::uint32_t (&codes)[2][2]) {
    if constexpr (part::two) {
      *reinterpret_cast<uint2*>(to) = make_uint2(codes[0][0] | codes[0][1] << 16, codes[1][0] | codes[1][1] << 16);
    } else {
      *reinterpret_cast<std::uint32_t*>(to) = codes[0][0] | codes[0][1] << 8 | codes[1][0] << 16 | codes[1][1] << 24;
    }
  }
};

template <quantization_scheme S>
__global__ void __launch_bounds__(largest_thread_block)
    repack_kernel(const stored_weights<S> from, std::uint8_t* const out) {
  using part = skinny_part<S>;
  __shared__ uint4 slots[largest_thread_block / 32][part::bytes / 16];
  const index_t per_strip = ceil_div(from.w.cols, index_t{skinny_depth});
  const index_t parts = ceil_div(from.w.rows, index_t{skinny_rows}) * per_strip;
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint8_t* const slot = reinterpret_cast<std::uint8_t*>(slots[threadIdx.x / 32]);
  const skinny_place place(lane, from.scales_at(lane));
#pragma unroll 1
  for (index_t i = blockIdx.x * index_t{blockDim.x / 32} + threadIdx.x / 32; i < parts;
       i += gridDim.x * index_t{blockDim.x / 32}) {
    auto at = from.at(i / per_strip, static_cast<int>(i % per_strip), lane);
    from.copy(at, slot, place);
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    std::uint8_t* const to = out + i * part::bytes;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint4 codes = *reinterpret_cast<const uint4*>(slot + lane * 16 + c * 512);
      *reinterpret_cast<uint4*>(to + lane * 16 + c * 512) =
          make_uint4(repacked_weights<S>::pack(codes.x), repacked_weights<S>::pack(codes.y),
                     repacked_weights<S>::pack(codes.z), repacked_weights<S>::pack(codes.w));
    }
    std::uint32_t scales[2][2];
    from.load_scales(slot + place.scales, scales);
    repacked_weights<S>::store_scales(to + repacked_weights<S>::scales_at(lane), scales);
    __syncwarp();
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
// the parts of a strip. The x of a part lies in shared memory for all warps, in a ring of its own.

struct skinny_call {
  const value<bf16>* x;
  index_t x_pitch;
  bool wide;  // rows of x begin on 16 bytes
  float* y;
  index_t y_pitch;
  index_t m;  // rows of x of the only group
  index_t n;  // rows of weights of a group
  int k;
  const std::int32_t* offsets;  // group g has rows offsets[g] ... offsets[g + 1] of x; null if there is one group
  const float* datum;
  tensor_tile tile;
  bool has_alpha;
  float alpha;
  int strips;
  int shares;  // of k: skinny_warps / strips
  int share;   // parts of a warp
  int rows;    // of x at a time
  int unit;    // parts whose x is one stage
  int stages;  // of x: 1 if it holds all parts of a share, else 2, 3 or 4
  int stage_bytes;
  int slots;  // of a ring of weights, at most skinny_ring
  skinny_multipliers by;
};

// A row of x for a share of k: where it begins, in memory and in a stage.
struct skinny_row {
  const value<bf16>* from;
  int to;  // and 32 for each odd row
  int k;
};
inline constexpr int skinny_most_rows = 64;  // of all shares

// Shared memory: the multipliers of all scales, the rows of x, stages of x, rings. Afterwards the sums of the warps lie
// where the rings were.
inline constexpr int skinny_head_bytes = 1024 + skinny_most_rows * static_cast<int>(sizeof(skinny_row));
template <class S>
constexpr int skinny_shared_bytes(const skinny_call& call) noexcept {
  static_assert(skinny_part<S>::bytes >= skinny_rows * 16 * 4);
  return skinny_head_bytes + call.stages * call.stage_bytes + skinny_warps * call.slots * skinny_part<S>::bytes;
}

// Where 16-byte piece u of a row of x lies, from its beginning: pieces that four lanes of two rows read together are in
// different banks. In an odd row, two pieces further on or back.
__device__ inline int skinny_piece_of(int u) { return (u ^ (u >> 3 & 1)) * 16; }
__device__ inline int skinny_swap_of(int row) { return row % 2 * 32; }

// The rows of x of a thread block, and what its lanes do with them: a warp takes the part of a row.
struct skinny_activations {
  const skinny_row* rows;
  int warp;
  int count;  // of rows
  int piece;  // the lane's

  __device__ skinny_activations(const skinny_call& call, std::uint8_t* shared, index_t first, int rows_of_x)
      : rows(reinterpret_cast<const skinny_row*>(shared)),
        warp(held(static_cast<int>(threadIdx.x / 32))),
        count(held(call.shares * rows_of_x)),
        piece(held(skinny_piece_of(static_cast<int>(threadIdx.x % 32)))) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < count) {
      const int share = i / rows_of_x, r = i - share * rows_of_x, k = share * call.share * skinny_depth;
      const int row = share * call.rows + r;
      reinterpret_cast<skinny_row*>(shared)[i] = {call.x + (first + r) * call.x_pitch + k,
                                                  row * call.unit * skinny_depth * 2 + skinny_swap_of(row), k};
    }
  }
  // Calls f(row, part of the unit, place of the lane's piece in `stage`) for this warp's share of a stage.
  template <class F>
  __device__ void for_own(int unit, std::uint8_t* stage, F&& f) const {
#pragma unroll 1
    for (int part = 0; part < unit; ++part) {
#pragma unroll 1
      for (int i = (warp + part) % skinny_warps; i < count; i += skinny_warps) {
        const skinny_row row = rows[i];
        f(row, part, stage + part * skinny_depth * 2 + (row.to ^ piece));
      }
    }
  }
  // Brings the parts from `first` on of each share into a stage, zeros beyond the columns.
  __device__ void load(const skinny_call& call, std::uint8_t* stage, int first) const {
    for_own(call.unit, stage, [&](const skinny_row& row, int part, std::uint8_t* to) {
      const int begin = (first + part) * skinny_depth, offset = begin + static_cast<int>(threadIdx.x % 32) * 8;
      if (call.wide && row.k + begin + skinny_depth <= call.k) {
        copy_async<16>(to, row.from + offset);
        return;
      }
      std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (row.k + offset + e < call.k) words[e / 2] |= std::uint32_t{row.from[offset + e].code()} << (16 * (e % 2));
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    });
  }
  // Puts neighbours i and i + 4 of each eight together, as the codes of weights as stored come apart.
  __device__ void pair(const skinny_call& call, std::uint8_t* stage) const {
    for_own(call.unit, stage, [](const skinny_row&, int, std::uint8_t* at) {
      const uint4 b = *reinterpret_cast<const uint4*>(at);
      *reinterpret_cast<uint4*>(at) = make_uint4(select_bytes(b.x, b.z, 0x5410), select_bytes(b.x, b.z, 0x7632),
                                                 select_bytes(b.y, b.w, 0x5410), select_bytes(b.y, b.w, 0x7632));
    });
  }
};

// Two tiles of 16 weights along k from eight codes of each of two rows.
template <class Scale, class Weights>
__device__ void decode_fragments(std::uint32_t low_row, std::uint32_t high_row, std::uint32_t low_scale,
                                 std::uint32_t high_scale, const skinny_multipliers& by, std::uint32_t (&a)[2][4]) {
  std::uint32_t low[4], high[4];
  Weights::spread(low_row, by, low);
  Weights::spread(high_row, by, high);
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

// Where a lane finds what it multiplies: its weights, and the four eights of x of a half, in row l / 4 of each tile of
// eight rows. A lane without a row reads the first, and what it multiplies is thrown away.
template <int Tiles>
struct skinny_operands : skinny_place {
  int eights[Tiles][4];

  __device__ skinny_operands(const skinny_place& place, const skinny_call& call, int rows, int share)
      : skinny_place(place) {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const int r = t * 8 + lane / 4 < rows ? t * 8 + lane / 4 : 0, row = share * call.rows + r;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        eights[t][i] =
            held(row * call.unit * skinny_depth * 2 + (skinny_swap_of(row) ^ skinny_piece_of(lane % 4 * 4 + i)));
      }
    }
  }
};

// Adds a part: sums[tile of eight rows of x][which of two chains].
template <class S, class Weights, int Tiles>
__device__ void add_part(const std::uint8_t* slot, const std::uint8_t* x, const skinny_operands<Tiles>& place,
                         const std::uint32_t* multipliers, const skinny_multipliers& by, float (&sums)[Tiles][2][4]) {
  using part = skinny_part<S>;
  std::uint32_t scale_codes[2][2];
  Weights::load_scales(slot + place.scales, scale_codes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t scales[2][2], words[2][4];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const std::uint32_t codes = scale_codes[half][which];
      scales[which][0] = multipliers[codes & 0xFFu];
      scales[which][1] = part::two ? multipliers[codes >> 8] : scales[which][0];
      const uint4 four = *reinterpret_cast<const uint4*>(slot + place.codes + part::codes_at(half, which));
      words[which][0] = four.x, words[which][1] = four.y, words[which][2] = four.z, words[which][3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t a[2][4];
      decode_fragments<typename S::scale, Weights>(words[0][i], words[1][i], scales[0][i / 2], scales[1][i / 2], by, a);
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + place.eights[t][i] + half * 256);
        const std::uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
        multiply_tile(sums[t][0], a[0], first, sums[t][0]);
        multiply_tile(sums[t][1], a[1], second, sums[t][1]);
      }
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

// Waits for a part: it was asked for three parts ago (with fewer slots, which come with two stages, fewer), and what
// came later may still be under way. So it is, `behind` parts later, with the x that a thread asked for itself.
__device__ inline void wait_for_part(int behind) {
  static_assert(skinny_ring == 3);
  if (behind > 2) {
    wait_copies<2>();
  } else if (behind == 2) {
    wait_copies<1>();
  } else {
    wait_copies<0>();
  }
}

// Rows first ... first + rows of x, at most 8 Tiles of them, against the strips of this thread block.
template <class S, class Weights, int Tiles>
__device__ void skinny_rows_of(const skinny_call& call, const Weights& weights, std::uint8_t* shared,
                               const std::uint32_t* multipliers, index_t group, index_t first, int rows) {
  using part = skinny_part<S>;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int share = warp / call.strips;
  const index_t group_strip = blockIdx.x * index_t{static_cast<unsigned>(call.strips)} + warp % call.strips;
  const index_t strips = ceil_div(call.n, index_t{skinny_rows});
  const int begin = share * call.share, parts = ceil_div(call.k, skinny_depth);
  const int count = group_strip < strips ? held(smaller(call.share, parts - begin)) : 0;
  const skinny_activations x(call, shared, first, rows);
  const skinny_place lanes(lane, Weights::scales_at(lane));
  std::uint8_t* const stages = shared + skinny_head_bytes - 1024;
  std::uint8_t* const rings = stages + call.stages * call.stage_bytes;
  std::uint8_t* const ring = rings + held(warp * call.slots * part::bytes);
  // How many parts ahead x is asked for; all of it, if there is one stage.
  const int ahead = call.stages == 1 ? call.unit : (call.stages - 1) * call.unit;
  const int behind = call.stages == 1 || ahead > skinny_ring ? skinny_ring : ahead;
  auto cursor = weights.at(group * strips + group_strip, begin, lane);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < skinny_ring; ++i) {
    if (i < smaller(call.slots, count)) weights.copy(cursor, ring + i * part::bytes, lanes);
    if (i < larger(1, call.stages - 1)) x.load(call, stages + i * call.stage_bytes, i * call.unit);
    commit_copies();
  }
  const skinny_operands<Tiles> place(lanes, call, rows, share);
  float sums[Tiles][2][4] = {};
  int slot = 0;                                               // place in the ring
  int stage = -call.stage_bytes, next = 0, unit = call.unit;  // in the stages; the next one; parts of this one done
#pragma unroll 1
  for (int at = 0; at < call.share; ++at) {
    wait_for_part(behind);
    if (unit == call.unit) {
      if constexpr (!Weights::repacked) x.pair(call, stages + next);
      __syncthreads();
      // The stage that every warp has left takes what is to follow those under way.
      const int free = stage < 0 ? (call.stages - 1) * call.stage_bytes : stage;
      if (at + ahead < call.share) x.load(call, stages + free, at + ahead);
      stage = next;
      next = next + call.stage_bytes == call.stages * call.stage_bytes ? 0 : next + call.stage_bytes;
      unit = 0;
    } else if constexpr (!Weights::repacked) {
      __syncwarp();  // scales are copied by other lanes
    }
    if (at < count) {
      add_part<S, Weights>(ring + slot, stages + stage + unit * skinny_depth * 2, place, multipliers, call.by, sums);
    }
    if constexpr (!Weights::repacked) __syncwarp();  // before the scales are written over
    if (at + call.slots < count) weights.copy(cursor, ring + slot, lanes);
    commit_copies();
    slot = slot + part::bytes == call.slots * part::bytes ? 0 : slot + part::bytes;
    ++unit;
  }
  // The shares of each output, added in order.
  wait_copies<0>();
  __syncthreads();
  float* const totals = reinterpret_cast<float*>(rings);  // [share][strip][weight][row of x]
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e / 2 * 8, r = t * 8 + lane % 4 * 2 + e % 2;
      if (r < call.rows) totals[(warp * skinny_rows + row) * call.rows + r] = fp32::add(sums[t][0][e], sums[t][1][e]);
    }
  }
  __syncthreads();
  const int outputs = call.strips * skinny_rows * call.rows;
  for (int o = static_cast<int>(threadIdx.x); o < outputs; o += skinny_threads) {
    const int weight = o % (call.strips * skinny_rows), r = o / (call.strips * skinny_rows);
    const index_t j = blockIdx.x * index_t{static_cast<unsigned>(call.strips)} * skinny_rows + weight;
    if (j >= call.n || r >= rows) continue;
    float sum = totals[weight * call.rows + r];
    for (int s = 1; s < call.shares; ++s) sum = fp32::add(sum, totals[s * outputs + weight * call.rows + r]);
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
                                      static_cast<int>(smaller(end - first, index_t{call.rows})));
    __syncthreads();
  }
}

// How many strips a thread block takes: the fewest that leave no more than two thread blocks for each of 132
// multiprocessors, and not too much of x for its shares. The same on every GPU, since sums depend on it.
inline int skinny_strips(index_t strips, int rows) noexcept {
  int per_block = 1;
  while (per_block < skinny_warps) {
    const index_t blocks = ceil_div(strips, index_t{per_block});
    const int most = rows > 8 && blocks > 132 ? skinny_most_rows / 2 : skinny_most_rows;
    if (blocks <= 264 && skinny_warps / per_block * rows <= most) break;
    per_block *= 2;
  }
  return per_block;
}

// As much memory as leaves room for two thread blocks on a multiprocessor, if there are so many, else as much as one
// may have: with all of x in it, if possible, so that warps need not wait for each other; else in long stages.
template <class S>
void choose_stages(skinny_call& call, index_t blocks) {
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - 1024;
  const auto bytes = [&](int slots, int stages, int unit) {
    call.slots = larger(1, smaller(slots, call.share));
    call.stages = stages;
    call.unit = larger(1, unit);
    call.stage_bytes = call.shares * call.rows * call.unit * skinny_depth * 2;
    return skinny_shared_bytes<S>(call);
  };
  const int choices[][3] = {{3, 1, call.share}, {3, 4, 2}, {3, 3, 2}, {3, 4, 1},
                            {3, 3, 1},          {3, 2, 1}, {2, 2, 1}, {1, 2, 1}};
  const bool alone = blocks <= device_attribute(cudaDevAttrMultiProcessorCount) || bytes(2, 2, 1) > half;
  for (const auto& [slots, stages, unit] : choices) {
    if (bytes(slots, stages, unit) <= (alone ? most : half)) return;
  }
}

template <class S, class Weights>
void launch_skinny(const cuda& executor, skinny_call call, const Weights& weights, index_t groups) {
  const index_t strips = ceil_div(call.n, index_t{skinny_rows});
  call.strips = skinny_strips(strips * groups, call.rows);
  call.shares = skinny_warps / call.strips;
  call.share = ceil_div(ceil_div(call.k, skinny_depth), call.shares);
  const index_t blocks = ceil_div(strips, index_t{call.strips});
  choose_stages<S>(call, blocks * groups);
  const auto kernel = call.rows <= 8 ? &skinny_kernel<S, Weights, 1> : &skinny_kernel<S, Weights, 2>;
  const int bytes = skinny_shared_bytes<S>(call);
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda("skinny GEMM", cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), pending);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups));
  config.blockDim = dim3(skinny_threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = executor.stream;
  check_cuda("skinny GEMM", cudaLaunchKernelEx(&config, kernel, call, weights), pending);
}

template <class S>
stored_weights<S> as_weights(const quantized_view<const S>& w) noexcept {
  const bool side_by_side = w.layout == scale_layout::linear && (S::block::columns == 16 || S::block::columns == 32);
  return {w, is_aligned(w.codes, w.code_pitch, 16),
          side_by_side && is_aligned(w.scales, w.scale_pitch, skinny_part<S>::row_scale_bytes)};
}
template <class S>
repacked_weights<S> as_weights(const repacked_view<const S>& w) noexcept {
  return {w};
}
template <class S>
quantized_view<const std::remove_const_t<S>> as_const(const quantized_view<S>& w) noexcept {
  return w;
}
template <class S>
repacked_view<const std::remove_const_t<S>> as_const(const repacked_view<S>& w) noexcept {
  return w;
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
template <class W>
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
  constexpr index_t most = std::numeric_limits<int>::max() - 16 * skinny_depth;
  if (x.cols > most) fail("K of a skinny GEMM", "at most " + std::to_string(most), std::to_string(x.cols));
  call.k = static_cast<int>(x.cols);
  call.offsets = offsets;
  call.datum = w.datum;
  call.tile = w.tile;
  call.has_alpha = options.alpha.has_value();
  call.alpha = options.alpha.value_or(1.0f);
  call.rows = static_cast<int>(smaller(x.rows, offsets == nullptr ? index_t{16} : index_t{8}));
  using scheme = typename W::scheme_type;
  const auto weights = as_weights(w);
  if constexpr (!decltype(weights)::repacked) {
    if (weights.wide_codes && weights.wide_scales && w.rows % skinny_rows == 0 && w.cols % skinny_depth == 0) {
      launch_skinny<scheme>(executor, call, stored_weights<scheme, true>{w, true, true}, groups);
      return;
    }
  }
  launch_skinny<scheme>(executor, call, weights, groups);
}

}  // namespace detail::device

// Bytes that repacked weights take.
template <skinny_scheme S>
MICROSCALE_HD constexpr std::size_t repacked_bytes(index_t rows, index_t cols) noexcept {
  return static_cast<std::size_t>(ceil_div(rows, index_t{detail::device::skinny_rows}) *
                                  ceil_div(cols, index_t{detail::device::skinny_depth}) *
                                  detail::device::skinny_part<S>::bytes);
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
  const index_t parts =
      ceil_div(w.rows, index_t{detail::device::skinny_rows}) * ceil_div(w.cols, index_t{detail::device::skinny_depth});
  detail::device::check_launch(executor.launch);
  detail::device::launch(executor, "repack", &detail::device::repack_kernel<S>,
                         ceil_div(parts, index_t{executor.launch.threads / 32}), detail::device::as_weights(w), data);
  return out;
}

// y = x W^T (m x n, from x: m x k and W: n x k) as the head of this file says; `w` is a quantized_view, or the
// repacked_view of one. Made for m up to 16; more rows take a
// pass over the weights for each 16. K = 0 gives zeros. Rows of x that begin on 16 bytes are read faster, and so are
// rows of codes.
template <class W>
void skinny_gemm_into(const cuda& executor, matrix_view<const value<bf16>> x, W w, matrix_view<float> y,
                      const gemm_options& options = {}) {
  static_assert(skinny_scheme<typename W::scheme_type>);
  detail::device::multiply_skinny(executor, x, nullptr, 1, detail::device::as_const(w), y, options);
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
  static_assert(skinny_scheme<typename W::scheme_type>);
  detail::device::multiply_skinny(executor, x, offsets, experts, detail::device::as_const(w), y, options);
}

}  // namespace microscale
