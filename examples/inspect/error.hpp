#pragma once

#include <microscale/interop/stored_tensor.hpp>

#include <stdexcept>
#include <string>

namespace inspect {

// What the caller asked for cannot be done, or a file is not what it should be: one line, exit code 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What an exception says, on one line, without the library's name before it.
inline std::string message_of(const std::exception& e) {
  const std::string text = e.what(), prefix = "microscale: ";
  return microscale::interop::printable(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

}  // namespace inspect
