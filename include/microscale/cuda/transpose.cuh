// Turning quantized matrices around on the device: the bytes of tensor/quantized.hpp's transpose_into.
#pragma once

#include "../tensor/quantized.hpp"
#include "block.cuh"

namespace microscale {

namespace detail::device {

// A thread gathers 8 codes, which fill whole bytes whatever their width, down a column of `in`.
inline constexpr int transpose_chunk = 8;

template <square_scheme S>
__global__ void __launch_bounds__(largest_thread_block)
    transpose_kernel(const quantized_view<const S> in, const quantized_view<S> out) {
  using element = typename S::element;
  const index_t first = blockIdx.x * index_t{blockDim.x} + threadIdx.x, step = index_t{gridDim.x} * blockDim.x;
  // Neighbouring threads read neighbouring columns.
  for (index_t at = first; at < out.rows * ceil_div(out.cols, index_t{transpose_chunk}); at += step) {
    const index_t r = at % out.rows, k = at / out.rows * transpose_chunk;
    const int n = static_cast<int>(smaller(index_t{transpose_chunk}, out.cols - k));
    packed_chunk<element, transpose_chunk> codes;
#pragma unroll
    for (int i = 0; i < transpose_chunk; ++i) {
      if (i < n) codes.put(i, in.code(k + i, r));
    }
    codes.store(out.codes + r * out.code_pitch + k * element::bits / 8, n, false);
  }
  index_t block_rows = out.block_rows(), block_cols = out.block_cols();
  if (out.layout == scale_layout::tile_128x4) {
    block_rows = round_up(block_rows, tile_rows);
    block_cols = round_up(block_cols, tile_columns);
  }
  for (index_t at = first; at < block_rows * block_cols; at += step) {
    const index_t r = at / block_cols, c = at - r * block_cols;
    const bool is_block = r < out.block_rows() && c < out.block_cols();
    out.scales[out.scale_offset(r, c)] = is_block ? in.scales[in.scale_offset(c, r)] : 0;
  }
  if constexpr (S::has_tensor_scale) {
    for (index_t at = first; at < out.tile_rows() * out.tile_cols(); at += step) {
      const index_t i = at / out.tile_cols(), j = at - i * out.tile_cols();
      out.datum[at] = in.datum[j * in.tile_cols() + i];
    }
  }
}

}  // namespace detail::device

// The transpose of a tensor whose blocks are square, as the host's transpose_into makes it.
template <square_scheme S>
void transpose_into(const cuda& executor, quantized_view<const S> in, quantized_view<S> out) {
  detail::check_transposed(in, out);
  detail::device::check_launch(executor.launch);
  const index_t chunks = out.rows * ceil_div(out.cols, index_t{detail::device::transpose_chunk});
  const index_t blocks = larger(index_t{1}, ceil_div(chunks, index_t{executor.launch.threads}));
  detail::device::launch(executor, "transpose", &detail::device::transpose_kernel<S>, blocks, in, out);
}

}  // namespace microscale
