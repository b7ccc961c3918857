// A vector register as a value: the small vocabulary in which the host's kernels are written, once for all
// instruction sets.
//
// lanes<T, Width> is one register of `Width` numbers, built on the vector extensions that g++ and clang share. Nothing
// here names an instruction set: a kernel is an always-inlined template over the width, and the function that it is
// inlined into says which instructions there are (simd_kernels.hpp). Copies are user-written so that a value is never
// passed in a register of an instruction set that only one of caller and callee was compiled for.
//
// Rounded operations cannot be contracted, reassociated or replaced by a reciprocal, whatever the flags: g++ sees each
// result only through an empty asm statement, and divisions as the instruction itself; clang is told by a pragma, which
// it keeps to for operators of the language.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../number/fp32.hpp"

#if defined(__clang__)
#pragma float_control(precise, on, push)
#elif defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // the host compiler's unroll pragma
#endif

namespace microscale::simd {

// A register of `Width` numbers T. Without a value given it holds anything.
template <class T, int Width>
struct lanes {
  typedef T vector __attribute__((vector_size(Width * sizeof(T))));  // NOLINT(modernize-use-using)
  static constexpr int width = Width;

  vector v;

  [[gnu::always_inline]] lanes() noexcept {}  // NOLINT(modernize-use-equals-default): `lanes{}` is not to be zeroed
  [[gnu::always_inline]] lanes(const lanes& other) noexcept : v(other.v) {}
  [[gnu::always_inline]] lanes& operator=(const lanes& other) noexcept {
    v = other.v;
    return *this;
  }

  // The same number in every lane.
  [[gnu::always_inline]] static lanes all(T x) noexcept {
    lanes r;
    r.v = x - vector{};  // not a sum, which would take the sign of -0
    return r;
  }
  // From and to memory of any alignment.
  [[gnu::always_inline]] static lanes load(const void* from) noexcept {
    lanes r;
    std::memcpy(&r.v, from, sizeof r.v);
    return r;
  }
  [[gnu::always_inline]] void store(void* to) const noexcept { std::memcpy(to, &v, sizeof v); }
};

template <int Width>
using floats = lanes<float, Width>;
template <int Width>
using words = lanes<std::int32_t, Width>;

namespace detail {

template <class Lanes>
[[gnu::always_inline]] inline void hide(Lanes& x) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  asm("" : "+v"(x.v));
#elif !defined(__clang__) && defined(__aarch64__)
  asm("" : "+w"(x.v));
#else
  static_cast<void>(x);
#endif
}

}  // namespace detail

// The bits of one type read as another.
template <class To, class T, int Width>
[[gnu::always_inline]] inline lanes<To, Width> as(const lanes<T, Width>& x) noexcept {
  static_assert(sizeof(To) == sizeof(T));
  lanes<To, Width> r;
  r.v = reinterpret_cast<typename lanes<To, Width>::vector>(x.v);
  return r;
}

// FP32: each result is rounded once.
template <int W>
[[gnu::always_inline]] inline floats<W> mul(const floats<W>& a, const floats<W>& b) noexcept {
  floats<W> r;
  r.v = a.v * b.v;
  detail::hide(r);
  return r;
}
template <int W>
[[gnu::always_inline]] inline floats<W> add(const floats<W>& a, const floats<W>& b) noexcept {
  floats<W> r;
  r.v = a.v + b.v;
  detail::hide(r);
  return r;
}
template <int W>
[[gnu::always_inline]] inline floats<W> sub(const floats<W>& a, const floats<W>& b) noexcept {
  floats<W> r;
  r.v = a.v - b.v;
  detail::hide(r);
  return r;
}
template <int W>
[[gnu::always_inline]] inline floats<W> div(const floats<W>& a, const floats<W>& b) noexcept {
  floats<W> r;
#if defined(__clang__)
  r.v = a.v / b.v;
#elif defined(__x86_64__)
  if constexpr (W > 4) {
    asm("{vdivps %2, %1, %0|vdivps %0, %1, %2}" : "=v"(r.v) : "v"(a.v), "v"(b.v));
  } else {
#if defined(__AVX__)
    asm("{vdivps %2, %1, %0|vdivps %0, %1, %2}" : "=v"(r.v) : "v"(a.v), "v"(b.v));
#else
    r.v = a.v;
    asm("{divps %1, %0|divps %0, %1}" : "+v"(r.v) : "v"(b.v));
#endif
  }
#elif defined(__aarch64__)
  asm("fdiv %0.4s, %1.4s, %2.4s" : "=w"(r.v) : "w"(a.v), "w"(b.v));
#else
  for (int i = 0; i < W; ++i) r.v[i] = fp32::div(a.v[i], b.v[i]);
#endif
  return r;
}

// By one number for all lanes. (Not the same as by all(b) to g++ 12, which builds such a register lane after lane where
// it has stored it in between.)
template <int W>
[[gnu::always_inline]] inline floats<W> mul(const floats<W>& a, float b) noexcept {
  floats<W> r;
  r.v = a.v * b;
  detail::hide(r);
  return r;
}

template <int W>
[[gnu::always_inline]] inline floats<W> div(const floats<W>& a, float b) noexcept {
  return div(a, floats<W>::all(b));
}

// a * Power + c for a power of two: the product is exact, so it does not matter whether it is fused. Not for products
// that are subnormal.
template <int W>
[[gnu::always_inline]] inline floats<W> scaled_sum(const floats<W>& a, float power, float c) noexcept {
  floats<W> r;
  r.v = a.v * power + c;
  return r;
}

// Integers.
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator+(const lanes<T, W>& a, const lanes<T, W>& b) noexcept
    requires(std::is_integral_v<T>) {
  lanes<T, W> r;
  r.v = a.v + b.v;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator-(const lanes<T, W>& a, const lanes<T, W>& b) noexcept
    requires(std::is_integral_v<T>) {
  lanes<T, W> r;
  r.v = a.v - b.v;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator&(const lanes<T, W>& a, const lanes<T, W>& b) noexcept {
  lanes<T, W> r;
  r.v = a.v & b.v;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator|(const lanes<T, W>& a, const lanes<T, W>& b) noexcept {
  lanes<T, W> r;
  r.v = a.v | b.v;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator^(const lanes<T, W>& a, const lanes<T, W>& b) noexcept {
  lanes<T, W> r;
  r.v = a.v ^ b.v;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator<<(const lanes<T, W>& a, int bits) noexcept {
  lanes<T, W> r;
  r.v = a.v << bits;
  return r;
}
// Arithmetic for signed numbers, logical for unsigned ones.
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator>>(const lanes<T, W>& a, int bits) noexcept {
  lanes<T, W> r;
  r.v = a.v >> bits;
  return r;
}
// Small numbers in the low bits of lanes. Each step doubles what a lane takes: that much is one instruction.
template <int W>
[[gnu::always_inline]] inline words<W> widened(const lanes<std::uint16_t, W>& x) noexcept {
  words<W> r;
  r.v = __builtin_convertvector(x.v, typename words<W>::vector);
  return r;
}
template <int W>
[[gnu::always_inline]] inline words<W> widened(const lanes<std::uint8_t, W>& x) noexcept {
  lanes<std::uint16_t, W> r;
  r.v = __builtin_convertvector(x.v, typename decltype(r)::vector);
  return widened(r);
}
template <int W>
[[gnu::always_inline]] inline words<W> smaller_of(const words<W>& a, const words<W>& b) noexcept {
  words<W> r;
  r.v = a.v < b.v ? a.v : b.v;
  return r;
}
template <int W>
[[gnu::always_inline]] inline words<W> smaller_of(const words<W>& a, std::int32_t b) noexcept {
  const typename words<W>::vector x = a.v, limit = b - typename words<W>::vector{};
  words<W> r;
  r.v = x < limit ? x : limit;
  return r;
}
template <int W>
[[gnu::always_inline]] inline words<W> larger_of(const words<W>& a, const words<W>& b) noexcept {
  words<W> r;
  r.v = a.v > b.v ? a.v : b.v;
  return r;
}
// All bits set where a == b.
template <int W>
[[gnu::always_inline]] inline words<W> equal(const words<W>& a, const words<W>& b) noexcept {
  words<W> r;
  r.v = a.v == b.v;
  return r;
}
// All bits set where a > b.
template <int W>
[[gnu::always_inline]] inline words<W> greater(const words<W>& a, const words<W>& b) noexcept {
  words<W> r;
  r.v = a.v > b.v;
  return r;
}
// Bits of `a` where the mask is set, of `b` elsewhere.
template <int W>
[[gnu::always_inline]] inline words<W> select(const words<W>& mask, const words<W>& a, const words<W>& b) noexcept {
  words<W> r;
  r.v = (a.v & mask.v) | (b.v & ~mask.v);
  return r;
}
template <int W>
[[gnu::always_inline]] inline words<W> all(std::uint32_t x) noexcept {
  return words<W>::all(static_cast<std::int32_t>(x));
}

// The smaller (larger) of numbers that are not negative and not NaN, by their bits.
template <int W>
[[gnu::always_inline]] inline floats<W> smaller_of(const floats<W>& a, float b) noexcept {
  return as<float>(smaller_of(as<std::int32_t>(a), static_cast<std::int32_t>(fp32::bits(b))));
}

// The low halves of 64-bit lanes multiplied to 64 bits.
template <int W>
[[gnu::always_inline]] inline lanes<std::uint64_t, W> wide_product(const lanes<std::uint64_t, W>& a,
                                                                   const lanes<std::uint64_t, W>& b) noexcept {
  lanes<std::uint64_t, W> r;
#if !defined(__clang__) && defined(__x86_64__)
#if !defined(__AVX__)
  if constexpr (W == 2) {
    r.v = a.v;
    asm("{pmuludq %1, %0|pmuludq %0, %1}" : "+v"(r.v) : "v"(b.v));
    return r;
  }
#endif
  asm("{vpmuludq %2, %1, %0|vpmuludq %0, %1, %2}" : "=v"(r.v) : "v"(a.v), "v"(b.v));
#else
  r.v = (a.v & 0xFFFFFFFFu) * (b.v & 0xFFFFFFFFu);
#endif
  return r;
}

// floored_zero + floor(a * power) + offset for a >= 0, a power of two and an integer, up to 2^22 above floored_zero;
// what is larger stays larger.
inline constexpr std::int32_t floored_zero = 0x4B000000;  // the bits of 2^23
template <class InstructionSet, int W>
[[gnu::always_inline]] inline words<W> floored(const floats<W>& a, float power, std::int32_t offset) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512) {  // one instruction, which says how it rounds
    const floats<W> by = floats<W>::all(power), start = floats<W>::all(0x1p23f + static_cast<float>(offset));
    floats<W> r = a;
    asm("{vfmadd213ps %{rd-sae%}, %2, %1, %0|vfmadd213ps %0, %1, %2, %{rd-sae%}}"
        : "+v"(r.v)
        : "v"(by.v), "v"(start.v));
    return as<std::int32_t>(r);
  }
#endif
  words<W> r;
  const floats<W> product = mul(smaller_of(a, 0x1p22f / power), floats<W>::all(power));
  r.v = __builtin_convertvector(product.v, typename words<W>::vector);
  return r + words<W>::all(floored_zero + offset);
}

// `x` moved up by `count` bits, the top `count` bits of `from` below it.
template <int W>
[[gnu::always_inline]] inline words<W> pushed(const words<W>& x, const words<W>& from, int count) noexcept {
  return (x << count) | as<std::int32_t>(as<std::uint32_t>(from) >> (32 - count));
}
template <class InstructionSet, int Count, int W>
[[gnu::always_inline]] inline words<W> pushed(const words<W>& x, const words<W>& from) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512) {
    words<W> r;
    asm("{vpshldd %3, %2, %1, %0|vpshldd %0, %1, %2, %3}" : "=v"(r.v) : "v"(x.v), "v"(from.v), "i"(Count));
    return r;
  }
#endif
  return pushed(x, from, Count);
}

// Whether any lane has any bit set.
template <int W>
[[gnu::always_inline]] inline bool any(const words<W>& x) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (W == 16) {
    bool found;
    asm("{vptestmd %1, %1, %%k1|vptestmd %%k1, %1, %1}\n\tkortestw %%k1, %%k1" : "=@ccnz"(found) : "v"(x.v) : "k1");
    return found;
  }
#endif
  std::uint64_t half[W / 2];
  x.store(half);
  std::uint64_t seen = half[0];
  for (int i = 1; i < W / 2; ++i) seen |= half[i];
  return seen != 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Moving lanes.

namespace detail {

template <class T, int W, int... Index>
[[gnu::always_inline]] inline lanes<T, W> shuffled(const lanes<T, W>& a, const lanes<T, W>& b,
                                                   std::integer_sequence<int, Index...>) noexcept {
  lanes<T, W> r;
#if defined(__clang__)
  r.v = __builtin_shufflevector(a.v, b.v, Index...);
#else
  r.v = __builtin_shuffle(a.v, b.v, typename lanes<std::int32_t, W>::vector{Index...});
#endif
  return r;
}

// Which lane of {a, b} lane `lane` of a shuffle takes.
enum class pattern {
  low_words,
  high_words,
  low_pairs,
  high_pairs,
  even_quads,
  odd_quads,
  first_words,
  last_words,
  first_pairs,
  last_pairs
};
constexpr int source(pattern p, int width, int lane) noexcept {
  const int quad = lane / 4 * 4, i = lane % 4;
  switch (p) {
    case pattern::low_words:
      return quad + i / 2 + (i % 2 == 0 ? 0 : width);
    case pattern::high_words:
      return quad + 2 + i / 2 + (i % 2 == 0 ? 0 : width);
    case pattern::low_pairs:
      return quad + i % 2 + (i < 2 ? 0 : width);
    case pattern::high_pairs:
      return quad + 2 + i % 2 + (i < 2 ? 0 : width);
    case pattern::even_quads:  // quads 0, 2 of a, then of b
    case pattern::odd_quads: {
      const int half = width / 2, from = lane % half;
      return (lane < half ? 0 : width) + from / 4 * 8 + from % 4 + (p == pattern::odd_quads ? 4 : 0);
    }
    case pattern::first_words:  // the whole of a and b interleaved, the first half of it
    case pattern::last_words:
      return (lane % 2 == 0 ? 0 : width) + lane / 2 + (p == pattern::last_words ? width / 2 : 0);
    case pattern::first_pairs:  // the same with pairs
    case pattern::last_pairs:
      return (i < 2 ? 0 : width) + quad / 2 + i % 2 + (p == pattern::last_pairs ? width / 2 : 0);
  }
  return 0;
}
template <pattern P, class T, int W, int... Lane>
[[gnu::always_inline]] inline lanes<T, W> moved(const lanes<T, W>& a, const lanes<T, W>& b,
                                                std::integer_sequence<int, Lane...>) noexcept {
  return shuffled(a, b, std::integer_sequence<int, source(P, W, Lane)...>{});
}
template <pattern P, class T, int W>
[[gnu::always_inline]] inline lanes<T, W> moved(const lanes<T, W>& a, const lanes<T, W>& b) noexcept {
  return moved<P>(a, b, std::make_integer_sequence<int, W>{});
}

}  // namespace detail

// Turns Width registers around: lane j of x[i] becomes lane i of x[j].
template <class T, int W>
[[gnu::always_inline]] inline void transpose(lanes<T, W> (&x)[W]) noexcept {
  using detail::moved;
  using detail::pattern;
  // 4 x 4 within each quad of lanes ...
#pragma GCC unroll 4
  for (int g = 0; g < W; g += 4) {
    const lanes<T, W> ab_low = moved<pattern::low_words>(x[g], x[g + 1]);
    const lanes<T, W> ab_high = moved<pattern::high_words>(x[g], x[g + 1]);
    const lanes<T, W> cd_low = moved<pattern::low_words>(x[g + 2], x[g + 3]);
    const lanes<T, W> cd_high = moved<pattern::high_words>(x[g + 2], x[g + 3]);
    x[g] = moved<pattern::low_pairs>(ab_low, cd_low);
    x[g + 1] = moved<pattern::high_pairs>(ab_low, cd_low);
    x[g + 2] = moved<pattern::low_pairs>(ab_high, cd_high);
    x[g + 3] = moved<pattern::high_pairs>(ab_high, cd_high);
  }
  // ... then quads among registers.
  if constexpr (W >= 8) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const lanes<T, W> low_even = moved<pattern::even_quads>(x[j], x[j + 4]);
      const lanes<T, W> low_odd = moved<pattern::odd_quads>(x[j], x[j + 4]);
      if constexpr (W == 8) {
        x[j] = low_even;
        x[j + 4] = low_odd;
      } else {
        const lanes<T, W> high_even = moved<pattern::even_quads>(x[j + 8], x[j + 12]);
        const lanes<T, W> high_odd = moved<pattern::odd_quads>(x[j + 8], x[j + 12]);
        x[j] = moved<pattern::even_quads>(low_even, high_even);
        x[j + 4] = moved<pattern::even_quads>(low_odd, high_odd);
        x[j + 8] = moved<pattern::odd_quads>(low_even, high_even);
        x[j + 12] = moved<pattern::odd_quads>(low_odd, high_odd);
      }
    }
  }
}

// The largest number of x[i] in lane i.
template <int W>
[[gnu::always_inline]] inline words<W> largest_of_each(const words<W> (&x)[W]) noexcept {
  using detail::moved;
  using detail::pattern;
  // The steps of a transpose, each of which halves what is left ...
  words<W> m[W / 4];
#pragma GCC unroll 4
  for (int i = 0; i < W / 4; ++i) {
    const words<W>&a = x[4 * i], &b = x[4 * i + 1], &c = x[4 * i + 2], &d = x[4 * i + 3];
    const words<W> ab = larger_of(moved<pattern::low_words>(a, b), moved<pattern::high_words>(a, b));
    const words<W> cd = larger_of(moved<pattern::low_words>(c, d), moved<pattern::high_words>(c, d));
    m[i] = larger_of(moved<pattern::low_pairs>(ab, cd), moved<pattern::high_pairs>(ab, cd));
  }
  // ... until each quad of lanes is that of one m.
  if constexpr (W >= 8) {
#pragma GCC unroll 2
    for (int left = W / 8; left > 0; left /= 2) {
#pragma GCC unroll 2
      for (int i = 0; i < left; ++i) {
        m[i] = larger_of(moved<pattern::even_quads>(m[2 * i], m[2 * i + 1]),
                         moved<pattern::odd_quads>(m[2 * i], m[2 * i + 1]));
      }
    }
  }
  return m[0];
}

// {a0, b0, a1, b1, ...}: the first and the second register of it.
template <class T, int W>
[[gnu::always_inline]] inline void interleave(lanes<T, W>& a, lanes<T, W>& b) noexcept {
  const lanes<T, W> first = detail::moved<detail::pattern::first_words>(a, b);
  b = detail::moved<detail::pattern::last_words>(a, b);
  a = first;
}
// {a0, a1, b0, b1, a2, a3, ...}
template <class T, int W>
[[gnu::always_inline]] inline void interleave_pairs(lanes<T, W>& a, lanes<T, W>& b) noexcept {
  const lanes<T, W> first = detail::moved<detail::pattern::first_pairs>(a, b);
  b = detail::moved<detail::pattern::last_pairs>(a, b);
  a = first;
}

}  // namespace microscale::simd

#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
