// GEMM operands made of any codes and scales, and three models of what their product is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <microscale/tensor/view.hpp>
#include <vector>

#include "adversarial.hpp"
#include "exact_sum.hpp"
#include "model.hpp"

namespace operands {

namespace ms = microscale;
using ms::index_t;

// A rows x cols operand of scheme S in memory of its own, every code and scale drawn, and the numbers that they mean by
// the formats' own formulas.
template <class S>
struct operand {
  index_t rows, cols;
  std::vector<std::uint8_t> codes;
  std::vector<typename S::scale::storage> scales;
  float datum = 1.0f;
  std::vector<double> element, scale;  // of each element

  // `spread`: how many scale codes either side of 1 are used; 0 means all finite ones.
  operand(index_t r, index_t k, std::uint64_t seed, int spread = 0) : rows(r), cols(k) {
    adversarial::numbers random(seed);
    const auto size = ms::size_of<S>(r, k);
    codes.resize(static_cast<std::size_t>(size.code_bytes));
    scales.resize(static_cast<std::size_t>(size.scales));
    for (auto& s : scales) {
      const unsigned top = S::scale::largest_code, one = S::scale::encode(1.0f);
      const unsigned draw = S::scale::bits == 32 ? static_cast<unsigned>(random.bits()) % top : random.below(top + 1);
      s = static_cast<typename S::scale::storage>(draw);
      if (spread != 0) {
        const unsigned step = S::scale::bits == 32 ? 0x00345678u : 1u;
        s = static_cast<typename S::scale::storage>(
            one + (random.below(static_cast<unsigned>(2 * spread + 1)) - static_cast<unsigned>(spread)) * step);
      }
    }
    using element_format = typename S::element;
    std::vector<typename element_format::storage> row(static_cast<std::size_t>(k));
    for (index_t i = 0; i < r; ++i) {
      for (auto& c : row) {
        do {
          c = static_cast<typename element_format::storage>(random.below(1u << element_format::bits));
        } while (!element_format::is_finite(c));
      }
      ms::store_codes<element_format>(codes.data() + i * size.code_pitch, row.data(), k);
      for (index_t j = 0; j < k; ++j) {
        const auto s = scales[static_cast<std::size_t>(i / S::block::rows * size.scale_pitch + j / S::block::columns)];
        element.push_back(static_cast<double>(element_format::decode(row[static_cast<std::size_t>(j)])));
        scale.push_back(static_cast<double>(S::scale::decode(s)));
      }
    }
  }

  ms::quantized_view<const S> view() const {
    return ms::quantized_view_of<const S>(codes.data(), scales.data(), &datum, rows, cols);
  }
};

enum class order { exact, blocks, blackwell };

// One output before alpha.
template <class A, class B>
float model_dot(const operand<A>& a, index_t i, const operand<B>& b, index_t j, order how) {
  const std::size_t x = static_cast<std::size_t>(i * a.cols), y = static_cast<std::size_t>(j * b.cols);
  const index_t run_a = A::block::columns, run_b = B::block::columns;
  constexpr int digits = 48, origin = 700;
  float acc = 0.0f;
  exact::sum sum(digits, origin);
  for (index_t k = 0; k < a.cols; ++k) {
    const std::size_t ka = x + static_cast<std::size_t>(k), kb = y + static_cast<std::size_t>(k);
    const index_t next = k + 1;
    if (how == order::blocks) {
      sum.add_product(a.element[ka], b.element[kb]);
      if (next == a.cols || next % run_a == 0 || next % run_b == 0) {
        const float scale = model::mul(static_cast<float>(a.scale[ka]), static_cast<float>(b.scale[kb]));
        acc = model::add(acc, model::mul(scale, sum.nearest()));
        sum = exact::sum(digits, origin);
      }
      continue;
    }
    sum.add_product(a.element[ka] * a.scale[ka], b.element[kb] * b.scale[kb]);
    if (how == order::blackwell && (next == a.cols || next % 64 == 0)) {
      const float group = sum.nearest();
      if (!std::isfinite(acc) || !std::isfinite(group)) {
        acc = acc + group;
      } else {
        exact::sum both(digits, origin);
        both.add_product(static_cast<double>(acc), 1.0);
        both.add_product(static_cast<double>(group), 1.0);
        acc = both.toward_zero();
      }
      sum = exact::sum(digits, origin);
    }
  }
  return how == order::exact ? sum.nearest() : acc;
}

}  // namespace operands
