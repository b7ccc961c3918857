// The formats of the field, one declaration each.
#pragma once

#include "format.hpp"

namespace microscale {

// Elements.
struct e2m1 : minifloat<float_layout{.exponent_bits = 2, .mantissa_bits = 1, .bias = 1}> {};  // 0 .5 1 1.5 2 3 4 6
struct e1m2 : minifloat<float_layout{.exponent_bits = 1, .mantissa_bits = 2, .bias = 1}> {};  // 0 .25 ... 1.75
struct e2m3 : minifloat<float_layout{.exponent_bits = 2, .mantissa_bits = 3, .bias = 1}> {};  // up to 7.5
struct e3m2 : minifloat<float_layout{.exponent_bits = 3, .mantissa_bits = 2, .bias = 3}> {};  // up to 28

// OCP 8-bit floating point (OFP8); E4M3 is the variant without infinity, "FN".
struct e4m3 : minifloat<float_layout{
                  .exponent_bits = 4, .mantissa_bits = 3, .bias = 7, .has_sign = true, .top = specials::nan}> {};
struct e5m2 : minifloat<float_layout{
                  .exponent_bits = 5, .mantissa_bits = 2, .bias = 15, .has_sign = true, .top = specials::ieee}> {};

// Two's complement fixed point: OCP MXINT8's element, its 4-bit counterpart, and both with the most negative code.
struct int8 : fixed_point<8, integer_range::symmetric> {};
struct int4 : fixed_point<4, integer_range::symmetric> {};
struct int8_full : fixed_point<8, integer_range::full> {};
struct int4_full : fixed_point<4, integer_range::full> {};

// Block scales. UE4M3 is E4M3 without its sign; bit 7 of the byte is zero.
struct ue4m3 : minifloat<float_layout{
                   .exponent_bits = 4, .mantissa_bits = 3, .bias = 7, .has_sign = false, .top = specials::nan}> {};
// UE5M3 as PTX (CUDA 13.4), LLVM, AMD and Intel define it: only 0xFF is NaN, the largest value is 114688.
struct ue5m3 : minifloat<float_layout{
                   .exponent_bits = 5, .mantissa_bits = 3, .bias = 15, .has_sign = false, .top = specials::nan}> {};
// UE5M3 with the largest exponent reserved, as arXiv 2609.02846 uses it: the largest value is 61440 (0xF7).
struct ue5m3_ieee : minifloat<float_layout{
                        .exponent_bits = 5, .mantissa_bits = 3, .bias = 15, .has_sign = false, .top = specials::ieee}> {
};
// OCP MX v1.0 scale: a power of two.
struct e8m0 : power_of_two<power_tie::up> {};
struct e8m0_tie_even : power_of_two<power_tie::even> {};

// Wider formats, as inputs, outputs and scales.
struct bf16 : minifloat<float_layout{
                  .exponent_bits = 8, .mantissa_bits = 7, .bias = 127, .has_sign = true, .top = specials::ieee}> {};
struct f16 : minifloat<float_layout{
                 .exponent_bits = 5, .mantissa_bits = 10, .bias = 15, .has_sign = true, .top = specials::ieee}> {};
struct f32 : minifloat<float_layout{
                 .exponent_bits = 8, .mantissa_bits = 23, .bias = 127, .has_sign = true, .top = specials::ieee}> {};

}  // namespace microscale
