// Which vector instructions the host's kernels may use: found out at run time, so that a program compiled for any
// processor of its architecture gets them from the headers alone.
#pragma once

namespace microscale {

// In order: each level is worth more than those before it on the architecture that has it. No result depends on it.
//   portable  plain C++, compiled for whatever the program is compiled for
//   neon      AArch64
//   avx2      x86-64 with AVX2 and FMA (Haswell, Zen and later)
//   avx512    x86-64 with AVX-512 F, BW, DQ, VL, VBMI, VBMI2 and VNNI (Ice Lake, Zen 4 and later)
enum class simd_level { portable, neon, avx2, avx512 };

// The best level of this machine; asked once, then remembered.
inline simd_level available_simd() noexcept {
#if defined(__aarch64__)
  return simd_level::neon;
#elif (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
  static const simd_level level = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni")) {
      return simd_level::avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return simd_level::avx2;
    return simd_level::portable;
  }();
  return level;
#else
  return simd_level::portable;
#endif
}

// `wanted` where this machine has it, else what it has. Where that is another architecture's level below its own best
// (neon on x86-64 with AVX2), the kernels are those of portable.
inline simd_level usable_simd(simd_level wanted) noexcept {
  const simd_level best = available_simd();
  return static_cast<int>(wanted) < static_cast<int>(best) ? wanted : best;
}

namespace detail {

// What the executor says about vector instructions.
template <class Executor>
simd_level simd_of(const Executor& executor) noexcept {
  if constexpr (requires { executor.simd; }) {
    return usable_simd(executor.simd);
  } else {
    return available_simd();
  }
}

}  // namespace detail

}  // namespace microscale
