// The Hadamard transform: its order of operations, its matrix, its signs, its axes and its errors.
#include <microscale/host/executor.hpp>
#include <microscale/tensor/hadamard_quantize.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

// The transform once more: signs, butterflies by recursion from the shortest stride, one multiplication.
void butterflies(std::vector<float>& x, std::size_t stride) {
  if (stride == x.size()) return;
  const std::vector<float> before = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float partner = before[i ^ stride];
    x[i] = (i & stride) == 0 ? model::add(before[i], partner) : model::add(partner, -before[i]);
  }
  butterflies(x, stride * 2);
}
std::vector<float> by_definition(std::vector<float> x, const std::vector<int>& signs = {}) {
  for (std::size_t i = 0; i < signs.size(); ++i) x[i] = signs[i] < 0 ? -x[i] : x[i];
  butterflies(x, 1);
  const float factor = static_cast<float>(1 / std::sqrt(static_cast<double>(x.size())));
  for (float& v : x) v = model::mul(v, factor);
  return x;
}

std::vector<float> transformed(const std::vector<float>& x, index_t rows, index_t cols,
                               const ms::hadamard_options& options) {
  std::vector<float> y(x.size());
  ms::hadamard_into(backwards{}, ms::matrix(x, rows, cols), ms::matrix(y, rows, cols), options);
  return y;
}

const std::vector<int> te_signs = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};

}  // namespace

TEST_CASE("butterflies of stride 1, 2, 4, ... and one factor, bit for bit, at every size") {
  for (int size_of_run = 2; size_of_run <= 256; size_of_run *= 2) {
    std::vector<float> x = difficult(4, size_of_run, static_cast<std::uint64_t>(size_of_run));
    const std::vector<float> y = transformed(x, 4, size_of_run, {.size = size_of_run});
    for (index_t r = 0; r < 4; ++r) {
      const auto row = [&](const std::vector<float>& m) {
        return std::vector<float>(&m[size(r * size_of_run)], &m[size(r * size_of_run)] + size_of_run);
      };
      CHECK(different(row(y), by_definition(row(x))) == 0);
    }
  }
}

TEST_CASE("the order matters: another one gives other bits") {
  // 2^24 + 1 rounds; 1 - 1 first does not.
  const float x[4] = {0x1p24f, 1, 0, -1};
  float y[4] = {x[0], x[1], x[2], x[3]};
  ms::hadamard_run<4>(y);
  CHECK(y[0] == (0x1p24f - 1) / 2);  // ((2^24 + 1) rounded) + (0 - 1); the other order gives 2^23
}

TEST_CASE("Sylvester's matrix over the square root of the size") {
  for (int n = 2; n <= 256; n *= 2) {
    const double scale = 1 / std::sqrt(static_cast<double>(n));
    double worst = 0;
    for (int column = 0; column < n; ++column) {
      std::vector<float> unit(size(n), 0.0f);
      unit[size(column)] = 1;
      const std::vector<float> y = transformed(unit, 1, n, {.size = n});
      for (int row = 0; row < n; ++row) {
        const double want = __builtin_popcount(static_cast<unsigned>(row & column)) % 2 == 0 ? scale : -scale;
        worst = std::fmax(worst, std::fabs(static_cast<double>(y[size(row)]) - want));
      }
    }
    CHECK(worst <= scale * 0x1p-24);
    CHECK(static_cast<double>(ms::hadamard_factor(n)) == static_cast<double>(static_cast<float>(scale)));
  }
}

TEST_CASE("twice is the identity, and lengths are kept, up to rounding") {
  const std::vector<float> x = difficult(3, 128, 9);
  for (const int n : {2, 16, 64, 128}) {
    const auto y = transformed(x, 3, 128, {.size = n});
    const auto z = transformed(y, 3, 128, {.size = n});
    double error = 0, before = 0, after = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error = std::fmax(error, std::fabs(static_cast<double>(z[i]) - static_cast<double>(x[i])));
      before += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      after += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    }
    CHECK(error < 1e-3);
    CHECK(std::fabs(after / before - 1) < 1e-5);
  }
}

TEST_CASE("TransformerEngine's signs, and drawn ones") {
  const auto te = ms::hadamard_signs::transformer_engine();
  for (int i = 0; i < 16; ++i) CHECK(te.negative(i) == (te_signs[size(i)] < 0));
  const std::vector<float> x = difficult(2, 16, 10);
  const auto y = transformed(x, 2, 16, {.size = 16, .signs = te});
  CHECK(different({y.begin(), y.begin() + 16}, by_definition({x.begin(), x.begin() + 16}, te_signs)) == 0);

  const auto drawn = ms::hadamard_signs::drawn({7, 8});
  std::vector<int> signs;
  for (int i = 0; i < 256; ++i) {
    const bool bit =
        (ms::philox4x32({7, 8}, static_cast<std::uint64_t>(i / 128)).word[i / 32 % 4] >> (i % 32) & 1) != 0;
    signs.push_back(bit ? -1 : 1);
    CHECK(drawn.negative(i) == bit);
  }
  CHECK(drawn == ms::hadamard_signs::drawn({7, 8}));
  CHECK(!(drawn == ms::hadamard_signs::drawn({8, 8})));
  CHECK(!(drawn == ms::hadamard_signs::drawn({7, 9})));
  const std::vector<float> long_run = difficult(1, 256, 11);
  CHECK(different(transformed(long_run, 1, 256, {.size = 256, .signs = drawn}), by_definition(long_run, signs)) == 0);
  auto one = ms::hadamard_signs::none();
  one.negate(200);
  CHECK((one.negative(200) && !one.negative(199) && !one.negative(72)));
}

TEST_CASE("down the columns, in place, with pitches, and into bfloat16") {
  const std::vector<float> x = difficult(32, 9, 12);
  const auto along_columns = transformed(x, 32, 9, {.size = 16, .axis = ms::axis::col});
  CHECK(different(along_columns, transposed(transformed(transposed(x, 32, 9), 9, 32, {.size = 16}), 9, 32)) == 0);

  std::vector<float> in_place = x;
  ms::hadamard_into(ms::sequential{}, ms::matrix(in_place, 32, 9), ms::matrix(in_place, 32, 9),
                    {.axis = ms::axis::col});
  CHECK(different(in_place, along_columns) == 0);

  std::vector<float> wide(32 * 11, 5.0f);
  ms::hadamard_into(ms::sequential{}, ms::matrix(x, 32, 9), ms::matrix(wide.data(), 32, 9, 11),
                    {.axis = ms::axis::col});
  int wrong = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const float want = i % 11 < 9 ? along_columns[i / 11 * 9 + i % 11] : 5.0f;
    wrong += ms::fp32::bits(wide[i]) != ms::fp32::bits(want);
  }
  CHECK(wrong == 0);

  std::vector<ms::value<ms::bf16>> narrow(32 * 9);
  ms::hadamard_into(ms::sequential{}, ms::matrix(x, 32, 9), ms::matrix(narrow, 32, 9), {.axis = ms::axis::col});
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    wrong += narrow[i].code() != model::encode(model::bf16, static_cast<double>(along_columns[i]));
  }
  CHECK(wrong == 0);
}

TEST_CASE("NaN and infinities spread over their run and no farther") {
  std::vector<float> x(32, 1.0f);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[20] = std::numeric_limits<float>::infinity();
  const auto y = transformed(x, 1, 32, {.size = 16});
  for (std::size_t i = 0; i < 16; ++i) CHECK(ms::fp32::is_nan(y[i]));
  for (std::size_t i = 16; i < 32; ++i) CHECK(ms::fp32::is_infinite(y[i]));
}

TEST_CASE("sizes and lengths that are no transform, and empty matrices, which are") {
  std::vector<float> x(96), y(96, 7.0f);
  const auto refused = [&](const ms::hadamard_options& options, index_t rows = 2, index_t cols = 48) {
    const std::string text = message_of(
        [&] { ms::hadamard_into(ms::sequential{}, ms::matrix(x, rows, cols), ms::matrix(y, rows, cols), options); });
    CHECK(y == std::vector<float>(96, 7.0f));
    return text;
  };
  for (const int size_of_run : {0, 1, -16, 3, 24, 512})
    CHECK(says(refused({.size = size_of_run}), "Hadamard size: expected a power of two"));
  CHECK(says(refused({.size = 32}), "length of a Hadamard transform: expected a multiple of 32, got 48"));
  CHECK(says(refused({.size = 16, .axis = ms::axis::col}), "expected a multiple of 16, got 2"));
  CHECK(refused({}, 0, 48) == "");
  CHECK(refused({}, 2, 0) == "");
  CHECK(says(message_of([&] { ms::hadamard_into(ms::sequential{}, ms::matrix(x, 2, 48), ms::matrix(y, 48, 2)); }),
             "output shape: expected 2 x 48, got 48 x 2"));
  CHECK(says(
      message_of([&] { ms::hadamard_into(ms::sequential{}, ms::matrix(x, 2, 48), ms::matrix<float>(nullptr, 2, 48)); }),
      "null pointer"));
}

TEST_CASE("the amax of a transform is that of what hadamard_into gives, NaN passed over") {
  const auto signs = ms::hadamard_signs::drawn({3, 4});
  const auto amax_of = [](const auto& executor, const std::vector<float>& x, index_t rows, index_t cols,
                          const ms::hadamard_options& options) {
    return ms::fp32::bits(ms::hadamard_amax(executor, ms::matrix(x, rows, cols), options));
  };
  for (const int n : {2, 16, 32, 256}) {
    for (const ms::axis axis : {ms::axis::row, ms::axis::col}) {
      for (const int lines : {1, 37}) {
        const bool by_row = axis == ms::axis::row;
        const index_t length = 20 * 256, rows = by_row ? lines : length, cols = by_row ? length : lines;
        std::vector<float> x = difficult(rows, cols, static_cast<std::uint64_t>(n + lines));
        if (lines > 1) x[x.size() / 3] = std::numeric_limits<float>::quiet_NaN();
        const ms::hadamard_options options{.size = n, .signs = signs, .axis = axis};
        const std::vector<float> y = transformed(x, rows, cols, options);
        float want = 0;
        for (const float e : y) want = ms::fp32::is_nan(e) ? want : std::fmax(want, ms::fp32::abs(e));
        CHECK(want > 0);
        CHECK(amax_of(ms::sequential{}, x, rows, cols, options) == ms::fp32::bits(want));
        CHECK(amax_of(backwards{}, x, rows, cols, options) == ms::fp32::bits(want));
        CHECK(amax_of(ms::host{.threads = 2}, x, rows, cols, options) == ms::fp32::bits(want));
      }
    }
  }
  // 1 + 1 with opposite signs of the rest: one element has it all. In a run with two infinities, one result is a NaN.
  std::vector<float> x(32, 1.0f);
  CHECK(ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 2, 16)) == 4.0f);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 1, 16)) == 0.0f);
  CHECK(ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 2, 16)) == 4.0f);
  x[16] = x[17] = -std::numeric_limits<float>::infinity();
  CHECK(ms::fp32::is_infinite(ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 2, 16))));
  CHECK(ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 0, 16)) == 0.0f);
  CHECK(says(message_of([&] { ms::hadamard_amax(ms::sequential{}, ms::matrix(x, 4, 8)); }), "a multiple of 16, got 8"));
}

TEST_CASE("signs that are read are those that are in memory when the call runs, not those of the options") {
  constexpr index_t rows = 32, cols = 256;
  const std::vector<float> x = difficult(rows, cols, 12);
  const auto in = ms::matrix(x, rows, cols);
  ms::hadamard_signs memory;
  for (const int n : {2, 16, 32, 256}) {
    for (const std::uint64_t stream : {1u, 2u}) {
      memory = ms::hadamard_signs::drawn({7, stream});
      const ms::hadamard_options given{.size = n, .signs = memory};
      const ms::hadamard_options read_later{
          .size = n, .signs = ms::hadamard_signs::transformer_engine(), .read_signs = &memory};
      CHECK(different(transformed(x, rows, cols, read_later), transformed(x, rows, cols, given)) == 0);
      std::vector<float> y(x.size());
      ms::hadamard_into(ms::host{.threads = 2}, in, ms::matrix(y, rows, cols), read_later);
      CHECK(different(y, transformed(x, rows, cols, given)) == 0);
      CHECK(ms::hadamard_amax(ms::host{}, in, read_later) == ms::hadamard_amax(ms::sequential{}, in, given));
      guarded<ms::nvfp4> expected(rows, cols), got(rows, cols);
      ms::hadamard_quantize_into(ms::sequential{}, in, expected.view(), given);
      ms::hadamard_quantize_into(ms::host{}, in, got.view(), read_later);
      CHECK(read(got.view()) == read(expected.view()));
    }
  }
}

TEST_CASE("transformed and quantized: the codes of the transform in FP32, its amax where none is given") {
  constexpr index_t rows = 32, cols = 48;
  const std::vector<float> x = difficult(rows, cols, 6);
  const auto signs = ms::hadamard_signs::transformer_engine();
  for (const ms::axis axis : {ms::axis::row, ms::axis::col}) {
    const bool by_row = axis == ms::axis::row;
    const std::vector<float> y = transformed(x, rows, cols, {.signs = signs, .axis = axis});
    guarded<ms::nvfp4> expected(by_row ? rows : cols, by_row ? cols : rows);
    guarded<ms::nvfp4> got(by_row ? rows : cols, by_row ? cols : rows);
    ms::quantize_with(ms::sequential{}, ms::matrix(y, rows, cols), expected.view(), ms::nearest_even{}, {.axis = axis});
    // The axis of the transform's own options is not read.
    ms::hadamard_quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), got.view(), ms::nearest_even{},
                               {.signs = signs, .axis = by_row ? ms::axis::col : ms::axis::row}, {.axis = axis});
    CHECK(!got.spilled());
    CHECK(read(got.view()) == read(expected.view()));
  }
}

TEST_CASE("transformed and fake-quantized: the values of the transform's codes, in place too, from and to BF16") {
  constexpr index_t rows = 32, cols = 48;
  const std::vector<float> x = difficult(rows, cols, 8);
  std::vector<ms::value<ms::bf16>> narrow(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) narrow[i] = ms::from_float<ms::value<ms::bf16>>(x[i]);
  const ms::hadamard_options transform{.signs = ms::hadamard_signs::drawn({5, 6})};
  for (const ms::axis axis : {ms::axis::row, ms::axis::col}) {
    const ms::quantize_options options{.axis = axis, .rounding = ms::stochastic_midpoint8{3, 4}};
    const auto expected = [&](const auto& in) {
      std::vector<float> y(x.size());
      ms::hadamard_into(ms::sequential{}, in, ms::matrix(y, rows, cols), {.signs = transform.signs, .axis = axis});
      ms::fake_quantize_into<ms::nvfp4>(ms::sequential{}, ms::matrix(y, rows, cols), ms::matrix(y, rows, cols),
                                        options);
      return y;
    };
    std::vector<float> got = x;
    ms::hadamard_fake_quantize_into<ms::nvfp4>(ms::sequential{}, ms::matrix(got, rows, cols),
                                               ms::matrix(got, rows, cols), transform, options);
    CHECK(different(got, expected(ms::matrix(x, rows, cols))) == 0);
    const std::vector<float> from_narrow = expected(ms::matrix(narrow, rows, cols));
    std::vector<ms::value<ms::bf16>> out(x.size());
    ms::hadamard_fake_quantize_into<ms::nvfp4>(backwards{}, ms::matrix(narrow, rows, cols), ms::matrix(out, rows, cols),
                                               transform, options);
    int wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      wrong += out[i].code() != ms::from_float<ms::value<ms::bf16>>(from_narrow[i]).code();
    }
    CHECK(wrong == 0);
  }
  CHECK(says(message_of([&] {
               std::vector<float> out(x.size());
               ms::hadamard_fake_quantize_into<ms::nvfp4>(ms::sequential{}, ms::matrix(x, rows, cols),
                                                          ms::matrix(out, cols, rows), transform);
             }),
             "output shape: expected 32 x 48, got 48 x 32"));
}

TEST_CASE("both axes: rows as they are, columns transformed, each under its own amax and its own draws") {
  constexpr index_t rows = 32, cols = 48;
  const std::vector<float> x = difficult(rows, cols, 9);
  const auto in = ms::matrix(x, rows, cols);
  const ms::hadamard_options transform{.signs = ms::hadamard_signs::transformer_engine()};
  float amax[4] = {};
  const auto options = [&](std::uint64_t stream, float* at) {
    return ms::quantize_options{.rounding = ms::stochastic_midpoint8{1, stream}, .amax = at};
  };
  auto down = options(2, amax + 1);
  down.axis = ms::axis::col;

  guarded<ms::nvfp4> row(rows, cols), col(cols, rows), wanted_row(rows, cols), wanted_col(cols, rows);
  ms::hadamard_quantize_both_into(backwards{}, in, row.view(), col.view(), transform, options(1, amax + 2),
                                  options(2, amax + 3));
  ms::quantize_into(ms::sequential{}, in, wanted_row.view(), options(1, amax));
  ms::hadamard_quantize_into(ms::sequential{}, in, wanted_col.view(), transform, down);
  CHECK(!(row.spilled() || col.spilled()));
  CHECK(read(row.view()) == read(wanted_row.view()));
  CHECK(read(col.view()) == read(wanted_col.view()));
  CHECK((amax[0] == amax[2] && amax[1] == amax[3] && amax[0] != amax[1]));

  std::vector<float> fake_row(x.size()), fake_col(x.size()), want_row(x.size()), want_col(x.size());
  ms::hadamard_fake_quantize_both_into<ms::nvfp4>(backwards{}, in, ms::matrix(fake_row, rows, cols),
                                                  ms::matrix(fake_col, rows, cols), transform, options(1, nullptr),
                                                  options(2, nullptr));
  ms::fake_quantize_into<ms::nvfp4>(ms::sequential{}, in, ms::matrix(want_row, rows, cols), options(1, nullptr));
  ms::hadamard_fake_quantize_into<ms::nvfp4>(ms::sequential{}, in, ms::matrix(want_col, rows, cols), transform, down);
  CHECK(different(fake_row, want_row) == 0);
  CHECK(different(fake_col, want_col) == 0);

  // Whatever is wrong is said before anything is written.
  CHECK(says(message_of([&] {
               ms::hadamard_quantize_both_into(ms::sequential{}, ms::matrix(x, 24, 64),
                                               guarded<ms::nvfp4>(24, 64).view(), guarded<ms::nvfp4>(64, 24).view(),
                                               transform);
             }),
             "length of a Hadamard transform: expected a multiple of 16, got 24"));
  // Also where only the transform is: it overflows, which the input does not.
  using rejecting = ms::with_nonfinite<ms::nvfp4, ms::nonfinite::reject>;
  const std::vector<float> large(x.size(), 2e38f);
  const auto columns_refused = [&]<class S>(S, const std::vector<float>& from, const ms::quantize_options& column) {
    std::vector<float> fake(x.size(), 7.0f);
    guarded<S> first(rows, cols), second(cols, rows);
    const std::string text = message_of([&] {
      ms::hadamard_quantize_both_into(ms::sequential{}, ms::matrix(from, rows, cols), first.view(), second.view(),
                                      transform, {}, column);
    });
    CHECK(text == message_of([&] {
            ms::hadamard_quantize_both_with(ms::sequential{}, ms::matrix(from, rows, cols), first.view(), second.view(),
                                            ms::nearest_even{}, ms::toward_zero{}, transform, {}, column);
          }));
    CHECK(text == message_of([&] {
            ms::hadamard_fake_quantize_both_into<S>(ms::sequential{}, ms::matrix(from, rows, cols),
                                                    ms::matrix(fake, rows, cols), ms::matrix(fake, rows, cols),
                                                    transform, {}, column);
          }));
    CHECK((first.untouched() && second.untouched() && fake == std::vector<float>(x.size(), 7.0f)));
    return text;
  };
  const float negative = -1.0f;
  CHECK(says(columns_refused(rejecting{}, large, {}), "a NaN or an infinity at row 0, column 0"));
  CHECK(says(columns_refused(ms::nvfp4_exact{}, large, {}), "reference amax"));
  CHECK(says(columns_refused(ms::nvfp4{}, x, {.reference = &negative}), "reference amax"));
  CHECK(says(columns_refused(ms::nvfp4{}, x, {.target = 3}), "target"));
}
