// How ms::host does the ranges of an operation: the vector kernels wherever a scheme, a rounding and an element type
// have them, the statement in tensor/ everywhere else, block by block where it must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "../tensor/hadamard_quantize.hpp"
#include "simd_kernels.hpp"

namespace microscale::detail {

// The lanes' operations are the rules' for finite factors.
inline bool are_finite(const tensor_factors& t) noexcept {
  return fp32::is_finite(t.reference) && fp32::is_finite(t.encode) && fp32::is_finite(t.decode);
}

// Blocks that did not fill a register with their neighbours, from wherever they lie: copied side by side, the rest of a
// short one filled with zeros, and done together. `Flush` takes this object when it is full and at the end.
template <class S, class T>
class gathered_blocks {
 public:
  static constexpr int columns = S::block::columns;

  struct place {
    index_t row;  // of the stored grid
    index_t column;
    int count;  // elements that exist
  };

  void add(matrix_view<T> in, axis along, index_t row, index_t column, int count) {
    std::remove_const_t<T>* const to = x_ + size_ * columns;
    const index_t k = column * columns;
    for (int i = 0; i < count; ++i) to[i] = along == axis::row ? in(row, k + i) : in(k + i, row);
    for (int i = count; i < columns; ++i) to[i] = std::remove_const_t<T>{};
    places_[size_++] = {row, column, count};
  }
  bool is_full(int lanes) const noexcept { return size_ == lanes; }
  int size() const noexcept { return size_; }
  const place& operator[](int i) const noexcept { return places_[i]; }
  // Fills up with blocks of zeros, and is empty again afterwards.
  const T* take(int lanes) noexcept {
    for (int i = size_ * columns; i < lanes * columns; ++i) x_[i] = std::remove_const_t<T>{};
    size_ = 0;
    return x_;
  }

 private:
  std::remove_const_t<T> x_[simd::most_lanes * columns];
  place places_[simd::most_lanes];
  int size_ = 0;
};

// Walks over the blocks of stored rows, as many at a time as their place in memory allows, and hands them to `Work`:
//   blocks(row, column, count, place)  `count` blocks, a multiple of the lanes, from the one at (row, column) of the
//                                      stored grid on, as they lie in memory; block i is at place(i)
//   gathered(blocks)                   those that did not fit in
//   is_joined()                        whether rows that follow each other without a gap in the input do in the output
template <class S, class T, class Work>
class block_walk {
 public:
  static constexpr int columns = S::block::columns;

  block_walk(matrix_view<T> in, axis along, int lanes, Work& work)
      : in_(in), along_(along), cols_(along == axis::row ? in.cols : in.rows), lanes_(lanes), work_(work) {}

  // Stored rows [first, last).
  void rows(index_t first, index_t last) {
    if (along_ == axis::row) {
      along_rows(first, last);
    } else {
      down_columns(first, last);
    }
    if (gathered_.size() > 0) work_.gathered(gathered_);
  }

 private:
  void along_rows(index_t first, index_t last) {
    const index_t whole = cols_ / columns, all = ceil_div(cols_, index_t{columns});
    if (whole == all && in_.pitch == cols_ && work_.is_joined()) {
      const index_t count = (last - first) * all, done = count / lanes_ * lanes_;
      work_.blocks(first, 0, done, [&](index_t i) { return std::pair(first + i / all, i % all); });
      for (index_t i = done; i < count; ++i) gather(first + i / all, i % all);
      return;
    }
    for (index_t r = first; r < last; ++r) {
      const index_t done = whole / lanes_ * lanes_;
      work_.blocks(r, 0, done, [&](index_t i) { return std::pair(r, i); });
      for (index_t c = done; c < all; ++c) gather(r, c);
    }
  }

  void down_columns(index_t first, index_t last) {
    constexpr index_t panel = 256;  // stored rows that are written side by side
    const index_t whole = cols_ / columns;
    for (index_t r = first; r < last; r += panel) {
      const index_t count = smaller(panel, last - r), done = count / lanes_ * lanes_;
      for (index_t c = 0; c < whole; ++c) {
        work_.blocks(r, c, done, [&](index_t i) { return std::pair(r + i, c); });
        for (index_t i = done; i < count; ++i) gather(r + i, c);
      }
      for (index_t i = 0; whole * columns < cols_ && i < count; ++i) gather(r + i, whole);
    }
  }

  void gather(index_t row, index_t column) {
    const int count = static_cast<int>(smaller(index_t{columns}, cols_ - column * columns));
    gathered_.add(in_, along_, row, column, count);
    if (gathered_.is_full(lanes_)) work_.gathered(gathered_);
  }

  matrix_view<T> in_;
  axis along_;
  index_t cols_;
  int lanes_;
  Work& work_;
  gathered_blocks<S, T> gathered_;
};

// A run over `in` for rounding R: all of it that does not depend on what becomes of the codes.
template <class S, class T, class R>
class run_maker {
 public:
  static constexpr int columns = S::block::columns;

  run_maker(matrix_view<T> in, axis along, const tensor_factors& t, const R& rounding) : in_(in), along_(along) {
    const index_t cols = along == axis::row ? in.cols : in.rows;
    row_positions_ = element_position(1, 0, static_cast<std::uint64_t>(cols));
    run_.block_step = along == axis::row ? columns : 1;
    run_.element_step = along == axis::row ? 1 : in.pitch;
    run_.position_step = along == axis::row ? columns : row_positions_;
    run_.factors = t;
    if constexpr (R::random_bits > 0) run_.key = rounding.key();
  }

  simd::quantize_run<S, T> at(index_t row, index_t column) const {
    simd::quantize_run<S, T> run = run_;
    run.x = in_.data + (along_ == axis::row ? row * in_.pitch + column * columns : column * columns * in_.pitch + row);
    run.position = position(row, column);
    return run;
  }
  // Of blocks side by side that lie at the places of `blocks`; `positions` is where theirs are put.
  simd::quantize_run<S, T> of(gathered_blocks<S, T>& blocks, int lanes,
                              std::uint64_t (&positions)[simd::most_lanes]) const {
    for (int i = 0; i < blocks.size(); ++i) positions[i] = position(blocks[i].row, blocks[i].column);
    for (int i = blocks.size(); i < simd::most_lanes; ++i) positions[i] = 0;
    simd::quantize_run<S, T> run = run_;
    run.x = blocks.take(lanes);
    run.block_step = columns;
    run.element_step = 1;
    run.positions = positions;
    return run;
  }

 private:
  std::uint64_t position(index_t row, index_t column) const noexcept {
    return static_cast<std::uint64_t>(row) * row_positions_ + static_cast<std::uint64_t>(column) * columns;
  }

  matrix_view<T> in_;
  axis along_;
  std::uint64_t row_positions_;
  simd::quantize_run<S, T> run_;
};

// Quantizing, under the scale of each block or, where `divisors` are given, under scales that are written already;
// after the transform of runs of Hadamard elements where that is not 1.
template <class S, class T, class R, int Hadamard = 1>
class quantize_work {
 public:
  quantize_work(matrix_view<T> in, const quantized_view<S>& out, axis along, const tensor_factors& t, const R& rounding,
                simd_level level, const float* divisors = nullptr, const hadamard_signs& signs = {})
      : in_(in),
        out_(out),
        along_(along),
        factors_(t),
        rounding_(rounding),
        level_(level),
        lanes_(simd::lanes_of(level)),
        divisors_(divisors),
        signs_(signs),
        make_(in, along, t, rounding) {
    for (int i = 0; Hadamard > 1 && i < Hadamard; ++i) flips_[i] = signs.negative(i) ? fp32::sign_bit : 0u;
  }

  bool is_joined() const noexcept {
    return divisors_ == nullptr && out_.code_pitch == out_.block_cols() * code_bytes &&
           out_.layout == scale_layout::linear && out_.scale_pitch == out_.block_cols();
  }

  template <class Place>
  void blocks(index_t row, index_t column, index_t count, const Place& place) {
    constexpr index_t chunk = 256;  // blocks whose scales are scattered together
    const bool row_wise = along_ == axis::row, linear = out_.layout == scale_layout::linear;
    simd::quantize_run<S, T> run = make_.at(row, column);
    run.codes = out_.codes + row * out_.code_pitch + column * code_bytes;
    run.code_step = row_wise ? code_bytes : out_.code_pitch;
    run.divisors = divisors_ == nullptr ? nullptr : divisors_ + column;
    run.divisor_step = row_wise ? 1 : 0;
    typename S::scale::storage scales[chunk];
    run.scales = linear && divisors_ == nullptr ? out_.scales + out_.scale_offset(row, column) : scales;
    run.scale_step = linear && !row_wise ? out_.scale_pitch : 1;
    if constexpr (Hadamard > 1) std::memcpy(run.flips, flips_, sizeof flips_);
    for (index_t i = 0; i < count;) {
      const index_t wanted = linear ? count - i : smaller(chunk, count - i);
      const index_t done = simd::run_kernel<simd::quantize_kernel<R, Hadamard>>(level_, run, wanted);
      for (index_t j = 0; !linear && divisors_ == nullptr && j < done; ++j) {
        const auto [r, c] = place(i + j);
        out_.scales[out_.scale_offset(r, c)] = scales[j];
      }
      advance(run, done, linear);
      i += done;
      if (done < wanted) {  // a NaN or an infinity in the next blocks
        for (int j = 0; j < lanes_; ++j) {
          const auto [r, c] = place(i + j);
          plain(r, c);
        }
        advance(run, lanes_, linear);
        i += lanes_;
      }
    }
  }

  void gathered(gathered_blocks<S, T>& gathered) {
    const int count = gathered.size();
    std::uint8_t codes[simd::most_lanes * code_bytes];
    typename S::scale::storage scales[simd::most_lanes];
    std::uint64_t positions[simd::most_lanes];
    float divisors[simd::most_lanes] = {};
    simd::quantize_run<S, T> run = make_.of(gathered, lanes_, positions);
    run.codes = codes;
    run.code_step = code_bytes;
    run.scales = scales;
    if (divisors_ != nullptr) {
      for (int i = 0; i < count; ++i) divisors[i] = divisors_[gathered[i].column];
      run.divisors = divisors;
      run.divisor_step = 1;
    }
    if constexpr (Hadamard > 1) std::memcpy(run.flips, flips_, sizeof flips_);
    const bool done = simd::run_kernel<simd::quantize_kernel<R, Hadamard>>(level_, run, index_t{lanes_}) == lanes_;
    for (int i = 0; i < count; ++i) {
      const auto [r, c, elements] = gathered[i];
      if (!done) {
        plain(r, c);
        continue;
      }
      if (divisors_ == nullptr) out_.scales[out_.scale_offset(r, c)] = scales[i];
      const int bits = elements * S::element::bits;
      std::uint8_t* const from = codes + i * code_bytes;
      // What fills a byte up is zero, whatever a rule makes of the zeros that fill the block up.
      if (bits % 8 != 0) from[bits / 8] = static_cast<std::uint8_t>(from[bits / 8] & ((1 << bits % 8) - 1));
      std::memcpy(out_.codes + r * out_.code_pitch + c * code_bytes, from, static_cast<std::size_t>((bits + 7) / 8));
    }
  }

 private:
  static constexpr int code_bytes = S::block::columns * S::element::bits / 8;

  void plain(index_t row, index_t column) {
    if constexpr (Hadamard > 1) {
      hadamard_quantize_one_block<Hadamard>(in_, out_, factors_, along_, signs_, rounding_, row, column);
    } else {
      quantize_one_block(in_, out_, factors_, along_, rounding_, row, column);
    }
  }

  static void advance(simd::quantize_run<S, T>& run, index_t blocks, bool linear) noexcept {
    run.x += blocks * run.block_step;
    run.codes += blocks * run.code_step;
    if (linear && run.divisors == nullptr) run.scales += blocks * run.scale_step;
    if (run.divisors != nullptr) run.divisors += blocks * run.divisor_step;
    run.position += static_cast<std::uint64_t>(blocks) * run.position_step;
  }

  matrix_view<T> in_;
  quantized_view<S> out_;
  axis along_;
  tensor_factors factors_;
  R rounding_;
  simd_level level_;
  int lanes_;
  const float* divisors_;
  hadamard_signs signs_;
  std::uint32_t flips_[simd::largest_run] = {};
  run_maker<S, T, R> make_;
};

// Square blocks, one row of the stored grid after the other: first the scales, then the rows under them.
template <class S, class T, class R>
class square_range {
 public:
  square_range(matrix_view<T> in, const quantized_view<S>& out, axis along, const tensor_factors& t, const R& rounding,
               simd_level level)
      : in_(in), out_(out), along_(along), factors_(t), rounding_(rounding), level_(level) {}

  void block_rows(index_t first, index_t last) {
    divisors_.resize(static_cast<std::size_t>(out_.block_cols()));
    largest_.resize(divisors_.size());
    quantize_work<S, T, R> work(in_, out_, along_, factors_, rounding_, level_, divisors_.data());
    block_walk<S, T, quantize_work<S, T, R>> walk(in_, along_, simd::lanes_of(level_), work);
    for (index_t br = first; br < last; ++br) {
      if (write_scales(br)) {
        walk.rows(br * size, smaller(out_.rows, (br + 1) * size));
      } else {
        for (index_t bc = 0; bc < out_.block_cols(); ++bc) {
          quantize_one_block(in_, out_, factors_, along_, rounding_, br, bc);
        }
      }
    }
  }

 private:
  static constexpr int size = S::block::columns;

  // The bits of each block's largest magnitude.
  void find_largest(index_t br) {
    const bool row_wise = along_ == axis::row;
    const index_t whole = out_.cols / size, block_step = row_wise ? size : size * in_.pitch;
    const T* const x = in_.data + (row_wise ? br * size * in_.pitch : br * size);
    const int height = out_.extent(br, 0).rows;  // of the stored row of blocks
    index_t done = 0;
    if (row_wise || height == size) {
      const simd::rectangles<T> all{x, in_.pitch, block_step, row_wise ? height : size, largest_.data()};
      done = simd::run_kernel<simd::rectangle_amax_kernel<size>>(level_, all, whole);
    }
    for (index_t bc = done; bc < out_.block_cols(); ++bc) {
      const int width = out_.extent(br, bc).columns;
      const int rows = row_wise ? height : width, columns = row_wise ? width : height;
      running_amax amax;
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) amax.see(to_float(x[bc * block_step + i * in_.pitch + j]));
      }
      largest_[static_cast<std::size_t>(bc)] = fp32::bits(amax.with_nan());
    }
  }

  // The scales of a row of blocks, and what their elements are divided by; not where a block has a NaN or an infinity.
  bool write_scales(index_t br) {
    find_largest(br);
    for (index_t bc = 0; bc < out_.block_cols(); ++bc) {
      const std::uint32_t largest = largest_[static_cast<std::size_t>(bc)];
      if (largest >= fp32::infinity_bits) return false;
      running_amax amax;
      amax.see(fp32::from_bits(largest));
      const auto code = first_block_scale<S>(amax, factors_);
      out_.scales[out_.scale_offset(br, bc)] = code;
      const auto divisor = S::rule::template divisor<S>(code, factors_);
      if constexpr (std::is_same_v<decltype(divisor), const float>) {
        divisors_[static_cast<std::size_t>(bc)] = divisor;
      } else {  // an exponent
        divisors_[static_cast<std::size_t>(bc)] = fp32::from_bits(static_cast<std::uint32_t>(127 - divisor) << 23);
      }
    }
    return true;
  }

  matrix_view<T> in_;
  quantized_view<S> out_;
  axis along_;
  tensor_factors factors_;
  R rounding_;
  simd_level level_;
  std::vector<float> divisors_;
  std::vector<std::uint32_t> largest_;
};

// Operations that write values where their input was, or in another matrix of its shape. `Operation` has
//   run(level, blocks, y, block_step, element_step, count)  a kernel over a run, with the steps of the output
//   plain(row, column)                                      one block by the statement
template <class S, class T, class U, class R, class Operation>
class value_work {
 public:
  value_work(matrix_view<U> out, axis along, simd_level level, const run_maker<S, T, R>& make, Operation operation)
      : out_(out),
        along_(along),
        level_(level),
        lanes_(simd::lanes_of(level)),
        make_(make),
        operation_(std::move(operation)) {}

  bool is_joined() const noexcept { return out_.pitch == out_.cols; }

  template <class Place>
  void blocks(index_t row, index_t column, index_t count, const Place& place) {
    const bool row_wise = along_ == axis::row;
    const index_t block_step = row_wise ? columns : 1, element_step = row_wise ? 1 : out_.pitch;
    simd::quantize_run<S, T> run = make_.at(row, column);
    U* y = out_.data + (row_wise ? row * out_.pitch + column * columns : column * columns * out_.pitch + row);
    const auto advance = [&](index_t by) {
      run.x += by * run.block_step;
      run.position += static_cast<std::uint64_t>(by) * run.position_step;
      y += by * block_step;
    };
    for (index_t i = 0; i < count;) {
      const index_t done = operation_.run(level_, run, y, block_step, element_step, count - i);
      advance(done);
      i += done;
      if (i < count) {  // the next blocks are not for the kernel
        for (int j = 0; j < lanes_; ++j) {
          const auto [r, c] = place(i + j);
          operation_.plain(r, c);
        }
        advance(lanes_);
        i += lanes_;
      }
    }
  }

  void gathered(gathered_blocks<S, T>& gathered) {
    const int count = gathered.size();
    std::uint64_t positions[simd::most_lanes];
    U y[simd::most_lanes * columns];
    const simd::quantize_run<S, T> run = make_.of(gathered, lanes_, positions);
    const bool done = operation_.run(level_, run, y, columns, 1, index_t{lanes_}) == lanes_;
    for (int i = 0; i < count; ++i) {
      const auto [r, c, elements] = gathered[i];
      if (!done) {
        operation_.plain(r, c);
        continue;
      }
      for (int j = 0; j < elements; ++j) {
        const index_t k = c * columns + j;
        (along_ == axis::row ? out_(r, k) : out_(k, r)) = y[i * columns + j];
      }
    }
  }

 private:
  static constexpr int columns = S::block::columns;

  matrix_view<U> out_;
  axis along_;
  simd_level level_;
  int lanes_;
  run_maker<S, T, R> make_;
  Operation operation_;
};

template <class S, class T, class U, class R>
struct fake_quantize_operation {
  matrix_view<T> in;
  matrix_view<U> out;
  tensor_factors factors, back;
  axis along;
  R rounding;
  bool streams;

  index_t run(simd_level level, const simd::quantize_run<S, T>& blocks, U* y, index_t block_step, index_t element_step,
              index_t count) const {
    const simd::fake_quantize_run<S, T, U> fake{blocks,       y,    block_step,
                                                element_step, back, streams && element_step == 1};
    return simd::run_kernel<simd::fake_quantize_kernel<R>>(level, fake, count);
  }
  void plain(index_t row, index_t column) const {
    fake_quantize_one_block<S>(in, out, factors, back, along, rounding, row, column);
  }
};

// Runs of a Hadamard transform as what walks over blocks takes for a scheme.
template <int Size>
struct hadamard_shape {
  using block = microscale::block<1, Size>;
  struct scale {
    using storage = std::uint8_t;
  };
};

template <int Size, class T, class U>
struct hadamard_operation {
  matrix_view<T> in;
  matrix_view<U> out;
  hadamard_options options;

  index_t run(simd_level level, const simd::quantize_run<hadamard_shape<Size>, T>& blocks, U* y, index_t block_step,
              index_t element_step, index_t count) const {
    simd::hadamard_job<T, U> job{blocks.x, y, blocks.block_step, blocks.element_step, block_step, element_step, {}};
    for (int i = 0; i < Size; ++i) job.flips[i] = options.signs.negative(i) ? fp32::sign_bit : 0u;
    return simd::run_kernel<simd::hadamard_kernel<Size>>(level, job, count);
  }
  void plain(index_t row, index_t column) const { hadamard_one_run<Size>(in, out, options, row, column * Size); }
};

// The ranges of ms::host at one level.
struct simd_ranges : plain_ranges {
  simd_level level;
  index_t streamed_bytes;  // a matrix of values of so many bytes is written past the caches

  simd_ranges(simd_level l, index_t streamed) noexcept : level(l), streamed_bytes(streamed) {}

  template <quantization_scheme S, class T, rounding_mode R>
  static constexpr bool has_kernel = simd::has_quantize_kernel<S, T>&& simd::has_lanes_rounding<R>;

  template <class T>
  float amax(matrix_view<T> in, index_t first, index_t last) const {
    if constexpr (simd::has_loads<T>) {
      std::uint32_t largest = 0;
      for (index_t r = first; r < last; ++r) {
        const std::uint32_t m = simd::run_kernel<simd::amax_kernel>(level, in.data + r * in.pitch, in.cols);
        if (m > fp32::infinity_bits) return plain_ranges::amax(in, first, last);
        largest = larger(largest, m);
      }
      return fp32::from_bits(largest);
    } else {
      return plain_ranges::amax(in, first, last);
    }
  }

  template <quantization_scheme S, class T, class FactorsAt, rounding_mode R>
  void quantize(matrix_view<T> in, quantized_view<S> out, const FactorsAt& factors_at, axis along, const R& rounding,
                index_t first, index_t last) const {
    if constexpr (has_kernel<S, T, R>) {
      if (out.tile.cols == 0 && !out.empty()) {
        const index_t height = out.tile.rows == 0 ? last : out.tile.rows / S::block::rows;
        for (index_t r = first; r < last;) {
          const index_t end = smaller(last, (r / height + 1) * height);
          const tensor_factors t = factors_at(out.tile_index(r * S::block::rows, 0));
          if (are_finite(t)) {
            quantize_rows(in, out, t, along, rounding, r, end);
          } else {
            plain_ranges::quantize(
                in, out, [&](index_t) { return t; }, along, rounding, r, end);
          }
          r = end;
        }
        return;
      }
    }
    plain_ranges::quantize(in, out, factors_at, along, rounding, first, last);
  }

  template <class S, matrix_element T>
  void dequantize(quantized_view<S> in, matrix_view<T> out, axis along, index_t first, index_t last) const {
    using scheme = typename quantized_view<S>::scheme_type;
    if constexpr (simd::has_quantize_kernel<scheme, T>) {
      if (along == axis::row && in.tile.cols == 0 && !in.empty()) {
        const index_t height = in.tile.rows == 0 ? last : in.tile.rows / scheme::block::rows;
        for (index_t br = first; br < last;) {
          const index_t end = smaller(last, (br / height + 1) * height);
          dequantize_rows(in, out, in.factors(in.tile_index(br * scheme::block::rows, 0)), br, end);
          br = end;
        }
        if (streams(out)) simd::fence();
        return;
      }
    }
    plain_ranges::dequantize(in, out, along, first, last);
  }

  template <quantization_scheme S, class T, matrix_element U, rounding_mode R>
  void fake_quantize(matrix_view<T> in, matrix_view<U> out, const tensor_factors& t, axis along, const R& rounding,
                     index_t first, index_t last) const {
    if constexpr (has_kernel<S, T, R> && simd::has_loads<U> && S::block::rows == 1) {
      const tensor_factors back = factors_as_stored<S>(t);
      if (are_finite(t) && are_finite(back) && !in.empty()) {
        using operation = fake_quantize_operation<S, T, U, R>;
        using work = value_work<S, T, U, R, operation>;
        work w(out, along, level, run_maker<S, T, R>(in, along, t, rounding),
               operation{in, out, t, back, along, rounding, streams(out)});
        block_walk<S, T, work>(in, along, simd::lanes_of(level), w).rows(first, last);
        if (streams(out)) simd::fence();
        return;
      }
    }
    plain_ranges::fake_quantize<S>(in, out, t, along, rounding, first, last);
  }

  // See metrics.hpp.
  template <class T, class S>
  void measure(matrix_view<T> source, const quantized_view<S>& q, axis along, index_t first, index_t last,
               quantization_metrics* of_rows) const {
    using scheme = typename quantized_view<S>::scheme_type;
    if constexpr (simd::has_quantize_kernel<scheme, T>) {
      if (along == axis::row && q.tile.cols == 0 && q.layout == scale_layout::linear && !q.empty()) {
        std::vector<float> decoded(static_cast<std::size_t>(scheme::block::elements * chunk_of_errors<scheme>));
        for (index_t br = first; br < last; ++br) measure_row(source, q, br, decoded.data(), of_rows[br]);
        return;
      }
    }
    measure_block_rows(source, q, along, first, last, of_rows);
  }

  template <int Size, quantization_scheme S, class T, rounding_mode R>
  void hadamard_quantize(matrix_view<T> in, quantized_view<S> out, const tensor_factors& t, axis along,
                         const hadamard_signs& signs, const R& rounding, index_t first, index_t last) const {
    if constexpr (has_kernel<S, T, R> && S::block::rows == 1 && (Size == 16 || Size == 32)) {
      if (are_finite(t) && !out.empty()) {
        using work = quantize_work<S, T, R, Size>;
        work w(in, out, along, t, rounding, level, nullptr, signs);
        block_walk<S, T, work>(in, along, simd::lanes_of(level), w).rows(first, last);
        return;
      }
    }
    for (index_t br = first; br < last; ++br) {
      for (index_t bc = 0; bc < out.block_cols(); ++bc) {
        hadamard_quantize_one_block<Size>(in, out, t, along, signs, rounding, br, bc);
      }
    }
  }

  // Lines [first, last) of a Hadamard transform.
  template <int Size, class T, matrix_element U>
  void hadamard(matrix_view<T> in, matrix_view<U> out, const hadamard_options& options, index_t first,
                index_t last) const {
    if constexpr ((Size == 16 || Size == 32) && simd::has_loads<T> && simd::has_loads<U>) {
      if (!in.empty()) {
        using shape = hadamard_shape<Size>;
        using operation = hadamard_operation<Size, T, U>;
        using work = value_work<shape, T, U, nearest_even, operation>;
        work w(out, options.axis, level, run_maker<shape, T, nearest_even>(in, options.axis, {}, {}),
               operation{in, out, options});
        block_walk<shape, T, work>(in, options.axis, simd::lanes_of(level), w).rows(first, last);
        return;
      }
    }
    hadamard_lines<Size>(in, out, options, first, last);
  }

 private:
  // Whether the values of a matrix are written past the caches. Rows are to be long beside their two ends.
  template <class T>
  bool streams(matrix_view<T> out) const noexcept {
    constexpr index_t shortest_row = 4096 / sizeof(T);
    return simd::has_streams && out.cols >= shortest_row &&
           out.rows * out.cols * static_cast<index_t>(sizeof(T)) >= streamed_bytes;
  }

  template <class S>
  static constexpr index_t code_bytes = S::block::columns* S::element::bits / 8;  // of a row of a block

  template <class S, class T, class R>
  void quantize_rows(matrix_view<T> in, const quantized_view<S>& out, const tensor_factors& t, axis along,
                     const R& rounding, index_t first, index_t last) const {
    if constexpr (S::block::rows > 1) {
      square_range<S, T, R>(in, out, along, t, rounding, level).block_rows(first, last);
    } else {
      using work = quantize_work<S, T, R>;
      work w(in, out, along, t, rounding, level);
      block_walk<S, T, work>(in, along, simd::lanes_of(level), w).rows(first, last);
    }
  }

  // Blocks that are decoded and compared together: what is decoded stays in the nearest caches.
  template <class S>
  static constexpr index_t chunk_of_errors = larger(16, (1 << 13) / S::block::elements);

  template <class T, class S>
  void measure_row(matrix_view<T> source, const quantized_view<S>& q, index_t br, float* decoded,
                   quantization_metrics& row) const {
    using scheme = typename quantized_view<S>::scheme_type;
    using block = typename scheme::block;
    constexpr index_t chunk = chunk_of_errors<scheme>;
    const tensor_factors t = q.factors(q.tile_index(br * block::rows, 0));
    const amax_limits limits = amax_limits_of<scheme>(t);
    const index_t whole = are_finite(t) ? q.cols / block::columns : 0;
    block_errors errors[chunk];
    quantization_metrics sum;  // in registers, where nothing else might be
    for (index_t begin = 0; begin < q.block_cols(); begin += chunk) {
      const index_t count = smaller(chunk, q.block_cols() - begin);
      const index_t done =
          errors_of_run(source, q, t, br, begin, smaller(count, larger(whole - begin, index_t{0})), decoded, errors);
      for (index_t i = 0; i < count; ++i) {
        const index_t bc = begin + i;
        // Where a value is NaN, it is left to the statement of the sums what the largest error is.
        if (i >= done || bit_cast<std::uint64_t>(errors[i].noise) >= 0x7FF0'0000'0000'0000u) {
          errors[i] = errors_of_block(source, q, axis::row, t, br, bc);
        }
        const block_extent extent = q.extent(br, bc);
        add_block<scheme>(sum, errors[i], extent.rows * extent.columns, q.scales[q.scale_offset(br, bc)], limits,
                          br * block::rows, bc * block::columns);
      }
    }
    row = sum;
  }

  // The errors of up to `count` whole blocks from (br, bc) on; returns how many blocks that are.
  template <class T, class S>
  index_t errors_of_run(matrix_view<T> source, const quantized_view<S>& q, const tensor_factors& t, index_t br,
                        index_t bc, index_t count, float* decoded, block_errors* errors) const {
    using scheme = typename quantized_view<S>::scheme_type;
    constexpr int columns = scheme::block::columns;
    const index_t row = br * scheme::block::rows, pitch = count * columns;
    const int rows = q.extent(br, bc).rows;
    for (int r = 0; r < rows; ++r) {
      const simd::dequantize_run<scheme, float> run{q.codes + (row + r) * q.code_pitch + bc * code_bytes<scheme>,
                                                    q.scales + q.scale_offset(br, bc), decoded + r * pitch, t};
      simd::run_kernel<simd::dequantize_kernel>(level, run, count);
    }
    const simd::error_run<std::remove_const_t<T>> run{
        source.data + row * source.pitch + bc * columns, source.pitch, decoded, pitch, rows, errors};
    return simd::run_kernel<simd::error_kernel<columns>>(level, run, count);
  }

  // Rows of blocks under one tensor scale.
  template <class S, class T>
  void dequantize_rows(const quantized_view<S>& in, matrix_view<T> out, const tensor_factors& t, index_t first,
                       index_t last) const {
    using scheme = typename quantized_view<S>::scheme_type;
    const index_t whole = in.cols / scheme::block::columns;
    const bool is_joined = scheme::block::rows == 1 && whole * scheme::block::columns == in.cols &&
                           out.pitch == out.cols && in.code_pitch == whole * code_bytes<scheme> &&
                           in.layout == scale_layout::linear && in.scale_pitch == whole;
    if (is_joined && are_finite(t)) {
      dequantize_run(in, out, t, first, 0, in.scales + in.scale_offset(first, 0), (last - first) * whole);
      return;
    }
    for (index_t br = first; br < last; ++br) {
      const index_t done = are_finite(t) ? whole : 0;
      dequantize_row(in, out, t, br, done);
      for (index_t bc = done; bc < in.block_cols(); ++bc) dequantize_one_block(in, out, t, axis::row, br, bc);
    }
  }

  // The first `count` of a row of blocks.
  template <class S, class T>
  void dequantize_row(const quantized_view<S>& in, matrix_view<T> out, const tensor_factors& t, index_t br,
                      index_t count) const {
    using scheme = typename quantized_view<S>::scheme_type;
    constexpr index_t chunk = 512;  // blocks whose scales are gathered together
    const bool is_linear = in.layout == scale_layout::linear;
    const index_t end = smaller(in.rows, (br + 1) * scheme::block::rows), step = is_linear ? count : chunk;
    typename scheme::scale::storage gathered[chunk];
    for (index_t bc = 0; bc < count; bc += step) {
      const index_t here = smaller(step, count - bc);
      for (index_t i = 0; !is_linear && i < here; ++i) gathered[i] = in.scales[in.scale_offset(br, bc + i)];
      const auto* const scales = is_linear ? in.scales + in.scale_offset(br, bc) : gathered;
      for (index_t r = br * scheme::block::rows; r < end; ++r) dequantize_run(in, out, t, r, bc, scales, here);
    }
  }

  // `count` blocks side by side, from the one in row `r` of the matrix and column `bc` of the grid on.
  template <class S, class T>
  void dequantize_run(const quantized_view<S>& in, matrix_view<T> out, const tensor_factors& t, index_t r, index_t bc,
                      const typename quantized_view<S>::scale_storage* scales, index_t count) const {
    using scheme = typename quantized_view<S>::scheme_type;
    const simd::dequantize_run<scheme, T> run{in.codes + r * in.code_pitch + bc * code_bytes<scheme>, scales,
                                              out.data + r * out.pitch + bc * scheme::block::columns, t, streams(out)};
    simd::run_kernel<simd::dequantize_kernel>(level, run, count);
  }
};

}  // namespace microscale::detail
