// Lets the library's whole-tensor calls run on this program's threads.
#pragma once

#include <algorithm>
#include <microscale/host/executor.hpp>

#include "parallel.hpp"

namespace pretrain {

// An executor of one's own: what microscale::host_executor asks for.
struct pool_executor {
  thread_pool* pool;

  template <class F>
  void for_ranges(index_t count, index_t cost, F&& f) const {
    constexpr index_t smallest_share = 1 << 12;  // elements that are worth waking a thread
    const index_t useful = std::max(index_t{1}, count * std::max(cost, index_t{1}) / smallest_share);
    const index_t parts = std::min({index_t{pool->size()}, useful, count});
    pool->for_each(parts, [&](index_t part) { f(count * part / parts, count * (part + 1) / parts); });
  }
};

static_assert(microscale::host_executor<pool_executor>);

// The same, each range done as the library's own executor does it: with vector instructions.
struct vector_pool_executor : pool_executor {
  auto ranges() const { return microscale::host{}.ranges(); }
};

}  // namespace pretrain
