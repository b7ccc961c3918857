// Who does the work of a whole-tensor call on the host.
#pragma once

#include "environment.hpp"
#include "view.hpp"

namespace microscale {

// An executor splits [0, count) into ranges and runs f(first, last) for each, on whichever threads it likes; `cost` is
// a rough count of the elements that one index stands for. No result may depend on where it splits. It need not care
// about the floating-point environment: every range sets its own.
template <class E>
concept host_executor = requires(const E& executor, index_t count, void (*f)(index_t, index_t)) {
  executor.for_ranges(count, count, f);
};

// The calling thread, in order: the statement of every operation that other executors are held to.
struct sequential {
  template <class F>
  void for_ranges(index_t count, index_t /*cost*/, F&& f) const {
    if (count > 0) f(index_t{0}, count);
  }
};

namespace detail {

// f over [0, count), each range in the default floating-point environment.
template <host_executor Executor, class F>
void run_ranges(const Executor& executor, index_t count, index_t cost, F&& f) {
  executor.for_ranges(count, cost,
                      [&](index_t first, index_t last) { in_default_environment([&] { f(first, last); }); });
}

}  // namespace detail
}  // namespace microscale
