#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace pretrain {

// Writes a whole file or none: under another name first, which is moved into place once it is on the disk. A process
// that is killed, or a machine that stops, leaves the old file or the new one.
inline void write_file(const std::filesystem::path& path, std::string_view contents) {
  std::filesystem::path partial = path;
  partial += ".partial";
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = file >= 0;
  for (std::size_t done = 0; good && done < contents.size();) {
    const ssize_t written = write(file, contents.data() + done, contents.size() - done);
    if (written > 0)
      done += static_cast<std::size_t>(written);
    else
      good = written < 0 && errno == EINTR;
  }
  good = good && fsync(file) == 0;
  if (file >= 0) good = close(file) == 0 && good;
  std::error_code failure;
  if (good) std::filesystem::rename(partial, path, failure);
  if (!good || failure) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw std::runtime_error("cannot write " + path.string());
  }
}

// A number with so many digits after the point, and with so many significant ones.
[[nodiscard]] inline std::string fixed(double value, int digits) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr};
}

[[nodiscard]] inline std::string general(double value, int digits) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits).ptr};
}

}  // namespace pretrain
