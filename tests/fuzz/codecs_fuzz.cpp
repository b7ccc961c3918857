// Every format under every rounding, overflow rule and source type, against the definition worked out from the list of
// the format's values: neighbours by search, the fraction of the step exactly, the decision as docs/numerics.md has it.
#include <microscale/number/formats.hpp>
#include <microscale/number/value.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bytes.hpp"

namespace {

namespace ms = microscale;

// Holds every binary32, binary64 and 64-bit integer; sums and quotients below are exact in it.
using real = long double;
static_assert(std::numeric_limits<real>::digits >= 64);

enum class mode { even, zero, up, down, midpoint, floor };

// The values of the codes from 0 to the largest, and the one that would follow.
template <class F>
const std::vector<real>& magnitudes() {
  static const std::vector<real> values = [] {
    std::vector<real> v;
    for (std::uint32_t code = 0; code <= F::largest_code; ++code) {
      v.push_back(static_cast<real>(F::decode(static_cast<typename F::storage>(code))));
    }
    const real last = v.back();
    v.push_back(F::has_zero ? last + (last - v[v.size() - 2]) : 2 * last);
    return v;
  }();
  return values;
}

// Whether to leave the neighbour nearer zero, `here`, which is `fraction` of a step away.
bool away(mode how, int bits, real fraction, bool odd, bool negative, std::uint32_t r) {
  switch (how) {
    case mode::even:
      return fraction > 0.5L || (fraction == 0.5L && odd);
    case mode::zero:
      return false;
    case mode::up:
      return !negative && fraction > 0;
    case mode::down:
      return negative && fraction > 0;
    case mode::midpoint:
      return fraction >= 1 - std::ldexp(2 * static_cast<real>(r) + 1, -bits - 1);
    case mode::floor:
      return fraction >= 1 - std::ldexp(static_cast<real>(r), -bits);
  }
  return false;
}

template <class F>
constexpr bool is_fixed_point = requires {
  F::lowest_code;
};
template <class F>
constexpr bool is_full = std::is_same_v<F, ms::int8_full> || std::is_same_v<F, ms::int4_full>;

template <class F>
typename F::storage with_sign(std::uint32_t magnitude, bool negative) {
  if constexpr (is_fixed_point<F>) {
    return static_cast<typename F::storage>((negative ? 0u - magnitude : magnitude) & F::code_mask);
  } else {
    return static_cast<typename F::storage>(magnitude | (negative ? F::sign_mask : 0u));
  }
}

// The code of a magnitude past the range.
template <class F>
std::uint32_t beyond(ms::overflow on_overflow, bool negative) {
  std::uint32_t top = F::largest_code;
  if (is_full<F> && negative) ++top;
  if (on_overflow == ms::overflow::saturate || is_fixed_point<F>) return top;
  if constexpr (F::has_infinity) return F::infinity_code;
  if constexpr (F::has_nan) return F::nan_code;
  return top;
}

template <class F>
typename F::storage expected(real x, bool negative, mode how, int bits, ms::overflow on_overflow, std::uint32_t r) {
  if (std::isnan(x)) {
    if constexpr (F::has_nan) return with_sign<F>(F::nan_code, F::has_sign && negative);
    return F::largest_code;
  }
  if (!F::has_sign && negative) return 0;
  const real m = std::fabs(x);
  if (std::isinf(m)) return with_sign<F>(beyond<F>(on_overflow, negative), negative);
  const std::vector<real>& v = magnitudes<F>();
  if (m < v[0]) return 0;  // a power of two that there is not
  std::size_t at = static_cast<std::size_t>(std::upper_bound(v.begin(), v.end(), m) - v.begin()) - 1;
  if (at + 1 < v.size()) {
    const real step = v[at + 1] - v[at];
    constexpr bool counts_as_odd = std::is_same_v<F, ms::e8m0>;
    if (away(how, bits, (m - v[at]) / step, at % 2 == 1 || counts_as_odd, negative, r)) ++at;
  }
  if (at <= F::largest_code) return with_sign<F>(static_cast<std::uint32_t>(at), negative);
  const bool stays = how == mode::zero || (how == mode::up && negative) || (how == mode::down && !negative);
  return with_sign<F>(stays && !is_fixed_point<F> ? std::uint32_t{F::largest_code} : beyond<F>(on_overflow, negative),
                      negative);
}

// A number on its way into every mode: taken apart, so that each mode is compiled once for a format.
struct number {
  ms::unpacked parts;
  real value;
  ms::overflow on_overflow;
  std::uint32_t draw;
};

template <class F, class R>
void check(const number& x, mode how) {
  const std::uint32_t r = R::random_bits == 0 ? 0u : x.draw >> (32 - (R::random_bits == 0 ? 32 : R::random_bits));
  const auto got = F::encode(x.parts, R{}, x.on_overflow, r);
  fuzz::require(got == expected<F>(x.value, x.parts.negative, how, R::random_bits, x.on_overflow, r));
  // A value is its own code, under any mode and draw.
  const float y = F::decode(got);
  if (ms::fp32::is_nan(y)) return;
  const float again = F::decode(F::encode(ms::unpack(y), R{}, x.on_overflow, r));
  fuzz::require(ms::fp32::bits(again) == ms::fp32::bits(y));
}

template <class F, class T>
void every_rounding(T x, ms::overflow on_overflow, std::uint32_t draw) {
  const number n{ms::unpack(x), static_cast<real>(x), on_overflow, draw};
  check<F, ms::nearest_even>(n, mode::even);
  check<F, ms::toward_zero>(n, mode::zero);
  check<F, ms::toward_positive>(n, mode::up);
  check<F, ms::toward_negative>(n, mode::down);
  check<F, ms::stochastic_midpoint8>(n, mode::midpoint);
  check<F, ms::stochastic_midpoint16>(n, mode::midpoint);
  check<F, ms::stochastic_midpoint32>(n, mode::midpoint);
  check<F, ms::stochastic_floor8>(n, mode::floor);
  check<F, ms::stochastic_floor<32>>(n, mode::floor);
  fuzz::require(ms::value<F>(x).code() == F::encode(n.parts));
}

template <class F>
void every_source(std::uint64_t bits, ms::overflow on_overflow, std::uint32_t draw) {
  every_rounding<F>(ms::fp32::from_bits(static_cast<std::uint32_t>(bits)), on_overflow, draw);
  every_rounding<F>(ms::bit_cast<double>(bits), on_overflow, draw);
  every_rounding<F>(static_cast<std::int64_t>(bits), on_overflow, draw);
  every_rounding<F>(bits, on_overflow, draw);
  // Near a value of the format, in FP64: a few steps of a size that the input chooses.
  const float at = F::decode(static_cast<typename F::storage>(bits));
  if (ms::fp32::is_finite(at)) {
    const double past = std::ldexp(static_cast<std::int16_t>(bits >> 16), static_cast<int>(bits >> 58) - 60);
    every_rounding<F>(static_cast<double>(at) * (1 + past), on_overflow, draw);
  }
}

template <class... F>
void format_number(unsigned which, std::uint64_t bits, ms::overflow on_overflow, std::uint32_t draw) {
  unsigned i = 0;
  ((i++ == which ? every_source<F>(bits, on_overflow, draw) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::reader in{data, size};
  const unsigned which = in.below(17);
  const ms::overflow on_overflow = in.below(2) == 0 ? ms::overflow::saturate : ms::overflow::ieee;
  const std::uint32_t draw = in.take<std::uint32_t>();
  do {
    format_number<ms::e2m1, ms::e1m2, ms::e2m3, ms::e3m2, ms::e4m3, ms::e5m2, ms::int8, ms::int4, ms::int8_full,
                  ms::int4_full, ms::ue4m3, ms::ue5m3, ms::ue5m3_ieee, ms::e8m0, ms::e8m0_tie_even, ms::bf16, ms::f16>(
        which, in.take<std::uint64_t>(), on_overflow, draw);
  } while (!in.empty());
  return 0;
}
