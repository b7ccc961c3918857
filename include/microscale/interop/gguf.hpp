// GGUF, the file format of ggml and llama.cpp, versions 2 and 3, little-endian: read and written.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.hpp"
#include "stored_tensor.hpp"

namespace microscale::interop {

// What read_gguf makes of a file. Tensors point into the bytes that were read.
struct gguf_file {
  std::vector<stored_tensor> tensors;
  std::map<std::string, std::string> strings;  // the string values among the metadata; all else is checked and dropped
  std::vector<std::string> type_names;         // of each tensor, ggml's own name: also of those that are `other`
};

namespace detail {

struct ggml_type {
  std::uint32_t number;
  std::string_view name;
  stored_type type;
  stored_layout layout;
};

// ggml's types that a file may hold, with the size of their blocks.
inline constexpr ggml_type ggml_types[] = {
    {0, "F32", stored_type::f32, {1, 4}},
    {1, "F16", stored_type::f16, {1, 2}},
    {2, "Q4_0", stored_type::other, {32, 18}},
    {3, "Q4_1", stored_type::other, {32, 20}},
    {6, "Q5_0", stored_type::other, {32, 22}},
    {7, "Q5_1", stored_type::other, {32, 24}},
    {8, "Q8_0", stored_type::other, {32, 34}},
    {9, "Q8_1", stored_type::other, {32, 40}},
    {10, "Q2_K", stored_type::other, {256, 84}},
    {11, "Q3_K", stored_type::other, {256, 110}},
    {12, "Q4_K", stored_type::other, {256, 144}},
    {13, "Q5_K", stored_type::other, {256, 176}},
    {14, "Q6_K", stored_type::other, {256, 210}},
    {15, "Q8_K", stored_type::other, {256, 292}},
    {16, "IQ2_XXS", stored_type::other, {256, 66}},
    {17, "IQ2_XS", stored_type::other, {256, 74}},
    {18, "IQ3_XXS", stored_type::other, {256, 98}},
    {19, "IQ1_S", stored_type::other, {256, 50}},
    {20, "IQ4_NL", stored_type::other, {32, 18}},
    {21, "IQ3_S", stored_type::other, {256, 110}},
    {22, "IQ2_S", stored_type::other, {256, 82}},
    {23, "IQ4_XS", stored_type::other, {256, 136}},
    {24, "I8", stored_type::i8, {1, 1}},
    {25, "I16", stored_type::i16, {1, 2}},
    {26, "I32", stored_type::i32, {1, 4}},
    {27, "I64", stored_type::i64, {1, 8}},
    {28, "F64", stored_type::f64, {1, 8}},
    {29, "IQ1_M", stored_type::other, {256, 56}},
    {30, "BF16", stored_type::bf16, {1, 2}},
    {34, "TQ1_0", stored_type::other, {256, 54}},
    {35, "TQ2_0", stored_type::other, {256, 66}},
    {39, "MXFP4", stored_type::ggml_mxfp4, {32, 17}},
    {40, "NVFP4", stored_type::ggml_nvfp4, {64, 36}},
    {41, "Q1_0", stored_type::other, {128, 18}},
};

inline constexpr std::size_t ggml_longest_name = 64;  // GGML_MAX_NAME, its terminating zero included

inline constexpr std::uint32_t gguf_string = 8, gguf_array = 9, gguf_u32 = 4;

// The size of a metadata value of fixed size, 0 for others.
constexpr std::uint64_t gguf_value_size(std::uint32_t type) noexcept {
  constexpr std::uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(sizes) ? sizes[type] : 0;
}

class gguf_cursor {
 public:
  explicit gguf_cursor(std::span<const std::uint8_t> file) : file_(file) {}

  std::size_t position() const noexcept { return at_; }
  std::size_t left() const noexcept { return file_.size() - at_; }

  std::span<const std::uint8_t> take(std::uint64_t count) {
    if (count > left()) refuse("gguf", "the file ends within its header");
    at_ += static_cast<std::size_t>(count);
    return file_.subspan(at_ - static_cast<std::size_t>(count), static_cast<std::size_t>(count));
  }
  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  std::string string() {
    const auto length = number<std::uint64_t>();
    const auto bytes = take(length);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_utf8(text)) refuse("gguf", "a string that is not UTF-8");
    return text;
  }
  // Moves past a value.
  void skip(std::uint32_t type, int depth = 4) {
    if (type == gguf_string) {
      take(number<std::uint64_t>());
    } else if (type == gguf_array) {
      if (depth == 0) refuse("gguf", "arrays nested too deeply");
      const auto item = number<std::uint32_t>();
      const auto count = number<std::uint64_t>();
      if (const std::uint64_t size = gguf_value_size(item); size > 0) {
        if (count > left() / size) refuse("gguf", "an array longer than the file");
        take(count * size);
      } else {
        // Every item takes at least eight bytes, so this ends with the file.
        for (std::uint64_t i = 0; i < count; ++i) skip(item, depth - 1);
      }
    } else if (gguf_value_size(type) > 0) {
      take(gguf_value_size(type));
    } else {
      refuse("gguf", "a metadata value of unknown type " + std::to_string(type));
    }
  }

 private:
  std::span<const std::uint8_t> file_;
  std::size_t at_ = 0;
};

struct gguf_entry {
  std::uint64_t offset = 0, bytes = 0;
};

inline gguf_entry read_gguf_entry(gguf_cursor& in, gguf_file& out) {
  stored_tensor t;
  t.name = in.string();
  const std::string what = "gguf: tensor " + shown(t.name);
  const auto dimensions = in.number<std::uint32_t>();
  if (dimensions > 4) refuse(what, "more than 4 dimensions");
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = in.number<std::uint64_t>();
    if (extent > static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)()))
      refuse(what, "a dimension too large");
    t.shape.insert(t.shape.begin(), static_cast<std::int64_t>(extent));
  }
  const auto number = in.number<std::uint32_t>();
  const auto* type = std::ranges::find(ggml_types, number, &ggml_type::number);
  if (type == std::end(ggml_types)) refuse(what, "unknown type " + std::to_string(number));
  t.type = type->type;
  gguf_entry entry;
  entry.offset = in.number<std::uint64_t>();
  // Blocks run along a row and never over its end.
  const auto bytes = stored_bytes(type->layout, t.shape);
  if (!bytes || t.cols() % type->layout.elements != 0) {
    refuse(what, "shape " + text_of(t.shape) + " is not made of whole blocks of " + std::string(type->name));
  }
  entry.bytes = *bytes;
  out.type_names.emplace_back(type->name);
  out.tensors.push_back(std::move(t));
  return entry;
}

}  // namespace detail

// What a GGUF file holds; the tensors point into `file`. Throws ms::error for what is not one, is of another version or
// byte order, or has a tensor that does not lie inside it, is not aligned, overlaps another, or whose name is used
// twice.
inline gguf_file read_gguf(std::span<const std::uint8_t> file) {
  detail::gguf_cursor in(file);
  if (file.size() < 4 || std::string_view(reinterpret_cast<const char*>(file.data()), 4) != "GGUF") {
    detail::refuse("gguf", "not a GGUF file");
  }
  in.take(4);
  const auto version = in.number<std::uint32_t>();
  if (version != 2 && version != 3) {
    detail::refuse("gguf", version >> 24 != 0 && (version & 0xFFFFFF) == 0
                               ? "a big-endian file"
                               : "format version " + std::to_string(version) + " is unknown");
  }
  const auto tensor_count = in.number<std::uint64_t>();
  const auto value_count = in.number<std::uint64_t>();

  gguf_file out;
  std::uint64_t alignment = 32;
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < value_count; ++i) {
    std::string key = in.string();
    const auto type = in.number<std::uint32_t>();
    if (key == "general.alignment") {
      if (type != detail::gguf_u32) detail::refuse("gguf", "general.alignment is not of type u32");
      alignment = in.number<std::uint32_t>();
      if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        detail::refuse("gguf", "an alignment that is no power of two");
    } else if (type == detail::gguf_string) {
      out.strings[key] = in.string();
    } else {
      in.skip(type);
    }
    keys.push_back(std::move(key));
  }
  std::ranges::sort(keys);
  if (std::ranges::adjacent_find(keys) != keys.end()) detail::refuse("gguf", "a key of the metadata is given twice");

  std::vector<detail::gguf_entry> entries;
  for (std::uint64_t i = 0; i < tensor_count; ++i) entries.push_back(detail::read_gguf_entry(in, out));
  const std::uint64_t start = round_up(std::uint64_t{in.position()}, alignment);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& [offset, bytes] = entries[i];
    const std::string what = "gguf: tensor " + detail::shown(out.tensors[i].name);
    if (offset % alignment != 0) detail::refuse(what, "is not aligned");
    const std::uint64_t behind = start < file.size() ? file.size() - start : 0;
    if (offset > behind || bytes > behind - offset) detail::refuse(what, "lies outside the file");
    if (bytes > 0) {
      out.tensors[i].bytes = file.subspan(static_cast<std::size_t>(start + offset), static_cast<std::size_t>(bytes));
      places.emplace_back(offset, offset + bytes);
    }
    names.push_back(out.tensors[i].name);
  }
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) detail::refuse("gguf", "two tensors overlap");
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    detail::refuse("gguf", "tensor " + detail::shown(*twice) + " is given twice");
  }
  return out;
}

// Where the writer of a GGUF file puts things.
struct gguf_header {
  std::string bytes;                   // everything before the tensors, padding included
  std::vector<std::uint64_t> offsets;  // of each tensor, behind those bytes: zeros fill the space between them
};

// The header of a GGUF file (version 3, alignment 32) with these tensors, whose bytes are not read, and these metadata:
// strings, and "general.file_type" and the like as u32. Throws ms::error for a tensor that ggml has no type for.
inline gguf_header make_gguf_header(std::span<const stored_tensor> tensors,
                                    const std::map<std::string, std::string>& strings,
                                    const std::map<std::string, std::uint32_t>& numbers = {}) {
  gguf_header out;
  const auto number = [&](auto value) {
    for (std::size_t i = 0; i < sizeof value; ++i) out.bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  };
  const auto string = [&](std::string_view text) {
    number(std::uint64_t{text.size()});
    out.bytes += text;
  };
  out.bytes = "GGUF";
  number(std::uint32_t{3});
  number(std::uint64_t{tensors.size()});
  number(std::uint64_t{strings.size() + numbers.size()});
  for (const auto& [key, value] : strings) {
    string(key);
    number(detail::gguf_string);
    string(value);
  }
  for (const auto& [key, value] : numbers) {
    string(key);
    number(detail::gguf_u32);
    number(value);
  }
  std::uint64_t offset = 0;
  for (const stored_tensor& t : tensors) {
    const auto* type = std::ranges::find(detail::ggml_types, t.type, &detail::ggml_type::type);
    const auto bytes = detail::stored_bytes(layout_of(t.type), t.shape);
    if (t.name.size() >= detail::ggml_longest_name) {
      microscale::detail::fail("tensor name for GGUF", "less than 64 bytes", detail::shown(t.name));
    }
    if (t.type == stored_type::other || type == std::end(detail::ggml_types) || t.shape.size() > 4 || !bytes ||
        t.cols() % type->layout.elements != 0) {
      microscale::detail::fail("tensor for GGUF", "a type of ggml's, at most 4 dimensions and whole blocks",
                               std::string(name_of(t.type)) + " of shape " + text_of(t.shape));
    }
    string(t.name);
    number(static_cast<std::uint32_t>(t.shape.size()));
    for (auto extent = t.shape.rbegin(); extent != t.shape.rend(); ++extent)
      number(static_cast<std::uint64_t>(*extent));
    number(type->number);
    number(offset);
    out.offsets.push_back(offset);
    offset = round_up(offset + *bytes, std::uint64_t{32});
  }
  out.bytes.resize(round_up(out.bytes.size(), std::size_t{32}), '\0');
  return out;
}

}  // namespace microscale::interop
