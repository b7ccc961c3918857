// The parser of vector files.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "vector_case.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    for (const auto& c : conformance::read_vectors(in)) {
      if (c.id.empty() || c.op.empty() || c.line < 2) std::abort();
    }
  } catch (const conformance::malformed& e) {
    if (e.line == 0 || *e.what() == '\0') std::abort();
  }
  return 0;
}
