// The `vendor` accumulation on the device: decode both operands to BF16, then cuBLAS on the tensor cores; on a GPU of
// compute capability 10 or more, cuBLASLt's own product of packed operands where it has one (native_gemm.cuh, not run
// yet). Only for those who include this header and link cuBLAS and cuBLASLt.
//
// An element times its block scale has at most 8 significant bits in the schemes that this accepts (E2M1 under UE4M3,
// UE5M3 or E8M0, among others), so BF16 holds it exactly but for products beyond its range, every product of two is
// exact, and only the order of the FP32 sum is cuBLAS's own: |C - exact| <= k 2^-23 sum |a b|, plus one rounding for
// alpha. The tensor scales come in with alpha.
#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "../host/vendor_gemm.hpp"
#include "bf16_gemm.cuh"
#include "gemm.cuh"
#include "native_gemm.cuh"
#include "quantize.cuh"
#include "tensor_core.cuh"

namespace microscale {

// A cuBLAS handle of the caller's, which is left as it was found, and the executor whose stream does the work.
struct cuda_blas {
  cublasHandle_t handle = nullptr;
  cuda executor = {};
};

namespace detail::device {

template <class S>
inline constexpr bool decodes_to_bf16 = S::element::mantissa_bits + S::scale::mantissa_bits + 2 <= 8;

// Element and block scale alone: how a scheme decodes a matrix whose tensor scale comes later.
struct unscaled_rule {
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const tensor_factors&) noexcept {
    return fp32::mul(element, s);
  }
};
template <class S>
using unscaled = scheme<typename S::element, typename S::scale, typename S::block, unscaled_rule>;

template <class S>
void decode_to_bf16(const cuda& executor, const quantized_view<const S>& q, value<bf16>* out, index_t pitch) {
  const quantized_view<unscaled<S>> plain{const_cast<std::uint8_t*>(q.codes),
                                          const_cast<typename S::scale::storage*>(q.scales),
                                          nullptr,
                                          q.rows,
                                          q.cols,
                                          q.code_pitch,
                                          q.scale_pitch,
                                          q.layout};
  dequantize_into(executor, plain, matrix(out, q.rows, q.cols, pitch));
}

// Where an operand is decoded to.
template <class S>
struct decode_target {
  quantized_view<const S> q;
  bool simple;  // rows of codes begin on 4 bytes, and the scales of a row lie side by side
  value<bf16>* out;
  index_t pitch;  // a multiple of 8; what lies beyond the columns becomes zero
  e2m1_places places;

  static constexpr int rows_of_part = 16;
  static constexpr int columns_of_part = 8 * largest_thread_block;
  static constexpr int rows_at_once = 4;
  MICROSCALE_HD index_t parts() const noexcept {
    return ceil_div(q.rows, index_t{rows_of_part}) * ceil_div(pitch, index_t{columns_of_part});
  }

  // Every row of a part, eight elements a thread. `table` has each scale's scale_pair.
  __device__ void decode(index_t part, const std::uint32_t* table) const {
    const index_t chunks = ceil_div(pitch, index_t{columns_of_part}), group = part / chunks;
    const index_t k = (part - group * chunks) * columns_of_part + index_t{8} * threadIdx.x;
    if (k >= pitch) return;
    const int n = static_cast<int>(larger(index_t{0}, smaller(index_t{8}, q.cols - k)));
    const index_t first = group * rows_of_part;
    value<bf16>* to = out + first * pitch + k;
    if (simple && n == 8 && first + rows_of_part <= q.rows) {
      const std::uint8_t* codes = q.codes + first * q.code_pitch + k / 2;
      const std::uint8_t* scales = q.scales + first * q.scale_pitch + k / S::block::columns;
#pragma unroll 1
      for (int row = 0; row < rows_of_part; row += rows_at_once) {
        std::uint32_t words[rows_at_once], multipliers[rows_at_once];
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i) {
          words[i] = *reinterpret_cast<const std::uint32_t*>(codes);
          multipliers[i] = *scales;
          codes += q.code_pitch;
          scales += q.scale_pitch;
        }
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i) {
          *reinterpret_cast<uint4*>(to) = decode_eight(words[i], table[multipliers[i]], places);
          to += pitch;
        }
      }
    } else {
#pragma unroll 1
      for (index_t row = first; row < smaller(q.rows, first + rows_of_part); ++row, to += pitch) {
        const std::uint32_t word = load_eight(q.codes + row * q.code_pitch + k / 2, n, false);
        *reinterpret_cast<uint4*>(to) = decode_eight(word, n > 0 ? table[q.scale(row, k)] : 0, places);
      }
    }
  }
};

template <class S>
decode_target<S> decode_to(const quantized_view<const S>& q, value<bf16>* out, index_t pitch) noexcept {
  const bool side_by_side = q.layout == scale_layout::linear && S::block::rows == 1;
  return {q, is_aligned(q.codes, q.code_pitch, 4) && side_by_side, out, pitch, {}};
}

// Decodes both operands; writes alpha and beta, if asked to.
template <quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block)
    decode_both_kernel(const decode_target<A> a, const decode_target<B> b, float* const alpha) {
  __shared__ std::uint32_t tables[2][256];
  tables[0][threadIdx.x] = scale_pair<A>(static_cast<typename A::scale::storage>(threadIdx.x));
  tables[1][threadIdx.x] = scale_pair<B>(static_cast<typename B::scale::storage>(threadIdx.x));
  __syncthreads();
  if (alpha != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    alpha[0] = fp32::mul(a.q.factors().decode, b.q.factors().decode);
    alpha[1] = 0.0f;
  }
  const index_t first = a.parts(), all = first + b.parts();
#pragma unroll 1
  for (index_t part = blockIdx.x; part < all; part += gridDim.x) {
    if (part < first) {
      a.decode(part, tables[0]);
    } else {
      b.decode(part - first, tables[1]);
    }
  }
}

template <quantization_scheme A, quantization_scheme B>
__global__ void alpha_kernel(quantized_view<const A> a, quantized_view<const B> b, float* alpha) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    alpha[0] = fp32::mul(a.factors().decode, b.factors().decode);
    alpha[1] = 0.0f;
  }
}

// The product of the decode multipliers and a zero, at `alpha`.
template <class A, class B>
void write_alpha(const cuda& executor, const quantized_view<const A>& a, const quantized_view<const B>& b,
                 float* alpha) {
  launch(executor, "GEMM", &alpha_kernel<A, B>, index_t{1}, a, b, alpha);
}

// Both operands as BF16 with rows of `pitch`, and at `alpha`, unless it is null, the product of the decode multipliers
// and a zero.
template <class A, class B>
void decode_operands(const cuda& executor, const quantized_view<const A>& a, value<bf16>* left,
                     const quantized_view<const B>& b, value<bf16>* right, index_t pitch, float* alpha) {
  if constexpr (decodes_by_sixteen<A> && decodes_by_sixteen<B>) {
    static_assert(largest_thread_block == 256, "a thread for each scale");
    cuda with_threads = executor;
    with_threads.launch.threads = largest_thread_block;
    const decode_target<A> x = decode_to(a, left, pitch);
    const decode_target<B> y = decode_to(b, right, pitch);
    launch(with_threads, "GEMM", &decode_both_kernel<A, B>, x.parts() + y.parts(), x, y, alpha);
  } else {
    decode_to_bf16(executor, a, left, pitch);
    decode_to_bf16(executor, b, right, pitch);
    if (alpha != nullptr) write_alpha(executor, a, b, alpha);
  }
}

// Multiplies each output by its own alpha, where rows have tensor scales of their own.
template <quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block)
    scale_outputs_kernel(quantized_view<const A> a, quantized_view<const B> b, matrix_view<float> c) {
  for (index_t at = blockIdx.x * index_t{blockDim.x} + threadIdx.x; at < c.rows * c.cols;
       at += index_t{gridDim.x} * blockDim.x) {
    const index_t i = at / c.cols, j = at - i * c.cols;
    const float alpha = fp32::mul(a.factors(a.tile_index(i, 0)).decode, b.factors(b.tile_index(j, 0)).decode);
    c(i, j) = fp32::mul(c(i, j), alpha);
  }
}

// Rows of decoded operands begin on 16 bytes, as tensor cores like them.
inline index_t decoded_pitch(index_t k) noexcept { return round_up(k, index_t{8}); }

// The caller's handle, with settings of our own for as long as this lives.
class borrowed_handle {
 public:
  borrowed_handle(cublasHandle_t handle, cudaStream_t stream, cublasPointerMode_t mode) : handle_(handle) {
    check_blas(cublasGetStream(handle_, &stream_));
    check_blas(cublasGetPointerMode(handle_, &mode_));
    check_blas(cublasSetPointerMode(handle_, mode));
    if (stream_ != stream) check_blas(cublasSetStream(handle_, stream));
    changed_stream_ = stream_ != stream;
  }
  ~borrowed_handle() {
    if (changed_stream_) (void)cublasSetStream(handle_, stream_);
    (void)cublasSetPointerMode(handle_, mode_);
  }
  borrowed_handle(const borrowed_handle&) = delete;
  borrowed_handle& operator=(const borrowed_handle&) = delete;

 private:
  cublasHandle_t handle_;
  cudaStream_t stream_ = nullptr;
  cublasPointerMode_t mode_ = CUBLAS_POINTER_MODE_HOST;
  bool changed_stream_ = false;
};

}  // namespace detail::device

// Bytes of device workspace that gemm_into<vendor> wants: both operands as BF16 (or what the native product needs,
// where that is more), and alpha.
template <class P, class A, class B>
requires std::is_same_v<P, vendor> std::size_t gemm_workspace(const cuda_blas&, const quantized_view<A>& a_in,
                                                              const quantized_view<B>& b_in) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  const index_t pitch = detail::device::decoded_pitch(a.cols);
  const std::size_t decoded = static_cast<std::size_t>((a.rows + b.rows) * pitch) * sizeof(value<bf16>);
  std::size_t native = 0;
  if constexpr (detail::device::is_native<typename quantized_view<A>::scheme_type,
                                          typename quantized_view<B>::scheme_type>) {
    if (detail::device::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 10) {
      native = detail::device::native_gemm_bytes(a, b);
    }
  }
  return 16 + larger(decoded, native);
}

// C = alpha A B^T by cuBLAS over the decoded operands. `workspace` lies in device memory, on a multiple of 16 bytes.
// options.alpha is the host's; without it, alpha is computed from the data on the device. cuBLAS uses the workspace
// that its handle has: give it one (cublasSetWorkspace) where a graph is captured.
template <class P, class A, class B>
requires std::is_same_v<P, vendor>
void gemm_into(const cuda_blas& blas, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
               const gemm_options& options, std::span<std::byte> workspace) {
  using scheme_a = typename quantized_view<A>::scheme_type;
  using scheme_b = typename quantized_view<B>::scheme_type;
  static_assert(detail::device::decodes_to_bf16<scheme_a> && detail::device::decodes_to_bf16<scheme_b>,
                "elements times block scales must have at most 8 significant bits, or BF16 would round them");
  const quantized_view<const scheme_a> a = a_in;
  const quantized_view<const scheme_b> b = b_in;
  const cuda& executor = blas.executor;
  detail::check_gemm(a, b, c);
  const std::size_t needed = gemm_workspace<vendor>(blas, a, b);
  if (workspace.size() < needed || !detail::device::is_aligned(workspace.data(), 0, 16)) {
    detail::fail("GEMM workspace", std::to_string(needed) + " bytes of device memory, aligned to 16",
                 std::to_string(workspace.size()) + " bytes");
  }
  constexpr index_t most = std::numeric_limits<int>::max();
  if (c.rows > most || c.cols > most || a.cols > most - 8 || c.pitch > most) {
    detail::fail("vendor GEMM", "sizes below 2^31, which is what cuBLAS takes", detail::shape_text(c.rows, c.cols));
  }
  if (c.empty()) return;
  if (a.cols == 0) {
    const cudaError_t pending = cudaPeekAtLastError();
    detail::device::check_cuda("GEMM",
                               cudaMemset2DAsync(c.data, static_cast<std::size_t>(c.pitch) * sizeof(float), 0,
                                                 static_cast<std::size_t>(c.cols) * sizeof(float),
                                                 static_cast<std::size_t>(c.rows), executor.stream),
                               pending);
    return;
  }
  float* const alpha = reinterpret_cast<float*>(workspace.data());
  const bool by_rows = !options.alpha && (a.tile.rows != 0 || b.tile.rows != 0);
  std::optional<float> host_alpha = by_rows ? std::optional<float>(1.0f) : options.alpha;
  if (!scheme_a::has_tensor_scale && !scheme_b::has_tensor_scale && !host_alpha) host_alpha = 1.0f;
  // beta is zero, in the memory that alpha is in.
  const float zero = 0.0f;
  const void* const alpha_pointer = host_alpha ? static_cast<const void*>(&*host_alpha) : alpha;
  const void* const beta_pointer = host_alpha ? static_cast<const void*>(&zero) : alpha + 1;
  if (detail::device::native_gemm_fits(a, b, c)) {
    if constexpr (detail::device::is_native<scheme_a, scheme_b>) {
      if (!host_alpha) detail::device::write_alpha(executor, a, b, alpha);
      detail::device::native_gemm(reinterpret_cast<cublasLtHandle_t>(blas.handle), executor, a, b, c, alpha_pointer,
                                  beta_pointer, !host_alpha, workspace.data() + 16);
    }
  } else {
    value<bf16>* const left = reinterpret_cast<value<bf16>*>(workspace.data() + 16);
    const index_t pitch = detail::device::decoded_pitch(a.cols);
    value<bf16>* const right = left + a.rows * pitch;
    detail::device::decode_operands(executor, a, left, b, right, pitch, host_alpha ? nullptr : alpha);
    const detail::device::borrowed_handle guard(blas.handle, executor.stream,
                                                host_alpha ? CUBLAS_POINTER_MODE_HOST : CUBLAS_POINTER_MODE_DEVICE);
    // Row-major C = A B^T is column-major C^T = B A^T.
    const int m = static_cast<int>(c.rows), n = static_cast<int>(c.cols), k = static_cast<int>(a.cols);
    detail::device::check_blas(
        cublasGemmEx(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, alpha_pointer, right, CUDA_R_16BF,
                     static_cast<int>(pitch), left, CUDA_R_16BF, static_cast<int>(pitch), beta_pointer, c.data,
                     CUDA_R_32F, static_cast<int>(larger(c.pitch, c.cols)), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  if (by_rows) {
    const index_t blocks = ceil_div(c.rows * c.cols, index_t{executor.launch.threads});
    detail::device::launch(executor, "GEMM", &detail::device::scale_outputs_kernel<scheme_a, scheme_b>, blocks, a, b,
                           c);
  }
}

// C = A B^T of BF16 operands by cuBLAS, as bf16_gemm_into(const cuda&, ...) says but for the order of the sums. Rows of
// A and B must begin on 16 bytes to be fast.
inline void bf16_gemm_into(const cuda_blas& blas, matrix_view<const value<bf16>> a, matrix_view<const value<bf16>> b,
                           matrix_view<float> c) {
  detail::device::check_bf16_gemm(a, b, c);
  if (c.empty()) return;
  if (a.cols == 0) return bf16_gemm_into(blas.executor, a, b, c);
  constexpr index_t most = std::numeric_limits<int>::max();
  if (c.rows > most || c.cols > most || a.pitch > most || b.pitch > most || c.pitch > most) {
    detail::fail("vendor GEMM", "sizes below 2^31, which is what cuBLAS takes", detail::shape_text(c.rows, c.cols));
  }
  const detail::device::borrowed_handle guard(blas.handle, blas.executor.stream, CUBLAS_POINTER_MODE_HOST);
  const float one = 1.0f, zero = 0.0f;
  const int m = static_cast<int>(c.rows), n = static_cast<int>(c.cols), k = static_cast<int>(a.cols);
  detail::device::check_blas(cublasGemmEx(
      blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, b.data, CUDA_R_16BF,
      static_cast<int>(larger(b.pitch, b.cols)), a.data, CUDA_R_16BF, static_cast<int>(larger(a.pitch, a.cols)), &zero,
      c.data, CUDA_R_32F, static_cast<int>(larger(c.pitch, c.cols)), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace microscale
