// Weights as a safetensors file.
#pragma once

#include <microscale/interop/safetensors.hpp>

#include <map>
#include <string>
#include <vector>

#include "model.hpp"

namespace pretrain {

[[nodiscard]] inline std::string to_safetensors(const std::vector<parameter>& weights,
                                                const std::map<std::string, std::string>& metadata) {
  namespace interop = microscale::interop;
  std::vector<interop::stored_tensor> tensors;
  for (const parameter& p : weights) {
    tensors.push_back({p.name, interop::stored_type::f32, {p.shape.begin(), p.shape.end()}, {}});
  }
  std::string file = interop::safetensors_header(tensors, metadata);
  for (const parameter& p : weights)
    file.append(reinterpret_cast<const char*>(p.value.data()), p.value.size() * sizeof(float));
  return file;
}

}  // namespace pretrain
