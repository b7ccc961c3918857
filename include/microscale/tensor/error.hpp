// The one exception of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace microscale {

// Thrown at the host boundary when a call's arguments do not fit together: what was expected, what came. Nothing has
// been written when it is thrown, except under nonfinite::reject (see quantize.hpp).
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

// "<what>: expected <expected>, got <got>"
[[noreturn]] inline void fail(const char* what, const std::string& expected, const std::string& got) {
  throw error(std::string("microscale: ") + what + ": expected " + expected + ", got " + got);
}

inline std::string shape_text(std::int64_t rows, std::int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

}  // namespace detail
}  // namespace microscale
