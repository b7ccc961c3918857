#include "cuda.cuh"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cuda_scheme, cuda_gemm>::ms_eden built;

}  // namespace
}  // namespace microscale_torch
