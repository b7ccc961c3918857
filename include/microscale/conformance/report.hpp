// What a comparison of somebody's function with the library's definition found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../number/fp32.hpp"

namespace microscale::conformance {

struct options {
  std::uint64_t seed = 1;     // of the blocks of check_quantizer; one seed, one set of blocks
  int blocks = 1 << 14;       // how many of them
  bool every_float = false;   // check_encoder: all 2^32 floats instead of those about the decision points
  bool negative_zero = true;  // whether the sign of a zero counts
  bool nonfinite = true;      // whether NaN and infinities are among the inputs
  std::size_t differences_kept = 8;
};

struct difference {
  std::string input, expected, got;
};

// How many of the inputs of one sort differ.
struct tally {
  std::string what;
  std::uint64_t cases = 0, different = 0;
};

struct report {
  std::string subject;
  std::uint64_t cases = 0, different = 0;
  std::vector<difference> first;  // the first differences, as many as options say
  std::vector<tally> by_kind;     // of check_quantizer: the same by sort of block
  std::vector<tally> named;       // how far the results are from other definitions by name, the nearest first

  bool passed() const { return different == 0; }
  explicit operator bool() const { return passed(); }

  // The name of another definition that explains every result; empty where there is none.
  std::string instead() const {
    return !passed() && !named.empty() && named.front().different == 0 ? named.front().what : "";
  }

  // Everything above, for people.
  std::string text() const {
    std::string s = subject + ": " + (passed() ? "no difference in " : std::to_string(different) + " differences in ") +
                    std::to_string(cases) + "\n";
    if (passed()) return s;
    for (const difference& d : first)
      s += "  " + d.input + "\n    expected " + d.expected + "\n    got      " + d.got + "\n";
    for (const tally& t : by_kind) {
      if (t.different > 0) s += "  " + line(t);
    }
    if (!instead().empty()) {
      s += "  every result is that of " + instead() + "\n";
    } else {
      for (const tally& t : named) s += "  held against " + line(t);
    }
    return s;
  }

 private:
  static std::string line(const tally& t) {
    return t.what + ": " + std::to_string(t.different) + " of " + std::to_string(t.cases) + " differ\n";
  }
};

namespace detail {

// At least `digits` hex digits.
inline std::string hex_of(std::uint32_t value, int digits = 2) {
  std::string s;
  for (int shift = 28; shift >= 0; shift -= 4) {
    if (shift < 4 * digits || value >> shift != 0) s += "0123456789abcdef"[(value >> shift) & 0xFu];
  }
  return s;
}
// A float as people and as files write it: "0.75 (3f400000)".
inline std::string text_of(float x) {
  char buffer[32];
  const int length = std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(x));
  return std::string(buffer, static_cast<std::size_t>(length)) + " (" + hex_of(fp32::bits(x), 8) + ")";
}

}  // namespace detail
}  // namespace microscale::conformance
