#include "cpu.hpp"
#include "schemes.hpp"

namespace microscale_torch {
namespace {

const families<cpu_scheme, cpu_gemm>::four_over_six built;

}  // namespace
}  // namespace microscale_torch
