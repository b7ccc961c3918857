// Whole tensors: difficult numbers, memory with guards around it, and quantization stated once more, block by block and
// code by code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <microscale/tensor/quantized.hpp>
#include <string>
#include <vector>

#include "adversarial.hpp"

namespace tensors {

namespace ms = microscale;
using ms::index_t;

inline std::size_t size(index_t n) { return static_cast<std::size_t>(n); }

// Finite numbers: zeros of both signs, multiples of an eighth, subnormals, far-apart magnitudes, ordinary ones.
inline std::vector<float> difficult(index_t rows, index_t cols, std::uint64_t seed) {
  adversarial::numbers random(seed);
  std::vector<float> x(size(rows * cols));
  for (float& v : x) {
    switch (random.below(8)) {
      case 0:
        v = random.below(2) != 0 ? 0.0f : -0.0f;
        break;
      case 1:
        v = static_cast<float>(static_cast<int>(random.below(97)) - 48) * 0.125f;
        break;
      case 2:
        v = ms::fp32::from_bits(static_cast<std::uint32_t>(random.bits()) & 0x807FFFFFu);
        break;
      case 3:
        v = random.log_uniform(-30, 10);
        break;
      default:
        v = static_cast<float>(random.normal());
        break;
    }
  }
  return x;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& x, index_t rows, index_t cols) {
  std::vector<T> t(x.size());
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) t[size(c * rows + r)] = x[size(r * cols + c)];
  }
  return t;
}

inline float largest_magnitude(const std::vector<float>& x) {
  std::uint32_t bits = 0;
  for (const float v : x) {
    const std::uint32_t m = ms::fp32::bits(v) & 0x7FFFFFFFu;
    if (m <= 0x7F800000u) bits = std::max(bits, m);
  }
  return ms::fp32::from_bits(bits);
}

// How many numbers differ in a bit; NaNs are alike.
inline int different(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return -1;
  int n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = ms::fp32::is_nan(a[i]) && ms::fp32::is_nan(b[i]);
    n += !both_nan && ms::fp32::bits(a[i]) != ms::fp32::bits(b[i]) ? 1 : 0;
  }
  return n;
}

// A quantized matrix as plain numbers, whatever its layout in memory was.
struct plain {
  std::vector<unsigned> codes;        // rows x cols
  std::vector<std::uint32_t> scales;  // the grid of blocks, row-major
  std::vector<std::uint32_t> datum;   // bits of the tensor scales' data; none where the scheme has none
  friend bool operator==(const plain&, const plain&) = default;
};

// Draws by the definition, one Philox call each.
template <class R>
struct positional_draws {
  ms::random_key key;
  std::uint64_t row = 0, k = 0, k_extent = 0;
  int columns = 1;
  std::uint32_t operator()(int i) const {
    return ms::draw<R::random_bits>(key, ms::element_position(row + static_cast<std::uint64_t>(i / columns),
                                                              k + static_cast<std::uint64_t>(i % columns), k_extent));
  }
};

// What quantizing a K-major rows x cols matrix means: each block by the block function.
template <class S, class R = ms::nearest_even>
plain by_blocks(const std::vector<float>& x, index_t rows, index_t cols, float reference, R rounding = {},
                int target = S::tensor_scale::default_target) {
  using block = typename S::block;
  const ms::tensor_factors t = S::factors(reference, target);
  plain p{std::vector<unsigned>(x.size()), {}, {}};
  for (index_t r = 0; r < rows; r += block::rows) {
    for (index_t k = 0; k < cols; k += block::columns) {
      const ms::block_extent extent{static_cast<int>(std::min<index_t>(block::rows, rows - r)),
                                    static_cast<int>(std::min<index_t>(block::columns, cols - k))};
      float in[block::elements];
      std::fill(in, in + block::elements, 1e30f);  // outside the extent: must not matter
      for (int i = 0; i < extent.rows; ++i) {
        for (int j = 0; j < extent.columns; ++j) in[i * block::columns + j] = x[size((r + i) * cols + k + j)];
      }
      ms::quantized_block<S> q;
      if constexpr (R::random_bits > 0) {
        const positional_draws<R> draws{rounding.key(), static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(k),
                                        static_cast<std::uint64_t>(cols), block::columns};
        q = ms::quantize_block<S>(in, t, rounding, draws, extent);
      } else {
        q = ms::quantize_block<S>(in, t, rounding, ms::no_draws{}, extent);
      }
      p.scales.push_back(q.scale);
      for (int i = 0; i < extent.rows; ++i) {
        for (int j = 0; j < extent.columns; ++j)
          p.codes[size((r + i) * cols + k + j)] = q.codes[i * block::columns + j];
      }
    }
  }
  if (S::has_tensor_scale) p.datum.push_back(ms::fp32::bits(S::stored(t)));
  return p;
}

// The bit stream and the scale layouts, read bit by bit and byte by byte.
inline unsigned read_code(const std::uint8_t* bytes, int bits, index_t index) {
  unsigned code = 0;
  for (int b = 0; b < bits; ++b) {
    const index_t at = index * bits + b;
    code |= static_cast<unsigned>(bytes[at / 8] >> (at % 8) & 1) << b;
  }
  return code;
}
inline index_t place_of_scale(ms::scale_layout layout, index_t pitch, index_t columns, index_t r, index_t c) {
  if (layout == ms::scale_layout::linear) return r * pitch + c;
  const index_t tile = (r / 128) * ((columns + 3) / 4) + c / 4;
  return tile * 512 + (r % 32) * 16 + (r / 32 % 4) * 4 + c % 4;
}

template <class Q>
plain read(const Q& q) {
  using S = typename Q::scheme_type;
  plain p;
  const index_t grid_rows = (q.rows + S::block::rows - 1) / S::block::rows;
  const index_t grid_cols = (q.cols + S::block::columns - 1) / S::block::columns;
  for (index_t r = 0; r < q.rows; ++r) {
    for (index_t k = 0; k < q.cols; ++k) {
      p.codes.push_back(read_code(q.codes + r * q.code_pitch, S::element::bits, k));
    }
  }
  if (!q.empty()) {
    for (index_t r = 0; r < grid_rows; ++r) {
      for (index_t c = 0; c < grid_cols; ++c) {
        p.scales.push_back(q.scales[place_of_scale(q.layout, q.scale_pitch, grid_cols, r, c)]);
      }
    }
  }
  if (S::has_tensor_scale) {
    for (index_t i = 0; i < q.tile_rows() * q.tile_cols(); ++i) p.datum.push_back(ms::fp32::bits(q.datum[i]));
  }
  return p;
}

// Memory for a quantized matrix, prefilled, with room before and after each part and between rows.
template <class S>
class guarded {
 public:
  using storage = typename S::scale::storage;

  guarded(index_t rows, index_t cols, index_t slack = 0, ms::scale_layout layout = ms::scale_layout::linear,
          ms::tensor_tile tile = {})
      : rows_(rows), cols_(cols), layout_(layout), tile_(tile) {
    grid_rows_ = (rows + S::block::rows - 1) / S::block::rows;
    grid_cols_ = (cols + S::block::columns - 1) / S::block::columns;
    row_bytes_ = (cols * S::element::bits + 7) / 8;
    code_pitch_ = row_bytes_ + slack;
    scale_pitch_ = grid_cols_ + slack;
    const index_t scales = layout == ms::scale_layout::linear
                               ? grid_rows_ * scale_pitch_
                               : (grid_rows_ + 127) / 128 * 128 * ((grid_cols_ + 3) / 4 * 4);
    codes_.assign(size(guard + rows * code_pitch_ + guard), fill);
    scales_.assign(size(guard + scales + guard), filled());
    const ms::quantized_view<S> shape{.rows = rows, .cols = cols, .tile = tile};
    datum_.assign(size(guard + shape.tile_rows() * shape.tile_cols() + guard), ms::fp32::from_bits(filled_word));
  }

  ms::quantized_view<S> view() {
    return {codes_.data() + guard,
            scales_.data() + guard,
            datum_.data() + guard,
            rows_,
            cols_,
            code_pitch_,
            scale_pitch_,
            layout_,
            tile_};
  }

  // Whether anything was written that does not belong to the matrix.
  bool spilled() {
    bool bad = false;
    for (index_t i = 0; i < static_cast<index_t>(codes_.size()); ++i) {
      const index_t at = i - guard;
      const bool inside = at >= 0 && at < rows_ * code_pitch_ && at % code_pitch_ < row_bytes_;
      bad = bad || (!inside && codes_[size(i)] != fill);
    }
    const index_t scales = static_cast<index_t>(scales_.size()) - 2 * guard;
    for (index_t i = 0; i < static_cast<index_t>(scales_.size()); ++i) {
      const index_t at = i - guard;
      const bool inside =
          at >= 0 && at < scales && (layout_ != ms::scale_layout::linear || at % scale_pitch_ < grid_cols_);
      bad = bad || (!inside && scales_[size(i)] != filled());
    }
    const index_t data = S::has_tensor_scale ? view().tile_rows() * view().tile_cols() : 0;
    for (index_t i = 0; i < static_cast<index_t>(datum_.size()); ++i) {
      const bool inside = i >= guard && i < guard + data;
      bad = bad || (!inside && ms::fp32::bits(datum_[size(i)]) != filled_word);
    }
    return bad;
  }

  // Whether nothing was written at all.
  bool untouched() const {
    const auto is_filled_float = [](float x) { return ms::fp32::bits(x) == filled_word; };
    return std::all_of(codes_.begin(), codes_.end(), [](std::uint8_t b) { return b == fill; }) &&
           std::all_of(scales_.begin(), scales_.end(), [](storage s) { return s == filled(); }) &&
           std::all_of(datum_.begin(), datum_.end(), is_filled_float);
  }

 private:
  static constexpr index_t guard = 32;
  static constexpr std::uint8_t fill = 0xA5;
  static constexpr std::uint32_t filled_word = 0xA5A5A5A5u;
  static constexpr storage filled() { return static_cast<storage>(filled_word); }

  index_t rows_, cols_, grid_rows_ = 0, grid_cols_ = 0, row_bytes_ = 0, code_pitch_ = 0, scale_pitch_ = 0;
  ms::scale_layout layout_;
  ms::tensor_tile tile_;
  std::vector<std::uint8_t> codes_;
  std::vector<storage> scales_;
  std::vector<float> datum_;
};

// An executor that splits finely and goes through the parts backwards.
struct backwards {
  index_t parts = 5;
  template <class F>
  void for_ranges(index_t count, index_t /*cost*/, F&& f) const {
    const index_t n = std::min(parts, count);
    for (index_t i = n; i-- > 0;) f(count * i / n, count * (i + 1) / n);
  }
};

// ms::quantize for nearest_even alone, which takes an eighth of its time to compile.
template <class S, ms::host_executor Executor, class T>
ms::quantized<S> to_nearest(const Executor& executor, ms::matrix_view<T> in, const ms::quantize_options& options = {},
                            ms::scale_layout layout = ms::scale_layout::linear, ms::tensor_tile tile = {}) {
  const bool along_rows = options.axis == ms::axis::row;
  ms::quantized<S> q(along_rows ? in.rows : in.cols, along_rows ? in.cols : in.rows, layout, tile);
  ms::quantize_with(executor, in, q.view(), ms::nearest_even{}, options);
  return q;
}
template <class S, class T>
ms::quantized<S> to_nearest(ms::matrix_view<T> in, const ms::quantize_options& options = {},
                            ms::scale_layout layout = ms::scale_layout::linear, ms::tensor_tile tile = {}) {
  return to_nearest<S>(ms::sequential{}, in, options, layout, tile);
}

// What a call that must fail says; empty if it does not.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const ms::error& e) {
    return e.what();
  }
  return {};
}
inline bool says(const std::string& message, const char* part) { return message.find(part) != std::string::npos; }

}  // namespace tensors
