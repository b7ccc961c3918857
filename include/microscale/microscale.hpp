// Everything that runs on the host. For CUDA, include microscale.cuh.
#pragma once

#include "block/quantize_block.hpp"
#include "block/schemes.hpp"
#include "number/formats.hpp"
#include "number/value.hpp"
#include "tensor/gemm.hpp"
#include "tensor/hadamard.hpp"
#include "tensor/metrics.hpp"
#include "tensor/quantized.hpp"
