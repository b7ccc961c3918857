// A case of a vector file as typed values: names looked up, numbers parsed, counts checked. What an executor gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <microscale/microscale.hpp>

#include "vector_case.hpp"

namespace conformance {

namespace ms = microscale;

// An expected number: its bits, or any NaN.
using expected_item = std::optional<std::uint32_t>;

struct expectation {
  std::string field;
  std::vector<expected_item> items;
};

struct encode_request {
  std::string format;
  std::string rounding;
  ms::overflow overflow = ms::overflow::saturate;
  bool is_wide = false;  // the input is in `in64`
  std::vector<float> in;
  std::vector<double> in64;
  std::vector<std::uint32_t> random;  // one draw per element, 0 where the rounding takes none
};

struct decode_request {
  std::string format;
  std::vector<std::uint32_t> codes;
};

// Matrices in the orientation of the file, row-major.
struct quantize_request {
  std::string scheme;
  std::string rounding;
  ms::index_t rows = 0, cols = 0;
  ms::axis axis = ms::axis::row;
  std::vector<float> in;
  std::optional<float> amax;
  int target = 0;  // the scheme's own
  std::vector<std::uint32_t> random;
  std::vector<std::uint32_t> scale_random;  // one draw per block where the scheme draws for its scales, else none
};

// Codes and scales in the orientation of the file; scales are bytes, or the bits of a float.
struct stored_matrix {
  std::string scheme;
  ms::index_t rows = 0, cols = 0;
  ms::axis axis = ms::axis::row;
  std::vector<std::uint32_t> codes;
  std::vector<std::uint32_t> scales;
};

struct dequantize_request {
  stored_matrix in;
  float datum = 1.0f;  // what the scheme stores for the tensor
};

struct gemm_request {
  stored_matrix a, b;  // b is n x k
  std::string accumulate;
  float alpha = 1.0f;
};

struct pack_request {
  int bits = 0;
  std::vector<std::uint32_t> codes;
};

struct layout_request {
  ms::index_t rows = 0, cols = 0;
  std::vector<std::uint32_t> in;
};

struct hadamard_request {
  int size = 0;
  ms::hadamard_signs signs;
  std::vector<float> in;
};

struct request {
  std::size_t line = 0;
  std::string id;
  std::string policy;
  std::vector<expectation> expected;
  std::variant<encode_request, decode_request, quantize_request, dequantize_request, gemm_request, pack_request,
               layout_request, hadamard_request>
      operation;
};

// Throws `malformed` where a name, a number or a count is wrong.
request parse_request(const vector_case& c);

}  // namespace conformance
