// References over time: who samples when, what is held, and what never gets in.
#include <microscale/recipe/reference.hpp>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "support/tensors.hpp"

namespace ms = microscale;
using tensors::message_of;
using tensors::says;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// An executor that counts how often the data is looked at.
struct counting {
  int* looks;
  template <class F>
  void for_ranges(ms::index_t count, ms::index_t cost, F&& f) const {
    ++*looks;
    ms::sequential{}.for_ranges(count, cost, f);
  }
};

// One operand in a run: the reference that each step gets, for data with the given amax.
template <class Policy>
struct run {
  Policy policy;
  ms::reference_state state = {};
  int looks = 0;

  float at(std::int64_t step, float amax) {
    const std::vector<float> x = {0.1f, -amax, amax / 2};
    const float* r = ms::update_reference(policy, state, counting{&looks}, step, ms::matrix(x, 1, 3));
    CHECK(r == (Policy::carries_state ? &state.amax : nullptr));
    return r == nullptr ? -1.0f : *r;
  }
  std::string refused(std::int64_t step, float amax) {
    const ms::reference_state before = state;
    const std::string text = message_of([&] { at(step, amax); });
    CHECK(state == before);
    return text;
  }
};

}  // namespace

TEST_CASE("current scaling carries nothing and looks at nothing") {
  run<ms::current_scaling> r{};
  CHECK(r.at(1, 5) == -1.0f);
  CHECK(r.at(2, 7) == -1.0f);
  CHECK((r.looks == 0 && !r.state.is_set()));
}

TEST_CASE("periodic: sampled at the first step and every period after, held in between without a look") {
  run<ms::periodic_scaling> r{{.period = 50}};
  for (std::int64_t step = 1; step <= 151; ++step) {
    const float amax = 1.0f + static_cast<float>(step);
    const std::int64_t sampled = (step - 1) / 50 * 50 + 1;
    CHECK(r.at(step, amax) == 1.0f + static_cast<float>(sampled));
    CHECK(r.state.sampled_step == sampled);
  }
  CHECK(r.looks == 4);  // 1, 51, 101, 151
}

TEST_CASE("periodic: another first step; whoever holds nothing samples at any step") {
  run<ms::periodic_scaling> r{{.period = 4, .first_step = 10}};
  CHECK(r.at(3, 5) == 5);
  CHECK(r.at(7, 6) == 5);  // 7 is no multiple away from 10 that counts
  CHECK(r.at(10, 7) == 7);
  CHECK(r.at(13, 8) == 7);
  CHECK(r.at(14, 9) == 9);
  CHECK(r.looks == 3);
  r.state.reset();
  CHECK(!r.state.is_set());
  CHECK(r.at(15, 2) == 2);
  CHECK(r.at(16, 3) == 2);
}

TEST_CASE("periodic: micro-batches do not advance the step; the first one of a sampling step samples") {
  run<ms::periodic_scaling> r{{.period = 2}};
  CHECK(r.at(1, 5) == 5);
  CHECK(r.at(1, 9) == 5);
  CHECK(r.at(1, 1) == 5);
  CHECK(r.at(2, 8) == 5);
  CHECK(r.at(3, 4) == 4);
  CHECK(r.at(3, 6) == 4);
  CHECK(r.looks == 2);
}

TEST_CASE("a resumed run is the same run") {
  run<ms::periodic_scaling> whole{{.period = 5}}, first{{.period = 5}};
  for (std::int64_t step = 1; step <= 8; ++step) {
    whole.at(step, static_cast<float>(step));
    first.at(step, static_cast<float>(step));
  }
  run<ms::periodic_scaling> second{{.period = 5}, first.state};
  for (std::int64_t step = 9; step <= 20; ++step) {
    CHECK(second.at(step, static_cast<float>(step)) == whole.at(step, static_cast<float>(step)));
    CHECK(second.state == whole.state);
  }
}

TEST_CASE("delayed: the largest amax of the window before this step; at the first, this step's own") {
  run<ms::delayed_scaling> r{{.window = 3}};
  const float amax[] = {5, 9, 2, 3, 1, 1, 1, 8, 1};
  for (std::int64_t step = 1; step <= 9; ++step) {
    float want = 0;
    for (std::int64_t s = std::max<std::int64_t>(1, step - 3); s < step; ++s) want = std::max(want, amax[s - 1]);
    if (step == 1) want = amax[0];
    CHECK(r.at(step, amax[step - 1]) == want);
  }
}

TEST_CASE("delayed: micro-batches add to the entry of their step, which counts from the next one on") {
  run<ms::delayed_scaling> r{{.window = 2}};
  CHECK(r.at(1, 4) == 4);
  CHECK(r.at(1, 7) == 4);
  CHECK(r.at(1, 5) == 4);
  CHECK(r.at(2, 1) == 7);
  CHECK(r.at(2, 2) == 7);
  CHECK(r.at(3, 1) == 7);
  CHECK(r.at(4, 1) == 2);
  // A reference set from outside at this very step has no entry yet.
  run<ms::delayed_scaling> set{{.window = 2}};
  ms::set_reference(set.state, 3.0f, 5);
  CHECK(set.at(5, 6) == 3);
  CHECK(set.at(6, 1) == 6);
}

TEST_CASE("frozen: what was set stays, and without it there is an error") {
  run<ms::frozen_scaling> r{};
  CHECK(says(r.refused(1, 5), "frozen reference: expected one that has been set, got none"));
  ms::set_reference(r.state, 3.0f, 1);
  CHECK(r.at(1, 5) == 3);
  CHECK(r.at(1000, 50) == 3);
  CHECK(r.looks == 0);
}

TEST_CASE("NaN is passed over, an infinity never enters a state") {
  const std::vector<float> x = {not_a_number, -2.0f, 1.0f};
  ms::reference_state state;
  const float* r = ms::update_reference(ms::periodic_scaling{}, state, ms::sequential{}, 1, ms::matrix(x, 1, 3));
  CHECK(*r == 2.0f);
  run<ms::periodic_scaling> p{{.period = 2}};
  CHECK(says(p.refused(1, infinity), "reference amax: expected a finite number that is not negative, got inf"));
  CHECK(p.at(1, 5) == 5);
  CHECK(says(p.refused(3, infinity), "reference amax"));
  CHECK(p.at(4, infinity) == 5);  // held: not looked at
  run<ms::delayed_scaling> d{{.window = 2}};
  CHECK(d.at(1, 5) == 5);
  CHECK(says(d.refused(2, infinity), "reference amax"));
  CHECK(d.at(2, 1) == 5);
}

TEST_CASE("set_reference takes an amax and a step, and nothing else") {
  ms::reference_state state;
  for (const float bad : {infinity, -infinity, not_a_number, -1.0f}) {
    CHECK(says(message_of([&] { ms::set_reference(state, bad, 1); }), "reference amax"));
  }
  CHECK(says(message_of([&] { ms::set_reference(state, 1.0f, 0); }), "step of a reference: expected 1 or more, got 0"));
  CHECK(state == ms::reference_state{});
  ms::set_reference(state, -0.0f, 1);
  CHECK(ms::fp32::bits(state.amax) == 0);
  CHECK(state.is_set());
}

TEST_CASE("a period or a window of no steps is an error, not a crash") {
  for (const std::int64_t period : {0, -3}) {
    run<ms::periodic_scaling> r{{.period = period}};
    CHECK(says(r.refused(1, 5), "period of a reference: expected 1 or more"));
    CHECK(says(message_of([&] { ms::must_sample(ms::periodic_scaling{.period = period}, {}, 1); }), "1 or more"));
  }
  run<ms::delayed_scaling> r{{.window = 0}};
  CHECK(says(r.refused(1, 5), "window of a reference: expected 1 or more, got 0"));
}

TEST_CASE("an empty operand has the reference zero, which is one") {
  const std::vector<float> nothing;
  ms::reference_state state;
  CHECK(*ms::update_reference(ms::periodic_scaling{}, state, ms::sequential{}, 1, ms::matrix(nothing, 0, 3)) == 0.0f);
  CHECK(state.is_set());
}
