// The amax of a Hadamard transform that is stored nowhere, on the device: the reference of current tensor scaling where
// a transform comes before quantization.
#pragma once

#include <cstdint>
#include <type_traits>

#include "amax.cuh"
#include "hadamard.cuh"

namespace microscale {

namespace detail::device {

// The amax of chunks of the transform, for hadamard_kernel.
struct transform_amax_sink {
  float* out;
  float largest = 0.0f;

  __device__ void put(index_t, index_t, int, const float (&x)[hadamard_chunk]) {
#pragma unroll
    for (int i = 0; i < hadamard_chunk; ++i) largest = fp32::max_number(largest, fp32::abs(x[i]));
  }
  __device__ void finish() const { raise_amax(out, fp32::bits(largest)); }
};

// Runs of 16 and 32 that are aligned: each thread has whole ones in registers, as elements of type Held.
template <class T, class Held, int Size>
struct hadamard_amax_call {
  strided_matrix<const T> in;
  run_grid grid;
  hadamard_transform<Held, Size> transform;
  hidden_constants hidden;
  float* out;
  float* plain;  // where the amax of the input itself goes, of a kernel that takes that too
};

// Runs of a row that a thread has under way, 64 bytes where they are so short.
template <class T, int Size>
inline constexpr int hadamard_amax_runs = larger(1, 64 / (Size * static_cast<int>(sizeof(T))));

template <class T, int Size>
__global__ void __launch_bounds__(largest_thread_block)
    hadamard_amax_rows_kernel(const hadamard_amax_call<T, T, Size> call) {
  constexpr int runs = hadamard_amax_runs<T, Size>;
  const std::uint32_t span = blockDim.x * runs;
  const std::uint32_t signs = call.transform.read_signs();
  float largest = 0.0f;
  for (std::uint32_t first = blockIdx.x * span + threadIdx.x; first < call.grid.count; first += gridDim.x * span) {
    element_run<T, Size> x[runs];
#pragma unroll
    for (int g = 0; g < runs; ++g) {
      const std::uint32_t i = first + g * blockDim.x;
      x[g] = {};
      if (i < call.grid.count) x[g].load(call.in.data + call.grid.template offset<Size>(i, call.in.row_stride));
    }
    call.transform.negate_read(x, signs);
#pragma unroll
    for (int g = 0; g < runs; ++g) {
      largest = fp32::max_number(largest, call.transform.largest_sum(x[g], call.hidden));
    }
  }
  raise_amax(call.out, fp32::bits(fp32::mul(largest, call.transform.factor)));
}

// The runs of two neighbouring columns for each thread, threads side by side.
template <class T, int Size, bool Plain>
__global__ void __launch_bounds__(largest_thread_block)
    hadamard_amax_columns_kernel(const hadamard_amax_call<T, float, Size> call) {
  const std::uint32_t signs = call.transform.read_signs();
  float largest = 0.0f, plain = 0.0f;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < call.grid.count; i += gridDim.x * blockDim.x) {
    const run_grid::place place = call.grid.at(i);
    element_run<float, Size> x[2];
    load_columns(call.in.data + place.row * Size * call.in.k_stride + place.col * 2, call.in.k_stride, call.transform,
                 signs, x);
    if constexpr (Plain) {
#pragma unroll
      for (int j = 0; j < Size; ++j) {
        plain = fp32::max_number(plain, fp32::max_number(fp32::abs(x[0].at(j)), fp32::abs(x[1].at(j))));
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      largest = fp32::max_number(largest, call.transform.largest_sum(x[c], call.hidden));
    }
  }
  raise_amax(call.out, fp32::bits(fp32::mul(largest, call.transform.factor)));
  if constexpr (Plain) raise_amax(call.plain, fp32::bits(plain));
}

// Few enough thread blocks that each has several runs, which share what it does once.
inline constexpr index_t hadamard_amax_blocks = 2048;

template <class Held, int Size, class T>
hadamard_amax_call<T, Held, Size> describe_hadamard_amax(const matrix_view<const T>& in,
                                                         const hadamard_options& options, const run_grid& grid,
                                                         float* out, float* plain = nullptr) {
  return {as_stored(in, options.axis), grid, hadamard_transform<Held, Size>(options), {}, out, plain};
}

// Launches one of these kernels, and returns whether it does: not for misaligned memory.
template <int Size, class T>
bool try_hadamard_amax(const cuda& executor, const matrix_view<const T>& in, const hadamard_options& options,
                       float* out) {
  const bool along_row = options.axis == axis::row;
  run_grid grid;
  if (along_row ? !as_stored(in, axis::row).wide : !has_column_pairs(in)) return false;
  if (!count_hadamard_runs<Size>(in, options.axis, grid)) return false;
  if (along_row) {
    const index_t per_block = index_t{executor.launch.threads} * hadamard_amax_runs<T, Size>;
    grid.flat = in.pitch == in.cols;
    launch(executor, "amax of a Hadamard transform", &hadamard_amax_rows_kernel<T, Size>,
           smaller(ceil_div(index_t{grid.count}, per_block), hadamard_amax_blocks),
           describe_hadamard_amax<T, Size>(in, options, grid, out));
  } else {
    launch(executor, "amax of a Hadamard transform", &hadamard_amax_columns_kernel<T, Size, false>,
           smaller(ceil_div(index_t{grid.count}, index_t{executor.launch.threads}), hadamard_amax_blocks),
           describe_hadamard_amax<float, Size>(in, options, grid, out));
  }
  return true;
}

}  // namespace detail::device

// Writes max |y| over the elements y of the Hadamard transform of `in` in FP32 (what hadamard_into gives) that are not
// NaN, 0 where there is none, to *out, as the host's hadamard_amax has it. The transform is stored nowhere: one read of
// the input, at the memory's speed for transforms of 16 and 32 whose rows begin on 16 bytes (along rows) or whose
// columns make aligned pairs (along columns).
template <class T>
requires matrix_element<std::remove_const_t<T>>
void hadamard_amax_into(const cuda& executor, matrix_view<T> in, float* out, const hadamard_options& options = {}) {
  detail::check_matrix("input", in);
  detail::check_hadamard(options, options.axis == axis::row ? in.cols : in.rows);
  if (out == nullptr) detail::fail("amax", "memory for the result", "a null pointer");
  detail::device::check_launch(executor.launch);
  detail::device::clear_bytes(executor, "amax", out, sizeof(float));
  if (in.empty()) return;
  const matrix_view<const std::remove_const_t<T>> from = in;
  if (options.size == 16 && detail::device::try_hadamard_amax<16>(executor, from, options, out)) return;
  if (options.size == 32 && detail::device::try_hadamard_amax<32>(executor, from, options, out)) return;
  detail::device::launch_hadamard(executor, from, options, detail::device::transform_amax_sink{out});
}

namespace detail::device {

template <int Size, class T>
bool try_both_amax(const cuda& executor, const matrix_view<const T>& in, float* out, const hadamard_options& options) {
  run_grid grid;
  if (in.empty() || !has_column_pairs(in) || !count_hadamard_runs<Size>(in, axis::col, grid)) return false;
  clear_bytes(executor, "amax", out, 2 * sizeof(float));
  launch(executor, "amax of a matrix and of its Hadamard transform", &hadamard_amax_columns_kernel<T, Size, true>,
         smaller(ceil_div(index_t{grid.count}, index_t{executor.launch.threads}), hadamard_amax_blocks),
         describe_hadamard_amax<float, Size>(in, options, grid, out + 1, out));
  return true;
}

// amax_into out[0], and hadamard_amax_into along the columns out[1], from one read where that is aligned.
template <class T>
void both_amax_into(const cuda& executor, const matrix_view<const T>& in, float* out, const hadamard_options& options) {
  if (options.size == 16 && try_both_amax<16>(executor, in, out, options)) return;
  if (options.size == 32 && try_both_amax<32>(executor, in, out, options)) return;
  amax_into(executor, in, out);
  hadamard_amax_into(executor, in, out + 1, options);
}

}  // namespace detail::device

}  // namespace microscale
