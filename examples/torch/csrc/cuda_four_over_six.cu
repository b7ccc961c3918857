#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::four_over_six built;

}  // namespace
}  // namespace microscale_torch
