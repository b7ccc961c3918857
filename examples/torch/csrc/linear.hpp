// A linear layer's three products under a recipe, on tensors of either device.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <tuple>
#include <vector>

namespace microscale_torch {

// Y = X W^T of x (tokens x in) and weight (out x in), and what the backward products want of them. `references` holds
// the held amax of X, W and dY; `clock` the step and the micro-batch, on the CPU, or, for a CUDA graph, one number on
// the GPU, the stream_offset (recipe/stream.hpp) of both, which kernels read when they run.
std::tuple<at::Tensor, std::vector<at::Tensor>> linear_forward(const at::Tensor& x, const at::Tensor& weight,
                                                               const at::Tensor& references, const at::Tensor& clock,
                                                               const std::string& recipe, std::int64_t seed,
                                                               std::int64_t layer, at::IntArrayRef targets,
                                                               const std::string& accumulation, at::ScalarType dtype,
                                                               bool needs_dx, bool needs_dw);

// dX and dW; one that is not needed comes back empty.
std::tuple<at::Tensor, at::Tensor> linear_backward(const at::Tensor& dy, const std::vector<at::Tensor>& saved,
                                                   const at::Tensor& references, const std::string& recipe,
                                                   std::int64_t seed, std::int64_t layer, at::IntArrayRef targets,
                                                   const std::string& accumulation, std::int64_t in_features,
                                                   at::ScalarType x_dtype, at::ScalarType weight_dtype, bool needs_dx,
                                                   bool needs_dw);

}  // namespace microscale_torch
