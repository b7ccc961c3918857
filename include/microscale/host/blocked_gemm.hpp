// A blocked FP32 GEMM for decoded operands: C = alpha A B^T with A m x k and B n x k, both row-major.
//
// Each output is summed over k in order by one thread, so the result does not depend on tiling or threads; it does
// depend on whether the processor fuses multiplies and adds. It is the `vendor` accumulation where no BLAS is linked.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "../tensor/executor.hpp"
#include "simd_level.hpp"

namespace microscale::detail {

// f(0), ..., f(N - 1) with constant arguments, so that arrays indexed by them live in registers.
template <class F, int... Index>
[[gnu::always_inline]] inline void unrolled(std::integer_sequence<int, Index...>, F f) {
  (f(Index), ...);
}

// Rows x (Vectors * Lanes) outputs, kept in registers: `a` holds Rows rows `a_pitch` apart, `b` a panel of k runs of
// Vectors * Lanes columns.
template <int Rows, int Vectors, int Lanes>
[[gnu::always_inline]] inline void gemm_tile(const float* a, index_t a_pitch, const float* b, index_t k, float alpha,
                                             float* out) {
  using lanes __attribute__((vector_size(Lanes * sizeof(float)), aligned(sizeof(float)))) = float;
  constexpr std::make_integer_sequence<int, Rows> rows;
  constexpr std::make_integer_sequence<int, Vectors> vectors;
  lanes sum[Rows][Vectors] = {};
  for (index_t i = 0; i < k; ++i) {
    const lanes* column = reinterpret_cast<const lanes*>(b + i * Vectors * Lanes);
    lanes right[Vectors];
    unrolled(
        vectors, [&](int v) __attribute__((always_inline)) { right[v] = column[v]; });
    unrolled(
        rows, [&](int r) __attribute__((always_inline)) {
          const float left = a[r * a_pitch + i];
          unrolled(
              vectors, [&](int v) __attribute__((always_inline)) { sum[r][v] += left * right[v]; });
        });
  }
  unrolled(
      rows, [&](int r) __attribute__((always_inline)) {
        lanes* row = reinterpret_cast<lanes*>(out + index_t{r} * Vectors * Lanes);
        unrolled(
            vectors, [&](int v) __attribute__((always_inline)) { row[v] = sum[r][v] * alpha; });
      });
}

inline constexpr int gemm_rows_per_tile = 6;
inline constexpr int gemm_largest_panel = 64;

#if defined(__x86_64__)
[[gnu::target("avx512f"), gnu::noinline]] inline void gemm_tile_avx512(const float* a, index_t pitch, const float* b,
                                                                       index_t k, float alpha, float* out) {
  gemm_tile<gemm_rows_per_tile, 4, 16>(a, pitch, b, k, alpha, out);
}
[[gnu::target("avx2,fma"), gnu::noinline]] inline void gemm_tile_avx2(const float* a, index_t pitch, const float* b,
                                                                      index_t k, float alpha, float* out) {
  gemm_tile<gemm_rows_per_tile, 2, 8>(a, pitch, b, k, alpha, out);
}
#endif
[[gnu::noinline]] inline void gemm_tile_baseline(const float* a, index_t pitch, const float* b, index_t k, float alpha,
                                                 float* out) {
  gemm_tile<gemm_rows_per_tile, 2, 4>(a, pitch, b, k, alpha, out);
}

struct gemm_kernel {
  void (*tile)(const float*, index_t, const float*, index_t, float, float*);
  int columns;  // of a panel
};

inline gemm_kernel select_gemm_kernel([[maybe_unused]] simd_level level) noexcept {
#if defined(__x86_64__)
  if (level == simd_level::avx512) return {gemm_tile_avx512, 64};
  if (level == simd_level::avx2) return {gemm_tile_avx2, 16};
#endif
  return {gemm_tile_baseline, 8};
}

// The floats of scratch memory that one thread needs.
inline index_t gemm_scratch(index_t k) noexcept {
  return gemm_largest_panel * k + gemm_rows_per_tile * k + index_t{gemm_rows_per_tile} * gemm_largest_panel;
}

inline void copy_floats(const float* from, index_t count, float* to) noexcept {
  if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

// Columns [first, last) of C, in panels of the kernel's width.
inline void gemm_f32_columns(const gemm_kernel& kernel, const matrix_view<const float>& a,
                             const matrix_view<const float>& b, const matrix_view<float>& c, float alpha, index_t first,
                             index_t last) {
  const index_t k = a.cols, width = kernel.columns;
  std::vector<float> scratch(static_cast<std::size_t>(gemm_scratch(k)));
  float* const panel = scratch.data();
  float* const edge = panel + gemm_largest_panel * k;
  float* const tile = edge + gemm_rows_per_tile * k;
  for (index_t j = first; j < last; j += width) {
    const index_t columns = smaller(width, last - j);
    for (index_t v = 0; v < width; ++v) {
      if (v < columns) {
        const float* source = b.data + (j + v) * b.pitch;
        for (index_t i = 0; i < k; ++i) panel[i * width + v] = source[i];
      } else {
        for (index_t i = 0; i < k; ++i) panel[i * width + v] = 0.0f;
      }
    }
    for (index_t i = 0; i < a.rows; i += gemm_rows_per_tile) {
      const index_t rows = smaller(index_t{gemm_rows_per_tile}, a.rows - i);
      const float* left = a.data + i * a.pitch;
      index_t pitch = a.pitch;
      if (rows < gemm_rows_per_tile) {  // the last rows, padded with zeros
        for (index_t r = 0; r < rows; ++r) copy_floats(left + r * a.pitch, k, edge + r * k);
        for (index_t n = rows * k; n < gemm_rows_per_tile * k; ++n) edge[n] = 0.0f;
        left = edge;
        pitch = k;
      }
      kernel.tile(left, pitch, panel, k, alpha, tile);
      for (index_t r = 0; r < rows; ++r) copy_floats(tile + r * width, columns, c.data + (i + r) * c.pitch + j);
    }
  }
}

// C = alpha A B^T.
template <host_executor Executor>
void gemm_f32(const Executor& executor, const matrix_view<const float>& a, const matrix_view<const float>& b,
              const matrix_view<float>& c, float alpha) {
  const gemm_kernel kernel = select_gemm_kernel(simd_of(executor));
  const index_t panel = kernel.columns;
  run_ranges(executor, ceil_div(c.cols, panel), panel * a.cols * a.rows, [&](index_t first, index_t last) {
    gemm_f32_columns(kernel, a, b, c, alpha, first * panel, smaller(last * panel, c.cols));
  });
}

}  // namespace microscale::detail
