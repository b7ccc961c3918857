// Any file of tensors, by what it holds: safetensors, a sharded checkpoint by its index, GGUF, .npy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file.hpp"
#include "gguf.hpp"
#include "npy.hpp"
#include "safetensors.hpp"

namespace microscale::interop {

// What tensor_file opens.
enum class file_format : std::uint8_t { safetensors, sharded_safetensors, gguf, npy };

// A file that stays mapped while its tensors are used.
class tensor_file {
 public:
  // Opens a file; what it is follows from its first bytes, and for an index from its name (*.json). An array of a .npy
  // file is named after the file. Throws ms::error with the file's name for whatever is wrong with it.
  explicit tensor_file(const std::filesystem::path& path) : path_(path) {
    try {
      const auto bytes = map(path);
      const std::string_view start(reinterpret_cast<const char*>(bytes.data()), bytes.size() < 6 ? bytes.size() : 6);
      if (start.starts_with("GGUF")) {
        format_ = file_format::gguf;
        gguf_file gguf = read_gguf(bytes);
        tensors_ = std::move(gguf.tensors);
        type_names_ = std::move(gguf.type_names);
        metadata_ = std::move(gguf.strings);
      } else if (start == "\x93NUMPY") {
        format_ = file_format::npy;
        tensors_.push_back(read_npy(bytes));
        tensors_.back().name = path.stem().string();
      } else if (path.extension() == ".json") {
        format_ = file_format::sharded_safetensors;
        open_shards(read_safetensors_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
      } else {
        format_ = file_format::safetensors;
        safetensors_file safetensors = read_safetensors(bytes);
        tensors_ = std::move(safetensors.tensors);
        metadata_ = std::move(safetensors.metadata);
      }
    } catch (const error& e) {
      if (std::string_view(e.what()).starts_with("microscale: " + path.string())) throw;
      detail::refuse(path.string(), e);
    }
  }

  const std::filesystem::path& path() const noexcept { return path_; }
  file_format format() const noexcept { return format_; }
  // The files that are mapped: that of path(), and the shards of an index.
  const std::vector<std::filesystem::path>& files() const noexcept { return mapped_; }
  const std::vector<stored_tensor>& tensors() const noexcept { return tensors_; }
  tensor_index index() const { return tensor_index(tensors_); }
  // The tensor of that name. Throws ms::error where there is none. For many look-ups, index() is the faster way.
  const stored_tensor& at(std::string_view name) const {
    for (const stored_tensor& t : tensors_) {
      if (t.name == name) return t;
    }
    detail::refuse(path_.string(), "no tensor " + detail::shown(name));
  }
  // String metadata of safetensors and GGUF files.
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  // The name of tensor i's type, as the file's own world calls it.
  std::string_view type_name(std::size_t i) const noexcept {
    return type_names_.empty() ? name_of(tensors_[i].type) : std::string_view(type_names_[i]);
  }

 private:
  std::span<const std::uint8_t> map(const std::filesystem::path& path) {
    files_.emplace_back(path);
    mapped_.push_back(path);
    return files_.back().bytes();
  }
  void open_shards(const std::map<std::string, std::string>& index) {
    std::map<std::string, safetensors_file> shards;
    for (const auto& [tensor, file] : index) {
      if (shards.contains(file)) continue;
      try {
        shards[file] = read_safetensors(map(path_.parent_path() / file));
      } catch (const error& e) {
        detail::refuse(file, e);
      }
    }
    for (auto& [file, shard] : shards) {
      for (stored_tensor& t : shard.tensors) {
        const auto at = index.find(t.name);
        if (at == index.end() || at->second != file) {
          detail::refuse(file, "holds tensor " + detail::shown(t.name) + ", which the index does not place there");
        }
        tensors_.push_back(std::move(t));
      }
      metadata_.merge(shard.metadata);
    }
    if (tensors_.size() != index.size())
      detail::refuse("safetensors index", "names tensors that their files do not hold");
  }

  std::filesystem::path path_;
  file_format format_ = file_format::safetensors;
  std::deque<mapped_file> files_;
  std::vector<std::filesystem::path> mapped_;
  std::vector<stored_tensor> tensors_;
  std::vector<std::string> type_names_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace microscale::interop
