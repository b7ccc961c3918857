// What a file of tensors holds, as things to look at: matrices of numbers (plain, or quantized with their scales) and
// the rest.
#pragma once

#include <microscale/interop/checkpoint.hpp>
#include <microscale/interop/tensor_file.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace inspect {

namespace ms = microscale;
using ms::index_t;

// How an item is stored. `plain` is a tensor of numbers; `opaque` one whose elements are no floats.
enum class storage : std::uint8_t { plain, modelopt, compressed_tensors, ocp_mx, gguf, opaque };

struct item {
  std::string name;  // of the tensor; of a quantized matrix, NAME.weight
  std::string type;  // as the file's world calls it
  storage stored = storage::opaque;
  std::vector<std::int64_t> shape;  // of the numbers
  index_t rows = 0, cols = 0;
  std::vector<const ms::interop::stored_tensor*> parts;  // codes, scales, scalar; or the tensor itself
  // Numbers of columns [col, col + cols) of rows [row, row + rows) to `out`, row by row; empty for `opaque`. Columns
  // begin and end at multiples of 64, or at the end of the row.
  std::function<void(index_t row, index_t rows, index_t col, index_t cols, float* out)> load;

  std::uint64_t bytes() const;
  bool is_matrix() const { return stored != storage::opaque && shape.size() >= 2 && rows > 0 && cols > 1; }
  bool is_quantized() const { return stored != storage::opaque && stored != storage::plain; }
};

// Everything in the file, quantized matrices as one item each. `any_amax` takes tensor scales in either direction.
std::vector<item> items_of(const ms::interop::tensor_file& file, bool any_amax = false);

}  // namespace inspect
