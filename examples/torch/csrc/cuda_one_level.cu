#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::one_level built;

}  // namespace
}  // namespace microscale_torch
