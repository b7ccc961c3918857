#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::mx_folded built;

}  // namespace
}  // namespace microscale_torch
