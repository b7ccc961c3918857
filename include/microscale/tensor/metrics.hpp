// What quantization cost: error and range figures of one quantized matrix against its source.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "quantized.hpp"

namespace microscale {

// Sums over a matrix, so that the figures of several matrices can be added up before they are read.
struct quantization_metrics {
  double signal = 0.0;         // sum of x^2
  double noise = 0.0;          // sum of (x - x')^2, x' the decoded value
  double largest_error = 0.0;  // max |x - x'|
  std::int64_t elements = 0;
  std::int64_t blocks = 0;
  std::int64_t underflowed_scales = 0;  // blocks with a non-zero element whose ideal scale lies below half the smallest
                                        // positive scale, so that it underflows before the scheme's zero rule
  std::int64_t saturated_blocks = 0;    // blocks whose ideal scale, amax / (max D), would round past the largest scale
  std::int64_t nonfinite_blocks = 0;    // blocks with a NaN or an infinity; counted in no other figure but nan_scales
  std::int64_t nan_scales = 0;          // blocks whose scale is NaN
  // The block that lost most: the largest noise / signal, and the first element of that block as stored (-1 where no
  // block has a signal). Of equals, the first in row-major order, and the left operand's when added up.
  double worst_ratio = -1.0;
  index_t worst_row = -1, worst_col = -1;

  // Signal to quantization noise in dB: infinite without noise, NaN without a signal.
  double sqnr_db() const {
    if (signal == 0.0) return static_cast<double>(fp32::quiet_nan());
    if (noise == 0.0) return static_cast<double>(fp32::from_bits(fp32::infinity_bits));
    return 10.0 * std::log10(signal / noise);
  }
  // The same of the worst block.
  double worst_db() const {
    if (worst_ratio < 0.0) return static_cast<double>(fp32::quiet_nan());
    return -10.0 * std::log10(worst_ratio);
  }
  double underflowed_share() const { return share(underflowed_scales); }
  double saturated_share() const { return share(saturated_blocks); }

  quantization_metrics& operator+=(const quantization_metrics& other) {
    signal += other.signal;
    noise += other.noise;
    largest_error = other.largest_error > largest_error ? other.largest_error : largest_error;
    elements += other.elements;
    blocks += other.blocks;
    underflowed_scales += other.underflowed_scales;
    saturated_blocks += other.saturated_blocks;
    nonfinite_blocks += other.nonfinite_blocks;
    nan_scales += other.nan_scales;
    if (other.worst_ratio > worst_ratio) {
      worst_ratio = other.worst_ratio;
      worst_row = other.worst_row;
      worst_col = other.worst_col;
    }
    return *this;
  }

 private:
  double share(std::int64_t n) const {
    return blocks == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(blocks);
  }
};

namespace detail {

// The values of a quantized matrix's elements. Four-bit codes under scales of one byte have 4,096 values, which are
// looked up where one tensor scale holds for all of a matrix that is much larger.
template <class Scheme>
class element_values {
  static constexpr bool few = Scheme::element::bits == 4 && sizeof(typename Scheme::scale::storage) == 1;

 public:
  template <class S>
  explicit element_values(const quantized_view<S>& q) {
    if constexpr (few) {
      if (q.tile != tensor_tile{} || q.rows * q.cols < (1 << 15)) return;
      table_.resize(std::size_t{256} * 16);
      const tensor_factors t = q.factors();
      for (unsigned i = 0; i < table_.size(); ++i) {
        table_[i] = decode_element<Scheme>(static_cast<std::uint8_t>(i % 16), static_cast<std::uint8_t>(i / 16), t);
      }
    }
  }

  // The values under a scale, by code; null where they are to be computed.
  const float* under(typename Scheme::scale::storage scale) const noexcept {
    if constexpr (!few) return nullptr;
    return table_.empty() ? nullptr : table_.data() + 16 * static_cast<std::size_t>(scale);
  }

 private:
  std::vector<float> table_;
};

}  // namespace detail

// Compares `q` with the matrix it came from; `along` as in the quantization.
template <readable_element T, class S>
quantization_metrics measure(matrix_view<T> source, quantized_view<S> q, axis along = axis::row) {
  using scheme = typename quantized_view<S>::scheme_type;
  using block = typename scheme::block;
  detail::check_matrix("source", source);
  detail::check_quantized("quantized", q);
  detail::check_stored_shape(source, q, along);
  constexpr double top = static_cast<double>(scheme::scale::largest());
  constexpr double below_top = static_cast<double>(scheme::scale::decode(scheme::scale::largest_code - 1));
  constexpr double smallest = static_cast<double>(scheme::scale::smallest_positive());
  quantization_metrics m;
  detail::in_default_environment([&] {
    const detail::element_values<scheme> values(q);
    for (index_t br = 0; br < q.block_rows(); ++br) {
      for (index_t bc = 0; bc < q.block_cols(); ++bc) {
        const block_extent extent = q.extent(br, bc);
        const auto scale = q.scales[q.scale_offset(br, bc)];
        const float* known = values.under(scale);
        const tensor_factors t = q.factors(q.tile_index(br * block::rows, bc * block::columns));
        // The amax above which the ideal scale rounds past the largest one, and that below which it rounds to zero.
        const double unit = static_cast<double>(t.decode) * static_cast<double>(scheme::element::largest());
        const double ceiling = unit * (1.5 * top - 0.5 * below_top);
        const double floor = unit * smallest * (scheme::scale::has_zero ? 0.5 : 1.0);
        quantization_metrics of_block;
        running_amax amax;
        for (int i = 0; i < extent.rows; ++i) {
          for (int j = 0; j < extent.columns; ++j) {
            const index_t r = br * block::rows + i, k = bc * block::columns + j;
            const float x = to_float(along == axis::row ? source(r, k) : source(k, r));
            amax.see(x);
            const double exact = static_cast<double>(x);
            const auto code = q.code(r, k);
            const double e = exact - static_cast<double>(known ? known[code] : decode_element<scheme>(code, scale, t));
            of_block.signal += exact * exact;
            of_block.noise += e * e;
            of_block.largest_error = std::fabs(e) > of_block.largest_error ? std::fabs(e) : of_block.largest_error;
            ++of_block.elements;
          }
        }
        const double a = static_cast<double>(amax.ignoring_nan());
        if (amax.has_nonfinite()) {
          of_block = {};
          of_block.nonfinite_blocks = 1;
        } else {
          of_block.underflowed_scales = a > 0.0 && a < floor ? 1 : 0;
          of_block.saturated_blocks = a > ceiling ? 1 : 0;
          if (of_block.signal > 0.0) {
            of_block.worst_ratio = of_block.noise / of_block.signal;
            of_block.worst_row = br * block::rows;
            of_block.worst_col = bc * block::columns;
          }
        }
        of_block.nan_scales = scheme::scale::is_nan(scale) ? 1 : 0;
        of_block.blocks = 1;
        m += of_block;
      }
    }
  });
  return m;
}

}  // namespace microscale
