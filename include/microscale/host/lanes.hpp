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
  // A register to begin with: g++ 12 would build one from all(0) lane after lane.
  [[gnu::always_inline]] static lanes zero() noexcept {
    lanes r;
    r.v = vector{};
    detail::hide(r);
    return r;
  }
  // From and to memory of any alignment.
  [[gnu::always_inline]] static lanes load(const void* from) noexcept {
    lanes r;
    std::memcpy(&r.v, from, sizeof r.v);
    return r;
  }
  [[gnu::always_inline]] void store(void* to) const noexcept { std::memcpy(to, &v, sizeof v); }
  // To memory that is aligned to the register, past the caches where has_streams; others see it after a fence().
  [[gnu::always_inline]] void stream(void* to) const noexcept {
    typedef T target __attribute__((vector_size(Width * sizeof(T)), may_alias));  // NOLINT(modernize-use-using)
#if defined(__clang__)
    __builtin_nontemporal_store(v, static_cast<target*>(to));
#elif defined(__x86_64__) && !defined(__AVX__)
    if constexpr (sizeof v > 16) {
      asm("{vmovntps %1, %0|vmovntps %0, %1}" : "=m"(*static_cast<target*>(to)) : "v"(v));
    } else {
      asm("{movntps %1, %0|movntps %0, %1}" : "=m"(*static_cast<target*>(to)) : "v"(v));
    }
#elif defined(__x86_64__)
    asm("{vmovntps %1, %0|vmovntps %0, %1}" : "=m"(*static_cast<target*>(to)) : "v"(v));
#else
    *static_cast<target*>(to) = v;
#endif
  }
};

// Whether streamed registers pass the caches.
#if defined(__x86_64__)
inline constexpr bool has_streams = true;
#else
inline constexpr bool has_streams = false;
#endif

// Orders what was streamed before what is stored after.
inline void fence() noexcept {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

template <int Width>
using floats = lanes<float, Width>;
template <int Width>
using doubles = lanes<double, Width>;
template <int Width>
using words = lanes<std::int32_t, Width>;

// One number of memory, of any alignment, in every lane.
template <class InstructionSet, class T, int W>
[[gnu::always_inline]] inline lanes<T, W> spread(const void* from) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512 && sizeof(T) == 8) {
    typedef T number __attribute__((may_alias, aligned(1)));  // NOLINT(modernize-use-using)
    lanes<T, W> r;
    asm("{vpbroadcastq %1, %0|vpbroadcastq %0, %1}" : "=v"(r.v) : "m"(*static_cast<const number*>(from)));
    return r;
  }
#endif
  T x{};
  std::memcpy(&x, from, sizeof x);
  return lanes<T, W>::all(x);
}

// The bits of one type read as another.
template <class To, class T, int Width>
[[gnu::always_inline]] inline lanes<To, Width> as(const lanes<T, Width>& x) noexcept {
  static_assert(sizeof(To) == sizeof(T));
  lanes<To, Width> r;
  r.v = reinterpret_cast<typename lanes<To, Width>::vector>(x.v);
  return r;
}

// FP32, and these three also binary64: each result is rounded once.
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> mul(const lanes<T, W>& a, const lanes<T, W>& b) noexcept
    requires(std::is_floating_point_v<T>) {
  lanes<T, W> r;
  r.v = a.v * b.v;
  detail::hide(r);
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> add(const lanes<T, W>& a, const lanes<T, W>& b) noexcept
    requires(std::is_floating_point_v<T>) {
  lanes<T, W> r;
  r.v = a.v + b.v;
  detail::hide(r);
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> sub(const lanes<T, W>& a, const lanes<T, W>& b) noexcept
    requires(std::is_floating_point_v<T>) {
  lanes<T, W> r;
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

// a * signs + b, for signs of 1 and -1: the product is exact, as above.
template <int W>
[[gnu::always_inline]] inline floats<W> signed_sum(const floats<W>& a, const floats<W>& signs,
                                                   const floats<W>& b) noexcept {
  floats<W> r;
  r.v = a.v * signs.v + b.v;
  detail::hide(r);
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
// With one number for all lanes (see mul).
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator^(const lanes<T, W>& a, T b) noexcept {
  lanes<T, W> r;
  r.v = a.v ^ b;
  return r;
}
template <class T, int W>
[[gnu::always_inline]] inline lanes<T, W> operator+(const lanes<T, W>& a, T b) noexcept
    requires(std::is_integral_v<T>) {
  lanes<T, W> r;
  r.v = a.v + b;
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
template <int W>
[[gnu::always_inline]] inline doubles<W> widened(const floats<W>& x) noexcept {
  doubles<W> r;
  r.v = __builtin_convertvector(x.v, typename doubles<W>::vector);
  return r;
}
// Numbers of 8 or 16 bits in the low bits of lanes. Sixteen lanes are AVX-512's, where g++ 12 would take seven
// instructions; elsewhere each step doubles what a lane takes, which is one instruction.
template <class T, int W>
[[gnu::always_inline]] inline words<W> widened(const lanes<T, W>& x) noexcept requires(std::is_integral_v<T>) {
  words<W> r;
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (W == 16 && sizeof(T) == 2) {
    asm("{vpmovzxwd %1, %0|vpmovzxwd %0, %1}" : "=v"(r.v) : "v"(x.v));
    return r;
  } else if constexpr (W == 16) {
    asm("{vpmovzxbd %1, %0|vpmovzxbd %0, %1}" : "=v"(r.v) : "v"(x.v));
    return r;
  }
#endif
  if constexpr (sizeof(T) == 2) {
    r.v = __builtin_convertvector(x.v, typename words<W>::vector);
    return r;
  } else {
    lanes<std::uint16_t, W> halves;
    halves.v = __builtin_convertvector(x.v, typename decltype(halves)::vector);
    return widened(halves);
  }
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
// Of numbers that are neither NaN nor zeros of different signs.
template <int W>
[[gnu::always_inline]] inline doubles<W> larger_of(const doubles<W>& a, const doubles<W>& b) noexcept {
  doubles<W> r;
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

// The smaller (larger) of numbers that are not negative. A NaN in `a` counts as more than any number, in `b` it may not
// be.
template <int W>
[[gnu::always_inline]] inline floats<W> smaller_of(const floats<W>& a, const floats<W>& b) noexcept {
#if defined(__clang__) || !defined(__x86_64__)
  return as<float>(smaller_of(as<std::int32_t>(a), as<std::int32_t>(b)));
#else
  floats<W> r = a;
#if !defined(__AVX__)
  if constexpr (W == 4) {
    asm("{minps %1, %0|minps %0, %1}" : "+v"(r.v) : "v"(b.v));
    return r;
  }
#endif
  asm("{vminps %1, %0, %0|vminps %0, %0, %1}" : "+v"(r.v) : "v"(b.v));
  return r;
#endif
}
template <int W>
[[gnu::always_inline]] inline floats<W> smaller_of(const floats<W>& a, float b) noexcept {
  return smaller_of(a, floats<W>::all(b));
}
// The smaller of |a| and a number above zero.
template <class InstructionSet, int W>
[[gnu::always_inline]] inline floats<W> smaller_magnitude(const floats<W>& a, float b) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512) {
    floats<W> r;
    asm("{vrangeps $10, %2, %1, %0|vrangeps %0, %1, %2, 10}" : "=v"(r.v) : "v"(a.v), "v"(floats<W>::all(b).v));
    return r;
  }
#endif
  return smaller_of(as<float>(as<std::int32_t>(a) & all<W>(~fp32::sign_bit)), b);
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

// 2^23 + floor(a * power) + offset for a >= 0, a power of two and an integer, where the sum is below 2^24: the low bits
// of it are the integer.
template <class InstructionSet, int W>
[[gnu::always_inline]] inline floats<W> floored(const floats<W>& a, float power, std::int32_t offset) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512) {  // one instruction, which says how it rounds
    const floats<W> by = floats<W>::all(power), start = floats<W>::all(0x1p23f + static_cast<float>(offset));
    floats<W> r = a;
    asm("{vfmadd213ps %{rd-sae%}, %2, %1, %0|vfmadd213ps %0, %1, %2, %{rd-sae%}}"
        : "+v"(r.v)
        : "v"(by.v), "v"(start.v));
    return r;
  }
#endif
  words<W> r;
  const floats<W> product = mul(a, floats<W>::all(power));
  r.v = __builtin_convertvector(product.v, typename words<W>::vector);
  return as<float>(r + words<W>::all(static_cast<std::int32_t>(fp32::bits(0x1p23f)) + offset));
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

// `x` moved down by `Count` bits, the low `Count` bits of `from` above it.
template <class InstructionSet, int Count, int W>
[[gnu::always_inline]] inline words<W> pushed_on_top(const words<W>& x, const words<W>& from) noexcept {
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512) {
    words<W> r;
    asm("{vpshrdd %3, %2, %1, %0|vpshrdd %0, %1, %2, %3}" : "=v"(r.v) : "v"(x.v), "v"(from.v), "i"(Count));
    return r;
  }
#endif
  return as<std::int32_t>(as<std::uint32_t>(x) >> Count) | (from << (32 - Count));
}

// x + Factor * y, for y >= 0 of so many bits.
template <class InstructionSet, int Bits, int Factor, int W>
[[gnu::always_inline]] inline words<W> added(const words<W>& x, const words<W>& y) noexcept {
  static_assert(Factor == 1 || Factor == 2);
#if !defined(__clang__) && defined(__x86_64__)
  if constexpr (InstructionSet::avx512 && Bits <= 8 && Factor > 1) {
    words<W> r = x;
    asm("{vpdpbusd %2, %1, %0|vpdpbusd %0, %1, %2}" : "+v"(r.v) : "v"(y.v), "v"(all<W>(Factor).v));
    return r;
  }
#endif
  return x + (y << (Factor - 1));
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
  using index =
      std::conditional_t<sizeof(T) == 1, std::int8_t, std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>>;
  r.v = __builtin_shuffle(a.v, b.v, typename lanes<index, W>::vector{static_cast<index>(Index)...});
#endif
  return r;
}

// Which lane of {a, b} lane `lane` of a shuffle takes.
enum class pattern {
  even_words,
  odd_words,
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
    case pattern::even_words:  // of a, then of b
    case pattern::odd_words:
      return quad + i % 2 * 2 + (p == pattern::odd_words ? 1 : 0) + (i < 2 ? 0 : width);
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

namespace detail {

// Lanes l of `a` where l has no bit of Stride, else of `b`; and in the other, their neighbours Stride away.
template <int Stride, class T, int W, int... Lane>
[[gnu::always_inline]] inline lanes<T, W> kept(const lanes<T, W>& a, const lanes<T, W>& b,
                                               std::integer_sequence<int, Lane...>) noexcept {
  return shuffled(a, b, std::integer_sequence<int, (Lane + ((Lane & Stride) != 0 ? W : 0))...>{});
}
template <int Stride, class T, int W, int... Lane>
[[gnu::always_inline]] inline lanes<T, W> crossed(const lanes<T, W>& a, const lanes<T, W>& b,
                                                  std::integer_sequence<int, Lane...>) noexcept {
  return shuffled(a, b, std::integer_sequence<int, ((Lane ^ Stride) + ((Lane & Stride) != 0 ? W : 0))...>{});
}

template <int Stride, int W, int N>
[[gnu::always_inline]] inline words<W> largest_of_each(const words<W> (&x)[N]) noexcept {
  if constexpr (N == 1) {
    return x[0];
  } else {
    constexpr std::make_integer_sequence<int, W> all_lanes;
    words<W> m[N / 2];
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; ++i) {
      const words<W>&a = x[2 * i], &b = x[2 * i + 1];
      m[i] = larger_of(kept<Stride>(a, b, all_lanes), crossed<Stride>(a, b, all_lanes));
    }
    return largest_of_each<2 * Stride>(m);
  }
}

}  // namespace detail

// The largest number of x[i] in lane i: each step leaves half as many registers, in which half as many lanes belong to
// one x[i].
template <int W>
[[gnu::always_inline]] inline words<W> largest_of_each(const words<W> (&x)[W]) noexcept {
  return detail::largest_of_each<1>(x);
}

// Lane l of the result is lane l ^ Stride.
template <int Stride, class T, int W>
[[gnu::always_inline]] inline lanes<T, W> exchanged(const lanes<T, W>& x) noexcept {
  return detail::crossed<Stride>(x, x, std::make_integer_sequence<int, W>{});
}

namespace detail {

template <int... Byte>
[[gnu::always_inline]] inline lanes<std::uint8_t, 64> words_of_nibbles(const lanes<std::uint8_t, 64>& x,
                                                                       std::integer_sequence<int, Byte...>) noexcept {
  return shuffled(x, x, std::integer_sequence<int, (Byte % 8 * 8 + Byte / 8 % 2 * 4 + Byte / 16)...>{});
}

}  // namespace detail

// The 16 x 8 nibbles of sixteen lanes turned around: nibble j of lane i becomes nibble i of 64-bit word j.
[[gnu::always_inline]] inline lanes<std::uint8_t, 64> words_of_nibbles(const words<16>& x) noexcept {
  // In each pair of lanes, the odd nibbles of the lower one change places with the even ones of the upper one: then
  // bytes are whole.
  lanes<std::uint64_t, 8> q;
  std::memcpy(&q.v, &x.v, sizeof q.v);
  const lanes<std::uint64_t, 8> t = ((q >> 28) ^ q) & lanes<std::uint64_t, 8>::all(0xF0F0F0F0u);
  q = q ^ t ^ (t << 28);
  lanes<std::uint8_t, 64> bytes;
  std::memcpy(&bytes.v, &q.v, sizeof q.v);
  return detail::words_of_nibbles(bytes, std::make_integer_sequence<int, 64>{});
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
