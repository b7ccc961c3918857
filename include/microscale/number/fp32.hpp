// Binary32 arithmetic whose results no compiler flag can change.
//
// Scale rules are defined by the order of their FP32 operations, so each operation here is exactly one IEEE 754
// operation: never contracted into an FMA, never replaced by a reciprocal, never flushed on the device. On the host
// the operands and the result pass through an empty asm statement that the optimizer cannot see through, or the
// operation is the instruction itself; on the device PTX's own instructions are used because the intrinsics flush
// subnormals under -ftz=true. Classification and comparison work on the bits, which -ffast-math cannot fold away.
//
// Precondition of the rounded operations on the host: the thread rounds to nearest and does not flush subnormals
// (the default). Whole-tensor calls see to it themselves; see tensor/environment.hpp.
#pragma once

#include <cstdint>

#include "bits.hpp"
#include "config.hpp"

namespace microscale::fp32 {

inline constexpr std::uint32_t sign_bit = 0x80000000u;
inline constexpr std::uint32_t infinity_bits = 0x7F800000u;
inline constexpr std::uint32_t quiet_nan_bits = 0x7FC00000u;

namespace detail {

// Hides bits from the optimizer where it takes every float to be finite. There g++ (seen from 13 on) makes FLT_MAX of a
// constant NaN or infinity that meets another value; in bits that it cannot see it finds no such constant.
MICROSCALE_HD inline std::uint32_t opaque_where_finite(std::uint32_t b) noexcept {
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ && !defined(__CUDA_ARCH__)
  asm("" : "+r"(b));
#endif
  return b;
}

}  // namespace detail

MICROSCALE_HD constexpr std::uint32_t bits(float x) noexcept { return bit_cast<std::uint32_t>(x); }
MICROSCALE_HD constexpr float from_bits(std::uint32_t b) noexcept {
  return bit_cast<float>(__builtin_is_constant_evaluated() ? b : detail::opaque_where_finite(b));
}

// The bits of |x|. As integers they are ordered as the magnitudes are, with NaN on top.
MICROSCALE_HD constexpr std::uint32_t magnitude_bits(float x) noexcept { return bits(x) & ~sign_bit; }

MICROSCALE_HD constexpr bool is_nan(float x) noexcept { return magnitude_bits(x) > infinity_bits; }
MICROSCALE_HD constexpr bool is_infinite(float x) noexcept { return magnitude_bits(x) == infinity_bits; }
MICROSCALE_HD constexpr bool is_finite(float x) noexcept { return magnitude_bits(x) < infinity_bits; }
MICROSCALE_HD constexpr bool is_zero(float x) noexcept { return magnitude_bits(x) == 0; }
MICROSCALE_HD constexpr bool is_negative(float x) noexcept { return (bits(x) & sign_bit) != 0; }

MICROSCALE_HD constexpr float abs(float x) noexcept { return from_bits(magnitude_bits(x)); }
MICROSCALE_HD constexpr float negate(float x) noexcept { return from_bits(bits(x) ^ sign_bit); }
MICROSCALE_HD constexpr float copy_sign(float magnitude, float sign) noexcept {
  return from_bits(magnitude_bits(magnitude) | (bits(sign) & sign_bit));
}

inline constexpr float largest = 0x1.fffffep127f;    // FLT_MAX
inline constexpr float smallest_normal = 0x1p-126f;  // FLT_MIN

MICROSCALE_HD constexpr float infinity() noexcept { return from_bits(infinity_bits); }
MICROSCALE_HD constexpr float quiet_nan() noexcept { return from_bits(quiet_nan_bits); }

namespace detail {

// Hides a value from the optimizer, at no cost in instructions.
MICROSCALE_HD inline float opaque(float x) noexcept {
#if defined(__CUDA_ARCH__)
  return x;
#elif defined(__x86_64__)
  asm("" : "+x"(x));
  return x;
#elif defined(__aarch64__)
  asm("" : "+w"(x));
  return x;
#else
  volatile float hidden = x;
  return hidden;
#endif
}

// Quotient and square root by the instruction itself. Hiding the operands is not enough for these: under -ffast-math
// clang divides several numbers by one divisor through its reciprocal, and takes roots by rsqrtss.
MICROSCALE_HD inline float quotient(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return a / b;  // not used there
#elif defined(__AVX__)
  float r = 0.0f;
  asm("{vdivss %2, %1, %0|vdivss %0, %1, %2}" : "=x"(r) : "x"(a), "x"(b));
  return r;
#elif defined(__x86_64__)
  asm("{divss %1, %0|divss %0, %1}" : "+x"(a) : "x"(b));
  return a;
#elif defined(__aarch64__)
  float r = 0.0f;
  asm("fdiv %s0, %s1, %s2" : "=w"(r) : "w"(a), "w"(b));
  return r;
#else
  return opaque(opaque(a) / opaque(b));
#endif
}
MICROSCALE_HD inline float square_root(float a) noexcept {
#if defined(__CUDA_ARCH__)
  return a;  // not used there
#elif defined(__AVX__)
  float r = 0.0f;
  asm("{vsqrtss %1, %1, %0|vsqrtss %0, %1, %1}" : "=x"(r) : "x"(a));
  return r;
#elif defined(__x86_64__)
  float r = 0.0f;
  asm("{sqrtss %1, %0|sqrtss %0, %1}" : "=x"(r) : "x"(a));
  return r;
#elif defined(__aarch64__)
  float r = 0.0f;
  asm("fsqrt %s0, %s1" : "=w"(r) : "w"(a));
  return r;
#else
  return opaque(__builtin_sqrtf(opaque(a)));
#endif
}

// The same operations in constant evaluation, where an overflow, an underflow to zero or an invalid operation would be
// no constant expression although IEEE 754 defines its result. Both limits are midpoints between neighbours, and far
// enough from any other sum, product or quotient for binary64 to tell.
MICROSCALE_HD constexpr bool overflows(double x) noexcept { return x >= 0x1.ffffffp127 || x <= -0x1.ffffffp127; }
MICROSCALE_HD constexpr bool vanishes(double x) noexcept { return x <= 0x1p-150 && x >= -0x1p-150; }
MICROSCALE_HD constexpr float infinity_of(float sign) noexcept {
  return from_bits((bits(sign) & sign_bit) | infinity_bits);  // clang warns of any infinity() under -ffast-math
}
MICROSCALE_HD constexpr float constant_mul(float a, float b) noexcept {
  if (is_nan(a) || is_nan(b)) return quiet_nan();
  const float sign = from_bits(bits(a) ^ bits(b));
  if (is_infinite(a) || is_infinite(b)) {
    return is_zero(a) || is_zero(b) ? quiet_nan() : infinity_of(sign);
  }
  const double wide = static_cast<double>(a) * static_cast<double>(b);
  return overflows(wide) ? infinity_of(sign) : vanishes(wide) ? copy_sign(0.0f, sign) : a * b;
}
MICROSCALE_HD constexpr float constant_div(float a, float b) noexcept {
  if (is_nan(a) || is_nan(b)) return quiet_nan();
  const float sign = from_bits(bits(a) ^ bits(b));
  if (is_infinite(a)) return is_infinite(b) ? quiet_nan() : infinity_of(sign);
  if (is_infinite(b)) return copy_sign(0.0f, sign);
  if (is_zero(b)) return is_zero(a) ? quiet_nan() : infinity_of(sign);
  const double wide = static_cast<double>(a) / static_cast<double>(b);
  return overflows(wide) ? infinity_of(sign) : vanishes(wide) ? copy_sign(0.0f, sign) : a / b;
}
MICROSCALE_HD constexpr float constant_add(float a, float b) noexcept {
  if (is_nan(a) || is_nan(b)) return quiet_nan();
  if (is_infinite(a)) return is_infinite(b) && is_negative(a) != is_negative(b) ? quiet_nan() : a;
  if (is_infinite(b)) return b;
  return overflows(static_cast<double>(a) + static_cast<double>(b)) ? infinity_of(a) : a + b;
}

// A key whose unsigned order is the numeric order of the floats that are not NaN.
MICROSCALE_HD constexpr std::uint32_t order_key(float x) noexcept {
  const std::uint32_t b = bits(x);
  return (b & sign_bit) != 0 ? ~b : b | sign_bit;
}

}  // namespace detail

// fl(a * b)
MICROSCALE_HD constexpr float mul(float a, float b) noexcept {
  if (__builtin_is_constant_evaluated()) return detail::constant_mul(a, b);
#if defined(__CUDA_ARCH__)
  float r;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return detail::opaque(detail::opaque(a) * detail::opaque(b));
#endif
}

// fl(a / b); x / 0 and 0 / 0 as IEEE 754 says.
MICROSCALE_HD constexpr float div(float a, float b) noexcept {
  if (__builtin_is_constant_evaluated()) return detail::constant_div(a, b);
#if defined(__CUDA_ARCH__)
  float r;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return detail::quotient(a, b);
#endif
}

// fl(1 / a), on the device in fewer instructions than div.
MICROSCALE_HD constexpr float reciprocal(float a) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float r;
    asm("rcp.rn.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
  }
#endif
  return div(1.0f, a);
}

// fl(a + b)
MICROSCALE_HD constexpr float add(float a, float b) noexcept {
  if (__builtin_is_constant_evaluated()) return detail::constant_add(a, b);
#if defined(__CUDA_ARCH__)
  float r;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return detail::opaque(detail::opaque(a) + detail::opaque(b));
#endif
}

// fl(a - b); on the device in one operation.
MICROSCALE_HD constexpr float sub(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float r;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  return add(a, negate(b));
}

// fl(sqrt(a)); not for constant evaluation.
MICROSCALE_HD inline float sqrt(float a) noexcept {
#if defined(__CUDA_ARCH__)
  float r;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
#else
  return detail::square_root(a);
#endif
}

// a < b for numbers; a NaN has no place in this order. Zeros of both signs are equal.
MICROSCALE_HD constexpr bool less(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    int r;
    asm("{\n\t.reg .pred p;\n\tsetp.lt.f32 p, %1, %2;\n\tselp.s32 %0, 1, 0, p;\n\t}" : "=r"(r) : "f"(a), "f"(b));
    return r != 0;
  }
#endif
  return !(is_zero(a) && is_zero(b)) && detail::order_key(a) < detail::order_key(b);
}

// The smaller (larger) number, -0 being smaller than +0; a NaN yields to the other argument (C's fminf and fmaxf).
MICROSCALE_HD constexpr float min_number(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float r;
    asm("min.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return detail::order_key(b) < detail::order_key(a) ? b : a;
}
MICROSCALE_HD constexpr float max_number(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float r;
    asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return detail::order_key(a) < detail::order_key(b) ? b : a;
}

// x moved into [low, high]; a NaN stays a NaN.
MICROSCALE_HD constexpr float clamp(float x, float low, float high) noexcept {
  if (is_nan(x)) return x;
  return less(x, low) ? low : less(high, x) ? high : x;
}

}  // namespace microscale::fp32
