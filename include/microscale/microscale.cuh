// Everything for the host and for CUDA; needs nvcc. cuda/vendor_gemm.cuh, which needs cuBLAS, is included on its own.
#pragma once

#include "cuda/amax.cuh"
#include "cuda/executor.cuh"
#include "cuda/gemm.cuh"
#include "cuda/hadamard.cuh"
#include "cuda/quantize.cuh"
#include "cuda/skinny_gemm.cuh"
#include "microscale.hpp"
