// Executors: every index once, exceptions to the caller, whatever the number of threads.
#include <microscale/host/executor.hpp>
#include <utility>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <limits>
#include <microscale/tensor/error.hpp>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ms = microscale;

// How many allocations this thread may still make before one fails; negative: any number.
thread_local int allocations_left = -1;

void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

static_assert(ms::host_executor<ms::sequential> && ms::host_executor<ms::host>);

namespace {

constexpr ms::index_t worth_a_thread = 1 << 15;

template <class Executor>
bool covers_once(const Executor& executor, ms::index_t count, ms::index_t cost) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
  std::atomic<bool> empty_range{false};
  executor.for_ranges(count, cost, [&](ms::index_t first, ms::index_t last) {
    if (first >= last) empty_range = true;
    for (ms::index_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  bool once = !empty_range;
  for (const auto& n : seen) once = once && n == 1;
  return once;
}

}  // namespace

TEST_CASE("every index is visited once, and nothing is called for none") {
  for (const int threads : {0, 1, 2, 3, 7, 16, 40}) {
    for (const ms::index_t count : {0, 1, 2, 5, 16, 17, 1000}) {
      CHECK(covers_once(ms::host{.threads = threads}, count, worth_a_thread));
      CHECK(covers_once(ms::host{.threads = threads}, count, 1));
      CHECK(covers_once(ms::host{.threads = threads}, count, 0));
    }
  }
  CHECK(covers_once(ms::sequential{}, 17, 1));
  bool called = false;
  ms::host{.threads = 4}.for_ranges(0, worth_a_thread, [&](ms::index_t, ms::index_t) { called = true; });
  ms::sequential{}.for_ranges(0, 1, [&](ms::index_t, ms::index_t) { called = true; });
  CHECK(!called);
}

TEST_CASE("small work stays on the calling thread; large work is shared") {
  const auto ranges = [](ms::index_t count, ms::index_t cost) {
    std::atomic<int> n{0};
    std::atomic<bool> elsewhere{false};
    const auto here = std::this_thread::get_id();
    ms::host{.threads = 4}.for_ranges(count, cost, [&](ms::index_t, ms::index_t) {
      ++n;
      if (std::this_thread::get_id() != here) elsewhere = true;
    });
    return std::pair<int, bool>(n, elsewhere);
  };
  CHECK(ranges(100, 10) == std::pair(1, false));
  CHECK(ranges(4, worth_a_thread) == std::pair(4, true));
  CHECK(ranges(3, 1 << 30) == std::pair(3, true));  // never more parts than indices
}

TEST_CASE("an exception in any thread reaches the caller, once all have ended") {
  for (const int threads : {1, 2, 16}) {
    for (const ms::index_t bad : {0, 8, 15}) {
      std::atomic<int> ended{0};
      std::string what;
      try {
        ms::host{.threads = threads}.for_ranges(16, worth_a_thread, [&](ms::index_t first, ms::index_t last) {
          if (first <= bad && bad < last) throw ms::error("at " + std::to_string(bad));
          ++ended;
        });
      } catch (const ms::error& e) {
        what = e.what();
      }
      CHECK(what == "at " + std::to_string(bad));
      CHECK(ended == threads - 1);
    }
  }
  CHECK_THROWS_AS(
      (ms::host{.threads = 3}.for_ranges(16, worth_a_thread, [](ms::index_t, ms::index_t) { throw std::bad_alloc(); })),
      std::bad_alloc);
}

TEST_CASE("without memory for another thread the work is done by those there are, or nothing is begun") {
  int done = 0, refused = 0;
  for (int allocations = 0; allocations < 12; ++allocations) {
    std::atomic<int> visited{0};
    bool threw = false;
    allocations_left = allocations;
    try {
      ms::host{.threads = 4}.for_ranges(
          16, worth_a_thread, [&](ms::index_t first, ms::index_t last) { visited += static_cast<int>(last - first); });
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    allocations_left = -1;
    CHECK(visited == (threw ? 0 : 16));
    (threw ? refused : done) += 1;
  }
  CHECK((refused == 1 && done == 11));
}
