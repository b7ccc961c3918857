// One tile of a GEMM on 4-bit codes, written once for every instruction set.
//
// Not a header of its own: block_gemm_simd.hpp includes it once per instruction set, inside a namespace that defines
// that set's vocabulary and under its target options. No function here takes or returns a vector by value, since a
// caller for another set of registers could not agree on how.

// Scales and offsets in front of the quads of a run.
inline constexpr index_t head_bytes = 2 * panel_columns * static_cast<index_t>(sizeof(float));

// sum += sa sb dot of one run, for Rows rows.
template <int Rows, int Quads, bool Exact>
[[gnu::always_inline]] inline void add_run(const block_tile& t, const std::int32_t* left, const std::byte* right,
                                           const floats& origin, floats (*sum)[panels]) {
  constexpr index_t row_step = 2 + Quads;
  floats dot[Rows][panels];
  dots<Rows, panels, Quads>(dot, right + head_bytes, t.right_panel, left);
  each<panels>([&](index_t p) __attribute__((always_inline)) {
    const float* const head = reinterpret_cast<const float*>(right + p * t.right_panel);
    floats scale, offset;
    load(scale, head);
    if constexpr (Exact) load(offset, head + panel_columns);
    each<Rows>([&](index_t i) __attribute__((always_inline)) {
      floats row_scale;
      splat_bits(row_scale, left[i * row_step + 1]);
      if constexpr (Exact) {
        scaled_dot(dot[i][p], scale, offset, origin);
        add_exact_product(sum[i][p], dot[i][p], row_scale);
      } else {
        subtract(dot[i][p], origin);
        multiply(row_scale, scale);
        multiply(dot[i][p], row_scale);
        add(sum[i][p], dot[i][p]);
      }
    });
  });
}

// Columns of `right` against Rows rows of `left` (block_gemm_simd.hpp has both layouts): for each run in order,
// acc = fl(acc + fl(fl(sa sb) dot)). With Exact, sa sb dot is known to be a binary32 number, so that any order of its
// multiplications gives it, and adding it by one FMA is the same as adding it.
template <int Rows, int Quads, bool Exact>
[[gnu::always_inline]] inline void tile_rows(const block_tile& t, const std::int32_t* left, float* c) {
  constexpr index_t row_step = 2 + Quads;
  constexpr int together = smaller(Rows, rows_together);
  const std::byte* right = t.right;
  floats sum[Rows][panels], origin;
  splat(origin, t.origin);
  each<Rows>([&](index_t i) __attribute__((always_inline)) {
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      if (t.continues) {
        load(sum[i][p], c + i * t.c_pitch + panel_columns * p);
      } else {
        splat(sum[i][p], 0.0f);
      }
    });
  });
  // The outputs of the rows that come next, which lie far apart.
  each<Rows>([&](index_t i) __attribute__((always_inline)) {
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      __builtin_prefetch(at_distance(c, ((Rows + i) * t.c_pitch + p * panel_columns) * 4), 1);
    });
  });
  for (index_t run = 0; run < t.runs; ++run) {
    each<Rows / together>([&](index_t group) __attribute__((always_inline)) {
      const index_t first = group * together;
      add_run<together, Quads, Exact>(t, left + first * row_step, right, origin, sum + first);
    });
    left += left_rows * row_step;
    right += right_run_bytes<Quads>;
  }
  floats alpha;
  splat(alpha, t.alpha);
  each<Rows>([&](index_t i) __attribute__((always_inline)) {
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      multiply(sum[i][p], alpha);
      store(sum[i][p], c + i * t.c_pitch + panel_columns * p);
    });
  });
}

// One row, from the codes of a panel (block_gemm_simd.hpp).
template <int Quads>
[[gnu::noinline]] inline void row_sums(const block_row& t) {
  constexpr index_t word_bytes = 4 * panel_columns, words_per_run = Quads / 2;
  const std::uint8_t* words = t.words;
  const std::int32_t* row = t.left;
  table values;
  make_table(values, t.values, weight_bias(t.bias));
  floats sum, origin;
  splat(origin, t.origin);
  if (t.continues) {
    load(sum, t.c);
  } else {
    splat(sum, 0.0f);
  }
  for (index_t run = 0; run < t.runs; ++run) {
    alignas(64) std::byte quads[Quads * quad_bytes];
    floats dot[1][1], scale, row_scale;
    each<words_per_run>([&](index_t word) __attribute__((always_inline)) {
      __builtin_prefetch(at_distance(words, word * word_bytes + stream_ahead));
      expand_weights(words + word * word_bytes, values, quads + 2 * word * quad_bytes);
    });
    dots<1, 1, Quads>(dot, quads, 0, row);
    subtract(dot[0][0], origin);
    load(scale, t.scales + run * panel_columns);
    splat_bits(row_scale, row[1]);
    multiply(scale, row_scale);
    add_exact_product(sum, dot[0][0], scale);
    words += words_per_run * word_bytes;
    row += left_rows * (2 + Quads);
  }
  floats alpha;
  splat(alpha, t.alpha);
  multiply(sum, alpha);
  store(sum, t.c);
}

template <int Quads, bool Exact>
[[gnu::noinline]] inline void block_sums(const block_tile& t) {
  constexpr index_t full = full_rows<Quads>;
  index_t i = 0;
  for (; i + full <= t.rows; i += full) {
    tile_rows<full, Quads, Exact>(t, t.left + i * (2 + Quads), t.c + i * t.c_pitch);
  }
  for (; i < t.rows; ++i) tile_rows<1, Quads, Exact>(t, t.left + i * (2 + Quads), t.c + i * t.c_pitch);
}

// The terms sa sb dot of a row, all of them binary32 numbers, added in binary64, where the sum is known to be exact:
// all of them, in t.wide, or (Groups) those of 64 elements, whose sum is rounded to nearest and added toward zero.
template <int Quads, bool Groups>
[[gnu::noinline]] inline void exact_sums(const block_tile& t) {
  constexpr index_t row_step = 2 + Quads, group = 16 / Quads;
  for (index_t i = 0; i < t.rows; ++i) {
    const std::int32_t* row = t.left + i * row_step;
    const std::byte* right = t.right;
    floats origin, acc[panels];
    doubles sum[panels];
    splat(origin, t.origin);
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      if (Groups && t.continues) {
        load(acc[p], t.c + i * t.c_pitch + panel_columns * p);
      } else {
        splat(acc[p], 0.0f);
      }
      if (!Groups && t.continues) {
        load(sum[p], t.wide + (i * panels + p) * panel_columns);
      } else {
        clear(sum[p]);
      }
    });
    for (index_t run = 0; run < t.runs; ++run) {
      floats dots_of_row[1][panels], row_scale;
      dots<1, panels, Quads>(dots_of_row, right + head_bytes, t.right_panel, row);
      floats* const dot = dots_of_row[0];
      splat_bits(row_scale, row[1]);
      each<panels>([&](index_t p) __attribute__((always_inline)) {
        const float* head = reinterpret_cast<const float*>(right + p * t.right_panel);
        floats scale, offset;
        load(scale, head);
        load(offset, head + panel_columns);
        scaled_dot(dot[p], scale, offset, origin);
        multiply(dot[p], row_scale);
        doubles term;
        widen(term, dot[p]);
        each<doubles::parts>([&](index_t part) __attribute__((always_inline)) { sum[p].v[part] += term.v[part]; });
      });
      if (Groups && ((run + 1) % group == 0 || run + 1 == t.runs)) {
        each<panels>([&](index_t p) __attribute__((always_inline)) {
          floats rounded;
          narrow(rounded, sum[p]);
          add_truncated(acc[p], rounded);
          clear(sum[p]);
        });
      }
      row += left_rows * row_step;
      right += right_run_bytes<Quads>;
    }
    floats alpha;
    splat(alpha, t.alpha);
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      if constexpr (Groups) {
        multiply(acc[p], alpha);
        store(acc[p], t.c + i * t.c_pitch + panel_columns * p);
      } else {
        store(sum[p], t.wide + (i * panels + p) * panel_columns);
      }
    });
  }
}

// One row of the left operand, from `words` of eight codes each; scale[run] is there already.
[[gnu::noinline]] inline void pack_left(const left_row& in) {
  const index_t words_per_run = in.quads / 2, step = left_rows * (2 + in.quads);
  alignas(64) std::int8_t even[64], odd[64];  // of 16 words
  alignas(64) std::uint32_t low[16], high[16], sum[16];
  table values;
  make_table(values, in.values, 0);
  for (index_t first = 0; first < in.words; first += 16) {
    expand_signed(in.codes + 4 * first, values, even, odd);
    __builtin_memcpy(low, even, sizeof(low));
    __builtin_memcpy(high, odd, sizeof(high));
    for (index_t word = 0; word < 16; ++word) {  // the sum of a word's values, 128 above each
      const std::uint32_t x = low[word] ^ 0x80808080u, y = high[word] ^ 0x80808080u;
      const std::uint32_t pairs =
          (x & 0x00FF00FFu) + (x >> 8 & 0x00FF00FFu) + (y & 0x00FF00FFu) + (y >> 8 & 0x00FF00FFu);
      sum[word] = (pairs & 0xFFFFu) + (pairs >> 16);
    }
    const index_t runs = smaller(index_t{16}, in.words - first) / words_per_run;
    for (index_t run = 0; run < runs; ++run) {
      std::int32_t* const row = in.out + (first / words_per_run + run) * step;
      std::int32_t biased = -128 * 4 * in.quads;
      for (index_t word = 0; word < words_per_run; ++word) {
        const index_t at = run * words_per_run + word;
        row[2 + 2 * word] = static_cast<std::int32_t>(low[at]);
        row[3 + 2 * word] = static_cast<std::int32_t>(high[at]);
        biased += static_cast<std::int32_t>(sum[at]);
      }
      row[0] = in.start - weight_bias(in.right_bias) * biased;
    }
  }
}

// One panel of the right operand: codes as values, the offset beside the scale that is there already.
[[gnu::noinline]] inline void pack_right(const right_panel& in) {
  const index_t words_per_run = in.quads / 2;
  const index_t step = head_bytes + in.quads * quad_bytes;
  const std::uint8_t* words = in.words;
  table values;
  make_table(values, in.values, weight_bias(in.bias));
  std::byte* out = in.out;
  for (index_t run = 0; run < in.runs; ++run, out += step) {
    float* const head = reinterpret_cast<float*>(out);
    floats offset, minus_origin;
    load(offset, head);
    splat(minus_origin, -in.origin);
    multiply(offset, minus_origin);
    store(offset, head + panel_columns);
    std::byte* quad = out + head_bytes;
    for (index_t word = 0; word < words_per_run; ++word, words += 4 * panel_columns, quad += 2 * quad_bytes) {
      expand_weights(words, values, quad);
    }
  }
}

// Adds the sum of a run: fl(acc + fl(fl(sa sb) dot)), then the last factor where it is the last run.
template <class Tile>
[[gnu::always_inline]] inline void finish_run(const Tile& t, index_t run, const floats& scale, float row_scale,
                                              floats& dot, float* out) {
  floats both, sum;
  splat(both, row_scale);
  multiply(both, scale);
  multiply(dot, both);
  if (t.continues || run > 0) {
    load(sum, out);
  } else {
    splat(sum, 0.0f);
  }
  add(sum, dot);
  if (run + 1 == t.runs) {
    splat(both, t.alpha);
    multiply(sum, both);
  }
  store(sum, out);
}

// Rows of numbers against columns of numbers (block_gemm_simd.hpp): per run in order, dot = fl(dot + fl(x w)) from +0,
// then as finish_run says. With Exact, every x w is known to be a binary32 number.
template <int Rows, bool Exact>
[[gnu::always_inline]] inline void number_rows(const number_tile& t, const float* left, float* c) {
  const float* right = t.right;
  for (index_t run = 0; run < t.runs; ++run) {
    floats dot[Rows][panels];
    each<Rows>([&](index_t i) __attribute__((always_inline)) {
      each<panels>([&](index_t p) __attribute__((always_inline)) { splat(dot[i][p], 0.0f); });
    });
    for (index_t k = 1; k <= t.run; ++k) {
      floats w[panels];
      each<panels>([&](index_t p)
                       __attribute__((always_inline)) { load(w[p], right + p * t.right_panel + k * panel_columns); });
      each<Rows>([&](index_t i) __attribute__((always_inline)) {
        floats x;
        splat(x, left[k * left_rows + i]);
        each<panels>([&](index_t p) __attribute__((always_inline)) {
          if constexpr (Exact) {
            add_exact_product(dot[i][p], w[p], x);
          } else {
            floats product = w[p];
            multiply(product, x);
            add(dot[i][p], product);
          }
        });
      });
    }
    each<panels>([&](index_t p) __attribute__((always_inline)) {
      floats scale;
      load(scale, right + p * t.right_panel);
      each<Rows>([&](index_t i) __attribute__((always_inline)) {
        finish_run(t, run, scale, left[i], dot[i][p], c + i * t.c_pitch + p * panel_columns);
      });
    });
    left += (t.run + 1) * left_rows;
    right += (t.run + 1) * panel_columns;
  }
}

// The same where no sum of a run has more bits than binary64, and is rounded once: columns of one panel.
template <int Rows>
[[gnu::always_inline]] inline void wide_number_rows(const number_tile& t, const float* left, const float* right,
                                                    float* c) {
  for (index_t run = 0; run < t.runs; ++run) {
    doubles sum[Rows];
    each<Rows>([&](index_t i) __attribute__((always_inline)) { clear(sum[i]); });
    for (index_t k = 1; k <= t.run; ++k) {
      floats narrow_w;
      doubles w;
      load(narrow_w, right + k * panel_columns);
      widen(w, narrow_w);
      each<Rows>([&](index_t i) __attribute__((always_inline)) {
        const double_vector x = double_vector{} + static_cast<double>(left[k * left_rows + i]);
        each<doubles::parts>([&](index_t part) __attribute__((always_inline)) { sum[i].v[part] += w.v[part] * x; });
      });
    }
    floats scale;
    load(scale, right);
    each<Rows>([&](index_t i) __attribute__((always_inline)) {
      floats dot;
      narrow(dot, sum[i]);
      finish_run(t, run, scale, left[i], dot, c + i * t.c_pitch);
    });
    left += (t.run + 1) * left_rows;
    right += (t.run + 1) * panel_columns;
  }
}

// One row of numbers, from the codes of a panel.
template <bool Exact>
[[gnu::noinline]] inline void number_row_sums(const number_row& t) {
  constexpr index_t word_bytes = 4 * panel_columns;
  number_table values;
  make_number_table(values, t.values, t.step);
  const std::uint8_t* words = t.words;
  const float* left = t.left;
  for (index_t run = 0; run < t.runs; ++run) {
    floats dot, scale;
    splat(dot, 0.0f);
    for (index_t k = 0; k < t.run; k += 8, words += word_bytes) {
      alignas(64) float numbers[8 * panel_columns];
      __builtin_prefetch(at_distance(words, stream_ahead));
      expand_numbers(words, values, numbers);
      each<8>([&](index_t i) __attribute__((always_inline)) {
        floats w, x;
        load(w, numbers + i * panel_columns);
        splat(x, left[(1 + k + i) * left_rows]);
        if constexpr (Exact) {
          add_exact_product(dot, w, x);
        } else {
          multiply(w, x);
          add(dot, w);
        }
      });
    }
    load(scale, t.scales + run * panel_columns);
    finish_run(t, run, scale, left[0], dot, t.c);
    left += (t.run + 1) * left_rows;
  }
}

template <bool Exact>
[[gnu::noinline]] inline void numbers_as(const number_tile& t) {
  constexpr index_t full = full_rows<4>;
  index_t i = 0;
  for (; i + full <= t.rows; i += full) number_rows<full, Exact>(t, t.left + i, t.c + i * t.c_pitch);
  for (; i < t.rows; ++i) number_rows<1, Exact>(t, t.left + i, t.c + i * t.c_pitch);
}
template <int>
[[gnu::noinline]] inline void wide_numbers(const number_tile& t) {
  constexpr index_t full = full_rows<8>;
  for (index_t p = 0; p < panels; ++p) {
    const float* right = t.right + p * t.right_panel;
    float* const c = t.c + p * panel_columns;
    index_t i = 0;
    for (; i + full <= t.rows; i += full) wide_number_rows<full>(t, t.left + i, right, c + i * t.c_pitch);
    for (; i < t.rows; ++i) wide_number_rows<1>(t, t.left + i, right, c + i * t.c_pitch);
  }
}
// One panel of numbers, the scales being there already.
[[gnu::noinline]] inline void pack_numbers(const number_panel& in) {
  number_table values;
  make_number_table(values, in.values, in.step);
  const std::uint8_t* words = in.words;
  float* out = in.out;
  for (index_t run = 0; run < in.runs; ++run) {
    out += panel_columns;
    for (index_t word = 0; word < in.run / 8; ++word, words += 4 * panel_columns, out += 8 * panel_columns) {
      expand_numbers(words, values, out);
    }
  }
}

// 16 scales of each run as floats.
[[gnu::noinline]] inline void decode_scales(const panel_scales& in) {
  constexpr int lanes = static_cast<int>(sizeof(double_vector) / sizeof(float));
  using words __attribute__((vector_size(4 * lanes), may_alias)) = std::uint32_t;
  using signed_words __attribute__((vector_size(4 * lanes), may_alias)) = std::int32_t;
  using some_floats __attribute__((vector_size(4 * lanes), may_alias)) = float;
  const scale_code& f = in.format;
  const std::uint8_t* codes = in.codes;
  std::byte* out = reinterpret_cast<std::byte*>(in.out);
  for (index_t run = 0; run < in.runs; codes += panel_columns) {
    words values[panel_columns / lanes];
    for (index_t i = 0; i < panel_columns / lanes; ++i) {
      words code;
      widen_codes(code, codes + i * lanes);
      code &= f.mask;
      const some_floats steps = __builtin_convertvector(reinterpret_cast<signed_words>(code), some_floats) * f.step;
      const words tiny = reinterpret_cast<words>(steps) | f.smallest, normal = (code << f.shift) + f.offset;
      const words is_small = reinterpret_cast<words>(code < f.first_normal);
      const words not_finite = reinterpret_cast<words>(code > f.largest);
      values[i] = (((tiny & is_small) | (normal & ~is_small)) & ~not_finite) | (fp32::quiet_nan_bits & not_finite);
    }
    for (int i = 0; i < in.runs_per_block && run < in.runs; ++i, ++run, out += in.step) {
      __builtin_memcpy(out, values, sizeof(values));
    }
  }
}

// Templates, so that what is not used is not compiled.
struct kernels {
  template <tile_sums Sums, int Quads>
  static void tile(const block_tile& t) {
    if constexpr (Sums == tile_sums::blocks || Sums == tile_sums::exact_blocks) {
      block_sums<Quads, Sums == tile_sums::exact_blocks>(t);
    } else {
      exact_sums<Quads, Sums == tile_sums::exact_groups>(t);
    }
  }
  template <int Quads>
  static void row(const block_row& t) {
    row_sums<Quads>(t);
  }
  template <bool Exact>
  static void number_row_as(const number_row& t) {
    number_row_sums<Exact>(t);
  }
  template <number_sums Sums>
  static void numbers(const number_tile& t) {
    if constexpr (Sums == number_sums::wide) {
      wide_numbers<0>(t);
    } else {
      numbers_as<Sums == number_sums::exact_products>(t);
    }
  }
  template <int>
  static constexpr gemm_packers packers() {
    return {panels * panel_columns, quad_bytes, &pack_left, &pack_right, &pack_numbers, &decode_scales};
  }
};
