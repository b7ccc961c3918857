// Every way to call quantize_into and its relatives wrongly: an ms::error that says what was expected and what came,
// and memory that was not touched.
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <limits>
#include <microscale/block/schemes.hpp>
#include <microscale/tensor/quantize.hpp>
#include <type_traits>
#include <utility>

#include "support/tensors.hpp"

namespace ms = microscale;
using namespace tensors;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
using rejecting = ms::with_nonfinite<ms::nvfp4, ms::nonfinite::reject>;

// A call that is right until something about it is changed.
template <class S>
struct call {
  std::vector<float> x = difficult(32, 40, 1);
  guarded<S> memory{32, 40};
  ms::matrix_view<const float> in = ms::matrix(static_cast<const float*>(x.data()), 32, 40);
  ms::quantized_view<S> out = memory.view();
  ms::quantize_options options;

  std::string message() {
    const std::string text =
        message_of([&] { ms::quantize_with(ms::sequential{}, in, out, ms::nearest_even{}, options); });
    CHECK((text.empty() || memory.untouched()));
    return text;
  }
};

template <class S = ms::nvfp4>
std::string refused(const std::type_identity_t<std::function<void(call<S>&)>>& change) {
  call<S> c;
  change(c);
  const std::string text = c.message();
  CHECK(says(text, "microscale: "));
  CHECK(says(text, ": expected "));
  CHECK(says(text, ", got "));
  return text;
}

}  // namespace

TEST_CASE("the call itself is right") {
  call<ms::nvfp4> c;
  CHECK(c.message() == "");
  CHECK(!c.memory.untouched());
}

TEST_CASE("shapes, pitches and pointers of the input") {
  CHECK(says(refused([](auto& c) { c.in.rows = -1; }), "input: expected a shape that is not negative, got -1 x 40"));
  CHECK(says(refused([](auto& c) { c.in.cols = -4; }), "32 x -4"));
  CHECK(says(refused([](auto& c) { c.in.pitch = 39; }), "input: expected a pitch of at least 40, got 39"));
  CHECK(says(refused([](auto& c) { c.in.data = nullptr; }), "input: expected memory for 32 x 40, got a null pointer"));
}

TEST_CASE("shapes, pitches and pointers of the output") {
  CHECK(says(refused([](auto& c) { c.out.rows = 31; }), "quantized shape: expected 32 x 40, got 31 x 40"));
  CHECK(says(refused([](auto& c) { c.out.rows = -1; }), "output: expected a shape that is not negative"));
  CHECK(says(refused([](auto& c) { c.out.cols = -1; }), "output: expected a shape that is not negative, got 32 x -1"));
  CHECK(says(refused([](auto& c) { c.options.axis = ms::axis::col; }), "expected 40 x 32, got 32 x 40"));
  CHECK(says(refused([](auto& c) { c.out.codes = nullptr; }), "memory for codes and scales"));
  CHECK(says(refused([](auto& c) { c.out.scales = nullptr; }), "memory for codes and scales"));
  CHECK(says(refused([](auto& c) { c.out.datum = nullptr; }), "memory for the tensor scale's datum"));
  CHECK(says(refused([](auto& c) { c.out.code_pitch = 19; }), "a code pitch of at least 20 bytes, got 19"));
  CHECK(says(refused([](auto& c) { c.out.scale_pitch = 2; }), "a scale pitch of at least 3, got 2"));
  CHECK(says(refused([](auto& c) { c.out.tile = {-1, 0}; }), "tensor-scale tiles of whole blocks, got -1 x 0"));
  CHECK(says(refused([](auto& c) { c.out.tile = {0, -16}; }), "tensor-scale tiles of whole blocks, got 0 x -16"));
  CHECK(says(refused([](auto& c) { c.out.tile = {1, 24}; }), "tensor-scale tiles of whole blocks, got 1 x 24"));
  CHECK(says(refused<ms::nvfp4_2d>([](auto& c) { c.out.tile = {1, 0}; }), "whole blocks, got 1 x 0"));
}

TEST_CASE("one row needs no pitch, and the tile layout none for its scales") {
  call<ms::nvfp4> c;
  c.in.rows = c.out.rows = 1;
  c.in.pitch = c.out.code_pitch = c.out.scale_pitch = 0;
  CHECK(c.message() == "");
  call<ms::mxfp4> m;
  guarded<ms::mxfp4> tiles(32, 40, 0, ms::scale_layout::tile_128x4);
  m.out = tiles.view();
  m.out.scale_pitch = 0;
  m.out.datum = nullptr;  // MX stores none
  CHECK(m.message() == "");
}

TEST_CASE("references that are no amax") {
  for (const float bad : {not_a_number, -1.0f, -infinity}) {
    CHECK(says(refused([&](auto& c) { c.options.reference = &bad; }), "reference amax"));
  }
  CHECK(says(refused<ms::ue5m3_fp4>([](auto& c) { c.options.reference = &infinity; }), "reference amax"));
  CHECK(says(refused<ms::nvfp4_torchao>([](auto& c) { c.options.reference = &infinity; }), "reference amax"));
  CHECK(says(refused<ms::nvfp4_exact>([](auto& c) { c.x[70] = -infinity; }), "reference amax"));  // its own
  CHECK(says(refused<ms::nvfp4_modelopt>([](auto& c) { c.x[1279] = infinity; }), "reference amax"));
}

TEST_CASE("a bad reference among several leaves the others unwritten too") {
  const std::vector<float> references = [] {
    std::vector<float> r(32, 1.0f);
    r[31] = not_a_number;
    return r;
  }();
  CHECK(says(refused<ms::ue5m3_fp4>([&](auto& c) {
               c.memory = guarded<ms::ue5m3_fp4>(32, 40, 0, ms::scale_layout::linear, {1, 0});
               c.out = c.memory.view();
               c.options.reference = references.data();
             }),
             "reference amax"));
  CHECK(says(refused<ms::ue5m3_fp4>([&](auto& c) {
               c.memory = guarded<ms::ue5m3_fp4>(32, 40, 0, ms::scale_layout::linear, {1, 0});
               c.out = c.memory.view();
               c.x[31 * 40 + 5] = infinity;
             }),
             "reference amax"));
}

TEST_CASE("targets") {
  CHECK(says(refused([](auto& c) { c.options.target = 256; }),
             "target: expected 0 or 448, which an amax that is stored decodes with, got 256"));
  CHECK(says(refused<ms::mxfp4>([](auto& c) { c.options.target = 2; }),
             "target: expected 0, there being no tensor scale, got 2"));
  CHECK(says(refused<ms::ue5m3_fp4>([](auto& c) { c.options.target = -1; }), "target: expected 1 to 2^20, got -1"));
  CHECK(says(refused<ms::ue5m3_fp4>([](auto& c) { c.options.target = (1 << 20) + 1; }), "target"));
}

TEST_CASE("reject names the first NaN or infinity, by its place in the input") {
  CHECK(says(refused<rejecting>([](auto& c) { c.x[3 * 40 + 17] = not_a_number, c.x[9 * 40] = infinity; }),
             "a NaN or an infinity at row 3, column 17"));
  CHECK(says(refused<rejecting>([](auto& c) { c.x[31 * 40 + 39] = -infinity; }), "row 31, column 39"));
  CHECK(says(refused<rejecting>([](auto& c) {
               c.memory = guarded<rejecting>(40, 32);
               c.out = c.memory.view();
               c.options.axis = ms::axis::col;
               c.x[2 * 40 + 38] = not_a_number;
             }),
             "row 2, column 38"));
  call<rejecting> fine;
  CHECK(fine.message() == "");
}

TEST_CASE("dequantize_into refuses what does not fit") {
  guarded<ms::nvfp4> q(32, 40);
  const std::vector<float> x = difficult(32, 40, 2);
  ms::quantize_with(ms::sequential{}, ms::matrix(x, 32, 40), q.view(), ms::nearest_even{});
  std::vector<float> y(32 * 40, 7.0f);
  const auto refused_with = [&](auto in, ms::matrix_view<float> out, ms::axis along = ms::axis::row) {
    const std::string text = message_of([&] { ms::dequantize_into(ms::sequential{}, in, out, along); });
    CHECK(y == std::vector<float>(32 * 40, 7.0f));
    return text;
  };
  auto null_codes = q.view(), null_datum = q.view();
  null_codes.codes = nullptr;
  null_datum.datum = nullptr;
  CHECK(says(refused_with(q.view(), ms::matrix(y, 40, 32)), "quantized shape: expected 40 x 32, got 32 x 40"));
  CHECK(says(refused_with(q.view(), ms::matrix(y, 32, 40), ms::axis::col), "expected 40 x 32, got 32 x 40"));
  CHECK(says(refused_with(null_codes, ms::matrix(y, 32, 40)), "codes and scales"));
  CHECK(says(refused_with(null_datum, ms::matrix(y, 32, 40)), "datum"));
  CHECK(says(refused_with(q.view(), ms::matrix<float>(nullptr, 32, 40)), "output: expected memory"));
  CHECK(says(refused_with(q.view(), ms::matrix(y.data(), 32, 40, 20)), "a pitch of at least 40"));
  CHECK(refused_with(q.view(), ms::matrix<float>(nullptr, 0, 40)) != "");
}

TEST_CASE("fake_quantize_into refuses what does not fit") {
  std::vector<float> x = difficult(8, 40, 3), y(8 * 40, 7.0f);
  const auto refused_with = [&]<class S>(S, ms::matrix_view<float> out, const ms::quantize_options& options = {}) {
    const std::string text =
        message_of([&] { ms::fake_quantize_into<S>(ms::sequential{}, ms::matrix(x, 8, 40), out, options); });
    CHECK(y == std::vector<float>(8 * 40, 7.0f));
    return text;
  };
  CHECK(says(refused_with(ms::nvfp4{}, ms::matrix(y, 40, 8)), "output shape: expected 8 x 40, got 40 x 8"));
  CHECK(says(refused_with(ms::nvfp4{}, ms::matrix(y, 8, 40), {.reference = &not_a_number}), "reference amax"));
  CHECK(says(refused_with(ms::nvfp4{}, ms::matrix(y, 8, 40), {.target = 3}), "target"));
  x[50] = infinity;
  CHECK(says(refused_with(rejecting{}, ms::matrix(y, 8, 40)), "row 1, column 10"));
  CHECK(says(refused_with(ms::ue5m3_fp4{}, ms::matrix(y, 8, 40)), "reference amax"));
}

TEST_CASE("along both axes, what is wrong with the columns is said before the rows are written") {
  const auto refused_with = [&]<class S>(S, ms::quantize_options col, float element = 1.0f,
                                         const float* row_reference = nullptr) {
    std::vector<float> x = difficult(32, 48, 4), rows(x.size(), 7.0f), cols(x.size(), 7.0f);
    x[33] = element;
    const auto in = ms::matrix(std::as_const(x), 32, 48);
    const ms::quantize_options row{.reference = row_reference};
    guarded<S> row_memory(32, 48), col_memory(48, 32);
    const std::string packed = message_of(
        [&] { ms::quantize_both_into(ms::sequential{}, in, row_memory.view(), col_memory.view(), row, col); });
    CHECK(packed == message_of([&] {
            ms::quantize_both_with(ms::sequential{}, in, row_memory.view(), col_memory.view(), ms::nearest_even{},
                                   ms::toward_zero{}, row, col);
          }));
    CHECK(packed == message_of([&] {
            ms::fake_quantize_both_into<S>(ms::sequential{}, in, ms::matrix(rows, 32, 48), ms::matrix(cols, 32, 48),
                                           row, col);
          }));
    CHECK((row_memory.untouched() && col_memory.untouched()));
    CHECK((rows == std::vector<float>(x.size(), 7.0f) && cols == rows));
    return packed;
  };
  const float one = 1.0f;
  CHECK(says(refused_with(ms::nvfp4{}, {.target = 256}), "target"));
  CHECK(says(refused_with(ms::nvfp4{}, {.reference = &not_a_number}), "reference amax"));
  CHECK(says(refused_with(ms::nvfp4_exact{}, {}, infinity, &one), "reference amax"));  // the columns' own
  CHECK(says(refused_with(rejecting{}, {}, infinity, &one), "row 0, column 33"));
}

TEST_CASE("along both axes, the reference of the columns may be the amax that the rows give") {
  const std::vector<float> x = difficult(32, 48, 4);
  float amax = not_a_number;
  guarded<ms::nvfp4> rows(32, 48), cols(48, 32), wanted(48, 32);
  ms::quantize_both_into(ms::sequential{}, ms::matrix(x, 32, 48), rows.view(), cols.view(), {.amax = &amax},
                         {.reference = &amax});
  ms::quantize_into(ms::sequential{}, ms::matrix(x, 32, 48), wanted.view(), {.axis = ms::axis::col});
  CHECK(read(cols.view()) == read(wanted.view()));
}
