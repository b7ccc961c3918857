// Tiles of a GEMM on 4-bit codes in each instruction set: exact integer sums of a run of k, then scales.
//
// Rows of the left operand and columns of the right one are laid out for it first. A *run* is 16 or 32 elements along
// k under one scale of each operand; a *word* is eight codes of a row as they are stored, four bytes; the low nibbles
// of a word are one *quad*, the high ones the next. Sums are exact, so the order inside a run is free.
//
//   left   [run][row of left_rows] { start, scale, quads } in 32-bit words, a quad being four signed bytes
//   right  per panel of 16 columns: [run] { 16 scales, 16 offsets, quads }, a quad being four values of each column
//
// Codes become small integers (E2M1: twice the value). The sum of a run begins with the bits of a binary32 number whose
// unit in the last place is that of the product of two codes, so that it ends as the float `origin` + dot: the
// conversion costs nothing, and subtracting origin shares an FMA with the multiplication by a scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../tensor/accumulate.hpp"
#include "simd_level.hpp"

namespace microscale::detail {

// What each.inl counts with.
template <int Count>
using indices = std::make_integer_sequence<int, Count>;

inline constexpr index_t panel_columns = 16;
inline constexpr index_t left_rows = 8;

// The integers that 16 codes stand for.
struct code_values {
  std::int16_t value[16];
};

// What a tile computes. All but the first ask that every sa sb dot be a binary32 number, and the last two that no sum
// of them have more than 53 bits.
enum class tile_sums : std::uint8_t {
  blocks,        // f32_blocks
  exact_blocks,  // f32_blocks
  exact,         // exact_f32 before its rounding
  exact_groups   // blackwell_k64
};

struct block_tile {
  const std::int32_t* left;
  const std::byte* right;
  index_t right_panel;  // bytes from one panel to the next
  int rows, runs;
  bool continues;  // c or wide holds the sum so far
  float origin;
  float alpha;  // the last factor
  float* c;
  index_t c_pitch;
  double* wide;  // of tile_sums::exact, [row][column of a tile]
};

// One row of the left operand by one panel, whose codes are expanded on the way, for products that need them once.
// Every sa sb dot is a binary32 number.
struct block_row {
  const std::uint8_t* words;  // [word][16 columns]
  const float* scales;        // [run][16 columns]
  const std::int32_t* left;
  int runs;
  bool continues;  // c holds the sum so far
  code_values values;
  int bias;
  float origin;
  float alpha;
  float* c;  // 16 columns
};

struct left_row {
  const std::uint8_t* codes;  // 16 words at a time
  int words, quads;
  code_values values;
  int right_bias;      // what the right operand's bytes have too much
  std::int32_t start;  // bits of origin
  std::int32_t* out;
};

struct right_panel {
  const std::uint8_t* words;  // [word][16 columns]
  int runs, quads;
  code_values values;
  int bias;
  float origin;
  std::byte* out;
};

// What is known of the products of numbers in a run.
enum class number_sums : std::uint8_t {
  rounded,         // nothing: every product and every sum is rounded
  exact_products,  // they are binary32 numbers
  wide             // neither they nor their sums have more bits than binary64, and the sum is rounded once
};

// Products of numbers: left [run] { 8 scales, [k][row of left_rows] }, right per panel [run] { 16 scales, [k][16
// columns] }.
struct number_tile {
  const float* left;
  const float* right;
  index_t right_panel;  // floats from one panel to the next
  int rows, runs, run;
  bool continues;  // c holds the sum so far
  float alpha;
  float* c;
  index_t c_pitch;
};

// As block_row, for numbers.
struct number_row {
  const std::uint8_t* words;
  const float* scales;
  const float* left;
  int runs, run;
  bool continues;
  code_values values;
  float step;  // what 1 among the values stands for
  float alpha;
  float* c;
};

struct number_panel {
  const std::uint8_t* words;  // [word][16 columns]
  int runs, run;
  code_values values;
  float step;  // what 1 among the values stands for
  float* out;
};

// How codes of at most eight bits and no sign become floats: below first_normal they count steps.
struct scale_code {
  std::uint32_t mask, largest, first_normal;
  int shift;
  std::uint32_t offset;    // added to a normal code in the place of binary32's exponent and fraction
  std::uint32_t smallest;  // bits of code 0
  float step;
};

struct panel_scales {
  const std::uint8_t* codes;  // [block][16 columns]
  int runs, runs_per_block;
  scale_code format;
  float* out;    // of the first run
  index_t step;  // bytes from one run to the next
};

// What lays out operands for an instruction set.
struct gemm_packers {
  index_t columns;  // of a tile
  index_t quad_bytes;
  void (*pack_left)(const left_row&);
  void (*pack_right)(const right_panel&);
  void (*pack_numbers)(const number_panel&);
  void (*decode_scales)(const panel_scales&);
};

// What lies so many bytes from p, to be prefetched: it need not exist, so that pointer arithmetic might not reach it.
inline const void* at_distance(const void* p, index_t bytes) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes));
}
// How far ahead of what is read once.
inline constexpr index_t stream_ahead = 6144;

#if !defined(__CUDA_ARCH__)  // nvcc's second look at this file is for the device, which has none of these vectors

// sum + x toward zero, for 16 floats each.
inline void add_each_toward_zero(void* sum, const void* x) noexcept {
  float a[panel_columns], b[panel_columns];
  std::memcpy(a, sum, sizeof(a));
  std::memcpy(b, x, sizeof(b));
  for (index_t i = 0; i < panel_columns; ++i) a[i] = add_toward_zero(a[i], b[i]);
  std::memcpy(sum, a, sizeof(a));
}

// ---------------------------------------------------------------------------------------------------------------
// Plain vectors of 16 bytes, which every compiler has, for the processor that the program is compiled for. On AArch64
// these are NEON's.

namespace gemm_portable {

#include "each.inl"

inline constexpr int panels = 1;
template <int Quads>
inline constexpr int full_rows = 2;
inline constexpr int rows_together = 1;
inline constexpr index_t quad_bytes = 8 * panel_columns;  // [k][column] in 16 bits
template <int Quads>
inline constexpr index_t right_run_bytes = 8 * panel_columns + Quads* quad_bytes;

using four_floats __attribute__((vector_size(16), may_alias)) = float;
using double_vector __attribute__((vector_size(16), may_alias)) = double;
using four_ints __attribute__((vector_size(16), may_alias)) = std::int32_t;
using eight_shorts __attribute__((vector_size(16), may_alias)) = std::int16_t;
using four_shorts __attribute__((vector_size(8), may_alias)) = std::int16_t;

struct floats {
  four_floats v[4];
};
struct doubles {
  static constexpr int parts = 8;
  double_vector v[parts];
};
// Hides a vector from the optimizer, so that -ffast-math cannot reorder what made it.
[[gnu::always_inline]] inline void settle(four_floats& x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm volatile("" : : "r"(&x) : "memory");
#endif
}
// Register by register: a copy of all would be made in memory, in pieces of another size.
[[gnu::always_inline]] inline void load(floats& x, const float* p) {
  each<4>([&](index_t i) __attribute__((always_inline)) { __builtin_memcpy(&x.v[i], p + 4 * i, sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void store(const floats& x, float* p) {
  each<4>([&](index_t i) __attribute__((always_inline)) { __builtin_memcpy(p + 4 * i, &x.v[i], sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void load(doubles& x, const double* p) {
  each<doubles::parts>([&](index_t i)
                           __attribute__((always_inline)) { __builtin_memcpy(&x.v[i], p + 2 * i, sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void store(const doubles& x, double* p) {
  each<doubles::parts>([&](index_t i)
                           __attribute__((always_inline)) { __builtin_memcpy(p + 2 * i, &x.v[i], sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void splat(floats& x, float a) {
  each<4>([&](index_t i) __attribute__((always_inline)) { x.v[i] = four_floats{a, a, a, a}; });
}
[[gnu::always_inline]] inline void clear(doubles& x) {
  each<doubles::parts>([&](index_t i) __attribute__((always_inline)) { x.v[i] = double_vector{}; });
}
[[gnu::always_inline]] inline void widen(doubles& x, const floats& y) {
  each<4>([&](index_t i) __attribute__((always_inline)) {
    x.v[2 * i] = double_vector{static_cast<double>(y.v[i][0]), static_cast<double>(y.v[i][1])};
    x.v[2 * i + 1] = double_vector{static_cast<double>(y.v[i][2]), static_cast<double>(y.v[i][3])};
  });
}
[[gnu::always_inline]] inline void narrow(floats& x, const doubles& y) {
  each<4>([&](index_t i) __attribute__((always_inline)) {
    x.v[i] = four_floats{static_cast<float>(y.v[2 * i][0]), static_cast<float>(y.v[2 * i][1]),
                         static_cast<float>(y.v[2 * i + 1][0]), static_cast<float>(y.v[2 * i + 1][1])};
  });
}
[[gnu::always_inline]] inline void splat_bits(floats& x, std::int32_t a) { splat(x, __builtin_bit_cast(float, a)); }
// f of each of the four, whose operands are hidden too: 0 + x is not x if x is -0.
template <class F>
[[gnu::always_inline]] inline void each_settled(floats& x, const floats& y, F f) {
  each<4>([&](index_t i) __attribute__((always_inline)) {
    four_floats other = y.v[i];
    settle(x.v[i]), settle(other);
    f(x.v[i], other);
    settle(x.v[i]);
  });
}
[[gnu::always_inline]] inline void multiply(floats& x, const floats& y) {
  each_settled(
      x, y, [](four_floats & a, const four_floats& b) __attribute__((always_inline)) { a *= b; });
}
[[gnu::always_inline]] inline void add(floats& x, const floats& y) {
  each_settled(
      x, y, [](four_floats & a, const four_floats& b) __attribute__((always_inline)) { a += b; });
}
[[gnu::always_inline]] inline void subtract(floats& x, const floats& y) {
  each_settled(
      x, y, [](four_floats & a, const four_floats& b) __attribute__((always_inline)) { a -= b; });
}
// (x - origin) scale, which is exact; `offset` is -origin scale.
[[gnu::always_inline]] inline void scaled_dot(floats& x, const floats& scale, const floats& /*offset*/,
                                              const floats& origin) {
  subtract(x, origin);
  multiply(x, scale);
}
// sum + x y where x y is exact.
[[gnu::always_inline]] inline void add_exact_product(floats& sum, const floats& x, const floats& y) {
  floats product = x;
  multiply(product, y);
  add(sum, product);
}
[[gnu::always_inline]] inline void add_truncated(floats& sum, const floats& x) { add_each_toward_zero(&sum, &x); }
// The 16 bits of every sum are enough: |dot| <= 32 12 12 for the formats that come here.
template <int Rows, int Panels, int Quads>
[[gnu::always_inline]] inline void dots(floats (&dot)[Rows][Panels], const std::byte* weights, index_t /*panel*/,
                                        const std::int32_t* left) {
  const eight_shorts* const w = reinterpret_cast<const eight_shorts*>(weights);
  each<Rows>([&](index_t row) __attribute__((always_inline)) {
    const std::int32_t* const start = left + row * (2 + Quads);
    const std::int8_t* const values = reinterpret_cast<const std::int8_t*>(start + 2);
    eight_shorts low = {}, high = {};
    each<4 * Quads>([&](index_t k) __attribute__((always_inline)) {
      const eight_shorts value = eight_shorts{} + std::int16_t{values[k]};
      low += w[2 * k] * value;
      high += w[2 * k + 1] * value;
    });
    const auto finish = [&](const eight_shorts& sums, four_floats* out) __attribute__((always_inline)) {
      four_shorts half[2];
      __builtin_memcpy(half, &sums, sizeof(sums));
      each<2>([&](index_t i) __attribute__((always_inline)) {
        out[i] = reinterpret_cast<four_floats>(__builtin_convertvector(half[i], four_ints) + *start);
      });
    };
    finish(low, dot[row][0].v);
    finish(high, dot[row][0].v + 2);
  });
}
constexpr int weight_bias(int) { return 0; }

// What a nibble stands for.
using table = code_values;
inline void make_table(table& t, const code_values& values, int /*bias*/) { t = values; }

// The low and the high nibbles of 16 words.
inline void expand_signed(const std::uint8_t* words, const table& t, std::int8_t* even, std::int8_t* odd) {
  for (index_t i = 0; i < 64; ++i) {
    even[i] = static_cast<std::int8_t>(t.value[words[i] & 15]);
    odd[i] = static_cast<std::int8_t>(t.value[words[i] >> 4]);
  }
}
// A word of each of 16 columns as two quads.
inline void expand_weights(const std::uint8_t* words, const table& t, std::byte* out) {
  std::int16_t* const values = reinterpret_cast<std::int16_t*>(out);
  for (index_t column = 0; column < panel_columns; ++column) {
    for (index_t i = 0; i < 4; ++i) {
      const std::uint8_t both = words[4 * column + i];
      values[i * panel_columns + column] = t.value[both & 15];
      values[(4 + i) * panel_columns + column] = t.value[both >> 4];
    }
  }
}

struct number_table {
  float value[16];
};
inline void make_number_table(number_table& t, const code_values& values, float step) {
  for (index_t i = 0; i < 16; ++i) t.value[i] = static_cast<float>(values.value[i]) * step;
}
// A word of each of 16 columns as [k][column].
inline void expand_numbers(const std::uint8_t* words, const number_table& t, float* out) {
  for (index_t column = 0; column < panel_columns; ++column) {
    for (index_t i = 0; i < 4; ++i) {
      const std::uint8_t both = words[4 * column + i];
      out[2 * i * panel_columns + column] = t.value[both & 15];
      out[(2 * i + 1) * panel_columns + column] = t.value[both >> 4];
    }
  }
}

// Scale codes, one byte each, as integers.
template <class Words>
[[gnu::always_inline]] inline void widen_codes(Words& out, const std::uint8_t* p) {
  each<4>([&](index_t i) __attribute__((always_inline)) { out[i] = p[i]; });
}

#include "block_gemm.inl"

}  // namespace gemm_portable

#if defined(__x86_64__) && defined(__GNUC__)

// ---------------------------------------------------------------------------------------------------------------
// AVX2: 8 columns a register, vpmaddubsw multiplies unsigned by signed bytes and adds pairs to 16 bits, which hold the
// sum of a run: |dot| <= 32 24 12 for the formats that come here.

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace gemm_avx2 {

#include "each.inl"  // NOLINT(readability-duplicate-include): once per instruction set

inline constexpr int panels = 1;
template <int Quads>
inline constexpr int full_rows = 4;
inline constexpr int rows_together = 1;
inline constexpr index_t quad_bytes = 4 * panel_columns;
template <int Quads>
inline constexpr index_t right_run_bytes = 8 * panel_columns + Quads* quad_bytes;

using eight_floats __attribute__((vector_size(32), may_alias)) = float;
using double_vector __attribute__((vector_size(32), may_alias)) = double;
using eight_ints __attribute__((vector_size(32), may_alias)) = std::int32_t;
using sixteen_shorts __attribute__((vector_size(32), may_alias)) = std::int16_t;

struct floats {
  eight_floats v[2];
};
struct doubles {
  static constexpr int parts = 4;
  double_vector v[parts];
};
// Register by register: a copy of all would be made in memory, in pieces of another size.
[[gnu::always_inline]] inline void load(floats& x, const float* p) {
  each<2>([&](index_t i) __attribute__((always_inline)) { __builtin_memcpy(&x.v[i], p + 8 * i, sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void store(const floats& x, float* p) {
  each<2>([&](index_t i) __attribute__((always_inline)) { __builtin_memcpy(p + 8 * i, &x.v[i], sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void load(doubles& x, const double* p) {
  each<doubles::parts>([&](index_t i)
                           __attribute__((always_inline)) { __builtin_memcpy(&x.v[i], p + 4 * i, sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void store(const doubles& x, double* p) {
  each<doubles::parts>([&](index_t i)
                           __attribute__((always_inline)) { __builtin_memcpy(p + 4 * i, &x.v[i], sizeof(x.v[i])); });
}
[[gnu::always_inline]] inline void splat_bits(floats& x, std::int32_t a) {
  each<2>([&](index_t i) __attribute__((always_inline)) { x.v[i] = reinterpret_cast<eight_floats>(eight_ints{} + a); });
}
[[gnu::always_inline]] inline void splat(floats& x, float a) { splat_bits(x, __builtin_bit_cast(std::int32_t, a)); }
[[gnu::always_inline]] inline void clear(doubles& x) {
  each<doubles::parts>([&](index_t i) __attribute__((always_inline)) { x.v[i] = double_vector{}; });
}
[[gnu::always_inline]] inline void widen(doubles& x, const floats& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vcvtps2pd %x1, %0|vcvtps2pd %0, %x1}" : "=x"(x.v[2 * i]) : "x"(y.v[i]));
    asm("{vextractf128 $1, %1, %x0\n\tvcvtps2pd %x0, %0|vextractf128 %x0, %1, 1\n\tvcvtps2pd %0, %x0}"
        : "=x"(x.v[2 * i + 1])
        : "x"(y.v[i]));
  });
}
[[gnu::always_inline]] inline void narrow(floats& x, const doubles& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    eight_floats low, high;
    asm("{vcvtpd2psy %1, %x0|vcvtpd2ps %x0, %1}" : "=x"(low) : "x"(y.v[2 * i]));
    asm("{vcvtpd2psy %1, %x0|vcvtpd2ps %x0, %1}" : "=x"(high) : "x"(y.v[2 * i + 1]));
    asm("{vinsertf128 $1, %x2, %1, %0|vinsertf128 %0, %1, %x2, 1}" : "=x"(x.v[i]) : "x"(low), "x"(high));
  });
}
[[gnu::always_inline]] inline void multiply(floats& x, const floats& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vmulps %1, %0, %0|vmulps %0, %0, %1}" : "+x"(x.v[i]) : "x"(y.v[i]));
  });
}
[[gnu::always_inline]] inline void add(floats& x, const floats& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vaddps %1, %0, %0|vaddps %0, %0, %1}" : "+x"(x.v[i]) : "x"(y.v[i]));
  });
}
[[gnu::always_inline]] inline void subtract(floats& x, const floats& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vsubps %1, %0, %0|vsubps %0, %0, %1}" : "+x"(x.v[i]) : "x"(y.v[i]));
  });
}
[[gnu::always_inline]] inline void scaled_dot(floats& x, const floats& scale, const floats& offset,
                                              const floats& /*origin*/) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vfmadd213ps %2, %1, %0|vfmadd213ps %0, %1, %2}" : "+x"(x.v[i]) : "x"(scale.v[i]), "x"(offset.v[i]));
  });
}
[[gnu::always_inline]] inline void add_exact_product(floats& sum, const floats& x, const floats& y) {
  each<2>([&](index_t i) __attribute__((always_inline)) {
    asm("{vfmadd231ps %2, %1, %0|vfmadd231ps %0, %1, %2}" : "+x"(sum.v[i]) : "x"(x.v[i]), "x"(y.v[i]));
  });
}
[[gnu::always_inline]] inline void add_truncated(floats& sum, const floats& x) { add_each_toward_zero(&sum, &x); }
template <int Rows, int Panels, int Quads>
[[gnu::always_inline]] inline void dots(floats (&dot)[Rows][Panels], const std::byte* weights, index_t /*panel*/,
                                        const std::int32_t* left) {
  const sixteen_shorts* const w = reinterpret_cast<const sixteen_shorts*>(weights);
  const sixteen_shorts ones = sixteen_shorts{} + std::int16_t{1};
  each<Rows>([&](index_t row) __attribute__((always_inline)) {
    const std::int32_t* const start = left + row * (2 + Quads);
    sixteen_shorts sum[2] = {};
    each<Quads>([&](index_t q) __attribute__((always_inline)) {
      const eight_ints values = eight_ints{} + start[2 + q];
      each<2>([&](index_t i) __attribute__((always_inline)) {
        sixteen_shorts pairs;
        asm("{vpmaddubsw %2, %1, %0|vpmaddubsw %0, %1, %2}" : "=x"(pairs) : "x"(w[2 * q + i]), "x"(values));
        sum[i] += pairs;
      });
    });
    each<2>([&](index_t i) __attribute__((always_inline)) {
      eight_ints both;
      asm("{vpmaddwd %2, %1, %0|vpmaddwd %0, %1, %2}" : "=x"(both) : "x"(sum[i]), "x"(ones));
      dot[row][0].v[i] = reinterpret_cast<eight_floats>(both + *start);
    });
  });
}
constexpr int weight_bias(int bias) { return bias; }

// Sixteen bytes, twice.
using table = sixteen_shorts;
[[gnu::always_inline]] inline void make_table(table& t, const code_values& values, int bias) {
  alignas(32) std::int8_t bytes[32];
  for (index_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::int8_t>(values.value[i % 16] + bias);
  t = *reinterpret_cast<const table*>(bytes);
}
[[gnu::always_inline]] inline void expand(const std::uint8_t* words, const table& t, table& even, table& odd) {
  using unsigned_shorts __attribute__((vector_size(32), may_alias)) = std::uint16_t;
  unsigned_shorts codes;
  __builtin_memcpy(&codes, words, sizeof(codes));
  const unsigned_shorts low = codes & 0x0F0F, high = codes >> 4 & 0x0F0F;
  asm("{vpshufb %2, %1, %0|vpshufb %0, %1, %2}" : "=x"(even) : "x"(t), "x"(low));
  asm("{vpshufb %2, %1, %0|vpshufb %0, %1, %2}" : "=x"(odd) : "x"(t), "x"(high));
}
[[gnu::always_inline]] inline void expand_signed(const std::uint8_t* words, const table& t, std::int8_t* even,
                                                 std::int8_t* odd) {
  for (index_t i = 0; i < 2; ++i) {
    expand(words + 32 * i, t, reinterpret_cast<table*>(even)[i], reinterpret_cast<table*>(odd)[i]);
  }
}
[[gnu::always_inline]] inline void expand_weights(const std::uint8_t* words, const table& t, std::byte* out) {
  table* const quads = reinterpret_cast<table*>(out);
  for (index_t i = 0; i < 2; ++i) expand(words + 32 * i, t, quads[i], quads[2 + i]);
}

// Eight floats for the codes with bit 3 clear, eight for the others.
struct number_table {
  eight_floats low, high;
};
[[gnu::always_inline]] inline void make_number_table(number_table& t, const code_values& values, float step) {
  for (index_t i = 0; i < 8; ++i) {
    t.low[i] = static_cast<float>(values.value[i]) * step;
    t.high[i] = static_cast<float>(values.value[8 + i]) * step;
  }
}
[[gnu::always_inline]] inline void expand_numbers(const std::uint8_t* words, const number_table& t, float* out) {
  using unsigned_ints __attribute__((vector_size(32), may_alias)) = std::uint32_t;
  for (index_t half = 0; half < 2; ++half) {
    unsigned_ints codes;
    __builtin_memcpy(&codes, words + 32 * half, sizeof(codes));
    for (index_t k = 0; k < 8; ++k) {
      const unsigned_ints index = codes >> 4 * k, sign = index << 28;
      eight_floats low, high;
      asm("{vpermps %2, %1, %0|vpermps %0, %1, %2}" : "=x"(low) : "x"(index), "x"(t.low));
      asm("{vpermps %2, %1, %0|vpermps %0, %1, %2}" : "=x"(high) : "x"(index), "x"(t.high));
      asm("{vblendvps %2, %1, %0, %0|vblendvps %0, %0, %1, %2}" : "+x"(low) : "x"(high), "x"(sign));
      __builtin_memcpy(out + k * panel_columns + 8 * half, &low, sizeof(low));
    }
  }
}

template <class Words>
[[gnu::always_inline]] inline void widen_codes(Words& out, const std::uint8_t* p) {
  asm("{vpmovzxbd %1, %0|vpmovzxbd %0, %1}" : "=x"(out) : "m"(*reinterpret_cast<const std::uint8_t(*)[8]>(p)));
}

#include "block_gemm.inl"  // NOLINT(readability-duplicate-include): once per instruction set

}  // namespace gemm_avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

// ---------------------------------------------------------------------------------------------------------------
// AVX-512: 16 columns a register, vpdpbusd multiplies four unsigned bytes by four signed ones and adds all to 32 bits.

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")
#endif

namespace gemm_avx512 {

#include "each.inl"  // NOLINT(readability-duplicate-include): once per instruction set

inline constexpr int panels = 2;
template <int Quads>
inline constexpr int full_rows = 8;
inline constexpr int rows_together = 8;  // so that many sums are under way at once
inline constexpr index_t quad_bytes = 4 * panel_columns;
template <int Quads>
inline constexpr index_t right_run_bytes = 8 * panel_columns + Quads* quad_bytes;

using floats __attribute__((vector_size(64), may_alias)) = float;
using double_vector __attribute__((vector_size(64), may_alias)) = double;
using loose_floats __attribute__((vector_size(64), aligned(4), may_alias)) = float;
using ints __attribute__((vector_size(64), may_alias)) = std::int32_t;
using loose_ints __attribute__((vector_size(64), aligned(1), may_alias)) = std::int32_t;

struct doubles {
  static constexpr int parts = 2;
  double_vector v[parts];
};

[[gnu::always_inline]] inline void load(floats& x, const float* p) { x = *reinterpret_cast<const loose_floats*>(p); }
[[gnu::always_inline]] inline void store(const floats& x, float* p) { *reinterpret_cast<loose_floats*>(p) = x; }
[[gnu::always_inline]] inline void load(doubles& x, const double* p) { __builtin_memcpy(&x, p, sizeof(x)); }
[[gnu::always_inline]] inline void store(const doubles& x, double* p) { __builtin_memcpy(p, &x, sizeof(x)); }
[[gnu::always_inline]] inline void clear(doubles& x) { x.v[0] = x.v[1] = double_vector{}; }
[[gnu::always_inline]] inline void widen(doubles& x, const floats& y) {
  asm("{vcvtps2pd %t1, %0|vcvtps2pd %0, %t1}" : "=v"(x.v[0]) : "v"(y));
  asm("{vextractf64x4 $1, %1, %t0\n\tvcvtps2pd %t0, %0|vextractf64x4 %t0, %1, 1\n\tvcvtps2pd %0, %t0}"
      : "=v"(x.v[1])
      : "v"(y));
}
[[gnu::always_inline]] inline void narrow(floats& x, const doubles& y) {
  floats low, high;
  asm("{vcvtpd2ps %1, %t0|vcvtpd2ps %t0, %1}" : "=v"(low) : "v"(y.v[0]));
  asm("{vcvtpd2ps %1, %t0|vcvtpd2ps %t0, %1}" : "=v"(high) : "v"(y.v[1]));
  asm("{vinsertf64x4 $1, %t2, %1, %0|vinsertf64x4 %0, %1, %t2, 1}" : "=v"(x) : "v"(low), "v"(high));
}
[[gnu::always_inline]] inline void splat_bits(floats& x, std::int32_t a) { x = reinterpret_cast<floats>(ints{} + a); }
[[gnu::always_inline]] inline void splat(floats& x, float a) { splat_bits(x, __builtin_bit_cast(std::int32_t, a)); }
[[gnu::always_inline]] inline void multiply(floats& x, const floats& y) {
  asm("{vmulps %1, %0, %0|vmulps %0, %0, %1}" : "+v"(x) : "v"(y));
}
[[gnu::always_inline]] inline void add(floats& x, const floats& y) {
  asm("{vaddps %1, %0, %0|vaddps %0, %0, %1}" : "+v"(x) : "v"(y));
}
[[gnu::always_inline]] inline void subtract(floats& x, const floats& y) {
  asm("{vsubps %1, %0, %0|vsubps %0, %0, %1}" : "+v"(x) : "v"(y));
}
[[gnu::always_inline]] inline void scaled_dot(floats& x, const floats& scale, const floats& offset,
                                              const floats& /*origin*/) {
  asm("{vfmadd213ps %2, %1, %0|vfmadd213ps %0, %1, %2}" : "+v"(x) : "v"(scale), "v"(offset));
}
[[gnu::always_inline]] inline void add_exact_product(floats& sum, const floats& x, const floats& y) {
  asm("{vfmadd231ps %2, %1, %0|vfmadd231ps %0, %1, %2}" : "+v"(sum) : "v"(x), "v"(y));
}
[[gnu::always_inline]] inline void add_truncated(floats& sum, const floats& x) {
  asm("{vaddps %{rz-sae%}, %1, %0, %0|vaddps %0, %0, %1, %{rz-sae%}}" : "+v"(sum) : "v"(x));
}
// Quad by quad, so that the sums of all rows and panels are under way at once.
template <int Rows, int Panels, int Quads>
[[gnu::always_inline]] inline void dots(floats (&dot)[Rows][Panels], const std::byte* weights, index_t panel,
                                        const std::int32_t* left) {
  each<Rows>([&](index_t i) __attribute__((always_inline)) {
    each<Panels>([&](index_t p) __attribute__((always_inline)) { splat_bits(dot[i][p], left[i * (2 + Quads)]); });
  });
  each<Quads>([&](index_t q) __attribute__((always_inline)) {
    ints w[Panels];
    each<Panels>([&](index_t p)
                     __attribute__((always_inline)) { w[p] = reinterpret_cast<const ints*>(weights + p * panel)[q]; });
    each<Rows>([&](index_t i) __attribute__((always_inline)) {
      const ints values = ints{} + left[i * (2 + Quads) + 2 + q];
      each<Panels>([&](index_t p) __attribute__((always_inline)) {
        asm("{vpdpbusd %2, %1, %0|vpdpbusd %0, %1, %2}" : "+v"(dot[i][p]) : "v"(w[p]), "v"(values));
      });
    });
  });
}
constexpr int weight_bias(int bias) { return bias; }

// Sixteen bytes four times over: vpermb looks at the low six bits of a byte, of which the upper two are a neighbour's.
using table = ints;
[[gnu::always_inline]] inline void make_table(table& t, const code_values& values, int bias) {
  alignas(64) std::int8_t bytes[64];
  for (index_t i = 0; i < 64; ++i) bytes[i] = static_cast<std::int8_t>(values.value[i % 16] + bias);
  t = *reinterpret_cast<const ints*>(bytes);
}
[[gnu::always_inline]] inline void expand(const std::uint8_t* words, const table& t, ints& even, ints& odd) {
  using unsigned_ints __attribute__((vector_size(64), may_alias)) = std::uint32_t;
  const ints codes = *reinterpret_cast<const loose_ints*>(words);
  const ints shifted = reinterpret_cast<ints>(reinterpret_cast<unsigned_ints>(codes) >> 4);
  asm("{vpermb %1, %2, %0|vpermb %0, %2, %1}" : "=v"(even) : "v"(t), "v"(codes));
  asm("{vpermb %1, %2, %0|vpermb %0, %2, %1}" : "=v"(odd) : "v"(t), "v"(shifted));
}
[[gnu::always_inline]] inline void expand_signed(const std::uint8_t* words, const table& t, std::int8_t* even,
                                                 std::int8_t* odd) {
  expand(words, t, *reinterpret_cast<ints*>(even), *reinterpret_cast<ints*>(odd));
}
[[gnu::always_inline]] inline void expand_weights(const std::uint8_t* words, const table& t, std::byte* out) {
  expand(words, t, reinterpret_cast<ints*>(out)[0], reinterpret_cast<ints*>(out)[1]);
}

using number_table = floats;
[[gnu::always_inline]] inline void make_number_table(number_table& t, const code_values& values, float step) {
  for (index_t i = 0; i < 16; ++i) t[i] = static_cast<float>(values.value[i]) * step;
}
[[gnu::always_inline]] inline void expand_numbers(const std::uint8_t* words, const number_table& t, float* out) {
  using unsigned_ints __attribute__((vector_size(64), may_alias)) = std::uint32_t;
  unsigned_ints codes;
  __builtin_memcpy(&codes, words, sizeof(codes));
  for (index_t k = 0; k < 8; ++k) {
    const unsigned_ints index = codes >> 4 * k;  // vpermps looks at the low four bits
    asm("{vpermps %2, %1, %0|vpermps %0, %1, %2}" : "=v"(reinterpret_cast<floats*>(out)[k]) : "v"(index), "v"(t));
  }
}

template <class Words>
[[gnu::always_inline]] inline void widen_codes(Words& out, const std::uint8_t* p) {
  asm("{vpmovzxbd %1, %0|vpmovzxbd %0, %1}" : "=v"(out) : "m"(*reinterpret_cast<const std::uint8_t(*)[16]>(p)));
}

#include "block_gemm.inl"  // NOLINT(readability-duplicate-include): once per instruction set

}  // namespace gemm_avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

#endif

// pick(kernels) for the instruction set that serves a level.
template <class Function, class Pick>
Function kernel_for([[maybe_unused]] simd_level level, [[maybe_unused]] Pick pick) noexcept {
#if defined(__CUDA_ARCH__)
  return {};
#else
#if defined(__x86_64__) && defined(__GNUC__)
  if (level == simd_level::avx512) return pick(gemm_avx512::kernels{});
  if (level == simd_level::avx2) return pick(gemm_avx2::kernels{});
#endif
  return pick(gemm_portable::kernels{});
#endif
}

using block_tile_kernel = void (*)(const block_tile&);
using block_row_kernel = void (*)(const block_row&);
using number_tile_kernel = void (*)(const number_tile&);
using number_row_kernel = void (*)(const number_row&);

// A product by tiles, or row by row where that is possible.
struct block_kernels {
  block_tile_kernel tile = nullptr;
  block_row_kernel row = nullptr;
};
struct number_kernels {
  number_tile_kernel tile = nullptr;
  number_row_kernel row = nullptr;
};

template <tile_sums Sums, int Quads>
block_kernels select_blocks(simd_level level) noexcept {
  return kernel_for<block_kernels>(level, [](auto set) -> block_kernels {
    using kernels = decltype(set);
    if constexpr (Sums == tile_sums::exact_blocks) {
      return {&kernels::template tile<Sums, Quads>, &kernels::template row<Quads>};
    } else {
      return {&kernels::template tile<Sums, Quads>, nullptr};
    }
  });
}
template <number_sums Sums>
number_kernels select_numbers(simd_level level) noexcept {
  return kernel_for<number_kernels>(level, [](auto set) -> number_kernels {
    using kernels = decltype(set);
    if constexpr (Sums == number_sums::wide) {
      return {&kernels::template numbers<Sums>, nullptr};
    } else {
      return {&kernels::template numbers<Sums>, &kernels::template number_row_as<Sums == number_sums::exact_products>};
    }
  });
}
template <int Any = 0>
gemm_packers select_packers(simd_level level) noexcept {
  return kernel_for<gemm_packers>(level, [](auto set) { return decltype(set)::template packers<Any>(); });
}

}  // namespace microscale::detail
