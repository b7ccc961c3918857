// CUDA's own narrow types (cuda_fp4.h, cuda_fp6.h, cuda_fp8.h, cuda_bf16.h, cuda_fp16.h) and this library's codes: the
// same bits, so each way is a cast and no conversion. Needs nvcc.
#pragma once

// CUDA 13.0's headers do not use all their parameters.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>
#include <type_traits>

#include "../number/formats.hpp"
#include "../number/value.hpp"
#include "../tensor/view.hpp"

namespace microscale::interop {

// CUDA's type for a format. `storage` is the member that holds its bits.
template <class Format>
struct cuda_type;
template <>
struct cuda_type<e2m1> {
  using type = __nv_fp4_e2m1;
};
template <>
struct cuda_type<e2m3> {
  using type = __nv_fp6_e2m3;
};
template <>
struct cuda_type<e3m2> {
  using type = __nv_fp6_e3m2;
};
template <>
struct cuda_type<e4m3> {
  using type = __nv_fp8_e4m3;
};
template <>
struct cuda_type<e5m2> {
  using type = __nv_fp8_e5m2;
};
template <>
struct cuda_type<e8m0> {
  using type = __nv_fp8_e8m0;
};
// CUDA has no unsigned E4M3: it is E4M3 whose sign bit is zero.
template <>
struct cuda_type<ue4m3> {
  using type = __nv_fp8_e4m3;
};

// A code as CUDA's type, and back. Bits above the format's own are zero in both.
template <class Format>
MICROSCALE_HD typename cuda_type<Format>::type to_cuda(typename Format::storage code) noexcept {
  typename cuda_type<Format>::type x;
  x.__x = code;
  return x;
}
template <class Format>
MICROSCALE_HD typename Format::storage from_cuda(typename cuda_type<Format>::type x) noexcept {
  return static_cast<typename Format::storage>(x.__x);
}

// A byte of packed E2M1 codes as CUDA's pair, and back: the first element in the low nibble in both.
MICROSCALE_HD inline __nv_fp4x2_e2m1 to_cuda_pair(std::uint8_t packed) noexcept {
  __nv_fp4x2_e2m1 x;
  x.__x = packed;
  return x;
}
MICROSCALE_HD inline std::uint8_t from_cuda_pair(__nv_fp4x2_e2m1 x) noexcept { return x.__x; }

// A matrix of CUDA's 16-bit floats as this library's view of the same memory. T is __nv_bfloat16 or __half, const or
// not.
template <class T>
auto matrix_of_cuda(T* data, index_t rows, index_t cols, index_t pitch) noexcept {
  using plain = std::remove_const_t<T>;
  static_assert(std::is_same_v<plain, __nv_bfloat16> || std::is_same_v<plain, __half>, "__nv_bfloat16 or __half");
  using element = value<std::conditional_t<std::is_same_v<plain, __half>, f16, bf16>>;
  static_assert(sizeof(element) == sizeof(plain) && alignof(element) == alignof(plain));
  using pointer = std::conditional_t<std::is_const_v<T>, const element*, element*>;
  return matrix(reinterpret_cast<pointer>(data), rows, cols, pitch);
}

}  // namespace microscale::interop
