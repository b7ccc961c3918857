// The block-scaled GEMM of cuBLASLt, which multiplies packed FP4 operands on Blackwell's tensor cores as they are.
// vendor_gemm.cuh calls it where the GPU has it. It compiles everywhere; nothing here has run yet, for want of such a
// GPU.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "../tensor/gemm.hpp"
#include "blackwell_gemm.cuh"
#include "block.cuh"
#include "executor.cuh"

namespace microscale {

// Thrown when cuBLAS refuses a call.
class cublas_error : public error {
 public:
  explicit cublas_error(cublasStatus_t code)
      : error(std::string("microscale: cuBLAS: ") + cublasGetStatusString(code)), code_(code) {}

  cublasStatus_t code() const noexcept { return code_; }

 private:
  cublasStatus_t code_;
};

namespace detail::device {

inline void check_blas(cublasStatus_t code) {
  if (code != CUBLAS_STATUS_SUCCESS) throw cublas_error(code);
}

// The scales that cuBLASLt has a mode for. UE5M3 is not among them.
template <class S>
inline constexpr bool is_native_16 =
    is_e2m1<typename S::element>&& std::is_same_v<typename S::scale, ue4m3>&& S::block::rows == 1 &&
    S::block::columns == 16;
template <class S>
inline constexpr bool is_native_32 =
    is_e2m1<typename S::element>&& std::is_same_v<typename S::scale, e8m0>&& S::block::rows == 1 &&
    S::block::columns == 32;
template <class A, class B>
inline constexpr bool is_native = (is_native_16<A> && is_native_16<B>) || (is_native_32<A> && is_native_32<B>);

// Whether this call can take the native path: the GPU's generation, and what cuBLASLt asks of sizes and addresses.
template <class A, class B>
bool native_gemm_fits(const quantized_view<const A>& a, const quantized_view<const B>& b, const matrix_view<float>& c) {
  if constexpr (!is_native<A, B>) {
    return false;
  } else {
    const auto fits = [](const auto& q) {
      return q.cols % 32 == 0 && q.code_pitch % 16 == 0 && is_aligned(q.codes, 0, 16) &&
             (q.layout == scale_layout::linear || is_aligned(q.scales, 0, 16));
    };
    return a.cols > 0 && fits(a) && fits(b) && is_aligned(c.data, c.pitch * 4, 16) &&
           device_attribute(cudaDevAttrComputeCapabilityMajor) >= 10;
  }
}

// Scales into the 128x4 tile layout, padding zero. A thread writes four scales.
template <quantization_scheme S>
__global__ void __launch_bounds__(largest_thread_block)
    export_scales_kernel(const quantized_view<const S> q, std::uint8_t* const out) {
  const index_t columns = q.block_cols();
  const index_t words = scale_count(scale_layout::tile_128x4, q.block_rows(), columns) / tile_columns;
#pragma unroll 1
  for (index_t i = blockIdx.x * index_t{blockDim.x} + threadIdx.x; i < words; i += index_t{gridDim.x} * blockDim.x) {
    // Word i of the layout: words of a tile, then tiles along a row of them.
    const index_t tiles = ceil_div(columns, tile_columns), tile = i / tile_rows, word = i - tile * tile_rows;
    const index_t row = tile / tiles * tile_rows + word % 4 * 32 + word / 4;
    std::uint32_t four = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const index_t column = tile % tiles * tile_columns + e;
      if (row < q.block_rows() && column < columns) {
        four |= std::uint32_t{q.scales[q.scale_offset(row, column)]} << (8 * e);
      }
    }
    reinterpret_cast<std::uint32_t*>(out)[i] = four;
  }
}

template <class S>
index_t exported_scale_bytes(const quantized_view<const S>& q) noexcept {
  return scale_count(scale_layout::tile_128x4, q.block_rows(), q.block_cols());
}

// The scales where cuBLASLt can read them: `q`'s own, or exported into `memory`.
template <class S>
const void* native_scales(const cuda& executor, const quantized_view<const S>& q, std::byte* memory) {
  if (q.layout == scale_layout::tile_128x4) return q.scales;
  std::uint8_t* const out = reinterpret_cast<std::uint8_t*>(memory);
  const index_t blocks = ceil_div(exported_scale_bytes(q), index_t{4} * executor.launch.threads);
  launch(executor, "GEMM", &export_scales_kernel<S>, blocks, q, out);
  return out;
}

// What cuBLASLt may use besides.
inline constexpr index_t native_scratch_bytes = index_t{32} << 20;

template <class A, class B>
std::size_t native_gemm_bytes(const quantized_view<const A>& a, const quantized_view<const B>& b) noexcept {
  return static_cast<std::size_t>(exported_scale_bytes(a) + exported_scale_bytes(b) + native_scratch_bytes + 256);
}

// Descriptors that are given back when this goes.
class native_plan {
 public:
  native_plan() = default;
  ~native_plan() {
    if (preference_ != nullptr) (void)cublasLtMatmulPreferenceDestroy(preference_);
    for (const cublasLtMatrixLayout_t l : layouts_) {
      if (l != nullptr) (void)cublasLtMatrixLayoutDestroy(l);
    }
    if (operation_ != nullptr) (void)cublasLtMatmulDescDestroy(operation_);
  }
  native_plan(const native_plan&) = delete;
  native_plan& operator=(const native_plan&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    check_blas(cublasLtMatmulDescSetAttribute(operation_, what, &value, sizeof value));
  }

  // out (m x n, row-major) = alpha a b^T is, column by column, out^T = b a^T: b is cuBLASLt's first operand.
  void describe(index_t m, index_t n, index_t k, const index_t (&pitches)[3], cublasLtMatmulMatrixScale_t mode,
                const void* a_scales, const void* b_scales, bool alpha_on_device) {
    check_blas(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scales);
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, alpha_on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
    const auto unsigned_of = [](index_t x) { return static_cast<std::uint64_t>(x); };
    check_blas(cublasLtMatrixLayoutCreate(&layouts_[0], CUDA_R_4F_E2M1, unsigned_of(k), unsigned_of(n), pitches[1]));
    check_blas(cublasLtMatrixLayoutCreate(&layouts_[1], CUDA_R_4F_E2M1, unsigned_of(k), unsigned_of(m), pitches[0]));
    check_blas(cublasLtMatrixLayoutCreate(&layouts_[2], CUDA_R_32F, unsigned_of(n), unsigned_of(m), pitches[2]));
    check_blas(cublasLtMatmulPreferenceCreate(&preference_));
    const auto scratch = static_cast<std::size_t>(native_scratch_bytes);
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch,
                                                    sizeof scratch));
  }
  void run(cublasLtHandle_t handle, const void* a, const void* b, float* c, const void* alpha, const void* beta,
           std::byte* scratch, cudaStream_t stream) const {
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(handle, operation_, layouts_[0], layouts_[1], layouts_[2], layouts_[2],
                                              preference_, 1, &found, &count));
    if (count == 0) throw cublas_error(CUBLAS_STATUS_NOT_SUPPORTED);
    check_blas(cublasLtMatmul(handle, operation_, alpha, b, layouts_[0], a, layouts_[1], beta, c, layouts_[2], c,
                              layouts_[2], &found.algo, scratch, static_cast<std::size_t>(native_scratch_bytes),
                              stream));
  }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layouts_[3] = {};
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// C = alpha A B^T by cuBLASLt, for calls that fit; `memory` holds native_gemm_bytes on a multiple of 16 bytes.
template <class A, class B>
void native_gemm(cublasLtHandle_t handle, const cuda& executor, const quantized_view<const A>& a,
                 const quantized_view<const B>& b, const matrix_view<float>& c, const void* alpha, const void* beta,
                 bool alpha_on_device, std::byte* memory) {
  static_assert(is_native<A, B>);
  std::byte* const b_memory = memory + exported_scale_bytes(a);
  const void* const a_scales = native_scales(executor, a, memory);
  const void* const b_scales = native_scales(executor, b, b_memory);
  std::byte* scratch = b_memory + exported_scale_bytes(b);
  scratch += (256 - reinterpret_cast<std::uintptr_t>(scratch) % 256) % 256;
  native_plan plan;
  plan.describe(c.rows, c.cols, a.cols, {2 * a.code_pitch, 2 * b.code_pitch, c.pitch},
                is_native_16<A> ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
                a_scales, b_scales, alpha_on_device);
  plan.run(handle, a.codes, b.codes, c.data, alpha, beta, scratch, executor.stream);
}

}  // namespace detail::device
}  // namespace microscale
