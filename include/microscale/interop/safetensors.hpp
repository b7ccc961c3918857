// The safetensors format, read and written: eight bytes of header length, a JSON header, the tensors.
// https://github.com/huggingface/safetensors, version 0.8, whose rules for what a file may be are kept here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.hpp"
#include "stored_tensor.hpp"

namespace microscale::interop {

// What read_safetensors makes of a file. Tensors point into the bytes that were read.
struct safetensors_file {
  std::vector<stored_tensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

namespace detail {

// The longest header that the format allows.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;

// The types of the format, by name.
inline bool find_safetensors_type(std::string_view name, stored_type& type) noexcept {
  for (int i = 0; i < static_cast<int>(stored_type::ggml_mxfp4); ++i) {
    type = static_cast<stored_type>(i);
    if (name_of(type) == name) return true;
  }
  return false;
}

// One entry of the header; `data` is what lies behind the header.
inline stored_tensor read_safetensors_entry(json_reader& json, std::string name, std::span<const std::uint8_t> data) {
  stored_tensor t;
  const std::string what = "safetensors: tensor " + shown(name);
  std::vector<std::int64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
  json.object([&](const std::string& key) {
    if (key == "dtype" && !has_type) {
      const std::string type = json.string();
      if (!find_safetensors_type(type, t.type)) refuse(what, "unknown dtype " + shown(type));
      has_type = true;
    } else if (key == "shape" && !has_shape) {
      json.array([&] {
        if (t.shape.size() == 64) refuse(what, "more than 64 dimensions");
        t.shape.push_back(json.size());
      });
      has_shape = true;
    } else if (key == "data_offsets" && !has_offsets) {
      json.array([&] {
        if (offsets.size() == 2) refuse(what, "data_offsets are not two numbers");
        offsets.push_back(json.size());
      });
      has_offsets = true;
    } else {
      refuse(what, "unexpected or repeated key " + shown(key));
    }
  });
  if (!has_type || !has_shape || offsets.size() != 2) refuse(what, "needs dtype, shape and two data_offsets");
  const auto first = static_cast<std::uint64_t>(offsets[0]), last = static_cast<std::uint64_t>(offsets[1]);
  if (first > last || last > data.size()) refuse(what, "lies outside the file");
  const auto bytes = stored_bytes(layout_of(t.type), t.shape);
  if (!bytes || *bytes != last - first) {
    refuse(what, std::to_string(last - first) + " bytes do not hold " + std::string(name_of(t.type)) + " of shape " +
                     text_of(t.shape));
  }
  t.name = std::move(name);
  t.bytes = data.subspan(first, last - first);
  return t;
}

}  // namespace detail

// What a safetensors file holds; the tensors point into `file`. Throws ms::error for what is not one: a header too
// long or not JSON, an unknown type, a shape whose size overflows or is not that of its bytes, tensors that overlap,
// leave a gap or do not reach the end, a name that is used twice.
inline safetensors_file read_safetensors(std::span<const std::uint8_t> file) {
  const std::string what = "safetensors";
  if (file.size() < 8) detail::refuse(what, "shorter than its header length");
  const auto length = detail::load<std::uint64_t>(file.data());
  if (length > detail::longest_safetensors_header) detail::refuse(what, "a header of more than 100,000,000 bytes");
  if (length > file.size() - 8) detail::refuse(what, "the file ends within its header");
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, static_cast<std::size_t>(length));
  if (header.empty() || header[0] != '{') detail::refuse(what, "the header does not begin with '{'");
  const auto data = file.subspan(8 + static_cast<std::size_t>(length));

  safetensors_file out;
  bool has_metadata = false;
  json_reader json(header, "safetensors header");
  json.object([&](const std::string& name) {
    if (name != "__metadata__") {
      out.tensors.push_back(detail::read_safetensors_entry(json, name, data));
      return;
    }
    if (std::exchange(has_metadata, true)) json.refuse("__metadata__ is given twice");
    json.object([&](const std::string& key) {
      if (!out.metadata.emplace(key, json.string()).second) json.refuse("a key of __metadata__ is given twice");
    });
  });
  json.end();

  std::ranges::stable_sort(out.tensors, {},
                           [](const stored_tensor& t) { return std::pair(t.bytes.data(), t.bytes.size()); });
  const std::uint8_t* covered = data.data();
  for (const stored_tensor& t : out.tensors) {
    if (t.bytes.data() != covered)
      detail::refuse(what, "tensor " + detail::shown(t.name) + " overlaps another or leaves a gap");
    covered += t.bytes.size();
  }
  if (covered != data.data() + data.size())
    detail::refuse(what, "bytes that belong to no tensor at the end of the file");
  std::vector<std::string_view> names;
  for (const stored_tensor& t : out.tensors) names.push_back(t.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    detail::refuse(what, "tensor " + detail::shown(*twice) + " is given twice");
  }
  return out;
}

// Everything that precedes the tensors in a file: the length and the header, padded so that the tensors begin at a
// multiple of eight. After it come the bytes of the tensors, in this order, without gaps; stored_tensor::bytes is not
// read. Tensors of wider elements belong first, so that all are aligned: see by_alignment. Throws ms::error for a
// tensor that the format has no type for.
inline std::string safetensors_header(std::span<const stored_tensor> tensors,
                                      const std::map<std::string, std::string>& metadata = {}) {
  std::string header = "{";
  const char* comma = "";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header.append(comma).append(json_string(key)).append(":").append(json_string(value));
      comma = ",";
    }
    header += '}';
    comma = ",";
  }
  std::uint64_t offset = 0;
  for (const stored_tensor& t : tensors) {
    const auto bytes = detail::stored_bytes(layout_of(t.type), t.shape);
    if (t.type >= stored_type::ggml_mxfp4 || !bytes) {
      microscale::detail::fail("tensor for safetensors", "a type and shape of the format",
                               std::string(name_of(t.type)) + " of shape " + text_of(t.shape));
    }
    header.append(comma).append(json_string(t.name)).append(":{\"dtype\":\"").append(name_of(t.type));
    header += "\",\"shape\":[";
    for (std::size_t i = 0; i < t.shape.size(); ++i) header += (i > 0 ? "," : "") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + *bytes) + "]}";
    offset += *bytes;
    comma = ",";
  }
  header += '}';
  header.resize(round_up(header.size(), std::size_t{8}), ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(std::uint64_t{header.size()} >> (8 * i) & 0xFF);
  return length + header;
}

// The order for a writer: wider elements first, so that every tensor is aligned.
inline bool by_alignment(const stored_tensor& a, const stored_tensor& b) noexcept {
  const auto width = [](const stored_tensor& t) {
    return layout_of(t.type).elements > 1 ? 1 : layout_of(t.type).bytes;
  };
  return width(a) > width(b);
}

// Which file of a sharded checkpoint holds a tensor, from its index ("model.safetensors.index.json"). A name that would
// lead out of the folder of the index is refused.
inline std::map<std::string, std::string> read_safetensors_index(std::string_view text) {
  std::map<std::string, std::string> files;
  bool found = false;
  json_reader json(text, "safetensors index");
  json.object([&](const std::string& key) {
    if (key != "weight_map") return json.skip();
    if (std::exchange(found, true)) json.refuse("weight_map is given twice");
    json.object([&](const std::string& tensor) {
      const std::string file = json.string();
      const bool inside =
          !file.empty() && file[0] != '.' && file.find('/') == file.npos && file.find('\0') == file.npos;
      if (!inside) json.refuse("a file name that is not one: " + detail::shown(file));
      if (!files.emplace(tensor, file).second) json.refuse("tensor " + detail::shown(tensor) + " is given twice");
    });
  });
  json.end();
  if (!found) detail::refuse("safetensors index", "has no weight_map");
  return files;
}

}  // namespace microscale::interop
