// The named schemes, as a table of functions.
#pragma once

#include <microscale/interop/checkpoint.hpp>
#include <microscale/tensor/metrics.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inspect {

namespace ms = microscale;
using ms::index_t;

// How quantized weights are stored in the file that --to writes.
enum class target : std::uint8_t { modelopt, compressed_tensors, ocp_mx, gguf };

// Memory that a thread uses again and again.
struct scratch {
  std::vector<float> numbers;
  std::vector<std::uint8_t> codes, scales;
};

// How often each scale occurs, by its exponent: entry i is the number of scales s with floor(log2 s) = i - 150, entry 0
// that of zeros, and the last that of NaNs.
inline constexpr int scale_bins = 300;
using scale_histogram = std::array<std::int64_t, scale_bins>;

struct scheme {
  std::string_view name;
  bool has_tensor_scale;
  int block_rows, block_columns;
  // Bytes that a rows x cols matrix takes.
  std::uint64_t (*bytes)(index_t rows, index_t cols);
  // Quantizes under this reference amax, decodes again and compares; counts scales where `bins` is not null.
  ms::quantization_metrics (*measure)(ms::matrix_view<const float> x, float reference, scratch& memory,
                                      scale_histogram* bins);
  // The scalar that a convention stores beside a matrix of this amax.
  float (*scalar)(target to, float amax);
  // The tensors of a matrix, or null where the scheme does not fit the target: see ms::interop::checkpoint_tensors.
  std::vector<ms::interop::stored_tensor> (*tensors)(target to, const std::string& name, index_t rows, index_t cols);
  // Quantizes rows into the bytes of the target: codes and scales, or ggml's blocks as `codes`.
  ms::interop::checkpoint_bytes (*encode)(target to, ms::matrix_view<const float> x, float reference);
  bool (*fits)(target to);
};

std::span<const scheme> schemes();
const scheme* find_scheme(std::string_view name);

}  // namespace inspect
