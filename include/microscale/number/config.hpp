// The one annotation of the library, and its version.
#pragma once

// Marks a function that host and device code may both call. It is empty for compilers that know no CUDA, and the
// only macro that the library defines.
#if defined(__CUDACC__)
#define MICROSCALE_HD __host__ __device__
#else
#define MICROSCALE_HD
#endif

namespace microscale {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

}  // namespace microscale
