// What has to hold of tensors that a reader accepted, whatever bytes they came from.
#pragma once

#include <microscale/interop/stored_tensor.hpp>

#include <algorithm>
#include <span>
#include <vector>

#include "bytes.hpp"

namespace fuzz {

// Their bytes lie inside the file and are as many as shape and type say; every byte can be read, every float decoded.
inline void check_tensors(std::span<const std::uint8_t> file,
                          std::span<const microscale::interop::stored_tensor> tensors) {
  unsigned sum = 0;
  for (const auto& t : tensors) {
    require(t.elements() >= 0 && t.rows() * t.cols() == t.elements());
    if (!t.bytes.empty()) {
      require(t.bytes.data() >= file.data() && t.bytes.data() + t.bytes.size() <= file.data() + file.size());
    }
    for (const std::uint8_t byte : t.bytes) sum += byte;
    if (!is_float(t.type) || t.elements() == 0) continue;
    const auto layout = layout_of(t.type);
    require(t.elements() / layout.elements * layout.bytes == static_cast<std::int64_t>(t.bytes.size()));
    std::vector<float> x(static_cast<std::size_t>(t.elements()));
    load_floats(t, 0, t.elements(), x.data());
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
}

}  // namespace fuzz
