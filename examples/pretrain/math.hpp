// The few scalar functions that the model needs, written so that every machine and every vector
// width computes the same bits: sums are kept in eight lanes that are added in a fixed order, and
// exp is a polynomial of our own instead of a library function that differs between C libraries.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "parallel.hpp"

namespace pretrain {

inline constexpr int lanes = 8;

// The sum of term(i) for i in [0, n): term i goes to lane i % 8.
template <class Term>
[[nodiscard]] inline float lane_sum(index_t n, const Term& term) {
  float sum[lanes] = {};
  index_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sum[lane] += term(i + lane);
  for (int lane = 0; i + lane < n; ++lane) sum[lane] += term(i + lane);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

[[nodiscard]] inline float dot(const float* a, const float* b, index_t n) {
  return lane_sum(n, [=](index_t i) { return a[i] * b[i]; });
}

[[nodiscard]] inline float largest(const float* x, index_t n) {
  float top[lanes];
  for (float& lane : top) lane = x[0];
  index_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) top[lane] = x[i + lane] > top[lane] ? x[i + lane] : top[lane];
  float result = top[0];
  for (int lane = 1; lane < lanes; ++lane) result = top[lane] > result ? top[lane] : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// e^x for x <= 0, within two units in the last place; below -87 it stays at e^-87, about 1e-38.
// x = n ln 2 + r with |r| <= ln 2 / 2, so that e^x = 2^n e^r. The rounding to n adds and removes
// 1.5 * 2^23, whose unit in the last place is one; ln 2 is subtracted in two parts for accuracy.
[[nodiscard]] inline float exp_of_non_positive(float x) {
  constexpr float round = 12582912.0f;
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + round;
  const float n = shifted - round;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n as an integer: move it into the exponent field of p.
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

// In place: x becomes its softmax. Returns the largest element and the sum of the exponentials,
// from which a cross-entropy follows.
struct softmax_sums {
  float largest;
  float sum;
};

inline softmax_sums softmax(float* x, index_t n) {
  const float top = largest(x, n);
  for (index_t i = 0; i < n; ++i) x[i] = exp_of_non_positive(x[i] - top);
  const float sum = lane_sum(n, [=](index_t i) { return x[i]; });
  const float scale = 1.0f / sum;
  for (index_t i = 0; i < n; ++i) x[i] *= scale;
  return {top, sum};
}

// 64 random bits for a place in a run: the same for the same (seed, stream, index), whatever was
// drawn before. The mixing function is the finalizer of SplitMix64, applied to each word in turn.
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  std::uint64_t x = 0;
  for (const std::uint64_t word : {seed, stream, index}) {
    x = (x ^ word) + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return x;
}

// Uniform on [-1, 1), on a grid of 2^-23.
[[nodiscard]] constexpr float random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto bits = static_cast<std::int32_t>(random_bits(seed, stream, index) >> 40);
  return static_cast<float>(bits - (1 << 23)) * (1.0f / (1 << 23));
}

}  // namespace pretrain
