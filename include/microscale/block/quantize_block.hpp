// One block: from numbers to codes and a scale, and back. This is the definition that every faster path is held to,
// bit for bit, and what a kernel author calls on values that sit in registers.
//
// All functions are constexpr, noexcept, allocate nothing and compile for host and device without a flag.
// Precondition on the host: the thread rounds to nearest and does not flush subnormals (the default state).
#pragma once

#include <concepts>
#include <cstdint>

#include "../number/random.hpp"
#include "scheme.hpp"

namespace microscale {

// Codes one per element, not packed; elements outside the extent have code 0.
template <quantization_scheme S>
struct quantized_block {
  typename S::element::storage codes[S::block::elements] = {};
  typename S::scale::storage scale = 0;
  bool has_nonfinite = false;  // a NaN or an infinity was among the inputs
};

// Draws for rounding modes that take none.
struct no_draws {
  MICROSCALE_HD constexpr std::uint32_t operator()(int) const noexcept { return 0; }
};

// The draws of a block whose first element is (row, k) of an operand with `k_extent` elements a row: draw i belongs to
// element i of the block. Keeps the last Philox call, so neighbours share it.
template <stochastic_mode R, class Block>
class block_draws {
 public:
  MICROSCALE_HD constexpr block_draws(R rounding, std::uint64_t row, std::uint64_t k, std::uint64_t k_extent) noexcept
      : key_(rounding.key()), row_(row), k_(k), k_extent_(k_extent) {}

  MICROSCALE_HD constexpr std::uint32_t operator()(int i) noexcept {
    constexpr std::uint64_t per_call = draws_per_call<R::random_bits>;
    const std::uint64_t position = element_position(row_ + static_cast<std::uint64_t>(i / Block::columns),
                                                    k_ + static_cast<std::uint64_t>(i % Block::columns), k_extent_);
    if (!valid_ || position / per_call != index_) {
      index_ = position / per_call;
      words_ = philox4x32(key_, index_);
      valid_ = true;
    }
    return extract_draw<R::random_bits>(words_, static_cast<int>(position % per_call));
  }

 private:
  random_key key_;
  std::uint64_t row_, k_, k_extent_;
  std::uint64_t index_ = 0;
  philox_words words_;
  bool valid_ = false;
};

// The position of the 32-bit draw that rounds the scale of the block whose first element is (row, k) of an operand with
// `k_extent` elements a row and `columns` of them a block.
MICROSCALE_HD constexpr std::uint64_t scale_position(std::uint64_t row, std::uint64_t k, std::uint64_t k_extent,
                                                     std::uint64_t columns) noexcept {
  return row * ceil_div(k_extent, columns) + k / columns;
}

// The rounding of blocks whose scale is rounded stochastically too: elements as `Elements` says, the scale with 32
// random bits from a stream of its own. What schemes take whose rule corrects the scale (refines_scale, below); whole
// tensors through quantize_with.
template <rounding_mode Elements = nearest_even>
struct with_scale_draws {
  // Stochastic, whatever the elements are: a block needs draws.
  static constexpr int random_bits = Elements::random_bits > 0 ? Elements::random_bits : 32;

  Elements elements = {};
  random_key scales = {};

  MICROSCALE_HD static constexpr bool away(remainder rest, bool odd, bool negative, std::uint32_t r) noexcept {
    return Elements::away(rest, odd, negative, r);
  }
};

template <class Elements, class Block>
class block_draws<with_scale_draws<Elements>, Block> {
 public:
  MICROSCALE_HD constexpr block_draws(const with_scale_draws<Elements>& rounding, std::uint64_t row, std::uint64_t k,
                                      std::uint64_t k_extent) noexcept
      : elements_(of_elements(rounding.elements, row, k, k_extent)),
        scales_(rounding.scales),
        scale_position_(scale_position(row, k, k_extent, std::uint64_t{Block::columns})) {}

  MICROSCALE_HD constexpr std::uint32_t operator()(int i) noexcept { return elements_(i); }
  // The draw of the block's scale.
  MICROSCALE_HD constexpr std::uint32_t scale() const noexcept { return draw<32>(scales_, scale_position_); }

 private:
  MICROSCALE_HD static constexpr auto of_elements(Elements rounding, std::uint64_t row, std::uint64_t k,
                                                  std::uint64_t k_extent) noexcept {
    if constexpr (stochastic_mode<Elements>) {
      return block_draws<Elements, Block>(rounding, row, k, k_extent);
    } else {
      return no_draws{};
    }
  }

  decltype(of_elements(Elements{}, 0, 0, 0)) elements_;
  random_key scales_;
  std::uint64_t scale_position_;
};

// The largest magnitude among numbers seen one by one, and whether any was NaN or infinite.
class running_amax {
 public:
  MICROSCALE_HD constexpr void see(float x) noexcept {
    const std::uint32_t m = fp32::magnitude_bits(x);
    if (m > fp32::infinity_bits) {
      has_nan_ = true;
    } else {
      bits_ = larger(bits_, m);
    }
  }
  // The amax over the numbers that are not NaN; 0 where there is none.
  MICROSCALE_HD constexpr float ignoring_nan() const noexcept { return fp32::from_bits(bits_); }
  // NaN where any was NaN.
  MICROSCALE_HD constexpr float with_nan() const noexcept { return has_nan_ ? fp32::quiet_nan() : ignoring_nan(); }
  MICROSCALE_HD constexpr bool has_nonfinite() const noexcept { return has_nan_ || bits_ == fp32::infinity_bits; }

 private:
  std::uint32_t bits_ = 0;
  bool has_nan_ = false;
};

// An infinity as the largest finite number of its sign (nonfinite::saturate); all else unchanged.
MICROSCALE_HD constexpr float finite_or_nan(float x) noexcept {
  return fp32::is_infinite(x) ? fp32::copy_sign(fp32::largest, x) : x;
}

// Whether a block with this amax is poisoned under S's policy.
template <quantization_scheme S>
MICROSCALE_HD constexpr bool is_poisoned(const running_amax& amax) noexcept {
  return (S::policy == nonfinite::poison || S::policy == nonfinite::reject) && amax.has_nonfinite();
}

// The amax that the scale rule sees, under S's policy for NaN and infinity.
template <quantization_scheme S>
MICROSCALE_HD constexpr float effective_amax(const running_amax& amax) noexcept {
  if constexpr (S::policy == nonfinite::owner) {
    return S::rule::nan_reaches_amax ? amax.with_nan() : amax.ignoring_nan();
  } else {
    return finite_or_nan(amax.ignoring_nan());
  }
}

// Whether S's rule chooses among several scales by the error that each would cause.
template <quantization_scheme S>
inline constexpr bool has_candidates = requires {
  S::rule::candidates;
};

// Whether S's rule corrects the scale once the elements are encoded, from their values and a random draw. Such a rule
// has, beside the functions that scale_rule.hpp lists,
//   correlation                        sums over elements, in FP32 and element order; += joins those of several blocks
//   see(correlation, scaled, element)  one more element: the number that was rounded, and the value of its code
//   refined(code, correlation, draw)   the code of the scale that is stored, from the one that elements were encoded
//                                      under and 32 random bits
template <quantization_scheme S>
inline constexpr bool refines_scale = requires {
  typename S::rule::correlation;
};

// The code of the scale that the elements are first encoded under, from the amax alone.
template <quantization_scheme S>
MICROSCALE_HD constexpr typename S::scale::storage first_block_scale(const running_amax& amax,
                                                                     const tensor_factors& t) noexcept {
  if (is_poisoned<S>(amax)) return S::scale::encode(fp32::quiet_nan());
  typename S::scale::storage code = 0;
  if constexpr (has_candidates<S>) {
    code = S::rule::template candidate<S>(effective_amax<S>(amax), t, 0);
  } else {
    code = S::rule::template scale<S>(effective_amax<S>(amax), t);
  }
  // The sign of a NaN that arithmetic made is the processor's choice; a scale has none.
  return S::scale::is_nan(code) ? S::scale::encode(fp32::quiet_nan()) : code;
}

// The code of the block scale from the amax alone; for a rule that chooses among candidates, the first of them.
template <quantization_scheme S>
MICROSCALE_HD constexpr typename S::scale::storage block_scale(const running_amax& amax,
                                                               const tensor_factors& t) noexcept {
  static_assert(!refines_scale<S>, "this scheme's scale depends on the elements: see quantize_block");
  return first_block_scale<S>(amax, t);
}

// The code of one element under `divisor`, which S::rule::divisor made from the block's scale.
template <quantization_scheme S, rounding_mode R, class Divisor>
MICROSCALE_HD constexpr typename S::element::storage encode_element(float x, const Divisor& divisor, R rounding,
                                                                    std::uint32_t random) noexcept {
  const float y = S::policy == nonfinite::saturate ? finite_or_nan(x) : x;
  auto scaled = S::rule::template scaled<S>(y, divisor);
  if constexpr (S::element::has_nan && std::same_as<decltype(scaled), float>) {
    // The sign of a NaN that arithmetic made is the processor's choice; the element's own is not.
    if (fp32::is_nan(scaled)) scaled = fp32::copy_sign(fp32::quiet_nan(), x);
  }
  return S::element::encode(scaled, rounding, overflow::saturate, random);
}

// The value of one element: its code, the code of its block's scale, and what the tensor stores.
template <quantization_scheme S>
MICROSCALE_HD constexpr float decode_element(typename S::element::storage code, typename S::scale::storage scale,
                                             const tensor_factors& t) noexcept {
  return S::rule::template decoded<S>(S::element::decode(code), S::scale::decode(scale), t);
}

namespace detail {

template <quantization_scheme S, rounding_mode R, class Draws>
MICROSCALE_HD constexpr void encode_elements(const float (&x)[S::block::elements], const tensor_factors& t, R rounding,
                                             Draws& draws, block_extent extent, quantized_block<S>& out) noexcept {
  const auto divisor = S::rule::template divisor<S>(out.scale, t);
  for (int i = 0; i < S::block::elements; ++i) {
    if (is_inside<typename S::block>(extent, i)) {
      out.codes[i] = encode_element<S>(x[i], divisor, rounding, R::random_bits > 0 ? draws(i) : 0u);
    }
  }
}

template <quantization_scheme S>
MICROSCALE_HD constexpr float block_error(const float (&x)[S::block::elements], const quantized_block<S>& q,
                                          const tensor_factors& t, block_extent extent) noexcept {
  float error = 0.0f;
  const float s = S::scale::decode(q.scale);
  for (int i = 0; i < S::block::elements; ++i) {
    if (is_inside<typename S::block>(extent, i)) {
      const float y = S::policy == nonfinite::saturate ? finite_or_nan(x[i]) : x[i];
      error = S::rule::template accumulate_error<S>(error, y, S::element::decode(q.codes[i]), s, t);
    }
  }
  return error;
}

// One more element of a correction, x rounded to `element`. Where the amax passes over a NaN, so does this.
template <quantization_scheme S, class Correlation, class Divisor>
MICROSCALE_HD constexpr void see_element(Correlation& sums, float x, float element, const Divisor& divisor) noexcept {
  if (S::policy == nonfinite::saturate && fp32::is_nan(x)) return;
  const float y = S::policy == nonfinite::saturate ? finite_or_nan(x) : x;
  S::rule::see(sums, S::rule::template scaled<S>(y, divisor), element);
}

}  // namespace detail

// What S's rule corrects the scale of a block by, over elements encoded under q.scale. A kernel whose correction spans
// several blocks (those of one rotation, say) adds theirs with += and gives each block's scale to S::rule::refined.
template <quantization_scheme S>
MICROSCALE_HD constexpr typename S::rule::correlation block_correlation(
    const float (&x)[S::block::elements], const quantized_block<S>& q, const tensor_factors& t,
    block_extent extent = full_extent<typename S::block>()) noexcept {
  const auto divisor = S::rule::template divisor<S>(q.scale, t);
  typename S::rule::correlation sums;
  for (int i = 0; i < S::block::elements; ++i) {
    if (is_inside<typename S::block>(extent, i)) {
      detail::see_element<S>(sums, x[i], S::element::decode(q.codes[i]), divisor);
    }
  }
  return sums;
}

// Quantizes one block: x row by row (S::block::columns a row), `t` from S::factors(reference), the rounding of the
// elements, and for a stochastic one the draws (draws(i) is the random integer of element i, draws.scale() that of the
// scale where the rule draws one; see block_draws). Elements outside `extent` are neither read for the amax nor
// encoded.
template <quantization_scheme S, rounding_mode R = nearest_even, class Draws = no_draws>
MICROSCALE_HD constexpr quantized_block<S> quantize_block(
    const float (&x)[S::block::elements], const tensor_factors& t, R rounding = {}, Draws draws = {},
    block_extent extent = full_extent<typename S::block>()) noexcept {
  static_assert(R::random_bits == 0 || !std::same_as<Draws, no_draws>,
                "a stochastic rounding needs draws: see block_draws");
  static_assert(
      !refines_scale<S> || requires { draws.scale(); }, "this scheme draws for its scale: see with_scale_draws");
  quantized_block<S> out;
  running_amax amax;
  for (int i = 0; i < S::block::elements; ++i) {
    if (is_inside<typename S::block>(extent, i)) amax.see(x[i]);
  }
  out.has_nonfinite = amax.has_nonfinite();
  out.scale = first_block_scale<S>(amax, t);
  if (is_poisoned<S>(amax)) {
    for (int i = 0; i < S::block::elements; ++i) {
      if (is_inside<typename S::block>(extent, i)) out.codes[i] = S::element::encode(fp32::quiet_nan());
    }
    return out;
  }
  detail::encode_elements<S>(x, t, rounding, draws, extent, out);
  if constexpr (has_candidates<S>) {
    // A later candidate wins only with a strictly smaller error; a NaN error never wins and is never beaten.
    float best = detail::block_error<S>(x, out, t, extent);
    for (int which = 1; which < S::rule::candidates; ++which) {
      quantized_block<S> other;
      other.has_nonfinite = out.has_nonfinite;
      other.scale = S::rule::template candidate<S>(effective_amax<S>(amax), t, which);
      detail::encode_elements<S>(x, t, rounding, draws, extent, other);
      const float error = detail::block_error<S>(x, other, t, extent);
      if (!fp32::is_nan(error) && !fp32::is_nan(best) && fp32::less(error, best)) {
        best = error;
        out = other;
      }
    }
  }
  if constexpr (refines_scale<S>) {
    out.scale = S::rule::template refined<S>(out.scale, block_correlation<S>(x, out, t, extent), draws.scale());
  }
  return out;
}

// The same from the reference amax itself (finite, not negative; ignored by schemes without a tensor scale).
template <quantization_scheme S, rounding_mode R = nearest_even, class Draws = no_draws>
MICROSCALE_HD constexpr quantized_block<S> quantize_block(
    const float (&x)[S::block::elements], float reference, R rounding = {}, Draws draws = {},
    block_extent extent = full_extent<typename S::block>()) noexcept {
  return quantize_block<S>(x, S::factors(reference), rounding, draws, extent);
}

// The values of a block; elements outside `extent` are left untouched.
template <quantization_scheme S>
MICROSCALE_HD constexpr void dequantize_block(const quantized_block<S>& q, const tensor_factors& t,
                                              float (&out)[S::block::elements],
                                              block_extent extent = full_extent<typename S::block>()) noexcept {
  for (int i = 0; i < S::block::elements; ++i) {
    if (is_inside<typename S::block>(extent, i)) out[i] = decode_element<S>(q.codes[i], q.scale, t);
  }
}

}  // namespace microscale
