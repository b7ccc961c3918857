// Rules made from rules: other roundings of the scale, headroom, and search for the scale with the least error.
#pragma once

#include "scale_rule.hpp"

namespace microscale {

// amax_over_max with the scale rounded by R. With toward_positive nothing clips: the rule that cuDNN's documentation
// gives for its block scale quantization.
template <rounding_mode R>
struct amax_over_max_rounded : amax_over_max {
  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    return S::scale::encode(amax_over_max::ideal<S>(amax, t), R{});
  }
};

// Rule as if every block's amax were fl(amax (Numerator / Denominator)): room above the largest element, so that a
// stochastic rounding or a correction of the scale does not clip (17/16 in arXiv 2601.22813).
template <class Rule, int Numerator, int Denominator>
struct with_headroom : Rule {
  static_assert(Numerator > 0 && Denominator > 0);
  static_assert(
      !requires { Rule::candidates; }, "search outside, headroom inside: search_scale<with_headroom<...>>");

  template <class S>
  MICROSCALE_HD static constexpr auto scale(float amax, const tensor_factors& t) noexcept {
    constexpr float factor = fp32::div(static_cast<float>(Numerator), static_cast<float>(Denominator));
    const float raised = fp32::mul(amax, factor);
    // A finite amax stays finite, also near the top of binary32.
    return Rule::template scale<S>(fp32::is_finite(amax) ? fp32::min_number(raised, fp32::largest) : raised, t);
  }
};

// Errors that a search minimizes, as FP32 sums in element order.
struct squared_error {
  MICROSCALE_HD static constexpr float with(float error, float value, float x) noexcept {
    const float d = fp32::sub(value, x);
    return fp32::add(error, fp32::mul(d, d));
  }
};
struct absolute_error {
  MICROSCALE_HD static constexpr float with(float error, float value, float x) noexcept {
    return fp32::add(error, fp32::abs(fp32::sub(value, x)));
  }
};

// Rule's scale, or one of its neighbours: the codes from `Below` under it to `Above` over it are tried, and the one
// whose decoded block has the least error wins. Of equal errors the scale nearest to Rule's wins, the lower one first.
// Codes stay within the finite codes of the scale format.
template <class Rule, class Error, int Below, int Above>
struct search_scale : Rule {
  static_assert(Below >= 0 && Above >= 0 && Below + Above > 0);
  static constexpr int candidates = Below + Above + 1;

  template <class S>
  MICROSCALE_HD static constexpr auto candidate(float amax, const tensor_factors& t, int which) noexcept {
    using storage = typename S::scale::storage;
    const int base = static_cast<int>(Rule::template scale<S>(amax, t));
    if (!S::scale::is_finite(static_cast<storage>(base))) return static_cast<storage>(base);
    return static_cast<storage>(smaller(larger(base + offset(which), 0), static_cast<int>(S::scale::largest_code)));
  }
  template <class S>
  MICROSCALE_HD static constexpr float accumulate_error(float error, float x, float element, float s,
                                                        const tensor_factors& t) noexcept {
    return Error::with(error, Rule::template decoded<S>(element, s, t), x);
  }

 private:
  // 0, -1, +1, -2, +2, ... as far as both sides reach, then the rest of the longer one.
  MICROSCALE_HD static constexpr int offset(int which) noexcept {
    constexpr int shared = Below < Above ? Below : Above;
    // The distance first and its sign after: g++ 12.2 at -O2 folds -((which + 1) / 2), for odd numbers below 5, to -1.
    const int distance = (which + 1) / 2;
    if (which <= 2 * shared) return which % 2 == 0 ? distance : -distance;
    return Below > Above ? -(which - shared) : which - shared;
  }
};

}  // namespace microscale
