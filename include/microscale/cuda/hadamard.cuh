// The Hadamard transform of runs along an axis, on the device: the sums of tensor/hadamard.hpp in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../tensor/hadamard.hpp"
#include "block.cuh"

namespace microscale {

namespace detail::device {

template <class T, class U>
struct hadamard_call {
  strided_matrix<const T> in;
  strided_matrix<U> out;
  block_grid grid;  // rows x chunks of 16
  index_t length;   // of a row along the transform
  int size;
  float factor;
  hadamard_signs signs;  // repeated, so that every thread finds its own 16
};

inline constexpr int hadamard_chunk = 16;
// A run of `size` elements lies in size / 16 neighbouring threads (in one thread where it is shorter). Chunks are laid
// out in groups of this many, the most that a run takes, so that every run sits in one warp.
inline constexpr int hadamard_threads = largest_hadamard / hadamard_chunk;
using hadamard_split = block_split<block<1, largest_hadamard>>;

template <class T, class U>
__global__ void __launch_bounds__(largest_thread_block) hadamard_kernel(const hadamard_call<T, U> call) {
  static_assert(hadamard_split::threads == hadamard_threads && hadamard_split::passes == 1);
  const block_team<hadamard_split> team(call.grid.order);
  // The lane that holds the chunk next to this one along the run.
  const int step_lane = call.grid.order == block_order::tiled ? hadamard_split::groups : 1;
  const std::uint32_t signs =
      static_cast<std::uint32_t>(call.signs.word[team.member / 4] >> (team.member % 4 * hadamard_chunk)) & 0xFFFFu;
  const index_t steps = count_thread_blocks<hadamard_split>(call.grid, index_t{blockDim.x});
#pragma unroll 1
  for (index_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const block_place place = place_of<hadamard_split>(call.grid, step, team.group);
    if (!place.inside) continue;
    const index_t k = place.col * largest_hadamard + team.member * hadamard_chunk;
    const int n = static_cast<int>(larger(index_t{0}, smaller(index_t{hadamard_chunk}, call.length - k)));
    float x[hadamard_chunk];
    load_chunk(call.in.at(place.row, k), call.in.k_stride, n, call.in.wide, x);
#pragma unroll
    for (int i = 0; i < hadamard_chunk; ++i) {
      x[i] = fp32::from_bits(fp32::bits(x[i]) ^ (signs >> i & 1u) << 31);
    }
#pragma unroll
    for (int stride = 1; stride < hadamard_chunk; stride *= 2) {
      if (stride < call.size) {
#pragma unroll
        for (int i = 0; i < hadamard_chunk; ++i) {
          if ((i & stride) == 0) {
            const float u = x[i], v = x[i + stride];
            x[i] = fp32::add(u, v);
            x[i + stride] = fp32::sub(u, v);
          }
        }
      }
    }
#pragma unroll 1
    for (int distance = 1; distance * hadamard_chunk < call.size; distance *= 2) {
      const bool upper = (team.member & distance) != 0;
#pragma unroll
      for (int i = 0; i < hadamard_chunk; ++i) {
        const float other = __shfl_xor_sync(team.mask, x[i], distance * step_lane);
        // u + v in the lower half, u - v in the upper one, where `other` is u.
        x[i] = upper ? fp32::sub(other, x[i]) : fp32::add(x[i], other);
      }
    }
#pragma unroll
    for (int i = 0; i < hadamard_chunk; ++i) x[i] = fp32::mul(x[i], call.factor);
    if (n > 0) store_chunk(call.out.at(place.row, k), call.out.k_stride, n, call.out.wide, x);
  }
}

}  // namespace detail::device

// Transforms each run of options.size elements along the chosen axis, as the host's hadamard_into does. `out` may be
// the same memory as `in` where the types are the same.
template <class T, matrix_element U>
requires matrix_element<std::remove_const_t<T>>
void hadamard_into(const cuda& executor, matrix_view<T> in, matrix_view<U> out, const hadamard_options& options = {}) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  const bool along_row = options.axis == axis::row;
  const index_t length = along_row ? in.cols : in.rows;
  detail::check_hadamard(options, length);
  detail::device::check_launch(executor.launch);
  if (in.empty()) return;
  detail::device::hadamard_call<element, U> call = {};
  call.in = detail::device::as_stored<const element>(in, options.axis);
  call.out = detail::device::as_stored(out, options.axis);
  call.grid = {along_row ? in.rows : in.cols, ceil_div(length, index_t{largest_hadamard}),
               along_row ? detail::device::block_order::row_major : detail::device::block_order::tiled};
  call.length = length;
  call.size = options.size;
  call.factor = hadamard_factor(options.size);
  for (int i = 0; i < largest_hadamard; ++i) {
    if (options.signs.negative(i % options.size)) call.signs.negate(i);
  }
  const index_t blocks =
      detail::device::count_thread_blocks<detail::device::hadamard_split>(call.grid, index_t{executor.launch.threads});
  detail::device::launch(executor, "Hadamard transform", &detail::device::hadamard_kernel<element, U>, blocks, call);
}

}  // namespace microscale
