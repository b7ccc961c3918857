// Holds the block functions of a scheme against the model, bit for bit.
#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <microscale/block/quantize_block.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "adversarial.hpp"
#include "model.hpp"

namespace held_to_model {

namespace ms = microscale;

// The draws of a block, given one by one.
struct given_draws {
  const unsigned* draws = nullptr;
  std::uint32_t operator()(int i) const noexcept { return draws[i]; }
};

inline std::uint32_t canonical(float x) {
  const std::uint32_t b = ms::fp32::bits(x);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : b;
}

// What differs, or nothing. `x` holds the elements inside the extent, row by row.
template <class S, class R = ms::nearest_even>
std::string difference(const model::scheme& m, float reference, const std::vector<float>& x, ms::block_extent extent,
                       model::rounding how = model::rounding::nearest_even, const std::vector<unsigned>& random = {},
                       R rounding = {}) {
  constexpr int columns = S::block::columns, elements = S::block::elements;
  float in[elements], out[elements];
  unsigned draws[elements] = {};
  std::fill(in, in + elements, 12345.0f);  // outside the extent: never read
  std::fill(out, out + elements, 54321.0f);
  for (int i = 0; i < extent.rows * extent.columns; ++i) {
    const int at = i / extent.columns * columns + i % extent.columns;
    in[at] = x[static_cast<std::size_t>(i)];
    if (!random.empty()) draws[at] = random[static_cast<std::size_t>(i)];
  }
  const ms::tensor_factors t = S::factors(reference);
  const ms::quantized_block<S> got = [&] {
    if constexpr (R::random_bits > 0) {
      return ms::quantize_block<S>(in, t, rounding, given_draws{draws}, extent);
    } else {
      return ms::quantize_block<S>(in, t, rounding, ms::no_draws{}, extent);
    }
  }();
  // Decoding goes through what a tensor stores.
  ms::dequantize_block(got, S::from_stored(S::stored(t)), out, extent);
  const model::block want = model::quantize(m, reference, x, how, random);

  std::ostringstream text;
  text << std::hex;
  // The one binary32 scale may be any NaN.
  const bool is_binary32 = m.how == model::rule::ufp4;
  const std::uint32_t scale = is_binary32 ? canonical(ms::fp32::from_bits(got.scale)) : got.scale;
  const std::uint32_t want_scale = is_binary32 ? canonical(ms::fp32::from_bits(want.scale)) : want.scale;
  if (scale != want_scale) text << "scale " << scale << ", not " << want_scale << "; ";
  if (got.has_nonfinite != want.has_nonfinite) text << "has_nonfinite " << got.has_nonfinite << "; ";
  for (int at = 0, i = 0; at < elements; ++at) {
    if (!ms::is_inside<typename S::block>(extent, at)) {
      if (got.codes[at] != 0 || ms::fp32::bits(out[at]) != ms::fp32::bits(54321.0f)) {
        text << "element " << std::dec << at << std::hex << " lies outside and was written; ";
      }
      continue;
    }
    const unsigned code = want.codes[static_cast<std::size_t>(i)];
    if (got.codes[at] != code) {
      text << "code of " << ms::fp32::bits(in[at]) << ' ' << static_cast<unsigned>(got.codes[at]) << ", not " << code
           << "; ";
    }
    const std::uint32_t value = canonical(out[at]), expected = canonical(want.out[static_cast<std::size_t>(i)]);
    if (value != expected)
      text << "value of " << ms::fp32::bits(in[at]) << ' ' << value << ", not " << expected << "; ";
    ++i;
  }
  return text.str();
}

template <class S, class R = ms::nearest_even>
void require_same(const model::scheme& m, const adversarial::block& b, ms::block_extent extent,
                  model::rounding how = model::rounding::nearest_even, const std::vector<unsigned>& random = {}) {
  const std::string found = difference<S, R>(m, b.reference, b.values, extent, how, random);
  if (!found.empty()) {
    std::ostringstream text;
    text << b.what << ", reference " << std::hex << ms::fp32::bits(b.reference) << ": " << found << "in";
    for (const float x : b.values) text << ' ' << ms::fp32::bits(x);
    FAIL(text.str());
  }
}

// Whole blocks and tails of finite numbers, then the stochastic modes.
template <class S>
void on_adversarial_blocks(const model::scheme& m, int count, std::uint64_t seed) {
  constexpr int rows = S::block::rows, columns = S::block::columns;
  for (const adversarial::block& b : adversarial::blocks(m, rows * columns, count, seed)) {
    require_same<S>(m, b, {rows, columns});
  }
  adversarial::numbers random(seed + 1);
  for (int n = 0; n < count / 4; ++n) {
    const ms::block_extent extent{1 + static_cast<int>(random.below(rows)),
                                  1 + static_cast<int>(random.below(columns))};
    const int elements = extent.rows * extent.columns;
    for (const adversarial::block& b : adversarial::blocks(m, elements, 1, seed + static_cast<std::uint64_t>(n))) {
      require_same<S>(m, b, extent);
    }
  }
  for (const adversarial::block& b : adversarial::blocks(m, rows * columns, count / 4, seed + 2)) {
    std::vector<unsigned> draws(b.values.size());
    for (unsigned& r : draws) r = random.below(256);
    require_same<S, ms::stochastic_midpoint8>(m, b, {rows, columns}, model::rounding::midpoint8, draws);
    require_same<S, ms::stochastic_floor8>(m, b, {rows, columns}, model::rounding::floor8, draws);
    require_same<S, ms::toward_zero>(m, b, {rows, columns}, model::rounding::toward_zero);
    require_same<S, ms::toward_positive>(m, b, {rows, columns}, model::rounding::toward_positive);
    require_same<S, ms::toward_negative>(m, b, {rows, columns}, model::rounding::toward_negative);
  }
}

// NaN and infinities sown into such blocks, under each policy.
template <class S, ms::nonfinite Policy>
void on_nonfinite_blocks(model::scheme m, int count, std::uint64_t seed) {
  using scheme = ms::with_nonfinite<S, Policy>;
  m.policy = static_cast<model::nonfinite>(Policy);
  static_assert(static_cast<int>(ms::nonfinite::owner) == 0 && static_cast<int>(ms::nonfinite::saturate) == 3);
  constexpr int rows = S::block::rows, columns = S::block::columns;
  const std::uint32_t patterns[] = {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0x7F800000u, 0xFF800000u};
  adversarial::numbers random(seed);
  for (adversarial::block& b : adversarial::blocks(m, rows * columns, count, seed)) {
    const unsigned how_many = random.below(8) == 0 ? static_cast<unsigned>(rows * columns) : random.below(3);
    for (unsigned i = 0; i < how_many; ++i) {
      b.values[random.below(static_cast<unsigned>(rows * columns))] = ms::fp32::from_bits(patterns[random.below(5)]);
    }
    require_same<scheme>(m, b, {rows, columns});
  }
}

template <class S>
void on_every_policy(const model::scheme& m, int count, std::uint64_t seed) {
  on_nonfinite_blocks<S, ms::nonfinite::owner>(m, count, seed);
  on_nonfinite_blocks<S, ms::nonfinite::poison>(m, count, seed);
  on_nonfinite_blocks<S, ms::nonfinite::reject>(m, count, seed);
  on_nonfinite_blocks<S, ms::nonfinite::saturate>(m, count, seed);
}

}  // namespace held_to_model
