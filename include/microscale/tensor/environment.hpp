// The floating-point environment of a whole-tensor call.
#pragma once

#include <cfenv>

namespace microscale::detail {

// Round to nearest, subnormals kept, for as long as the object lives; then the caller's environment is put back,
// status flags included. A program linked with -ffast-math runs with flush-to-zero on, and callers may have set
// another rounding mode: neither may change a code.
class default_environment {
 public:
  default_environment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_environment() { std::fesetenv(&saved_); }
  default_environment(const default_environment&) = delete;
  default_environment& operator=(const default_environment&) = delete;

 private:
  std::fenv_t saved_;
};

// Runs `work` in the default environment. The work sits in a function of its own that is never inlined, because
// nothing else keeps a compiler from moving floating-point operations across the change of the environment.
template <class Work>
[[gnu::noinline]] void run_out_of_line(Work& work) {
  work();
}

template <class Work>
void in_default_environment(Work&& work) {
  const default_environment guard;
  run_out_of_line(work);
}

}  // namespace microscale::detail
