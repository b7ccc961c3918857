// Checkpoint files: what a run carries from step to step, so that it goes on where it was, bit for bit.
//
// A line that names the format, the identity of the run, its values in the order in which they are exchanged, and the
// checksum of all that. Binary, in the byte order of the machine: for going on with a run, not for keeping models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "corpus.hpp"
#include "error.hpp"
#include "files.hpp"

namespace pretrain {

inline constexpr std::string_view checkpoint_format = "microscale pretrain checkpoint 1\n";

// Both have the same functions, so that one function of the caller's says what is in a checkpoint, and in what order.
class checkpoint_writer {
 public:
  static constexpr bool reads = false;

  explicit checkpoint_writer(std::string_view identity) : bytes_(checkpoint_format) { text(identity); }

  template <class T>
  void value(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  // So many as both sides know.
  template <class T>
  void values(std::span<T> list) {
    for (const T& x : list) value(x);
  }
  // As many as there happen to be.
  template <class T>
  void list(const std::vector<T>& items) {
    value(std::uint64_t{items.size()});
    for (const T& x : items) value(x);
  }
  void text(std::string_view s) {
    value(std::uint64_t{s.size()});
    bytes_.append(s);
  }

  void write(const std::filesystem::path& path) {
    value(cksum({reinterpret_cast<const std::uint8_t*>(bytes_.data()), bytes_.size()}));
    write_file(path, bytes_);
  }

 private:
  std::string bytes_;
};

class checkpoint_reader {
 public:
  static constexpr bool reads = true;

  // Reads all of it at once. A file that is no checkpoint, is damaged, or is of another run, is a usage_error.
  checkpoint_reader(const std::filesystem::path& path, std::string_view identity) : name_(path.string()) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (!in || in.bad()) throw usage_error("cannot read checkpoint '" + name_ + "'");
    if (!std::string_view(bytes_).starts_with(checkpoint_format)) damaged("is no checkpoint of this program's format");
    std::uint32_t stored = 0;
    if (bytes_.size() < checkpoint_format.size() + sizeof stored) damaged("is truncated");
    const std::size_t end = bytes_.size() - sizeof stored;
    std::memcpy(&stored, bytes_.data() + end, sizeof stored);
    bytes_.resize(end);
    if (stored != cksum({reinterpret_cast<const std::uint8_t*>(bytes_.data()), end}))
      damaged("is truncated or damaged");
    at_ = checkpoint_format.size();
    std::string theirs;
    text(theirs);
    if (theirs != identity)
      throw usage_error("checkpoint '" + name_ + "' is of another run: " + theirs + "; this one is " +
                        std::string(identity));
  }

  template <class T>
  void value(T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&x, take(sizeof x), sizeof x);
  }
  template <class T>
  void values(std::span<T> list) {
    for (T& x : list) value(x);
  }
  template <class T>
  void list(std::vector<T>& items) {
    std::uint64_t count = 0;
    value(count);
    if (count > (bytes_.size() - at_) / sizeof(T)) damaged("is damaged");
    items.resize(static_cast<std::size_t>(count));
    values(std::span<T>(items));
  }
  void text(std::string& s) {
    std::uint64_t size = 0;
    value(size);
    if (size > bytes_.size() - at_) damaged("is damaged");
    s.assign(take(static_cast<std::size_t>(size)), static_cast<std::size_t>(size));
  }

  // To be called last: nothing may be left.
  void finish() const {
    if (at_ != bytes_.size()) damaged("is damaged");
  }

 private:
  const char* take(std::size_t size) {
    if (size > bytes_.size() - at_) damaged("is damaged");
    const char* data = bytes_.data() + at_;
    at_ += size;
    return data;
  }
  [[noreturn]] void damaged(const char* how) const { throw usage_error("checkpoint '" + name_ + "' " + how); }

  std::string name_;
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace pretrain
