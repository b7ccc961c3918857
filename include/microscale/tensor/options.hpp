// What a caller may choose for one quantization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "../block/quantize_block.hpp"
#include "error.hpp"
#include "view.hpp"

namespace microscale {

// The rounding modes that a whole-tensor call takes. One of your own goes through quantize_with<R> or the block
// functions.
using any_rounding = std::variant<nearest_even, toward_zero, toward_positive, toward_negative, stochastic_midpoint8,
                                  stochastic_midpoint16, stochastic_midpoint32, stochastic_floor8>;

// One of them, chosen at run time, where a type of its own is not worth its code: the same bits as that type. Takes
// draws whatever the mode; those of a mode without are 0. For elements, which saturate.
class chosen_rounding {
 public:
  static constexpr int random_bits = 32;  // at most

  explicit chosen_rounding(const any_rounding& mode) : which_(static_cast<int>(mode.index())) {
    std::visit(
        [&]<class R>(const R& rounding) {
          bits_ = R::random_bits;
          if constexpr (stochastic_mode<R>) key_ = rounding.key();
        },
        mode);
  }

  MICROSCALE_HD int drawn_bits() const noexcept { return bits_; }
  MICROSCALE_HD random_key key() const noexcept { return key_; }

  MICROSCALE_HD constexpr bool away(remainder rest, bool odd, bool negative, std::uint32_t random) const noexcept {
    switch (which_) {
      case 0:
        return of<0>(rest, odd, negative, random);
      case 1:
        return of<1>(rest, odd, negative, random);
      case 2:
        return of<2>(rest, odd, negative, random);
      case 3:
        return of<3>(rest, odd, negative, random);
      case 4:
        return of<4>(rest, odd, negative, random);
      case 5:
        return of<5>(rest, odd, negative, random);
      case 6:
        return of<6>(rest, odd, negative, random);
      default:
        return of<7>(rest, odd, negative, random);
    }
  }

 private:
  static_assert(std::variant_size_v<any_rounding> == 8);
  template <int Which>
  MICROSCALE_HD static constexpr bool of(remainder rest, bool odd, bool negative, std::uint32_t random) noexcept {
    return std::variant_alternative_t<Which, any_rounding>::away(rest, odd, negative, random);
  }

  int which_ = 0;
  int bits_ = 0;
  random_key key_;
};

template <class Block>
class block_draws<chosen_rounding, Block> {
 public:
  MICROSCALE_HD block_draws(const chosen_rounding& rounding, std::uint64_t row, std::uint64_t k,
                            std::uint64_t k_extent) noexcept
      : bits_(rounding.drawn_bits()),
        eight_({rounding.key().seed, rounding.key().stream}, row, k, k_extent),
        sixteen_({rounding.key().seed, rounding.key().stream}, row, k, k_extent),
        all_({rounding.key().seed, rounding.key().stream}, row, k, k_extent) {}

  MICROSCALE_HD std::uint32_t operator()(int i) noexcept {
    return bits_ == 0 ? 0u : bits_ == 8 ? eight_(i) : bits_ == 16 ? sixteen_(i) : all_(i);
  }

 private:
  int bits_;
  block_draws<stochastic_midpoint8, Block> eight_;
  block_draws<stochastic_midpoint16, Block> sixteen_;
  block_draws<stochastic_midpoint32, Block> all_;
};

struct quantize_options {
  microscale::axis axis = microscale::axis::row;
  any_rounding rounding = nearest_even{};
  // The amax that the tensor scale derives from: finite and not negative (schemes whose owner accepts it: or
  // infinite). Null means this tensor's own (current scaling). Not read by schemes without a tensor scale. Host memory
  // for host executors, device memory for ms::cuda. Where the output has several tensor scales (quantized_view::tile),
  // one for each.
  const float* reference = nullptr;
  // The block scale that a block with amax == reference gets; 0 means the scheme's own. Only for schemes that store a
  // multiplier, since decoding does not need it.
  int target = 0;
  // Where the amax of this very input goes, NaN passed over, however it is quantized: what a later call's reference may
  // be. Null: nowhere. Memory like the reference's, but not the reference itself. On a device it comes out of the pass
  // that quantizes, where whole aligned blocks along rows allow, and costs one more read where not.
  float* amax = nullptr;
};

namespace detail {

// The elements of a matrix that is to be allocated: a shape of which no size in bytes could overflow.
inline std::size_t countable(const char* what, index_t rows, index_t cols) {
  constexpr index_t most = index_t{1} << 55;
  if (rows < 0 || cols < 0) fail(what, "a shape that is not negative", shape_text(rows, cols));
  if (rows > most || cols > most || (cols > 0 && rows > most / cols)) {
    fail(what, "at most 2^55 elements", shape_text(rows, cols));
  }
  return static_cast<std::size_t>(rows * cols);
}

// A matrix view is usable: sizes not negative, rows do not overlap, memory behind it unless it is empty.
template <class T>
void check_matrix(const char* what, const matrix_view<T>& m) {
  if (m.rows < 0 || m.cols < 0) fail(what, "a shape that is not negative", shape_text(m.rows, m.cols));
  if (m.rows > 1 && m.pitch < m.cols) {
    fail(what, "a pitch of at least " + std::to_string(m.cols), std::to_string(m.pitch));
  }
  if (!m.empty() && m.data == nullptr) fail(what, "memory for " + shape_text(m.rows, m.cols), "a null pointer");
}

template <class S>
void check_quantized(const char* what, const quantized_view<S>& q) {
  using scheme = typename quantized_view<S>::scheme_type;
  if (q.rows < 0 || q.cols < 0) fail(what, "a shape that is not negative", shape_text(q.rows, q.cols));
  if (scheme::has_tensor_scale && q.datum == nullptr)
    fail(what, "memory for the tensor scale's datum", "a null pointer");
  const tensor_tile& tile = q.tile;
  const bool whole_blocks = tile.rows % scheme::block::rows == 0 && tile.cols % scheme::block::columns == 0;
  if (tile.rows < 0 || tile.cols < 0 || !whole_blocks) {
    fail(what, "tensor-scale tiles of whole blocks", shape_text(tile.rows, tile.cols));
  }
  if (q.empty()) return;
  if (q.codes == nullptr || q.scales == nullptr) fail(what, "memory for codes and scales", "a null pointer");
  const index_t needed = packed_bytes(scheme::element::bits, q.cols);
  if (q.rows > 1 && q.code_pitch < needed) {
    fail(what, "a code pitch of at least " + std::to_string(needed) + " bytes", std::to_string(q.code_pitch));
  }
  if (q.layout == scale_layout::linear && q.block_rows() > 1 && q.scale_pitch < q.block_cols()) {
    fail(what, "a scale pitch of at least " + std::to_string(q.block_cols()), std::to_string(q.scale_pitch));
  }
}

// The stored shape that quantizing `in` along `along` gives is the shape of `out`.
template <class T, class S>
void check_stored_shape(const matrix_view<T>& in, const quantized_view<S>& out, axis along) {
  const index_t rows = along == axis::row ? in.rows : in.cols;
  const index_t cols = along == axis::row ? in.cols : in.rows;
  if (out.rows != rows || out.cols != cols) {
    fail("quantized shape", shape_text(rows, cols), shape_text(out.rows, out.cols));
  }
}

template <class T, class U>
void check_same_shape(const matrix_view<T>& in, const matrix_view<U>& out) {
  if (in.rows != out.rows || in.cols != out.cols) {
    fail("output shape", shape_text(in.rows, in.cols), shape_text(out.rows, out.cols));
  }
}

// The arguments of calls along both axes.
template <class T, class S>
void check_both(const matrix_view<T>& in, const quantized_view<S>& rows, const quantized_view<S>& cols) {
  check_matrix("input", in);
  check_quantized("output along rows", rows);
  check_quantized("output along columns", cols);
  check_stored_shape(in, rows, axis::row);
  check_stored_shape(in, cols, axis::col);
}
template <class T, class U>
void check_both(const matrix_view<T>& in, const matrix_view<U>& rows, const matrix_view<U>& cols) {
  check_matrix("input", in);
  check_matrix("output along rows", rows);
  check_matrix("output along columns", cols);
  check_same_shape(in, rows);
  check_same_shape(in, cols);
}

template <quantization_scheme S>
int checked_target(int target) {
  using policy = typename S::tensor_scale;
  if (target == 0 || target == policy::default_target) return policy::default_target;
  if (policy::stored == tensor_datum::none) fail("target", "0, there being no tensor scale", std::to_string(target));
  if (policy::stored == tensor_datum::reference) {
    fail("target", "0 or " + std::to_string(policy::default_target) + ", which an amax that is stored decodes with",
         std::to_string(target));
  }
  if (target < 0 || target > 1 << 20) fail("target", "1 to 2^20", std::to_string(target));
  return target;
}

template <quantization_scheme S>
float checked_reference(float reference) {
  if constexpr (S::has_tensor_scale) {
    const bool usable =
        fp32::is_finite(reference) || (S::tensor_scale::accepts_infinity && fp32::is_infinite(reference));
    if (!usable || (fp32::is_negative(reference) && !fp32::is_zero(reference))) {
      fail("reference amax", "a finite number that is not negative", std::to_string(reference));
    }
  }
  return fp32::abs(reference);
}

}  // namespace detail
}  // namespace microscale
