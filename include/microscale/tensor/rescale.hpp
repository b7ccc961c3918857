// Moving a quantized tensor under another tensor scale, without touching its codes.
#pragma once

#include <cstdint>
#include <string>

#include "quantized.hpp"

namespace microscale {

namespace detail {

// Whether two finite numbers of one sign are the same.
constexpr bool same_magnitude(unpacked a, unpacked b) noexcept {
  if (a.sticky || b.sticky || (a.significand == 0) != (b.significand == 0)) return false;
  const int up_a = 64 - bit_width(a.significand), up_b = 64 - bit_width(b.significand);
  return a.significand == 0 ||
         (a.significand << up_a == b.significand << up_b && a.exponent - up_a == b.exponent - up_b);
}

}  // namespace detail

// Rewrites the block scales of `q` so that the tensor decodes under `datum` (what the scheme stores of the tensor
// scale) in place of its own: each scale becomes the nearest value to s D / D', D and D' being the two decode
// multipliers. Returns how many scales that changed in value: 0 means that the tensor decodes to the same numbers (up
// to the rounding of the decode itself), as for a power of two while no scale leaves the format's range.
//
// Two tensors quantized under different tensor scales must not be joined under one without this.
template <two_level_scheme S>
std::int64_t rescale(quantized_view<S> q, float datum) {
  detail::check_quantized("quantized tensor", q);
  if (q.tile != tensor_tile{}) {
    detail::fail("tensor to rescale", "one tensor scale", "tiles of " + detail::shape_text(q.tile.rows, q.tile.cols));
  }
  if (!fp32::is_finite(datum) || !fp32::less(0.0f, datum)) {
    detail::fail("tensor scale datum", "a positive finite number", std::to_string(datum));
  }
  float own = 0.0f, other = 0.0f;
  detail::in_default_environment([&] {
    own = q.factors().decode;
    other = S::decode_multiplier(datum);
  });
  // The reciprocal of a tiny encode multiplier overflows, and what is not a number has no ratio.
  if (!fp32::is_finite(own) || !fp32::is_finite(other)) {
    detail::fail("decode multipliers of the tensor scales", "finite numbers",
                 std::to_string(own) + " and " + std::to_string(other));
  }
  std::int64_t changed = 0;
  detail::in_default_environment([&] {
    const unpacked from = unpack(own), to = unpack(other);
    for (index_t br = 0; br < q.block_rows(); ++br) {
      for (index_t bc = 0; bc < q.block_cols(); ++bc) {
        auto& code = q.scales[q.scale_offset(br, bc)];
        if (!S::scale::is_finite(code)) continue;
        const unpacked exact = exact_quotient(exact_product(S::scale::unpack_code(code), from), to);
        code = S::scale::encode(exact);
        changed += detail::same_magnitude(S::scale::unpack_code(code), exact) ? 0 : 1;
      }
    }
    *q.datum = datum;
  });
  return changed;
}

}  // namespace microscale
