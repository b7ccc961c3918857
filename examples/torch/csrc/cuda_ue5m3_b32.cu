#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::ue5m3_b32 built;

}  // namespace
}  // namespace microscale_torch
