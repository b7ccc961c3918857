// References over time: saved and restored, reduced over ranks.
#include <microscale/recipe/state.hpp>

#include <catch2/catch_test_macros.hpp>
#include <locale>
#include <microscale/recipe/recipes.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/adversarial.hpp"

namespace ms = microscale;

namespace {

ms::linear_state round_trip(const ms::linear_state& state) {
  std::stringstream stream;
  ms::write_state(stream, state);
  return ms::read_state(stream);
}

bool refuses(const std::string& text) {
  std::istringstream stream(text);
  try {
    ms::read_state(stream);
  } catch (const ms::error&) {
    return true;
  }
  return false;
}

const std::string good =
    "microscale linear_state 1\n"
    "activation 41f00000 51 0\n"
    "weight 3dcccccd 51 2 3dcccccd 3d800000\n"
    "output_gradient 00000000 0 0\n";

// Groups digits, as some locales do.
struct grouping : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

struct delayed_ue5m3 : ms::recipes::ue5m3 {
  ms::delayed_scaling scaling{.window = 3};
};

constexpr int tokens = 32, in = 32, out = 48;

struct batch {
  std::vector<float> x, w, dy;
  batch(std::int64_t step, int rank = 0) : x(tokens * in), w(out * in), dy(tokens * out) {
    adversarial::numbers random(static_cast<std::uint64_t>(step * 100 + rank));
    for (float& v : x) v = static_cast<float>(random.normal());
    for (float& v : dy) v = static_cast<float>(random.normal());
    adversarial::numbers same(static_cast<std::uint64_t>(step));
    for (float& v : w) v = static_cast<float>(same.normal());
  }
};

// Everything one step computes.
template <class Layer, class Reduce = ms::no_reduction>
std::vector<float> run(Layer& layer, std::int64_t step, const Reduce& reduce = {}, int rank = 0, int micro_batch = 0) {
  const batch b(step * 10 + micro_batch, rank);
  const ms::training_step at{.step = step, .micro_batch = micro_batch, .seed = 5};
  std::vector<float> result(tokens * out + tokens * in + out * in);
  float* y = result.data();
  layer.forward(ms::sequential{}, at, ms::matrix(b.x.data(), tokens, in), ms::matrix(b.w.data(), out, in),
                ms::matrix(y, tokens, out), reduce);
  layer.backward(ms::sequential{}, at, ms::matrix(b.dy.data(), tokens, out), ms::matrix(y + tokens * out, tokens, in),
                 ms::matrix(y + tokens * (out + in), out, in), reduce);
  return result;
}

template <class Recipe>
void check_resumed(Recipe recipe) {
  using layer = ms::linear<Recipe, ms::exact_f32>;
  const ms::layer_position position{.count = 4, .layer = 3};
  layer straight(in, out, position, recipe);
  std::string saved;
  std::vector<std::vector<float>> expected;
  for (std::int64_t step = 1; step <= 9; ++step) {
    expected.push_back(run(straight, step));
    if (step == 5) {
      std::ostringstream stream;
      ms::write_state(stream, straight.state());
      saved = stream.str();
    }
  }
  layer resumed(in, out, position, recipe);
  std::istringstream stream(saved);
  resumed.state() = ms::read_state(stream);
  for (std::int64_t step = 6; step <= 9; ++step) {
    CHECK(run(resumed, step) == expected[static_cast<std::size_t>(step - 1)]);
  }
  CHECK(resumed.state() == straight.state());
  layer fresh(in, out, position, recipe);  // the state matters
  CHECK(run(fresh, 6) != expected[5]);
}

}  // namespace

TEST_CASE("a state survives a round trip bit for bit") {
  CHECK(round_trip({}) == ms::linear_state{});
  adversarial::numbers random(1);
  for (int i = 0; i < 200; ++i) {
    ms::linear_state state;
    for (ms::reference_state* r : {&state.activation, &state.weight, &state.output_gradient}) {
      r->amax = ms::fp32::abs(random.any_float());
      r->sampled_step = static_cast<std::int64_t>(random.bits() >> (1 + random.below(60)));
      r->history.resize(random.below(20));
      for (float& a : r->history) a = ms::fp32::abs(random.any_float());
    }
    const ms::linear_state back = round_trip(state);
    CHECK(back == state);
  }
}

TEST_CASE("the text is the documented one, whatever the stream's locale") {
  ms::linear_state state;
  state.activation = {30.0f, 51, {}};
  state.weight = {0.1f, 51, {0.1f, 0.0625f}};
  std::ostringstream plain;
  ms::write_state(plain, state);
  CHECK(plain.str() == good);

  state.weight.sampled_step = 1234567;
  std::stringstream stream;
  stream.imbue(std::locale(std::locale::classic(), new grouping));
  stream << std::hex;
  ms::write_state(stream, state);
  ms::write_state(stream, {});
  CHECK(ms::read_state(stream) == state);
  CHECK(ms::read_state(stream) == ms::linear_state{});
}

TEST_CASE("what is no state is refused") {
  CHECK_FALSE(refuses(good));
  CHECK(refuses(""));
  for (std::size_t length = 0; length + 2 < good.size(); ++length) CHECK(refuses(good.substr(0, length)));
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  CHECK(refuses(with("state 1", "state 2")));
  CHECK(refuses(with("microscale", "Microscale")));
  CHECK(refuses(with("weight", "activation")));
  CHECK(refuses(with("41f00000", "7f800000")));   // infinity
  CHECK(refuses(with("41f00000", "7fc00000")));   // NaN
  CHECK(refuses(with("41f00000", "c1f00000")));   // negative
  CHECK(refuses(with("41f00000", "41f00000f")));  // too wide
  CHECK(refuses(with("41f00000", "0x41f0")));
  CHECK(refuses(with(" 51 0", " -51 0")));
  CHECK(refuses(with(" 51 0", " 51 9223372036854775808")));
  CHECK(refuses(with(" 51 0", " 51 9223372036854775807")));  // more history than there is
  std::ostringstream closed;
  closed.setstate(std::ios::failbit);
  CHECK_THROWS_AS(ms::write_state(closed, {}), ms::error);
}

TEST_CASE("a resumed run is the uninterrupted one") {
  check_resumed(ms::recipes::ue5m3{.scaling = {.period = 4}});
  check_resumed(delayed_ue5m3{});
}

TEST_CASE("an amax is reduced where it is sampled, once, and nowhere else") {
  int calls = 0;
  const auto largest_of_all = [&](float amax) {
    ++calls;
    return ms::larger(amax, 100.0f);
  };
  ms::linear<ms::recipes::ue5m3> layer(in, out, {.count = 4}, {.scaling = {.period = 3}});
  std::vector<int> per_step;
  for (std::int64_t step = 1; step <= 7; ++step) {
    calls = 0;
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) run(layer, step, largest_of_all, 0, micro_batch);
    per_step.push_back(calls);
  }
  CHECK(per_step == std::vector<int>{3, 0, 0, 3, 0, 0, 3});  // X, W and dY
  CHECK(layer.state().activation.amax == 100.0f);
  CHECK(layer.state().output_gradient.amax == 100.0f);

  // Current scaling is each process's own.
  calls = 0;
  ms::linear<ms::recipes::nvfp4> current(in, out, {.count = 4});
  run(current, 1, largest_of_all);
  CHECK(calls == 0);
}

TEST_CASE("ranks that share their largest amax hold one state; an infinity is an error on all") {
  // Two ranks run in turn, first to learn each other's amaxes, then with the maximum.
  struct recorder {
    std::vector<float>* seen;
    float operator()(float amax) const {
      seen->push_back(amax);
      return amax;
    }
  };
  struct maximum {
    const std::vector<float>*a, *b;
    std::size_t* next;
    float operator()(float) const {
      const std::size_t i = (*next)++;
      return ms::larger((*a)[i], (*b)[i]);
    }
  };
  std::vector<float> seen[2];
  ms::linear_state states[2];
  for (int rank = 0; rank < 2; ++rank) {
    ms::linear<ms::recipes::ue5m3> layer(in, out, {.count = 4});
    run(layer, 1, recorder{&seen[rank]}, rank);
  }
  CHECK(seen[0][0] != seen[1][0]);
  for (int rank = 0; rank < 2; ++rank) {
    std::size_t next = 0;
    ms::linear<ms::recipes::ue5m3> layer(in, out, {.count = 4});
    run(layer, 1, maximum{&seen[0], &seen[1], &next}, rank);
    states[rank] = layer.state();
  }
  CHECK(states[0] == states[1]);
  CHECK(states[0].activation.amax == ms::larger(seen[0][0], seen[1][0]));

  ms::linear<ms::recipes::ue5m3> layer(in, out, {.count = 4});
  const auto infinite_elsewhere = [](float) { return ms::fp32::infinity(); };
  CHECK_THROWS_AS(run(layer, 1, infinite_elsewhere), ms::error);
  CHECK(layer.state() == ms::linear_state{});
}
