// What the device tests share: memory, random data, threads for the host's side, and one line per group of checks.
//
// The programs build where there is no GPU, say `no GPU here` there, and need nothing but the library and the CUDA
// runtime. They end with `N passed, N failed`, a check being one group over one configuration.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace device_test {

// A failing call of the runtime ends the program: nothing after it can be trusted.
inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}
inline void synchronize(const char* what) { check(cudaDeviceSynchronize(), what); }

inline void need_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return;
  std::printf("no GPU here\n");
  std::exit(0);
}

// Counts checks, and prints one line for each named group of them.
class results {
 public:
  // The failures of a check say where; the first few are printed.
  void expect(bool ok, const std::string& what) {
    ++(ok ? group_passed_ : group_failed_);
    if (!ok && ++printed_ <= 20) std::printf("  FAILED %s\n", what.c_str());
  }
  void add_elements(std::uint64_t n) { group_elements_ += n; }
  void end_group(const char* name) {
    std::printf("%-44s %7d passed, %d failed, %.1f M values\n", name, group_passed_, group_failed_,
                static_cast<double>(group_elements_) * 1e-6);
    std::fflush(stdout);
    passed_ += group_passed_;
    failed_ += group_failed_;
    elements_ += group_elements_;
    group_passed_ = group_failed_ = 0;
    group_elements_ = 0;
  }
  // The exit code of the program.
  int finish() const {
    std::printf("%.1f M values compared\n%d passed, %d failed\n", static_cast<double>(elements_) * 1e-6, passed_,
                failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  int passed_ = 0, failed_ = 0, group_passed_ = 0, group_failed_ = 0, printed_ = 0;
  std::uint64_t elements_ = 0, group_elements_ = 0;
};

// Device memory that starts `lead` elements into its allocation, so that it can be misaligned, and is filled with 0xA5
// so that whatever a kernel leaves out shows. What is written is there for every stream: cudaMemset and cudaMemcpy from
// pageable memory may return earlier than that.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t n = 0, std::size_t lead = 0) : n_(n), lead_(lead) {
    check(cudaMalloc(&base_, (n + lead) * sizeof(T) + 1), "cudaMalloc");
    check(cudaMemset(base_, 0xA5, (n + lead) * sizeof(T) + 1), "cudaMemset");
    synchronize("cudaMemset");
  }
  explicit device_array(const std::vector<T>& from, std::size_t lead = 0) : device_array(from.size(), lead) {
    assign(from);
  }
  ~device_array() { cudaFree(base_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* data() const { return base_ + lead_; }
  std::size_t size() const { return n_; }
  void assign(const std::vector<T>& from) {
    check(cudaMemcpy(data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
    synchronize("copy to the device");
  }
  std::vector<T> host() const {
    std::vector<T> v(n_);
    check(cudaMemcpy(v.data(), data(), n_ * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return v;
  }

 private:
  T* base_ = nullptr;
  std::size_t n_, lead_;
};

// A small generator of its own (splitmix64), so that every run tests the same values.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t bits64() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t bits() { return static_cast<std::uint32_t>(bits64() >> 32); }
  int below(int n) { return static_cast<int>(bits() % static_cast<std::uint32_t>(n)); }
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }

 private:
  std::uint64_t state_;
};

// f(i) for 0 <= i < n over all cores of the host, in chunks.
template <class F>
void parallel_for(std::int64_t n, F f, std::int64_t chunk = 1) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < cores; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i; (i = next.fetch_add(chunk)) < n;) {
        for (std::int64_t j = i; j < std::min(n, i + chunk); ++j) f(j);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

inline std::uint32_t float_bits(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline float bits_float(std::uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}
// Equal as bits; the sign and payload of a NaN are not part of the promise, since processors make different ones.
inline bool same_float(float a, float b) {
  return float_bits(a) == float_bits(b) ||
         ((float_bits(a) & 0x7FFFFFFFu) > 0x7F800000u && (float_bits(b) & 0x7FFFFFFFu) > 0x7F800000u);
}

}  // namespace device_test
