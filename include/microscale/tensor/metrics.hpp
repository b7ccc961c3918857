// What quantization cost: error and range figures of one quantized matrix against its source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantize.hpp"
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
    return 10.0 * __builtin_log10(signal / noise);
  }
  // The same of the worst block.
  double worst_db() const {
    if (worst_ratio < 0.0) return static_cast<double>(fp32::quiet_nan());
    return -10.0 * __builtin_log10(worst_ratio);
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

// The values of so many elements of a quantized matrix. Four-bit codes under scales of one byte have 4,096 values,
// which are looked up where one tensor scale holds for many more elements.
template <class Scheme>
class element_values {
  static constexpr bool few = Scheme::element::bits == 4 && sizeof(typename Scheme::scale::storage) == 1;

 public:
  template <class S>
  element_values(const quantized_view<S>& q, index_t elements) {
    if constexpr (few) {
      if (q.tile != tensor_tile{} || elements < (1 << 15)) return;
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

// What the elements of one block add up to.
struct block_errors {
  double signal = 0.0, noise = 0.0, largest_error = 0.0;  // as in quantization_metrics
  std::uint32_t largest = 0;                              // the bits of max |x|, above infinity's where there is a NaN
};

// The amax above which a block's ideal scale rounds past the largest one, and that below which it rounds to zero.
struct amax_limits {
  double ceiling, floor;
};
template <quantization_scheme S>
amax_limits amax_limits_of(const tensor_factors& t) {
  constexpr double top = static_cast<double>(S::scale::largest());
  constexpr double below_top = static_cast<double>(S::scale::decode(S::scale::largest_code - 1));
  constexpr double smallest = static_cast<double>(S::scale::smallest_positive());
  const double unit = static_cast<double>(t.decode) * static_cast<double>(S::element::largest());
  return {unit * (1.5 * top - 0.5 * below_top), unit * smallest * (S::scale::has_zero ? 0.5 : 1.0)};
}

// Adds a block of so many elements at (row, col) of the stored matrix.
template <quantization_scheme S>
void add_block(quantization_metrics& m, const block_errors& block, int elements, typename S::scale::storage scale,
               const amax_limits& limits, index_t row, index_t col) {
  ++m.blocks;
  if (S::scale::is_nan(scale)) ++m.nan_scales;
  if (block.largest >= fp32::infinity_bits) {
    ++m.nonfinite_blocks;
    return;
  }
  const double amax = static_cast<double>(fp32::from_bits(block.largest));
  if (amax > 0.0 && amax < limits.floor) ++m.underflowed_scales;
  if (amax > limits.ceiling) ++m.saturated_blocks;
  m.elements += elements;
  m.signal += block.signal;
  m.noise += block.noise;
  if (block.largest_error > m.largest_error) m.largest_error = block.largest_error;
  if (block.signal > 0.0 && block.noise / block.signal > m.worst_ratio) {
    m.worst_ratio = block.noise / block.signal;
    m.worst_row = row;
    m.worst_col = col;
  }
}

// `known` are the values of the block's codes, or null.
template <class T, class S>
block_errors errors_of_block(matrix_view<T> source, const quantized_view<S>& q, axis along, const tensor_factors& t,
                             index_t block_row, index_t block_col, const float* known = nullptr) {
  using scheme = typename quantized_view<S>::scheme_type;
  const block_extent extent = q.extent(block_row, block_col);
  const auto scale = q.scales[q.scale_offset(block_row, block_col)];
  block_errors block;
  for (int i = 0; i < extent.rows; ++i) {
    for (int j = 0; j < extent.columns; ++j) {
      const index_t r = block_row * scheme::block::rows + i, k = block_col * scheme::block::columns + j;
      const float x = to_float(along == axis::row ? source(r, k) : source(k, r));
      block.largest = larger(block.largest, fp32::magnitude_bits(x));
      const double exact = static_cast<double>(x);
      const auto code = q.code(r, k);
      const double e = exact - static_cast<double>(known ? known[code] : decode_element<scheme>(code, scale, t));
      block.signal += exact * exact;
      block.noise += e * e;
      if (__builtin_fabs(e) > block.largest_error) block.largest_error = __builtin_fabs(e);
    }
  }
  return block;
}

// The figures of each of block rows [first, last) of the stored grid, to of_rows[first] ... of_rows[last - 1].
template <class T, class S>
void measure_block_rows(matrix_view<T> source, const quantized_view<S>& q, axis along, index_t first, index_t last,
                        quantization_metrics* of_rows) {
  using scheme = typename quantized_view<S>::scheme_type;
  const element_values<scheme> values(q, (last - first) * scheme::block::rows * q.cols);
  const auto factors_at = [&](index_t tile) { return q.factors(tile); };
  for_blocks(q, factors_at, first, last, [&](index_t br, index_t bc, const tensor_factors& t) {
    const block_extent extent = q.extent(br, bc);
    const auto scale = q.scales[q.scale_offset(br, bc)];
    add_block<scheme>(of_rows[br], errors_of_block(source, q, along, t, br, bc, values.under(scale)),
                      extent.rows * extent.columns, scale, amax_limits_of<scheme>(t), br * scheme::block::rows,
                      bc * scheme::block::columns);
  });
}

}  // namespace detail

// Compares a quantized matrix with the one it came from; `along` as in the quantization. Each block is added up in the
// order of its elements, each row of blocks in the order of its blocks, and the rows in their order, on any number of
// threads. Throws ms::error where the shapes are not each other's.
template <host_executor Executor, readable_element T, quantized_operand Q>
quantization_metrics measure(const Executor& executor, matrix_view<T> source, const Q& q_in, axis along = axis::row) {
  const auto q = detail::read_only(q_in);
  using scheme = typename decltype(q)::scheme_type;
  detail::check_matrix("source", source);
  detail::check_quantized("quantized", q);
  detail::check_stored_shape(source, q, along);
  std::vector<quantization_metrics> of_rows(static_cast<std::size_t>(q.block_rows()));
  detail::run_ranges(executor, q.block_rows(), scheme::block::rows * q.cols, [&](index_t first, index_t last) {
    const auto ranges = detail::ranges_of(executor);
    if constexpr (requires { ranges.measure(source, q, along, first, last, of_rows.data()); }) {
      ranges.measure(source, q, along, first, last, of_rows.data());
    } else {
      detail::measure_block_rows(source, q, along, first, last, of_rows.data());
    }
  });
  quantization_metrics sum;
  detail::in_default_environment([&] {
    for (const quantization_metrics& row : of_rows) sum += row;
  });
  return sum;
}

// The same on the calling thread.
template <readable_element T, quantized_operand Q>
quantization_metrics measure(matrix_view<T> source, const Q& q_in, axis along = axis::row) {
  return measure(sequential{}, source, q_in, along);
}

}  // namespace microscale
