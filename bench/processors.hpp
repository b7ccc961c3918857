// On which processors a benchmark runs.
#pragma once

#if defined(__linux__)
#include <sched.h>

#include <cstring>
#endif

namespace bench {

// While it lives, this thread and those it starts may take all processors, wherever the program is pinned.
class on_all_processors {
 public:
  on_all_processors() {
#if defined(__linux__)
    cpu_set_t all;
    std::memset(&all, 0xFF, sizeof(all));
    sched_getaffinity(0, sizeof(before_), &before_);
    sched_setaffinity(0, sizeof(all), &all);
#endif
  }
  ~on_all_processors() {
#if defined(__linux__)
    sched_setaffinity(0, sizeof(before_), &before_);
#endif
  }
  on_all_processors(const on_all_processors&) = delete;
  on_all_processors& operator=(const on_all_processors&) = delete;

 private:
#if defined(__linux__)
  cpu_set_t before_;
#endif
};

}  // namespace bench
