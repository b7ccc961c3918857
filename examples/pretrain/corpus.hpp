// The text to learn: where it comes from, and its split into a training and a held-out part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pretrain {

struct corpus {
  std::string source;  // a directory or a file, for the reader
  int files = 0;
  std::uint32_t checksum = 0;                    // what `cksum` prints for the files one after the other
  std::vector<std::uint8_t> training, held_out;  // held_out may be empty for a very short text

  [[nodiscard]] std::size_t bytes() const noexcept { return training.size() + held_out.size(); }
};

// Reads `text`, or without it the C++ standard library headers of the compiler that built this
// program. Throws usage_error where there is nothing to read or less than one context to learn.
[[nodiscard]] corpus load_corpus(const std::optional<std::filesystem::path>& text, int context);

// The checksum of POSIX's cksum.
[[nodiscard]] std::uint32_t cksum(std::span<const std::uint8_t> bytes);

}  // namespace pretrain
