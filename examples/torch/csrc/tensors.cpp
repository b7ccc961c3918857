#include "tensors.hpp"

#include <ATen/Parallel.h>

#include <algorithm>

#ifdef MICROSCALE_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cublas_v2.h>
#endif

namespace microscale_torch {

using at::Tensor;

namespace {

constexpr std::pair<rounding_kind, const char*> rounding_names[] = {
    {rounding_kind::nearest_even, "nearest_even"},
    {rounding_kind::stochastic_midpoint8, "stochastic_midpoint8"},
    {rounding_kind::stochastic_floor8, "stochastic_floor8"},
    {rounding_kind::with_scale_draws, "with_scale_draws"},
};

// Messages are made of strings alone: a program may hold two C++ libraries, and streams of numbers trust in there being
// one.
void expect(const char* what, bool holds, const std::string& expected, const Tensor& got) {
  if (holds) return;
  std::string text = c10::toString(got.scalar_type());
  const char* between = " of ";
  for (const std::int64_t size : got.sizes()) {
    text.append(between).append(std::to_string(size));
    between = " x ";
  }
  ms::detail::fail(what, expected, text);
}

bool is_contiguous_matrix(const Tensor& t, std::int64_t rows, std::int64_t cols) {
  return t.dim() == 2 && t.size(0) == rows && t.size(1) == cols && t.is_contiguous();
}

packed_memory memory_of(const packed& p, const scheme_facts& facts) {
  const std::int64_t block_rows = ms::ceil_div(p.rows, std::int64_t{facts.block_rows});
  const std::int64_t block_cols = ms::ceil_div(p.cols, std::int64_t{facts.block_columns});
  const std::int64_t row_bytes = ms::packed_bytes(facts.element_bits, p.cols);
  expect("codes", is_contiguous_matrix(p.codes, p.rows, row_bytes) && p.codes.scalar_type() == at::kByte,
         "contiguous bytes, " + ms::detail::shape_text(p.rows, row_bytes), p.codes);
  expect("scales",
         is_contiguous_matrix(p.scales, block_rows, block_cols) && p.scales.element_size() == facts.scale_bytes,
         "a contiguous tensor, " + ms::detail::shape_text(block_rows, block_cols), p.scales);
  expect("datum", p.datum.scalar_type() == at::kFloat && p.datum.numel() == 1, "one float", p.datum);
  expect_same_device("scales", p.scales, p.codes);
  expect_same_device("datum", p.datum, p.codes);
  return {p.codes.data_ptr<std::uint8_t>(), p.scales.data_ptr(), p.datum.data_ptr<float>(), p.rows, p.cols};
}

Tensor workspace_for(const Tensor& x, std::size_t bytes, quantize_request& request) {
  if (bytes == 0) return Tensor();
  Tensor workspace = at::empty({static_cast<std::int64_t>(bytes)}, x.options().dtype(at::kByte));
  request.workspace = {static_cast<std::byte*>(workspace.data_ptr()), bytes};
  return workspace;
}

// An empty matrix has no kernel that would write its multiplier.
Tensor multiplier_for(const Tensor& x) {
  const auto floats = x.options().dtype(at::kFloat);
  return x.numel() == 0 ? at::ones({1}, floats) : at::empty({1}, floats);
}

Tensor as_operand(const decoded_operand& o, bool is_left) {
  const bool turned = (o.along == ms::axis::row) != is_left;
  return turned ? o.values.t() : o.values;
}

}  // namespace

backend backend_of(const Tensor& t) { return t.is_cuda() ? backend::cuda : backend::cpu; }

place place_of([[maybe_unused]] const Tensor& t) {
#ifdef MICROSCALE_TORCH_CUDA
  if (t.is_cuda()) {
    return {.threads = 0, .stream = at::cuda::getCurrentCUDAStream(t.device().index()).stream()};
  }
#endif
  return {.threads = at::get_num_threads()};
}

bool is_captured([[maybe_unused]] const Tensor& t) {
#ifdef MICROSCALE_TORCH_CUDA
  if (t.is_cuda()) return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#endif
  return false;
}

matrix_memory memory_of(const Tensor& t) {
  expect("tensor", t.dim() == 2 && t.is_contiguous(), "a contiguous matrix", t);
  expect("tensor", t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, "FP32 or BF16", t);
  return {t.data_ptr(), t.scalar_type() == at::kFloat ? element_type::f32 : element_type::bf16, t.size(0), t.size(1)};
}

int as_int(const char* what, std::int64_t value) {
  const auto narrow = static_cast<int>(value);
  if (narrow != value) ms::detail::fail(what, "a number of 32 bits", std::to_string(value));
  return narrow;
}

void expect_same_device(const char* what, const Tensor& t, const Tensor& other) {
  if (t.device() != other.device()) ms::detail::fail(what, "a tensor on " + other.device().str(), t.device().str());
}

rounding_kind rounding_named(const std::string& name) {
  for (const auto& [kind, text] : rounding_names) {
    if (name == text) return kind;
  }
  ms::detail::fail("rounding", "nearest_even, stochastic_midpoint8, stochastic_floor8 or with_scale_draws", name);
}

const char* name_of(rounding_kind kind) { return rounding_names[static_cast<std::size_t>(kind)].second; }

packed quantize_packed(const Tensor& x, const scheme_operations& scheme, quantize_request request) {
  const scheme_facts& facts = scheme.facts();
  const matrix_memory in = memory_of(x);
  const bool along_row = request.axis == ms::axis::row;
  packed p;
  p.rows = along_row ? in.rows : in.cols;
  p.cols = along_row ? in.cols : in.rows;
  const auto bytes = x.options().dtype(at::kByte);
  p.codes = at::empty({p.rows, ms::packed_bytes(facts.element_bits, p.cols)}, bytes);
  p.scales = at::empty(
      {ms::ceil_div(p.rows, std::int64_t{facts.block_rows}), ms::ceil_div(p.cols, std::int64_t{facts.block_columns})},
      facts.scale_bytes == 1 ? bytes : x.options().dtype(at::kFloat));
  p.datum = at::ones({1}, x.options().dtype(at::kFloat));
  const packed_memory out = memory_of(p, facts);
  const Tensor workspace = workspace_for(x, scheme.workspace(in, out, request), request);
  scheme.quantize(place_of(x), in, out, request);
  return p;
}

Tensor decode(const packed& p, const scheme_operations& scheme, ms::axis along, at::ScalarType dtype,
              Tensor* multiplier) {
  const packed_memory in = memory_of(p, scheme.facts());
  const bool along_row = along == ms::axis::row;
  Tensor out = at::empty({along_row ? p.rows : p.cols, along_row ? p.cols : p.rows}, p.codes.options().dtype(dtype));
  if (multiplier != nullptr) *multiplier = at::ones({1}, p.datum.options());
  scheme.dequantize(place_of(p.codes), in, memory_of(out), along,
                    multiplier != nullptr ? multiplier->mutable_data_ptr<float>() : nullptr);
  return out;
}

void fake_quantize_to(const Tensor& x, Tensor& out, const scheme_operations& scheme, quantize_request request,
                      Tensor* multiplier) {
  const matrix_memory from = memory_of(x), to = memory_of(out);
  const Tensor workspace = workspace_for(x, scheme.workspace(from, to, request), request);
  float* factor = nullptr;
  if (multiplier != nullptr) {
    *multiplier = multiplier_for(x);
    factor = multiplier->mutable_data_ptr<float>();
  }
  scheme.fake_quantize(place_of(x), from, to, request, factor);
}

void fake_quantize_both_to(const Tensor& x, Tensor& rows, Tensor& cols, const scheme_operations& scheme,
                           quantize_request row_request, quantize_request col_request, Tensor* row_multiplier,
                           Tensor* col_multiplier) {
  const matrix_memory from = memory_of(x), to_rows = memory_of(rows), to_cols = memory_of(cols);
  const std::size_t bytes = std::max(
      {scheme.workspace(from, to_rows, row_request), scheme.workspace(from, to_cols, col_request), 2 * sizeof(float)});
  const Tensor workspace = workspace_for(x, x.is_cuda() ? bytes : 0, row_request);
  col_request.workspace = row_request.workspace;
  *row_multiplier = multiplier_for(x);
  *col_multiplier = col_request.transform ? multiplier_for(x) : *row_multiplier;
  scheme.fake_quantize_both(place_of(x), from, to_rows, to_cols, row_request, col_request,
                            row_multiplier->mutable_data_ptr<float>(), col_multiplier->mutable_data_ptr<float>());
}

void transform_to(const Tensor& x, Tensor& out, const ms::hadamard_options& options) {
  find_device(backend_of(x)).hadamard(place_of(x), memory_of(x), memory_of(out), options);
}

decoded_operand decode_operand(const packed& p, const scheme_operations& scheme) {
  decoded_operand out;
  out.values = decode(p, scheme, ms::axis::row, at::kBFloat16, &out.multiplier);
  if (!scheme.facts().has_tensor_scale) out.multiplier = Tensor();
  return out;
}

Tensor multiply_packed(const packed& a, const std::string& a_scheme, const packed& b, const std::string& b_scheme,
                       const std::string& accumulation, at::ScalarType dtype) {
  const backend where = backend_of(a.codes);
  const scheme_operations& sa = find_scheme(where, a_scheme);
  const scheme_operations& sb = find_scheme(where, b_scheme);
  if (a.cols != b.cols) ms::detail::fail("depth of a product", std::to_string(a.cols), std::to_string(b.cols));
  expect_same_device("second operand", b.codes, a.codes);
  if (accumulation == "vendor") {
    return multiply_decoded(decode_operand(a, sa), decode_operand(b, sb), dtype);
  }
  const gemm_operations& product = find_gemm(where, a_scheme, b_scheme, accumulation);
  Tensor c = at::empty({a.rows, b.rows}, a.codes.options().dtype(at::kFloat));
  const packed_memory left = memory_of(a, sa.facts()), right = memory_of(b, sb.facts());
  const auto bytes = product.workspace(left, right);
  const Tensor workspace = at::empty({static_cast<std::int64_t>(bytes)}, a.codes.options().dtype(at::kByte));
  product.run(place_of(a.codes), left, right, c.mutable_data_ptr<float>(),
              {static_cast<std::byte*>(workspace.data_ptr()), bytes});
  return c.to(dtype);
}

#ifdef MICROSCALE_TORCH_CUDA

namespace {

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) ms::detail::fail("cuBLAS", "success", cublasGetStatusString(status));
}

Tensor multiply_on_cuda(const decoded_operand& a, const decoded_operand& b, at::ScalarType dtype) {
  const bool a_rows = a.along == ms::axis::row, b_rows = b.along == ms::axis::row;
  const std::int64_t m = a.values.size(a_rows ? 0 : 1), k = a.values.size(a_rows ? 1 : 0);
  const std::int64_t n = b.values.size(b_rows ? 0 : 1);
  Tensor c = at::empty({m, n}, a.values.options().dtype(dtype));
  if (c.numel() == 0) return c;
  if (k == 0) return c.zero_();
  const auto floats = a.values.options().dtype(at::kFloat);
  Tensor factors;  // alpha and beta
  if (a.multiplier.defined() || b.multiplier.defined()) {
    const Tensor x = a.multiplier.defined() ? a.multiplier : at::ones({1}, floats);
    const Tensor y = b.multiplier.defined() ? b.multiplier : at::ones({1}, floats);
    factors = at::empty({2}, floats);
    find_device(backend::cuda)
        .multiply(place_of(a.values), x.const_data_ptr<float>(), y.const_data_ptr<float>(),
                  factors.mutable_data_ptr<float>());
  }
  const float host_factors[2] = {1.0f, 0.0f};
  const float* alpha = factors.defined() ? factors.const_data_ptr<float>() : host_factors;
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  cublasPointerMode_t before;
  check(cublasGetPointerMode(handle, &before));
  check(cublasSetPointerMode(handle, factors.defined() ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST));
  // Row-major C = A B^T is column-major C^T = B A^T.
  const cublasStatus_t status = cublasGemmEx(
      handle, b_rows ? CUBLAS_OP_T : CUBLAS_OP_N, a_rows ? CUBLAS_OP_N : CUBLAS_OP_T, static_cast<int>(n),
      static_cast<int>(m), static_cast<int>(k), alpha, b.values.const_data_ptr(), CUDA_R_16BF,
      static_cast<int>(b.values.size(1)), a.values.const_data_ptr(), CUDA_R_16BF, static_cast<int>(a.values.size(1)),
      alpha + 1, c.mutable_data_ptr(), dtype == at::kFloat ? CUDA_R_32F : CUDA_R_16BF, static_cast<int>(n),
      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  check(cublasSetPointerMode(handle, before));
  check(status);
  return c;
}

}  // namespace

#endif

Tensor multiply_decoded(const decoded_operand& a, const decoded_operand& b, at::ScalarType dtype) {
#ifdef MICROSCALE_TORCH_CUDA
  if (a.values.is_cuda()) return multiply_on_cuda(a, b, dtype);
#endif
  Tensor c = at::mm(as_operand(a, true).to(at::kFloat), as_operand(b, false).to(at::kFloat));
  if (a.multiplier.defined() && b.multiplier.defined()) {
    c.mul_(a.multiplier * b.multiplier);
  } else if (a.multiplier.defined() || b.multiplier.defined()) {
    c.mul_(a.multiplier.defined() ? a.multiplier : b.multiplier);
  }
  return c.to(dtype);
}

}  // namespace microscale_torch
