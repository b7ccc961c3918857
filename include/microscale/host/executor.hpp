// ms::host: the host's threads.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "../tensor/executor.hpp"
#include "simd_level.hpp"
#include "simd_ranges.hpp"

namespace microscale {

// Splits a call over threads. Results do not depend on the number of threads. Small work stays on the calling thread,
// because starting a thread costs about as much as quantizing a few thousand elements.
struct host {
  // How many threads at most; 0 means one per hardware thread.
  int threads = 0;
  // The vector instructions to use at most; what this machine lacks is not used.
  simd_level simd = simd_level::avx512;
  // Dequantized and fake-quantized matrices of so many bytes are written past the caches (on x86-64, along rows of at
  // least 4 KiB): faster for what would not stay in the last of them until it is read.
  index_t streamed_bytes = index_t{32} << 20;

  // How it does a range: see tensor/quantize.hpp.
  detail::simd_ranges ranges() const noexcept { return {usable_simd(simd), streamed_bytes}; }

  template <class F>
  void for_ranges(index_t count, index_t cost, F&& f) const {
    constexpr index_t smallest_share = 1 << 15;  // elements that are worth a thread
    const index_t available = threads > 0 ? threads : larger(1u, std::thread::hardware_concurrency());
    const index_t useful = larger(index_t{1}, count * larger(cost, index_t{1}) / smallest_share);
    const index_t parts = smaller(smaller(available, useful), count);
    if (parts <= 1) return sequential{}.for_ranges(count, cost, f);

    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto run_part = [&](index_t part) noexcept {
      try {
        f(count * part / parts, count * (part + 1) / parts);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        failure = std::current_exception();
      }
    };
    std::vector<std::thread> others;
    others.reserve(static_cast<std::size_t>(parts - 1));
    index_t started = 1;
    try {
      for (; started < parts; ++started) others.emplace_back(run_part, started);
    } catch (...) {
      // No more threads, or no memory for one: this one does what is left.
    }
    run_part(0);
    for (index_t part = started; part < parts; ++part) run_part(part);
    for (std::thread& t : others) t.join();
    if (failure) std::rethrow_exception(failure);
  }
};

}  // namespace microscale
