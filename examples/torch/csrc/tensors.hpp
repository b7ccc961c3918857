// torch's tensors as the views and calls of operations.hpp.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "operations.hpp"

#ifdef MICROSCALE_TORCH_CUDA
#include <c10/cuda/CUDAGuard.h>
#endif

namespace microscale_torch {

constexpr bool has_cuda() {
#ifdef MICROSCALE_TORCH_CUDA
  return true;
#else
  return false;
#endif
}

// Whether kernels on the tensor's device go into a CUDA graph now.
bool is_captured(const at::Tensor&);

// Makes the tensor's device the current one for as long as this lives.
class on_device {
 public:
  explicit on_device([[maybe_unused]] const at::Tensor& t) {
#ifdef MICROSCALE_TORCH_CUDA
    if (t.is_cuda()) guard_.set_device(t.device());
#endif
  }

#ifdef MICROSCALE_TORCH_CUDA
 private:
  c10::cuda::OptionalCUDAGuard guard_;
#endif
};

struct packed {
  at::Tensor codes, scales, datum;
  std::int64_t rows = 0, cols = 0;  // as stored
};

backend backend_of(const at::Tensor&);
place place_of(const at::Tensor&);
matrix_memory memory_of(const at::Tensor&);
rounding_kind rounding_named(const std::string&);
// What torch passes in 64 bits, to what takes an int; an error that names `what` unless it fits.
int as_int(const char* what, std::int64_t value);
// An error that names `what` unless it is where `other` is.
void expect_same_device(const char* what, const at::Tensor&, const at::Tensor& other);

// x is contiguous, FP32 or BF16, two-dimensional. Where the request has no reference and the scheme wants one, it is
// x's own amax.
packed quantize_packed(const at::Tensor& x, const scheme_operations&, quantize_request);
at::Tensor decode(const packed&, const scheme_operations&, ms::axis, at::ScalarType, at::Tensor* multiplier);
void fake_quantize_to(const at::Tensor& x, at::Tensor& out, const scheme_operations&, quantize_request,
                      at::Tensor* multiplier);
// Both axes at once, into operands for BF16 products, each with its multiplier: one tensor for both unless the columns
// are transformed.
void fake_quantize_both_to(const at::Tensor& x, at::Tensor& rows, at::Tensor& cols, const scheme_operations&,
                           quantize_request row_request, quantize_request col_request, at::Tensor* row_multiplier,
                           at::Tensor* col_multiplier);
void transform_to(const at::Tensor& x, at::Tensor& out, const ms::hadamard_options&);

// A B^T, by the accumulation named. `vendor` decodes both operands to BF16 and multiplies those.
at::Tensor multiply_packed(const packed& a, const std::string& a_scheme, const packed& b, const std::string& b_scheme,
                           const std::string& accumulation, at::ScalarType);

// A matrix that is one operand of a product: element times block scale in BF16, as the matrix lies before quantization,
// and the tensor's decode multiplier (undefined: 1). `along` is the axis of the reduction.
struct decoded_operand {
  at::Tensor values, multiplier;
  ms::axis along = ms::axis::row;
};
// A quantized matrix as an operand of a product over its rows.
decoded_operand decode_operand(const packed&, const scheme_operations&);
// The product over the reduction dimension, FP32 sums times both multipliers, rounded once to the type of the result.
at::Tensor multiply_decoded(const decoded_operand& a, const decoded_operand& b, at::ScalarType);

}  // namespace microscale_torch
