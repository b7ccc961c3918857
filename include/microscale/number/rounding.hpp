// Rounding modes: which of its two neighbours a number goes to.
//
// A mode is a type. Its `away` looks at the part of the magnitude that does not fit, and says whether to take the
// neighbour farther from zero. The stochastic modes take their random bits as an argument, so every mode is a pure
// function that can be tested over its whole domain; where the bits come from is said once, in random.hpp.
#pragma once

#include <concepts>
#include <cstdint>

#include "config.hpp"

namespace microscale {

// How far a magnitude lies past its neighbour nearer zero, as a fraction of the step between the two neighbours:
// fraction / 2^64, plus something below 2^-64 iff `sticky`.
struct remainder {
  std::uint64_t fraction = 0;
  bool sticky = false;

  MICROSCALE_HD constexpr bool is_zero() const noexcept { return fraction == 0 && !sticky; }
};

inline constexpr std::uint64_t half_step = std::uint64_t{1} << 63;

// To the nearest neighbour; half-way, to the one whose code is even (IEEE 754 roundTiesToEven).
struct nearest_even {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(remainder rest, bool odd, bool, std::uint32_t) noexcept {
    return rest.fraction > half_step || (rest.fraction == half_step && (rest.sticky || odd));
  }
};

struct toward_zero {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(remainder, bool, bool, std::uint32_t) noexcept { return false; }
};

struct toward_positive {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(remainder rest, bool, bool negative, std::uint32_t) noexcept {
    return !negative && !rest.is_zero();
  }
};

struct toward_negative {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(remainder rest, bool, bool negative, std::uint32_t) noexcept {
    return negative && !rest.is_zero();
  }
};

// What every stochastic mode carries when it is used on a whole tensor: the key of the random bits and the stream
// that they are drawn from (random.hpp).
struct random_key {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  friend constexpr bool operator==(const random_key&, const random_key&) = default;
};

// Stochastic rounding with a random integer r of `Bits` bits, unbiased on the grid of 2^-Bits steps: away from zero
// iff delta + (2r + 1) / 2^(Bits + 1) >= 1, delta being the fraction of the way to the farther neighbour
// (arXiv 2609.02846, "StochasticFast", for 8 bits). Between grid points the bias is below 2^-(Bits + 1) steps.
template <int Bits>
struct stochastic_midpoint {
  static_assert(Bits == 8 || Bits == 16 || Bits == 32);
  static constexpr int random_bits = Bits;

  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  MICROSCALE_HD constexpr random_key key() const noexcept { return {seed, stream}; }
  MICROSCALE_HD static constexpr bool away(remainder rest, bool, bool, std::uint32_t r) noexcept {
    // Both sides times 2^(Bits + 1); the floor of the left one decides because the rest is an integer.
    const std::uint64_t delta = rest.fraction >> (63 - Bits);
    return delta + 2 * std::uint64_t{r} + 1 >= (std::uint64_t{2} << Bits);
  }
};

// Stochastic rounding with a random integer r of `Bits` bits: away from zero iff delta + r / 2^Bits >= 1
// (TransformerEngine's software rounding, for 8 bits). Biased toward zero by up to 2^-Bits steps between grid points.
template <int Bits>
struct stochastic_floor {
  static_assert(Bits == 8 || Bits == 16 || Bits == 32);
  static constexpr int random_bits = Bits;

  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  MICROSCALE_HD constexpr random_key key() const noexcept { return {seed, stream}; }
  MICROSCALE_HD static constexpr bool away(remainder rest, bool, bool, std::uint32_t r) noexcept {
    const std::uint64_t delta = rest.fraction >> (64 - Bits);
    return delta + r >= (std::uint64_t{1} << Bits);
  }
};

using stochastic_midpoint8 = stochastic_midpoint<8>;
using stochastic_midpoint16 = stochastic_midpoint<16>;
using stochastic_midpoint32 = stochastic_midpoint<32>;
using stochastic_floor8 = stochastic_floor<8>;

template <class R>
concept rounding_mode = requires(const R& rounding, remainder rest, bool flag, std::uint32_t random) {
  { R::random_bits + 0 } -> std::same_as<int>;
  { rounding.away(rest, flag, flag, random) } -> std::same_as<bool>;
};

template <class R>
concept stochastic_mode = rounding_mode<R> &&(R::random_bits > 0);

// What becomes of a magnitude that rounds past the largest finite value. Rounding comes first, then this test.
//   saturate  the largest finite value, infinities included
//   ieee      the infinity of the format, or its NaN where it has no infinity; a format with neither saturates
// A rounding that points toward zero on that side stays at the largest finite value under both.
enum class overflow { saturate, ieee };

}  // namespace microscale
