// Writing checkpoints: quantized for somebody's loader, or decoded again.
#pragma once

#include <microscale/interop/tensor_file.hpp>

#include <string>

#include "options.hpp"

namespace inspect {

// Both return a line that says what was written.
std::string quantize_checkpoint(const ms::interop::tensor_file& file, const options& o);
std::string dequantize_checkpoint(const ms::interop::tensor_file& file, const options& o);

}  // namespace inspect
