// The safetensors reader, the index of sharded checkpoints, and the JSON reader under both. What is read can be written
// and read again.
#include <algorithm>

#include <microscale/interop/safetensors.hpp>

#include "tensors.hpp"

using namespace microscale::interop;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> file(data, size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const safetensors_file read = read_safetensors(file);
    fuzz::check_tensors(file, read.tensors);
    const std::string header = safetensors_header(read.tensors, read.metadata);
    std::vector<std::uint8_t> again(header.begin(), header.end());
    for (const auto& t : read.tensors) again.insert(again.end(), t.bytes.begin(), t.bytes.end());
    const safetensors_file second = read_safetensors(again);
    fuzz::require(second.metadata == read.metadata && second.tensors.size() == read.tensors.size());
    const tensor_index index(second.tensors);
    for (const auto& t : read.tensors) {
      const stored_tensor* same = index.find(t.name);
      fuzz::require(same != nullptr && same->type == t.type && same->shape == t.shape);
      fuzz::require(std::ranges::equal(same->bytes, t.bytes));
    }
  } catch (const microscale::error&) {
  }
  try {
    for (const auto& [tensor, shard] : read_safetensors_index(text)) fuzz::require(shard.find('/') == shard.npos);
  } catch (const microscale::error&) {
  }
  return 0;
}
