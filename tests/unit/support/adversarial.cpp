#include "adversarial.hpp"

#include <cmath>
#include <limits>

namespace adversarial {

std::uint64_t numbers::bits() {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double numbers::normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += unit();
  return sum;
}

float numbers::log_uniform(double low_exponent, double high_exponent) {
  const double x = std::exp2(low_exponent + (high_exponent - low_exponent) * unit());
  return static_cast<float>(below(2) != 0 ? x : -x);
}

float numbers::any_float() {
  for (;;) {
    const auto b = static_cast<std::uint32_t>(bits());
    if ((b & 0x7F800000u) != 0x7F800000u) return __builtin_bit_cast(float, b);
  }
}

namespace {

constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float flt_min = std::numeric_limits<float>::min();

// `steps` patterns farther from zero, or nearer.
float shifted(float x, int steps) {
  for (; steps > 0; --steps) x = std::nextafter(x, std::copysign(flt_max, x));
  for (; steps < 0; ++steps) x = std::nextafter(x, 0.0f);
  return x;
}

float as_bf16(double x) { return model::decode(model::bf16, model::encode(model::bf16, x)); }

float saturated(double x) { return static_cast<float>(std::fmin(std::fmax(x, -flt_max), flt_max)); }

}  // namespace

std::vector<block> blocks(const model::scheme& s, int elements, int count, std::uint64_t seed) {
  numbers random(seed);
  const double largest = model::magnitude(s.element, s.element.top);
  const bool is_ufp4 = s.how == model::rule::ufp4;
  std::vector<block> result;
  for (int n = 0; n < count; ++n) {
    block b{"", 1, std::vector<float>(static_cast<std::size_t>(elements))};
    std::vector<float>& x = b.values;
    const auto any = [&]() -> float& { return x[random.below(static_cast<unsigned>(elements))]; };
    const auto random_scale = [&] {
      return is_ufp4 ? std::fabs(static_cast<double>(random.log_uniform(-20, 20)))
                     : model::magnitude(s.scale, random.below(s.scale.top) + 1);
    };
    switch (n % 14) {
      case 0: {
        b.what = "elements on ties times a scale, a few units in the last place off";
        b.reference = n % 28 == 0 ? static_cast<float>(largest * s.target) : as_bf16(std::exp2(random.normal() * 10));
        const double unit = random_scale() * static_cast<double>(model::tensor_scale(s, b.reference).decode);
        for (float& v : x) {
          const unsigned m = random.below(s.element.top);
          const double tie = (model::magnitude(s.element, m) + model::magnitude(s.element, m + 1)) / 2;
          v = shifted(saturated((random.below(2) != 0 ? tie : -tie) * unit), static_cast<int>(random.below(5)) - 2);
        }
        any() = saturated(largest * unit);
        break;
      }
      case 1: {
        b.what = "amax on a tie between two scales";
        b.reference = as_bf16(std::exp2(random.normal() * 10));
        const double d = static_cast<double>(model::tensor_scale(s, b.reference).decode);
        const unsigned m = is_ufp4 ? 0 : random.below(s.scale.top);
        const double tie =
            is_ufp4 ? random_scale() : (model::magnitude(s.scale, m) + model::magnitude(s.scale, m + 1)) / 2;
        const float a = shifted(saturated(largest * tie * d), static_cast<int>(random.below(5)) - 2);
        for (float& v : x) v = static_cast<float>(random.unit() * 2 - 1) * a;
        any() = random.below(2) != 0 ? a : -a;
        break;
      }
      case 2:
        b.what = "a wide range";
        for (float& v : x) v = random.log_uniform(-40, 40);
        b.reference = static_cast<float>(std::exp2(random.unit() * 40));
        break;
      case 3:
        b.what = "normal numbers in bfloat16";
        for (float& v : x) v = as_bf16(random.normal());
        b.reference = as_bf16(3 + random.unit());
        break;
      case 4:
        b.what = "far below the reference";
        for (float& v : x) v = random.log_uniform(-40, -10);
        b.reference = as_bf16(1 + random.unit());
        break;
      case 5: {
        b.what = "a reference that is too small";
        const double factors[] = {1, 1.5, 2, 10, 30, 137, 200, 1000};
        for (float& v : x) v = as_bf16(random.normal());
        any() = 4;
        b.reference = static_cast<float>(4 / factors[random.below(8)]);
        break;
      }
      case 6:
        b.what = "subnormal numbers";
        for (float& v : x) {
          v = __builtin_bit_cast(float, static_cast<std::uint32_t>(random.bits()) & 0x807FFFFFu);
        }
        b.reference = random.below(2) != 0 ? flt_min : std::fabs(x[0]);
        break;
      case 7:
        b.what = "the largest numbers";
        for (float& v : x) v = random.log_uniform(100, 127.99);
        any() = flt_max;
        any() = -flt_max;
        b.reference = random.below(2) != 0 ? flt_max : 1.0f;
        break;
      case 8:
        b.what = "one number among zeros of both signs";
        for (float& v : x) v = random.below(2) != 0 ? 0.0f : -0.0f;
        any() = random.log_uniform(-30, 10);
        b.reference = static_cast<float>(std::exp2(random.normal() * 5));
        break;
      case 9:
        b.what = "zeros";
        for (float& v : x) v = random.below(2) != 0 ? 0.0f : -0.0f;
        b.reference = random.below(2) != 0 ? 0.0f : std::fabs(random.any_float());
        break;
      case 10: {
        b.what = "an extreme reference";
        const float references[] = {0, 1e-45f, flt_min / 3, 1e-38f, 1e-30f, 1e30f, 7.6e35f, flt_max};
        b.reference = references[random.below(8)];
        for (float& v : x) v = random.log_uniform(-20, 5);
        any() = -0.0f;
        any() = 0.0f;
        break;
      }
      case 11:
        b.what = "any pattern";
        for (float& v : x) v = random.any_float();
        b.reference = std::fabs(random.any_float());
        break;
      case 12:
        b.what = "the same number everywhere, negative";
        for (float& v : x) v = -as_bf16(std::exp2(random.normal() * 20));
        for (float& v : x) v = x[0];
        b.reference = std::fabs(x[0]);
        break;
      default: {
        b.what = "multiples of a power of two, where four beats six or does not";
        const double unit = std::exp2(static_cast<int>(random.below(40)) - 20);
        for (float& v : x) v = static_cast<float>(unit * (static_cast<int>(random.below(25)) - 12) / 2);
        any() = static_cast<float>(unit * (random.below(2) != 0 ? 6 : 4));
        b.reference = static_cast<float>(unit * (1 + random.below(2000)));
        break;
      }
    }
    result.push_back(b);
  }
  return result;
}

}  // namespace adversarial
