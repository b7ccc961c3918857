// Files: a read-only mapping, and an output that appears whole or not at all. POSIX.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "stored_tensor.hpp"

namespace microscale::interop {

namespace detail {

[[noreturn]] inline void refuse_system(const std::string& what, const std::filesystem::path& path) {
  const int reason = errno;
  refuse(path.string(), what + ": " + std::error_code(reason, std::generic_category()).message());
}

class file_descriptor {
 public:
  explicit file_descriptor(int fd) noexcept : fd_(fd) {}
  file_descriptor(const file_descriptor&) = delete;
  file_descriptor& operator=(const file_descriptor&) = delete;
  ~file_descriptor() { close(); }

  int get() const noexcept { return fd_; }
  // What close() said; data may be lost where that is not 0.
  int close() noexcept { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

}  // namespace detail

// The bytes of a regular file, mapped for reading: pages come in as they are touched. Throws ms::error where the file
// cannot be opened, or is a directory, a pipe or a device. A file that somebody shortens while it is mapped ends the
// program with SIGBUS, as with every mapping.
class mapped_file {
 public:
  mapped_file() = default;
  explicit mapped_file(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe must not wait for a writer.
    const detail::file_descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) detail::refuse_system("cannot be opened", path);
    struct stat about {};
    if (::fstat(fd.get(), &about) != 0) detail::refuse_system("cannot be examined", path);
    if (!S_ISREG(about.st_mode)) detail::refuse(path.string(), "is not a regular file");
    size_ = static_cast<std::size_t>(about.st_size);
    if (size_ == 0) return;
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (memory == MAP_FAILED) detail::refuse_system("cannot be mapped", path);
    data_ = static_cast<const std::uint8_t*>(memory);
  }
  mapped_file(mapped_file&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~mapped_file() {
    if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
  }

  std::span<const std::uint8_t> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

// Says that these bytes of a mapped_file are not needed any more (they may be read again, from the file), so that going
// through a file larger than memory does not hold all of it.
inline void release_pages(std::span<const std::uint8_t> part) noexcept {
  if (part.empty()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(part.data());
  const std::size_t before = (page - address % page) % page, after = (address + part.size()) % page;
  if (before + after >= part.size()) return;  // no whole page
  ::madvise(const_cast<std::uint8_t*>(part.data()) + before, part.size() - before - after, MADV_DONTNEED);
}

// Has the entries of a folder written to the disk, where the file system can do that.
inline void sync_folder(const std::filesystem::path& folder) noexcept {
  const detail::file_descriptor fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) static_cast<void>(::fsync(fd.get()));
}

// A file that is written under another name in the same folder and takes its own on commit(), on the disk as well;
// without that nothing remains of it, and a file that was there before is untouched. Throws ms::error where writing
// fails. (A folder that cannot be synced is no failure: the file is whole and in its place, and only a loss of power
// might still undo that.)
class output_file {
 public:
  explicit output_file(std::filesystem::path path)
      : path_(std::move(path)),
        partial_(path_.string() + ".partial." + std::to_string(::getpid())),
        fd_(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (fd_.get() < 0) detail::refuse_system("cannot be written", path_);
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  ~output_file() {
    if (!committed_ && fd_.get() >= 0) ::unlink(partial_.c_str());
  }

  void write(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) detail::refuse_system("cannot be written", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      written_ += static_cast<std::uint64_t>(done);
    }
  }
  void write(std::string_view text) { write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}); }
  std::uint64_t written() const noexcept { return written_; }

  void commit() {
    const bool whole = ::fsync(fd_.get()) == 0 && ::rename(partial_.c_str(), path_.c_str()) == 0;
    if (!whole) detail::refuse_system("cannot be written", path_);
    committed_ = true;
    if (fd_.close() != 0) detail::refuse_system("cannot be written", path_);
    sync_folder(path_.parent_path());
  }

 private:
  std::filesystem::path path_, partial_;
  detail::file_descriptor fd_;
  std::uint64_t written_ = 0;
  bool committed_ = false;
};

}  // namespace microscale::interop
