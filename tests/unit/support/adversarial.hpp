// Blocks that tell one order of operations from another: random numbers do not.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace adversarial {

// A small generator of its own (splitmix64), so that a failing case can be found again.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  unsigned below(unsigned n) { return static_cast<unsigned>(bits() % n); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double normal();                                                       // nearly: a sum of uniforms
  float log_uniform(double low_exponent, double high_exponent);          // either sign
  float any_float();                                                     // any finite pattern

 private:
  std::uint64_t state_;
};

struct block {
  const char* what;
  float reference;
  std::vector<float> values;
};

// `count` blocks of `elements` numbers, all finite, each of some difficult kind.
std::vector<block> blocks(const model::scheme& s, int elements, int count, std::uint64_t seed);

}  // namespace adversarial
