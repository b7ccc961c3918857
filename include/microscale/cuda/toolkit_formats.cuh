// Formats that convert from float through CUDA's own headers: cuda_fp4.h, cuda_fp6.h and cuda_fp8.h. On a target that
// has conversion instructions (FP4 and FP6 on sm_100a, sm_101a, sm_120a and their families; FP8 on sm_89 and later)
// those are what it takes; elsewhere, and on the host, the headers compute. They stand wherever the format that they
// derive from does, in schemes too, and give the same codes.
#pragma once

// The toolkit's headers do not compile without a warning.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#pragma GCC diagnostic pop

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "../number/format.hpp"
#include "../number/formats.hpp"

namespace microscale {

namespace detail {

template <class F>
inline constexpr bool is_toolkit_format = false;
template <>
inline constexpr bool is_toolkit_format<e2m1> = true;
template <>
inline constexpr bool is_toolkit_format<e2m3> = true;
template <>
inline constexpr bool is_toolkit_format<e3m2> = true;
template <>
inline constexpr bool is_toolkit_format<e4m3> = true;
template <>
inline constexpr bool is_toolkit_format<e5m2> = true;

template <class F>
MICROSCALE_HD typename F::storage convert_by_toolkit(float x) noexcept {
  if constexpr (std::is_same_v<F, e2m1>) {
    return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  } else if constexpr (std::is_same_v<F, e2m3>) {
    return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest);
  } else if constexpr (std::is_same_v<F, e3m2>) {
    return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest);
  } else {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, std::is_same_v<F, e4m3> ? __NV_E4M3 : __NV_E5M2);
  }
}

}  // namespace detail

// F = e2m1, e2m3, e3m2, e4m3 or e5m2. Nearest-even, saturating conversion of a float is the toolkit's; every other
// mode, type and overflow is F's own. A NaN gives F's code of a NaN; its sign, which the toolkit drops, is kept as F
// keeps it.
template <class F>
requires detail::is_toolkit_format<F>
struct toolkit_format : F {
  template <rounding_mode R = nearest_even, real_number T>
  MICROSCALE_HD static constexpr typename F::storage encode(T x, R rounding = {},
                                                            overflow on_overflow = overflow::saturate,
                                                            std::uint32_t random = 0) noexcept {
    if constexpr (std::same_as<R, nearest_even> && std::same_as<T, float>) {
      if (!__builtin_is_constant_evaluated() && on_overflow == overflow::saturate && !fp32::is_nan(x)) {
        return detail::convert_by_toolkit<F>(x);
      }
    }
    return F::encode(x, rounding, on_overflow, random);
  }
};

}  // namespace microscale
