// The largest magnitude of a matrix, on the device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../tensor/options.hpp"
#include "block.cuh"

namespace microscale {

namespace detail::device {

// Raises *amax to the largest of a thread block's magnitudes, which are ordered as their bits. Most thread blocks find
// it higher already, and ask no more.
__device__ inline void raise_amax(float* amax, std::uint32_t largest) {
  __shared__ std::uint32_t shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  largest = largest_of_warp(largest);
  if (threadIdx.x % 32 == 0) atomicMax(&shared, largest);
  __syncthreads();
  auto* const bits = reinterpret_cast<std::uint32_t*>(amax);
  if (threadIdx.x == 0 && shared > *static_cast<volatile std::uint32_t*>(bits)) atomicMax(bits, shared);
}

// Thread block by thread block over spans of a row, 16 elements a thread, threads next to each other in memory.
template <class T>
struct amax_call {
  const T* data;
  index_t rows;
  index_t cols;
  index_t pitch;
  bool wide;
  float* out;  // the maximum so far
};

template <class T>
inline constexpr int amax_elements = 16 / static_cast<int>(sizeof(T));  // of one access

template <class T>
__global__ void __launch_bounds__(largest_thread_block) amax_kernel(const amax_call<T> call) {
  constexpr int per_access = amax_elements<T>, accesses = 4;
  const index_t access_span = index_t{blockDim.x} * per_access, span = access_span * accesses;
  const index_t spans = ceil_div(call.cols, span);
  std::uint32_t largest = 0;
  const auto see = [&](float x) {
    const std::uint32_t m = fp32::magnitude_bits(x);
    if (m <= fp32::infinity_bits) largest = larger(largest, m);
  };
  for (index_t s = blockIdx.x; s < call.rows * spans; s += gridDim.x) {
    const index_t row = call.rows == 1 ? 0 : s / spans;
    const index_t first = (s - row * spans) * span + index_t{threadIdx.x} * per_access;
    const T* const p = call.data + row * call.pitch + first;
    if (call.wide && first + (accesses - 1) * access_span + per_access <= call.cols) {
      element_run<T, per_access> x[accesses];
#pragma unroll
      for (int a = 0; a < accesses; ++a) x[a].load(p + a * access_span);
#pragma unroll
      for (int a = 0; a < accesses; ++a) {
        const std::uint32_t m = x[a].largest_magnitude();
        if (m <= fp32::infinity_bits) {
          largest = larger(largest, m);
        } else {
#pragma unroll
          for (int i = 0; i < per_access; ++i) see(x[a].at(i));
        }
      }
    } else {
#pragma unroll 1
      for (int a = 0; a < accesses; ++a) {
        const index_t n = smaller(index_t{per_access}, call.cols - first - a * access_span);
#pragma unroll 1
        for (index_t i = 0; i < n; ++i) see(load_float(p[a * access_span + i]));
      }
    }
  }
  raise_amax(call.out, largest);
}

}  // namespace detail::device

// Writes max |x| over the elements that are not NaN, 0 where there is none, to *out: the reference of current tensor
// scaling.
template <class T>
requires matrix_element<std::remove_const_t<T>>
void amax_into(const cuda& executor, matrix_view<T> in, float* out) {
  using element = std::remove_const_t<T>;
  detail::check_matrix("input", in);
  if (out == nullptr) detail::fail("amax", "memory for the result", "a null pointer");
  detail::device::check_launch(executor.launch);
  detail::device::clear_bytes(executor, "amax", out, sizeof(float));
  if (in.empty()) return;
  detail::device::amax_call<element> call{in.data, in.rows, in.cols, in.pitch, false, out};
  if (in.rows == 1 || in.pitch == in.cols) {  // one long row
    call.cols = in.rows * in.cols;
    call.pitch = call.cols;
    call.rows = 1;
  }
  const index_t pitch_bytes = call.rows == 1 ? 0 : call.pitch * static_cast<index_t>(sizeof(T));
  call.wide = detail::device::is_aligned(in.data, pitch_bytes, 16);
  const index_t span = index_t{executor.launch.threads} * 4 * detail::device::amax_elements<element>;
  // Few enough thread blocks that each has several spans, which share what it does once.
  const index_t blocks = smaller(call.rows * ceil_div(call.cols, span), index_t{2048});
  detail::device::launch(executor, "amax", &detail::device::amax_kernel<element>, blocks, call);
}

}  // namespace microscale
