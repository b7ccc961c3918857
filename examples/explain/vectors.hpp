// The quantize cases of a vector file (docs/conformance.md), as matrices with their data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "subject.hpp"

namespace explain {

struct vector_subject {
  std::string id, scheme, rounding;
  quantized_matrix quantized;
  data_matrix data;
  std::optional<float> amax;
};

// Cases that list scales and codes of blocks along rows, rounded without random bits and under the scheme's own target;
// `left_out` counts the other quantize cases. Throws usage_error for a file that is no vector file.
std::vector<vector_subject> read_vector_subjects(const std::filesystem::path& path, std::size_t& left_out);

}  // namespace explain
