// A scheme: element format, scale format, block shape, scale rule and tensor scale, composed as a type.
#pragma once

#include "../number/format.hpp"
#include "block.hpp"
#include "scale_rule.hpp"
#include "tensor_scale.hpp"

namespace microscale {

// A scheme of your own takes one line:
//   using mine = scheme<e2m1, ue3m4, block<1, 16>, amax_over_max, no_tensor_scale>;
// and works everywhere a named one does: block functions, tensors, GEMM, host and device.
template <element_format Element, scale_format Scale, class Block, class Rule,
          tensor_scale_policy TensorScale = no_tensor_scale, nonfinite Policy = nonfinite::poison>
struct scheme {
  using element = Element;
  using scale = Scale;
  using block = Block;
  using rule = Rule;
  using tensor_scale = TensorScale;
  static constexpr nonfinite policy = Policy;

  static_assert(Block::columns * Element::bits % 8 == 0, "a run of a block must end on a byte");

  static constexpr bool has_tensor_scale = TensorScale::stored != tensor_datum::none;

  // What all blocks share, from the reference amax (finite, not negative) and the target: the block scale of a block
  // whose amax equals the reference.
  MICROSCALE_HD static constexpr tensor_factors factors(float reference,
                                                        int target = TensorScale::default_target) noexcept {
    return TensorScale::template from_reference<Element>(reference, target);
  }
  // The datum that a quantized tensor stores, and what decoding needs from it.
  MICROSCALE_HD static constexpr float stored(const tensor_factors& t) noexcept { return stored_datum<TensorScale>(t); }
  MICROSCALE_HD static constexpr tensor_factors from_stored(float datum) noexcept {
    return factors_from_stored<TensorScale, Element>(datum);
  }
  // The factor D with which a GEMM multiplies for this operand, from the stored datum.
  MICROSCALE_HD static constexpr float decode_multiplier(float datum) noexcept { return from_stored(datum).decode; }
};

template <class S>
concept quantization_scheme = requires {
  typename S::element;
  typename S::scale;
  typename S::block;
  typename S::rule;
  typename S::tensor_scale;
}
&&element_format<typename S::element>&& scale_format<typename S::scale>;

// Schemes whose blocks are square, so that their tensors can be turned without quantizing again.
template <class S>
concept square_scheme = quantization_scheme<S> && S::block::is_square;

// Schemes with a tensor scale above the block scales.
template <class S>
concept two_level_scheme = quantization_scheme<S> && S::has_tensor_scale;

// The same scheme under another policy for NaN and infinity.
template <quantization_scheme S, nonfinite Policy>
struct with_nonfinite : scheme<typename S::element, typename S::scale, typename S::block, typename S::rule,
                               typename S::tensor_scale, Policy> {};

// The same scheme over another block shape.
template <quantization_scheme S, class Block>
struct with_block
    : scheme<typename S::element, typename S::scale, Block, typename S::rule, typename S::tensor_scale, S::policy> {};

}  // namespace microscale
