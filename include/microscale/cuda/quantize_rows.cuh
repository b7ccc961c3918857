// Quantizing and dequantizing along rows at the memory's speed: whole blocks of E2M1, read and written in vectors of 16
// bytes, several blocks a thread. What does not fit (tails, misaligned memory, other schemes) takes the kernels of
// quantize.cuh; the bits are the same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../tensor/hadamard.hpp"
#include "quantize_call.cuh"

namespace microscale::detail::device {

// ---------------------------------------------------------------------------------------------------------------
// E2M1 codes, eight to a word.

// Constants that kernels get as parameters, so that the compiler does not know them: of multipliers it would make
// shifts, which take twice the cycles of a multiply-add and a pipe that is already full, and the byte it would move
// into a register again and again.
struct hidden_constants {
  std::uint32_t sixteen = 16;
  std::uint32_t sixty_four = 64;
  std::uint32_t half = 0x80;
};

// Σ x_i 16^i mod 2^32
__device__ inline std::uint32_t nibbles_of(const std::uint32_t (&x)[8], const hidden_constants& hidden) {
  std::uint32_t sum = x[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) sum = sum * hidden.sixteen + x[i];
  return sum;
}

template <rounding_mode R>
inline constexpr bool has_run_arithmetic = std::is_same_v<R, nearest_even> || std::is_same_v<R, stochastic_midpoint8>;
// Schemes and roundings that encode_run serves.
template <class S, class R>
concept run_scheme = quantization_scheme<S> && rounding_mode<R> && has_run_arithmetic<R> &&
                         std::is_same_v<typename S::element, e2m1> &&
                         (multiplies_by_power<S> ||
                          multiplies_by_float<typename S::rule>)&&sizeof(typename S::scale::storage) == 1 &&
                     S::policy != nonfinite::reject;

// Elements 8 * eighth ... + 7 of a run of finite numbers, none of which exceeds what `multiplier` brings below 8. A
// draw of eight bits for each comes from the two words.
template <rounding_mode R, class T, int N>
__device__ std::uint32_t encode_eight(const element_run<T, N>& x, int eighth, float multiplier, std::uint32_t low,
                                      std::uint32_t high, const hidden_constants& hidden) {
  std::uint32_t part[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float y = mul_magnitude(x.at(8 * eighth + i), multiplier);
    if constexpr (std::is_same_v<R, nearest_even>) {
      part[i] = e2m1_nearest_bits(y);
    } else {
      static_assert(std::is_same_v<R, stochastic_midpoint8>);
      part[i] = e2m1_midpoint_sum(y, i < 4 ? low : high, i % 4, hidden.half, hidden.sixty_four) >> 22;
    }
  }
  constexpr std::uint32_t base = std::is_same_v<R, nearest_even> ? e2m1_count_bits : e2m1_stochastic_base;
  const std::uint32_t codes = nibbles_of(part, hidden) - base * 0x11111111u;
  return codes - ((codes & 0x88888888u) >> 3) + x.sign_nibbles(eighth);  // 8 saturates to 7
}

// What encodes the elements of a block under its scale, of finite numbers up to `amax`.
template <quantization_scheme S, rounding_mode R>
struct run_encoder {
  float multiplier;
  bool usable;  // otherwise the block is one for encode_rare

  __device__ run_encoder(typename S::scale::storage scale, const tensor_factors& t, float amax)
      : multiplier(multiplier_of<S>(S::rule::template divisor<amax_scheme<S>>(scale, t))) {
    usable = fp32::less(fp32::mul(amax, multiplier), 8.0f);  // also where one is not a number
  }
  // For elements that are 2^-Power of those that will come. Exact: what is subnormal then counts as nothing.
  template <int Power>
  __device__ void fold() {
    usable = usable && fp32::less(0x1p-100f, multiplier) && fp32::less(multiplier, 0x1p100f);
    multiplier = fp32::mul(multiplier, fp32::from_bits(static_cast<std::uint32_t>(127 - Power) << 23));
  }
  // The codes of N elements, the first of which has `position` (random.hpp).
  template <class T, int N>
  __device__ void encode(const element_run<T, N>& x, const philox_keys& keys, std::uint64_t position,
                         const hidden_constants& hidden, std::uint32_t (&codes)[N / 8]) const {
    static_assert(R::random_bits == 0 || N % 16 == 0, "a Philox call serves sixteen elements");
    philox_words words;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      if (R::random_bits > 0 && i % 2 == 0) words = philox4x32(keys, position / 16 + static_cast<unsigned>(i / 2));
      codes[i] = encode_eight<R>(x, i, multiplier, words.word[i % 2 * 2], words.word[i % 2 * 2 + 1], hidden);
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
                            const philox_keys& keys, std::uint64_t position, std::uint32_t (&codes)[N / 8]) {
  const auto divisor = S::rule::template divisor<S>(scale, t);
#pragma unroll 1
  for (int e = 0; e < N / 8; ++e) {
    const auto run = x.select_eight(e);
    std::uint32_t low = 0, high = 0;
    if constexpr (R::random_bits > 0) {
      const philox_words words = philox4x32(keys, position / 16 + static_cast<unsigned>(e / 2));
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

// Whether every finite block is one for run_encoder: under a power of two that the amax itself gave.
template <class S>
inline constexpr bool is_always_usable = multiplies_by_power<S>;

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
};

// A whole block that one thread holds, each element to be multiplied by 2^-Power first; `largest` is the largest
// magnitude after that.
template <quantization_scheme S, rounding_mode R, int Power = 0, class T, int N>
__device__ stored_run<S, N> quantize_run(const element_run<T, N>& x, std::uint32_t largest, const call_factors& f,
                                         const philox_keys& keys, std::uint64_t position,
                                         const hidden_constants& hidden) {
  stored_run<S, N> out;
  out.plain = largest < fp32::infinity_bits && !f.refused;
  out.amax = largest;
  if (out.plain) {
    const float amax = fp32::from_bits(largest);
    out.scale = S::rule::template scale<amax_scheme<S>>(amax, f.forward);
    run_encoder<S, R> encoder(out.scale, f.forward, amax);
    if constexpr (Power != 0) encoder.template fold<Power>();
    if (is_always_usable<S> || encoder.usable) {
      encoder.encode(x, keys, position, hidden, out.codes);
    } else {
      encode_rare<S, R>(divided_by_power<Power>(x), out.scale, f.forward, keys, position, out.codes);
    }
  } else {
    const auto y = divided_by_power<Power>(x);
    running_amax amax;
    y.show_all(amax);
    out.amax = fp32::bits(amax.ignoring_nan());
    const bool poisoned = poison_run<S>(amax, f, out.scale, out.codes);
    if (!is_always_poisoned<S> && !poisoned) {
      encode_rare<S, R>(y, out.scale, f.forward, keys, position, out.codes);
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
  __device__ const element_run<T, N>& operator()(const element_run<T, N>& x, std::uint32_t& largest) const {
    largest = x.largest_magnitude();
    return x;
  }
};

// hadamard_run (tensor/hadamard.hpp) of each `Size` elements, in the same order.
template <class T, int Size>
struct hadamard_transform {
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  static constexpr int power = Size == 16 ? 2 : 0;

  std::uint32_t flip[Size / per_word];  // the sign bits that change, in words as elements lie in memory
  float factor;

  explicit hadamard_transform(const hadamard_signs& signs) : flip{}, factor(hadamard_factor(Size)) {
    for (int i = 0; i < Size; ++i) {
      if (signs.negative(i)) flip[i / per_word] |= std::uint32_t{1} << (32 / per_word * (i % per_word + 1) - 1);
    }
  }
  template <int N>
  __device__ element_run<float, N> operator()(const element_run<T, N>& in, std::uint32_t& largest) const {
    static_assert(N % Size == 0);
    element_run<T, N> flipped;
#pragma unroll
    for (int i = 0; i < in.words; ++i) flipped.word[i] = in.word[i] ^ flip[i % (Size / per_word)];
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = flipped.at(i);
    std::uint32_t sum = 0;
#pragma unroll
    for (int stride = 1; stride < Size; stride *= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if ((i & stride) != 0) continue;
        const float u = x[i], v = x[i + stride];
        x[i] = fp32::add(u, v);
        x[i + stride] = fp32::sub(u, v);
        // The larger magnitude of the two is |u| + |v|.
        if (2 * stride == Size) sum = larger(sum, fp32::bits(add_magnitudes(u, v)));
      }
    }
    largest = fp32::bits(fp32::mul(fp32::from_bits(sum), factor));
    element_run<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.word[i] = fp32::bits(power == 0 ? fp32::mul(x[i], factor) : x[i]);
    return out;
  }
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

  struct place {
    index_t row;
    index_t col;
  };
  __device__ place at(std::uint32_t i) const {
    const std::uint32_t row = per_row(i);
    return {index_t{row}, index_t{i - row * per_row.divisor}};
  }
};

// Neighbouring blocks of one thread, so that codes leave in vectors of 16 bytes.
template <class S, class T>
inline constexpr int adjacent_runs = sizeof(T) == 2 && S::block::columns == 16 ? 2 : 1;

template <class S, class T, class Transform>
struct row_call {
  quantize_call<S, T> call;
  run_grid grid;  // of neighbouring blocks
  Transform transform;
  philox_keys keys;
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
  const float s = decode_code<typename S::scale>(run.scale);
  if constexpr (per_word == 2) {
    if (run.plain) {
      // The eight magnitudes that a code can mean here, their low bytes and their high ones, to be looked up four at a
      // time; signs are those of the input.
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
        out[2 * i] = __byte_perm(l, h, 0x5140) | x.sign_halves(2 * i);
        out[2 * i + 1] = __byte_perm(l, h, 0x7362) | x.sign_halves(2 * i + 1);
      }
      return;
    }
  }
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

// Stores neighbouring blocks, the first of which lies at `p` in the grid of blocks.
template <class S, class T, int N, int Runs>
__device__ void store_runs(const packed_sink<S>& sink, run_grid::place p, bool inside, const element_run<T, N * Runs>&,
                           const stored_run<S, N> (&runs)[Runs], const tensor_factors&) {
  if (!inside) return;
  std::uint32_t codes[N / 8 * Runs];
#pragma unroll
  for (int i = 0; i < N / 8 * Runs; ++i) codes[i] = runs[i / (N / 8)].codes[i % (N / 8)];
  store_words(sink.out.codes + p.row * sink.out.code_pitch + p.col * (N / 2), codes);
  std::uint8_t* const scales = sink.out.scales + sink.out.scale_offset(p.row, p.col);
  if constexpr (Runs == 2) {
    *reinterpret_cast<std::uint16_t*>(scales) = static_cast<std::uint16_t>(runs[0].scale | runs[1].scale << 8);
  } else {
    static_assert(Runs == 1);
    *scales = runs[0].scale;
  }
}
template <class S, class U, class T, int N, int Runs>
__device__ void store_runs(const decoded_sink<S, U>& sink, run_grid::place p, bool inside,
                           const element_run<T, N * Runs>& x, const stored_run<S, N> (&runs)[Runs],
                           const tensor_factors& back) {
  constexpr int words = N * static_cast<int>(sizeof(U)) / 4;
  std::uint32_t out[words * Runs];
#pragma unroll
  for (int j = 0; j < Runs; ++j) decode_run<S, U>(x.template slice<N>(j), runs[j], back, out + j * words);
  store_paired(inside ? reinterpret_cast<std::uint8_t*>(sink.out.at(p.row, p.col * N)) : nullptr, out);
}

// Raises *amax to the largest of a thread block's bits. Most thread blocks find it higher already, and ask no more.
__device__ inline void raise_amax(float* amax, std::uint32_t largest) {
  __shared__ std::uint32_t shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  largest = largest_of_warp(largest);
  if (threadIdx.x % 32 == 0) atomicMax(&shared, largest);
  __syncthreads();
  auto* const bits = reinterpret_cast<std::uint32_t*>(amax);
  if (threadIdx.x == 0 && shared > *static_cast<volatile std::uint32_t*>(bits)) atomicMax(bits, shared);
}

// `Runs` independent groups of neighbouring blocks a thread, whose loads are all under way before the first is used.
template <quantization_scheme S, rounding_mode R, class T, class Sink, int Runs, class Transform>
requires run_scheme<S, R> __global__ void __launch_bounds__(largest_thread_block)
    quantize_rows_kernel(const row_call<S, T, Transform> rows, const Sink sink) {
  constexpr int n = S::block::columns, adjacent = adjacent_runs<S, T>, width = n * adjacent;
  const quantize_call<S, T>& call = rows.call;
  const std::uint32_t span = blockDim.x * Runs;
  std::uint32_t first = blockIdx.x * span + threadIdx.x;
  using group = element_run<T, width>;
  const auto load = [&](std::uint32_t from, group(&x)[Runs]) {
#pragma unroll
    for (int g = 0; g < Runs; ++g) {
      const std::uint32_t i = from + g * blockDim.x;
      const auto place = rows.grid.at(i);
      if (i < rows.grid.count) x[g].load(call.in.data + place.row * call.in.row_stride + place.col * width);
    }
  };
  const float reference = load_reference(call);
  group x[Runs];
  load(first, x);
  const call_factors factors = share_factors<S>(call, reference, sink);
  std::uint32_t seen = 0;
  for (;;) {
    const std::uint32_t following = first + gridDim.x * span;
    const bool last = following - threadIdx.x >= rows.grid.count;
#pragma unroll
    for (int g = 0; g < Runs; ++g) {
      const std::uint32_t i = first + g * blockDim.x;
      stored_run<S, n> out[adjacent];
#pragma unroll
      for (int j = 0; j < adjacent; ++j) {
        std::uint32_t largest = 0;
        const auto part = x[g].template slice<n>(j);
        const auto& run = rows.transform(part, largest);
        out[j] = quantize_run<S, R, Transform::power>(
            run, largest, factors, rows.keys, std::uint64_t{i} * width + static_cast<unsigned>(j * n), rows.hidden);
        if (i < rows.grid.count) seen = larger(seen, out[j].amax);
      }
      const auto place = rows.grid.at(i);
      store_runs(sink, {place.row, place.col * adjacent}, i < rows.grid.count, x[g], out, factors.back);
    }
    if (last) break;
    load(following, x);
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

// Two groups a thread keep enough bytes under way; what is decoded again needs the registers for itself.
template <class Sink>
inline constexpr int runs_a_thread = Sink::decodes ? 1 : 2;

template <rounding_mode R, int Runs, class S, class T, class Sink, class Transform = no_transform>
void launch_rows(const cuda& executor, const char* what, const quantize_call<S, T>& call, const Sink& sink,
                 const Transform& transform = {}) {
  const index_t per_row = call.cols / (S::block::columns * adjacent_runs<S, T>), count = call.rows * per_row;
  const row_call<S, T, Transform> rows{
      call,
      {static_cast<std::uint32_t>(count), quick_divider(static_cast<std::uint32_t>(per_row))},
      transform,
      philox_keys(call.key),
      {}};
  const index_t blocks = ceil_div(count, index_t{executor.launch.threads} * Runs);
  if (call.amax != nullptr) clear_bytes(executor, "amax", call.amax, sizeof(float));
  launch(executor, what, &quantize_rows_kernel<S, R, T, Sink, Runs, Transform>, blocks, rows, sink);
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
