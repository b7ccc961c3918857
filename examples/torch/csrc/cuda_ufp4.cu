#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::ufp4 built;

}  // namespace
}  // namespace microscale_torch
