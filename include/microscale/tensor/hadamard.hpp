// The Hadamard transform of runs along a row, with optional signs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "../number/random.hpp"
#include "executor.hpp"
#include "options.hpp"

namespace microscale {

inline constexpr int largest_hadamard = 256;

// One sign for each element of a run, bit i set where element i is negated before the transform.
struct hadamard_signs {
  std::uint64_t word[largest_hadamard / 64] = {};

  MICROSCALE_HD constexpr bool negative(int i) const noexcept { return (word[i / 64] >> (i % 64) & 1) != 0; }
  MICROSCALE_HD constexpr void negate(int i) noexcept { word[i / 64] |= std::uint64_t{1} << (i % 64); }

  friend constexpr bool operator==(const hadamard_signs&, const hadamard_signs&) = default;

  // All positive: the plain Hadamard transform.
  MICROSCALE_HD static constexpr hadamard_signs none() noexcept { return {}; }
  // The 16 fixed signs of TransformerEngine's NVFP4 recipe: + + + - + - - - - - - + - + - -.
  MICROSCALE_HD static constexpr hadamard_signs transformer_engine() noexcept { return {{0b1101011111101000u}}; }
  // Drawn: sign i is bit i of the Philox stream of `key`, from position 0.
  MICROSCALE_HD static constexpr hadamard_signs drawn(random_key key) noexcept {
    hadamard_signs s;
    for (int i = 0; i < largest_hadamard; i += 32) {
      s.word[i / 64] |= std::uint64_t{draw<32>(key, static_cast<std::uint64_t>(i / 32))} << (i % 64);
    }
    return s;
  }
};

// fl(1/sqrt(size)) for a power of two.
MICROSCALE_HD constexpr float hadamard_factor(int size) noexcept {
  const int power = bit_width(static_cast<std::uint64_t>(size)) - 1;
  const float even = fp32::from_bits(static_cast<std::uint32_t>(127 - power / 2) << 23);
  return power % 2 == 0 ? even : fp32::mul(even, fp32::from_bits(0x3F3504F3u));  // fl(sqrt(1/2))
}

// The orthonormal transform of one run in place: signs, then butterflies of stride 1, 2, 4, ..., each sum one FP32
// operation, then one multiplication by fl(1/sqrt(Size)). The order is part of the result.
template <int Size>
MICROSCALE_HD constexpr void hadamard_run(float (&x)[Size], const hadamard_signs& signs = {}) noexcept {
  static_assert(Size >= 2 && Size <= largest_hadamard && (Size & (Size - 1)) == 0);
  for (int i = 0; i < Size; ++i) {
    if (signs.negative(i)) x[i] = fp32::negate(x[i]);
  }
  for (int stride = 1; stride < Size; stride *= 2) {
    for (int i = 0; i < Size; ++i) {
      if ((i & stride) == 0) {
        const float u = x[i], v = x[i + stride];
        x[i] = fp32::add(u, v);
        x[i + stride] = fp32::sub(u, v);
      }
    }
  }
  for (int i = 0; i < Size; ++i) x[i] = fp32::mul(x[i], hadamard_factor(Size));
}

struct hadamard_options {
  int size = 16;  // a power of two, 2 to 256
  hadamard_signs signs = {};
  microscale::axis axis = microscale::axis::row;  // the direction in which runs of `size` elements are transformed
  // Not null: the signs are not those above, but these, as they are when the call runs. Memory like a reference's: host
  // memory for host executors, device memory for ms::cuda, whose kernels read it (draw_signs_into, cuda/hadamard.cuh).
  const hadamard_signs* read_signs = nullptr;
};

namespace detail {

inline void check_hadamard(const hadamard_options& options, index_t length) {
  const int size = options.size;
  if (size < 2 || size > largest_hadamard || (size & (size - 1)) != 0) {
    fail("Hadamard size", "a power of two from 2 to 256", std::to_string(size));
  }
  if (length % size != 0) {
    fail("length of a Hadamard transform", "a multiple of " + std::to_string(size), std::to_string(length));
  }
}

// The options with the signs at hand.
inline hadamard_options with_signs_read(hadamard_options options) {
  if (options.read_signs != nullptr) options.signs = *std::exchange(options.read_signs, nullptr);
  return options;
}

// The run of `Size` elements that begins at `start` of a line: a row, or a column with axis::col.
template <int Size, class T, matrix_element U>
void hadamard_one_run(matrix_view<T> in, matrix_view<U> out, const hadamard_options& options, index_t line,
                      index_t start) {
  const bool along_row = options.axis == axis::row;
  float x[Size];
  for (int i = 0; i < Size; ++i) x[i] = to_float(along_row ? in(line, start + i) : in(start + i, line));
  hadamard_run<Size>(x, options.signs);
  for (int i = 0; i < Size; ++i) (along_row ? out(line, start + i) : out(start + i, line)) = from_float<U>(x[i]);
}

template <int Size, class T, matrix_element U>
void hadamard_lines(matrix_view<T> in, matrix_view<U> out, const hadamard_options& options, index_t first,
                    index_t last) {
  const index_t length = options.axis == axis::row ? in.cols : in.rows;
  for (index_t line = first; line < last; ++line) {
    for (index_t start = 0; start < length; start += Size) hadamard_one_run<Size>(in, out, options, line, start);
  }
}

// Calls f with the size as a compile-time constant.
template <class F>
void with_hadamard_size(int size, F&& f) {
  switch (size) {
    case 2:
      return f.template operator()<2>();
    case 4:
      return f.template operator()<4>();
    case 8:
      return f.template operator()<8>();
    case 16:
      return f.template operator()<16>();
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    case 128:
      return f.template operator()<128>();
    default:
      return f.template operator()<256>();
  }
}

// Lines [first, last) by the executor's own ranges, where it has some that transform. A function of its own, because
// nvcc does not discard the other branch of an `if constexpr` inside a lambda.
template <int Size, class Executor, class T, class U>
void hadamard_range(const Executor& executor, matrix_view<T> in, matrix_view<U> out, const hadamard_options& options,
                    index_t first, index_t last) {
  if constexpr (requires { executor.ranges().template hadamard<Size>(in, out, options, first, last); }) {
    executor.ranges().template hadamard<Size>(in, out, options, first, last);
  } else {
    hadamard_lines<Size>(in, out, options, first, last);
  }
}

}  // namespace detail

// Transforms each run of options.size elements along the chosen axis; a length that is not a multiple of it is an
// error. `out` may be the same memory as `in`.
template <host_executor Executor, readable_element T, matrix_element U>
void hadamard_into(const Executor& executor, matrix_view<T> in, matrix_view<U> out,
                   const hadamard_options& options = {}) {
  detail::check_matrix("input", in);
  detail::check_matrix("output", out);
  detail::check_same_shape(in, out);
  const bool along_row = options.axis == axis::row;
  const index_t length = along_row ? in.cols : in.rows;
  detail::check_hadamard(options, length);
  const hadamard_options run = detail::with_signs_read(options);
  detail::with_hadamard_size(options.size, [&]<int Size>() {
    detail::run_ranges(executor, along_row ? in.rows : in.cols, length, [&](index_t first, index_t last) {
      detail::hadamard_range<Size>(executor, in, out, run, first, last);
    });
  });
}

}  // namespace microscale
