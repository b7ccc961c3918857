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
#include <utility>

#include "../tensor/hadamard.hpp"
#include "../tensor/metrics.hpp"
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

// Sixteen numbers made when the program is compiled.
template <class T>
struct sixteen {
  T of[16] = {};

  template <class F>
  constexpr explicit sixteen(F f) noexcept {
    for (int i = 0; i < 16; ++i) of[i] = static_cast<T>(f(i));
  }
};

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

  std::uint64_t position_of(index_t block) const noexcept {
    return positions != nullptr ? positions[block] : position + static_cast<std::uint64_t>(block) * position_step;
  }
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

// The same of blocks that lie along the rows of memory, left where they are.
template <int W, int N, class T>
[[gnu::always_inline]] inline words<W> amax_of_rows(const T* x, index_t block_step) noexcept {
  words<W> largest[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) {
    largest[i] = magnitude(load_floats<W>(x + i * block_step));
#pragma GCC unroll 8
    for (int j = W; j < N; j += W) {
      largest[i] = larger_of(largest[i], magnitude(load_floats<W>(x + i * block_step + j)));
    }
  }
  return largest_of_each(largest);
}

// Asks for the line of memory that is two pages on: the processor's own prefetching stops at pages.
template <class T>
[[gnu::always_inline]] inline void prefetch_line(const T* x) noexcept {
  __builtin_prefetch(reinterpret_cast<const char*>(x) + 8192);
}
// The same for W blocks that lie in a row.
template <int W, class S, class T>
[[gnu::always_inline]] inline void prefetch(const quantize_run<S, T>& run, index_t first) noexcept {
  if (run.element_step != 1) return;
  constexpr int line = 64 / sizeof(T);
  const T* const from = run.x + first * run.block_step;
#pragma GCC unroll 16
  for (int at = 0; at < W * S::block::columns; at += line) prefetch_line(from + at);
}

// The transform of hadamard.hpp of runs of Size elements, none for 1; `flips` holds the sign bit where an element is
// negated. If what comes out is finite, so was every sum on the way.
template <int Size, int W, int N>
[[gnu::always_inline]] inline void hadamard_blocks(floats<W> (&x)[N], const std::uint32_t* flips) noexcept {
  if constexpr (Size > 1) {
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
}

// The keys of Philox's rounds as numbers that one instruction spreads over 64-bit lanes.
struct wide_philox_keys {
  std::uint64_t low[10], high[10], stream[2];

  explicit wide_philox_keys(random_key key) noexcept : stream{key.stream & 0xFFFFFFFFu, key.stream >> 32} {
    const philox_keys keys(key);
    for (int i = 0; i < 10; ++i) {
      low[i] = keys.low[i];
      high[i] = keys.high[i];
    }
  }
};

// Philox4x32-10 of random.hpp for two registers of counters {index, stream}. Words of the result are the low halves of
// lanes; what is above does not matter, as it does not on the way.
template <int H>
[[gnu::always_inline]] inline void philox(const wide_philox_keys& keys, const lanes<std::uint64_t, H> (&index)[2],
                                          lanes<std::uint64_t, H> (&out)[2][4]) noexcept {
  using pairs = lanes<std::uint64_t, H>;
  constexpr sixteen<std::uint64_t> first([](int) { return 0xD2511F53u; }), second([](int) { return 0xCD9E8D57u; });
  const pairs by_0 = pairs::load(first.of), by_2 = pairs::load(second.of);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    out[i][0] = index[i];
    out[i][1] = index[i] >> 32;
    out[i][2] = pairs::zero() ^ keys.stream[0];
    out[i][3] = pairs::zero() ^ keys.stream[1];
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (pairs(&c)[4] : out) {
      const pairs p0 = wide_product(c[0], by_0), p1 = wide_product(c[2], by_2);
      c[0] = (p1 >> 32) ^ c[1] ^ keys.low[round];
      c[2] = (p0 >> 32) ^ c[3] ^ keys.high[round];
      c[1] = p1;
      c[3] = p0;
    }
  }
}

// Four words of each of eight calls, side by side: those of calls 0, 2, 4, 6, and of 1, 3, 5, 7.
[[gnu::always_inline]] inline void words_of_calls(const lanes<std::uint64_t, 8> (&word)[4], words<16>& even,
                                                  words<16>& odd) noexcept {
  using detail::moved;
  using detail::pattern;
  words<16> w[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) std::memcpy(&w[i].v, &word[i].v, sizeof w[i].v);
  const words<16> first = moved<pattern::even_words>(w[0], w[1]), last = moved<pattern::even_words>(w[2], w[3]);
  even = moved<pattern::even_words>(first, last);
  odd = moved<pattern::odd_words>(first, last);
}

// The draws of W blocks: element k takes bits k * Bits on of the words of its lane.
template <class L, class R, class S, class T, int Words>
[[gnu::always_inline]] inline void draw_blocks(const quantize_run<S, T>& run, const wide_philox_keys& keys,
                                               index_t first, words<L::width> (&out)[Words]) noexcept {
  if constexpr (R::random_bits > 0) {
    constexpr std::uint64_t per_call = draws_per_call<R::random_bits>;
    constexpr int H = L::width / 2;
    using pairs = lanes<std::uint64_t, H>;
    std::uint64_t index[2][H];  // of even, of odd lanes
    for (int i = 0; i < L::width; ++i) index[i % 2][i / 2] = run.position_of(first + i) / per_call;
    pairs counters[2] = {pairs::load(index[0]), pairs::load(index[1])};
#pragma GCC unroll 8
    for (int call = 0; call < Words / 4; ++call) {
      pairs four[2][4];
      philox(keys, counters, four);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const pairs both = (four[0][i] & pairs::all(0xFFFFFFFFu)) | (four[1][i] << 32);
        std::memcpy(&out[4 * call + i].v, &both.v, sizeof both.v);
      }
      counters[0] = counters[0] + pairs::all(1);
      counters[1] = counters[1] + pairs::all(1);
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

// The number to round of x and the divisor, and the code's sign: the top bits of lanes. The magnitude, with whatever
// sign. The divisor is of each lane, or one number.
template <element_step Step, int W, class Divisor>
[[gnu::always_inline]] inline floats<W> scaled_number(const floats<W>& x, const Divisor& divisor,
                                                      words<W>& sign) noexcept {
  sign = bits(x);
  if constexpr (Step == element_step::product) {
    return mul(x, divisor);
  } else if constexpr (Step == element_step::zero_or_product) {
    return as<float>(bits(mul(x, divisor)) & greater(magnitude(x), all<W>(0)));
  } else {
    const floats<W> y = div(x, divisor);
    if constexpr (Step == element_step::signless_quotient) {
      // Neither a zero nor 0 / 0 has a sign.
      const words<W> m = magnitude(y);
      sign = sign & greater(m, all<W>(0)) & greater(all<W>(fp32::infinity_bits + 1u), m);
    }
    return y;
  }
}

// What scaled_number takes for the rule's divisor.
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
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) packed[i] = words<W>::zero();
    // From the last element down: each is pushed in at the low end.
#pragma GCC unroll 32
  for (int k = N - 1; k >= 0; --k) {
    words<W> sign;
    const floats<W> y = smaller_magnitude<L>(scaled_number<step>(x[k], divisor, sign), element::largest());
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

template <class S, class T, int W>
[[gnu::always_inline]] inline void store_scales(const quantize_run<S, T>& run, index_t first,
                                                const words<W>& codes) noexcept {
  lanes<typename S::scale::storage, W> scales;
  scales.v = __builtin_convertvector(codes.v, typename decltype(scales)::vector);
  typename S::scale::storage* const to = run.scales + first * run.scale_step;
  if (run.scale_step == 1) {
    scales.store(to);
  } else {
    for (int i = 0; i < W; ++i) to[i * run.scale_step] = scales.v[i];
  }
}

// What W blocks are divided by, from the bits of their largest magnitudes, or as given; their scales are stored. False
// for a group that is not for kernels.
template <class S, class T, int W>
[[gnu::always_inline]] inline bool scale_group(const quantize_run<S, T>& run, index_t first, const words<W>& amax,
                                               floats<W>& divisor) noexcept {
  using rule = lanes_rule<typename S::rule>;
  if (run.divisors != nullptr) {
    const float* const given = run.divisors + first * run.divisor_step;
    divisor = run.divisor_step == 0 ? mul(floats<W>::all(1.0f), *given) : floats<W>::load(given);
  } else {
    if (any(greater(amax, all<W>(fp32::infinity_bits - 1u)))) return false;
    const scale_lanes<W> scale = rule::template scale<S>(as<float>(amax), run.factors);
    divisor = rule::template divisor<S>(scale, run.factors);
    store_scales(run, first, scale.code);
  }
  divisor = usable_divisor<rule::step>(divisor);
  return true;
}

// Quantizing with a block to a lane: `scale` is the first half of a group of W blocks, `encode` the second.
template <class L, class S, class R, int Hadamard>
struct blocks_in_lanes {
  static constexpr int W = L::width, N = S::block::columns;

  floats<W> x[N];
  floats<W> divisor;

  template <class T>
  [[gnu::always_inline]] bool scale(const quantize_run<S, T>& run, const wide_philox_keys&, index_t first) noexcept {
    floats<W> here[N];
    load_blocks(run, first, here);
    prefetch<W>(run, first);
    hadamard_blocks<Hadamard>(here, run.flips);
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) x[k] = here[k];
    return scale_group(run, first, run.divisors != nullptr ? words<W>::zero() : amax_of_blocks(here), divisor);
  }
  template <class T>
  [[gnu::always_inline]] void encode(const quantize_run<S, T>& run, const wide_philox_keys& keys,
                                     index_t first) const noexcept {
    words<W> draws[draw_words<S, R>], packed[N * S::element::bits / 32];
    draw_blocks<L, R>(run, keys, first, draws);
    encode_blocks<L, S, R>(x, divisor, draws, packed);
    store_blocks(packed, run.codes + first * run.code_step, run.code_step);
  }
};

// Quantizing blocks along the rows of memory to E2M1 by AVX-512, where numbers stay where they are: only scales are
// found with a block to a lane, and packing puts the codes of eight registers in order.
template <class L, class S, class R>
inline constexpr bool has_row_kernel = L::avx512&& std::is_same_v<typename S::element, e2m1> &&
                                       (R::random_bits == 0 || R::random_bits == 8);

// The transform of Size neighbours: of the lanes of one register, or of two.
template <int Stride>
[[gnu::always_inline]] inline floats<16> hadamard_lanes(const floats<16>& x) noexcept {
  constexpr sixteen<float> signs([](int i) { return (i & Stride) == 0 ? 1.0f : -1.0f; });
  return signed_sum(x, floats<16>::load(signs.of), exchanged<Stride>(x));
}
template <int Size>
[[gnu::always_inline]] inline void hadamard_row(floats<16> (&x)[Size / 16], const std::uint32_t* flips) noexcept {
#pragma GCC unroll 2
  for (int i = 0; i < Size / 16; ++i) {
    x[i] = as<float>(bits(x[i]) ^ words<16>::load(flips + 16 * i));
    x[i] = hadamard_lanes<8>(hadamard_lanes<4>(hadamard_lanes<2>(hadamard_lanes<1>(x[i]))));
  }
  if constexpr (Size == 32) {
    const floats<16> u = x[0], v = x[1];
    x[0] = add(u, v);
    x[1] = sub(u, v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < Size / 16; ++i) x[i] = mul(x[i], hadamard_factor(Size));
}

template <class L, class S, class R, int Hadamard>
struct blocks_in_rows {
  static constexpr int W = 16, N = S::block::columns, eight = 8;

  alignas(64) float divisor[W];
  alignas(64) float transformed[Hadamard > 1 ? W* N : 1];
  alignas(64) std::uint8_t draws[R::random_bits > 0 ? W* N : 1];

  template <class T>
  [[gnu::always_inline]] bool scale(const quantize_run<S, T>& run, const wide_philox_keys& keys,
                                    index_t first) noexcept {
    const T* const x = run.x + first * N;
    words<W> amax = words<W>::zero();
    if constexpr (Hadamard > 1) {
      prefetch<W>(run, first);
      for (int i = 0; i < W * N; i += Hadamard) {
        floats<W> here[Hadamard / W];
#pragma GCC unroll 2
        for (int j = 0; j < Hadamard / W; ++j) here[j] = load_floats<W>(x + i + j * W);
        hadamard_row<Hadamard>(here, run.flips);
#pragma GCC unroll 2
        for (int j = 0; j < Hadamard / W; ++j) here[j].store(transformed + i + j * W);
      }
      amax = amax_of_rows<W, N>(transformed, N);
    } else if (run.divisors == nullptr) {
      amax = amax_of_rows<W, N>(x, N);
    }
    floats<W> d;
    if (!scale_group(run, first, amax, d)) return false;
    d.store(divisor);
    if constexpr (R::random_bits > 0) {
#pragma GCC unroll 2
      for (int i = 0; i < N; i += W) draw_rows(run, keys, first, i);
    }
    return true;
  }

  template <class T>
  [[gnu::always_inline]] void encode(const quantize_run<S, T>& run, const wide_philox_keys&,
                                     index_t first) const noexcept {
    std::uint8_t* const codes = run.codes + first * (N / 2);
    for (int i = 0; i < N; i += eight) {
      if constexpr (Hadamard > 1) {
        encode_eight(transformed + i * W, divisor + i * W / N, draws + i * 16, codes + i * 8);
      } else {
        encode_eight(run.x + first * N + i * W, divisor + i * W / N, draws + i * 16, codes + i * 8);
      }
    }
  }

 private:
  // Eight registers of numbers, from x on. What is a few pages ahead is asked for one line at a time: all at once would
  // fill the processor's buffers, and numbers that are needed now would wait.
  template <class T>
  [[gnu::always_inline]] static void encode_eight(const T* x, const float* divisors, const std::uint8_t* draws_of,
                                                  std::uint8_t* codes) noexcept {
    using rule = lanes_rule<typename S::rule>;
    words<W> sign[eight], magnitudes = words<W>::zero(), signs = words<W>::zero();
#pragma GCC unroll 8
    for (int j = 0; j < eight; ++j) {
      if constexpr (Hadamard == 1) prefetch_line(x + j * W);
      const floats<W> scaled = scaled_number<rule::step>(load_floats<W>(x + j * W), divisors[j * W / N], sign[j]);
      words<W> draw;
      if constexpr (R::random_bits > 0) {
        draw = widened(lanes<std::uint8_t, W>::load(draws_of + place_of_draws(j)));
      }
      const floats<W> y = smaller_magnitude<L>(scaled, e2m1::largest());
      magnitudes = pushed_on_top<L, 4>(magnitudes, round_magnitude<L, R, e2m1>(y, draw));
    }
#pragma GCC unroll 8
    for (int j = eight - 1; j >= 0; --j) signs = pushed<L, 4>(signs, sign[j]);
    words_of_nibbles(select(all<W>(0x88888888u), signs, magnitudes)).store(codes);
  }

  // The draws of sixteen registers from i on: one call of Philox each.
  template <class T>
  [[gnu::always_inline]] void draw_rows(const quantize_run<S, T>& run, const wide_philox_keys& keys, index_t first,
                                        int i) noexcept {
    using pairs = lanes<std::uint64_t, W / 2>;
    pairs counters[2], out[2][4];
    if (run.positions == nullptr) {  // neighbours in memory are neighbours in position
      constexpr sixteen<std::uint64_t> further([](int j) { return j; });
      const std::uint64_t call = run.position_of(first) / 16 + static_cast<std::uint64_t>(i);
      counters[0] = pairs::load(further.of) + call;
      counters[1] = pairs::load(further.of + W / 2) + call;
    } else {
      std::uint64_t index[2][W / 2];
      for (int j = 0; j < W; ++j) {
        const int block = (i + j) * W / N, half = (i + j) % (N / W);
        index[j / 8][j % 8] = run.position_of(first + block) / 16 + static_cast<std::uint64_t>(half);
      }
      counters[0] = pairs::load(index[0]);
      counters[1] = pairs::load(index[1]);
    }
    philox(keys, counters, out);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      words<W> even, odd;
      words_of_calls(out[h], even, odd);
      even.store(draws + place_of_draws(i + h * W / 2));
      odd.store(draws + place_of_draws(i + h * W / 2 + 1));
    }
  }
  // Where it puts those of register i.
  static constexpr int place_of_draws(int i) noexcept { return i / 8 * 128 + i % 2 * 64 + i % 8 / 2 * 16; }
};

// Quantizes up to `count` blocks, a multiple of the width, and returns how many: it stops before a group of W blocks
// with a NaN or an infinity, or one whose transform overflows. The scales of one group are under way while the group
// before it is encoded: a chain of dependent operations that would be waited for otherwise.
template <class Group, class L, class S, class T>
[[gnu::always_inline]] inline index_t quantize_groups(const quantize_run<S, T>& run, index_t count) noexcept {
  constexpr int W = L::width;
  const wide_philox_keys keys(run.key);
  Group groups[2];
  for (index_t next = 0;; next += W) {
    const int here = static_cast<int>(next / W % 2);
    const bool goes_on = next < count && groups[here].scale(run, keys, next);
    if (next > 0) groups[1 - here].encode(run, keys, next - W);
    if (!goes_on) return next;
  }
}
template <class L, class S, class T, class R, int Hadamard>
[[gnu::always_inline]] inline index_t quantize_blocks(const quantize_run<S, T>& run, index_t count) noexcept {
  if constexpr (has_row_kernel<L, S, R>) {
    if (run.element_step == 1) return quantize_groups<blocks_in_rows<L, S, R, Hadamard>, L>(run, count);
  }
  return quantize_groups<blocks_in_lanes<L, S, R, Hadamard>, L>(run, count);
}

// ---------------------------------------------------------------------------------------------------------------
// Decoding.

// Four bits of 64-bit lanes in the low bits of each of their halves, what is above does not matter: in lane i of the
// result those from bit First + Step * i on, modulo 64.
template <class L, int First, int Step>
[[gnu::always_inline]] inline words<16> spread_nibbles(const lanes<std::uint64_t, 8>& x) noexcept {
  using pairs = lanes<std::uint64_t, 8>;
  words<16> r;
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (L::avx512) {  // byte 0 of each lane, in one instruction
    constexpr sixteen<std::int32_t> positions([](int i) { return First + Step * i % 64; });
    typename words<16>::vector spread;
    asm("{vpmultishiftqb %2, %1, %0|vpmultishiftqb %0, %1, %2}"
        : "=v"(spread)
        : "v"(words<16>::load(positions.of).v), "v"(x.v));
    r.v = spread;
    return r;
  }
#endif
  constexpr sixteen<std::uint64_t> shifts([](int i) { return First + 2 * Step * i % 64; });
  const pairs at = pairs::load(shifts.of);
  pairs even, odd;
  even.v = x.v >> at.v;
  odd.v = even.v >> Step;
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
    return spread_nibbles<L, 0, 4>(spread<L, std::uint64_t, 8>(codes + first / 2));
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

// Numbers on their way past the caches, `Count` at most at a time: whole aligned registers are streamed, and only the
// two ends of what is written are stored, so that it may begin anywhere.
template <int W, int Count, class T>
class stream_writer {
 public:
  [[gnu::always_inline]] explicit stream_writer(T* to) noexcept
      : others_(static_cast<int>(reinterpret_cast<std::uintptr_t>(to) % size)),
        filled_(others_),
        line_(reinterpret_cast<char*>(to) - others_) {}

  // Where the next numbers are to be put.
  [[gnu::always_inline]] T* next() noexcept { return waiting_ + filled_ / static_cast<int>(sizeof(T)); }
  // They are there.
  [[gnu::always_inline]] void write(int count) noexcept {
    const char* const from = reinterpret_cast<const char*>(waiting_);
    filled_ += count * static_cast<int>(sizeof(T));
    int done = 0;
    if (others_ > 0 && filled_ >= size) {
      std::memcpy(line_ + others_, from + others_, static_cast<std::size_t>(size - others_));
      others_ = 0;
      done = size;
    }
    for (; done + size <= filled_; done += size) chunk::load(from + done).stream(line_ + done);
    chunk::load(from + done).store(waiting_);
    line_ += done;
    filled_ -= done;
  }
  // The end of it.
  [[gnu::always_inline]] void finish() noexcept {
    const char* const from = reinterpret_cast<const char*>(waiting_);
    std::memcpy(line_ + others_, from + others_, static_cast<std::size_t>(filled_ - others_));
  }

 private:
  using chunk = lanes<std::uint8_t, 4 * W>;
  static constexpr int size = chunk::width;

  int others_;  // bytes of the first register that belong to others
  int filled_;  // bytes that wait, those included
  char* line_;  // where the first of them belongs
  alignas(64) T waiting_[Count + 2 * size / static_cast<int>(sizeof(T))];
};

// Decoding four-bit codes without a NaN to BF16 by AVX-512, two elements to a lane. Where a factor is not finite values
// may be NaN: that is not for this kernel.
template <class L, class S, class T>
inline constexpr bool decodes_in_pairs = L::avx512&& S::element::bits == 4 && !S::element::has_nan &&
                                         std::is_same_v<T, value<bf16>> && !lanes_rule<typename S::rule>::payload_first;

// The bits of x rounded to BF16 in the upper halves; what is below does not matter. Not for a NaN.
template <int W>
[[gnu::always_inline]] inline words<W> rounded_to_bf16(const floats<W>& x) noexcept {
  const words<W> odd = as<std::int32_t>(as<std::uint32_t>(bits(x)) >> 16) & all<W>(1);
  return bits(x) + all<W>(0x7FFF) + odd;
}

// 32 values of a pair of eight-byte runs of codes, Pair of four in `codes`.
template <class L, class S, int Pair>
[[gnu::always_inline]] inline void decode_pair(const lanes<std::uint64_t, 8>& codes, const floats<16>& factors,
                                               value<bf16>* y) noexcept {
  using pairs = lanes<std::uint64_t, 8>;
  constexpr int a = 2 * Pair, b = 2 * Pair + 1;
  const pairs both = detail::shuffled(codes, codes, std::integer_sequence<int, a, a, a, a, b, b, b, b>{});
  constexpr int p = S::block::columns == 32 ? Pair : a, q = S::block::columns == 32 ? Pair : b;  // their blocks
  const floats<16> factor =
      detail::shuffled(factors, factors, std::integer_sequence<int, p, p, p, p, p, p, p, p, q, q, q, q, q, q, q, q>{});
  const floats<16> even = mul(decode_elements<L, typename S::element>(spread_nibbles<L, 0, 8>(both)), factor);
  const floats<16> odd = mul(decode_elements<L, typename S::element>(spread_nibbles<L, 4, 8>(both)), factor);
  const words<16> low = as<std::int32_t>(as<std::uint32_t>(rounded_to_bf16(even)) >> 16);
  select(all<16>(0xFFFF0000u), rounded_to_bf16(odd), low).store(y);
}

// A group of 16 blocks.
template <class L, class S>
[[gnu::always_inline]] inline void decode_pairs(const std::uint8_t* codes, const floats<16>& factors,
                                                value<bf16>* y) noexcept {
  constexpr int N = S::block::columns, here = 128 / N;  // blocks of a register of codes
  float factor[32];                                     // of which the last ones are only read
  factors.store(factor);
  factors.store(factor + 16);
  for (int i = 0; i < 16; i += here, codes += 64, y += 128) {
    const auto some = lanes<std::uint64_t, 8>::load(codes);
    const auto factors_of_some = floats<16>::load(factor + i);
    decode_pair<L, S, 0>(some, factors_of_some, y);
    decode_pair<L, S, 1>(some, factors_of_some, y + 32);
    decode_pair<L, S, 2>(some, factors_of_some, y + 64);
    decode_pair<L, S, 3>(some, factors_of_some, y + 96);
  }
}

template <class S, class T>
struct dequantize_run {
  const std::uint8_t* codes = nullptr;  // of consecutive blocks
  const typename S::scale::storage* scales = nullptr;
  T* y = nullptr;
  tensor_factors factors;
  bool streams = false;  // writes past the caches; the caller fences
};

template <class L, class S, class T>
[[gnu::always_inline]] inline void dequantize_blocks(const dequantize_run<S, T>& run, index_t count) noexcept {
  using rule = lanes_rule<typename S::rule>;
  constexpr int W = L::width, N = S::block::columns, bytes = N * S::element::bits / 8;
  const tensor_factors t = run.factors;
  const std::uint8_t* codes = run.codes;
  T* y = run.y;  // whose numbers might be the run's members, for all that a compiler knows
  const bool streams = run.streams;
  stream_writer<W, W * N, T> writer(y);
  for (index_t first = 0; first < count; first += W, y += W * N) {
    const int here = static_cast<int>(smaller(index_t{W}, count - first));
    std::uint8_t few[W] = {};
    if (here < W) std::memcpy(few, run.scales + first, static_cast<std::size_t>(here));
    const words<W> scale = widened(lanes<std::uint8_t, W>::load(here < W ? few : run.scales + first));
    float factor[W];
    const floats<W> factors = rule::template factor<S>(decode_scale<typename S::scale>(scale), t);
    T* to = streams ? writer.next() : y;
#pragma GCC unroll 8
    for (int at = 0; at < W * bytes; at += 64) __builtin_prefetch(codes + 1024 + at);
    if constexpr (decodes_in_pairs<L, S, T>) {
      if (here == W && !any(greater(magnitude(factors), all<W>(fp32::infinity_bits - 1u)))) {
        decode_pairs<L, S>(codes, factors, to);
        codes += W * bytes;
        if (streams) writer.write(W * N);
        continue;
      }
    }
    factors.store(factor);
    for (int i = 0; i < here; ++i, codes += bytes, to += N) {
#pragma GCC unroll 8
      for (int j = 0; j < N; j += W) {
        const words<W> code = unpack_codes<L, typename S::element, W>(codes, j);
        floats<W> values = mul(decode_elements<L, typename S::element>(code), factor[i]);
        if constexpr (rule::payload_first) values = mul(values, t.decode);
        store_floats(values, to + j);
      }
    }
    if (streams) writer.write(here * N);
  }
  if (streams) writer.finish();
}

// A run of blocks in place of which their decoded values are written. Steps as in quantize_run.
template <class S, class T, class U>
struct fake_quantize_run {
  quantize_run<S, T> blocks;  // but for codes and scales
  U* y = nullptr;
  index_t block_step = 0;
  index_t element_step = 1;
  tensor_factors back;   // what decoding sees
  bool streams = false;  // as in dequantize_run, for blocks side by side along rows
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
  const words<W> amax = amax_of_rows<W, S::block::columns>(x, step);
  if (any(greater(amax, all<W>(fp32::infinity_bits - 1u)))) return false;
  const scale_lanes<W> scale = rule::template scale<S>(as<float>(amax), run.blocks.factors);
  usable_divisor<rule::step>(rule::template divisor<S>(scale, run.blocks.factors)).store(divisor);
  rule::template factor<S>(decode_scale<typename S::scale>(scale.code), run.back).store(factor);
  return true;
}
template <class L, class S, class T, class U, int W = L::width>
[[gnu::always_inline]] inline void store_rows(const fake_quantize_run<S, T, U>& run, index_t first,
                                              const float (&divisor)[W], const float (&factor)[W], U* y) noexcept {
  using rule = lanes_rule<typename S::rule>;
  using element = typename S::element;
  const index_t x_step = run.blocks.block_step;
  const float last = run.back.decode;
  const T* x = run.blocks.x + first * x_step;
  for (int i = 0; i < W; ++i, x += x_step, y += S::block::columns) {
#pragma GCC unroll 8
    for (int j = 0; j < S::block::columns; j += W) {
      words<W> sign;
      prefetch_line(x + j);
      const floats<W> scaled = scaled_number<rule::step>(load_floats<W>(x + j), divisor[i], sign);
      floats<W> value = nearest_value<element>(smaller_magnitude<L>(scaled, element::largest()));
      value = mul(as<float>(select(all<W>(fp32::sign_bit), sign, bits(value))), factor[i]);
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
  constexpr int group = W * S::block::columns;
  float divisors[2][W], factors[2][W];
  stream_writer<W, group, U> writer(run.y);
  for (index_t next = 0;; next += W) {
    const int here = static_cast<int>(next / W % 2);
    const bool goes_on = next < count && scale_rows(run, next, divisors[here], factors[here]);
    if (next > 0) {
      U* const y = run.streams ? writer.next() : run.y + (next - W) * S::block::columns;
      store_rows<L>(run, next - W, divisors[1 - here], factors[1 - here], y);
      if (run.streams) writer.write(group);
    }
    if (!goes_on) {
      if (run.streams) writer.finish();
      return next;
    }
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
  const wide_philox_keys keys(run.blocks.key);
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
    draw_blocks<L, R>(run.blocks, keys, first, draws);
#pragma GCC unroll 32
    for (int k = 0; k < N; ++k) {
      words<W> sign;
      const floats<W> scaled = scaled_number<rule::step>(x[k], divisor, sign);
      const words<W> code =
          round_magnitude<L, R, element>(smaller_magnitude<L>(scaled, element::largest()), draw_of<R>(draws, k));
      const words<W> kept = select(all<W>(element::magnitude_mask), code,
                                   as<std::int32_t>(as<std::uint32_t>(sign) >> (32 - element::bits)));
      x[k] = mul(decode_elements<L, element>(kept), factor);
      if constexpr (rule::payload_first) x[k] = mul(x[k], run.back.decode);
    }
    if (run.streams) {
      stream_writer<W, W * N, U> writer(run.y + first * N);
      store_values(x, writer.next(), N, 1);
      writer.write(W * N);
      writer.finish();
    } else {
      store_values(x, run.y + first * run.block_step, run.block_step, run.element_step);
    }
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
    // From here on sums might overflow.
    constexpr std::uint32_t limit = (254u - static_cast<std::uint32_t>(bit_width(Size) - 1)) << 23;
    if (any(greater(amax_of_blocks(x), all<W>(limit - 1u)))) return first;
    hadamard_blocks<Size>(x, job.flips);
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

// Blocks side by side, each `rows` rows of Columns numbers, and what they were decoded to. The sums of block i are
// written to of_blocks[i]: metrics.hpp says of what, and in which order.
template <class T>
struct error_run {
  const T* x = nullptr;
  index_t pitch = 0;
  const float* decoded = nullptr;
  index_t decoded_pitch = 0;
  int rows = 0;
  microscale::detail::block_errors* of_blocks = nullptr;
};

// A group of W blocks, block i in lane i.
template <int W, int Columns, class T>
[[gnu::always_inline]] inline void add_up_errors(const error_run<T>& run, index_t first) noexcept {
  using integers = lanes<std::int64_t, W>;
  doubles<W> signal = doubles<W>::all(0.0), noise = signal, largest_error = signal;
  words<W> largest = all<W>(0);
  for (int r = 0; r < run.rows; ++r) {
    for (int part = 0; part < Columns; part += W) {
      const index_t at = first * Columns + part;
      floats<W> x[W], y[W];
      load_blocks(run.x + r * run.pitch + at, index_t{Columns}, index_t{1}, x);
      load_blocks(run.decoded + r * run.decoded_pitch + at, index_t{Columns}, index_t{1}, y);
#pragma GCC unroll 8
      for (int k = 0; k < W; ++k) {
        largest = larger_of(largest, magnitude(x[k]));
        const doubles<W> exact = widened(x[k]), e = sub(exact, widened(y[k]));
        signal = add(signal, mul(exact, exact));
        noise = add(noise, mul(e, e));
        largest_error = larger_of(largest_error, as<double>(as<std::int64_t>(e) & integers::all(INT64_MAX)));
      }
    }
  }
  double sums[3][W];
  std::int32_t magnitudes[W];
  signal.store(sums[0]);
  noise.store(sums[1]);
  largest_error.store(sums[2]);
  largest.store(magnitudes);
  for (int i = 0; i < W; ++i) {
    run.of_blocks[first + i] = {sums[0][i], sums[1][i], sums[2][i], static_cast<std::uint32_t>(magnitudes[i])};
  }
}

// How many of `count` blocks were done: all but those that fill no group, or none where registers hold only two numbers
// of binary64.
template <class L, int Columns, class T>
[[gnu::always_inline]] inline index_t add_up_all_errors(const error_run<T>& run, index_t count) noexcept {
  constexpr int W = L::width / 2;
  index_t done = 0;
  if constexpr (W >= 4) {
    for (; done + W <= count; done += W) add_up_errors<W, Columns>(run, done);
  }
  return done;
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
[[gnu::target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni"), gnu::noinline]] auto
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

template <int Columns>
struct error_kernel {
  template <class L, class T>
  [[gnu::always_inline]] static index_t run(const error_run<T>& run, const index_t& count) noexcept {
    return add_up_all_errors<L, Columns>(run, count);
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
