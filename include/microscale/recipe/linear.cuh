// Linear layers on the device: linear<Recipe> whose operands lie in device memory.
//
// cuda_linear has the calls, the recipes and, in every quantized operand, reference and exactly defined GEMM, the bits
// of the host's linear. Its executor is ms::cuda, or for the accumulation `vendor` cuda_blas (include
// cuda/vendor_gemm.cuh).
//
// A layer allocates device memory when it first meets a shape. Otherwise a call enqueues work and waits for nothing,
// except where the recipe samples an amax (every `period` steps under periodic scaling, every step under delayed
// scaling), which the host reads and reduces over ranks, and while metrics are collected.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../cuda/amax.cuh"
#include "../cuda/bf16_gemm.cuh"
#include "../cuda/gemm.cuh"
#include "../cuda/hadamard.cuh"
#include "../cuda/hadamard_quantize.cuh"
#include "../cuda/quantize.cuh"
#include "../cuda/transpose.cuh"
#include "linear.hpp"

namespace microscale {

namespace detail::device {

// Device memory that only grows. Its contents are lost when it does.
template <class T>
class array {
 public:
  array() = default;
  array(array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  array& operator=(array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~array() { (void)cudaFree(data_); }

  void resize(std::size_t n) {
    if (n <= capacity_) return;
    const cudaError_t pending = cudaPeekAtLastError();
    (void)cudaFree(std::exchange(data_, nullptr));
    capacity_ = 0;
    check_cuda("device memory of a layer", cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)), pending);
    capacity_ = n;
  }
  T* data() const noexcept { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// The executor of everything but a vendor GEMM.
inline const cuda& kernels_of(const cuda& executor) noexcept { return executor; }
template <class Blas>
const cuda& kernels_of(const Blas& blas) noexcept {
  return blas.executor;
}

template <class T>
void copy_async(const cuda& executor, const char* what, T* to, const T* from, std::size_t n, cudaMemcpyKind kind) {
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda(what, cudaMemcpyAsync(to, from, n * sizeof(T), kind, executor.stream), pending);
}
inline void wait_for(const cuda& executor, const char* what) {
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda(what, cudaStreamSynchronize(executor.stream), pending);
}

}  // namespace detail::device

// Where cuda_linear keeps its operands.
class device_memory {
 public:
  // Codes, scales and datum in device memory, linear layout, one tensor scale.
  template <quantization_scheme S>
  class quantized_matrix {
   public:
    void reshape(index_t rows, index_t cols) {
      const quantized_size<S> size = size_of<S>(rows, cols);
      codes_.resize(static_cast<std::size_t>(size.code_bytes));
      scales_.resize(static_cast<std::size_t>(size.scales));
      datum_.resize(1);
      rows_ = rows;
      cols_ = cols;
    }
    index_t rows() const noexcept { return rows_; }
    index_t cols() const noexcept { return cols_; }
    quantized_view<S> view() noexcept { return make_view<S>(); }
    quantized_view<const S> view() const noexcept { return make_view<const S>(); }

   private:
    template <class Q>
    quantized_view<Q> make_view() const noexcept {
      const quantized_size<S> size = size_of<S>(rows_, cols_);
      return {codes_.data(), scales_.data(), datum_.data(), rows_, cols_, size.code_pitch, size.scale_pitch};
    }

    detail::device::array<std::uint8_t> codes_;
    detail::device::array<typename S::scale::storage> scales_;
    detail::device::array<float> datum_;
    index_t rows_ = 0;
    index_t cols_ = 0;
  };
  using floats = detail::device::array<float>;

  // A matrix rounded to BF16. Rows begin on 16 bytes, as tensor cores like them.
  class bf16_matrix {
   public:
    template <class Executor, readable_element T>
    void assign(const Executor& executor, matrix_view<T> m, axis along) {
      rows_ = along == axis::row ? m.rows : m.cols;
      cols_ = along == axis::row ? m.cols : m.rows;
      pitch_ = round_up(cols_, index_t{8});
      data_.resize(static_cast<std::size_t>(rows_ * pitch_));
      round_to_bf16_into(detail::device::kernels_of(executor), m, matrix(data_.data(), rows_, cols_, pitch_), along);
    }
    matrix_view<const value<bf16>> view() const noexcept { return matrix(data_.data(), rows_, cols_, pitch_); }

   private:
    detail::device::array<value<bf16>> data_;
    index_t rows_ = 0;
    index_t cols_ = 0;
    index_t pitch_ = 0;
  };

  template <class Executor>
  float sample_amax(const Executor& executor, matrix_view<const float> m) {
    const cuda& kernels = detail::device::kernels_of(executor);
    floats_.resize(float_count);
    amax_into(kernels, m, floats_.data() + sampled);
    float amax = 0.0f;
    detail::device::copy_async(kernels, "amax", &amax, floats_.data() + sampled, 1, cudaMemcpyDeviceToHost);
    detail::device::wait_for(kernels, "amax");
    return amax;
  }
  // Held references have a place on the device; only one that has changed is copied there.
  template <class Executor>
  const float* reference(const Executor& executor, operand_role operand, const float* held) {
    return upload(executor, static_cast<std::size_t>(operand), *held);
  }
  template <class Executor>
  const float* unread_reference(const Executor& executor) {
    return upload(executor, unread, 1.0f);
  }
  template <quantization_scheme S>
  static void reshape(quantized_matrix<S>& q, index_t rows, index_t cols) {
    q.reshape(rows, cols);
  }
  template <class Executor, quantization_scheme S, rounding_mode R>
  void quantize(const Executor& executor, matrix_view<const float> m, quantized_matrix<S>& q, R rounding,
                const quantize_options& options) {
    const cuda& kernels = detail::device::kernels_of(executor);
    const std::size_t needed = quantize_workspace<S>(kernels, m, options);
    workspace_.resize(needed);
    quantize_with(kernels, m, q.view(), rounding, options, std::span<std::byte>(workspace_.data(), needed));
  }
  // What transform and quantize would give in turn, without the transformed matrix where one kernel does both.
  template <class Executor, quantization_scheme S, rounding_mode R>
  void hadamard_quantize(const Executor& executor, matrix_view<const float> m, quantized_matrix<S>& q, R rounding,
                         const hadamard_options& transform, const quantize_options& options) {
    const cuda& kernels = detail::device::kernels_of(executor);
    const std::size_t needed = hadamard_quantize_workspace(kernels, m, q.view(), rounding, transform, options);
    workspace_.resize(needed);
    hadamard_quantize_with(kernels, m, q.view(), rounding, transform, options,
                           std::span<std::byte>(workspace_.data(), needed));
  }
  template <class Executor, quantization_scheme S>
  static void transpose(const Executor& executor, const quantized_matrix<S>& in, quantized_matrix<S>& out) {
    transpose_into<S>(detail::device::kernels_of(executor), in.view(), out.view());
  }
  template <class Executor, quantization_scheme S>
  static void dequantize(const Executor& executor, const quantized_matrix<S>& q, matrix_view<float> out) {
    dequantize_into(detail::device::kernels_of(executor), q.view(), out);
  }
  template <class Executor>
  static void transform(const Executor& executor, matrix_view<const float> in, matrix_view<float> out,
                        const hadamard_options& options) {
    hadamard_into(detail::device::kernels_of(executor), in, out, options);
  }
  // On the host, over copies.
  template <class Executor, quantization_scheme S>
  static quantization_metrics measure(const Executor& executor, matrix_view<const float> m,
                                      const quantized_matrix<S>& q, axis along) {
    const cuda& kernels = detail::device::kernels_of(executor);
    const quantized_view<const S> from = q.view();
    quantized<S> copy(from.rows, from.cols);
    const quantized_size<S> size = size_of<S>(from.rows, from.cols);
    const quantized_view<S> to = copy.view();
    std::vector<float> source(static_cast<std::size_t>(m.rows * m.pitch));
    const auto fetch = [&]<class T>(T* host, const T* device, index_t n) {
      detail::device::copy_async(kernels, "metrics", host, device, static_cast<std::size_t>(n), cudaMemcpyDeviceToHost);
    };
    fetch(to.codes, from.codes, size.code_bytes);
    fetch(to.scales, from.scales, size.scales);
    if constexpr (S::has_tensor_scale) fetch(to.datum, from.datum, 1);
    if (!m.empty()) fetch(source.data(), m.data, (m.rows - 1) * m.pitch + m.cols);
    detail::device::wait_for(kernels, "metrics");
    return microscale::measure(matrix(source.data(), m.rows, m.cols, m.pitch), to, along);
  }
  template <class Accumulate, class Executor, quantization_scheme A, quantization_scheme B>
  void multiply(const Executor& executor, const quantized_matrix<A>& a, const quantized_matrix<B>& b,
                matrix_view<float> c) {
    const std::size_t needed = gemm_workspace<Accumulate>(executor, a.view(), b.view());
    workspace_.resize(needed);
    gemm_into<Accumulate>(executor, a.view(), b.view(), c, gemm_options{},
                          std::span<std::byte>(workspace_.data(), needed));
  }
  template <class Executor>
  static void multiply_bf16(const Executor& executor, const bf16_matrix& a, const bf16_matrix& b,
                            matrix_view<float> c) {
    bf16_gemm_into(executor, a.view(), b.view(), c);
  }

 private:
  // Places in floats_: one reference for each operand, 1 for schemes that read none, and the amax of a sample.
  static constexpr std::size_t unread = 3, sampled = 4, float_count = 5;

  template <class Executor>
  const float* upload(const Executor& executor, std::size_t place, float value) {
    floats_.resize(float_count);
    float* const there = floats_.data() + place;
    if (!is_there_[place] || fp32::bits(held_[place]) != fp32::bits(value)) {
      held_[place] = value;
      detail::device::copy_async(detail::device::kernels_of(executor), "reference", there, &held_[place], 1,
                                 cudaMemcpyHostToDevice);
      is_there_[place] = true;
    }
    return there;
  }

  floats floats_;
  float held_[4] = {};
  bool is_there_[4] = {};
  detail::device::array<std::byte> workspace_;
};

// A linear layer whose matrices, operands and workspace lie in the memory of the current device.
template <training_recipe Recipe, class Accumulate = vendor>
using cuda_linear = linear<Recipe, Accumulate, device_memory>;

}  // namespace microscale
