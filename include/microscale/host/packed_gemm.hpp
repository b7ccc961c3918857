// GEMM on packed 4-bit codes, fast: the bits of tensor/gemm.hpp, by integer sums in vector registers.
//
// C = alpha A B^T. `packed_operand<S>` holds B in the order in which the kernels read it, once for many products; any
// quantized view works too and is put into that order on the way. Results depend neither on the instruction set nor on
// threads: each output is one lane's, runs of k in order, and the sum of a run is an exact integer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "../tensor/gemm.hpp"
#include "executor.hpp"
#include "tiled_gemm.hpp"

namespace microscale {
namespace detail {

// What is known of a product before it begins.
template <class A, class B>
struct product_bits {
  static constexpr int run = smaller(A::block::columns, B::block::columns);
  // Of the largest sum of a run, in units of the product of two codes.
  static constexpr int dot = bit_width(
      std::uint64_t{run * code_integers<typename A::element>::largest * code_integers<typename B::element>::largest});

  // Whether every sa sb dot is a binary32 number, with room for what is on the way to it: then one FMA adds it as a
  // multiplication and an addition would.
  static constexpr bool terms_are_exact(scale_span a, scale_span b) noexcept {
    return A::scale::mantissa_bits + 1 + B::scale::mantissa_bits + 1 + dot <= 24 && a.low >= -50 && b.low >= -50 &&
           a.high <= 40 && b.high <= 40;
  }
  // Whether moreover no sum of so many terms has more bits than binary64.
  static constexpr bool sums_are_exact(scale_span a, scale_span b, index_t terms) noexcept {
    const int log2 = ceil_log2(static_cast<std::uint64_t>(terms));
    return terms_are_exact(a, b) && a.high - a.low + b.high - b.low + dot + log2 <= 53;
  }
};

// The scales of a panel as floats, 16 in front of each run of `step` bytes.
template <class B>
void decode_panel_scales(const gemm_packers& packers, const std::uint8_t* words, index_t blocks, int runs,
                         int runs_per_block, float* out, index_t step) noexcept {
  using order = panel_order<B>;
  using scale = typename B::scale;
  const auto* scales = order::scales(words, blocks);
  if constexpr (byte_scale<scale> && !order::shared) {
    packers.decode_scales({scales, runs, runs_per_block, scale_code_of<scale>(), out, step});
  } else {
    for (int run = 0; run < runs; ++run) {
      const auto* from = scales + run / runs_per_block * order::scales_per_block;
      float* const to = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(out) + run * step);
      for (int j = 0; j < panel_columns; ++j) to[j] = finite_scale<scale>(from[order::shared ? 0 : j]);
    }
  }
}

// Both operands 4-bit codes, their runs summed as integers.
template <class A, class Right>
class block_parts {
  using B = typename Right::scheme_type;
  using left_integers = code_integers<typename A::element>;
  using right_integers = code_integers<typename B::element>;
  using order = panel_order<B>;
  static constexpr int run = product_bits<A, B>::run, quads = run / 4;
  static constexpr index_t row_words = 2 + quads;
  // 1.5 2^23 in units of the product of two codes.
  static constexpr float origin = fp32::from_bits(
      (static_cast<std::uint32_t>(150 + A::element::step_exponent + B::element::step_exponent) << 23) | 0x00400000u);

 public:
  block_parts(simd_level level, const block_kernels& kernels, const quantized_view<const A>& a, const Right& right,
              index_t columns)
      : packers_(select_packers(level)), kernels_(kernels), a_(a), right_(right), order_{columns, a.cols} {}

  index_t columns() const noexcept { return packers_.columns; }
  index_t left_words(index_t rows) const noexcept { return rows * (gemm_chunk / run) * row_words; }
  index_t right_bytes() const noexcept { return gemm_chunk / run * run_bytes(); }
  index_t packed_bytes() const noexcept { return order::record(gemm_chunk / order::block); }

  void pack_left(index_t chunk, index_t i, index_t rows, std::int32_t* left) const noexcept {
    const int runs = runs_of(chunk);
    for (index_t r = 0; r < rows; ++r) {
      std::int32_t* const out = row_of(left, r, runs);
      put_left_scales(chunk, i + r, out);
      alignas(64) std::uint8_t codes[gemm_chunk / 2];
      copy_codes(a_, i + r, chunk * gemm_chunk / 2, round_up(index_t{runs} * run / 2, index_t{64}), codes);
      packers_.pack_left({codes, runs * run / 8, quads, left_integers::values, right_integers::largest,
                          bit_cast<std::int32_t>(origin), out});
    }
  }

  // A panel behind the last row of the operand is all zeros.
  void pack_right(index_t chunk, index_t panel, std::uint8_t* packed, std::byte* right) const noexcept {
    constexpr int ratio = B::block::columns / run;
    const int runs = runs_of(chunk);
    if (panel >= order_.panels()) {
      std::memset(right, 0, static_cast<std::size_t>(runs * run_bytes()));
      return;
    }
    const std::uint8_t* words = right_.panel(chunk, panel, packed);
    decode_panel_scales<B>(packers_, words, order_.blocks(chunk), runs, ratio, reinterpret_cast<float*>(right),
                           run_bytes());
    packers_.pack_right({words, runs, quads, right_integers::values, right_integers::largest, origin, right});
  }

  void prefetch_right(index_t chunk, index_t panel, index_t panels, index_t part, index_t parts) const noexcept {
    right_.prefetch(chunk, panel, panels, part, parts);
  }

  bool by_row() const noexcept { return kernels_.row != nullptr; }
  void multiply_row(const tile_place& at, index_t panel, std::uint8_t* packed, std::byte* memory) const noexcept {
    const int runs = runs_of(at.chunk);
    const std::uint8_t* words = right_.panel(at.chunk, panel, packed);
    float* const scales = reinterpret_cast<float*>(memory);
    decode_panel_scales<B>(packers_, words, order_.blocks(at.chunk), runs, B::block::columns / run, scales,
                           panel_columns * static_cast<index_t>(sizeof(float)));
    kernels_.row({words, scales, row_of(at.left, at.row, runs), runs, at.chunk != 0, right_integers::values,
                  right_integers::largest, origin, at.alpha, at.c});
  }

  void multiply(const tile_place& at) const noexcept {
    const int runs = runs_of(at.chunk);
    kernels_.tile({at.left + at.row * runs * row_words, at.right, right_bytes(), at.rows, runs, at.chunk != 0, origin,
                   at.alpha, at.c, at.c_pitch, at.wide});
  }

 private:
  int runs_of(index_t chunk) const noexcept {
    return static_cast<int>(ceil_div(smaller(gemm_chunk, a_.cols - chunk * gemm_chunk), index_t{run}));
  }
  index_t run_bytes() const noexcept {
    return 2 * panel_columns * static_cast<index_t>(sizeof(float)) + quads * packers_.quad_bytes;
  }
  template <class Word>
  static Word* row_of(Word* left, index_t r, index_t runs) noexcept {
    return left + (r / left_rows * runs * left_rows + r % left_rows) * row_words;
  }
  // The scales of row `r` of A in front of its quads.
  void put_left_scales(index_t chunk, index_t r, std::int32_t* out) const noexcept {
    using scale = typename A::scale;
    constexpr index_t step = left_rows * row_words, most = gemm_chunk / A::block::columns;
    constexpr int ratio = A::block::columns / run;
    const index_t blocks = ceil_div(index_t{runs_of(chunk)}, index_t{ratio}), first = chunk * most;
    if constexpr (byte_scale<scale>) {
      alignas(64) std::uint8_t codes[round_up(most, panel_columns)] = {};
      alignas(64) float scales[round_up(most, panel_columns)];
      for (index_t b = 0; b < blocks; ++b) codes[b] = a_.scales[a_.scale_offset(r / A::block::rows, first + b)];
      packers_.decode_scales({codes, static_cast<int>(ceil_div(blocks, panel_columns)), 1, scale_code_of<scale>(),
                              scales, panel_columns * static_cast<index_t>(sizeof(float))});
      for (int at = 0; at < runs_of(chunk); ++at) out[at * step + 1] = bit_cast<std::int32_t>(scales[at / ratio]);
    } else {
      for (int at = 0; at < runs_of(chunk); ++at) {
        out[at * step + 1] = bit_cast<std::int32_t>(
            finite_scale<scale>(a_.scales[a_.scale_offset(r / A::block::rows, first + at / ratio)]));
      }
    }
  }

  gemm_packers packers_;
  block_kernels kernels_;
  const quantized_view<const A>& a_;
  const Right& right_;
  panel_order<B> order_;
};

// How operands become the numbers of number_tile: room for a chunk, in runs of `Run`.
template <int Run>
struct number_layout {
  static constexpr index_t left_step = (Run + 1) * left_rows, right_step = (Run + 1) * panel_columns;
  static constexpr index_t flag_words = 16;  // in front of the rows of a tile: whether products are exact
  static constexpr index_t tile_words = flag_words + gemm_chunk / Run * left_step;
  static constexpr index_t right_floats = gemm_chunk / Run * right_step;

  static index_t runs(index_t chunk, index_t k) noexcept {
    return ceil_div(smaller(gemm_chunk, k - chunk * gemm_chunk), index_t{Run});
  }
  // Where element k of a chunk lies, and the scale of its run.
  static float& left(float* out, index_t row, index_t k) noexcept {
    return out[k / Run * left_step + (k % Run + 1) * left_rows + row];
  }
  static float& right(float* out, index_t column, index_t k) noexcept {
    return out[k / Run * right_step + (k % Run + 1) * panel_columns + column];
  }
  static number_tile tile(const tile_place& at, index_t k) noexcept {
    return {reinterpret_cast<const float*>(left_of(at) + flag_words),
            reinterpret_cast<const float*>(at.right),
            right_floats,
            at.rows,
            static_cast<int>(runs(at.chunk, k)),
            Run,
            at.chunk != 0,
            at.alpha,
            at.c,
            at.c_pitch};
  }
  static const std::int32_t* left_of(const tile_place& at) noexcept {
    return at.left + at.row / left_rows * tile_words;
  }
  // f(row, out) for each row of [0, rows), `out` being its tile's numbers, which are all zero; what f gives for all
  // rows of a tile is known of it.
  template <class F>
  static void fill_left(index_t chunk, index_t k, index_t rows, std::int32_t* left, F f) noexcept {
    for (index_t r = 0; r < rows; ++r) {
      std::int32_t* const tile = left + r / left_rows * tile_words;
      float* const out = reinterpret_cast<float*>(tile + flag_words);
      if (r % left_rows == 0) std::memset(out, 0, static_cast<std::size_t>(runs(chunk, k) * left_step) * sizeof(float));
      const auto known = static_cast<std::int32_t>(f(r, out));
      tile[0] = r % left_rows == 0 ? known : smaller(tile[0], known);
    }
  }
};

// The left operand numbers, the right one 4-bit codes as numbers.
template <class T, class Right>
class number_parts {
  using B = typename Right::scheme_type;
  using right_integers = code_integers<typename B::element>;
  using order = panel_order<B>;
  static constexpr int run = B::block::columns;
  using layout = number_layout<run>;

 public:
  number_parts(simd_level level, const matrix_view<T>& a, const Right& right, index_t columns)
      : packers_(select_packers(level)),
        rounded_(select_numbers<number_sums::rounded>(level)),
        exact_(select_numbers<number_sums::exact_products>(level)),
        a_(a),
        right_(right),
        order_{columns, a.cols} {}

  index_t columns() const noexcept { return packers_.columns; }
  index_t left_words(index_t rows) const noexcept { return rows / left_rows * layout::tile_words; }
  index_t right_bytes() const noexcept { return layout::right_floats * static_cast<index_t>(sizeof(float)); }
  index_t packed_bytes() const noexcept { return order::record(gemm_chunk / order::block); }

  void pack_left(index_t chunk, index_t i, index_t rows, std::int32_t* left) const noexcept {
    const index_t first = chunk * gemm_chunk, here = smaller(gemm_chunk, a_.cols - first);
    layout::fill_left(chunk, a_.cols, rows, left, [&](index_t r, float* out) {
      bool exact = true;
      for (index_t at = 0; at < ceil_div(here, index_t{run}); ++at) out[at * layout::left_step + r % left_rows] = 1.0f;
      for (index_t k = 0; k < here; ++k) {
        const float x = to_float(a_(i + r, first + k));
        layout::left(out, r % left_rows, k) = x;
        exact = exact & multiplies_exactly(x);
      }
      return exact;
    });
  }

  void pack_right(index_t chunk, index_t panel, std::uint8_t* packed, std::byte* right) const noexcept {
    float* const out = reinterpret_cast<float*>(right);
    const int blocks = static_cast<int>(order_.blocks(chunk));
    if (panel >= order_.panels()) {
      std::memset(right, 0, static_cast<std::size_t>(blocks * layout::right_step) * sizeof(float));
      return;
    }
    const std::uint8_t* words = right_.panel(chunk, panel, packed);
    decode_panel_scales<B>(packers_, words, blocks, blocks, 1, out,
                           layout::right_step * static_cast<index_t>(sizeof(float)));
    packers_.pack_numbers({words, blocks, run, right_integers::values, step_of_codes, out});
  }

  void prefetch_right(index_t chunk, index_t panel, index_t panels, index_t part, index_t parts) const noexcept {
    right_.prefetch(chunk, panel, panels, part, parts);
  }

  void multiply(const tile_place& at) const noexcept { kernels(at).tile(layout::tile(at, a_.cols)); }

  static constexpr bool by_row() noexcept { return true; }
  void multiply_row(const tile_place& at, index_t panel, std::uint8_t* packed, std::byte* memory) const noexcept {
    const std::uint8_t* words = right_.panel(at.chunk, panel, packed);
    const int runs = static_cast<int>(order_.blocks(at.chunk));
    float* const scales = reinterpret_cast<float*>(memory);
    decode_panel_scales<B>(packers_, words, runs, runs, 1, scales, panel_columns * static_cast<index_t>(sizeof(float)));
    const float* const left = layout::tile(at, a_.cols).left + at.row % left_rows;
    kernels(at).row(
        {words, scales, left, runs, run, at.chunk != 0, right_integers::values, step_of_codes, at.alpha, at.c});
  }

 private:
  static constexpr float step_of_codes =
      fp32::from_bits(static_cast<std::uint32_t>(127 + B::element::step_exponent) << 23);

  const number_kernels& kernels(const tile_place& at) const noexcept {
    return layout::left_of(at)[0] != 0 ? exact_ : rounded_;
  }
  // Whether x times an integer of four bits, in steps down to 2^-4, is a binary32 number.
  static bool multiplies_exactly(float x) noexcept {
    const std::uint32_t magnitude = fp32::magnitude_bits(x);
    return (magnitude & 15) == 0 && (magnitude == 0 || (magnitude - 0x0D800000u) < 0x6F000000u);  // 2^-100 to 2^122
  }

  gemm_packers packers_;
  number_kernels rounded_, exact_;
  const matrix_view<T>& a_;
  const Right& right_;
  panel_order<B> order_;
};

// Both operands codes of any format of at most 8 bits, whose exact sum over a run has at most 53 bits: MXFP8 of E4M3,
// MXFP6, MXINT8, with each other and with 4-bit ones. Only E5M2 has too wide a range.
template <class A, class B>
struct value_pair {
  static constexpr int run = smaller(A::block::columns, B::block::columns);
  static constexpr int bits =
      span_bits<typename A::element>() + span_bits<typename B::element>() + ceil_log2(static_cast<std::uint64_t>(run));
  static constexpr bool supported = A::element::bits <= 8 && B::element::bits <= 8 && bits <= 53 &&
                                    A::block::columns % run == 0 && B::block::columns % run == 0 &&
                                    gemm_chunk % A::block::columns == 0 && gemm_chunk % B::block::columns == 0;
  static constexpr number_sums sums = bits <= 24 ? number_sums::exact_products : number_sums::wide;
};

// Every code as a float, NaN if it is not finite.
template <class E>
struct element_table {
  float value[1 << E::bits];

  element_table() noexcept {
    for (int c = 0; c < 1 << E::bits; ++c) {
      const auto code = static_cast<typename E::storage>(c);
      value[c] = E::is_finite(code) ? E::decode(code) : fp32::quiet_nan();
    }
  }
};

template <class A, class B>
class value_parts {
  using pair = value_pair<A, B>;
  using layout = number_layout<pair::run>;

 public:
  value_parts(simd_level level, const quantized_view<const A>& a, const quantized_view<const B>& b)
      : columns_(select_packers(level).columns), numbers_(select_numbers<pair::sums>(level).tile), a_(a), b_(b) {}

  index_t columns() const noexcept { return columns_; }
  index_t left_words(index_t rows) const noexcept { return rows / left_rows * layout::tile_words; }
  index_t right_bytes() const noexcept { return layout::right_floats * static_cast<index_t>(sizeof(float)); }
  index_t packed_bytes() const noexcept { return 0; }

  void pack_left(index_t chunk, index_t i, index_t rows, std::int32_t* left) const noexcept {
    const index_t first = chunk * gemm_chunk, here = smaller(gemm_chunk, a_.cols - first);
    layout::fill_left(chunk, a_.cols, rows, left, [&](index_t r, float* out) {
      const index_t row = r % left_rows;
      const std::uint8_t* codes = a_.codes + (i + r) * a_.code_pitch;
      for (index_t k = 0; k < here; ++k) {
        if (k % pair::run == 0) {
          out[k / pair::run * layout::left_step + row] = finite_scale<typename A::scale>(a_.scale(i + r, first + k));
        }
        layout::left(out, row, k) = left_values_.value[load_code<typename A::element>(codes, first + k)];
      }
      return true;
    });
  }

  void pack_right(index_t chunk, index_t panel, std::uint8_t* /*packed*/, std::byte* right) const noexcept {
    float* const out = reinterpret_cast<float*>(right);
    const index_t first = chunk * gemm_chunk, here = smaller(gemm_chunk, a_.cols - first);
    std::memset(right, 0, static_cast<std::size_t>(layout::runs(chunk, a_.cols) * layout::right_step) * sizeof(float));
    for (index_t j = 0; j < smaller(panel_columns, b_.rows - panel * panel_columns); ++j) {
      const index_t row = panel * panel_columns + j;
      const std::uint8_t* codes = b_.codes + row * b_.code_pitch;
      for (index_t k = 0; k < here; ++k) {
        if (k % pair::run == 0) {
          out[k / pair::run * layout::right_step + j] = finite_scale<typename B::scale>(b_.scale(row, first + k));
        }
        layout::right(out, j, k) = right_values_.value[load_code<typename B::element>(codes, first + k)];
      }
    }
  }

  static void prefetch_right(index_t /*chunk*/, index_t /*panel*/, index_t /*panels*/, index_t /*part*/,
                             index_t /*parts*/) noexcept {}
  static constexpr bool by_row() noexcept { return false; }
  static void multiply_row(const tile_place&, index_t /*panel*/, std::uint8_t* /*packed*/,
                           std::byte* /*memory*/) noexcept {}
  void multiply(const tile_place& at) const noexcept { numbers_(layout::tile(at, a_.cols)); }

 private:
  index_t columns_;
  number_tile_kernel numbers_;
  const quantized_view<const A>& a_;
  const quantized_view<const B>& b_;
  element_table<typename A::element> left_values_;
  element_table<typename B::element> right_values_;
};

// The kernels that compute P for these scales; null where only the definition will do.
template <class P, class A, class B>
block_kernels kernels_for(simd_level level, scale_span a, scale_span b, index_t k) noexcept {
  using bits = product_bits<A, B>;
  constexpr int quads = bits::run / 4;
  if constexpr (std::is_same_v<P, f32_blocks>) {
    if constexpr (bits::terms_are_exact(format_span<typename A::scale>(), format_span<typename B::scale>())) {
      return select_blocks<tile_sums::exact_blocks, quads>(level);
    } else {
      return bits::terms_are_exact(a, b) ? select_blocks<tile_sums::exact_blocks, quads>(level)
                                         : select_blocks<tile_sums::blocks, quads>(level);
    }
  } else if constexpr (std::is_same_v<P, blackwell_k64>) {
    return bits::sums_are_exact(a, b, P::group / bits::run) ? select_blocks<tile_sums::exact_groups, quads>(level)
                                                            : block_kernels{};
  } else {
    return bits::sums_are_exact(a, b, ceil_div(k, index_t{bits::run})) ? select_blocks<tile_sums::exact, quads>(level)
                                                                       : block_kernels{};
  }
}

// C by tiles; `frame` has the right operand's shape and tensor scales.
template <class A, class B, class Executor, class Right>
void block_gemm_into(const Executor& executor, const block_kernels& kernels, bool wide,
                     const quantized_view<const A>& a, const quantized_view<const B>& frame, const Right& right,
                     const matrix_view<float>& c, const gemm_options& options) {
  const block_parts<A, Right> parts(simd_of(executor), kernels, a, right, frame.rows);
  tiled_gemm_into(executor, parts, a.cols, c, wide, options.alpha || (a.tile.rows == 0 && frame.tile.rows == 0),
                  [&](index_t i, index_t j) { return gemm_alpha(a, frame, options, i, j); });
}

template <class T, class B, class Executor, class Right>
void number_gemm_into(const Executor& executor, const matrix_view<T>& a, const quantized_view<const B>& frame,
                      const Right& right, const matrix_view<float>& c, const gemm_options& options) {
  check_matrix("GEMM operand A", a);
  check_gemm_shapes(a.rows, a.cols, frame, c);
  const auto alpha_of = [&](index_t i, index_t j) { return gemm_alpha(a, frame, options, i, j); };
  if (a.cols > 0) {
    const number_parts<T, Right> parts(simd_of(executor), a, right, frame.rows);
    tiled_gemm_into(executor, parts, a.cols, c, false, options.alpha || frame.tile.rows == 0, alpha_of);
    return;
  }
  for (index_t i = 0; i < c.rows; ++i) {
    for (index_t j = 0; j < c.cols; ++j) c(i, j) = fp32::mul(0.0f, alpha_of(i, j));
  }
}

// C by P's definition, as any executor splits it.
template <class P, class A, class B, class Executor>
void define_gemm_into(const Executor& executor, const quantized_view<const A>& a, const quantized_view<const B>& b,
                      const matrix_view<float>& c, const gemm_options& options) {
  run_ranges(executor, c.rows, c.cols * a.cols,
             [&](index_t first, index_t last) { gemm_rows<P>(a, b, c, options, first, last); });
}

template <class Executor>
concept fast_host_executor = host_executor<Executor> && !std::same_as<Executor, sequential>;

}  // namespace detail

// gemm_into for 4-bit schemes on any executor but `sequential`, which stays the definition: the same bits. Where the
// scales of the operands spread so far that binary64 cannot hold the sums of exact_f32 or blackwell_k64, these are
// computed by their definition.
template <exact_accumulation P = exact_f32, detail::fast_host_executor Executor, class A, class B>
requires(detail::block_gemm_scheme<std::remove_const_t<A>>&& detail::block_gemm_scheme<
         std::remove_const_t<B>>) void gemm_into(const Executor& executor, quantized_view<A> a_in,
                                                 quantized_view<B> b_in, matrix_view<float> c,
                                                 const gemm_options& options = {},
                                                 std::span<std::byte> /*workspace*/ = {}) {
  using scheme_a = std::remove_const_t<A>;
  using scheme_b = std::remove_const_t<B>;
  const quantized_view<const scheme_a> a = a_in;
  const quantized_view<const scheme_b> b = b_in;
  detail::check_gemm(a, b, c);
  const auto kernels = detail::kernels_for<P, scheme_a, scheme_b>(detail::simd_of(executor), detail::span_of(a),
                                                                  detail::span_of(b), a.cols);
  if (kernels.tile != nullptr && a.cols > 0) {
    detail::block_gemm_into(executor, kernels, std::is_same_v<P, exact_f32>, a, b, detail::view_source<scheme_b>{b}, c,
                            options);
  } else {
    detail::define_gemm_into<P>(executor, a, b, c, options);
  }
}

// gemm_into<f32_blocks> for wider elements, and for 4-bit ones that the above does not take.
template <exact_accumulation P, detail::fast_host_executor Executor, class A, class B>
requires(std::same_as<P, f32_blocks>&& detail::value_pair<std::remove_const_t<A>, std::remove_const_t<B>>::supported &&
         !(detail::block_gemm_scheme<std::remove_const_t<A>> &&
           detail::block_gemm_scheme<std::remove_const_t<B>>)) void gemm_into(const Executor& executor,
                                                                              quantized_view<A> a_in,
                                                                              quantized_view<B> b_in,
                                                                              matrix_view<float> c,
                                                                              const gemm_options& options = {},
                                                                              std::span<std::byte> /*workspace*/ = {}) {
  using scheme_a = std::remove_const_t<A>;
  using scheme_b = std::remove_const_t<B>;
  const quantized_view<const scheme_a> a = a_in;
  const quantized_view<const scheme_b> b = b_in;
  detail::check_gemm(a, b, c);
  if (a.cols == 0) return detail::define_gemm_into<P>(executor, a, b, c, options);
  const detail::value_parts<scheme_a, scheme_b> parts(detail::simd_of(executor), a, b);
  detail::tiled_gemm_into(executor, parts, a.cols, c, false, options.alpha || (a.tile.rows == 0 && b.tile.rows == 0),
                          [&](index_t i, index_t j) { return detail::gemm_alpha(a, b, options, i, j); });
}

// The same with a right operand that is packed already, on any executor.
template <exact_accumulation P = exact_f32, host_executor Executor, class A, class B>
requires(detail::block_gemm_scheme<std::remove_const_t<A>>&& detail::block_gemm_scheme<B>) void gemm_into(
    const Executor& executor, quantized_view<A> a_in, const packed_operand<B>& b, matrix_view<float> c,
    const gemm_options& options = {}) {
  using scheme_a = std::remove_const_t<A>;
  const quantized_view<const scheme_a> a = a_in;
  detail::check_quantized("GEMM operand A", a);
  detail::check_gemm_shapes(a, b.frame(), c);
  const auto kernels =
      detail::kernels_for<P, scheme_a, B>(detail::simd_of(executor), detail::span_of(a), b.span(), a.cols);
  if (kernels.tile != nullptr && a.cols > 0) {
    detail::block_gemm_into(executor, kernels, std::is_same_v<P, exact_f32>, a, b.frame(), detail::packed_source<B>{b},
                            c, options);
  } else {
    const quantized<B> rows = b.unpacked();
    detail::define_gemm_into<P>(executor, a, rows.view(), c, options);
  }
}

// The same for operands of which one has no packed order: as gemm_into of what is unpacked.
template <exact_accumulation P = exact_f32, host_executor Executor, class A, class B>
requires(!detail::block_gemm_scheme<std::remove_const_t<A>> ||
         !detail::block_gemm_scheme<B>) void gemm_into(const Executor& executor, quantized_view<A> a,
                                                       const packed_operand<B>& b, matrix_view<float> c,
                                                       const gemm_options& options = {}) {
  const quantized<B>& rows = b.unpacked();
  gemm_into<P>(executor, quantized_view<const std::remove_const_t<A>>(a), rows.view(), c, options);
}

// The same for a left operand that is not quantized.
template <exact_accumulation P, detail::fast_host_executor Executor, readable_element T, class B>
requires(std::same_as<P, f32_blocks>&& detail::block_gemm_scheme<std::remove_const_t<B>>) void gemm_into(
    const Executor& executor, matrix_view<T> a, quantized_view<B> b_in, matrix_view<float> c,
    const gemm_options& options = {}) {
  using scheme = std::remove_const_t<B>;
  const quantized_view<const scheme> b = b_in;
  detail::check_quantized("GEMM operand B", b);
  detail::number_gemm_into(executor, a, b, detail::view_source<scheme>{b}, c, options);
}
// The same, by a right operand that is packed already.
template <exact_accumulation P, host_executor Executor, readable_element T, class B>
requires std::same_as<P, f32_blocks>
void gemm_into(const Executor& executor, matrix_view<T> a, const packed_operand<B>& b, matrix_view<float> c,
               const gemm_options& options = {}) {
  if constexpr (detail::block_gemm_scheme<B>) {
    detail::number_gemm_into(executor, a, b.frame(), detail::packed_source<B>{b}, c, options);
  } else {
    gemm_into<P>(executor, a, b.unpacked().view(), c, options);
  }
}

// The same into new memory, row-major m x n.
template <exact_accumulation P = exact_f32, host_executor Executor, quantized_operand A, class B>
std::vector<float> gemm(const Executor& executor, const A& a_in, const packed_operand<B>& b,
                        const gemm_options& options = {}) {
  const auto a = detail::read_only(a_in);
  std::vector<float> c(detail::countable("GEMM output", a.rows, b.rows()));
  gemm_into<P>(executor, a, b, matrix(c.data(), a.rows, b.rows()), options);
  return c;
}

}  // namespace microscale
