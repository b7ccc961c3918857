// Holds the backward pass of the whole model against finite differences of its forward pass. For
// every tensor of weights, the slope of the loss along a few random directions of signs must be the
// one that the gradient foretells.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "math.hpp"
#include "model.hpp"
#include "parallel.hpp"
#include "recipes.hpp"

using namespace pretrain;

int main() {
  constexpr int directions = 4;
  constexpr std::size_t sequences = 3;
  constexpr std::uint64_t seed = 11;
  // Odd shapes on purpose: an edge of every tile is cut off.
  const model_config config{.context = 21, .width = 36, .heads = 3, .hidden = 50, .blocks = 2};

  const ranks alone;
  thread_pool pool(2);
  transformer model(config, *find_recipe("f32"), seed, pool, alone);

  const auto tokens = sequences * static_cast<std::size_t>(config.context);
  std::vector<std::uint8_t> inputs(tokens), targets(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    inputs[i] = static_cast<std::uint8_t>(random_bits(seed, 100, i) % 20);
    targets[i] = static_cast<std::uint8_t>(random_bits(seed, 101, i) % 20);
  }
  // Away from the starting point, where gains are exactly one and the head is nearly zero.
  std::uint64_t stream = 200;
  for (parameter* p : model.parameters()) {
    for (std::size_t i = 0; i < p->value.size(); ++i)
      p->value[i] = 1.5f * p->value[i] + 0.1f * random_uniform(seed, stream, i);
    ++stream;
  }

  model.forward(inputs, targets, {.step = 1, .seed = seed});
  model.backward();

  int failures = 0;
  for (parameter* p : model.parameters()) {
    const std::vector<float> value = p->value;
    const auto n = static_cast<double>(value.size());
    double norm = 0;
    for (const float g : p->gradient) norm += static_cast<double>(g) * static_cast<double>(g);
    norm = std::sqrt(norm);

    double worst = 0;
    for (int d = 0; d < directions; ++d, ++stream) {
      // A step long enough to stand out of FP32's rounding and short enough for a straight line:
      // half of it quarters the deviation, an eighth of it raises it again.
      const auto length = static_cast<float>(std::fmin(0.00125, std::ldexp(1.0, -11) / norm));
      const auto shift = [&](std::size_t i, float by) {
        return value[i] + (random_bits(seed, stream, i) & 1 ? by : -by);
      };
      double foretold = 0;
      const auto loss_at = [&](float by) {
        for (std::size_t i = 0; i < value.size(); ++i) p->value[i] = shift(i, by);
        return model.evaluate(inputs, targets);
      };
      const double difference = loss_at(length) - loss_at(-length);
      for (std::size_t i = 0; i < value.size(); ++i)
        foretold += static_cast<double>(p->gradient[i]) *
                    (static_cast<double>(shift(i, length)) - static_cast<double>(shift(i, -length)));
      worst = std::fmax(worst, std::fabs(difference - foretold) / (2 * length * norm));
      p->value = value;
    }
    const bool good = norm > 1e-6 && worst < 0.005;
    failures += !good;
    std::printf("%s %-32s %6.0f weights, gradient %.3e, largest deviation %.2e\n", good ? "ok  " : "FAIL",
                p->name.c_str(), n, norm, worst);
  }
  return failures == 0 ? 0 : 1;
}
