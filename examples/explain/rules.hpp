// Which definition a quantized matrix follows: every named scheme of its shape is tried on the data.
#pragma once

#include <string>
#include <vector>

#include "subject.hpp"

namespace explain {

// How far the bytes are from one definition.
struct attempt {
  std::string scheme, rounding;
  index_t blocks = 0;            // of the matrix
  index_t blocks_differing = 0;  // scale or a code
  index_t scales_differing = 0;
  index_t codes_differing = 0;
  index_t nonfinite_differing = 0;  // differing blocks that hold a NaN or an infinity
  index_t zero_differing = 0;       // differing blocks whose elements are all zero
  index_t sign_of_zero_only = 0;    // differing blocks where zeros have other signs, and nothing else differs
  index_t neighbours_only = 0;      // differing blocks under the same scale whose codes are off by one step at most
  index_t first = -1;               // the first differing block, in row-major order
  bool scalar_differs = false;      // the stored tensor scale is not what the data's amax gives
  float own_scalar = 1.0f;          // what it gives
};

// All of them, the nearest first; of equals, in the order of the library's table. `amax` is the reference where one is
// given, and else that which the stored scalar stands for, or the data's own.
std::vector<attempt> try_schemes(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax);

// Block `which` worked out under a scheme, step by step, beside the bytes of `q`.
std::string worked_out(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax, const attempt& under,
                       index_t which);

// What is known of two quantized matrices without the data: where they differ, how often, and what turns one into the
// other, where something does.
struct difference {
  index_t codes = 0, codes_differing = 0, sign_of_zero = 0, one_step = 0;
  index_t scales = 0, scales_differing = 0, scale_up = 0, scale_down = 0;  // by one code: the second's is higher, lower
  index_t first_block = -1;
  bool scalar_differs = false;
  std::vector<std::string> turned;  // descriptions of layouts under which both are equal
};
difference compare(const quantized_matrix& a, const quantized_matrix& b);

}  // namespace explain
