#pragma once

#include <stdexcept>

namespace pretrain {

// What the caller asked for cannot be done: one line on standard error and exit code 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pretrain
