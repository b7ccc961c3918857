// Whether a grid makes numbers smaller on average: the bias that arXiv 2606.20381 (UFP4) holds against E2M1.
//
// Where the density of the data falls within the cell of numbers that round to one value, its mean lies below the
// middle of the cell. On a uniform grid the value is the middle; on E2M1's the cells of 2 and 4 reach farther up than
// down.
#pragma once

#include "../tensor/quantized.hpp"

namespace microscale {

// Sums over a matrix; those of several may be added up.
struct shrinkage {
  double signal = 0.0;      // sum of x^2
  double projection = 0.0;  // sum of x x', x' the decoded value
  double magnitude = 0.0;   // sum of |x|
  double decoded_magnitude = 0.0;

  // The part of x that x' lacks along x: positive where the grid shrinks. Unbiased rounding has 0.
  double of_projection() const { return 1.0 - projection / signal; }
  // The same of the mean magnitude.
  double of_magnitude() const { return 1.0 - decoded_magnitude / magnitude; }

  shrinkage& operator+=(const shrinkage& other) {
    signal += other.signal;
    projection += other.projection;
    magnitude += other.magnitude;
    decoded_magnitude += other.decoded_magnitude;
    return *this;
  }
};

// Compares a quantized matrix with the one it came from; `along` as in the quantization.
template <readable_element T, quantized_operand Q>
shrinkage measure_shrinkage(matrix_view<T> source, const Q& q_in, axis along = axis::row) {
  const auto q = detail::read_only(q_in);
  using scheme = typename decltype(q)::scheme_type;
  detail::check_matrix("source", source);
  detail::check_quantized("quantized", q);
  detail::check_stored_shape(source, q, along);
  shrinkage sums;
  detail::in_default_environment([&] {
    for (index_t r = 0; r < q.rows; ++r) {
      for (index_t k = 0; k < q.cols; ++k) {
        const double x = double{to_float(along == axis::row ? source(r, k) : source(k, r))};
        const double y = double{decode_element<scheme>(q.code(r, k), q.scale(r, k), q.factors(q.tile_index(r, k)))};
        sums.signal += x * x;
        sums.projection += x * y;
        sums.magnitude += x < 0.0 ? -x : x;
        sums.decoded_magnitude += y < 0.0 ? -y : y;
      }
    }
  });
  return sums;
}

}  // namespace microscale
