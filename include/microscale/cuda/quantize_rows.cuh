// Quantizing and dequantizing along rows at the memory's speed: whole blocks of E2M1, read and written in vectors of 16
// bytes, several blocks a thread. What does not fit (tails, misaligned memory, other schemes) takes the kernels of
// quantize.cuh; the bits are the same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../tensor/hadamard.hpp"
#include "amax.cuh"
#include "quantize_call.cuh"

namespace microscale::detail::device {

// ---------------------------------------------------------------------------------------------------------------
// E2M1 codes, eight to a word.

// Constants that kernels get as parameters, so that the compiler does not know them: of multipliers it would make
// shifts, which take twice the cycles of a multiply-add and a pipe that is already full, and bytes it would move
// into a register again and again.
struct hidden_constants {
  std::uint32_t four = 4;
  std::uint32_t sixteen = 16;
  std::uint32_t half_word = 1u << 16;
  std::uint32_t stochastic_tail = 0;
};
template <rounding_mode R>
hidden_constants hidden_constants_for() noexcept {
  return {.stochastic_tail = e2m1_stochastic_tail<R>};
}

// Σ x_i 16^i mod 2^32
__device__ inline std::uint32_t nibbles_of(const std::uint32_t (&x)[8], const hidden_constants& hidden) {
  std::uint32_t sum = x[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) sum = sum * hidden.sixteen + x[i];
  return sum;
}

// The stochastic modes of eight bits a draw.
template <rounding_mode R>
inline constexpr bool draws_bytes = adds_half_draws<R> >= 0 && R::random_bits == 8;

template <rounding_mode R>
inline constexpr bool has_run_arithmetic = std::is_same_v<R, nearest_even> || draws_bytes<R>;
template <stochastic_mode R>
inline constexpr bool has_run_arithmetic<with_stream_offset<R>> = has_run_arithmetic<R>;
// Schemes and roundings that encode_run serves.
template <class S, class R>
concept run_scheme = quantization_scheme<S> && rounding_mode<R> && has_run_arithmetic<R> &&
                         std::is_same_v<typename S::element, e2m1> &&
                         (multiplies_by_power<S> ||
                          multiplies_by_float<typename S::rule>)&&sizeof(typename S::scale::storage) == 1 &&
                     S::policy != nonfinite::reject;

// Whether every finite block is one for run_encoder where no factor is left to it: under a power of two that the amax
// itself gave.
template <class S>
inline constexpr bool is_always_usable = multiplies_by_power<S>;

// The Philox call of the sixteen elements `which` from `position` on.
__device__ inline std::uint32_t philox_index(std::uint64_t position, int which) {
  return static_cast<std::uint32_t>(position / 16) + static_cast<std::uint32_t>(which);
}

// What products run_encoder takes: those below 8, and where that leaves out few blocks, those that do not round to 8,
// which would have to be told from 7.
template <class S, class R>
inline constexpr bool rounds_to_eight = is_always_usable<S> || !std::is_same_v<R, nearest_even>;
template <class S, class R>
inline constexpr float encoded_below = rounds_to_eight<S, R> ? 8.0f : 7.0f;

// Magnitudes' codes 0 to 8 of eight products below 8, a nibble each.
__device__ inline std::uint32_t nearest_nibbles(const float (&y)[8], const hidden_constants& hidden) {
  std::uint32_t part[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) part[i] = e2m1_nearest_bits(y[i]);
  return nibbles_of(part, hidden) - e2m1_count_bits * 0x11111111u;
}
// The same by a stochastic mode, a draw of eight bits for each from the two words. Of every four elements one is spared
// an operation of the ALU, which has more to do here than the multiply-adds' pipe, for two more of that one.
__device__ inline std::uint32_t stochastic_nibbles(const float (&y)[8], std::uint32_t low, std::uint32_t high,
                                                   const hidden_constants& hidden) {
  std::uint32_t top[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float z = i % 4 == 3 ? e2m1_stochastic_float(y[i]) : add_toward_zero(y[i], fp32::max_number(y[i], 1.0f));
    top[i] = e2m1_stochastic_top(z, i < 4 ? low : high, i % 4, hidden.stochastic_tail, hidden.four);
  }
  const std::uint32_t even =
      __byte_perm(__byte_perm(top[0], top[2], 0x0073), __byte_perm(top[4], top[6], 0x0073), 0x5410);
  const std::uint32_t odd =
      __byte_perm(__byte_perm(top[1], top[3], 0x0073), __byte_perm(top[5], top[7], 0x0073), 0x5410);
  return odd * hidden.sixteen + even;
}

// Elements 8 * eighth ... + 7 of a run of finite numbers whose products with `multiplier` are below encoded_below. A
// draw of eight bits for each comes from the two words.
template <class S, rounding_mode R, class T, int N>
__device__ std::uint32_t encode_eight(const element_run<T, N>& x, int eighth, float multiplier, std::uint32_t low,
                                      std::uint32_t high, const hidden_constants& hidden) {
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = mul_magnitude(x.at(8 * eighth + i), multiplier);
  std::uint32_t codes;
  if constexpr (std::is_same_v<R, nearest_even>) {
    codes = nearest_nibbles(y, hidden);
  } else {
    static_assert(draws_bytes<R>);
    codes = stochastic_nibbles(y, low, high, hidden);
  }
  if constexpr (rounds_to_eight<S, R>) codes -= (codes & 0x88888888u) >> 3;
  return codes | (x.sign_nibbles(eighth) & 0x88888888u);
}

// What encodes the elements of a block under its scale, of finite numbers up to `amax`. The elements that come are
// still to be multiplied by 2^-Power; the multiplier is instead. Between 2^-100 and 2^100 it makes no difference: what
// of an element would be subnormal then, and rounded, gives a product below 2^-26, which counts as nothing either way.
template <quantization_scheme S, rounding_mode R, int Power>
struct run_encoder {
  float multiplier;
  bool usable;  // otherwise the block is one for encode_rare

  __device__ run_encoder(typename S::scale::storage scale, const tensor_factors& t, float amax) {
    constexpr std::uint32_t low = fp32::bits(0x1p-100f), high = fp32::bits(0x1p100f);
    if constexpr (multiplies_by_reciprocal<typename S::rule>) {
      // Where the quick reciprocal holds there is nothing to cap. A block of zeros has products of zero under any
      // multiplier that is a number.
      constexpr std::uint32_t from = Power == 0 ? quick_reciprocal_from : low,
                              to = Power == 0 ? quick_reciprocal_to : high;
      const float step = S::rule::template step<amax_scheme<S>>(scale, t);
      multiplier = fp32::min_number(quick_reciprocal(step), fp32::largest);
      usable = (fp32::bits(step) - from < to - from) | (fp32::bits(amax) == 0);
    } else {
      multiplier = multiplier_of<S>(S::rule::template divisor<amax_scheme<S>>(scale, t));
      usable = Power == 0 || (fp32::bits(multiplier) - low < high - low) | (fp32::bits(amax) == 0);
    }
    // As bits, where a NaN is above all numbers.
    usable = usable & (fp32::bits(fp32::mul(amax, multiplier)) < fp32::bits(encoded_below<S, R>));
    if constexpr (Power != 0)
      multiplier = fp32::mul(multiplier, fp32::from_bits(static_cast<std::uint32_t>(127 - Power) << 23));
  }
  // The codes of N elements, the first of which has `position` (random.hpp), below 2^36.
  template <class T, int N>
  __device__ void encode(const element_run<T, N>& x, const philox_stream& stream, std::uint64_t position,
                         const hidden_constants& hidden, std::uint32_t (&codes)[N / 8]) const {
    static_assert(R::random_bits == 0 || N % 16 == 0, "a Philox call serves sixteen elements");
    philox_words words;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      if (R::random_bits > 0 && i % 2 == 0) words = stream(philox_index(position, i / 2));
      codes[i] = encode_eight<S, R>(x, i, multiplier, words.word[i % 2 * 2], words.word[i % 2 * 2 + 1], hidden);
    }
  }
};

template <int Power, class T, int N>
__device__ element_run<T, N> divided_by_power(const element_run<T, N>& x) {
  if constexpr (Power == 0) {
    return x;
  } else {
    static_assert(std::is_same_v<T, float>);
    element_run<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      y.word[i] = fp32::bits(fp32::mul(x.at(i), fp32::from_bits(static_cast<std::uint32_t>(127 - Power) << 23)));
    }
    return y;
  }
}

// The same for any block: what NaN and infinity are in, and what a multiplier cannot express. Eight elements at a time,
// so that it takes no more registers than the usual way.
template <quantization_scheme S, rounding_mode R, class T, int N>
__device__ void encode_rare(const element_run<T, N>& x, typename S::scale::storage scale, const tensor_factors& t,
                            const philox_stream& stream, std::uint64_t position, std::uint32_t (&codes)[N / 8]) {
  const auto divisor = S::rule::template divisor<S>(scale, t);
#pragma unroll 1
  for (int e = 0; e < N / 8; ++e) {
    const auto run = x.select_eight(e);
    std::uint32_t low = 0, high = 0;
    if constexpr (R::random_bits > 0) {
      const philox_words words = stream(philox_index(position, e / 2));
      low = words.word[0], high = words.word[1];
      if (e % 2 != 0) low = words.word[2], high = words.word[3];
    }
    std::uint32_t eight = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t random = (i < 4 ? low : high) >> (8 * (i % 4)) & 0xFFu;
      eight |= std::uint32_t{encode_in_block<S, R>(run.at(i), divisor, random)} << (4 * i);
    }
#pragma unroll
    for (int j = 0; j < N / 8; ++j) codes[j] = j == e ? eight : codes[j];
  }
}

// The scale of a block with that amax, or of one that is poisoned, whose codes then are those of NaN.
template <quantization_scheme S, int Words>
__device__ bool poison_run(const running_amax& amax, const call_factors& f, typename S::scale::storage& scale,
                           std::uint32_t (&codes)[Words]) {
  if (!f.refused && !is_poisoned<S>(amax)) {
    scale = first_block_scale<S>(amax, f.forward);
    return false;
  }
  scale = S::scale::encode(fp32::quiet_nan());
  const std::uint32_t code = S::element::encode(fp32::quiet_nan());
#pragma unroll
  for (int i = 0; i < Words; ++i) codes[i] = code * 0x11111111u;
  return true;
}

// Whether every block that is not finite is poisoned.
template <class S>
inline constexpr bool is_always_poisoned = S::policy == nonfinite::poison;

// A block as it is stored.
template <class S, int N>
struct stored_run {
  typename S::scale::storage scale;
  bool plain;          // finite elements, each with the sign of its code
  std::uint32_t amax;  // its bits, NaN passed over
  std::uint32_t codes[N / 8];

  // The signs of the codes of elements 2 i and 2 i + 1, each in the top bit of its half.
  __device__ std::uint32_t sign_halves(int i) const {
    const std::uint32_t w = codes[i / 4];
    return __byte_perm(w << 4, w, static_cast<unsigned>(i % 4 * 0x1010 + 0x4000)) & 0x80008000u;
  }
};

// A whole block that one thread holds, each element to be multiplied by 2^-Power first; `largest` is the largest
// magnitude after that.
template <quantization_scheme S, rounding_mode R, int Power = 0, class T, int N>
__device__ stored_run<S, N> quantize_run(const element_run<T, N>& x, std::uint32_t largest, const call_factors& f,
                                         const philox_stream& stream, std::uint64_t position,
                                         const hidden_constants& hidden) {
  stored_run<S, N> out;
  out.plain = largest < fp32::infinity_bits && !f.refused;
  out.amax = largest;
  if (out.plain) {
    const float amax = fp32::from_bits(largest);
    out.scale = S::rule::template scale<amax_scheme<S>>(amax, f.forward);
    const run_encoder<S, R, Power> encoder(out.scale, f.forward, amax);
    if ((is_always_usable<S> && Power == 0) || encoder.usable) {
      encoder.encode(x, stream, position, hidden, out.codes);
    } else {
      encode_rare<S, R>(divided_by_power<Power>(x), out.scale, f.forward, stream, position, out.codes);
    }
  } else {
    const auto y = divided_by_power<Power>(x);
    running_amax amax;
    y.show_all(amax);
    out.amax = fp32::bits(amax.ignoring_nan());
    const bool poisoned = poison_run<S>(amax, f, out.scale, out.codes);
    if (!is_always_poisoned<S> && !poisoned) {
      encode_rare<S, R>(y, out.scale, f.forward, stream, position, out.codes);
    }
  }
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// What happens to a block before it is quantized, but for a factor of 2^-power that is left to the quantization; and
// the largest magnitude that comes out, as element_run::largest_magnitude has it.

struct no_transform {
  static constexpr int power = 0;
  template <class T, int N>
  using result = element_run<T, N>;

  __device__ std::uint32_t read_signs() const { return 0; }
  template <class Runs>
  __device__ void negate_read(Runs&, std::uint32_t) const {}
  template <class T, int N>
  __device__ const element_run<T, N>& operator()(const element_run<T, N>& x, std::uint32_t& largest,
                                                 const hidden_constants&) const {
    largest = x.largest_magnitude();
    return x;
  }
};

// hadamard_run (tensor/hadamard.hpp) of each `Size` elements, in the same order.
template <class T, int Size>
struct hadamard_transform {
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  static constexpr int power = Size == 16 ? 2 : 0;
  template <class, int N>
  using result = element_run<float, N>;

  std::uint32_t flip[Size];    // the sign bit, where an element changes its sign
  const hadamard_signs* read;  // the signs in device memory, in the place of those, or null
  std::uint32_t reads;         // whether there are any: a number, which is compared in one operation
  float factor;

  explicit hadamard_transform(const hadamard_options& options)
      : flip{}, read(options.read_signs), reads(read != nullptr ? 1 : 0), factor(hadamard_factor(Size)) {
    for (int i = 0; i < Size && reads == 0; ++i) flip[i] = options.signs.negative(i) ? fp32::sign_bit : 0;
  }
  // The signs in device memory, for negate_read. Kernels ask for them before they ask for data.
  __device__ std::uint32_t read_signs() const { return reads == 0 ? 0 : static_cast<std::uint32_t>(read->word[0]); }
  // Negates elements by the signs of device memory, if they are there; those that are known are for operator().
  template <int N>
  __device__ void negate_read(element_run<T, N>& x, std::uint32_t signs) const {
    if (reads != 0) negate(x, opaque(signs));
  }
  template <int N, int Runs>
  __device__ void negate_read(element_run<T, N> (&x)[Runs], std::uint32_t signs) const {
    if (reads == 0) return;
    const std::uint32_t now = opaque(signs);
#pragma unroll
    for (int i = 0; i < Runs; ++i) negate(x[i], now);
  }
  // Element i of a run with its new sign.
  template <int N>
  __device__ float flipped(const element_run<T, N>& in, int i, const hidden_constants& hidden) const {
    if constexpr (std::is_same_v<T, value<bf16>>) {  // one operation each
      const std::uint32_t w = in.word[i / 2];
      return fp32::from_bits(i % 2 == 0 ? w * hidden.half_word + flip[i % Size] : (w ^ flip[i % Size]) & 0xFFFF0000u);
    } else {
      return fp32::from_bits(fp32::bits(in.at(i)) ^ flip[i % Size]);
    }
  }
  // The known signs, and all sums but those of the last stage.
  template <int N>
  __device__ void begin(const element_run<T, N>& in, float (&x)[N], const hidden_constants& hidden) const {
    static_assert(N % Size == 0);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = flipped(in, i, hidden);
#pragma unroll
    for (int stride = 1; 2 * stride < Size; stride *= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if ((i & stride) != 0) continue;
        const float u = x[i], v = x[i + stride];
        x[i] = fp32::add(u, v);
        x[i + stride] = fp32::sub(u, v);
      }
    }
  }
  template <int N>
  __device__ element_run<float, N> operator()(const element_run<T, N>& in, std::uint32_t& largest,
                                              const hidden_constants& hidden) const {
    float x[N];
    begin(in, x, hidden);
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if ((i & last) != 0) continue;
      const float u = x[i], v = x[i + last];
      x[i] = fp32::add(u, v);
      x[i + last] = fp32::sub(u, v);
      sum = larger(sum, fp32::bits(larger_result(u, v)));
    }
    largest = fp32::bits(fp32::mul(fp32::from_bits(sum), factor));
    element_run<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.word[i] = fp32::bits(power == 0 ? fp32::mul(x[i], factor) : x[i]);
    return out;
  }
  // The largest magnitude alone, still to be multiplied by the factor, NaN passed over: where one of two results is a
  // NaN and the other is not, both sums were infinite, and so is the other.
  template <int N>
  __device__ float largest_sum(const element_run<T, N>& in, const hidden_constants& hidden) const {
    float x[N];
    begin(in, x, hidden);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if ((i & last) == 0) largest = fp32::max_number(largest, larger_result(x[i], x[i + last]));
    }
    return largest;
  }

 private:
  static constexpr int last = Size / 2;  // the stride of the last stage

  template <int N>
  static __device__ void negate(element_run<T, N>& x, std::uint32_t signs) {
#pragma unroll
    for (int i = 0; i < x.words; ++i) {
      const int first = i * per_word % Size;
      if constexpr (per_word == 1) {
        x.word[i] ^= signs << (31 - first) & fp32::sign_bit;
      } else {  // two signs to bits 15 and 31 by a product, of which other bits do not count
        const std::uint32_t two = (first < 16 ? signs : signs >> 16) & 3u << (first % 16);
        x.word[i] ^= two * (0x40008000u >> (first % 16)) & 0x80008000u;
      }
    }
  }

  // The larger magnitude of u + v and u - v.
  static __device__ float larger_result(float u, float v) { return add_magnitudes(u, v); }
};

// ---------------------------------------------------------------------------------------------------------------
// Kernels.

// i / d for i < 2^31 and 1 <= d < 2^31, by a multiplication.
struct quick_divider {
  std::uint32_t divisor = 1;
  std::uint32_t factor = 0;  // ceil(2^(31 + shift) / divisor)
  int shift = 0;

  quick_divider() = default;
  explicit quick_divider(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + d - 1) / d);
  }
  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return static_cast<std::uint32_t>((std::uint64_t{i} * factor) >> (31 + shift));
  }
};

inline constexpr index_t most_runs = index_t{1} << 30;

// Runs of a matrix in row-major order.
struct run_grid {
  std::uint32_t count = 0;
  quick_divider per_row;
  bool flat = false;  // whether rows follow each other without gaps wherever the runs are

  struct place {
    index_t row;
    index_t col;
  };
  __device__ place at(std::uint32_t i) const {
    const std::uint32_t row = per_row(i);
    return {index_t{row}, index_t{i - row * per_row.divisor}};
  }
  // Where run i of `Width` elements begins in a matrix with that distance between rows. The product of two 32-bit
  // numbers is one instruction.
  template <int Width>
  __device__ index_t offset(std::uint32_t i, index_t pitch) const {
    if (flat) return static_cast<index_t>(std::uint64_t{i} * std::uint32_t{Width});
    const place p = at(i);
    return p.row * pitch + p.col * Width;
  }
};

// Neighbouring blocks of one thread, so that codes leave in vectors of 16 bytes.
template <class S, class T>
inline constexpr int adjacent_runs = sizeof(T) == 2 && S::block::columns == 16 ? 2 : 1;

template <class S, class T, class Transform, class Draws>
struct row_call {
  quantize_call<S, T> call;
  run_grid grid;  // of neighbouring blocks
  Transform transform;
  Draws draws;
  hidden_constants hidden;
};

// Stores codes in the widest accesses that all runs allow.
template <int Words>
__device__ void store_words(std::uint8_t* p, const std::uint32_t (&word)[Words]) {
  if constexpr (Words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Words; i += 4) {
      reinterpret_cast<uint4*>(p)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
    }
  } else {
    static_assert(Words == 2);
    *reinterpret_cast<uint2*>(p) = make_uint2(word[0], word[1]);
  }
}

// Stores what each lane of a warp has for `p` of its own, null where it has nothing. Lanes go in pairs, each of which
// writes one half of a 32-byte sector at a time: one lane alone would write every sector twice.
template <int Words>
__device__ void store_paired(std::uint8_t* p, const std::uint32_t (&word)[Words]) {
  static_assert(Words % 8 == 0);
  const bool upper = (threadIdx.x & 1) != 0;
  const auto other = reinterpret_cast<std::uint8_t*>(
      __shfl_xor_sync(~0u, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(p)), 1));
  std::uint8_t* const even = upper ? other : p;
  std::uint8_t* const odd = upper ? p : other;
#pragma unroll
  for (int i = 0; i < Words; i += 8) {
    std::uint32_t first[4], second[4];  // what this lane stores of the even lane's sector, and of the odd one's
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t low = word[i + j], high = word[i + 4 + j];
      const std::uint32_t received = __shfl_xor_sync(~0u, upper ? low : high, 1);
      first[j] = upper ? received : low;
      second[j] = upper ? high : received;
    }
    const int at = i * 4 + (upper ? 16 : 0);
    if (even != nullptr) *reinterpret_cast<uint4*>(even + at) = make_uint4(first[0], first[1], first[2], first[3]);
    if (odd != nullptr) *reinterpret_cast<uint4*>(odd + at) = make_uint4(second[0], second[1], second[2], second[3]);
  }
}

// A run decoded, as it lies in memory.
template <class S, class U, class T, int N>
__device__ void decode_run(const element_run<T, N>& x, const stored_run<S, N>& run, const tensor_factors& back,
                           std::uint32_t* out) {
  using element = typename S::element;
  constexpr int per_word = 4 / static_cast<int>(sizeof(U));
  if constexpr (per_word == 2) {
    if (run.plain) {
      const float s = decode_finite<typename S::scale>(run.scale);
      // Of 16-bit elements, signs lie in place in the input already.
      const auto signs = [&](int i) { return sizeof(T) == 2 ? x.sign_halves(i) : run.sign_halves(i); };
      // The eight magnitudes that a code can mean here, their low bytes and their high ones, to be looked up four at a
      // time.
      std::uint32_t pairs[4];
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        const auto first = static_cast<typename element::storage>(c),
                   second = static_cast<typename element::storage>(c + 1);
        const float y[2] = {S::rule::template decoded<S>(decode_code<element>(first), s, back),
                            S::rule::template decoded<S>(decode_code<element>(second), s, back)};
        pairs[c / 2] = pack_word<U>(y);
      }
      const std::uint32_t low[2] = {__byte_perm(pairs[0], pairs[1], 0x6420), __byte_perm(pairs[2], pairs[3], 0x6420)};
      const std::uint32_t high[2] = {__byte_perm(pairs[0], pairs[1], 0x7531), __byte_perm(pairs[2], pairs[3], 0x7531)};
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        const std::uint32_t codes = run.codes[i / 2] >> (16 * (i % 2)) & 0x7777u;
        const std::uint32_t l = __byte_perm(low[0], low[1], codes), h = __byte_perm(high[0], high[1], codes);
        out[2 * i] = __byte_perm(l, h, 0x5140) | signs(2 * i);
        out[2 * i + 1] = __byte_perm(l, h, 0x7362) | signs(2 * i + 1);
      }
      return;
    }
  }
  const float s = decode_code<typename S::scale>(run.scale);
#pragma unroll
  for (int i = 0; i < N; i += per_word) {
    float y[per_word];
#pragma unroll
    for (int j = 0; j < per_word; ++j) {
      const auto code = static_cast<typename element::storage>(run.codes[(i + j) / 8] >> (4 * ((i + j) % 8)) & 15u);
      y[j] = S::rule::template decoded<S>(decode_code<element>(code), s, back);
    }
    out[i / per_word] = pack_word<U>(y);
  }
}

// Where a thread's neighbouring blocks go; `Width` elements of them in all.
struct packed_spot {
  std::uint8_t* codes;
  std::uint8_t* scales;
};
template <int Width, class S>
__device__ packed_spot spot_at(const packed_sink<S>& sink, index_t row, index_t k) {
  return {sink.out.codes + row * sink.out.code_pitch + k / 2, sink.scale_at(row, k / S::block::columns)};
}
template <int Width, class S>
__device__ packed_spot spot_of(const packed_sink<S>& sink, const run_grid& grid, std::uint32_t i) {
  if (grid.flat) {
    constexpr std::uint32_t blocks = Width / S::block::columns;
    return {sink.out.codes + std::uint64_t{i} * std::uint32_t{Width / 2}, sink.out.scales + std::uint64_t{i} * blocks};
  }
  const auto p = grid.at(i);
  return spot_at<Width>(sink, p.row, p.col * Width);
}
template <int Width, class S, class U>
__device__ U* spot_at(const decoded_sink<S, U>& sink, index_t row, index_t k) {
  return sink.out.at(row, k);
}
template <int Width, class S, class U>
__device__ U* spot_of(const decoded_sink<S, U>& sink, const run_grid& grid, std::uint32_t i) {
  return sink.out.data + grid.offset<Width>(i, sink.out.row_stride);
}
// Whether rows of `cols` elements follow each other without gaps.
template <class S>
bool is_flat(const packed_sink<S>& sink, index_t cols) noexcept {
  const auto& out = sink.out;
  return out.layout == scale_layout::linear && out.code_pitch == cols / 2 &&
         out.scale_pitch == cols / S::block::columns;
}
template <class S, class U>
bool is_flat(const decoded_sink<S, U>& sink, index_t cols) noexcept {
  return sink.out.row_stride == cols;
}

// Stores neighbouring blocks, `runs` of what x is.
template <class S, class T, int N, int Runs>
__device__ void store_runs(const packed_sink<S>&, packed_spot to, bool inside, const element_run<T, N> (&)[Runs],
                           const stored_run<S, N> (&runs)[Runs], const tensor_factors&) {
  if (!inside) return;
  std::uint32_t codes[N / 8 * Runs];
#pragma unroll
  for (int i = 0; i < N / 8 * Runs; ++i) codes[i] = runs[i / (N / 8)].codes[i % (N / 8)];
  store_words(to.codes, codes);
  if constexpr (Runs == 2) {
    *reinterpret_cast<std::uint16_t*>(to.scales) = static_cast<std::uint16_t>(runs[0].scale | runs[1].scale << 8);
  } else {
    static_assert(Runs == 1);
    *to.scales = runs[0].scale;
  }
}
template <class S, class U, class T, int N, int Runs>
__device__ void store_runs(const decoded_sink<S, U>&, U* to, bool inside, const element_run<T, N> (&x)[Runs],
                           const stored_run<S, N> (&runs)[Runs], const tensor_factors& back) {
  constexpr int words = N * static_cast<int>(sizeof(U)) / 4;
  std::uint32_t out[words * Runs];
#pragma unroll
  for (int j = 0; j < Runs; ++j) decode_run<S, U>(x[j], runs[j], back, out + j * words);
  store_paired(inside ? reinterpret_cast<std::uint8_t*>(to) : nullptr, out);
}

// `Runs` independent groups of neighbouring blocks a thread, whose loads are all under way before the first is used; a
// group that is done makes room for the one of the next round at once.
template <quantization_scheme S, rounding_mode R, class T, class Sink, int Runs, class Transform>
requires run_scheme<S, R> __global__ void __launch_bounds__(largest_thread_block)
    quantize_rows_kernel(const row_call<S, T, Transform, typename mode_parts<R>::draws> rows, const Sink sink) {
  constexpr int n = S::block::columns, adjacent = adjacent_runs<S, T>, width = n * adjacent;
  const quantize_call<S, T>& call = rows.call;
  const auto& stream = stream_of(rows.draws, call.stream_offset);
  const std::uint32_t span = blockDim.x * Runs;
  std::uint32_t first = blockIdx.x * span + threadIdx.x;
  using group = element_run<T, width>;
  group x[Runs];
  const auto load = [&](std::uint32_t from, int g) {
    const std::uint32_t i = from + g * blockDim.x;
    if (i < rows.grid.count) x[g].load(call.in.data + rows.grid.template offset<width>(i, call.in.row_stride));
  };
  const float reference = load_reference(call);
  const std::uint32_t signs = rows.transform.read_signs();
#pragma unroll
  for (int g = 0; g < Runs; ++g) load(first, g);
  const call_factors factors = share_factors<S>(call, reference, sink);
  std::uint32_t seen = 0;
  for (;;) {
    const std::uint32_t following = first + gridDim.x * span;
    const bool last = following - threadIdx.x >= rows.grid.count;
#pragma unroll
    for (int g = 0; g < Runs; ++g) {
      const std::uint32_t i = first + g * blockDim.x;
      typename Transform::template result<T, n> y[adjacent];
      stored_run<S, n> out[adjacent];
      rows.transform.negate_read(x[g], signs);
#pragma unroll
      for (int j = 0; j < adjacent; ++j) {
        std::uint32_t largest = 0;
        y[j] = rows.transform(x[g].template slice<n>(j), largest, rows.hidden);
        out[j] = quantize_run<S, typename mode_parts<R>::rule, Transform::power>(
            y[j], largest, factors, stream, std::uint64_t{i} * width + static_cast<unsigned>(j * n), rows.hidden);
        if (i < rows.grid.count) seen = larger(seen, out[j].amax);
      }
      store_runs(sink, spot_of<width>(sink, rows.grid, i), i < rows.grid.count, y, out, factors.back);
      if (!last) load(following, g);
    }
    if (last) break;
    first = following;
  }
  if (call.amax != nullptr) raise_amax(call.amax, seen);
}

// Whether a call takes quantize_rows_kernel: whole runs, aligned for vectors, under one tensor scale, and no scale
// beyond the matrix to be cleared.
template <int Adjacent, class S>
bool takes_runs(const packed_sink<S>& sink) noexcept {
  const auto& out = sink.out;
  return is_aligned(out.codes, out.code_pitch, Adjacent * S::block::columns / 2) &&
         is_aligned(out.scales, out.layout == scale_layout::linear ? out.scale_pitch : 0, Adjacent);
}
template <int Adjacent, class S, class U>
bool takes_runs(const decoded_sink<S, U>& sink) noexcept {
  return sink.out.wide;
}
template <class S, class T, class Sink>
bool fits_rows(const quantize_call<S, T>& call, const Sink& sink) noexcept {
  constexpr int adjacent = adjacent_runs<S, T>;
  const index_t runs = call.cols / S::block::columns;
  return call.in.wide && !call.tiled && call.cols > 0 && call.cols % (adjacent * S::block::columns) == 0 &&
         call.rows > 0 && call.grid.rows == call.rows && call.grid.cols == runs && call.rows <= most_runs / runs &&
         takes_runs<adjacent>(sink);
}

// How a kernel of runs is launched. No result depends on it.
struct row_shape {
  unsigned threads;  // of a thread block, unless the executor wants fewer
  int groups;        // of neighbouring blocks that a thread has under way
  int rounds;        // of a thread, where there are enough thread blocks to share what one does once
};
// Small thread blocks: where some end others begin, and a multiprocessor is never empty. What is decoded again waits
// for memory alone.
template <class Sink>
inline constexpr row_shape shape_of_rows = Sink::decodes ? row_shape{64, 1, 1} : row_shape{128, 1, 4};

// Thread blocks that do the work of `blocks` in up to so many rounds, but no fewer than fill a GPU several times.
inline index_t in_rounds(index_t blocks, int rounds) noexcept {
  constexpr index_t filling = 2048;
  return ceil_div(blocks, smaller(larger(blocks / filling, index_t{1}), index_t{rounds}));
}

template <rounding_mode R, class S, class T, class Sink, class Transform = no_transform>
void launch_rows(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink,
                 const Transform& transform = {}) {
  constexpr row_shape shape = shape_of_rows<Sink>;
  check_launch(executor.launch);
  cuda fitted = executor;
  fitted.launch.threads = smaller(executor.launch.threads, shape.threads);
  const index_t per_row = call.cols / (S::block::columns * adjacent_runs<S, T>), count = call.rows * per_row;
  using draws = typename mode_parts<R>::draws;
  const row_call<S, T, Transform, draws> rows{
      call,
      {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row)),
       call.in.row_stride == call.cols && is_flat(sink, call.cols)},
      transform,
      draws(call.key),
      hidden_constants_for<typename mode_parts<R>::rule>()};
  const index_t blocks = ceil_div(count, index_t{fitted.launch.threads} * shape.groups);
  if (call.amax != nullptr) clear_bytes(executor, "amax", call.amax, sizeof(float));
  launch(fitted, what, &quantize_rows_kernel<S, R, T, Sink, shape.groups, Transform>, in_rounds(blocks, shape.rounds),
         rows, sink);
}

// ---------------------------------------------------------------------------------------------------------------
// Dequantization: chunks of eight codes, so that 16-bit results leave in vectors that lie next to each other.

template <class S>
inline constexpr bool has_chunk_decoding = S::block::columns % 8 == 0 && S::element::bits <= 8;

template <class S, class T>
struct decode_rows_call {
  quantized_view<const S> in;
  strided_matrix<T> out;
  run_grid grid;  // of chunks
};

inline constexpr int decode_chunks_a_thread = 4;

template <quantization_scheme S, class T, int Chunks>
__global__ void __launch_bounds__(largest_thread_block) dequantize_rows_kernel(const decode_rows_call<S, T> call) {
  using chunk = packed_chunk<typename S::element, 8>;
  const std::uint32_t span = blockDim.x * Chunks;
  const tensor_factors t = call.in.factors();
  for (std::uint32_t first = blockIdx.x * span; first < call.grid.count; first += gridDim.x * span) {
    chunk codes[Chunks];
    typename S::scale::storage scales[Chunks];
    run_grid::place place[Chunks];
#pragma unroll
    for (int g = 0; g < Chunks; ++g) {
      const std::uint32_t i = first + threadIdx.x + g * blockDim.x;
      place[g] = call.grid.at(i);
      if (i >= call.grid.count) continue;
      codes[g].load(call.in.codes + place[g].row * call.in.code_pitch + place[g].col * S::element::bits, 8, true);
      scales[g] =
          call.in.scales[call.in.scale_offset(place[g].row / S::block::rows, place[g].col / (S::block::columns / 8))];
    }
#pragma unroll
    for (int g = 0; g < Chunks; ++g) {
      const std::uint32_t i = first + threadIdx.x + g * blockDim.x;
      if (i >= call.grid.count) break;
      const float s = decode_code<typename S::scale>(scales[g]);
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        y[j] = S::rule::template decoded<S>(decode_code<typename S::element>(codes[g].get(j)), s, t);
      }
      store_chunk(call.out.at(place[g].row, index_t{place[g].col} * 8), index_t{1}, 8, true, y);
    }
  }
}

template <class S, class T>
bool fits_decode_rows(const quantized_view<const S>& in, const strided_matrix<T>& out) noexcept {
  return out.wide && in.tile == tensor_tile{} && in.cols % 8 == 0 && in.rows <= most_runs / (in.cols / 8) &&
         is_aligned(in.codes, in.code_pitch, packed_chunk<typename S::element, 8>::access);
}

template <int Chunks, class S, class T>
void launch_decode_rows(const cuda& executor, const quantized_view<const S>& in, const strided_matrix<T>& out) {
  const index_t per_row = in.cols / 8, count = in.rows * per_row;
  const decode_rows_call<S, T> call{
      in, out, {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row))}};
  launch(executor, "dequantize", &dequantize_rows_kernel<S, T, Chunks>,
         ceil_div(count, index_t{executor.launch.threads} * Chunks), call);
}

}  // namespace microscale::detail::device
