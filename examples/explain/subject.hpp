// What is held against something: quantized matrices, one code per element whatever their file, and the data they came
// from.
#pragma once

#include <microscale/interop/tensor_file.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace explain {

namespace ms = microscale;
using ms::index_t;

// What was asked cannot be done: one line, exit code 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class scalar_kind : std::uint8_t { none, multiplier, divisor, amax };

// A quantized matrix as its file has it. Scales lie in rows, one for each block of 1 x `block`.
struct quantized_matrix {
  std::string name;
  int element_bits = 4;
  int block = 16;
  bool e8m0 = false;  // scales are E8M0, else unsigned with a fraction
  index_t rows = 0, cols = 0;
  std::vector<std::uint8_t> codes, scales;
  scalar_kind kind = scalar_kind::none;
  float scalar = 1.0f;

  index_t blocks_in_row() const { return ms::ceil_div(cols, index_t{block}); }
};

struct data_matrix {
  std::string name;
  index_t rows = 0, cols = 0;
  std::vector<float> values;
};

// One side of the comparison; exactly one member is there.
struct subject {
  std::optional<quantized_matrix> quantized;
  std::optional<data_matrix> data;
};

// FILE or FILE:TENSOR; of a file with one matrix, its name may be left out. Throws ms::error or usage_error.
subject read_subject(const std::string& argument);

// A matrix in .npy files: codes, packed two a byte or one a byte, and scales.
quantized_matrix read_arrays(const std::filesystem::path& codes, const std::filesystem::path& scales, int element_bits,
                             int block, bool e8m0, bool packed, scalar_kind kind, float scalar);

}  // namespace explain
