// The GGUF reader.
#include <microscale/interop/gguf.hpp>

#include "tensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> file(data, size);
  try {
    const auto read = microscale::interop::read_gguf(file);
    fuzz::check_tensors(file, read.tensors);
    fuzz::require(read.type_names.size() == read.tensors.size());
  } catch (const microscale::error&) {
  }
  return 0;
}
