// Going through the numbers of matrices: in tiles, on all threads, with the same results on any number of them.
#pragma once

#include <microscale/host/executor.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "schemes.hpp"
#include "source.hpp"

namespace inspect {

// Part of a matrix, at multiples of every block's size.
struct tile {
  index_t row, rows, col, cols;
};

// Tiles of about 2^18 numbers, in row-major order.
std::vector<tile> tiles_of(index_t rows, index_t cols);

// Says on the terminal, if standard error is one, how much of the work is done.
class progress {
 public:
  progress(std::string what, std::uint64_t total);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  void add(std::uint64_t done);

 private:
  std::string what_;
  std::uint64_t total_, done_ = 0;
  int shown_ = -1;
  bool on_terminal_;
};

// How many of the numbers have each exponent: entry 0 counts zeros and subnormals, i > 0 those of 2^(i - 127), 255
// those that are NaN or infinite.
using exponent_histogram = std::array<std::int64_t, 256>;

// The largest finite magnitude, the reference of every tensor scale here; counts exponents where `bins` is not null.
float find_amax(const ms::host& on, const item& it, exponent_histogram* bins = nullptr);

struct measured_scheme {
  ms::quantization_metrics metrics;
  scale_histogram scales{};  // where it was asked for
};

// Quantizes the matrix under each scheme, with `amax` as its reference, and measures what that cost. Its numbers are
// read once for all of them.
std::vector<measured_scheme> measure(const ms::host& on, const item& it, std::span<const scheme* const> schemes,
                                     float amax, bool with_scales);

template <class Histogram>
void add_to(Histogram& sum, const Histogram& part) {
  for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

}  // namespace inspect
