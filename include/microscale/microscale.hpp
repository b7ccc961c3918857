// Everything that runs on the host. For CUDA, include microscale.cuh.
#pragma once

#include "block/quantize_block.hpp"
#include "block/rule_adaptors.hpp"
#include "block/schemes.hpp"
#include "host/executor.hpp"
#include "host/vendor_gemm.hpp"
#include "number/formats.hpp"
#include "number/value.hpp"
#include "recipe/linear.hpp"
#include "recipe/recipes.hpp"
#include "tensor/gemm.hpp"
#include "tensor/hadamard.hpp"
#include "tensor/metrics.hpp"
#include "tensor/quantized.hpp"
#include "tensor/rescale.hpp"
