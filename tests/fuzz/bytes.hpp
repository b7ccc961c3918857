// A fuzzer's bytes taken apart, and what it does when something does not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fuzz {

// Ends the program where it does not hold, so that the fuzzer keeps the input.
inline void require(bool holds) {
  if (!holds) std::abort();
}

// Takes values from the front; zeros where the bytes have run out.
struct reader {
  const std::uint8_t* data;
  std::size_t size;

  bool empty() const { return size == 0; }
  template <class T>
  T take() {
    T value{};
    const std::size_t n = size < sizeof(T) ? size : sizeof(T);
    std::memcpy(&value, data, n);
    data += n;
    size -= n;
    return value;
  }
  unsigned below(unsigned n) { return take<std::uint8_t>() % n; }
};

}  // namespace fuzz
