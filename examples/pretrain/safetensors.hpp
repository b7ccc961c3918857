// Weights in the safetensors format: eight bytes of header length, a JSON header, the tensors.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model.hpp"

namespace pretrain {

// `metadata` must need no JSON escapes: names and numbers.
[[nodiscard]] inline std::string to_safetensors(const std::vector<parameter>& weights,
                                                const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  std::string header = "{\"__metadata__\":{";
  for (const char* comma = ""; const auto& [key, value] : metadata) {
    header.append(comma).append("\"").append(key).append("\":\"").append(value).append("\"");
    comma = ",";
  }
  header += '}';
  std::size_t offset = 0;
  for (const parameter& p : weights) {
    header += ",\"" + p.name + "\":{\"dtype\":\"F32\",\"shape\":[";
    for (const char* comma = ""; const auto extent : p.shape) {
      header.append(comma).append(std::to_string(extent));
      comma = ",";
    }
    const std::size_t end = offset + p.value.size() * sizeof(float);
    header += "],\"data_offsets\":[" + std::to_string(offset) + ',' + std::to_string(end) + "]}";
    offset = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the tensors start aligned

  std::string file;
  file.reserve(8 + header.size() + offset);
  for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(std::uint64_t{header.size()} >> shift & 0xFF);
  file += header;
  for (const parameter& p : weights)
    file.append(reinterpret_cast<const char*>(p.value.data()), p.value.size() * sizeof(float));
  return file;
}

}  // namespace pretrain
