// Layouts of others: scale tiles, checkpoint conventions, ggml blocks, DLPack. Each by hand, there and back, and what
// is refused.
#include <microscale/interop/checkpoint.hpp>
#include <microscale/interop/dlpack.hpp>
#include <microscale/interop/ggml_blocks.hpp>
#include <microscale/interop/scale_tiles.hpp>

#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace ms = microscale;
using namespace ms::interop;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// Numbers over eight binades, with signs, zeros and ties of E2M1.
std::vector<float> numbers(ms::index_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  std::uint32_t state = 7;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = std::ldexp(static_cast<float>(static_cast<int>(state >> 28) - 8) * 0.25f,
                   static_cast<int>(state >> 20 & 7) - 12);
  }
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class S>
std::vector<float> decoded(ms::quantized_view<const S> q) {
  std::vector<float> out(static_cast<std::size_t>(q.rows * q.cols));
  ms::dequantize_into(ms::sequential{}, q, ms::matrix(out, q.rows, q.cols));
  return out;
}

// The tensors of a matrix as a file would hold them.
template <class S>
std::vector<stored_tensor> as_file(convention c, const checkpoint_bytes& bytes, ms::index_t rows, ms::index_t cols) {
  std::vector<stored_tensor> tensors = checkpoint_tensors<S>(c, "layer", rows, cols);
  tensors[0].bytes = bytes.codes;
  tensors[1].bytes = bytes.scales;
  if (tensors.size() == 3) tensors[2].bytes = {reinterpret_cast<const std::uint8_t*>(&bytes.scalar), sizeof(float)};
  return tensors;
}

std::optional<checkpoint_matrix> found(const std::vector<stored_tensor>& tensors,
                                       amax_check check = amax_check::of_weights) {
  return find_checkpoint_matrix(tensor_index(tensors), tensors[0], check);
}

void refuses(auto&& f, const std::string& why) {
  INFO(why);
  CHECK_THROWS_MATCHES(f(), ms::error, MessageMatches(ContainsSubstring(why)));
}

}  // namespace

TEST_CASE("scale tiles: places by hand, there and back, padding zero") {
  CHECK(scale_tile_offset(scale_tile::t8x4, 9, 5, 6) == (1 * 2 + 1) * 32 + 1 * 4 + 1);
  CHECK(scale_tile_offset(scale_tile::t128x4, 33, 1, 4) == 1 * 16 + 1 * 4 + 1);
  CHECK(scale_tile_count(scale_tile::t8x4, 9, 6) == 16 * 8);
  for (const auto tile : {scale_tile::t128x4, scale_tile::t8x4}) {
    for (const auto& [rows, columns] : {std::pair<ms::index_t, ms::index_t>{1, 1}, {9, 6}, {130, 5}, {0, 3}, {7, 0}}) {
      const ms::index_t pitch = columns + 2;
      std::vector<std::uint8_t> in(static_cast<std::size_t>(rows * pitch));
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint8_t>(i % 255 + 1);
      std::vector<std::uint8_t> tiles(static_cast<std::size_t>(scale_tile_count(tile, rows, columns)), 0xEE);
      scales_to_tiles(tile, in.data(), rows, columns, pitch, tiles.data());
      CHECK(std::ranges::count(tiles, 0) == static_cast<std::ptrdiff_t>(tiles.size()) - rows * columns);
      std::vector<std::uint8_t> back(in.size(), 0);
      scales_from_tiles(tile, tiles.data(), rows, columns, back.data(), pitch);
      for (ms::index_t r = 0; r < rows; ++r) {
        for (ms::index_t c = 0; c < columns; ++c) {
          CHECK(back[static_cast<std::size_t>(r * pitch + c)] == in[static_cast<std::size_t>(r * pitch + c)]);
        }
      }
    }
  }
  std::uint8_t byte = 0;
  CHECK_THROWS_AS(scales_to_tiles(scale_tile::t8x4, &byte, -1, 1, 1, &byte), ms::error);
  CHECK_THROWS_AS(scales_from_tiles(scale_tile::t8x4, &byte, 2, 2, &byte, 1), ms::error);
}

TEST_CASE("scale tiles are what quantize writes under that layout") {
  const auto x = numbers(130 * 80);
  const auto rows = ms::quantize<ms::nvfp4>(ms::matrix(x, 130, 80));
  const auto tiled = ms::quantize<ms::nvfp4>(ms::matrix(x, 130, 80), {}, ms::scale_layout::tile_128x4);
  std::vector<std::uint8_t> out(tiled.scales().size());
  scales_to_tiles(scale_tile::t128x4, rows.scales().data(), 130, 5, 5, out.data());
  CHECK(out == tiled.scales());
}

TEST_CASE("NVFP4 in both conventions: names, bytes, direction, and the same numbers back") {
  const auto x = numbers(3 * 32);
  const auto modelopt = ms::quantize<ms::nvfp4_modelopt>(ms::matrix(x, 3, 32));
  const checkpoint_bytes m = to_checkpoint<ms::nvfp4_modelopt>(convention::modelopt, modelopt.view());
  CHECK((m.codes == modelopt.codes() && m.scales == modelopt.scales() && m.scalar == modelopt.datum()));
  const auto m_file = as_file<ms::nvfp4_modelopt>(convention::modelopt, m, 3, 32);
  CHECK((m_file[0].name == "layer.weight" && m_file[0].type == stored_type::u8 &&
         m_file[0].shape == std::vector<std::int64_t>{3, 16}));
  CHECK((m_file[1].name == "layer.weight_scale" && m_file[1].type == stored_type::e4m3 &&
         m_file[1].shape == std::vector<std::int64_t>{3, 2}));
  CHECK((m_file[2].name == "layer.weight_scale_2" && m_file[2].shape.empty()));
  const auto m_back = found(m_file);
  REQUIRE(m_back.has_value());
  CHECK(m_back->stored_as == convention::modelopt);
  CHECK(same_bits(decoded(m_back->view<ms::nvfp4_modelopt>()), ms::dequantize(modelopt)));
  CHECK_THROWS_AS(m_back->view<ms::nvfp4_compressed_tensors>(), ms::error);
  CHECK_THROWS_AS(m_back->view<ms::mxfp4>(), ms::error);

  const auto theirs = ms::quantize<ms::nvfp4_compressed_tensors>(ms::matrix(x, 3, 32));
  const checkpoint_bytes c = to_checkpoint<ms::nvfp4_compressed_tensors>(convention::compressed_tensors, theirs.view());
  CHECK(c.scalar == theirs.datum());
  const auto c_file = as_file<ms::nvfp4_compressed_tensors>(convention::compressed_tensors, c, 3, 32);
  CHECK((c_file[0].name == "layer.weight_packed" && c_file[2].name == "layer.weight_global_scale"));
  CHECK(c_file[2].shape == std::vector<std::int64_t>{1});
  const auto c_back = found(c_file);
  REQUIRE(c_back.has_value());
  CHECK(same_bits(decoded(c_back->view<ms::nvfp4_compressed_tensors>()), ms::dequantize(theirs)));

  // amax 3 by hand: a multiplier of 3/2688, a divisor of 896.
  const std::vector<float> three(16, 3.0f);
  const auto q = ms::quantize<ms::nvfp4>(ms::matrix(three, 1, 16));
  CHECK(to_checkpoint<ms::nvfp4>(convention::modelopt, q.view()).scalar == 1.0f / 896.0f);
  CHECK(to_checkpoint<ms::nvfp4>(convention::compressed_tensors, q.view()).scalar == 896.0f);
  CHECK(modelopt_multiplier<ms::nvfp4_single>(5.0f) == 1.0f);
  CHECK(compressed_tensors_divisor<ms::nvfp4_single>(5.0f) == 1.0f);
  CHECK(compressed_tensors_divisor<ms::nvfp4_modelopt>(0.25f) == 4.0f);
  CHECK(modelopt_multiplier<ms::nvfp4_compressed_tensors>(8.0f) == 0.125f);
}

TEST_CASE("the wrong convention is refused where it can be told") {
  const auto x = numbers(2 * 16);
  const auto q = ms::quantize<ms::nvfp4_modelopt>(ms::matrix(x, 2, 16));
  checkpoint_bytes bytes = to_checkpoint<ms::nvfp4_modelopt>(convention::modelopt, q.view());
  const auto with = [&](auto change, amax_check check = amax_check::of_weights) {
    return [=, &bytes] {
      auto file = as_file<ms::nvfp4_modelopt>(convention::modelopt, bytes, 2, 16);
      change(file);
      return found(file, check);
    };
  };
  const auto nothing = [](auto&) {};
  CHECK(with(nothing)().has_value());
  const float right = bytes.scalar;
  bytes.scalar = 1.0f / right;
  refuses(with(nothing), "matrix 'layer': weight_scale_2");
  refuses(with(nothing), "looks like compressed-tensors' divisor");
  CHECK(with(nothing, amax_check::any_amax)().has_value());
  for (const float bad : {0.0f, -right, INFINITY, NAN}) {
    bytes.scalar = bad;
    refuses(with(nothing, amax_check::any_amax), "a positive finite number");
  }
  bytes.scalar = right;
  refuses(with([](auto& f) { f[0].name = "layer.weight_packed"; }),
          "weight_packed (compressed-tensors) with weight_scale_2");
  refuses(with([](auto& f) { f[2].name = "layer.weight_global_scale"; }), "without weight_packed");
  refuses(with([](auto& f) { f[0].name = "layer.weight_packed", f[2].name = "layer.weight_global_scale"; }),
          "looks like ModelOpt's multiplier");
  refuses(with([](auto& f) { f.push_back(f[2]), f[3].name = "layer.weight_global_scale"; }), "has both");
  refuses(with([](auto& f) { f[1].shape = {1, 2}; }), "expected 2 x 1 scales");
  refuses(with([](auto& f) { f[1].type = stored_type::bf16; }), "instead of E4M3");
  refuses(with([](auto& f) { f[2].type = stored_type::i32; }), "expected one F32");
  CHECK(!with([](auto& f) { f[1].name = "other"; })().has_value());
  CHECK(!with([](auto& f) { f[0].type = stored_type::f32; })().has_value());
  // Empty, of as many rows as a file can claim.
  CHECK(!with([](auto& f) { f[0].shape = f[1].shape = {std::int64_t{1} << 40, 0}; })().has_value());
  bytes.scales[1] = 0x80;
  refuses(with(nothing), "a negative scale");
  bytes.scales[1] = 0x7F;

  auto poisoned = x;
  poisoned[3] = NAN;
  const auto nan = ms::quantize<ms::nvfp4_exact>(ms::matrix(poisoned, 2, 16));
  refuses([&] { return to_checkpoint<ms::nvfp4_exact>(convention::modelopt, nan.view()); },
          "expected a number, got NaN");
  refuses([&] { return to_checkpoint<ms::nvfp4_modelopt>(convention::ocp_mx, q.view()); },
          "modelopt or compressed-tensors");
  const auto rows = ms::quantize<ms::nvfp4_modelopt>(ms::matrix(x, 2, 16), {}, ms::scale_layout::linear, {1, 0});
  refuses([&] { return to_checkpoint<ms::nvfp4_modelopt>(convention::modelopt, rows.view()); },
          "one for the whole matrix");
  refuses([&] { return checkpoint_tensors<ms::nvfp4_modelopt>(convention::modelopt, "a", 1, 24); }, "a multiple of 16");
}

TEST_CASE("square blocks become rows of scales, tiles become rows") {
  const auto x = numbers(20 * 32);
  const auto square = ms::quantize<ms::nvfp4_2d>(ms::matrix(x, 20, 32), {}, ms::scale_layout::tile_128x4);
  const checkpoint_bytes bytes = to_checkpoint<ms::nvfp4_2d>(convention::modelopt, square.view());
  REQUIRE(bytes.scales.size() == 40);
  for (ms::index_t r = 0; r < 20; ++r) {
    for (ms::index_t k = 0; k < 32; k += 16) {
      CHECK(bytes.scales[static_cast<std::size_t>(r * 2 + k / 16)] == square.view().scale(r, k));
    }
  }
}

TEMPLATE_TEST_CASE("OCP MX tensors, there and back", "", ms::mxfp4, ms::mxfp6_e2m3, ms::mxfp6_e3m2, ms::mxfp8_e4m3,
                   ms::mxfp8_e5m2) {
  const auto x = numbers(3 * 64);
  const auto q = ms::quantize<TestType>(ms::matrix(x, 3, 64));
  const checkpoint_bytes bytes = to_checkpoint<TestType>(convention::ocp_mx, q.view());
  CHECK((bytes.codes == q.codes() && bytes.scales == q.scales()));
  const auto file = as_file<TestType>(convention::ocp_mx, bytes, 3, 64);
  REQUIRE(file.size() == 2);
  const auto back = found(file);
  REQUIRE(back.has_value());
  CHECK(back->stored_as == convention::ocp_mx);
  CHECK(same_bits(decoded(back->template view<TestType>()), ms::dequantize(q)));
  const auto fits = [&]<class S>(S) {
    try {
      return back->template view<S>().rows == 3;
    } catch (const ms::error&) {
      return false;
    }
  };
  CHECK(fits(ms::mxfp4{}) == std::is_same_v<TestType, ms::mxfp4>);
  CHECK(fits(ms::mxfp6_e2m3{}) == std::is_same_v<TestType, ms::mxfp6_e2m3>);
  CHECK(fits(ms::mxfp6_e3m2{}) == std::is_same_v<TestType, ms::mxfp6_e3m2>);
  CHECK(fits(ms::mxfp8_e4m3{}) == std::is_same_v<TestType, ms::mxfp8_e4m3>);
  CHECK(fits(ms::mxfp8_e5m2{}) == std::is_same_v<TestType, ms::mxfp8_e5m2>);
}

TEST_CASE("ggml blocks by hand: nibble j with j + half") {
  // One scale, elements 0 .5 1 1.5 2 3 4 6 and their negatives, twice: codes 0 ... 15 0 ... 15.
  std::vector<float> x;
  for (int i = 0; i < 32; ++i) x.push_back(ms::e2m1::decode(static_cast<std::uint8_t>(i % 16)));
  const auto q = ms::quantize<ms::mxfp4>(ms::matrix(x, 1, 32));
  std::vector<std::uint8_t> out(17);
  to_ggml_blocks<ms::mxfp4>(q.view(), out.data());
  CHECK(out[0] == 127);
  for (unsigned j = 0; j < 16; ++j) CHECK(out[1 + j] == (j | j << 4));

  std::vector<float> y;
  for (int i = 0; i < 64; ++i)
    y.push_back(ms::e2m1::decode(static_cast<std::uint8_t>(i % 16)) * std::ldexp(1.0f, i / 16));
  const auto n = ms::quantize<ms::nvfp4_single>(ms::matrix(y, 1, 64));
  std::vector<std::uint8_t> blocks(36);
  to_ggml_blocks<ms::nvfp4_single>(n.view(), blocks.data());
  for (unsigned i = 0; i < 4; ++i) {
    CHECK(blocks[i] == ms::ue4m3::encode(std::ldexp(1.0f, static_cast<int>(i))));
    for (unsigned j = 0; j < 8; ++j) CHECK(blocks[4 + 8 * i + j] == (j | (j + 8) << 4));
  }
}

TEMPLATE_TEST_CASE("ggml blocks, there and back", "", ms::mxfp4, ms::mxfp4_even, ms::nvfp4_single, ms::nvfp4_modelopt) {
  const auto x = numbers(5 * 128);
  const auto q = ms::quantize<TestType>(ms::matrix(x, 5, 128));
  std::vector<std::uint8_t> blocks(static_cast<std::size_t>(ggml_bytes<TestType>(5, 128)));
  to_ggml_blocks<TestType>(q.view(), blocks.data());
  const auto back = from_ggml_blocks<TestType>(blocks, 5, 128, q.datum());
  CHECK((back.codes() == q.codes() && back.scales() == q.scales() && back.datum() == q.datum()));
}

TEST_CASE("ggml blocks: what either side has not is refused") {
  const std::vector<float> x(48, NAN);
  const auto nan = ms::quantize<ms::mxfp4>(ms::matrix(x.data(), 1, 32));
  std::vector<std::uint8_t> out(64);
  refuses([&] { return to_ggml_blocks<ms::mxfp4>(nan.view(), out.data()), 0; }, "a number, got NaN");
  const auto ragged = ms::quantize<ms::nvfp4_single>(ms::matrix(x.data(), 1, 48));
  refuses([&] { return to_ggml_blocks<ms::nvfp4_single>(ragged.view(), out.data()), 0; }, "a multiple of 64");
  std::vector<std::uint8_t> in(17, 0xFF);
  refuses([&] { return from_ggml_blocks<ms::mxfp4>(in, 1, 32); }, "a number of the format");
  refuses([&] { return from_ggml_blocks<ms::mxfp4>(in, 2, 32); }, "34 bytes");
  refuses([&] { return from_ggml_blocks<ms::mxfp4>(in, ms::index_t{1} << 49, 32); }, "bytes, got 17");
  refuses([&] { return from_ggml_blocks<ms::mxfp4>(in, ms::index_t{1} << 62, 32); }, "at most 2^55 elements");
  std::vector<std::uint8_t> blocks(36, 0x12);
  blocks[0] = 0x7F;  // a zero to ggml
  CHECK(from_ggml_blocks<ms::nvfp4_single>(blocks, 1, 64).scales()[0] == 0);
  blocks[3] = 0x80;
  refuses([&] { return from_ggml_blocks<ms::nvfp4_single>(blocks, 1, 64); }, "a number of the format");
}

TEST_CASE("DLPack: views in and out share memory") {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  auto* m = dlpack::export_matrix(ms::matrix(owner->data(), 2, 3, 4), owner);
  CHECK(owner.use_count() == 2);
  CHECK((m->version.major == 1 && m->flags == 0 && m->dl_tensor.dtype.bits == 32));
  const auto view = dlpack::import_matrix<float>(*m);
  CHECK((view.data == owner->data() && view.rows == 2 && view.cols == 3 && view.pitch == 4));
  m->version.major = 2;
  refuses([&] { return dlpack::import_matrix<float>(*m); }, "major version 1");
  m->deleter(m);
  CHECK(owner.use_count() == 1);

  const ms::matrix_view<const float> constant = ms::matrix(owner->data(), 2, 4);
  auto* read_only = dlpack::export_matrix(constant, owner);
  CHECK(dlpack::import_matrix<const float>(*read_only).rows == 2);
  refuses([&] { return dlpack::import_matrix<float>(*read_only); }, "memory that may be written");
  read_only->deleter(read_only);
  auto* old = dlpack::export_matrix_unversioned(ms::matrix(owner->data(), 2, 4), owner);
  CHECK(dlpack::import_matrix<float>(old->dl_tensor).pitch == 4);
  old->deleter(old);
  CHECK(owner.use_count() == 1);
}

TEST_CASE("DLPack: what is no matrix of this type is refused") {
  alignas(8) float memory[8] = {};
  std::int64_t shape[3] = {2, 3, 1}, strides[2] = {4, 1};
  const dlpack::tensor good = {memory, {dlpack::device_cpu, 0}, 2, {dlpack::code_float, 32, 1}, shape, strides, 0};
  const auto with = [&](auto change) {
    return [=] {
      dlpack::tensor t = good;
      change(t);
      return dlpack::import_matrix<float>(t);
    };
  };
  CHECK(with([](auto&) {})().pitch == 4);
  CHECK(with([](auto& t) { t.strides = nullptr; })().pitch == 3);
  CHECK(with([](auto& t) { t.ndim = 1, t.strides = nullptr; })().cols == 2);
  CHECK(with([](auto& t) { t.device.type = dlpack::device_cuda_host; })().rows == 2);
  CHECK(with([](auto& t) { t.byte_offset = 4; })().data == memory + 1);
  refuses(with([](auto& t) { t.byte_offset = 2; }), "aligned");
  refuses(with([](auto& t) { t.device.type = dlpack::device_cuda; }), "memory of device type 1");
  refuses(with([](auto& t) { t.dtype.code = dlpack::code_int; }), "type code 2");
  refuses(with([](auto& t) { t.dtype.lanes = 2; }), "2 lanes");
  refuses(with([](auto& t) { t.ndim = 3; }), "one or two dimensions");
  refuses(with([](auto& t) { t.ndim = 0; }), "one or two dimensions");
  refuses(with([](auto& t) { t.data = nullptr; }), "null");
  std::int64_t turned[2] = {1, 2}, overlapping[2] = {2, 1}, backwards[2] = {-4, 1}, huge[2] = {1ll << 62, 4},
               negative[2] = {-1, 3};
  refuses(with([&](auto& t) { t.strides = turned; }), "contiguous columns, got a stride of 2");
  refuses(with([&](auto& t) { t.strides = overlapping; }), "do not overlap");
  refuses(with([&](auto& t) { t.strides = backwards; }), "do not overlap");
  refuses(with([&](auto& t) { t.shape = huge; }), "fits memory");
  refuses(with([&](auto& t) { t.shape = negative; }), "fits memory");
  std::int64_t none[2] = {0, 3};
  CHECK(with([&](auto& t) { t.shape = none, t.data = nullptr; })().empty());
}
