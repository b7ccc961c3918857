// The host's vector kernels: runs of blocks, a register's width of blocks at a time.
//
// Each algorithm is one always-inlined template over an instruction set, and is compiled once for each by the functions
// at the end of this file, which carry the target attributes. Kernels see only full blocks and finite numbers; what
// else a matrix has is the business of simd_ranges.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../tensor/hadamard.hpp"
#include "../tensor/view.hpp"
#include "simd_block.hpp"

#if defined(__clang__)
#pragma float_control(precise, on, push)
#elif defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // the host compiler's unroll pragma
#endif

namespace microscale::simd {

// What kernels read and write.
template <class T>
inline constexpr bool has_loads =
    std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, value<bf16>>;

template <class S, class T>
inline constexpr bool has_quantize_kernel = has_lanes_rule<S> &&
                                            (S::block::columns == 16 || S::block::columns == 32) && has_loads<T>;

inline constexpr int largest_run = 32;  // elements of a block, and of a Hadamard transform

// A run of blocks: block i of it begins at x + i * block_step, its elements lie element_step apart. One of the two
// steps between neighbours is 1: element_step where blocks run along the rows of memory, block_step where they run
// down its columns.
template <class S, class T>
struct quantize_run {
  const T* x = nullptr;
  index_t block_step = 0;
  index_t element_step = 1;
  std::uint8_t* codes = nullptr;
  index_t code_step = 0;  // bytes from one block to the next
  typename S::scale::storage* scales = nullptr;
  index_t scale_step = 1;
  tensor_factors factors;
  random_key key;
  std::uint64_t position = 0;  // of the first block's first element, for draws; a multiple of 16, as are the steps
  std::uint64_t position_step = 0;
  const std::uint64_t* positions = nullptr;  // of each block instead, where they do not lie in step
  // The rule's divisors, divisor_step apart, where the scales are known already: then none are written, and the blocks
  // are taken to be finite.
  const float* divisors = nullptr;
  index_t divisor_step = 0;
  std::uint32_t flips[largest_run] = {};  // where the blocks are transformed first
};

// W numbers of memory.
template <int W>
[[gnu::always_inline]] inline floats<W> load_floats(const float* x) noexcept {
  return floats<W>::load(x);
}
template <int W>
[[gnu::always_inline]] inline floats<W> load_floats(const value<bf16>* x) noexcept {
  return as<float>(widened(lanes<std::uint16_t, W>::load(x)) << 16);
}

// Element k of W neighbouring blocks in x[k].
template <int W, int N, class T>
[[gnu::always_inline]] inline void load_blocks(const T* from, index_t block_step, index_t element_step,
                                               floats<W> (&x)[N]) noexcept {
  if (element_step == 1) {
#pragma GCC unroll 8
    for (int part = 0; part < N; part += W) {
      floats<W> tile[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) tile[i] = load_floats<W>(from + i * block_step + part);
      transpose(tile);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) x[part + i] = tile[i];
    }
  } else {
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) x[k] = load_floats<W>(from + k * element_step);
  }
}
template <int W, int N, class S, class T>
[[gnu::always_inline]] inline void load_blocks(const quantize_run<S, T>& run, index_t first,
                                               floats<W> (&x)[N]) noexcept {
  load_blocks(run.x + first * run.block_step, run.block_step, run.element_step, x);
}

// The bits of the largest magnitude of each of W blocks.
template <int W, int N>
[[gnu::always_inline]] inline words<W> amax_of_blocks(const floats<W> (&x)[N]) noexcept {
  words<W> amax = magnitude(x[0]);
#pragma GCC unroll 32
  for (int k = 1; k < N; ++k) amax = larger_of(amax, magnitude(x[k]));
  return amax;
}

// Asks for what is a page ahead of W blocks that lie in a row: the processor's own prefetching stops at pages.
template <int W, class S, class T>
[[gnu::always_inline]] inline void prefetch(const quantize_run<S, T>& run, index_t first) noexcept {
  if (run.element_step != 1) return;
  constexpr int line = 64, page = 4096;
  const char* const from = reinterpret_cast<const char*>(run.x + first * run.block_step);
  for (int at = 0; at < W * S::block::columns * static_cast<int>(sizeof(T)); at += line) {
    __builtin_prefetch(from + page + at);
  }
}

// The transform of hadamard.hpp of runs of Size elements, none for 1; `flips` holds the sign bit where an element is
// negated. False, and nothing done, for a number from 2^(127 - log2 Size) on: sums might overflow.
template <int Size, int W, int N>
[[gnu::always_inline]] inline bool hadamard_blocks(floats<W> (&x)[N], const std::uint32_t* flips) noexcept {
  if constexpr (Size > 1) {
    constexpr std::uint32_t limit = (254u - static_cast<std::uint32_t>(bit_width(Size) - 1)) << 23;
    if (any(greater(amax_of_blocks(x), all<W>(limit - 1u)))) return false;
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) x[k] = as<float>(bits(x[k]) ^ all<W>(flips[k % Size]));
#pragma GCC unroll 5
    for (int stride = 1; stride < Size; stride *= 2) {
#pragma GCC unroll 32
      for (int k = 0; k < N; ++k) {
        if ((k & stride) == 0) {
          const floats<W> u = x[k], v = x[k + stride];
          x[k] = add(u, v);
          x[k + stride] = sub(u, v);
        }
      }
    }
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) x[k] = mul(x[k], hadamard_factor(Size));
  }
  return true;
}

// Philox4x32-10 of random.hpp for W counters {index, stream}.
template <class L, int W = L::width>
[[gnu::always_inline]] inline void philox(random_key key, const std::uint64_t (&index)[W],
                                          words<W> (&out)[4]) noexcept {
  using pairs = lanes<std::uint64_t, W / 2>;
  // Counters of even and of odd lanes, each word in the low half of 64 bits; what is above does not matter.
  std::uint64_t low[2][W / 2], high[2][W / 2];
  for (int i = 0; i < W / 2; ++i) {
    for (int odd = 0; odd < 2; ++odd) {
      low[odd][i] = index[2 * i + odd];
      high[odd][i] = index[2 * i + odd] >> 32;
    }
  }
  pairs result[2][4];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    pairs c0 = pairs::load(low[odd]), c1 = pairs::load(high[odd]);
    pairs c2 = pairs::all(key.stream & 0xFFFFFFFFu), c3 = pairs::all(key.stream >> 32);
    std::uint32_t k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const pairs p0 = wide_product(c0, pairs::all(0xD2511F53u)), p1 = wide_product(c2, pairs::all(0xCD9E8D57u));
      c0 = (p1 >> 32) ^ c1 ^ pairs::all(k0);
      c2 = (p0 >> 32) ^ c3 ^ pairs::all(k1);
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    result[odd][0] = c0;
    result[odd][1] = c1;
    result[odd][2] = c2;
    result[odd][3] = c3;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const pairs both = (result[0][i] & pairs::all(0xFFFFFFFFu)) | (result[1][i] << 32);
    std::memcpy(&out[i].v, &both.v, sizeof both.v);
  }
}

// The draws of W blocks: element k takes bits k * Bits on of the words of its lane.
template <class L, class R, class S, class T, int Words>
[[gnu::always_inline]] inline void draw_blocks(const quantize_run<S, T>& run, index_t first,
                                               words<L::width> (&out)[Words]) noexcept {
  if constexpr (R::random_bits > 0) {
    constexpr std::uint64_t per_call = draws_per_call<R::random_bits>;
    std::uint64_t index[L::width];
#pragma GCC unroll 8
    for (int call = 0; call < Words / 4; ++call) {
      for (int i = 0; i < L::width; ++i) {
        const std::uint64_t block = static_cast<std::uint64_t>(first + i);
        const std::uint64_t position =
            run.positions != nullptr ? run.positions[block] : run.position + block * run.position_step;
        index[i] = position / per_call + static_cast<std::uint64_t>(call);
      }
      words<L::width> four[4];
      philox<L>(run.key, index, four);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) out[4 * call + i] = four[i];
    }
  }
}

template <class S, class R>
inline constexpr int draw_words = R::random_bits > 0 ? S::block::columns* R::random_bits / 32 : 1;

template <class R, int W, int Words>
[[gnu::always_inline]] inline words<W> draw_of(const words<W> (&draws)[Words], int k) noexcept {
  if constexpr (R::random_bits == 0) {
    return all<W>(0);
  } else {
    constexpr int b = R::random_bits;
    return (draws[k * b / 32] >> (k * b % 32)) & all<W>((1u << b) - 1u);
  }
}

// |x| and the divisor's number to round, and the sign bits of the code. The divisor is of each lane, or one number.
template <element_step Step, int W, class Divisor>
[[gnu::always_inline]] inline floats<W> scaled_magnitude(const floats<W>& x, const Divisor& divisor,
                                                         words<W>& sign) noexcept {
  const floats<W> a = as<float>(magnitude(x));
  sign = bits(x) & all<W>(fp32::sign_bit);
  if constexpr (Step == element_step::product) {
    return mul(a, divisor);
  } else if constexpr (Step == element_step::zero_or_product) {
    return as<float>(bits(mul(a, divisor)) & greater(bits(a), all<W>(0)));
  } else {
    const floats<W> y = as<float>(magnitude(div(a, divisor)));  // 0 / 0 has what sign the processor likes
    if constexpr (Step == element_step::signless_quotient) {
      // Neither a zero nor 0 / 0 has a sign.
      sign = sign & greater(bits(y), all<W>(0)) & greater(all<W>(fp32::infinity_bits + 1u), bits(y));
    }
    return y;
  }
}

// What scaled_magnitude takes for the rule's divisor.
template <element_step Step, int W>
[[gnu::always_inline]] inline floats<W> usable_divisor(const floats<W>& divisor) noexcept {
  if constexpr (Step == element_step::quotient) {
    const words<W> zero = equal(bits(divisor), all<W>(0));
    return as<float>(select(zero, all<W>(fp32::infinity_bits), bits(divisor)));
  } else {
    return divisor;
  }
}

// The codes of W blocks, block i's packed in lane i of the words of `packed`.
template <class L, class S, class R, int W, int N, int Draws, int Words>
[[gnu::always_inline]] inline void encode_blocks(const floats<W> (&x)[N], const floats<W>& divisor,
                                                 const words<W> (&draws)[Draws], words<W> (&packed)[Words]) noexcept {
  using element = typename S::element;
  constexpr int size = element::bits;
  constexpr element_step step = lanes_rule<typename S::rule>::step;
  const floats<W> d = usable_divisor<step>(divisor);
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) packed[i] = all<W>(0);
    // From the last element down: each is pushed in at the low end.
#pragma GCC unroll 32
  for (int k = N - 1; k >= 0; --k) {
    words<W> sign;
    const floats<W> y = scaled_magnitude<step>(x[k], d, sign);
    const words<W> code = round_magnitude<L, R, element>(y, draw_of<R>(draws, k)) << (32 - size);
    const words<W> top = select(all<W>(fp32::sign_bit), sign, code);
    const int word = k * size / 32, last = (k * size + size - 1) / 32;
    if (32 % size == 0 || word == last) {
      packed[word] = pushed<L, size>(packed[word], top);
    } else {
      const int high = (k + 1) * size % 32;  // bits that belong to the word above
      packed[last] = pushed(packed[last], top, high);
      packed[word] = pushed(packed[word], top << high, size - high);
    }
  }
}

// Words of W lanes to memory, lane after lane.
template <int W, int Words>
[[gnu::always_inline]] inline void store_blocks(words<W> (&packed)[Words], std::uint8_t* codes, index_t step) noexcept {
  constexpr int bytes = 4 * Words;
  if constexpr (Words == 2 || Words == 4) {
    if (step == bytes) {
      interleave(packed[0], packed[1]);
      if constexpr (Words == 4) {
        interleave(packed[2], packed[3]);
        interleave_pairs(packed[0], packed[2]);
        interleave_pairs(packed[1], packed[3]);
        packed[0].store(codes);
        packed[2].store(codes + 4 * W);
        packed[1].store(codes + 8 * W);
        packed[3].store(codes + 12 * W);
      } else {
        packed[0].store(codes);
        packed[1].store(codes + 4 * W);
      }
      return;
    }
  }
  std::uint32_t word[Words][W];
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) packed[i].store(word[i]);
  for (int lane = 0; lane < W; ++lane) {
    std::uint32_t block[Words];
#pragma GCC unroll 8
    for (int i = 0; i < Words; ++i) block[i] = word[i][lane];
    std::memcpy(codes + lane * step, block, bytes);
  }
}

// W blocks on their way: what they hold, and what their scales are.
template <class S, int W>
struct scaled_blocks {
  floats<W> x[S::block::columns];
  floats<W> divisor;
  words<W> scales;
};

// The first half of quantizing the blocks from `first` on; false for a group that is not for kernels.
template <class L, int Hadamard, class S, class T, int W>
[[gnu::always_inline]] inline bool scale_blocks(const quantize_run<S, T>& run, index_t first,
                                                scaled_blocks<S, W>& blocks) noexcept {
  using rule = lanes_rule<typename S::rule>;
  floats<W> x[S::block::columns];
  load_blocks(run, first, x);
  prefetch<W>(run, first);
  if (!hadamard_blocks<Hadamard>(x, run.flips)) return false;
#pragma GCC unroll 32
  for (int k = 0; k < S::block::columns; ++k) blocks.x[k] = x[k];
  if (run.divisors != nullptr) {
    const float* const given = run.divisors + first * run.divisor_step;
    blocks.divisor = run.divisor_step == 0 ? floats<W>::all(*given) : floats<W>::load(given);
    return true;
  }
  const words<W> amax = amax_of_blocks(x);
  if (any(greater(amax, all<W>(fp32::infinity_bits - 1u)))) return false;
  const scale_lanes<W> scale = rule::template scale<S>(as<float>(amax), run.factors);
  blocks.divisor = rule::template divisor<S>(scale, run.factors);
  blocks.scales = scale.code;
  return true;
}

// The second half.
template <class L, class R, class S, class T, int W>
[[gnu::always_inline]] inline void store_codes_of(const quantize_run<S, T>& run, index_t first,
                                                  const scaled_blocks<S, W>& blocks) noexcept {
  words<W> draws[draw_words<S, R>], packed[S::block::columns * S::element::bits / 32];
  draw_blocks<L, R>(run, first, draws);
  encode_blocks<L, S, R>(blocks.x, blocks.divisor, draws, packed);
  store_blocks(packed, run.codes + first * run.code_step, run.code_step);
  if (run.divisors != nullptr) return;
  lanes<typename S::scale::storage, W> scales;
  scales.v = __builtin_convertvector(blocks.scales.v, typename decltype(scales)::vector);
  typename S::scale::storage* const to = run.scales + first * run.scale_step;
  if (run.scale_step == 1) {
    scales.store(to);
  } else {
    for (int i = 0; i < W; ++i) to[i * run.scale_step] = scales.v[i];
  }
}

// Quantizes up to `count` blocks, a multiple of the width, and returns how many: it stops before a group of W blocks
// with a NaN or an infinity, or one whose transform might overflow. The scales of one group are under way while the
// group before it is encoded: a chain of dependent operations that would be waited for otherwise.
template <class L, class S, class T, class R, int Hadamard>
[[gnu::always_inline]] inline index_t quantize_blocks(const quantize_run<S, T>& run, index_t count) noexcept {
  constexpr int W = L::width;
  scaled_blocks<S, W> blocks[2];
  for (index_t next = 0;; next += W) {
    const int here = static_cast<int>(next / W % 2);
    const bool goes_on = next < count && scale_blocks<L, Hadamard>(run, next, blocks[here]);
    if (next > 0) store_codes_of<L, R>(run, next - W, blocks[1 - here]);
    if (!goes_on) return next;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Decoding.

// Sixteen numbers made when the program is compiled.
template <class T>
struct sixteen {
  T of[16] = {};

  template <class F>
  constexpr explicit sixteen(F f) noexcept {
    for (int i = 0; i < 16; ++i) of[i] = f(i);
  }
};

// Sixteen fields of four bits in the low bits of as many lanes; what is above does not matter.
template <class L>
[[gnu::always_inline]] inline words<16> spread_nibbles(std::uint64_t packed) noexcept {
  using pairs = lanes<std::uint64_t, 8>;
  words<16> r;
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (L::avx512) {  // byte 0 of each lane from four bits further on, in one instruction
    constexpr sixteen<std::int32_t> positions([](int i) { return 4 * i; });
    const pairs both = pairs::all(packed);
    typename words<16>::vector spread;
    asm("{vpmultishiftqb %2, %1, %0|vpmultishiftqb %0, %1, %2}"
        : "=v"(spread)
        : "v"(words<16>::load(positions.of).v), "v"(both.v));
    r.v = spread;
    return r;
  }
#endif
  // Lanes 2 j and 2 j + 1 are the halves of number j.
  constexpr sixteen<std::uint64_t> shifts([](int i) { return 8u * static_cast<unsigned>(i); });
  const pairs at = pairs::load(shifts.of);
  pairs even, odd;
  even.v = pairs::all(packed).v >> at.v;
  odd.v = pairs::all(packed >> 4).v >> at.v;
  const pairs both = (even & pairs::all(15)) | (odd << 32);
  std::memcpy(&r.v, &both.v, sizeof r.v);
  return r;
}

// The values of codes of which only the low bits are the element's.
template <class L, class E, int W>
[[gnu::always_inline]] inline floats<W> decode_elements(const words<W>& code) noexcept {
  const words<W> sign = (code << (32 - E::bits)) & all<W>(fp32::sign_bit);
#if !defined(__clang__)
  if constexpr (E::bits == 4 && W >= 8) {  // one look-up among all values, or among eight magnitudes
    constexpr sixteen<float> values([](int c) { return E::decode(static_cast<typename E::storage>(c)); });
    floats<W> y;
    y.v = __builtin_shuffle(floats<W>::load(values.of).v, code.v);
    return W == 16 ? y : as<float>(bits(y) | sign);
  }
#endif
  const floats<W> value = decode_magnitude<E>(code & all<W>(E::magnitude_mask));
  if constexpr (E::has_nan) {  // NaN has no sign
    const words<W> number = greater(all<W>(fp32::infinity_bits + 1u), bits(value));
    return as<float>(bits(value) | (sign & number));
  }
  return as<float>(bits(value) | sign);
}

// Elements first ... first + W - 1 of a block's packed codes, in the low bits of each lane.
template <class L, class E, int W>
[[gnu::always_inline]] inline words<W> unpack_codes(const std::uint8_t* codes, int first) noexcept {
  words<W> w;
  if constexpr (E::bits == 4 && W == 16) {
    std::uint64_t packed = 0;
    std::memcpy(&packed, codes + first / 2, sizeof packed);
    return spread_nibbles<L>(packed);
  } else if constexpr (E::bits == 4) {
    // Four bits further for each lane.
    constexpr sixteen<std::int32_t> shifts([](int i) { return 4 * (i % 8); });
    std::uint32_t packed = 0;
    std::memcpy(&packed, codes + first / 2, W / 2);
    w.v = all<W>(packed).v >> words<W>::load(shifts.of).v;
  } else if constexpr (E::bits == 8) {
    w = widened(lanes<std::uint8_t, W>::load(codes + first));
  } else {
    for (int i = 0; i < W; ++i) w.v[i] = load_code<E>(codes, first + i);
  }
  return w;
}

template <int W>
[[gnu::always_inline]] inline void store_floats(const floats<W>& x, float* to) noexcept {
  x.store(to);
}
// As from_float<value<bf16>>.
template <int W>
[[gnu::always_inline]] inline void store_floats(const floats<W>& x, value<bf16>* to) noexcept {
  const words<W> b = bits(x), upper = as<std::int32_t>(as<std::uint32_t>(b) >> 16);
  const words<W> rounded = as<std::int32_t>(as<std::uint32_t>(b + all<W>(0x7FFF) + (upper & all<W>(1))) >> 16);
  const words<W> nan = greater(magnitude(x), all<W>(fp32::infinity_bits));
  const words<W> result = select(nan, (upper & all<W>(0x8000)) | all<W>(0x7FFF), rounded);
  lanes<std::uint16_t, W> halves;
  halves.v = __builtin_convertvector(result.v, typename lanes<std::uint16_t, W>::vector);
  halves.store(to);
}

template <class S, class T>
struct dequantize_run {
  const std::uint8_t* codes = nullptr;  // of consecutive blocks
  const typename S::scale::storage* scales = nullptr;
  T* y = nullptr;
  tensor_factors factors;
};

template <class L, class S, class T>
[[gnu::always_inline]] inline void dequantize_blocks(const dequantize_run<S, T>& run, index_t count) noexcept {
  using rule = lanes_rule<typename S::rule>;
  constexpr int W = L::width, N = S::block::columns, bytes = N * S::element::bits / 8;
  const tensor_factors t = run.factors;
  const std::uint8_t* codes = run.codes;
  T* y = run.y;  // whose numbers might be the run's members, for all that a compiler knows
  for (index_t first = 0; first < count; first += W) {
    const int here = static_cast<int>(smaller(index_t{W}, count - first));
    std::uint8_t few[W] = {};
    if (here < W) std::memcpy(few, run.scales + first, static_cast<std::size_t>(here));
    const words<W> scale = widened(lanes<std::uint8_t, W>::load(here < W ? few : run.scales + first));
    float factor[W];
    rule::template factor<S>(decode_scale<typename S::scale>(scale), t).store(factor);
    for (int i = 0; i < here; ++i, codes += bytes, y += N) {
#pragma GCC unroll 8
      for (int j = 0; j < N; j += W) {
        const words<W> code = unpack_codes<L, typename S::element, W>(codes, j);
        floats<W> values = mul(decode_elements<L, typename S::element>(code), factor[i]);
        if constexpr (rule::payload_first) values = mul(values, t.decode);
        store_floats(values, y + j);
      }
    }
  }
}

// A run of blocks in place of which their decoded values are written. Steps as in quantize_run.
template <class S, class T, class U>
struct fake_quantize_run {
  quantize_run<S, T> blocks;  // but for codes and scales
  U* y = nullptr;
  index_t block_step = 0;
  index_t element_step = 1;
  tensor_factors back;  // what decoding sees
};

template <int W, int N, class U>
[[gnu::always_inline]] inline void store_values(floats<W> (&y)[N], U* to, index_t block_step,
                                                index_t element_step) noexcept {
  if (element_step == 1) {
#pragma GCC unroll 8
    for (int part = 0; part < N; part += W) {
      floats<W> tile[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) tile[i] = y[part + i];
      transpose(tile);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) store_floats(tile[i], to + i * block_step + part);
    }
  } else {
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) store_floats(y[k], to + k * element_step);
  }
}

// Fake quantization of blocks along the rows of memory with nothing drawn: numbers stay where they are, only scales are
// found with a block to a lane, and rounding gives values without their codes.
//
// What W blocks are multiplied or divided by, and their values by; false for a group that is not for kernels.
template <int W, class S, class T, class U>
[[gnu::always_inline]] inline bool scale_rows(const fake_quantize_run<S, T, U>& run, index_t first, float (&divisor)[W],
                                              float (&factor)[W]) noexcept {
  using rule = lanes_rule<typename S::rule>;
  const index_t step = run.blocks.block_step;
  const T* const x = run.blocks.x + first * step;
  words<W> largest[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) {
    largest[i] = magnitude(load_floats<W>(x + i * step));
#pragma GCC unroll 8
    for (int j = W; j < S::block::columns; j += W) {
      largest[i] = larger_of(largest[i], magnitude(load_floats<W>(x + i * step + j)));
    }
  }
  prefetch<W>(run.blocks, first);
  const words<W> amax = largest_of_each(largest);
  if (any(greater(amax, all<W>(fp32::infinity_bits - 1u)))) return false;
  const scale_lanes<W> scale = rule::template scale<S>(as<float>(amax), run.blocks.factors);
  usable_divisor<rule::step>(rule::template divisor<S>(scale, run.blocks.factors)).store(divisor);
  rule::template factor<S>(decode_scale<typename S::scale>(scale.code), run.back).store(factor);
  return true;
}
template <int W, class S, class T, class U>
[[gnu::always_inline]] inline void store_rows(const fake_quantize_run<S, T, U>& run, index_t first,
                                              const float (&divisor)[W], const float (&factor)[W]) noexcept {
  using rule = lanes_rule<typename S::rule>;
  const index_t x_step = run.blocks.block_step, y_step = run.block_step;
  const float last = run.back.decode;
  const T* x = run.blocks.x + first * x_step;
  U* y = run.y + first * y_step;
  for (int i = 0; i < W; ++i, x += x_step, y += y_step) {
#pragma GCC unroll 8
    for (int j = 0; j < S::block::columns; j += W) {
      words<W> sign;
      floats<W> value =
          nearest_value<typename S::element>(scaled_magnitude<rule::step>(load_floats<W>(x + j), divisor[i], sign));
      value = mul(as<float>(bits(value) | sign), factor[i]);
      if constexpr (rule::payload_first) value = mul(value, last);
      store_floats(value, y + j);
    }
  }
}
// As quantize_blocks goes about it.
template <class L, class S, class T, class U>
[[gnu::always_inline]] inline index_t fake_quantize_rows(const fake_quantize_run<S, T, U>& run,
                                                         index_t count) noexcept {
  constexpr int W = L::width;
  float divisors[2][W], factors[2][W];
  for (index_t next = 0;; next += W) {
    const int here = static_cast<int>(next / W % 2);
    const bool goes_on = next < count && scale_rows(run, next, divisors[here], factors[here]);
    if (next > 0) store_rows(run, next - W, divisors[1 - here], factors[1 - here]);
    if (!goes_on) return next;
  }
}

template <class L, class S, class T, class U, class R>
[[gnu::always_inline]] inline index_t fake_quantize_blocks(const fake_quantize_run<S, T, U>& run,
                                                           index_t count) noexcept {
  constexpr int W = L::width, N = S::block::columns;
  using rule = lanes_rule<typename S::rule>;
  using element = typename S::element;
  if constexpr (R::random_bits == 0) {
    if (run.element_step == 1 && run.blocks.element_step == 1) return fake_quantize_rows<L>(run, count);
  }
  const tensor_factors& t = run.blocks.factors;
  for (index_t first = 0; first < count; first += W) {
    floats<W> x[N];
    load_blocks(run.blocks, first, x);
    prefetch<W>(run.blocks, first);
    const words<W> amax = amax_of_blocks(x);
    if (any(greater(amax, all<W>(fp32::infinity_bits - 1u)))) return first;
    const scale_lanes<W> scale = rule::template scale<S>(as<float>(amax), t);
    const floats<W> divisor = usable_divisor<rule::step>(rule::template divisor<S>(scale, t));
    const floats<W> factor = rule::template factor<S>(decode_scale<typename S::scale>(scale.code), run.back);
    words<W> draws[draw_words<S, R>];
    draw_blocks<L, R>(run.blocks, first, draws);
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) {
      words<W> sign;
      const floats<W> scaled = scaled_magnitude<rule::step>(x[k], divisor, sign);
      const words<W> code = round_magnitude<L, R, element>(scaled, draw_of<R>(draws, k));
      const words<W> kept =
          (code & all<W>(element::magnitude_mask)) | as<std::int32_t>(as<std::uint32_t>(sign) >> (32 - element::bits));
      x[k] = mul(decode_elements<L, element>(kept), factor);
      if constexpr (rule::payload_first) x[k] = mul(x[k], run.back.decode);
    }
    store_values(x, run.y + first * run.block_step, run.block_step, run.element_step);
  }
  return count;
}

// Runs that are transformed into another place.
template <class T, class U>
struct hadamard_job {
  const T* x = nullptr;
  U* y = nullptr;
  index_t x_block_step = 0, x_element_step = 1;
  index_t y_block_step = 0, y_element_step = 1;
  std::uint32_t flips[largest_run] = {};
};

template <class L, int Size, class T, class U>
[[gnu::always_inline]] inline index_t hadamard_runs(const hadamard_job<T, U>& job, index_t count) noexcept {
  constexpr int W = L::width;
  for (index_t first = 0; first < count; first += W) {
    floats<W> x[Size];
    load_blocks(job.x + first * job.x_block_step, job.x_block_step, job.x_element_step, x);
    if (!hadamard_blocks<Size>(x, job.flips)) return first;
    store_values(x, job.y + first * job.y_block_step, job.y_block_step, job.y_element_step);
  }
  return count;
}

// The largest magnitude's bits; above infinity's where there is a NaN.
template <class L, class T>
[[gnu::always_inline]] inline std::uint32_t largest_magnitude(const T* x, index_t count) noexcept {
  constexpr int W = L::width;
  words<W> seen[4] = {all<W>(0), all<W>(0), all<W>(0), all<W>(0)};
  index_t i = 0;
  for (; i + 4 * W <= count; i += 4 * W) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) seen[j] = larger_of(seen[j], magnitude(load_floats<W>(x + i + j * W)));
  }
  std::int32_t each[W], largest = 0;
  larger_of(larger_of(seen[0], seen[1]), larger_of(seen[2], seen[3])).store(each);
  for (const std::int32_t m : each) largest = larger(largest, m);
  for (; i < count; ++i) largest = larger(largest, static_cast<std::int32_t>(fp32::magnitude_bits(to_float(x[i]))));
  return static_cast<std::uint32_t>(largest);
}

// The largest magnitude's bits of each of `count` rectangles of memory, `rows` x Columns, block_step apart.
template <class T>
struct rectangles {
  const T* x = nullptr;
  index_t pitch = 0;
  index_t block_step = 0;
  int rows = 0;
  std::uint32_t* largest = nullptr;
};

template <class L, int Columns, class T>
[[gnu::always_inline]] inline void largest_of_rectangles(const rectangles<T>& in, index_t count) noexcept {
  constexpr int W = L::width;
  for (index_t i = 0; i < count; ++i) {
    words<W> seen = all<W>(0);
    for (int r = 0; r < in.rows; ++r) {
      const T* const row = in.x + i * in.block_step + r * in.pitch;
#pragma GCC unroll 8
      for (int c = 0; c < Columns; c += W) seen = larger_of(seen, magnitude(load_floats<W>(row + c)));
    }
    std::int32_t each[W], largest = 0;
    seen.store(each);
    for (const std::int32_t m : each) largest = larger(largest, m);
    in.largest[i] = static_cast<std::uint32_t>(largest);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The instruction sets.

using baseline = instruction_set<4, false>;

// `Kernel::run<L>(arguments...)` compiled for each instruction set.
template <class Kernel, class... Arguments>
[[gnu::noinline]] auto run_baseline(const Arguments&... arguments) noexcept {
  return Kernel::template run<baseline>(arguments...);
}
#if defined(__x86_64__)
template <class Kernel, class... Arguments>
[[gnu::target("avx2,fma"), gnu::noinline]] auto run_avx2(const Arguments&... arguments) noexcept {
  return Kernel::template run<instruction_set<8, false>>(arguments...);
}
template <class Kernel, class... Arguments>
[[gnu::target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni"),
  gnu::noinline]] auto
run_avx512(const Arguments&... arguments) noexcept {
  return Kernel::template run<instruction_set<16, true>>(arguments...);
}
#endif

// The kernel at `level`, which this machine must have.
template <class Kernel, class... Arguments>
auto run_kernel(simd_level level, const Arguments&... arguments) noexcept {
#if defined(__x86_64__)
  if (level == simd_level::avx512) return run_avx512<Kernel>(arguments...);
  if (level == simd_level::avx2) return run_avx2<Kernel>(arguments...);
#endif
  static_cast<void>(level);
  return run_baseline<Kernel>(arguments...);
}

// The lanes of a level: kernels take a multiple of so many blocks.
inline int lanes_of(simd_level level) noexcept {
  return level == simd_level::avx512 ? 16 : level == simd_level::avx2 ? 8 : 4;
}
inline constexpr int most_lanes = 16;

struct amax_kernel {
  template <class L, class T>
  [[gnu::always_inline]] static std::uint32_t run(T* const& x, const index_t& count) noexcept {
    return largest_magnitude<L>(x, count);
  }
};

template <int Columns>
struct rectangle_amax_kernel {
  template <class L, class T>
  [[gnu::always_inline]] static index_t run(const rectangles<T>& in, const index_t& count) noexcept {
    largest_of_rectangles<L, Columns>(in, count);
    return count;
  }
};

struct dequantize_kernel {
  template <class L, class S, class T>
  [[gnu::always_inline]] static index_t run(const dequantize_run<S, T>& run, const index_t& count) noexcept {
    dequantize_blocks<L>(run, count);
    return count;
  }
};

template <int Size>
struct hadamard_kernel {
  template <class L, class T, class U>
  [[gnu::always_inline]] static index_t run(const hadamard_job<T, U>& job, const index_t& count) noexcept {
    return hadamard_runs<L, Size>(job, count);
  }
};

template <class R>
struct fake_quantize_kernel {
  template <class L, class S, class T, class U>
  [[gnu::always_inline]] static index_t run(const fake_quantize_run<S, T, U>& run, const index_t& count) noexcept {
    return fake_quantize_blocks<L, S, T, U, R>(run, count);
  }
};

template <class R, int Hadamard = 1>
struct quantize_kernel {
  template <class L, class S, class T>
  [[gnu::always_inline]] static index_t run(const quantize_run<S, T>& run, const index_t& count) noexcept {
    return quantize_blocks<L, S, T, R, Hadamard>(run, count);
  }
};

}  // namespace microscale::simd

#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
