// The file readers: files made by their formats' own packages (the corpora of the fuzz tests), what a writer writes,
// and what must be refused, each with its reason.
#include <microscale/interop/tensor_file.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ms = microscale;
using namespace ms::interop;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

const std::filesystem::path corpus = MICROSCALE_CORPUS;

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::vector<std::uint8_t> safetensors(std::string_view header, std::size_t data) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  file += header;
  file.append(data, '\x3f');
  return bytes_of(file);
}

std::vector<std::uint8_t> npy(std::string header, std::size_t data) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size());
  file += '\0';
  file += header;
  file.append(data, '\0');
  return bytes_of(file);
}

// Little-endian pieces of a GGUF file.
struct gguf_bytes {
  std::string text = std::string("GGUF\x03\0\0\0", 8);
  template <class T>
  gguf_bytes& n(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
    return *this;
  }
  gguf_bytes& s(std::string_view string) {
    n(std::uint64_t{string.size()});
    text += string;
    return *this;
  }
  gguf_bytes& tensor(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    s(name).n(static_cast<std::uint32_t>(dims.size()));
    for (const auto d : dims) n(d);
    return n(type).n(offset);
  }
  std::vector<std::uint8_t> file(std::size_t data) const {
    std::string whole = text;
    whole.resize((whole.size() + 31) / 32 * 32);
    whole.append(data, '\0');
    return bytes_of(whole);
  }
};

gguf_bytes gguf(std::uint64_t tensors, std::uint64_t values) {
  gguf_bytes g;
  g.n(tensors).n(values);
  return g;
}

void refuses(auto&& read, const std::vector<std::uint8_t>& file, const std::string& why) {
  INFO(why);
  CHECK_THROWS_MATCHES(read(file), ms::error, MessageMatches(ContainsSubstring(why)));
}

void refuses_safetensors(std::string_view header, std::size_t data, const std::string& why) {
  INFO(header);
  refuses([](const auto& f) { return read_safetensors(f); }, safetensors(header, data), why);
}

void refuses_json(std::string_view text, const std::string& why) {
  INFO(text);
  const auto read = [&] {
    json_reader json(text, "text");
    json.skip();
    json.end();
  };
  CHECK_THROWS_MATCHES(read(), ms::error, MessageMatches(ContainsSubstring(why)));
}

struct scratch_folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("microscale_files_test_" + std::to_string(::getpid()));
  scratch_folder() { std::filesystem::create_directories(path); }
  ~scratch_folder() { std::filesystem::remove_all(path); }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
};

}  // namespace

TEST_CASE("safetensors: a file is read as it was written") {
  const std::vector<std::uint8_t> bytes = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0x21, 0x43};
  const std::vector<stored_tensor> tensors = {{"a\"\n", stored_type::f32, {2, 1}, std::span(bytes).first(8)},
                                              {"b", stored_type::e2m1, {2, 2}, std::span(bytes).subspan(8)}};
  std::string file = safetensors_header(tensors, {{"k", "\\v\x01é"}});
  CHECK(file.size() % 8 == 0);
  file.append(bytes.begin(), bytes.end());
  const auto whole = bytes_of(file);
  const safetensors_file read = read_safetensors(whole);
  REQUIRE(read.tensors.size() == 2);
  CHECK(read.metadata == std::map<std::string, std::string>{{"k", "\\v\x01é"}});
  CHECK(read.tensors[0].name == "a\"\n");
  CHECK(read.tensors[0].shape == std::vector<std::int64_t>{2, 1});
  float x[4] = {};
  load_floats(read.tensors[0], 0, 2, x);
  CHECK((x[0] == 1.0f && x[1] == -2.0f));
  load_floats(read.tensors[1], 0, 4, x);  // codes 1 2 3 4
  CHECK((x[0] == 0.5f && x[1] == 1.0f && x[2] == 1.5f && x[3] == 2.0f));
  CHECK_THROWS_AS(load_floats(read.tensors[1], 1, 4, x), ms::error);
  CHECK_THROWS_AS(load_floats(read.tensors[1], -1, 1, x), ms::error);
}

TEST_CASE("safetensors: what is malformed is refused") {
  const auto read = [](const auto& f) { return read_safetensors(f); };
  refuses(read, {}, "shorter than its header length");
  refuses(read, bytes_of(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), "more than 100,000,000");
  refuses(read, bytes_of(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "ends within its header");
  refuses(read, bytes_of(std::string("\0\0\0\0\0\0\0\0", 8)), "does not begin with '{'");
  refuses_safetensors(" {}", 0, "does not begin with '{'");
  refuses_safetensors("{}", 1, "belong to no tensor");
  refuses_safetensors("{}x", 0, "something follows");
  refuses_safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8,
                      "8 bytes do not hold F32 of shape [1]");
  refuses_safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "outside the file");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "outside the file");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "leaves a gap");
  refuses_safetensors(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
      "overlaps another");
  refuses_safetensors(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
      "'a' is given twice");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "not negative");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "whole number");
  refuses_safetensors(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", 1, "unknown dtype 'Q4'");
  refuses_safetensors(R"({"a":{"dtype":"MXFP4","shape":[32],"data_offsets":[0,17]}})", 17, "unknown dtype");
  refuses_safetensors(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "do not hold F4");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "needs dtype, shape and two data_offsets");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, "repeated key");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[],"data_offsets":[0,1]}})", 1, "repeated key");
  // Products that overflow, also where a zero hides it.
  refuses_safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
                      "do not hold");
  refuses_safetensors(
      R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})", 0,
      "do not hold");
  refuses_safetensors(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1, "too large");
}

TEST_CASE("text from a file is shown without what a terminal acts on") {
  CHECK(printable("a\x1b[31m\x7f\n") == "a?[31m??");
  CHECK(printable("\xC2\x9B"
                  "2J\xC2\x80 \xC2\xA0\xC3\x9B") == "?2J? \xC2\xA0\xC3\x9B");  // U+00A0 and U+00DB stay
  CHECK(printable("cut: \xC2") == "cut: \xC2");
}

TEST_CASE("json: what RFC 8259 does not allow is refused") {
  for (const char* text : {"",
                           "[",
                           "]",
                           "{",
                           "[1,]",
                           "{\"a\":}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "[1 2]",
                           "01",
                           "1.",
                           "1e",
                           "-",
                           "+1",
                           ".5",
                           "nul",
                           "truefalse",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"a",
                           "\"a\\",
                           "\"\\u12",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xf5\x80\x80\x80\"",
                           "\"\xe2\x82\"",
                           "1 2"}) {
    refuses_json(text, "text: ");
  }
  refuses_json(std::string(100'000, '['), "nested too deeply");
  for (const char* text :
       {"0", "-0", "1.5e-7", "[]", "{}", " [ 1 , {\"a\" : [null,true,false,\"\\u00e9\"]} ] ", "\"\"", "1E+2"}) {
    json_reader json(text, "text");
    INFO(text);
    CHECK_NOTHROW(json.skip());
    CHECK_NOTHROW(json.end());
  }
  json_reader emoji(R"("\ud83d\ude00\u00e9\n/\/")", "text");
  CHECK(emoji.string() == "\xf0\x9f\x98\x80\xc3\xa9\n//");
  const std::string hard = "a\"\\\n\x1f\x7f é";
  const std::string written = json_string(hard);
  json_reader again(written, "text");
  CHECK(again.string() == hard);
}

TEST_CASE("npy: numpy's own files, the writer's, and what is refused") {
  const tensor_file file(corpus / "npy" / "float.npy");
  REQUIRE(file.tensors().size() == 1);
  const stored_tensor& t = file.tensors()[0];
  CHECK((t.name == "float" && t.type == stored_type::f32 && t.shape == std::vector<std::int64_t>{2, 3}));
  float x[6] = {};
  load_floats(t, 0, 6, x);
  for (int i = 0; i < 6; ++i) CHECK(x[i] == static_cast<float>(i));
  CHECK(load_floats(t) == std::vector<float>(x, x + 6));
  CHECK(&file.at("float") == &t);
  CHECK_THROWS_MATCHES(file.at("flaot"), ms::error, MessageMatches(ContainsSubstring("float.npy: no tensor 'flaot'")));
  CHECK(tensor_file(corpus / "npy" / "scalar.npy").tensors()[0].shape.empty());
  CHECK(tensor_file(corpus / "npy" / "bytes.npy").tensors()[0].elements() == 0);
  CHECK_THROWS_MATCHES(tensor_file(corpus / "npy" / "fortran.npy"), ms::error,
                       MessageMatches(ContainsSubstring("column-major")));

  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {3}, {2, 3}, {0, 5}}) {
    stored_tensor array{"", stored_type::f16, shape, {}};
    auto bytes = bytes_of(npy_header_bytes(array));
    CHECK(bytes.size() % 64 == 0);
    bytes.resize(bytes.size() + static_cast<std::size_t>(2 * array.elements()));
    CHECK(read_npy(bytes).shape == shape);
  }
  CHECK_THROWS_AS(npy_header_bytes({"", stored_type::bf16, {1}, {}}), ms::error);

  const auto read = [](const auto& f) { return read_npy(f); };
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
  CHECK_NOTHROW(read_npy(npy(good, 4)));
  refuses(read, bytes_of("\x93NUMPX....."), "not a .npy file");
  refuses(read, bytes_of(std::string("\x93NUMPY\x04\0\0\0\0\0", 12)), "version 4");
  refuses(read, bytes_of(std::string("\x93NUMPY\x01\0\xff\xff{}", 12)), "ends within its header");
  refuses(read, bytes_of(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12)), "ends within its header");
  refuses(read, npy(good, 3), "3 bytes do not hold");
  refuses(read, npy(good, 5), "5 bytes do not hold");
  refuses(read, npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 4), "big-endian");
  refuses(read, npy("{'descr': '<V2', 'fortran_order': False, 'shape': (1,)}", 2), "do not say what they are");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4), "neither True nor False");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': False}", 4), "without descr");
  refuses(read, npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4), "repeated key");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", 4), "no tuple");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 4), "too large");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 0), "do not hold");
  refuses(read, npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", 4), "something follows");
  refuses(read, npy("{'descr': '<f4", 4), "does not end");
}

TEST_CASE("gguf: the size of every block that a file may hold") {
  // Elements of a block, and its bytes by its parts: scales and minima, high bits, codes, sums.
  struct block {
    std::uint32_t number;
    std::uint64_t elements, bytes;
  };
  const block blocks[] = {
      {0, 1, 4},
      {1, 1, 2},
      {2, 32, 2 + 16},
      {3, 32, 2 + 2 + 16},
      {6, 32, 2 + 4 + 16},
      {7, 32, 2 + 2 + 4 + 16},
      {8, 32, 2 + 32},
      {9, 32, 4 + 4 + 32},
      {10, 256, 2 + 2 + 256 / 16 + 256 / 4},
      {11, 256, 2 + 12 + 256 / 8 + 256 / 4},
      {12, 256, 2 + 2 + 12 + 256 / 2},
      {13, 256, 2 + 2 + 12 + 256 / 8 + 256 / 2},
      {14, 256, 2 + 256 / 16 + 256 / 4 + 256 / 2},
      {15, 256, 4 + 256 + 256 / 16 * 2},
      {16, 256, 2 + 256 / 4},
      {17, 256, 2 + 256 / 4 + 256 / 32},
      {18, 256, 2 + 256 / 4 + 256 / 8},
      {19, 256, 2 + 256 / 8 + 256 / 16},
      {20, 32, 2 + 16},
      {21, 256, 2 + 256 / 4 + 256 / 32 + 256 / 8 + 4},
      {22, 256, 2 + 256 / 4 + 256 / 16},
      {23, 256, 2 + 2 + 256 / 64 + 256 / 2},
      {24, 1, 1},
      {25, 1, 2},
      {26, 1, 4},
      {27, 1, 8},
      {28, 1, 8},
      {29, 256, 256 / 8 + 256 / 16 + 256 / 32},
      {30, 1, 2},
      {34, 256, 2 + 4 * 13},
      {35, 256, 2 + 256 / 4},
      {39, 32, 1 + 16},
      {40, 64, 4 + 32},
      {41, 128, 2 + 16},
  };
  std::size_t known = 0;
  for (std::uint32_t number = 0; number < 64; ++number) {
    const auto* b = std::ranges::find(blocks, number, &block::number);
    const auto read = [&](std::uint64_t elements, std::size_t bytes) {
      return read_gguf(gguf(1, 0).tensor("t", {elements}, number, 0).file(bytes)).tensors[0].bytes.size();
    };
    INFO(number);
    if (b == std::end(blocks)) {
      CHECK_THROWS_MATCHES(read(256, 4096), ms::error, MessageMatches(ContainsSubstring("unknown type")));
      continue;
    }
    ++known;
    CHECK(read(3 * b->elements, 4096) == 3 * b->bytes);
    if (b->elements > 1) CHECK_THROWS_AS(read(3 * b->elements - b->elements / 2, 4096), ms::error);
  }
  CHECK(known == std::size(blocks));
}

TEST_CASE("gguf: a file of the gguf package, the writer's, and what is refused") {
  const tensor_file file(corpus / "gguf" / "blocks.gguf");
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.format() == file_format::gguf);
  const tensor_index index = file.index();
  CHECK((index.find("a")->shape == std::vector<std::int64_t>{2, 3} && index.find("a")->type == stored_type::f32));
  CHECK((index.find("MXFP4")->type == stored_type::ggml_mxfp4 && index.find("MXFP4")->bytes.size() == 17));
  CHECK(
      (index.find("n")->type == stored_type::ggml_nvfp4 && index.find("n")->shape == std::vector<std::int64_t>{1, 64}));
  CHECK(index.find("Q4_0")->type == stored_type::other);
  CHECK_THROWS_MATCHES(load_floats(*index.find("MXFP4")), ms::error,
                       MessageMatches(ContainsSubstring("tensor 'MXFP4': elements of type MXFP4 are no floats")));
  CHECK(file.type_name(2) == "Q4_0");
  CHECK(file.metadata().at("general.architecture") == "x");

  const std::vector<stored_tensor> tensors = {{"w", stored_type::bf16, {3, 1}, {}},
                                              {"q", stored_type::ggml_nvfp4, {1, 64}, {}}};
  const gguf_header header =
      make_gguf_header(tensors, {{"general.architecture", "llama"}}, {{"general.file_type", 39}});
  CHECK(header.offsets == std::vector<std::uint64_t>{0, 32});
  std::string whole = header.bytes;
  whole.append(32 + 36, '\1');
  const auto bytes = bytes_of(whole);
  const gguf_file read = read_gguf(bytes);
  REQUIRE(read.tensors.size() == 2);
  CHECK(read.strings.at("general.architecture") == "llama");
  CHECK((read.tensors[0].shape == std::vector<std::int64_t>{3, 1} && read.tensors[0].bytes.size() == 6));
  CHECK((read.type_names[1] == "NVFP4" && read.tensors[1].bytes.size() == 36));
  const stored_tensor ragged{"q", stored_type::ggml_mxfp4, {1, 48}, {}};
  CHECK_THROWS_AS(make_gguf_header(std::span(&ragged, 1), {}), ms::error);

  const auto r = [](const auto& f) { return read_gguf(f); };
  refuses(r, bytes_of("GGU"), "not a GGUF file");
  refuses(r, bytes_of(std::string("GGUF\x01\0\0\0", 8)), "version 1");
  refuses(r, bytes_of(std::string("GGUF\0\0\0\x03", 8)), "big-endian");
  refuses(r, bytes_of(std::string("GGUF\x03\0\0\0", 8)), "ends within its header");
  refuses(r, gguf(~0ull, 0).file(0), "ends within its header");
  refuses(r, gguf(0, ~0ull).file(0), "ends within its header");
  refuses(r, gguf(0, 1).n(~0ull).file(0), "ends within its header");  // key length
  refuses(r, gguf(0, 1).s("k").n(std::uint32_t{13}).file(0), "unknown type 13");
  refuses(r, gguf(0, 1).s("k").n(std::uint32_t{9}).n(std::uint32_t{10}).n(~0ull).file(0), "longer than the file");
  refuses(r, gguf(0, 1).s("k").n(std::uint32_t{9}).n(std::uint32_t{8}).n(~0ull).file(0), "ends within its header");
  gguf_bytes nested = gguf(0, 1).s("k");
  nested.n(std::uint32_t{9});
  for (int i = 0; i < 10; ++i) nested.n(std::uint32_t{9}).n(std::uint64_t{1});
  refuses(r, nested.file(0), "nested too deeply");
  refuses(r, gguf(0, 1).s("general.alignment").n(std::uint32_t{4}).n(std::uint32_t{0}).file(0), "no power of two");
  refuses(r, gguf(0, 1).s("general.alignment").n(std::uint32_t{4}).n(std::uint32_t{24}).file(0), "no power of two");
  refuses(r, gguf(0, 1).s("general.alignment").n(std::uint32_t{8}).s("32").file(0), "not of type u32");
  refuses(
      r, gguf(0, 2).s("k").n(std::uint32_t{7}).n(std::uint8_t{1}).s("k").n(std::uint32_t{7}).n(std::uint8_t{1}).file(0),
      "twice");
  refuses(r, gguf(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).file(4), "more than 4 dimensions");
  refuses(r, gguf(1, 0).tensor("t", {1ull << 63}, 0, 0).file(4), "too large");
  refuses(r, gguf(1, 0).tensor("t", {1ull << 40, 1ull << 40}, 0, 0).file(4), "whole blocks");
  refuses(r, gguf(1, 0).tensor("t", {1}, 4, 0).file(4), "unknown type 4");
  refuses(r, gguf(1, 0).tensor("t", {16, 2}, 39, 0).file(17), "whole blocks of MXFP4");
  refuses(r, gguf(1, 0).tensor("t", {1}, 0, 32).file(4), "outside the file");
  refuses(r, gguf(1, 0).tensor("t", {1}, 0, 4).file(8), "not aligned");
  refuses(r, gguf(1, 0).tensor("t", {1}, 0, ~0ull - 31).file(8), "outside the file");
  refuses(r, gguf(2, 0).tensor("t", {16}, 0, 0).tensor("u", {1}, 0, 32).file(64), "overlap");
  refuses(r, gguf(2, 0).tensor("t", {1}, 0, 0).tensor("t", {1}, 0, 32).file(64), "'t' is given twice");
}

TEST_CASE("a sharded checkpoint is one file of tensors, and its index may not lead elsewhere") {
  const scratch_folder folder;
  const std::string one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string two = R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const auto text = [](const std::vector<std::uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); };
  folder.write("m-1.safetensors", text(safetensors(one, 1)));
  folder.write("m-2.safetensors", text(safetensors(two, 2)));
  const auto index = [&](std::string_view map) {
    return folder.write("m.safetensors.index.json",
                        R"({"metadata":{"total_size":3},"weight_map":)" + std::string(map) + "}");
  };
  const tensor_file file(index(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})"));
  CHECK(file.format() == file_format::sharded_safetensors);
  REQUIRE(file.tensors().size() == 2);
  CHECK(file.files().size() == 3);
  CHECK(file.index().find("b")->bytes.size() == 2);

  const auto refused = [&](std::string_view map, const std::string& why) {
    INFO(map);
    CHECK_THROWS_MATCHES(tensor_file(index(map)), ms::error, MessageMatches(ContainsSubstring(why)));
  };
  refused(R"({"a":"../m-1.safetensors"})", "a file name that is not one");
  refused(R"({"a":"/etc/passwd"})", "a file name that is not one");
  refused(R"({"a":"..","b":"x"})", "a file name that is not one");
  refused(R"({"a":"x\u0000"})", "a file name that is not one");
  refused(R"({"a":"missing.safetensors"})", "cannot be opened");
  refused(R"({"a":"m-2.safetensors"})", "does not place there");
  refused(R"({"a":"m-1.safetensors","c":"m-2.safetensors"})", "does not place there");
  refused(R"({"a":"m-1.safetensors","c":"m-1.safetensors"})", "do not hold");
  refused(R"([])", "expected '{'");
}

TEST_CASE("an output file appears whole or not at all") {
  const scratch_folder folder;
  const auto path = folder.write("out", "before");
  const auto entries = [&] { return std::distance(std::filesystem::directory_iterator(folder.path), {}); };
  {
    output_file out(path);
    out.write("half");
  }
  CHECK(mapped_file(path).bytes().size() == 6);
  CHECK(entries() == 1);
  {
    output_file out(path);
    out.write("whole file");
    CHECK(out.written() == 10);
    out.commit();
  }
  CHECK(mapped_file(path).bytes().size() == 10);
  CHECK(entries() == 1);
  CHECK_THROWS_AS(output_file(folder.path / "missing" / "out"), ms::error);
  CHECK_THROWS_AS(mapped_file(folder.path), ms::error);
  CHECK_THROWS_AS(mapped_file(folder.path / "missing"), ms::error);
  folder.write("empty", "");
  CHECK(mapped_file(folder.path / "empty").bytes().empty());
  CHECK_THROWS_MATCHES(tensor_file(folder.path / "empty"), ms::error,
                       MessageMatches(ContainsSubstring("empty: safetensors: shorter")));
}
