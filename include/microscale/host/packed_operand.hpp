// packed_operand<S>: weights in the order in which the host's GEMM reads them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "../tensor/quantized.hpp"
#include "block_gemm_simd.hpp"

namespace microscale {
namespace detail {

// Memory that begins on a cache line.
template <class T>
struct cache_aligned {
  using value_type = T;
  static constexpr std::align_val_t line{64};

  cache_aligned() = default;
  template <class U>
  constexpr cache_aligned(const cache_aligned<U>&) noexcept {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), line)); }
  void deallocate(T* p, std::size_t) noexcept { ::operator delete(p, line); }
  friend constexpr bool operator==(const cache_aligned&, const cache_aligned&) noexcept { return true; }
};
template <class T>
using aligned_vector = std::vector<T, cache_aligned<T>>;

// The codes of a 4-bit format in units of 2^step_exponent.
template <class E>
struct code_integers {
  static constexpr code_values values = [] {
    code_values v{};
    for (int c = 0; c < 16; ++c) {
      const unpacked u = E::unpack_code(static_cast<typename E::storage>(c));
      const int magnitude = static_cast<int>(u.significand << (u.exponent - E::step_exponent));
      v.value[c] = static_cast<std::int16_t>(u.negative ? -magnitude : magnitude);
    }
    return v;
  }();
  static constexpr int largest = [] {
    int most = 0;
    for (const int v : values.value) most = larger(most, v < 0 ? -v : v);
    return most;
  }();
};

// Operands that the block kernels take: 4-bit codes that are integers of at most 4 bits and a sign, in runs of 16
// or 32.
template <class S>
concept block_gemm_scheme = quantization_scheme<S> && S::element::bits == 4 &&
                            (S::block::columns == 16 || S::block::columns == 32) && S::element::decode(0) == 0.0f &&
                            S::element::step_exponent >= -4 && code_integers<typename S::element>::largest <= 12;

// The bits that the scales of an operand have, zero and what is not finite left aside: all of them are multiples of
// 2^low below 2^high.
struct scale_span {
  int low = 0, high = 0;
};

template <class F>
constexpr scale_span span_between(unpacked low, unpacked high) noexcept {
  return {low.exponent, bit_width(high.significand) + high.exponent};
}
// Of all codes of a format.
template <class F>
constexpr scale_span format_span() noexcept {
  return {F::step_exponent, span_between<F>(F::unpack_code(0), F::unpack_code(F::largest_code)).high};
}
// Of the scales of a matrix.
template <class S>
scale_span span_of(const quantized_view<const S>& q) noexcept {
  using scale = typename S::scale;
  if constexpr (scale::bits > 8 || scale::has_sign) {
    return format_span<scale>();
  } else {
    unsigned low = scale::largest_code, high = 0;
    for (index_t i = 0; i < q.block_rows(); ++i) {
      for (index_t j = 0; j < q.block_cols(); ++j) {
        const unsigned code = q.scales[q.scale_offset(i, j)] & unsigned{scale::magnitude_mask};
        if (code > scale::largest_code || (scale::has_zero && code == 0)) continue;
        low = smaller(low, code);
        high = larger(high, code);
      }
    }
    high = larger(low, high);
    return span_between<scale>(scale::unpack_code(static_cast<typename scale::storage>(low)),
                               scale::unpack_code(static_cast<typename scale::storage>(high)));
  }
}

// A block scale as a float; NaN if it is not finite.
template <class F>
constexpr float finite_scale(typename F::storage code) noexcept {
  return F::is_finite(code) ? F::decode(code) : fp32::quiet_nan();
}

// Formats that kernels decode.
template <class F>
concept byte_scale = F::bits <= 8 && !F::has_sign;

template <byte_scale F>
constexpr scale_code scale_code_of() noexcept {
  return {F::magnitude_mask,
          F::largest_code,
          1u << F::mantissa_bits,
          23 - F::mantissa_bits,
          static_cast<std::uint32_t>(127 - F::bias) << 23,
          fp32::bits(F::decode(0)),
          F::has_zero ? F::decode(1) : 0.0f};
}

// ---------------------------------------------------------------------------------------------------------------
// The order of a packed right operand: chunks of k, in each the panels of 16 rows, in each the words of codes, then
// the scales, [block][row] or one for all rows where blocks are square.

inline constexpr index_t gemm_chunk = 512;

template <class S>
struct panel_order {
  using scale_storage = typename S::scale::storage;
  static constexpr int block = S::block::columns;
  static constexpr bool shared = S::block::rows % panel_columns == 0;
  static constexpr index_t scales_per_block = shared ? 1 : panel_columns;

  index_t rows = 0, cols = 0;

  constexpr index_t panels() const noexcept { return ceil_div(rows, panel_columns); }
  constexpr index_t chunks() const noexcept { return ceil_div(cols, gemm_chunk); }
  constexpr index_t blocks(index_t chunk) const noexcept {
    return ceil_div(smaller(gemm_chunk, cols - chunk * gemm_chunk), index_t{block});
  }
  static constexpr index_t record(index_t blocks) noexcept {
    return blocks * block / 2 * panel_columns +
           round_up(blocks * scales_per_block * static_cast<index_t>(sizeof(scale_storage)), index_t{64});
  }
  // Where the scales of a panel lie behind its words.
  static const scale_storage* scales(const std::uint8_t* words, index_t blocks) noexcept {
    return reinterpret_cast<const scale_storage*>(words + blocks * block / 2 * panel_columns);
  }
  constexpr index_t offset(index_t chunk, index_t panel) const noexcept {
    return chunk * panels() * record(gemm_chunk / block) + panel * record(blocks(chunk));
  }
  constexpr index_t bytes() const noexcept { return chunks() == 0 ? 0 : offset(chunks() - 1, panels()); }
};

// Bytes [first, first + count) of a row of codes, zeros behind its end and in a nibble that is none of its codes.
template <class S>
void copy_codes(const quantized_view<const S>& q, index_t r, index_t first, index_t count, std::uint8_t* out) noexcept {
  const index_t whole = q.cols / 2;
  const index_t here = smaller(count, larger(index_t{0}, whole - first));
  const std::uint8_t* row = q.codes + r * q.code_pitch;
  if (here > 0) std::memcpy(out, row + first, static_cast<std::size_t>(here));
  if (here < count) std::memset(out + here, 0, static_cast<std::size_t>(count - here));
  if (q.cols % 2 != 0 && whole >= first && whole < first + count) {
    out[whole - first] = static_cast<std::uint8_t>(row[whole] & 15);
  }
}

// One panel of one chunk of `q` in packed order.
template <class S>
void pack_panel(const quantized_view<const S>& q, index_t chunk, index_t panel, std::uint8_t* out) noexcept {
  using order = panel_order<S>;
  const index_t blocks = order{q.rows, q.cols}.blocks(chunk), words = blocks * order::block / 8;
  const index_t first_row = panel * panel_columns, first_block = chunk * gemm_chunk / order::block;
  auto* const scales = reinterpret_cast<typename S::scale::storage*>(out + words * 4 * panel_columns);
  for (index_t r = 0; r < panel_columns; r += 2) {
    std::uint64_t pair[2][gemm_chunk / 16] = {};  // two rows, two words at a time
    for (index_t i = 0; i < 2; ++i) {
      if (first_row + r + i >= q.rows) continue;
      copy_codes(q, first_row + r + i, chunk * gemm_chunk / 2, 4 * words, reinterpret_cast<std::uint8_t*>(pair[i]));
    }
    for (index_t w = 0; w < words; w += 2) {
      const std::uint64_t upper = pair[0][w / 2], lower = pair[1][w / 2], low_half = 0xFFFFFFFFu;
      const std::uint64_t first = (upper & low_half) | lower << 32, second = upper >> 32 | (lower & ~low_half);
      std::memcpy(out + 4 * (w * panel_columns + r), &first, 8);
      std::memcpy(out + 4 * ((w + 1) * panel_columns + r), &second, 8);
    }
  }
  for (index_t r = 0; r < order::scales_per_block; ++r) {
    for (index_t b = 0; b < blocks; ++b) {
      scales[b * order::scales_per_block + r] =
          first_row + r < q.rows ? q.scales[q.scale_offset((first_row + r) / S::block::rows, first_block + b)]
                                 : typename S::scale::storage{};
    }
  }
}

}  // namespace detail

// A quantized matrix in the order in which the host's GEMM reads its right operand: for weights that are multiplied
// more than once. Same codes, scales and tensor scales; `unpacked()` gives them back. Rows x cols as stored, K-major.
// Of schemes that have no order of their own (elements of more than four bits, blocks of other lengths) this is a copy
// with scales in linear layout.
template <quantization_scheme S>
class packed_operand {
 public:
  using scheme_type = S;

  // 0 x 0.
  packed_operand() = default;
  // Copies `q`; throws ms::error if its shape, pitches or pointers are none that a quantized matrix can have.
  explicit packed_operand(const quantized_view<const S>& q) {
    detail::check_quantized("packed operand", q);
    rows_of_codes_ = quantized<S>(q.rows, q.cols, scale_layout::linear, q.tile);
    const quantized_view<S> out = rows_of_codes_.view();
    for (index_t r = 0; q.cols > 0 && r < q.rows; ++r) {
      std::memcpy(out.codes + r * out.code_pitch, q.codes + r * q.code_pitch,
                  static_cast<std::size_t>(packed_bytes(S::element::bits, q.cols)));
    }
    for (index_t i = 0; i < q.block_rows(); ++i) {
      for (index_t j = 0; j < q.block_cols(); ++j) out.scales[out.scale_offset(i, j)] = q.scales[q.scale_offset(i, j)];
    }
    if constexpr (S::has_tensor_scale) std::copy_n(q.datum, q.tile_rows() * q.tile_cols(), out.datum);
  }

  index_t rows() const noexcept { return rows_of_codes_.rows(); }
  index_t cols() const noexcept { return rows_of_codes_.cols(); }
  // Of codes and scales, padding included.
  std::size_t size_bytes() const noexcept {
    return rows_of_codes_.codes().size() + rows_of_codes_.scales().size() * sizeof(typename S::scale::storage);
  }
  // The same matrix with rows of codes, scales in linear layout.
  const quantized<S>& unpacked() const noexcept { return rows_of_codes_; }

 private:
  quantized<S> rows_of_codes_;
};

template <detail::block_gemm_scheme S>
class packed_operand<S> {
 public:
  using scheme_type = S;

  // 0 x 0.
  packed_operand() = default;
  // Copies `q`; throws ms::error if its shape, pitches or pointers are none that a quantized matrix can have.
  explicit packed_operand(const quantized_view<const S>& q) : order_{q.rows, q.cols}, tile_(q.tile) {
    detail::check_quantized("packed operand", q);
    bytes_.resize(static_cast<std::size_t>(order_.bytes()));
    for (index_t chunk = 0; chunk < order_.chunks(); ++chunk) {
      for (index_t panel = 0; panel < order_.panels(); ++panel) {
        detail::pack_panel(q, chunk, panel, bytes_.data() + order_.offset(chunk, panel));
      }
    }
    if constexpr (S::has_tensor_scale) data_.assign(q.datum, q.datum + q.tile_rows() * q.tile_cols());
    span_ = detail::span_of(q);
  }

  index_t rows() const noexcept { return order_.rows; }
  index_t cols() const noexcept { return order_.cols; }
  // Of codes and scales, padding included.
  std::size_t size_bytes() const noexcept { return bytes_.size(); }

  // The same matrix with rows of codes, scales in linear layout.
  quantized<S> unpacked() const {
    quantized<S> q(rows(), cols(), scale_layout::linear, tile_);
    const quantized_view<S> out = q.view();
    using order = detail::panel_order<S>;
    for (index_t r = 0; r < rows(); ++r) {
      const index_t panel = r / panel_rows, lane = r % panel_rows;
      for (index_t chunk = 0; chunk < order_.chunks(); ++chunk) {
        const std::uint8_t* in = bytes_.data() + order_.offset(chunk, panel);
        const index_t first = chunk * detail::gemm_chunk / 2;
        const index_t bytes = smaller(detail::gemm_chunk / 2, out.code_pitch - first);
        for (index_t i = 0; i < bytes; ++i) {
          out.codes[r * out.code_pitch + first + i] = in[4 * (i / 4 * panel_rows + lane) + i % 4];
        }
        const index_t blocks = order_.blocks(chunk), first_block = chunk * detail::gemm_chunk / order::block;
        const auto* scales = order::scales(in, blocks);
        for (index_t b = 0; b < blocks; ++b) {
          out.scales[out.scale_offset(r / S::block::rows, first_block + b)] =
              scales[b * order::scales_per_block + (order::shared ? 0 : lane)];
        }
      }
    }
    for (std::size_t i = 0; i < data_.size(); ++i) out.datum[i] = data_[i];
    return q;
  }

  // For the GEMM. The view has the shape and the tensor scales, but no codes.
  quantized_view<const S> frame() const noexcept {
    return {nullptr, nullptr, data_.data(), rows(), cols(), 0, 0, scale_layout::linear, tile_};
  }
  const std::uint8_t* panel(index_t chunk, index_t index) const noexcept {
    return bytes_.data() + order_.offset(chunk, index);
  }
  index_t panel_bytes(index_t chunk) const noexcept { return order_.record(order_.blocks(chunk)); }
  detail::scale_span span() const noexcept { return span_; }

 private:
  static constexpr index_t panel_rows = detail::panel_columns;

  detail::panel_order<S> order_;
  tensor_tile tile_;
  detail::aligned_vector<std::uint8_t> bytes_;
  std::vector<float> data_;
  detail::scale_span span_{};
};

// The right operand of many products, packed once.
template <quantized_operand Q>
auto pack_operand(const Q& q) {
  const auto view = detail::read_only(q);
  return packed_operand<typename decltype(view)::scheme_type>(view);
}

namespace detail {

// Where the right operand's panels come from.
template <class S>
struct packed_source {
  using scheme_type = S;
  const packed_operand<S>& operand;

  const std::uint8_t* panel(index_t chunk, index_t index, std::uint8_t* /*memory*/) const noexcept {
    return operand.panel(chunk, index);
  }
  // Part `part` of `parts` of so many panels that are read next.
  void prefetch(index_t chunk, index_t index, index_t panels, index_t part, index_t parts) const noexcept {
    const index_t bytes = operand.panel_bytes(chunk) * panels;
    const std::uint8_t* const first = operand.panel(chunk, index);
    for (index_t i = bytes * part / parts; i < bytes * (part + 1) / parts; i += 64) {
      __builtin_prefetch(at_distance(first, i));
    }
  }
};
template <class S>
struct view_source {
  using scheme_type = S;
  const quantized_view<const S>& operand;

  const std::uint8_t* panel(index_t chunk, index_t index, std::uint8_t* memory) const noexcept {
    pack_panel(operand, chunk, index, memory);
    return memory;
  }
  static void prefetch(index_t /*chunk*/, index_t /*index*/, index_t /*panels*/, index_t /*part*/,
                       index_t /*parts*/) noexcept {}
};

}  // namespace detail
}  // namespace microscale
