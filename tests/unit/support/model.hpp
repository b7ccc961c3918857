// Formats and schemes stated once more, apart from the library and in another way: values by the formula, codes by
// walking along midpoints, every rule operation by operation in plain binary32. It shares nothing with the headers it
// is held against, and lives in a source of its own, so that a test may be compiled with any flag.
#pragma once

#include <cstdint>
#include <vector>

namespace model {

// ---------------------------------------------------------------------------------------------------------------
// Binary32, one operation each, by a compiler that was asked for no shortcut.
float mul(float a, float b);
float div(float a, float b);
float add(float a, float b);
float square_root(float a);
bool less(float a, float b);
bool is_nan(float x);

// ---------------------------------------------------------------------------------------------------------------
// Formats.
enum class family { minifloat, power_of_two, fixed_point };

struct format {
  family kind;
  int exponent_bits, mantissa_bits, bias;
  bool has_sign;
  unsigned top;       // the magnitude of the largest finite value
  int infinity = -1;  // the magnitudes of infinity and of the NaN that encoding gives; none: -1
  int nan = -1;
};

inline constexpr format e2m1{family::minifloat, 2, 1, 1, true, 0x7};
inline constexpr format e1m2{family::minifloat, 1, 2, 1, true, 0x7};
inline constexpr format e2m3{family::minifloat, 2, 3, 1, true, 0x1F};
inline constexpr format e3m2{family::minifloat, 3, 2, 3, true, 0x1F};
inline constexpr format e4m3{family::minifloat, 4, 3, 7, true, 0x7E, -1, 0x7F};
inline constexpr format e5m2{family::minifloat, 5, 2, 15, true, 0x7B, 0x7C, 0x7F};
inline constexpr format ue4m3{family::minifloat, 4, 3, 7, false, 0x7E, -1, 0x7F};
inline constexpr format ue5m3{family::minifloat, 5, 3, 15, false, 0xFE, -1, 0xFF};
inline constexpr format ue5m3_ieee{family::minifloat, 5, 3, 15, false, 0xF7, 0xF8, 0xFF};
inline constexpr format bf16{family::minifloat, 8, 7, 127, true, 0x7F7F, 0x7F80, 0x7FFF};
inline constexpr format f16{family::minifloat, 5, 10, 15, true, 0x7BFF, 0x7C00, 0x7FFF};
inline constexpr format e8m0{family::power_of_two, 8, 0, 127, false, 0xFE, -1, 0xFF};
inline constexpr format int4{family::fixed_point, 0, 2, 0, true, 7};
inline constexpr format int8{family::fixed_point, 0, 6, 0, true, 127};

// The value of a magnitude, which may lie past the top; exact in binary64.
double magnitude(const format& f, unsigned m);
// The value of a code; for infinities and NaN too.
float decode(const format& f, unsigned code);

// How far the farther neighbour is away is decided by these; the stochastic ones take r.
enum class rounding { nearest_even, toward_zero, toward_positive, toward_negative, midpoint8, floor8 };

// The magnitude that p / q >= 0 rounds to, saturating. p, and q times any value or midpoint of the format, must be
// exact in binary64.
unsigned round_quotient(const format& f, double p, double q, bool negative, rounding how, unsigned r);
// The code of a number, saturating.
unsigned encode(const format& f, double x, rounding how = rounding::nearest_even, unsigned r = 0);

// ---------------------------------------------------------------------------------------------------------------
// Schemes.
enum class rule {
  paper,
  te,
  four_over_six,
  torchao,
  modelopt,
  compressed_tensors,
  exact,
  single,
  ufp4,
  mx_floor,
  mx_even,
  mx_ceil
};
enum class nonfinite { owner, poison, reject, saturate };

struct scheme {
  rule how;
  format element = e2m1;
  format scale = ue4m3;  // ufp4: none, the scale is a binary32
  nonfinite policy = nonfinite::owner;
  int target = 448;
  bool reciprocal = false;   // a division by a constant is a multiplication by its rounded reciprocal
  bool scale_first = false;  // the paper's portable order of decoding
};

struct tensor {
  float encode = 1, decode = 1;
};
tensor tensor_scale(const scheme& s, float reference);

struct block {
  std::uint32_t scale = 0;  // ufp4: the bits of the float
  std::vector<unsigned> codes;
  std::vector<float> out;
  bool has_nonfinite = false;
};

// `random` has one integer for each element, or is empty.
block quantize(const scheme& s, float reference, const std::vector<float>& given,
               rounding how = rounding::nearest_even, const std::vector<unsigned>& random = {});

}  // namespace model
