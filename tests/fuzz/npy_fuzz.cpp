// The .npy reader. What is read can be written and read again.
#include <algorithm>

#include <microscale/interop/npy.hpp>

#include "tensors.hpp"

using namespace microscale::interop;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> file(data, size);
  try {
    const stored_tensor t = read_npy(file);
    fuzz::check_tensors(file, std::span(&t, 1));
    const std::string header = npy_header_bytes(t);
    std::vector<std::uint8_t> again(header.begin(), header.end());
    again.insert(again.end(), t.bytes.begin(), t.bytes.end());
    const stored_tensor second = read_npy(again);
    fuzz::require(second.type == t.type && second.shape == t.shape && std::ranges::equal(second.bytes, t.bytes));
  } catch (const microscale::error&) {
  }
  return 0;
}
