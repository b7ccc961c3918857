#include "cpu.hpp"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cpu_scheme, cpu_gemm>::ms_eden built;

}  // namespace
}  // namespace microscale_torch
