// The operations of one scheme on tensors, for execute.hpp. Include it where a scheme_family is instantiated.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "execute.hpp"
#include "host_executor.hpp"

namespace conformance {

// Vector files hold matrices in the orientation of the input; the library stores the K-major one, which under
// axis::col is the transpose. Calls f(index in the file, row as stored, column as stored) for the elements of a
// rows x cols matrix of the file, or for the grid of its blocks.
template <class F>
void for_each_stored(ms::index_t rows, ms::index_t cols, ms::axis axis, F&& f) {
  std::size_t index = 0;
  for (ms::index_t r = 0; r < rows; ++r) {
    for (ms::index_t c = 0; c < cols; ++c, ++index) {
      axis == ms::axis::row ? f(index, r, c) : f(index, c, r);
    }
  }
}

// A quantized matrix as a file lists it.
template <class S>
struct listed {
  std::vector<typename S::element::storage> codes;
  std::vector<typename S::scale::storage> scales;
};

template <class S>
ms::quantized<S> empty_stored(ms::index_t rows, ms::index_t cols, ms::axis axis) {
  return axis == ms::axis::row ? ms::quantized<S>(rows, cols) : ms::quantized<S>(cols, rows);
}

// The grid of blocks in the orientation of the file.
template <class S>
std::pair<ms::index_t, ms::index_t> grid_of(const ms::quantized<S>& q, ms::axis axis) {
  const auto view = q.view();
  return axis == ms::axis::row ? std::pair(view.block_rows(), view.block_cols())
                               : std::pair(view.block_cols(), view.block_rows());
}

template <class S>
ms::quantized<S> pack(const listed<S>& in, ms::index_t rows, ms::index_t cols, ms::axis axis, float datum) {
  ms::quantized<S> q = empty_stored<S>(rows, cols, axis);
  const ms::quantized_view<S> view = q.view();
  std::vector<std::vector<typename S::element::storage>> lines(
      static_cast<std::size_t>(view.rows),
      std::vector<typename S::element::storage>(static_cast<std::size_t>(view.cols)));
  for_each_stored(rows, cols, axis, [&](std::size_t index, ms::index_t r, ms::index_t k) {
    lines[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] = in.codes[index];
  });
  for (ms::index_t r = 0; r < view.rows; ++r) {
    ms::store_codes<typename S::element>(view.codes + r * view.code_pitch, lines[static_cast<std::size_t>(r)].data(),
                                         view.cols);
  }
  const auto [grid_rows, grid_cols] = grid_of(q, axis);
  for_each_stored(grid_rows, grid_cols, axis, [&](std::size_t index, ms::index_t r, ms::index_t c) {
    view.scales[view.scale_offset(r, c)] = in.scales[index];
  });
  *view.datum = datum;
  return q;
}

template <class S>
ms::quantized<S> pack(const stored_matrix& in, float datum) {
  return pack<S>({stored_codes<typename S::element>(in.codes), stored_codes<typename S::scale>(in.scales)}, in.rows,
                 in.cols, in.axis, datum);
}

template <class S>
listed<S> unpack(const ms::quantized<S>& q, ms::index_t rows, ms::index_t cols, ms::axis axis) {
  listed<S> out;
  const auto view = q.view();
  for_each_stored(rows, cols, axis,
                  [&](std::size_t, ms::index_t r, ms::index_t k) { out.codes.push_back(view.code(r, k)); });
  const auto [grid_rows, grid_cols] = grid_of(q, axis);
  for_each_stored(grid_rows, grid_cols, axis, [&](std::size_t, ms::index_t r, ms::index_t c) {
    out.scales.push_back(view.scales[view.scale_offset(r, c)]);
  });
  return out;
}

// The blocks of a matrix in the order in which they are stored.
template <class S>
std::vector<block_input<S>> blocks_of(const quantize_request& q) {
  using block = typename S::block;
  const ms::quantized<S> stored = empty_stored<S>(q.rows, q.cols, q.axis);
  const auto view = stored.view();
  std::vector<block_input<S>> blocks(static_cast<std::size_t>(view.block_rows() * view.block_cols()));
  for_each_stored(q.rows, q.cols, q.axis, [&](std::size_t index, ms::index_t r, ms::index_t k) {
    const ms::index_t br = r / block::rows, bc = k / block::columns;
    auto& b = blocks[static_cast<std::size_t>(br * view.block_cols() + bc)];
    const auto i = static_cast<std::size_t>(r % block::rows * block::columns + k % block::columns);
    b.extent = view.extent(br, bc);
    b.x[i] = q.in[index];
    b.draws[i] = q.random[index];
  });
  return blocks;
}

// The draws of their scales, in the same order.
template <class S>
std::vector<std::uint32_t> scale_draws_of(const quantize_request& q) {
  const ms::quantized<S> stored = empty_stored<S>(q.rows, q.cols, q.axis);
  const ms::index_t block_cols = stored.view().block_cols();
  std::vector<std::uint32_t> draws(q.scale_random.size());
  const auto [grid_rows, grid_cols] = grid_of(stored, q.axis);
  for_each_stored(grid_rows, grid_cols, q.axis, [&](std::size_t index, ms::index_t r, ms::index_t c) {
    draws[static_cast<std::size_t>(r * block_cols + c)] = q.scale_random[index];
  });
  return draws;
}

template <class Executor, class S, class R>
std::vector<ms::quantized_block<S>> quantized_blocks(const quantize_request& q, const ms::tensor_factors& t) {
  if constexpr (ms::refines_scale<S>) {
    return Executor::template quantize_drawn_blocks<S, R>(blocks_of<S>(q), scale_draws_of<S>(q), t);
  } else {
    return Executor::template quantize_blocks<S, R>(blocks_of<S>(q), t);
  }
}

template <class S>
listed<S> list_blocks(const quantize_request& q, const std::vector<ms::quantized_block<S>>& blocks) {
  using block = typename S::block;
  listed<S> out;
  const ms::quantized<S> stored = empty_stored<S>(q.rows, q.cols, q.axis);
  const ms::index_t block_cols = stored.view().block_cols();
  for_each_stored(q.rows, q.cols, q.axis, [&](std::size_t, ms::index_t r, ms::index_t k) {
    const auto& b = blocks[static_cast<std::size_t>(r / block::rows * block_cols + k / block::columns)];
    out.codes.push_back(b.codes[r % block::rows * block::columns + k % block::columns]);
  });
  const auto [grid_rows, grid_cols] = grid_of(stored, q.axis);
  for_each_stored(grid_rows, grid_cols, q.axis, [&](std::size_t, ms::index_t r, ms::index_t c) {
    out.scales.push_back(blocks[static_cast<std::size_t>(r * block_cols + c)].scale);
  });
  return out;
}

template <class S>
void report(outcome& o, const std::string& path, const listed<S>& q) {
  o.fields.push_back(computed_field::codes<typename S::scale>("scales", path, q.scales));
  o.fields.push_back(computed_field::codes<typename S::element>("codes", path, q.codes));
}

// Block by block with the draws as listed, then, where nothing is drawn, by the calls on whole tensors.
template <class Executor, class S>
outcome quantize_one(const quantize_request& q) {
  outcome o;
  const ms::matrix_view<const float> in = ms::matrix(q.in.data(), q.rows, q.cols);
  const float reference = q.amax ? *q.amax : ms::amax(ms::sequential{}, in);
  const ms::tensor_factors t = q.target == 0 ? S::factors(reference) : S::factors(reference, q.target);
  visit_named(roundings, q.rounding, [&]<class R>(type_tag<R>) {
    const listed<S> by_blocks = list_blocks<S>(q, quantized_blocks<Executor, S, R>(q, t));
    const ms::quantized<S> packed = pack<S>(by_blocks, q.rows, q.cols, q.axis, S::stored(t));
    report(o, "block by block", by_blocks);
    o.fields.push_back(computed_field::floats("out", "dequantized", Executor::template dequantize<S>(packed, q.axis)));

    if constexpr (R::random_bits == 0 && !ms::refines_scale<S>) {
      const ms::quantize_options options{
          .axis = q.axis, .rounding = R{}, .reference = q.amax ? &*q.amax : nullptr, .target = q.target};
      const ms::quantized<S> whole = Executor::template quantize<S>(in, options);
      report(o, "whole tensor", unpack<S>(whole, q.rows, q.cols, q.axis));
      o.fields.push_back(
          computed_field::floats("out", "fake-quantized", Executor::template fake_quantize<S>(in, options)));
      if constexpr (S::has_tensor_scale) {
        o.fields.push_back(
            computed_field::floats("tensor_scale", "whole tensor", std::vector<float>{whole.decode_multiplier()}));
      }
    }
  });
  if constexpr (S::has_tensor_scale) {
    o.fields.push_back(
        computed_field::floats("tensor_scale", "", std::vector<float>{S::decode_multiplier(S::stored(t))}));
    o.fields.push_back(computed_field::floats("tensor_encode", "", std::vector<float>{t.encode}));
  }
  return o;
}

template <class Executor, class Family>
std::optional<outcome> scheme_family<Executor, Family>::quantize(const quantize_request& q, const std::string& policy) {
  std::optional<outcome> o;
  visit_named(Family::schemes, q.scheme, policy, [&]<class S>(type_tag<S>) { o = quantize_one<Executor, S>(q); });
  return o;
}

template <class Executor, class Family>
std::optional<outcome> scheme_family<Executor, Family>::dequantize(const dequantize_request& d,
                                                                   const std::string& policy) {
  std::optional<outcome> o;
  visit_named(Family::schemes, d.in.scheme, policy, [&]<class S>(type_tag<S>) {
    o = outcome{
        {computed_field::floats("out", "", Executor::template dequantize<S>(pack<S>(d.in, d.datum), d.in.axis))}, {}};
  });
  return o;
}

}  // namespace conformance
