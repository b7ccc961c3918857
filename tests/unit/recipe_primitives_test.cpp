// What other published systems are made of, each against a small computation of its own.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <microscale/host/executor.hpp>
#include <microscale/recipe/attention.hpp>
#include <microscale/recipe/low_rank.hpp>
#include <microscale/recipe/pairwise_sparse.hpp>
#include <microscale/recipe/second_moment.hpp>
#include <microscale/recipe/shrinkage.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/adversarial.hpp"
#include "support/model.hpp"

namespace ms = microscale;
using ms::axis;
using ms::index_t;

namespace {

using view = ms::matrix_view<const float>;
using numbers = std::vector<float>;

view of(const numbers& m, index_t rows, index_t cols) { return ms::matrix(m.data(), rows, cols); }
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

numbers normal(index_t count, std::uint64_t seed, double scale = 1.0) {
  adversarial::numbers random(seed);
  numbers x(at(count));
  for (float& v : x) v = static_cast<float>(random.normal() * scale);
  return x;
}

// The eigenvalues of a symmetric matrix, largest first, by Jacobi rotations.
std::vector<double> eigenvalues(std::vector<double> a, index_t n) {
  const auto e = [&](index_t r, index_t c) -> double& { return a[at(r * n + c)]; };
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (index_t p = 0; p < n; ++p) {
      for (index_t q = p + 1; q < n; ++q) {
        const double angle = 0.5 * std::atan2(2.0 * e(p, q), e(q, q) - e(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        for (index_t k = 0; k < n; ++k) {
          const double x = e(k, p), y = e(k, q);
          e(k, p) = c * x - s * y, e(k, q) = s * x + c * y;
        }
        for (index_t k = 0; k < n; ++k) {
          const double x = e(p, k), y = e(q, k);
          e(p, k) = c * x - s * y, e(q, k) = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (index_t i = 0; i < n; ++i) values.push_back(e(i, i));
  std::sort(values.rbegin(), values.rend());
  return values;
}

double squares(const numbers& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * double{v};
  return sum;
}

// A B^T in binary64.
std::vector<double> product(const numbers& a, index_t m, const numbers& b, index_t n, index_t k) {
  std::vector<double> c(at(m * n));
  for (index_t i = 0; i < m; ++i) {
    for (index_t j = 0; j < n; ++j) {
      for (index_t l = 0; l < k; ++l) c[at(i * n + j)] += double{a[at(i * k + l)]} * double{b[at(j * k + l)]};
    }
  }
  return c;
}
double distance(const numbers& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

numbers transposed(const numbers& m, index_t rows, index_t cols) {
  numbers t(m.size());
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) t[at(c * rows + r)] = m[at(r * cols + c)];
  }
  return t;
}

float bf16(double x) { return model::decode(model::bf16, model::encode(model::bf16, x)); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("smoothing moves each column's range by the formula") {
  const numbers x{1, -8, 0, 4, 2, 0}, w{0.5f, 2, 3, -0.25f, -1, 0};  // 2 x 3 each
  const numbers l = ms::smoothing_factors(of(x, 2, 3), of(w, 2, 3), 0.75);
  CHECK(l == numbers{static_cast<float>(std::pow(4.0, 0.75) / std::pow(0.5, 0.25)),
                     static_cast<float>(std::pow(8.0, 0.75) / std::pow(2.0, 0.25)), 1.0f});
  CHECK_THROWS_AS(ms::smoothing_factors(of(x, 2, 3), of(w, 3, 2)), ms::error);
}

TEST_CASE("the residual of a factorization is the tail of the spectrum") {
  constexpr index_t rows = 24, cols = 16;
  numbers w = normal(rows * cols, 1, 0.05);
  const numbers u = normal(rows * 3, 2), v = normal(cols * 3, 3);
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) {
      for (index_t i = 0; i < 3; ++i) w[at(r * cols + c)] += u[at(r * 3 + i)] * v[at(c * 3 + i)];
    }
  }
  const numbers t = transposed(w, rows, cols);
  const std::vector<double> spectrum = eigenvalues(product(t, cols, t, cols, rows), cols);  // of W^T W
  for (const index_t rank : {0, 1, 3}) {
    double tail = 0;
    for (index_t i = rank; i < cols; ++i) tail += spectrum[at(i)];
    const ms::low_rank_factors f = ms::factorize(of(w, rows, cols), rank);
    // Each factor is off by 2^-9 of itself in BF16, and one of them is orthonormal.
    const double rounding = std::ldexp(1.0 + std::sqrt(double(rank)), -9) * std::sqrt(squares(w)) + 1e-5;
    CHECK(std::fabs(std::sqrt(squares(ms::residual_of(of(w, rows, cols), f))) - std::sqrt(tail)) < rounding);
    for (const float e : f.up) CHECK(e == bf16(double{e}));
  }
  CHECK_THROWS_AS(ms::factorize(of(w, rows, cols), 17), ms::error);
}

TEST_CASE("a factor is rounded to BF16 once, not by way of FP32") {
  CHECK(ms::detail::as_bf16(1.0 + 0x1p-8 + 0x1p-40) == 1.0f + 0x1p-7f);  // FP32 would make a tie of it, and 1
  CHECK(ms::detail::as_bf16(-(1.0 + 0x1.8p-7 - 0x1p-40)) == -(1.0f + 0x1p-7f));
  CHECK(ms::detail::as_bf16(1e300) == ms::fp32::infinity());
}

TEST_CASE("a low-rank layer is its two products, and beats four bits alone where W is hard") {
  constexpr index_t tokens = 32, in = 64, out = 48, rank = 4;
  numbers x = normal(tokens * in, 4), w = normal(out * in, 5, 0.02);
  for (index_t t = 0; t < tokens; ++t) x[at(t * in + 7)] *= 40.0f;  // an outlier feature
  const numbers u = normal(out, 6), v = normal(in, 7);
  for (index_t r = 0; r < out; ++r) {
    for (index_t k = 0; k < in; ++k) w[at(r * in + k)] += u[at(r)] * v[at(k)];
  }
  const ms::low_rank_linear<ms::nvfp4, ms::nvfp4, ms::exact_f32> layer(of(w, out, in), rank, of(x, tokens, in));
  numbers y(at(tokens * out));
  layer.forward(ms::host{.threads = 2}, of(x, tokens, in), ms::matrix(y.data(), tokens, out));

  numbers smooth(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) smooth[i] = x[i] * layer.inverse_smoothing()[i % at(in)];
  const auto qx = ms::quantize<ms::nvfp4>(of(smooth, tokens, in));
  const std::vector<double> four_bits = product(ms::dequantize(qx), tokens, ms::dequantize(layer.residual()), out, in);
  int wrong = 0;
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t r = 0; r < out; ++r) {
      double expected = four_bits[at(t * out + r)], slack = 1e-4;
      for (index_t c = 0; c < rank; ++c) {
        double middle = 0;
        for (index_t k = 0; k < in; ++k) {
          middle += double{bf16(double{smooth[at(t * in + k)]})} * double{layer.factors().down[at(c * in + k)]};
        }
        const double term = double{bf16(middle)} * double{layer.factors().up[at(r * rank + c)]};
        expected += term;
        slack += std::ldexp(std::fabs(term), -7);  // the sum before that rounding may fall to the other side
      }
      wrong += !(std::fabs(double{y[at(t * out + r)]} - expected) <= slack);
    }
  }
  CHECK(wrong == 0);

  const std::vector<double> exact = product(x, tokens, w, out, in);
  const numbers plain = ms::gemm(ms::quantize<ms::nvfp4>(of(x, tokens, in)), ms::quantize<ms::nvfp4>(of(w, out, in)));
  CHECK(distance(y, exact) < 0.25 * distance(plain, exact));
}

// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("a second moment is stored as the codes of H(sqrt(v) - mean)") {
  constexpr index_t rows = 5, cols = 64;
  adversarial::numbers random(8);
  numbers v(rows * cols);
  for (float& e : v) e = std::fabs(random.log_uniform(-40, -10));
  v[3] = 0.0f;
  const auto stored = ms::store_second_moment(ms::host{.threads = 2}, of(v, rows, cols));

  numbers rotated(v.size());
  int wrong = 0;
  for (index_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (index_t c = 0; c < cols; ++c) sum += double{model::square_root(v[at(r * cols + c)])};
    const float mean = static_cast<float>(sum / 64.0);
    wrong += stored.means[at(r)] != mean;
    for (index_t c = 0; c < cols; c += 16) {
      for (int i = 0; i < 16; ++i)
        rotated[at(r * cols + c + i)] = model::add(model::square_root(v[at(r * cols + c + i)]), -mean);
      float* run = rotated.data() + r * cols + c;
      for (int stride = 1; stride < 16; stride *= 2) {
        numbers before(run, run + 16);
        for (int i = 0; i < 16; ++i) {
          const float a = before[at(i & ~stride)], b = before[at(i | stride)];
          run[i] = model::add(a, (i & stride) != 0 ? -b : b);
        }
      }
      for (int i = 0; i < 16; ++i) run[i] = model::mul(run[i], 0.25f);
    }
  }
  float amax = 0;
  for (const float e : rotated) amax = std::fmax(amax, std::fabs(e));
  CHECK(stored.codes.datum() == amax);
  const auto q = stored.codes.view();
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; c += 16) {
      const auto first = rotated.begin() + r * cols + c;
      const model::block b = model::quantize({.how = model::rule::te}, amax, numbers(first, first + 16));
      wrong += q.scale(r, c) != b.scale;
      for (int i = 0; i < 16; ++i) wrong += q.code(r, c + i) != b.codes[at(i)];
    }
  }
  CHECK(wrong == 0);

  // Loaded again: the error of a run is that of its codes, since H is orthonormal.
  numbers root(v.size());
  ms::load_root_of_second_moment(ms::sequential{}, stored, ms::matrix(root.data(), rows, cols));
  const numbers decoded = ms::dequantize(stored.codes);
  double in_codes = 0, in_roots = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    in_codes += std::pow(double{decoded[i]} - double{rotated[i]}, 2);
    in_roots += std::pow(double{root[i]} - std::sqrt(double{v[i]}), 2);
  }
  CHECK(in_roots <= in_codes * (1 + 1e-3));  // raising to the floor only helps
  CHECK(*std::min_element(root.begin(), root.end()) >= 0.0f);

  ms::load_root_of_second_moment(ms::sequential{}, stored, ms::matrix(root.data(), rows, cols), 16, 1e-6f);
  CHECK(*std::min_element(root.begin(), root.end()) >= 1e-6f);
  v[9] = -1e-20f;
  CHECK_THROWS_AS(ms::store_second_moment(ms::sequential{}, of(v, rows, cols)), ms::error);
}

// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("attention: scores of four-bit operands, softmax, values in BF16") {
  constexpr index_t queries = 24, keys = 24, width = 32, depth = 16;
  const numbers q = normal(queries * width, 10), k = normal(keys * width, 11), v = normal(keys * depth, 12);
  for (const bool causal : {true, false}) {
    numbers o(at(queries * depth));
    const numbers p =
        ms::attention_forward(ms::host{.threads = 3}, of(q, queries, width), of(k, keys, width), of(v, keys, depth),
                              ms::matrix(o.data(), queries, depth), {.causal = causal});
    const auto scores = product(ms::dequantize(ms::quantize<ms::nvfp4>(of(q, queries, width))), queries,
                                ms::dequantize(ms::quantize<ms::nvfp4>(of(k, keys, width))), keys, width);
    int wrong = 0;
    for (index_t i = 0; i < queries; ++i) {
      const index_t seen = causal ? i + 1 : keys;
      double sum = 0;
      for (index_t j = 0; j < seen; ++j) sum += std::exp(scores[at(i * keys + j)] / std::sqrt(32.0));
      for (index_t j = 0; j < keys; ++j) {
        const double expected = j < seen ? std::exp(scores[at(i * keys + j)] / std::sqrt(32.0)) / sum : 0.0;
        wrong += !(std::fabs(double{p[at(i * keys + j)]} - expected) <= std::ldexp(expected, -8));
      }
      for (index_t c = 0; c < depth; ++c) {
        double expected = 0, size = 0;
        for (index_t j = 0; j < keys; ++j) {
          const double term = double{p[at(i * keys + j)]} * double{bf16(double{v[at(j * depth + c)]})};
          expected += term, size += std::fabs(term);
        }
        wrong += !(std::fabs(double{o[at(i * depth + c)]} - expected) <= size * 1e-5);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("attention: scores of thousands, of either sign, are shares of their row") {
  for (const float size : {40.0f, -40.0f}) {
    const numbers q(3 * 16, size), k(3 * 16, 40.0f), v{1, 2, 4};
    numbers o(3);
    const numbers p =
        ms::attention_forward(ms::sequential{}, of(q, 3, 16), of(k, 3, 16), of(v, 3, 1), ms::matrix(o, 3, 1));
    const float third = bf16(1.0 / 3);
    CHECK(p == numbers{1, 0, 0, 0.5f, 0.5f, 0, third, third, third});
    CHECK(o == numbers{1, 1.5f, third * 7});
  }
}

TEST_CASE("attention backward: dS in four bits, on numbers whose sums are exact") {
  constexpr index_t n = 16, width = 16, depth = 16;
  adversarial::numbers random(13);
  const auto small = [&](index_t count) {
    numbers x(at(count));
    for (float& e : x) e = static_cast<float>(random.below(5)) - 2.0f;
    return x;
  };
  const numbers q = small(n * width), k = small(n * width), v = small(n * depth), d_o = small(n * depth);
  numbers p(n * n);
  for (float& e : p) e = static_cast<float>(random.below(9)) / 64.0f;
  numbers dq(n * width), dk(n * width), dv(n * depth);
  ms::attention_backward<ms::nvfp4, ms::exact_f32>(ms::sequential{}, of(q, n, width), of(k, n, width), of(v, n, depth),
                                                   p, of(d_o, n, depth), ms::matrix(dq.data(), n, width),
                                                   ms::matrix(dk.data(), n, width), ms::matrix(dv.data(), n, depth));

  const auto exact_dv = product(transposed(p, n, n), n, transposed(d_o, n, depth), depth, n);
  CHECK(distance(dv, exact_dv) == 0.0);
  const auto dp = product(d_o, n, v, n, depth);
  numbers ds(n * n);
  for (index_t i = 0; i < n; ++i) {
    double sum = 0;
    for (index_t j = 0; j < n; ++j) sum += dp[at(i * n + j)] * double{p[at(i * n + j)]};
    for (index_t j = 0; j < n; ++j)
      ds[at(i * n + j)] = static_cast<float>(double{p[at(i * n + j)]} * (dp[at(i * n + j)] - sum) * 0.25);
  }
  const numbers dst = transposed(ds, n, n), kt = transposed(k, n, width), qt = transposed(q, n, width);
  CHECK(dq == ms::gemm(ms::quantize<ms::nvfp4>(of(ds, n, n)), ms::quantize<ms::nvfp4>(of(kt, width, n))));
  CHECK(dk == ms::gemm(ms::quantize<ms::nvfp4>(of(dst, n, n)), ms::quantize<ms::nvfp4>(of(qt, width, n))));
}

// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("attention, low-rank layers and moments refuse what does not fit, before anything is read or written") {
  const numbers q = normal(3 * 16, 1), k = normal(4 * 16, 2), v = normal(4 * 5, 3), d_o = normal(3 * 5, 4);
  numbers dq(q.size(), 7.0f), dk(k.size(), 7.0f), dv(v.size(), 7.0f);
  const auto backward = [&](std::size_t probabilities, const float* gradient) {
    ms::attention_backward(ms::host{.threads = 1}, of(q, 3, 16), of(k, 4, 16), of(v, 4, 5), numbers(probabilities),
                           ms::matrix(gradient, 3, 5), ms::matrix(dq, 3, 16), ms::matrix(dk, 4, 16),
                           ms::matrix(dv, 4, 5));
  };
  for (const unsigned probabilities : {0u, 11u, 13u}) CHECK_THROWS_AS(backward(probabilities, d_o.data()), ms::error);
  CHECK_THROWS_AS(backward(12, nullptr), ms::error);
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{5, 3}, {3, 4}, {2, 5}}) {
    std::string said;
    try {
      ms::attention_backward(ms::host{.threads = 1}, of(q, 3, 16), of(k, 4, 16), of(v, 4, 5), numbers(12),
                             of(d_o, rows, cols), ms::matrix(dq, 3, 16), ms::matrix(dk, 4, 16), ms::matrix(dv, 4, 5));
    } catch (const ms::error& e) {
      said = e.what();
    }
    CHECK(said ==
          "microscale: shape of dO: expected 3 x 5, got " + std::to_string(rows) + " x " + std::to_string(cols));
  }
  CHECK((dq == numbers(q.size(), 7.0f) && dk == numbers(k.size(), 7.0f) && dv == numbers(v.size(), 7.0f)));
  CHECK_NOTHROW(backward(12, d_o.data()));

  const view nothing = ms::matrix(static_cast<const float*>(nullptr), 4, 16);
  using layer = ms::low_rank_linear<ms::nvfp4, ms::nvfp4, ms::exact_f32>;
  CHECK_THROWS_AS(layer(nothing, 1, of(q, 0, 16)), ms::error);
  CHECK_THROWS_AS(layer(of(k, 4, 16), 1, of(q, 0, 16)).forward(ms::host{.threads = 1}, nothing, ms::matrix(dq, 4, 4)),
                  ms::error);

  auto moment = ms::store_second_moment(ms::host{.threads = 1}, of(numbers(4 * 16, 2.0f), 4, 16));
  moment.means.pop_back();
  numbers root(4 * 16);
  CHECK_THROWS_AS(ms::load_root_of_second_moment(ms::host{.threads = 1}, moment, ms::matrix(root, 4, 16)), ms::error);
}

TEST_CASE("pairwise 4:8 keeps the two largest pairs of each eight") {
  const auto kept = [](numbers x) {
    ms::keep_pairwise_4_of_8(ms::sequential{}, of(x, 1, static_cast<index_t>(x.size())),
                             ms::matrix(x.data(), 1, static_cast<index_t>(x.size())));
    return x;
  };
  CHECK(kept({1, 0, 0, -9, 3, 3, 5, -2}) == numbers{0, 0, 0, -9, 0, 0, 5, -2});
  CHECK(kept({2, 1, -2, 1, 2, 2, 0, 2}) == numbers{2, 1, -2, 1, 0, 0, 0, 0});  // ties: the first
  CHECK(kept({1, 2, 3, 4, 5}) == numbers{0, 0, 3, 4, 5});                      // the last pair is 5 and nothing
  CHECK(kept({}) == numbers{});

  adversarial::numbers random(14);
  int wrong = 0;
  for (int trial = 0; trial < 500; ++trial) {
    numbers x(8);
    for (float& e : x) e = static_cast<float>(random.below(7)) - 3.0f;
    const numbers y = kept(x);
    std::array<std::pair<float, int>, 4> pairs;
    for (int i = 0; i < 4; ++i) {
      pairs[at(i)] = {-std::fmax(std::fabs(x[at(2 * i)]), std::fabs(x[at(2 * i + 1)])), i};
    }
    std::sort(pairs.begin(), pairs.end());
    for (int i = 0; i < 8; ++i) {
      const bool keep = i / 2 == pairs[0].second || i / 2 == pairs[1].second;
      wrong += y[at(i)] != (keep ? x[at(i)] : 0.0f);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("sparse and dense parts share one weight payload") {
  using sparse = ms::with_block<ms::nvfp4, ms::block<1, 32>>;
  constexpr index_t tokens = 8, in = 64, out = 24;
  numbers x = normal(tokens * in, 15);
  for (index_t i = 0; i < tokens * in; i += 37) x[at(i)] *= 30.0f;
  const numbers w = normal(out * in, 16);
  const auto qw = ms::quantize<ms::nvfp4>(of(w, out, in));
  const auto parts = ms::split_pairwise<sparse, ms::nvfp4>(ms::sequential{}, of(x, tokens, in));
  const numbers y = ms::gemm(ms::sequential{}, parts, qw);

  const numbers s = ms::dequantize(parts.sparse), d = ms::dequantize(parts.dense), wd = ms::dequantize(qw);
  int zeros = 0;
  for (const float e : s) zeros += e == 0.0f;
  CHECK(zeros >= tokens * in / 2);
  numbers rest(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) rest[i] = model::add(x[i], -s[i]);
  CHECK(ms::dequantize(ms::quantize<ms::nvfp4>(of(rest, tokens, in))) == d);

  const auto first = product(s, tokens, wd, out, in), second = product(d, tokens, wd, out, in);
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double bound = 1e-6 * (std::fabs(first[i]) + std::fabs(second[i])) + 1e-6;
    wrong += !(std::fabs(double{y[i]} - first[i] - second[i]) <= bound);
  }
  CHECK(wrong == 0);
  const auto exact = product(x, tokens, wd, out, in);
  const numbers plain = ms::gemm(ms::quantize<ms::nvfp4>(of(x, tokens, in)), qw);
  CHECK(distance(y, exact) < 0.5 * distance(plain, exact));
}

// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("shrinkage: none under a flat density, and by the cells' integrals under a falling one") {
  // One block of 32 after another, each with a 6, so that its scale is 1.
  constexpr index_t blocks = 4096, count = blocks * 31;
  constexpr double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  constexpr double edge[9] = {0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6};
  const auto measured = [&](auto&& quantile) {
    numbers x;
    for (index_t i = 0; i < count; ++i) {
      if (i % 31 == 0) x.push_back(6.0f);
      const double t = 6.0 * quantile((double(i) + 0.5) / double(count));
      x.push_back(static_cast<float>(i % 2 == 0 ? t : -t));
    }
    const auto q = ms::quantize<ms::mxfp4_ceil>(of(x, blocks, 32));
    ms::shrinkage s = ms::measure_shrinkage(of(x, blocks, 32), q.view());
    s.magnitude -= 6.0 * double(blocks), s.decoded_magnitude -= 6.0 * double(blocks);
    s.signal -= 36.0 * double(blocks), s.projection -= 36.0 * double(blocks);
    return s;
  };
  CHECK(std::fabs(measured([](double u) { return u; }).of_magnitude()) < 1e-4);

  // Density 2 (1 - t) on [0, 1], t = x / 6.
  const ms::shrinkage s = measured([](double u) { return 1.0 - std::sqrt(1.0 - u); });
  double magnitude = 0, projection = 0;
  for (int i = 0; i < 8; ++i) {
    const auto mass = [](double x) { return 2 * (x / 6) - (x / 6) * (x / 6); };
    const auto moment = [](double x) { return 6 * ((x / 6) * (x / 6) - 2.0 / 3 * std::pow(x / 6, 3)); };
    magnitude += value[i] * (mass(edge[i + 1]) - mass(edge[i]));
    projection += value[i] * (moment(edge[i + 1]) - moment(edge[i]));
  }
  CHECK(std::fabs(s.of_magnitude() - (1 - magnitude / 2)) < 1e-4);  // the mean of t is 1/3, of t^2 1/6
  CHECK(std::fabs(s.of_projection() - (1 - projection / 6)) < 1e-4);
  CHECK(s.of_magnitude() > 0.005);

  // Sums of parts are sums; along columns it is the transpose.
  ms::shrinkage twice = s;
  twice += s;
  CHECK(twice.of_projection() == s.of_projection());
  const numbers x = normal(64 * 32, 17);
  const auto q = ms::quantize<ms::ufp4>(of(x, 64, 32), {.axis = axis::col});
  const numbers t = transposed(x, 64, 32);
  CHECK(ms::measure_shrinkage(of(x, 64, 32), q.view(), axis::col).projection ==
        ms::measure_shrinkage(of(t, 32, 64), ms::quantize<ms::ufp4>(of(t, 32, 64)).view()).projection);
}
