// Conversions as a GPU does them fast: the bits of number/format.hpp's, which every one of them is tested against.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "../number/format.hpp"
#include "../number/formats.hpp"
#include "../number/random.hpp"
#include "../tensor/view.hpp"

namespace microscale::detail::device {

template <class F>
concept small_minifloat = requires {
  F::exponent_bits;
  F::smallest_exponent;
}
&&F::bits <= 8 && F::mantissa_bits <= 4 && F::smallest_exponent >= -30 && F::bias >= 0;

// A matrix element as a float, but for NaN, of which any may come. See decoded_nan.
__device__ inline float load_float(float x) { return x; }
__device__ inline float load_float(value<bf16> x) { return fp32::from_bits(std::uint32_t{x.code()} << 16); }
__device__ inline float load_float(value<f16> x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.code()));
  return y;
}
// What to_float makes of a NaN that load_float gave: of a float itself, otherwise the quiet NaN, as decode has it.
template <class T>
__device__ float decoded_nan(float nan) {
  return std::is_same_v<T, float> ? nan : fp32::quiet_nan();
}

// fl(a * b + c), moved into [0, 1]; 0 for NaN.
__device__ inline float fma_saturated(float a, float b, float c) {
  float y;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
__device__ inline float fma_nearest(float a, float b, float c) {
  float y;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

// fl(|a| * b), one operation.
__device__ inline float mul_magnitude(float a, float b) {
  float y;
  asm("{\n\t.reg .f32 m;\n\tabs.f32 m, %1;\n\tmul.rn.f32 %0, m, %2;\n\t}" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// fl(|a| + |b|), one operation.
__device__ inline float add_magnitudes(float a, float b) {
  float y;
  asm("{\n\t.reg .f32 m, n;\n\tabs.f32 m, %1;\n\tabs.f32 n, %2;\n\tadd.rn.f32 %0, m, n;\n\t}"
      : "=f"(y)
      : "f"(a), "f"(b));
  return y;
}
// fl(1 / a) for 2^-126 <= a < 2^126: the steps that nvcc itself takes for rcp.rn.f32 there, without the branch to those
// that it takes elsewhere. Anything for other a.
inline constexpr std::uint32_t quick_reciprocal_from = 1u << 23, quick_reciprocal_to = 253u << 23;
__device__ inline float quick_reciprocal(float a) {
  float y;
  asm("{\n\t.reg .f32 n, r, e;\n\tneg.f32 n, %1;\n\trcp.approx.ftz.f32 r, %1;\n\tfma.rn.f32 e, n, r, 0f3F800000;\n\t"
      "fma.rn.f32 %0, e, r, r;\n\t}"
      : "=f"(y)
      : "f"(a));
  return y;
}
// The larger magnitudes of a and b, of each half where elements have 16 bits; NaN is above infinity, and infinity above
// all numbers. Signs come out at random.
template <class T>
__device__ std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
  std::uint32_t c;
  if constexpr (sizeof(T) == 4) {
    asm("{\n\t.reg .f32 x, y;\n\tmov.b32 x, %1;\n\tmov.b32 y, %2;\n\tmax.NaN.xorsign.abs.f32 x, x, y;\n\t"
        "mov.b32 %0, x;\n\t}"
        : "=r"(c)
        : "r"(a), "r"(b));
  } else if constexpr (std::is_same_v<T, value<bf16>>) {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
#else
  if constexpr (sizeof(T) == 4) {
    return larger(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu);
  } else {
    return __vmaxu2(a & 0x7FFF7FFFu, b & 0x7FFF7FFFu);
  }
#endif
}
// The bits of a where those of `mask` are set, and of b elsewhere, in one instruction.
__device__ inline std::uint32_t select_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) {
  std::uint32_t c;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(c) : "r"(a), "r"(b), "r"(mask));
  return c;
}
// Four bytes out of eight as __byte_perm takes them, but a selector of 8 + i takes the sign of byte i, eight times.
__device__ inline std::uint32_t byte_signs(std::uint32_t a, std::uint32_t b, std::uint32_t selectors) {
  std::uint32_t c;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(selectors));
  return c;
}
// x, of which the compiler knows nothing: so that it computes nothing of it ahead, which would occupy registers.
__device__ inline std::uint32_t opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
// a + b, rounded toward zero.
__device__ inline float add_toward_zero(float a, float b) {
  float y;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// A float as a matrix element, rounded to nearest even; NaN and overflow as from_float has them, but for the sign of a
// NaN, which is lost.
template <class T>
__device__ T store_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    std::uint16_t code;
    if constexpr (std::is_same_v<T, value<bf16>>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(x));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
    }
    return T::from_code(code);
  }
}

// F::decode(code) of a number. Small formats: the magnitude, moved to a binary32's place, is the value times
// 2^(bias - 127), subnormals included, so that one exact multiplication is left.
template <class F>
__device__ float decode_finite(typename F::storage code) {
  if constexpr (small_minifloat<F>) {
    const std::uint32_t magnitude = code & std::uint32_t{F::magnitude_mask};
    const float unscaled = fp32::from_bits(magnitude << (23 - F::mantissa_bits));
    float y = fp32::mul(unscaled, fp32::from_bits(static_cast<std::uint32_t>(254 - F::bias) << 23));
    if constexpr (F::has_sign) {
      y = fp32::from_bits(fp32::bits(y) | (code & std::uint32_t{F::sign_mask}) << (32 - F::bits));
    }
    return y;
  } else {
    return F::decode(code);
  }
}
// F::decode(code).
template <class F>
__device__ float decode_code(typename F::storage code) {
  if constexpr (small_minifloat<F> && (F::has_nan || F::has_infinity)) {
    if ((code & std::uint32_t{F::magnitude_mask}) > F::largest_code) return F::decode(code);
  }
  return decode_finite<F>(code);
}

// E2M1, the element of most schemes, has arithmetic of its own.
template <class F>
concept e2m1_layout = requires {
  requires F::exponent_bits == 2 && F::mantissa_bits == 1 && F::bias == 1;
}
&&F::largest_code == 7 && F::has_sign;

// 2^23 + the magnitude's code, as a float, for y >= 0 rounded to nearest even. Codes rise by 2 a unit up to 2, by 1 up
// to 4, by 1/2 up to 6. The three pieces are added onto 2^23, where a float counts integers: pieces that are full are
// integers, so the one that is not is rounded once, ties to even.
__device__ inline float e2m1_nearest_count(float y) {
  float count = fma_nearest(fma_saturated(y, 0.5f, 0.0f), 4.0f, 0x1p23f);
  count = fma_nearest(fma_saturated(y, 0.5f, -1.0f), 2.0f, count);
  return fp32::add(fma_saturated(y, 0.5f, -2.0f), count);
}
// The same for y < 8 as bits, where 6 to 8 give 7 or 8: between the values of E2M1 the code is the least of 2 y, y + 2
// and y / 2 + 4, and the least of what rounding makes of them is what rounding makes of the least.
__device__ inline std::uint32_t e2m1_nearest_bits(float y) {
  const std::uint32_t low = fp32::bits(fma_nearest(y, 2.0f, 0x1p23f));
  const std::uint32_t middle = fp32::bits(fp32::add(y, 0x1p23f + 2.0f));
  const std::uint32_t high = fp32::bits(fma_nearest(y, 0.5f, 0x1p23f + 4.0f));
  return smaller(smaller(low, middle), high);
}
inline constexpr std::uint32_t e2m1_count_bits = 0x4B000000u;  // of 2^23

// Stochastic modes of few bits, by what they add to r, in half units of r: 1 for the midpoint rule.
template <class R>
inline constexpr int adds_half_draws = -1;
template <int Bits>
inline constexpr int adds_half_draws<stochastic_midpoint<Bits>> = Bits <= 16 ? 1 : -1;
template <int Bits>
inline constexpr int adds_half_draws<stochastic_floor<Bits>> = Bits <= 16 ? 0 : -1;

// (e2m1_stochastic_base + the magnitude's code) * 2^22 + something below 2^22, for 0 <= y < 8 rounded by R; the code is
// 8 where y >= 6 was rounded away. y + max(y, 1) has the code in the lowest bits of its exponent and the top of its
// fraction and the remainder, in units of 2^-22 steps, below; what rounding toward zero drops of it, no mode of 16 bits
// sees. So the random number is added there, and its carry is the rounding.
template <rounding_mode R>
__device__ std::uint32_t e2m1_stochastic_sum(float y, std::uint32_t random) {
  constexpr int bits = R::random_bits;
  static_assert(adds_half_draws<R> >= 0 && bits <= 16);
  const float z = add_toward_zero(y, fp32::max_number(y, 1.0f));
  return fp32::bits(z) + ((2 * random + adds_half_draws<R>) << (21 - bits));
}
// That y + max(y, 1), but for its last bit, by multiply-adds alone: (y + 1) + 8 max(0, (y - 1) / 8). The last term is
// exact. From 1 on the sum is 2 y, and y + 1 rounded toward zero loses at most half of its last place, and only where
// that bit of 2 y is set; so what comes out is 2 y without it, and what no mode of 16 bits sees.
__device__ inline float e2m1_stochastic_float(float y) {
  float z;
  asm("{\n\t.reg .f32 s, t;\n\tfma.rn.sat.f32 s, %1, 0f3E000000, 0fBE000000;\n\tadd.rz.f32 t, %1, 0f3F800000;\n\t"
      "fma.rz.f32 %0, s, 0f41000000, t;\n\t}"
      : "=f"(z)
      : "f"(y));
  return z;
}
// The same for a mode of eight bits with byte `which` of `word` as the random number, and the code alone in the top
// byte: the sum above, four times as large, and what takes the base away, under the random number; `tail` is
// e2m1_stochastic_tail<R> and `four` 4. `z` is y + max(y, 1) by either way.
__device__ inline std::uint32_t e2m1_stochastic_top(float z, std::uint32_t word, int which, std::uint32_t tail,
                                                    std::uint32_t four) {
  // From the bottom 0, what R adds to the random byte, that byte, 2; in one instruction.
  const std::uint32_t addend = __byte_perm(word, tail, static_cast<unsigned>(0x5046 | which << 8));
  return fp32::bits(z) * four + addend;
}
template <class R>
inline constexpr std::uint32_t e2m1_stochastic_tail = 0x0200 | (adds_half_draws<R> == 1 ? 0x80 : 0);
inline constexpr std::uint32_t e2m1_stochastic_base = 0x3F800000u >> 22;

// The magnitude of a small format's code nearest to a magnitude that is not NaN, before saturation. Normal numbers
// round by an integer addition, which carries into the exponent as it should; below, adding a power of two whose last
// place is the format's step leaves the rounded count of steps in the low bits.
template <class F>
__device__ std::uint32_t nearest_magnitude(std::uint32_t magnitude) {
  constexpr int m = F::mantissa_bits;
  constexpr std::uint32_t first_normal = static_cast<std::uint32_t>(F::smallest_exponent + 127) << 23;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(F::smallest_exponent + 126) << m;
  constexpr std::uint32_t anchor = static_cast<std::uint32_t>(F::step_exponent + 23 + 127) << 23;
  const std::uint32_t normal =
      ((magnitude + ((magnitude >> (23 - m)) & 1u) + ((1u << (22 - m)) - 1u)) >> (23 - m)) - rebias;
  const std::uint32_t subnormal = fp32::bits(fp32::add(fp32::from_bits(magnitude), fp32::from_bits(anchor))) - anchor;
  return magnitude < first_normal ? subnormal : normal;
}

// F::encode(x, R{}, overflow::saturate, random).
template <class F, rounding_mode R>
__device__ typename F::storage encode_float(float x, std::uint32_t random) {
  if constexpr (!small_minifloat<F>) {
    return F::encode(x, R{}, overflow::saturate, random);
  } else {
    constexpr int m = F::mantissa_bits;
    const std::uint32_t magnitude = fp32::magnitude_bits(x);
    const std::uint32_t sign = F::has_sign ? fp32::bits(x) >> 31 << (F::bits - 1) : 0;
    std::uint32_t code;
    if constexpr (std::same_as<R, nearest_even> && e2m1_layout<F>) {
      code = fp32::bits(e2m1_nearest_count(fp32::from_bits(magnitude))) & 7u;
    } else if constexpr (e2m1_layout<F> && adds_half_draws<R> >= 0) {
      const float y = fp32::min_number(fp32::from_bits(magnitude), 6.0f);  // 6 for NaN
      code = (e2m1_stochastic_sum<R>(y, random) >> 22) - e2m1_stochastic_base;
    } else if constexpr (std::same_as<R, nearest_even>) {
      code = nearest_magnitude<F>(magnitude);
    } else {
      // The magnitude as an integer of 24 bits and the shift that leaves m + 1 of them (fewer for subnormals).
      const int exponent = static_cast<int>(magnitude >> 23);
      const std::uint32_t significand = (magnitude & 0x007FFFFFu) | (exponent != 0 ? 0x00800000u : 0u);
      const int effective = larger(exponent, F::smallest_exponent + 127);
      const int shift = smaller(23 - m + effective - larger(exponent, 1), 86);
      const std::uint32_t steps = significand >> smaller(shift, 31);
      remainder rest;
      const std::uint64_t top = std::uint64_t{significand} << 40;
      if (shift <= 24) {
        rest.fraction = top << (24 - shift);
      } else {
        rest.fraction = top >> (shift - 24);
        rest.sticky = rest.fraction << (shift - 24) != top;
      }
      code = (static_cast<std::uint32_t>(effective - F::smallest_exponent - 127) << m) + steps;
      if (R::away(rest, (code & 1u) != 0, fp32::is_negative(x), random)) ++code;
    }
    code = smaller(code, std::uint32_t{F::largest_code});  // saturating, from either side of an overflow
    if (magnitude > fp32::infinity_bits) {
      return static_cast<typename F::storage>(F::has_nan ? sign | F::nan_code : std::uint32_t{F::largest_code});
    }
    if (!F::has_sign && fp32::is_negative(x)) return 0;
    return static_cast<typename F::storage>(sign | code);
  }
}

// A scale format whose conversions are those above, for what a scale rule makes of a finite amax: numbers that are
// neither negative nor NaN, and codes of numbers.
template <class F>
struct amax_format : F {
  using F::encode;
  MICROSCALE_HD static typename F::storage encode(float x) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (small_minifloat<F>) {
      const std::uint32_t code = nearest_magnitude<F>(fp32::bits(x));
      return static_cast<typename F::storage>(smaller(code, std::uint32_t{F::largest_code}));
    }
#endif
    return F::encode(x);
  }
  MICROSCALE_HD static float decode(typename F::storage code) noexcept {
#if defined(__CUDA_ARCH__)
    return decode_finite<F>(code);
#else
    return F::decode(code);
#endif
  }
};
template <class S>
struct amax_scheme : S {
  using scale = amax_format<typename S::scale>;
};

// The largest of a whole warp's integers, in every lane. The instruction came with sm_80; nvcc compiles for less unless
// told otherwise, and has to get through.
template <class T>
__device__ T largest_of_warp(T x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int i = 16; i > 0; i /= 2) x = larger(x, __shfl_xor_sync(~0u, x, i));
  return x;
#else
  return __reduce_max_sync(~0u, x);
#endif
}

// One draw out of four words, without an index into them at run time, which would put them in memory.
template <int Bits>
__device__ std::uint32_t select_draw(const philox_words& words, unsigned j) {
  constexpr unsigned per_word = 32 / Bits;
  const unsigned w = j / per_word;
  const std::uint32_t low = w == 0 ? words.word[0] : words.word[1];
  const std::uint32_t high = w == 2 ? words.word[2] : words.word[3];
  const std::uint32_t word = w < 2 ? low : high;
  if constexpr (Bits == 32) {
    return word;
  } else {
    return (word >> (Bits * (j % per_word))) & ((1u << Bits) - 1u);
  }
}

}  // namespace microscale::detail::device
