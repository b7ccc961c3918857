// One block by its first elements, the rest zero.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/schemes.hpp>
#include <vector>

namespace reports {

namespace ms = microscale;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class S>
struct outcome {
  unsigned scale;
  std::vector<unsigned> codes;
  std::vector<float> values;
};

template <class S>
outcome<S> quantized(const std::vector<float>& first, float reference = 1.0f) {
  float x[S::block::elements] = {}, y[S::block::elements] = {};
  for (std::size_t i = 0; i < first.size(); ++i) x[i] = first[i];
  const auto q = ms::quantize_block<S>(x, reference);
  ms::dequantize_block(q, S::from_stored(S::stored(S::factors(reference))), y);
  outcome<S> o{static_cast<unsigned>(q.scale), {}, {}};
  for (int i = 0; i < S::block::elements; ++i) {
    o.codes.push_back(q.codes[i]);
    o.values.push_back(y[i]);
  }
  return o;
}

// Codes of `first.size()` leading elements.
template <class S>
bool has_codes(const outcome<S>& o, std::initializer_list<unsigned> codes) {
  std::size_t i = 0;
  for (const unsigned c : codes) {
    if (o.codes[i++] != c) return false;
  }
  return true;
}

inline bool all_finite(const std::vector<float>& x) {
  for (const float v : x) {
    if (!ms::fp32::is_finite(v)) return false;
  }
  return true;
}

}  // namespace reports
