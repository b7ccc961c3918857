// Splits [0, count) over the processor's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace exhaustive {

// Calls work(begin, end) for pieces of [0, count), from as many threads as there are processors.
template <class Work>
void in_parallel(std::uint64_t count, std::uint64_t piece, const Work& work) {
  std::atomic<std::uint64_t> next{0};
  const auto run = [&] {
    for (;;) {
      const std::uint64_t begin = next.fetch_add(piece);
      if (begin >= count) return;
      work(begin, std::min(begin + piece, count));
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(run);
  run();
  for (std::thread& t : threads) t.join();
}

}  // namespace exhaustive
