#include "corpus.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "error.hpp"

// The compiler's include directories, separated by '|': given by CMakeLists.txt.
#ifndef MICROSCALE_PRETRAIN_INCLUDE_DIRECTORIES
#define MICROSCALE_PRETRAIN_INCLUDE_DIRECTORIES ""
#endif

namespace pretrain {
namespace {

namespace fs = std::filesystem;

std::string quoted(const fs::path& path) { return '\'' + path.string() + '\''; }

void append_file(const fs::path& path, std::vector<std::uint8_t>& bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw usage_error("cannot read " + quoted(path));
  bytes.insert(bytes.end(), std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  if (in.bad()) throw usage_error("cannot read " + quoted(path));
}

// The directory that holds the standard library's headers.
fs::path header_directory() {
  constexpr std::string_view all = MICROSCALE_PRETRAIN_INCLUDE_DIRECTORIES;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('|', begin), all.size());
    fs::path directory = fs::path(all.substr(begin, end - begin)).lexically_normal();
    std::error_code ignored;
    if (fs::is_regular_file(directory / "vector", ignored) && fs::is_regular_file(directory / "algorithm", ignored))
      return directory;
    begin = end + 1;
  }
  throw usage_error("the compiler's C++ headers are not where they were; give a text with --text");
}

// Its headers in the order of their names, byte by byte: the same order on every machine.
std::vector<fs::path> headers_in(const fs::path& directory) {
  constexpr std::string_view extensions[] = {"", ".h", ".hpp", ".tcc"};
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && std::ranges::find(extensions, entry.path().extension()) != std::end(extensions))
      names.push_back(entry.path().lexically_relative(directory).generic_string());
  std::ranges::sort(names);
  std::vector<fs::path> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(directory / name);
  return paths;
}

// Every tenth piece of the text is held out, so that both parts are of the same kind of text. A
// piece is never shorter than a context with its target.
void split(const std::vector<std::uint8_t>& bytes, std::size_t context, corpus& result) {
  const std::size_t piece = std::max(context + 1, std::min<std::size_t>(16384, bytes.size() / 20));
  const std::size_t pieces = bytes.size() / piece;  // the last one takes the rest
  for (std::size_t i = 0; i < pieces; ++i) {
    const bool is_held_out = pieces > 1 && i % 10 == std::min<std::size_t>(pieces - 1, 9);
    auto& part = is_held_out ? result.held_out : result.training;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(i * piece);
    part.insert(part.end(), begin, i + 1 == pieces ? bytes.end() : begin + static_cast<std::ptrdiff_t>(piece));
  }
}

}  // namespace

corpus load_corpus(const std::optional<fs::path>& text, int context) {
  corpus result;
  std::vector<std::uint8_t> bytes;
  if (text) {
    std::error_code ignored;
    if (!fs::exists(*text, ignored)) throw usage_error("--text: no file " + quoted(*text));
    if (fs::is_directory(*text, ignored)) throw usage_error("--text: " + quoted(*text) + " is a directory");
    append_file(*text, bytes);
    result.source = text->string();
    result.files = 1;
  } else {
    const fs::path directory = header_directory();
    for (const fs::path& path : headers_in(directory)) {
      append_file(path, bytes);
      ++result.files;
    }
    result.source = directory.string();
  }

  if (bytes.empty()) throw usage_error(result.source + ": the text is empty");
  const auto least = static_cast<std::size_t>(context) + 1;
  if (bytes.size() < least)
    throw usage_error(result.source + ": the text has " + std::to_string(bytes.size()) +
                      " bytes, less than one context with its target (" + std::to_string(least) + ")");
  result.checksum = cksum(bytes);
  split(bytes, static_cast<std::size_t>(context), result);
  return result;
}

// A CRC with polynomial 0x04C11DB7, high bit first, over the bytes and then over their number.
std::uint32_t cksum(std::span<const std::uint8_t> bytes) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i << 24;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ (crc >> 31 ? 0x04C11DB7u : 0u);
    table[i] = crc;
  }
  std::uint32_t crc = 0;
  const auto update = [&](std::uint8_t byte) { crc = (crc << 8) ^ table[(crc >> 24) ^ byte]; };
  for (const std::uint8_t byte : bytes) update(byte);
  for (std::size_t n = bytes.size(); n > 0; n >>= 8) update(static_cast<std::uint8_t>(n));
  return ~crc;
}

}  // namespace pretrain
