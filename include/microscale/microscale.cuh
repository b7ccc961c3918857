// Everything for the host and for CUDA; needs nvcc. cuda/vendor_gemm.cuh, which needs cuBLAS, and recipe/nccl.cuh are
// included on their own.
#pragma once

#include "cuda/amax.cuh"
#include "cuda/bf16_gemm.cuh"
#include "cuda/executor.cuh"
#include "cuda/gemm.cuh"
#include "cuda/hadamard.cuh"
#include "cuda/hadamard_amax.cuh"
#include "cuda/hadamard_quantize.cuh"
#include "cuda/quantize.cuh"
#include "cuda/skinny_gemm.cuh"
#include "cuda/transpose.cuh"
#include "microscale.hpp"
#include "recipe/linear.cuh"
