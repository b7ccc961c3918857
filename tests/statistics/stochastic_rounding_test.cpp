// Stochastic rounding as statistics: is it unbiased, and are neighbours, rows, streams and seeds independent?
//
// Seeds are fixed, so the tests always give the same answer; what they claim is how unlikely that answer would be if
// the bits were not fair. Every count is compared with a limit that a sum of fair draws exceeds with probability at
// most `doubt` (Bernstein's inequality, which needs no approximation), and the doubts of all counts together stay below
// 1e-6.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <microscale/recipe/stream.hpp>
#include <microscale/tensor/quantized.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace ms = microscale;

namespace {

// At most 1,000 counts are judged in this file; `judged` counts them, and the last test case checks it.
constexpr double doubt = 1e-9;
int judged = 0;

// How far a sum of n independent draws, each within `reach` of its mean and of variance at most `variance`, may lie
// from its expectation: P(|sum - n mean| >= t) <= 2 exp(-t^2 / (2 (n variance + reach t / 3))).
double limit(double n, double variance, double reach) {
  const double log_odds = std::log(2 / doubt);
  const double linear = log_odds * reach / 3;
  return linear + std::sqrt(linear * linear + 2 * n * variance * log_odds);
}
bool is_fair(std::int64_t count, std::int64_t n, double p) {
  ++judged;
  return std::fabs(static_cast<double>(count) - static_cast<double>(n) * p) <=
         limit(static_cast<double>(n), p * (1 - p), 1);
}

// A fraction of the step, in 2^-40ths of it.
ms::remainder fraction(std::uint64_t forty_bits) { return {forty_bits << 24, false}; }

// The probability that R rounds away at this fraction, over its random integers: they are ordered, so it is the number
// of those from the first that does.
template <class R>
double probability(ms::remainder rest) {
  std::uint64_t low = 0, high = std::uint64_t{1} << R::random_bits;
  const std::uint64_t all = high;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (R::away(rest, false, false, static_cast<std::uint32_t>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<double>(all - low) / static_cast<double>(all);
}

struct bias {
  double largest = 0;  // by magnitude, with its sign
  double mean = 0;
};

// Over intervals of R's grid of 2^-bits, spread over the step: the worst lies just below a grid point or just below the
// middle between two; what is left on average is that of the two ends of an interval.
template <class R>
bias bias_of() {
  constexpr std::uint64_t intervals = 1 << 12, last = (std::uint64_t{1} << (40 - R::random_bits)) - 1;
  const auto error = [](std::uint64_t at) {
    return probability<R>(fraction(at)) - std::ldexp(static_cast<double>(at), -40);
  };
  bias b;
  double sum = 0;
  for (std::uint64_t i = 0; i < intervals; ++i) {
    const std::uint64_t begin = (i << 28) & ~last;
    for (const std::uint64_t at : {begin, begin + last / 2, begin + last / 2 + 1, begin + last}) {
      if (std::fabs(error(at)) > std::fabs(b.largest)) b.largest = error(at);
    }
    sum += (error(begin) + error(begin + last)) / 2;
  }
  b.mean = sum / static_cast<double>(intervals);
  return b;
}

// A row of the table in docs/numerics.md.
template <class R>
std::string row(const char* name, int power_of_worst, const char* mean) {
  std::ostringstream text;
  text << "| `" << name << "` | " << R::random_bits << " | 2^-" << power_of_worst << " | " << mean << " | 2^-"
       << (R::random_bits + (power_of_worst > R::random_bits ? 1 : 0)) << " |";
  return text.str();
}

bool documents(const std::string& text) {
  std::ifstream file(MICROSCALE_NUMERICS);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str().find(text) != std::string::npos;
}

// A matrix whose elements lie half-way between the codes of 2 and 3 (E2M1), under scales of exactly 1.
std::vector<float> half_way(ms::index_t rows, ms::index_t cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols), 2.5f);
  for (std::size_t i = 0; i < x.size(); i += 16) x[i] = 6.0f;
  return x;
}
// Which of them went up; the first of each block, which fixes the scale, counts as down.
template <class R>
std::vector<bool> ups(R rounding, ms::index_t rows, ms::index_t cols) {
  const std::vector<float> x = half_way(rows, cols);
  ms::quantized<ms::nvfp4_single> q(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), q.view(), rounding);
  std::vector<bool> up;
  for (ms::index_t r = 0; r < rows; ++r) {
    for (ms::index_t k = 0; k < cols; ++k) up.push_back(q.view().code(r, k) == 5);
  }
  return up;
}

// How many pairs (i, i + distance) of elements that can move agree; pairs[1] counts them.
std::array<std::int64_t, 2> agreeing(const std::vector<bool>& a, const std::vector<bool>& b, std::size_t distance) {
  std::array<std::int64_t, 2> pairs{};
  for (std::size_t i = 0; i + distance < a.size(); ++i) {
    if (i % 16 == 0 || (i + distance) % 16 == 0) continue;
    pairs[0] += a[i] == b[i + distance];
    ++pairs[1];
  }
  return pairs;
}

template <class R>
void rounds_away_as_often_as_it_should(std::uint64_t seed) {
  constexpr std::int64_t draws = 1 << 15;
  int unfair = 0;
  for (const std::uint64_t k : {0u, 1u, 3u, 16u, 64u, 100u, 128u, 200u, 255u}) {
    for (const std::uint64_t beyond : {std::uint64_t{0}, std::uint64_t{1} << 30, (std::uint64_t{1} << 31) + 12345}) {
      const ms::remainder rest = fraction((k << 32) + beyond);
      std::int64_t away = 0;
      for (std::int64_t i = 0; i < draws; ++i) {
        away += R::away(rest, false, false, ms::draw<R::random_bits>({seed, k}, static_cast<std::uint64_t>(i)));
      }
      unfair += !is_fair(away, draws, probability<R>(rest));
    }
  }
  CHECK(unfair == 0);
}

template <class R>
void is_unbiased_on_blocks(std::uint64_t seed) {
  // Elements anywhere between the codes of a block whose scale is 1, none beyond the largest.
  std::vector<float> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 16 == 0 ? 6.0f : static_cast<float>((i * 37) % 64) * 0.1875f - 6.0f;
  }
  constexpr int trials = 2048;
  std::vector<double> sum(x.size());
  for (int t = 0; t < trials; ++t) {
    R rounding;
    rounding.seed = seed;
    rounding.stream = static_cast<std::uint64_t>(t);
    ms::quantized<ms::nvfp4_single> q(4, 16);
    ms::quantize_with(ms::sequential{}, ms::matrix(x, 4, 16), q.view(), rounding);
    const std::vector<float> y = ms::dequantize(q);
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<double>(y[i]) - static_cast<double>(x[i]);
  }
  // These numbers lie on the grid of 1/256 steps, so the expectation is the number itself.
  int unfair = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[i]));
    const double step = magnitude >= 4 ? 2 : magnitude >= 2 ? 1 : 0.5;
    unfair += std::fabs(sum[i]) > limit(trials, step * step / 4, step);
    ++judged;
  }
  for (std::size_t b = 0; b < 4; ++b) {
    double block = 0;
    for (std::size_t i = 0; i < 16; ++i) block += sum[b * 16 + i];
    unfair += std::fabs(block) > limit(16.0 * trials, 1, 2);
    ++judged;
  }
  CHECK(unfair == 0);
}

}  // namespace

TEST_CASE("a draw rounds away as often as the mode says") {
  rounds_away_as_often_as_it_should<ms::stochastic_midpoint8>(1);
  rounds_away_as_often_as_it_should<ms::stochastic_midpoint16>(2);
  rounds_away_as_often_as_it_should<ms::stochastic_midpoint32>(3);
  rounds_away_as_often_as_it_should<ms::stochastic_floor8>(4);
}

TEST_CASE("the mean over streams is the number, element by element and block by block") {
  is_unbiased_on_blocks<ms::stochastic_midpoint8>(11);
  is_unbiased_on_blocks<ms::stochastic_midpoint16>(12);
  is_unbiased_on_blocks<ms::stochastic_midpoint32>(13);
  is_unbiased_on_blocks<ms::stochastic_floor8>(14);
}

TEST_CASE("neighbours in a row, rows, streams and seeds do not know of each other") {
  constexpr ms::index_t rows = 128, cols = 256;
  const auto independent = [](const std::vector<bool>& a, const std::vector<bool>& b, std::size_t distance) {
    const auto [agree, pairs] = agreeing(a, b, distance);
    return is_fair(agree, pairs, 0.5);
  };
  const auto with = [&](auto rounding, std::uint64_t seed, std::uint64_t stream) {
    rounding.seed = seed;
    rounding.stream = stream;
    return ups(rounding, rows, cols);
  };
  const auto all = [&](auto rounding) {
    int dependent = 0;
    const std::vector<bool> a = with(rounding, 7, 9);
    for (const std::size_t distance : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 12u, 15u, 16u, 17u, 31u, 32u, 48u, 64u, 128u}) {
      dependent += !independent(a, a, distance);
    }
    for (const std::size_t lines : {1u, 2u, 3u, 8u, 64u}) dependent += !independent(a, a, lines * cols);
    for (const std::uint64_t other : {8u, 10u, 11u, 73u, 1u << 20})
      dependent += !independent(a, with(rounding, 7, other), 0);
    for (const std::uint64_t other : {0u, 6u, 8u, 71u, 1u << 20})
      dependent += !independent(a, with(rounding, other, 9), 0);
    return dependent;
  };
  CHECK(all(ms::stochastic_midpoint8{}) == 0);
  CHECK(all(ms::stochastic_midpoint16{}) == 0);
  CHECK(all(ms::stochastic_midpoint32{}) == 0);
  CHECK(all(ms::stochastic_floor8{}) == 0);
}

TEST_CASE("every bit of a draw is fair, and no two bits of one Philox call agree too often") {
  constexpr std::int64_t calls = 1 << 13;
  std::array<std::int64_t, 128> set{};
  std::array<std::int64_t, 128> agree{};
  for (std::int64_t i = 0; i < calls; ++i) {
    const ms::philox_words w = ms::philox4x32({5, 6}, static_cast<std::uint64_t>(i));
    const auto bit = [&](std::size_t b) { return (w.word[b / 32] >> (b % 32) & 1) != 0; };
    for (std::size_t b = 0; b < 128; ++b) {
      set[b] += bit(b);
      agree[b] += bit(b) == bit((b * 29 + 41) % 128);
    }
  }
  int unfair = 0;
  for (std::size_t b = 0; b < 128; ++b) {
    unfair += !is_fair(set[b], calls, 0.5);
    if ((b * 29 + 41) % 128 != b) unfair += !is_fair(agree[b], calls, 0.5);
  }
  CHECK(unfair == 0);
}

TEST_CASE("the streams of a training run are apart") {
  // dY in Dgrad and in Wgrad, another operand, layer, micro-batch and step, and the draws of the scales.
  using enum ms::operand_role;
  using enum ms::gemm_role;
  const auto draws_of = [](std::uint64_t stream) {
    return ups(ms::stochastic_midpoint8{.seed = 3, .stream = stream}, 64, 256);
  };
  constexpr ms::training_step at{.step = 5, .micro_batch = 2};
  const std::vector<bool> a = draws_of(ms::random_stream(at, 3, output_gradient, dgrad));
  int dependent = 0;
  for (const std::uint64_t other : {
           ms::random_stream(at, 3, output_gradient, wgrad),
           ms::random_stream(at, 3, activation, dgrad),
           ms::random_stream(at, 4, output_gradient, dgrad),
           ms::random_stream({.step = 5, .micro_batch = 3}, 3, output_gradient, dgrad),
           ms::random_stream({.step = 6, .micro_batch = 2}, 3, output_gradient, dgrad),
           ms::random_stream(at, 3, output_gradient, dgrad, ms::draw_purpose::scales),
       }) {
    const auto [agree, pairs] = agreeing(a, draws_of(other), 0);
    dependent += !is_fair(agree, pairs, 0.5);
  }
  CHECK(dependent == 0);
}

TEST_CASE("fewer random bits: the bias that is left, as documented") {
  const auto holds = [](bias b, int power_of_worst, double mean) {
    // The worst is approached, and never exceeded; the mean is met to the spacing of the fractions tried.
    const double bound = std::ldexp(1.0, -power_of_worst);
    CHECK(std::fabs(b.largest) <= bound);
    CHECK(std::fabs(b.largest) >= bound * (1 - 1.0 / 64));
    CHECK(std::fabs(b.mean - mean) <= bound / 64);
  };
  holds(bias_of<ms::stochastic_midpoint8>(), 9, 0);
  holds(bias_of<ms::stochastic_midpoint16>(), 17, 0);
  holds(bias_of<ms::stochastic_midpoint32>(), 33, 0);
  holds(bias_of<ms::stochastic_floor<8>>(), 8, -std::ldexp(1.0, -9));
  holds(bias_of<ms::stochastic_floor<16>>(), 16, -std::ldexp(1.0, -17));
  holds(bias_of<ms::stochastic_floor<32>>(), 32, -std::ldexp(1.0, -33));

  CHECK(documents(row<ms::stochastic_midpoint8>("stochastic_midpoint8", 9, "0")));
  CHECK(documents(row<ms::stochastic_midpoint16>("stochastic_midpoint16", 17, "0")));
  CHECK(documents(row<ms::stochastic_midpoint32>("stochastic_midpoint32", 33, "0")));
  CHECK(documents(row<ms::stochastic_floor8>("stochastic_floor8", 8, "-2^-9")));
  CHECK(documents(row<ms::stochastic_floor<16>>("stochastic_floor<16>", 16, "-2^-17")));
  CHECK(documents(row<ms::stochastic_floor<32>>("stochastic_floor<32>", 32, "-2^-33")));
}

TEST_CASE("what lies below the last random bit never moves") {
  // The last column of the table: a fraction below it is rounded toward zero by every draw.
  CHECK(probability<ms::stochastic_midpoint8>(fraction((std::uint64_t{1} << 31) - 1)) == 0);
  CHECK(probability<ms::stochastic_midpoint8>(fraction(std::uint64_t{1} << 31)) == std::ldexp(1.0, -8));
  CHECK(probability<ms::stochastic_midpoint16>(fraction((std::uint64_t{1} << 23) - 1)) == 0);
  CHECK(probability<ms::stochastic_midpoint16>(fraction(std::uint64_t{1} << 23)) == std::ldexp(1.0, -16));
  CHECK(probability<ms::stochastic_midpoint32>(fraction((std::uint64_t{1} << 7) - 1)) == 0);
  CHECK(probability<ms::stochastic_midpoint32>(fraction(std::uint64_t{1} << 7)) == std::ldexp(1.0, -32));
  CHECK(probability<ms::stochastic_floor8>(fraction((std::uint64_t{1} << 32) - 1)) == 0);
  CHECK(probability<ms::stochastic_floor8>(fraction(std::uint64_t{1} << 32)) == std::ldexp(1.0, -8));
  CHECK(judged * doubt < 1e-6);
}
