// Timing on a GPU, for programs that are built where none is and carried to one: interleaved runs, medians, the share
// of a ceiling that was measured in the same run.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace cuda_timing {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

// Whether there is a GPU; says so and names it.
inline bool find_gpu() {
  int count = 0;
  cudaDeviceProp properties;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no GPU here\n");
    return false;
  }
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, sm_%d%d, %d multiprocessors, L2 %.0f MiB\n", properties.name, properties.major, properties.minor,
              properties.multiProcessorCount, properties.l2CacheSize / 1048576.0);
  return true;
}

// Device memory, not initialized.
template <class T>
class buffer {
 public:
  explicit buffer(std::int64_t n) : size_(n) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(n) * sizeof(T)), "cudaMalloc");
  }
  ~buffer() { cudaFree(data_); }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  T* data() const { return data_; }
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  T* data_ = nullptr;
  std::int64_t size_;
};

// One thing to time: what it is called, the bytes that it must move, the operation whose time is its ceiling (empty for
// ceilings themselves), and a call that enqueues it on set `i` of its buffers.
struct operation {
  std::string name;
  double bytes = 0;
  std::string ceiling;
  std::function<void(int i)> run;
  std::vector<float> milliseconds = {};

  double median() const {
    std::vector<float> sorted = milliseconds;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// Runs all operations `rounds` times, one after another in every round, each `batch` times on as many sets of buffers
// (so that the gap between kernels does not count for small ones), and prints a table of medians; `csv`, unless null,
// gets the same as lines of size, name, milliseconds, GB/s, share.
inline void compare(const std::string& title, std::vector<operation>& operations, int rounds, int batch,
                    std::FILE* csv) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (auto& o : operations) {
      check(cudaEventRecord(begin), "cudaEventRecord");
      for (int i = 0; i < batch; ++i) o.run((round + 2) * batch + i);
      check(cudaEventRecord(end), "cudaEventRecord");
      check(cudaEventSynchronize(end), o.name.c_str());
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      if (round >= 0) o.milliseconds.push_back(ms / static_cast<float>(batch));
    }
  }
  std::printf("\n%s, median of %d\n%-58s %9s %8s %7s\n", title.c_str(), rounds, "operation", "ms", "GB/s", "share");
  for (const auto& o : operations) {
    const double ms = o.median(), rate = o.bytes / ms * 1e-6;
    double share = 0;
    for (const auto& c : operations) {
      if (!o.ceiling.empty() && c.name == o.ceiling) share = c.median() / ms;
    }
    std::printf("%-58s %9.4f %8.0f", o.name.c_str(), ms, rate);
    share > 0 ? std::printf(" %7.3f\n", share) : std::printf("\n");
    if (csv != nullptr) std::fprintf(csv, "%s,%s,%.5f,%.1f,%.4f\n", title.c_str(), o.name.c_str(), ms, rate, share);
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
}

}  // namespace cuda_timing
