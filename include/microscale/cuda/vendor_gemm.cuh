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
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "../host/vendor_gemm.hpp"
#include "bf16_gemm.cuh"
#include "gemm.cuh"
#include "native_gemm.cuh"
#include "quantize.cuh"
#include "quantize_rows.cuh"
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

// Where an operand is decoded to, in eights of a row.
template <class S>
struct decode_target {
  quantized_view<const S> q;
  bool simple;  // whole eights, rows of codes that begin on 4 bytes, and the scales of a row side by side
  bool flat;    // and rows without gaps, each with scales of its own
  value<bf16>* out;
  index_t pitch;  // a multiple of 8; what lies beyond the columns becomes zero
  run_grid eights;
  e2m1_places places;

  // Eights of a thread, all loaded before the first is decoded.
  static constexpr int at_once = 4;
  static constexpr std::uint32_t span = largest_thread_block * at_once;
  MICROSCALE_HD index_t parts() const noexcept { return ceil_div(index_t{eights.count}, index_t{span}); }

  __device__ static void fill(std::uint32_t* table) {
    table[threadIdx.x] = scale_pair<S>(static_cast<typename S::scale::storage>(threadIdx.x));
    __syncthreads();
  }
  // `at(i)`: where eight i of the matrix is; the codes, the scale, and where it goes.
  struct place {
    const std::uint8_t* codes;
    const typename S::scale::storage* scale;
    value<bf16>* to;
  };
  template <class At>
  __device__ void decode_simple(std::uint32_t first, std::uint32_t* table, At&& at) const {
    std::uint32_t codes[at_once], scales[at_once];
    uint4* to[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::uint32_t eight = first + static_cast<std::uint32_t>(i) * largest_thread_block;
      if (eight >= eights.count) break;
      const place p = at(eight);
      codes[i] = *reinterpret_cast<const std::uint32_t*>(p.codes);
      scales[i] = *p.scale;
      to[i] = reinterpret_cast<uint4*>(p.to);
    }
    fill(table);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + static_cast<std::uint32_t>(i) * largest_thread_block >= eights.count) break;
      *to[i] = decode_eight(codes[i], table[scales[i]], places);
    }
  }
  // By all threads of a block; `table` has room for each scale's scale_pair.
  __device__ void decode(index_t part, std::uint32_t* table) const {
    const std::uint32_t first = static_cast<std::uint32_t>(part) * span + threadIdx.x;
    if (flat) {
      decode_simple(first, table, [this](std::uint32_t i) {
        return place{q.codes + index_t{i} * 4, q.scales + i / (S::block::columns / 8), out + index_t{i} * 8};
      });
    } else if (simple) {
      decode_simple(first, table, [this](std::uint32_t i) {
        const auto [row, eight] = eights.at(i);
        return place{q.codes + row * q.code_pitch + eight * 4,
                     q.scales + row / S::block::rows * q.scale_pitch + eight * 8 / S::block::columns,
                     out + row * pitch + eight * 8};
      });
    } else {
      fill(table);
#pragma unroll 1
      for (std::uint32_t at = first; at < first + span && at < eights.count; at += largest_thread_block) {
        const auto [row, eight] = eights.at(at);
        const index_t k = eight * 8;
        const int n = static_cast<int>(larger(index_t{0}, smaller(index_t{8}, q.cols - k)));
        const std::uint32_t codes = load_eight(q.codes + row * q.code_pitch + k / 2, n, false);
        *reinterpret_cast<uint4*>(out + row * pitch + k) =
            decode_eight(codes, n > 0 ? table[q.scale(row, k)] : 0, places);
      }
    }
    __syncthreads();  // before the table of the next part
  }
};

template <class S>
decode_target<S> decode_to(const quantized_view<const S>& q, value<bf16>* out, index_t pitch) noexcept {
  const bool simple = is_aligned(q.codes, q.code_pitch, 4) && q.layout == scale_layout::linear && q.cols == pitch;
  const bool flat =
      simple && S::block::rows == 1 && 2 * q.code_pitch == q.cols && q.scale_pitch * S::block::columns == q.cols;
  const auto per_row = static_cast<std::uint32_t>(pitch / 8);
  return {q, simple, flat, out, pitch, {static_cast<std::uint32_t>(q.rows) * per_row, quick_divider(per_row)}, {}};
}

// Decodes both operands; writes alpha and beta, if asked to.
template <quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block)
    decode_both_kernel(const decode_target<A> a, const decode_target<B> b, float* const alpha) {
  static_assert(largest_thread_block == 256, "a thread for each scale");
  __shared__ std::uint32_t table[256];
  if (alpha != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    alpha[0] = fp32::mul(a.q.factors().decode, b.q.factors().decode);
    alpha[1] = 0.0f;
  }
  const index_t first = a.parts(), all = first + b.parts();
#pragma unroll 1
  for (index_t part = blockIdx.x; part < all; part += gridDim.x) {
    if (part < first) {
      a.decode(part, table);
    } else {
      b.decode(part - first, table);
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
    if (larger(a.rows, b.rows) <= most_runs / (pitch / 8)) {
      cuda with_threads = executor;
      with_threads.launch.threads = largest_thread_block;
      const decode_target<A> x = decode_to(a, left, pitch);
      const decode_target<B> y = decode_to(b, right, pitch);
      launch(with_threads, "GEMM", &decode_both_kernel<A, B>, x.parts() + y.parts(), x, y, alpha);
      return;
    }
  }
  decode_to_bf16(executor, a, left, pitch);
  decode_to_bf16(executor, b, right, pitch);
  if (alpha != nullptr) write_alpha(executor, a, b, alpha);
}

// Several products: rows [first, first + height) of A and C and rows [b_first, b_first + C's columns) of B are the
// first, as many further ones the next.
struct product_rows {
  index_t first;
  index_t height;
  index_t b_first;
  index_t count;
};

// Multiplies each output by its own alpha, where rows have tensor scales of their own.
template <quantization_scheme A, quantization_scheme B>
__global__ void __launch_bounds__(largest_thread_block)
    scale_outputs_kernel(quantized_view<const A> a, quantized_view<const B> b, matrix_view<float> c,
                         const product_rows rows) {
  for (index_t at = blockIdx.x * index_t{blockDim.x} + threadIdx.x; at < rows.height * rows.count * c.cols;
       at += index_t{gridDim.x} * blockDim.x) {
    const index_t row = at / c.cols, j = at - row * c.cols;
    const index_t i = rows.first + row, other = rows.b_first + row / rows.height * c.cols + j;
    const float alpha = fp32::mul(a.factors(a.tile_index(i, 0)).decode, b.factors(b.tile_index(other, 0)).decode);
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

// How a workspace is divided: alpha and beta, and both operands as BF16 on multiples of 256 bytes, from which cuBLAS
// reads faster than from others. A workspace itself may begin on any multiple of 16.
struct decoded_operands {
  index_t pitch;
  index_t a_bytes;
  index_t b_bytes;

  decoded_operands(index_t a_rows, index_t b_rows, index_t k) noexcept
      : pitch(decoded_pitch(k)),
        a_bytes(round_up(a_rows * pitch * index_t{sizeof(value<bf16>)}, index_t{256})),
        b_bytes(b_rows * pitch * index_t{sizeof(value<bf16>)}) {}

  // `other`: what may lie where the operands would.
  std::size_t bytes(index_t other = 0) const noexcept {
    return static_cast<std::size_t>(512 + larger(a_bytes + b_bytes, other));
  }
  static float* alpha(std::byte* memory) noexcept {
    return reinterpret_cast<float*>(memory + (256 - reinterpret_cast<std::uintptr_t>(memory) % 256) % 256);
  }
  static std::byte* rest(std::byte* memory) noexcept { return reinterpret_cast<std::byte*>(alpha(memory)) + 256; }
  value<bf16>* left(std::byte* memory) const noexcept { return reinterpret_cast<value<bf16>*>(rest(memory)); }
  value<bf16>* right(std::byte* memory) const noexcept {
    return reinterpret_cast<value<bf16>*>(rest(memory) + a_bytes);
  }
};

// What a product multiplies its sums by.
template <class A, class B>
class vendor_alpha {
 public:
  vendor_alpha(const quantized_view<const A>& a, const quantized_view<const B>& b, const gemm_options& options,
               std::byte* memory)
      : by_rows_(!options.alpha && (a.tile.rows != 0 || b.tile.rows != 0)),
        on_host_(by_rows_ || options.alpha || (!A::has_tensor_scale && !B::has_tensor_scale)),
        host_{by_rows_ ? 1.0f : options.alpha.value_or(1.0f), 0.0f},
        device_(decoded_operands::alpha(memory)) {}

  // One in the end, and each output its own in a kernel after the product.
  bool by_rows() const noexcept { return by_rows_; }
  // Where the device is to write alpha and a zero; null if the host knows alpha.
  float* to_write() const noexcept { return on_host_ ? nullptr : device_; }
  cublasPointerMode_t mode() const noexcept { return on_host_ ? CUBLAS_POINTER_MODE_HOST : CUBLAS_POINTER_MODE_DEVICE; }
  const void* alpha() const noexcept { return on_host_ ? host_ : device_; }
  const void* beta() const noexcept { return on_host_ ? host_ + 1 : device_ + 1; }

 private:
  bool by_rows_;
  bool on_host_;
  float host_[2];
  float* device_;
};

// `rows.count` products of `rows.height` rows each by cuBLAS, of operands that are decoded.
template <class A, class B>
void multiply_decoded(const cuda_blas& blas, const decoded_operands& plan, std::byte* memory,
                      const vendor_alpha<A, B>& alpha, index_t k, const matrix_view<float>& c,
                      const product_rows& rows) {
  const borrowed_handle guard(blas.handle, blas.executor.stream, alpha.mode());
  // Row-major C = A B^T is column-major C^T = B A^T.
  const int m = static_cast<int>(rows.height), n = static_cast<int>(c.cols), pitch = static_cast<int>(plan.pitch);
  const int c_pitch = static_cast<int>(larger(c.pitch, c.cols));
  const value<bf16>* const left = plan.left(memory) + rows.first * plan.pitch;
  const value<bf16>* const right = plan.right(memory) + rows.b_first * plan.pitch;
  float* const out = c.data + rows.first * c.pitch;
  if (rows.count == 1) {
    check_blas(cublasGemmEx(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, static_cast<int>(k), alpha.alpha(), right,
                            CUDA_R_16BF, pitch, left, CUDA_R_16BF, pitch, alpha.beta(), out, CUDA_R_32F, c_pitch,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  } else {
    check_blas(cublasGemmStridedBatchedEx(
        blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, static_cast<int>(k), alpha.alpha(), right, CUDA_R_16BF, pitch,
        c.cols * plan.pitch, left, CUDA_R_16BF, pitch, rows.height * plan.pitch, alpha.beta(), out, CUDA_R_32F, c_pitch,
        rows.height * c.pitch, static_cast<int>(rows.count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
}

// What every product of operands by cuBLAS needs: sizes and memory that it takes.
inline void check_vendor(const matrix_view<float>& c, index_t k, std::span<std::byte> workspace, std::size_t needed) {
  if (workspace.size() < needed || !is_aligned(workspace.data(), 0, 16)) {
    fail("GEMM workspace", std::to_string(needed) + " bytes of device memory, aligned to 16",
         std::to_string(workspace.size()) + " bytes");
  }
  constexpr index_t most = std::numeric_limits<int>::max();
  if (c.rows > most || c.cols > most || k > most - 8 || c.pitch > most) {
    fail("vendor GEMM", "sizes below 2^31, which is what cuBLAS takes", shape_text(c.rows, c.cols));
  }
}

inline void clear_rows(const cuda& executor, const matrix_view<float>& c, const product_rows& rows) {
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda("GEMM",
             cudaMemset2DAsync(c.data + rows.first * c.pitch, static_cast<std::size_t>(c.pitch) * sizeof(float), 0,
                               static_cast<std::size_t>(c.cols) * sizeof(float),
                               static_cast<std::size_t>(rows.height * rows.count), executor.stream),
             pending);
}

// Products of decoded operands, one `rows` after another.
template <class A, class B>
void multiply_vendor(const cuda_blas& blas, const quantized_view<const A>& a, const quantized_view<const B>& b,
                     const matrix_view<float>& c, std::span<const product_rows> products, const gemm_options& options,
                     std::byte* memory) {
  static_assert(decodes_to_bf16<A> && decodes_to_bf16<B>,
                "elements times block scales must have at most 8 significant bits, or BF16 would round them");
  if (a.cols == 0) {
    for (const product_rows& rows : products) clear_rows(blas.executor, c, rows);
    return;
  }
  const decoded_operands plan(a.rows, b.rows, a.cols);
  const vendor_alpha<A, B> alpha(a, b, options, memory);
  decode_operands(blas.executor, a, plan.left(memory), b, plan.right(memory), plan.pitch, alpha.to_write());
  for (const product_rows& rows : products) {
    multiply_decoded(blas, plan, memory, alpha, a.cols, c, rows);
    if (!alpha.by_rows()) continue;
    const index_t blocks = ceil_div(rows.height * rows.count * c.cols, index_t{blas.executor.launch.threads});
    launch(blas.executor, "GEMM", &scale_outputs_kernel<A, B>, blocks, a, b, c, rows);
  }
}

}  // namespace detail::device

// Bytes of device workspace that gemm_into<vendor> wants: both operands as BF16 (or what the native product needs,
// where that is more), and alpha.
template <class P, class A, class B>
requires std::is_same_v<P, vendor> std::size_t gemm_workspace(const cuda_blas&, const quantized_view<A>& a_in,
                                                              const quantized_view<B>& b_in) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  index_t native = 0;
  if constexpr (detail::device::is_native<typename quantized_view<A>::scheme_type,
                                          typename quantized_view<B>::scheme_type>) {
    if (detail::device::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 10) {
      native = static_cast<index_t>(detail::device::native_gemm_bytes(a, b));
    }
  }
  return detail::device::decoded_operands(a.rows, b.rows, a.cols).bytes(native);
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
  const quantized_view<const scheme_a> a = a_in;
  const quantized_view<const scheme_b> b = b_in;
  detail::check_gemm(a, b, c);
  detail::device::check_vendor(c, a.cols, workspace, gemm_workspace<vendor>(blas, a, b));
  if (c.empty()) return;
  const detail::device::product_rows rows{0, c.rows, 0, 1};
  if constexpr (detail::device::is_native<scheme_a, scheme_b>) {
    if (detail::device::native_gemm_fits(a, b, c)) {
      const detail::device::vendor_alpha<scheme_a, scheme_b> alpha(a, b, options, workspace.data());
      if (alpha.to_write() != nullptr) detail::device::write_alpha(blas.executor, a, b, alpha.to_write());
      detail::device::native_gemm(reinterpret_cast<cublasLtHandle_t>(blas.handle), blas.executor, a, b, c,
                                  alpha.alpha(), alpha.beta(), alpha.to_write() != nullptr,
                                  detail::device::decoded_operands::rest(workspace.data()));
      if (alpha.by_rows()) {
        const index_t blocks = ceil_div(c.rows * c.cols, index_t{blas.executor.launch.threads});
        detail::device::launch(blas.executor, "GEMM", &detail::device::scale_outputs_kernel<scheme_a, scheme_b>, blocks,
                               a, b, c, rows);
      }
      return;
    }
  }
  detail::device::multiply_vendor(blas, a, b, c, std::span(&rows, 1), options, workspace.data());
}

// Several products in one call, as batched_gemm_into(const cuda&, ...) says (gemm.cuh): both operands decoded at once,
// then cuBLAS's strided batch.
template <class P, class A, class B>
requires std::is_same_v<P, vendor> std::size_t batched_gemm_workspace(const cuda_blas&, const quantized_view<A>& a,
                                                                      const quantized_view<B>& b, index_t /*groups*/) {
  return detail::device::decoded_operands(a.rows, b.rows, a.cols).bytes();
}
template <class P, class A, class B>
requires std::is_same_v<P, vendor>
void batched_gemm_into(const cuda_blas& blas, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
                       index_t groups, const gemm_options& options, std::span<std::byte> workspace) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  detail::device::check_groups(a, b, c, groups, true);
  detail::device::check_vendor(c, a.cols, workspace, batched_gemm_workspace<vendor>(blas, a, b, groups));
  if (c.empty()) return;
  const detail::device::product_rows rows{0, c.rows / groups, 0, groups};
  detail::device::multiply_vendor(blas, a, b, c, std::span(&rows, 1), options, workspace.data());
}

// The same where the matrices of A differ in height: rows offsets[g] ... offsets[g + 1] of A and C belong to product g.
// cuBLAS takes sizes from the host, so `offsets`, groups + 1 ascending numbers of at most a.rows, are in *host* memory
// here. Both operands are decoded at once; each product that has rows is one call of cuBLAS.
template <class P, class A, class B>
requires std::is_same_v<P, vendor> std::size_t grouped_gemm_workspace(const cuda_blas&, const quantized_view<A>& a,
                                                                      const quantized_view<B>& b) {
  return detail::device::decoded_operands(a.rows, b.rows, a.cols).bytes();
}
template <class P, class A, class B>
requires std::is_same_v<P, vendor>
void grouped_gemm_into(const cuda_blas& blas, quantized_view<A> a_in, quantized_view<B> b_in, matrix_view<float> c,
                       std::span<const std::int32_t> offsets, const gemm_options& options,
                       std::span<std::byte> workspace) {
  const quantized_view<const typename quantized_view<A>::scheme_type> a = a_in;
  const quantized_view<const typename quantized_view<B>::scheme_type> b = b_in;
  const index_t groups = static_cast<index_t>(offsets.size()) - 1;
  detail::device::check_groups(a, b, c, groups, false);
  detail::device::check_vendor(c, a.cols, workspace, grouped_gemm_workspace<vendor>(blas, a, b));
  std::vector<detail::device::product_rows> products;
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    const index_t first = offsets[g], last = offsets[g + 1];
    if (first < 0 || last < first || last > a.rows) {
      detail::fail("offsets of a grouped GEMM", "ascending numbers of at most " + std::to_string(a.rows),
                   std::to_string(first) + " and " + std::to_string(last));
    }
    if (last > first) products.push_back({first, last - first, static_cast<index_t>(g) * c.cols, 1});
  }
  if (c.empty() || products.empty()) return;
  detail::device::multiply_vendor(blas, a, b, c, std::span<const detail::device::product_rows>(products), options,
                                  workspace.data());
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
