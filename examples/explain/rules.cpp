#include "rules.hpp"

#include <microscale/block/quantize_block.hpp>
#include <microscale/conformance/named_schemes.hpp>
#include <microscale/conformance/report.hpp>
#include <microscale/interop/checkpoint.hpp>
#include <microscale/interop/scale_tiles.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <tuple>

namespace explain {

namespace {

using ms::conformance::detail::hex_of;
using ms::conformance::detail::text_of;

template <class S>
bool is_shape_of(const quantized_matrix& q) {
  if (sizeof(typename S::scale::storage) != 1 || S::element::bits != q.element_bits || S::block::columns != q.block)
    return false;
  return std::is_same_v<typename S::scale, ms::e8m0> == q.e8m0;
}

// The number that the file stores for a tensor of scheme S with these factors.
template <class S>
float scalar_of(const ms::tensor_factors& t, scalar_kind kind) {
  if (kind == scalar_kind::amax) return t.reference;
  if (kind == scalar_kind::divisor) return t.encode;
  return t.decode;
}

// The factors that the bytes were made under: from the data's amax where that gives the stored scalar, and else as near
// to the scalar as an amax can be.
template <class S>
ms::tensor_factors factors_for(const quantized_matrix& q, float own_amax, std::optional<float> amax) {
  if constexpr (!S::has_tensor_scale) return {};
  if (amax) return S::factors(*amax);
  const ms::tensor_factors own = S::factors(own_amax);
  if (q.kind == scalar_kind::none || scalar_of<S>(own, q.kind) == q.scalar) return own;
  if (q.kind == scalar_kind::amax) return S::factors(q.scalar);
  const float top = S::element::largest() * static_cast<float>(S::tensor_scale::default_target);
  float guess = q.kind == scalar_kind::divisor ? top / q.scalar : top * q.scalar;
  if (!ms::fp32::is_finite(guess) || !(guess > 0.0f)) return own;
  for (int step = 0; step < 4; ++step) guess = std::nextafter(guess, 0.0f);
  for (int step = 0; step < 9; ++step, guess = std::nextafter(guess, INFINITY)) {
    if (ms::fp32::is_finite(guess) && scalar_of<S>(S::factors(guess), q.kind) == q.scalar) return S::factors(guess);
  }
  // No amax of this scheme gives that scalar: take it as it is.
  ms::tensor_factors t = own;
  t.decode = q.kind == scalar_kind::divisor ? 1.0f / q.scalar : q.scalar;
  t.encode = q.kind == scalar_kind::divisor ? q.scalar : 1.0f / q.scalar;
  t.reference = q.kind == scalar_kind::divisor ? top / q.scalar : top * q.scalar;
  return t;
}

// The rounding modes without random bits, in one: which it is comes where a random number would, so that each scheme is
// compiled once.
constexpr const char* roundings[] = {"nearest_even", "toward_zero", "toward_positive", "toward_negative"};

struct any_direction {
  static constexpr int random_bits = 2;
  static constexpr bool away(ms::remainder rest, bool odd, bool negative, std::uint32_t which) noexcept {
    switch (which) {
      case 0:
        return ms::nearest_even::away(rest, odd, negative, 0);
      case 1:
        return ms::toward_zero::away(rest, odd, negative, 0);
      case 2:
        return ms::toward_positive::away(rest, odd, negative, 0);
      default:
        return ms::toward_negative::away(rest, odd, negative, 0);
    }
  }
};

struct this_direction {
  std::uint32_t which;
  constexpr std::uint32_t operator()(int) const noexcept { return which; }
};

float amax_of(const data_matrix& x) {
  ms::running_amax amax;
  for (const float v : x.values) {
    if (ms::fp32::is_finite(v)) amax.see(v);
  }
  return amax.ignoring_nan();
}

template <class S>
ms::block_extent load_block(const data_matrix& x, index_t row, index_t col, float (&out)[S::block::elements]) {
  const ms::block_extent extent = {static_cast<int>(std::min<index_t>(S::block::rows, x.rows - row)),
                                   static_cast<int>(std::min<index_t>(S::block::columns, x.cols - col))};
  for (int i = 0; i < extent.rows; ++i) {
    for (int j = 0; j < extent.columns; ++j) {
      out[i * S::block::columns + j] = x.values[static_cast<std::size_t>((row + i) * x.cols + col + j)];
    }
  }
  return extent;
}

// Codes as steps on the number line, so that neighbours are one apart; both zeros are step 0.
template <class Element>
int step_of(std::uint8_t code) {
  const float v = Element::decode(code);
  if (!(v == v)) return 1 << 20;
  int step = 0;
  for (int other = 0; other < 1 << Element::bits; ++other) {
    const float w = Element::decode(static_cast<std::uint8_t>(other));
    if (w > 0.0f && w <= std::fabs(v)) ++step;
  }
  return v < 0.0f ? -step : step;
}

// One row of a block of S held against the file's block of 1 x N.
template <class S>
void count(attempt& a, const quantized_matrix& q, const ms::quantized_block<S>& expected, const float* x,
           int row_of_block, int columns, index_t row, index_t col, const std::vector<int>& steps) {
  const index_t block = row * q.blocks_in_row() + col / q.block;
  const std::uint8_t scale = q.scales[static_cast<std::size_t>(block)];
  const bool both_nan = S::scale::is_nan(scale) && S::scale::is_nan(static_cast<std::uint8_t>(expected.scale));
  const bool scale_differs = scale != expected.scale && !both_nan;
  index_t codes = 0;
  bool zero_signs_only = true, near = true, nonfinite = false, zeros = true;
  for (int j = 0; j < columns; ++j) {
    const std::uint8_t theirs = q.codes[static_cast<std::size_t>(row * q.cols + col + j)];
    const std::uint8_t ours = expected.codes[row_of_block * S::block::columns + j];
    const float v = x[row_of_block * S::block::columns + j];
    nonfinite = nonfinite || !ms::fp32::is_finite(v);
    zeros = zeros && v == 0.0f;
    // Under a NaN scale codes mean nothing.
    if (theirs == ours || both_nan) continue;
    ++codes;
    const int distance = std::abs(steps[theirs] - steps[ours]);
    zero_signs_only = zero_signs_only && distance == 0;
    near = near && distance <= 1;
  }
  ++a.blocks;
  a.scales_differing += scale_differs;
  a.codes_differing += codes;
  if (!scale_differs && codes == 0) return;
  ++a.blocks_differing;
  if (a.first < 0 || block < a.first) a.first = block;
  a.nonfinite_differing += nonfinite;
  a.zero_differing += zeros;
  a.sign_of_zero_only += !scale_differs && zero_signs_only;
  a.neighbours_only += !scale_differs && near;
}

template <class S>
attempt try_one(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax, const char* name,
                std::uint32_t rounding) {
  attempt a;
  a.scheme = name;
  a.rounding = roundings[rounding];
  const float own = amax_of(x);
  const ms::tensor_factors t = factors_for<S>(q, own, amax);
  if (q.kind != scalar_kind::none) {
    a.own_scalar = S::has_tensor_scale ? scalar_of<S>(S::factors(amax.value_or(own)), q.kind) : 1.0f;
    a.scalar_differs = a.own_scalar != q.scalar;
  }
  std::vector<int> steps;
  for (int code = 0; code < 1 << S::element::bits; ++code)
    steps.push_back(step_of<typename S::element>(static_cast<std::uint8_t>(code)));
  for (index_t row = 0; row < x.rows; row += S::block::rows) {
    for (index_t col = 0; col < x.cols; col += S::block::columns) {
      float values[S::block::elements] = {};
      const ms::block_extent extent = load_block<S>(x, row, col, values);
      const auto expected = ms::quantize_block<S>(values, t, any_direction{}, this_direction{rounding}, extent);
      for (int i = 0; i < extent.rows; ++i) count<S>(a, q, expected, values, i, extent.columns, row + i, col, steps);
    }
  }
  return a;
}

// What is rounded to the element's code. Exact rules compare with integers; theirs is the quotient, shown in binary64.
template <class S, class Divisor>
std::string scaled_text(float x, const Divisor& divisor, float scale) {
  const auto scaled = S::rule::template scaled<S>(x, divisor);
  if constexpr (std::same_as<std::remove_cv_t<decltype(scaled)>, float>) return text_of(scaled);
  char text[48];
  std::snprintf(text, sizeof text, "%.12g", static_cast<double>(x) / static_cast<double>(scale));
  return text;
}

template <class S>
std::string work_out(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax,
                     std::string_view rounding, index_t which) {
  const index_t row = which / q.blocks_in_row(), col = which % q.blocks_in_row() * q.block;
  const index_t first_row = row / S::block::rows * S::block::rows;
  float values[S::block::elements] = {};
  const ms::block_extent extent = load_block<S>(x, first_row, col, values);
  const ms::tensor_factors t = factors_for<S>(q, amax_of(x), amax);
  const auto which_rounding = static_cast<std::uint32_t>(std::ranges::find(roundings, rounding) - roundings);
  const auto expected = ms::quantize_block<S>(values, t, any_direction{}, this_direction{which_rounding}, extent);
  ms::running_amax block_amax;
  for (int i = 0; i < S::block::elements; ++i) {
    if (ms::is_inside<typename S::block>(extent, i)) block_amax.see(values[i]);
  }
  const std::uint8_t theirs = q.scales[static_cast<std::size_t>(which)];
  std::string s = "block at row " + std::to_string(row) + ", columns " + std::to_string(col) + " to " +
                  std::to_string(col + extent.columns - 1) + "\n";
  s += "  amax of the block      " + text_of(block_amax.ignoring_nan()) +
       (block_amax.has_nonfinite() ? ", with a NaN or an infinity\n" : "\n");
  if constexpr (S::has_tensor_scale) {
    s += "  reference amax         " + text_of(t.reference) + "\n  encode multiplier      " + text_of(t.encode) +
         "\n  decode multiplier      " + text_of(t.decode) + "\n";
  }
  s += "  scale by this rule     " + hex_of(expected.scale) + " = " + text_of(S::scale::decode(expected.scale)) + "\n";
  s += "  scale in the file      " + hex_of(theirs) + " = " + text_of(S::scale::decode(theirs)) +
       (theirs == expected.scale ? "\n" : "   <- differs\n");
  const auto divisor = S::rule::template divisor<S>(expected.scale, t);
  const float element_scale = S::scale::decode(expected.scale) * t.decode;
  s += "  element                   x                          x scaled, as rounded        this rule     the file\n";
  const int in_block = static_cast<int>(row - first_row);
  for (int j = 0; j < extent.columns; ++j) {
    const int i = in_block * S::block::columns + j;
    const std::uint8_t code = q.codes[static_cast<std::size_t>(row * q.cols + col + j)];
    char line[160];
    std::snprintf(line, sizeof line, "  %7lld  %26s  %28s  %2s = %7g  %2s = %7g%s\n", static_cast<long long>(col + j),
                  text_of(values[i]).c_str(), scaled_text<S>(values[i], divisor, element_scale).c_str(),
                  hex_of(expected.codes[i], 1).c_str(), static_cast<double>(S::element::decode(expected.codes[i])),
                  hex_of(code, 1).c_str(), static_cast<double>(S::element::decode(code)),
                  code == expected.codes[i] ? "" : "   <- differs");
    s += line;
  }
  return s;
}

std::vector<std::uint8_t> swapped_pairs(std::vector<std::uint8_t> codes) {
  for (std::size_t i = 0; i + 1 < codes.size(); i += 2) std::swap(codes[i], codes[i + 1]);
  return codes;
}

// Codes whose nibbles were laid out as ggml does, read as if element 0 came first: elements of each run of `block`.
std::vector<std::uint8_t> as_halves(const std::vector<std::uint8_t>& codes, int block) {
  std::vector<std::uint8_t> out(codes.size());
  const auto half = static_cast<std::size_t>(block) / 2;
  for (std::size_t run = 0; run + 2 * half <= codes.size(); run += 2 * half) {
    for (std::size_t j = 0; j < half; ++j) {
      out[run + 2 * j] = codes[run + j];
      out[run + 2 * j + 1] = codes[run + half + j];
    }
  }
  return out;
}

void find_turns(difference& d, const quantized_matrix& a, const quantized_matrix& b) {
  const bool codes_equal = d.codes_differing == 0, scales_equal = d.scales_differing == 0;
  if (!codes_equal && scales_equal && a.element_bits == 4) {
    if (swapped_pairs(a.codes) == b.codes)
      d.turned.push_back("the two codes of every byte are swapped (high nibble first)");
    if (a.cols % a.block == 0 && (as_halves(a.codes, a.block) == b.codes || as_halves(b.codes, a.block) == a.codes)) {
      d.turned.push_back(
          "one has code j and code j + half of each block in a byte, as ggml does, the other neighbours");
    }
  }
  if (codes_equal && !scales_equal && a.rows % 128 == 0 && a.blocks_in_row() % 4 == 0) {
    std::vector<std::uint8_t> tiled(a.scales.size());
    const auto to = [&](const quantized_matrix& m) {
      ms::interop::scales_to_tiles(ms::interop::scale_tile::t128x4, m.scales.data(), m.rows, m.blocks_in_row(),
                                   m.blocks_in_row(), tiled.data());
      return tiled;
    };
    if (to(a) == b.scales || to(b) == a.scales)
      d.turned.push_back("the scales of one lie in 128x4 tiles, those of the other in rows");
  }
  if (d.scalar_differs && a.kind != scalar_kind::none && b.kind != scalar_kind::none && a.scalar * b.scalar > 0.0f) {
    const float inverse = 1.0f / a.scalar;
    if (std::fabs(inverse - b.scalar) <= 4e-7f * std::fabs(b.scalar)) {
      d.turned.push_back("the tensor scale of one is the reciprocal of the other's: a multiplier and a divisor");
    }
  }
}

}  // namespace

std::vector<attempt> try_schemes(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax) {
  if (q.rows != x.rows || q.cols != x.cols) {
    throw usage_error("'" + q.name + "' is " + std::to_string(q.rows) + " x " + std::to_string(q.cols) +
                      ", its data '" + x.name + "' is " + std::to_string(x.rows) + " x " + std::to_string(x.cols));
  }
  std::vector<attempt> all;
  ms::conformance::visit_named_schemes([&]<class S>(const char* name) {
    if constexpr (sizeof(typename S::scale::storage) == 1) {
      if (!is_shape_of<S>(q)) return;
      for (std::uint32_t r = 0; r < std::size(roundings); ++r) all.push_back(try_one<S>(q, x, amax, name, r));
    }
  });
  std::ranges::stable_sort(
      all, {}, [](const attempt& a) { return std::tuple(a.blocks_differing, a.codes_differing, a.scalar_differs); });
  return all;
}

std::string worked_out(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax, const attempt& under,
                       index_t which) {
  std::string text;
  ms::conformance::visit_named_schemes([&]<class S>(const char* name) {
    if constexpr (sizeof(typename S::scale::storage) == 1) {
      if (under.scheme == name) text = work_out<S>(q, x, amax, under.rounding, which);
    }
  });
  return text;
}

difference compare(const quantized_matrix& a, const quantized_matrix& b) {
  if (a.rows != b.rows || a.cols != b.cols || a.element_bits != b.element_bits || a.block != b.block ||
      a.e8m0 != b.e8m0) {
    throw usage_error("'" + a.name + "' and '" + b.name +
                      "' differ in shape or format, and cannot be held against each other");
  }
  std::vector<int> steps;
  for (int code = 0; code < 1 << a.element_bits; ++code) {
    // Floats of any layout: a sign above a magnitude that grows with the number.
    const int magnitude = code & ((1 << (a.element_bits - 1)) - 1);
    steps.push_back(magnitude == code ? magnitude : -magnitude);
  }
  difference d;
  d.codes = a.rows * a.cols;
  d.scales = static_cast<index_t>(a.scales.size());
  const auto first_at = [&](index_t block) {
    d.first_block = d.first_block < 0 ? block : std::min(d.first_block, block);
  };
  for (index_t i = 0; i < d.codes; ++i) {
    const std::uint8_t p = a.codes[static_cast<std::size_t>(i)], q = b.codes[static_cast<std::size_t>(i)];
    if (p == q) continue;
    ++d.codes_differing;
    d.sign_of_zero += steps[p] == 0 && steps[q] == 0;
    d.one_step += std::abs(steps[p] - steps[q]) == 1;
    first_at(i / a.cols * a.blocks_in_row() + i % a.cols / a.block);
  }
  for (index_t i = 0; i < d.scales; ++i) {
    const int p = a.scales[static_cast<std::size_t>(i)], q = b.scales[static_cast<std::size_t>(i)];
    if (p == q) continue;
    ++d.scales_differing;
    d.scale_up += q == p + 1;
    d.scale_down += q == p - 1;
    first_at(i);
  }
  d.scalar_differs = a.kind != b.kind || a.scalar != b.scalar;
  find_turns(d, a, b);
  return d;
}

}  // namespace explain
