// References: the amax that a tensor scale derives from, and the state that a training run carries for it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "../tensor/quantize.hpp"

namespace microscale {

// Policies. `samples(step)` says whether the amax of the data is taken at this step; between samples the last one is
// held, and a holding step needs no pass over the data. Steps count from 1.

// Every tensor's own amax, every time.
struct current_scaling {
  static constexpr bool carries_state = false;
  constexpr bool samples(std::int64_t) const noexcept { return true; }
};

// Periodic sample-and-hold (arXiv 2609.02846): the reference becomes the amax at steps first, first + period,
// first + 2 period, ... and is held in between.
struct periodic_scaling {
  static constexpr bool carries_state = true;
  std::int64_t period = 50;
  std::int64_t first_step = 1;
  constexpr bool samples(std::int64_t step) const noexcept {
    return step >= first_step && (step - first_step) % period == 0;
  }
};

// The largest amax of the last `window` steps before this one; at the first step, this step's own. Every step's amax
// enters the window once it is over.
struct delayed_scaling {
  static constexpr bool carries_state = true;
  int window = 16;
  constexpr bool samples(std::int64_t) const noexcept { return true; }
};

// For recipes whose schemes have no tensor scale: there is nothing to refer to.
struct no_references {
  static constexpr bool carries_state = false;
  constexpr bool samples(std::int64_t) const noexcept { return false; }
};

// Never sampled: the reference is set from outside (calibration, normalized networks) and stays.
struct frozen_scaling {
  static constexpr bool carries_state = true;
  constexpr bool samples(std::int64_t) const noexcept { return false; }
};

// The held reference of one operand of one layer: what a checkpoint has to store for a resumed run to be the same run.
struct reference_state {
  float amax = 0.0f;
  std::int64_t sampled_step = 0;  // the step at which it was last set; 0 means never
  std::vector<float> history;     // delayed scaling: the amax of recent steps, newest last

  friend constexpr bool operator==(const reference_state&, const reference_state&) = default;

  bool is_set() const noexcept { return sampled_step > 0; }
  void reset() noexcept { *this = {}; }
};

namespace detail {

// A period or a window that counts at least one step.
template <class Policy>
void check_policy(const Policy& policy) {
  if constexpr (requires { policy.period; }) {
    if (policy.period < 1) fail("period of a reference", "1 or more", std::to_string(policy.period));
  }
  if constexpr (requires { policy.window; }) {
    if (policy.window < 1) fail("window of a reference", "1 or more", std::to_string(policy.window));
  }
}

inline float checked_amax(float amax) {
  if (!fp32::is_finite(amax) || (fp32::is_negative(amax) && !fp32::is_zero(amax))) {
    fail("reference amax", "a finite number that is not negative", std::to_string(amax));
  }
  return fp32::abs(amax);
}

}  // namespace detail

// Sets a reference that was found elsewhere (calibration, a checkpoint, a reduction over ranks). NaN, infinity and
// negative numbers are errors and leave the state as it was.
inline void set_reference(reference_state& state, float amax, std::int64_t step) {
  const float checked = detail::checked_amax(amax);
  if (step < 1) detail::fail("step of a reference", "1 or more", std::to_string(step));
  state.amax = checked;
  state.sampled_step = step;
}

// Whether this call has to look at the data: the policy samples at this step and no earlier micro-batch of the step
// has, or nothing is held yet. Delayed scaling looks every time. Throws ms::error for a period or a window below 1.
template <class Policy>
bool must_sample(const Policy& policy, const reference_state& state, std::int64_t step) {
  detail::check_policy(policy);
  if constexpr (std::is_same_v<Policy, delayed_scaling>) return true;
  return (policy.samples(step) && state.sampled_step != step) || !state.is_set();
}

// What a sampled amax goes through before it is held: a function object float -> float. This one is for a process that
// is alone; mpi.hpp and nccl.cuh have the maximum over ranks.
struct no_reduction {
  constexpr float operator()(float amax) const noexcept { return amax; }
};

// The reference to use at `step`, looking at the data where the policy says so; null where the policy carries no state
// and the quantizer takes the tensor's own amax. The first micro-batch of a sampling step samples, the others hold. An
// amax that is infinite is an error and leaves the state as it was; NaN elements are passed over.
//
// `sample` has the amax of the data; it is called once where the data is looked at, and so is `reduce`, for what it
// says, and nowhere else. Ranks that hold equal states and are at the same step look at the same time, so `reduce` may
// be a collective; since it comes before the amax is checked, an infinite amax of one rank is an error on all of them.
template <class Policy, std::invocable Sample, class Reduce = no_reduction>
const float* update_reference(const Policy& policy, reference_state& state, std::int64_t step, const Sample& sample,
                              const Reduce& reduce = {}) {
  if constexpr (!Policy::carries_state) {
    return nullptr;
  } else {
    if (!must_sample(policy, state, step)) return &state.amax;
    if constexpr (std::is_same_v<Policy, frozen_scaling>) {
      detail::fail("frozen reference", "one that has been set", "none");
    }
    const float own = detail::checked_amax(reduce(sample()));
    if constexpr (std::is_same_v<Policy, delayed_scaling>) {
      std::vector<float>& history = state.history;
      if (state.is_set() && state.sampled_step == step) {
        if (history.empty()) history.push_back(own);  // set from outside at this step
        history.back() = fp32::max_number(history.back(), own);
      } else {
        const std::size_t window = static_cast<std::size_t>(policy.window);
        if (history.size() > window) history.erase(history.begin(), history.end() - policy.window);
        float largest = history.empty() ? own : history.front();
        for (const float amax : history) largest = fp32::max_number(largest, amax);
        set_reference(state, largest, step);
        history.push_back(own);
      }
    } else {
      set_reference(state, own, step);
    }
    return &state.amax;
  }
}

// The same for a matrix on the host.
template <class Policy, host_executor Executor, class T, class Reduce = no_reduction>
const float* update_reference(const Policy& policy, reference_state& state, const Executor& executor, std::int64_t step,
                              matrix_view<T> data, const Reduce& reduce = {}) {
  return update_reference(
      policy, state, step, [&] { return amax(executor, data); }, reduce);
}

}  // namespace microscale
