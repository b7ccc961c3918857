// Owning forms, for convenience on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "quantize.hpp"

namespace microscale {

// A quantized matrix that owns its memory: rows x cols as stored, K-major.
template <quantization_scheme S>
class quantized {
 public:
  using scheme_type = S;
  using scale_storage = typename S::scale::storage;

  quantized() = default;
  quantized(index_t rows, index_t cols, scale_layout layout = scale_layout::linear, tensor_tile tile = {})
      : rows_(rows), cols_(cols), layout_(layout), tile_(tile) {
    detail::countable("quantized shape", rows, cols);
    const quantized_size<S> size = size_of<S>(rows, cols, layout);
    codes_.resize(static_cast<std::size_t>(size.code_bytes));
    scales_.resize(static_cast<std::size_t>(size.scales));
    const quantized_view<S> v = view();
    data_.assign(static_cast<std::size_t>(v.tile_rows() * v.tile_cols()), 1.0f);
  }

  index_t rows() const noexcept { return rows_; }
  index_t cols() const noexcept { return cols_; }

  // Packed codes, block scales, and what the scheme stores of the tensor scale (see quantized_view); of the first one
  // where there are several.
  const std::vector<std::uint8_t>& codes() const noexcept { return codes_; }
  const std::vector<scale_storage>& scales() const noexcept { return scales_; }
  float datum() const noexcept { return data_.front(); }
  const std::vector<float>& data() const noexcept { return data_; }
  // The factor with which decoded (code, block scale) products become values.
  float decode_multiplier() const noexcept {
    float decode = 1.0f;
    detail::in_default_environment([&] { decode = S::decode_multiplier(datum()); });
    return decode;
  }

  quantized_view<S> view() noexcept { return make_view<S>(*this); }
  quantized_view<const S> view() const noexcept { return make_view<const S>(*this); }

 private:
  template <class Q, class Self>
  static quantized_view<Q> make_view(Self& self) noexcept {
    return quantized_view_of<Q>(self.codes_.data(), self.scales_.data(), self.data_.data(), self.rows_, self.cols_,
                                self.layout_, self.tile_);
  }

  index_t rows_ = 0;
  index_t cols_ = 0;
  scale_layout layout_ = scale_layout::linear;
  std::vector<std::uint8_t> codes_;
  std::vector<scale_storage> scales_;
  tensor_tile tile_;
  std::vector<float> data_ = {1.0f};
};

namespace detail {

template <class S>
quantized_view<const S> read_only(const quantized<S>& q) noexcept {
  return q.view();
}
template <class S>
quantized_view<const std::remove_const_t<S>> read_only(const quantized_view<S>& q) noexcept {
  return q;
}

}  // namespace detail

// A quantized matrix that a call only reads: one that owns its memory, or a view.
template <class Q>
concept quantized_operand = requires(const Q& q) {
  detail::read_only(q);
};

// quantize_into, into new memory; layout and tile as in quantized_view.
template <quantization_scheme S, host_executor Executor, readable_element T>
quantized<S> quantize(const Executor& executor, matrix_view<T> in, const quantize_options& options = {},
                      scale_layout layout = scale_layout::linear, tensor_tile tile = {}) {
  detail::check_matrix("input", in);
  const bool along_rows = options.axis == axis::row;
  quantized<S> q(along_rows ? in.rows : in.cols, along_rows ? in.cols : in.rows, layout, tile);
  quantize_into(executor, in, q.view(), options);
  return q;
}
template <quantization_scheme S, readable_element T>
quantized<S> quantize(matrix_view<T> in, const quantize_options& options = {},
                      scale_layout layout = scale_layout::linear, tensor_tile tile = {}) {
  return quantize<S>(sequential{}, in, options, layout, tile);
}

// dequantize_into, into new memory, row-major; with axis::col, in the orientation before quantization.
template <host_executor Executor, quantized_operand Q>
std::vector<float> dequantize(const Executor& executor, const Q& q, axis along = axis::row) {
  const auto in = detail::read_only(q);
  const bool along_rows = along == axis::row;
  const index_t rows = along_rows ? in.rows : in.cols, cols = along_rows ? in.cols : in.rows;
  std::vector<float> out(detail::countable("quantized shape", rows, cols));
  dequantize_into(executor, in, matrix(out.data(), rows, cols), along);
  return out;
}
template <quantized_operand Q>
std::vector<float> dequantize(const Q& q, axis along = axis::row) {
  return dequantize(sequential{}, q, along);
}

// fake_quantize_into, into new memory of the input's shape.
template <quantization_scheme S, host_executor Executor, readable_element T>
std::vector<float> fake_quantize(const Executor& executor, matrix_view<T> in, const quantize_options& options = {}) {
  detail::check_matrix("input", in);
  std::vector<float> out(static_cast<std::size_t>(in.rows * in.cols));
  fake_quantize_into<S>(executor, in, matrix(out.data(), in.rows, in.cols), options);
  return out;
}
template <quantization_scheme S, readable_element T>
std::vector<float> fake_quantize(matrix_view<T> in, const quantize_options& options = {}) {
  return fake_quantize<S>(sequential{}, in, options);
}

namespace detail {

template <class S>
void check_transposed(const quantized_view<const S>& in, const quantized_view<S>& out) {
  check_quantized("input", in);
  check_quantized("output", out);
  if (out.rows != in.cols || out.cols != in.rows) {
    fail("transposed shape", shape_text(in.cols, in.rows), shape_text(out.rows, out.cols));
  }
  if (out.tile != tensor_tile{in.tile.cols, in.tile.rows}) {
    fail("transposed tensor-scale tile", shape_text(in.tile.cols, in.tile.rows),
         shape_text(out.tile.rows, out.tile.cols));
  }
}

}  // namespace detail

// The transpose of a tensor whose blocks are square, without quantizing again: the same codes and scales, turned. It
// equals quantizing the transpose, except that stochastic codes keep the draws of the rows.
template <square_scheme S>
void transpose_into(quantized_view<const S> in, quantized_view<S> out) {
  detail::check_transposed(in, out);
  detail::clear_scale_padding(out);
  for (index_t br = 0; br < out.block_rows(); ++br) {
    for (index_t bc = 0; bc < out.block_cols(); ++bc) {
      out.scales[out.scale_offset(br, bc)] = in.scales[in.scale_offset(bc, br)];
    }
  }
  using element = typename S::element;
  std::vector<typename element::storage> row(static_cast<std::size_t>(out.cols));
  for (index_t r = 0; r < out.rows; ++r) {
    for (index_t k = 0; k < out.cols; ++k) row[static_cast<std::size_t>(k)] = in.code(k, r);
    store_codes<element>(out.codes + r * out.code_pitch, row.data(), out.cols);
  }
  if constexpr (S::has_tensor_scale) {
    for (index_t i = 0; i < out.tile_rows(); ++i) {
      for (index_t j = 0; j < out.tile_cols(); ++j) {
        out.datum[i * out.tile_cols() + j] = in.datum[j * in.tile_cols() + i];
      }
    }
  }
}
template <square_scheme S>
quantized<S> transpose(const quantized<S>& in) {
  const tensor_tile tile = in.view().tile;
  quantized<S> out(in.cols(), in.rows(), scale_layout::linear, {tile.cols, tile.rows});
  transpose_into<S>(in.view(), out.view());
  return out;
}

}  // namespace microscale
