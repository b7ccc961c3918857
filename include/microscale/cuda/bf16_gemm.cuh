// What layers in high precision need on the device: matrices rounded to BF16, and their product.
#pragma once

#include <string>
#include <type_traits>

#include "../tensor/options.hpp"
#include "block.cuh"

namespace microscale {

namespace detail::device {

inline constexpr int bf16_tile = 32;

// A thread block takes tiles, which it turns around in shared memory.
template <class T>
__global__ void __launch_bounds__(largest_thread_block)
    round_to_bf16_kernel(const matrix_view<const T> in, const matrix_view<value<bf16>> out, const bool turned) {
  __shared__ float tile[bf16_tile][bf16_tile + 1];
  const index_t tile_cols = ceil_div(in.cols, index_t{bf16_tile});
  for (index_t t = blockIdx.x; t < ceil_div(in.rows, index_t{bf16_tile}) * tile_cols; t += gridDim.x) {
    const index_t row = t / tile_cols * bf16_tile, col = (t - t / tile_cols * tile_cols) * bf16_tile;
    for (int i = static_cast<int>(threadIdx.x); i < bf16_tile * bf16_tile; i += static_cast<int>(blockDim.x)) {
      const int r = i / bf16_tile, c = i % bf16_tile;
      if (row + r < in.rows && col + c < in.cols) tile[r][c] = to_float(in(row + r, col + c));
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < bf16_tile * bf16_tile; i += static_cast<int>(blockDim.x)) {
      const int a = i / bf16_tile, b = i % bf16_tile;
      const int r = turned ? b : a, c = turned ? a : b;
      if (row + r >= in.rows || col + c >= in.cols) continue;
      out(turned ? col + c : row + r, turned ? row + r : col + c) = from_float<value<bf16>>(tile[r][c]);
    }
    __syncthreads();
  }
}

// A warp takes an output: each lane sums every 32nd product, then the lanes are added in pairs.
template <matrix_element T>
__global__ void __launch_bounds__(largest_thread_block)
    bf16_gemm_kernel(const matrix_view<const T> a, const matrix_view<const T> b, const matrix_view<float> c) {
  const index_t warps = blockDim.x / 32, lane = threadIdx.x % 32;
  for (index_t at = blockIdx.x * warps + threadIdx.x / 32; at < c.rows * c.cols; at += gridDim.x * warps) {
    const index_t i = at / c.cols, j = at - i * c.cols;
    float sum = 0.0f;
    for (index_t k = lane; k < a.cols; k += 32)
      sum = fp32::add(sum, fp32::mul(load_float(a(i, k)), load_float(b(j, k))));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = fp32::add(sum, __shfl_xor_sync(~0u, sum, distance));
    }
    if (lane == 0) c(i, j) = sum;
  }
}

template <class A>
void check_bf16_gemm(const matrix_view<A>& a, const matrix_view<A>& b, const matrix_view<float>& c) {
  check_matrix("GEMM operand A", a);
  check_matrix("GEMM operand B", b);
  check_matrix("GEMM output", c);
  if (a.cols != b.cols) fail("columns of B", std::to_string(a.cols), std::to_string(b.cols));
  if (c.rows != a.rows || c.cols != b.rows) {
    fail("shape of a GEMM output", shape_text(a.rows, b.rows), shape_text(c.rows, c.cols));
  }
}

}  // namespace detail::device

// `in`, or with axis::col its transpose, each element rounded to BF16.
template <readable_element T>
void round_to_bf16_into(const cuda& executor, matrix_view<T> in, matrix_view<value<bf16>> out, axis along = axis::row) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  const bool turned = along == axis::col;
  if (out.rows != (turned ? in.cols : in.rows) || out.cols != (turned ? in.rows : in.cols)) {
    detail::fail("output shape", detail::shape_text(turned ? in.cols : in.rows, turned ? in.rows : in.cols),
                 detail::shape_text(out.rows, out.cols));
  }
  if (in.empty()) return;
  constexpr index_t tile = detail::device::bf16_tile;
  detail::device::launch(executor, "rounding to BF16", &detail::device::round_to_bf16_kernel<element>,
                         ceil_div(in.rows, tile) * ceil_div(in.cols, tile), matrix_view<const element>(in), out,
                         turned);
}

// C = A B^T in FP32, A being m x k, B n x k. Every product is exact; the order of the sums is this kernel's own, the
// same for any launch. A plain kernel: cuBLAS (vendor_gemm.cuh has the overload for cuda_blas) is many times faster.
inline void bf16_gemm_into(const cuda& executor, matrix_view<const value<bf16>> a, matrix_view<const value<bf16>> b,
                           matrix_view<float> c) {
  detail::device::check_bf16_gemm(a, b, c);
  if (c.empty()) return;
  detail::device::launch(executor, "BF16 GEMM", &detail::device::bf16_gemm_kernel<value<bf16>>,
                         ceil_div(c.rows * c.cols, index_t{executor.launch.threads / 32}), a, b, c);
}

}  // namespace microscale
