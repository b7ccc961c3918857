#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace model {

// A volatile result is rounded to binary32 before it is used again, and never fused with the next operation.
float mul(float a, float b) {
  const volatile float r = a * b;
  return r;
}
float div(float a, float b) {
  const volatile float r = a / b;
  return r;
}
float add(float a, float b) {
  const volatile float r = a + b;
  return r;
}
float square_root(float a) { return std::sqrt(a); }
bool less(float a, float b) { return a < b; }
bool is_nan(float x) { return std::isnan(x); }

namespace {

constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float flt_min = std::numeric_limits<float>::min();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// Half-way between a magnitude and the next.
double midpoint(const format& f, unsigned m) { return (magnitude(f, m) + magnitude(f, m + 1)) / 2; }

// The smaller number; a NaN yields to the other one.
float smaller(float a, float b) { return std::fmin(a, b); }

std::uint32_t bits_of(float x) {
  std::uint32_t b = 0;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

}  // namespace

double magnitude(const format& f, unsigned m) {
  if (f.kind == family::fixed_point) return std::ldexp(m, -f.mantissa_bits);
  if (f.kind == family::power_of_two) return std::ldexp(1.0, static_cast<int>(m) - f.bias);
  const int e = static_cast<int>(m >> f.mantissa_bits);
  const unsigned fraction = m & ((1u << f.mantissa_bits) - 1);
  if (e == 0) return std::ldexp(fraction, 1 - f.bias - f.mantissa_bits);
  return std::ldexp(fraction + (1u << f.mantissa_bits), e - f.bias - f.mantissa_bits);
}

float decode(const format& f, unsigned code) {
  if (f.kind == family::fixed_point) {
    const unsigned half = f.top + 1;
    const double n = code < half ? code : code - 2.0 * half;
    return static_cast<float>(std::ldexp(n, -f.mantissa_bits));
  }
  const unsigned sign = f.has_sign ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  const unsigned m = code & ((1u << (f.exponent_bits + f.mantissa_bits)) - 1);
  const double negative = (code & sign) != 0 ? -1 : 1;
  if (static_cast<int>(m) == f.infinity) return static_cast<float>(negative * HUGE_VAL);
  if (m > f.top) return not_a_number;
  return static_cast<float>(std::copysign(magnitude(f, m), negative));
}

unsigned round_quotient(const format& f, double p, double q, bool negative, rounding how, unsigned r) {
  // The last magnitude that is not above the quotient. Formats of 16 bits are too long to walk: halve.
  unsigned low = 0, high = f.top + 1;
  if (p < q * magnitude(f, 0)) return 0;  // below the smallest power of two
  while (high - low > 1) {
    const unsigned middle = low + (high - low) / 2;
    (p >= q * magnitude(f, middle) ? low : high) = middle;
  }
  const double here = q * magnitude(f, low), step = q * magnitude(f, low + 1) - here;
  bool up = false;
  switch (how) {
    case rounding::nearest_even: {
      const double half = q * midpoint(f, low);
      const bool odd = f.kind == family::power_of_two || low % 2 == 1;
      up = p > half || (p == half && odd);
      break;
    }
    case rounding::toward_zero:
      break;
    case rounding::toward_positive:
      up = !negative && p > here;
      break;
    case rounding::toward_negative:
      up = negative && p > here;
      break;
    case rounding::midpoint8:
      up = p - here >= step * (1 - (2 * r + 1) / 512.0);
      break;
    case rounding::floor8:
      up = p - here >= step * (1 - r / 256.0);
      break;
  }
  return std::min(low + (up ? 1 : 0), f.top);
}

unsigned encode(const format& f, double x, rounding how, unsigned r) {
  const unsigned sign = f.has_sign ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  const bool negative = std::signbit(x);
  if (std::isnan(x)) {
    if (f.nan < 0) return f.top;
    return static_cast<unsigned>(f.nan) | (negative ? sign : 0);
  }
  if (negative && !f.has_sign) return 0;
  const unsigned m = std::isinf(x) ? f.top : round_quotient(f, std::fabs(x), 1, negative, how, r);
  if (f.kind == family::fixed_point) return (negative ? 0u - m : m) & (2 * f.top + 1);
  return m | (negative ? sign : 0);
}

tensor tensor_scale(const scheme& s, float reference) {
  const float largest = static_cast<float>(magnitude(s.element, s.element.top));
  const float top = largest * static_cast<float>(s.target);
  tensor t;
  switch (s.how) {
    case rule::paper:
      t.encode = reference == 0 ? 1 : smaller(div(top, reference), flt_max);
      t.decode = div(1, t.encode);
      break;
    case rule::te:
    case rule::four_over_six:
      t.encode = smaller(div(top, reference), flt_max);
      if (reference == 0 || t.encode == 0) t.encode = 1;
      t.decode = div(1, t.encode);
      break;
    case rule::torchao:
    case rule::modelopt:
      t.decode = s.reciprocal ? mul(reference, div(1, top)) : div(reference, top);
      if (t.decode == 0) t.decode = 1;
      break;
    case rule::compressed_tensors:
      t.encode = mul(div(1, std::fmax(reference, flt_min)), top);
      if (!std::isfinite(t.encode)) t.encode = 1;
      t.decode = div(1, t.encode);
      break;
    case rule::exact:
      t.decode = div(reference, top);
      if (t.decode == 0) t.decode = 1;
      break;
    default:
      break;
  }
  return t;
}

namespace {

// What the elements of a block become under a scale.
struct coder {
  const scheme& s;
  float reference;
  tensor t;
  const std::vector<float>& values;
  rounding how;
  const std::vector<unsigned>& random;
  float largest = static_cast<float>(magnitude(s.element, s.element.top));

  float constant_division(float a, float constant) const {
    return s.reciprocal ? mul(a, div(1, constant)) : div(a, constant);
  }
  unsigned element(double y, std::size_t i) const { return encode(s.element, y, how, random.empty() ? 0 : random[i]); }

  // The code of element i.
  unsigned code(float x, std::uint32_t scale_code, std::size_t i) const {
    const float scale = decode(s.scale, scale_code);
    switch (s.how) {
      case rule::paper:
      case rule::te:
      case rule::four_over_six:
        return element(mul(x, smaller(div(1, mul(scale, t.decode)), flt_max)), i);
      case rule::torchao: {
        if (x == 0) return element(x, i);
        const float y = mul(x, div(div(1, t.decode), scale));
        return element(std::isnan(y) ? y : std::fmax(-6.0f, std::fmin(6.0f, y)), i);
      }
      case rule::modelopt:
        return element(add(div(x, mul(scale, t.decode)), 0.0f), i);
      case rule::compressed_tensors:
        return element(add(div(x, div(scale, t.encode)), 0.0f), i);
      case rule::single:
        if (scale == 0 && !std::isnan(x)) return element(std::copysign(0.0f, x), i);
        return element(div(x, scale), i);
      case rule::ufp4: {
        float s32 = 0;
        std::memcpy(&s32, &scale_code, sizeof s32);
        return element(div(x, s32), i);
      }
      case rule::exact: {
        if (std::isnan(x)) return element(x, i);
        const bool negative = std::signbit(x);
        const double divisor = static_cast<double>(scale) * static_cast<double>(t.decode);
        const unsigned m = divisor > 0 ? round_quotient(s.element, std::fabs(static_cast<double>(x)), divisor, negative,
                                                        how, random.empty() ? 0 : random[i])
                                       : 0;
        return m | (negative ? s.element.top + 1 : 0);
      }
      default:  // mx: only the exponent moves, in binary64 with nothing lost
        return element(static_cast<double>(x) / magnitude(s.scale, scale_code), i);
    }
  }

  float out(unsigned code, std::uint32_t scale_code) const {
    const float value = decode(s.element, code), scale = decode(s.scale, scale_code);
    switch (s.how) {
      case rule::paper:
        return s.scale_first ? mul(value, mul(scale, t.decode)) : mul(mul(value, scale), t.decode);
      case rule::te:
      case rule::four_over_six:
        return mul(value, mul(mul(scale, reference), div(1, mul(largest, static_cast<float>(s.target)))));
      case rule::torchao:
      case rule::modelopt:
        return mul(value, mul(scale, t.decode));
      case rule::compressed_tensors:
        return mul(value, div(scale, t.encode));
      case rule::exact:
        return mul(mul(value, scale), t.decode);
      case rule::ufp4: {
        float s32 = 0;
        std::memcpy(&s32, &scale_code, sizeof s32);
        return mul(value, s32);
      }
      default:
        return mul(value, scale);
    }
  }
};

// The exponent of an MX scale, by comparing with powers of two.
unsigned mx_scale(const scheme& s, float amax) {
  if (!std::isfinite(amax)) return 0xFF;
  if (amax == 0) return 0;
  const double a = static_cast<double>(amax), largest = magnitude(s.element, s.element.top);
  int e = -200;
  if (s.how == rule::mx_ceil) {
    while (std::ldexp(largest, e) < a) ++e;
  } else {
    while (std::ldexp(1.0, e + 1) <= a) ++e;
    if (s.how == rule::mx_even && a >= std::ldexp(2 - std::ldexp(1.0, -s.element.mantissa_bits - 1), e)) ++e;
    e -= std::ilogb(largest);
  }
  return static_cast<unsigned>(std::max(0, std::min(254, e + 127)));
}

// The scale of a block from its amax.
std::uint32_t block_scale(const coder& c, float a) {
  const scheme& s = c.s;
  switch (s.how) {
    case rule::paper: {
      const float ideal = mul(a, mul(c.t.encode, div(1, c.largest)));
      const unsigned code = encode(s.scale, smaller(ideal, static_cast<float>(magnitude(s.scale, s.scale.top))));
      return code == 0 ? encode(s.scale, 1.0) : code;
    }
    case rule::te:
    case rule::four_over_six:
      return encode(s.scale, smaller(mul(a, mul(c.t.encode, div(1, c.largest))), flt_max));
    case rule::torchao: {
      const float ideal = div(c.constant_division(a, c.largest), c.t.decode);
      const float low = static_cast<float>(std::ldexp(1.0, 1 - s.scale.bias));
      return encode(s.scale, std::isnan(ideal) ? ideal : std::fmax(low, std::fmin(448.0f, ideal)));
    }
    case rule::modelopt: {
      const float ideal = div(a, mul(c.largest, c.t.decode));
      return encode(s.scale, ideal == 0 ? 1.0f : ideal);
    }
    case rule::compressed_tensors: {
      const unsigned code = encode(s.scale, mul(c.t.encode, c.constant_division(a, c.largest)));
      return code == 0 ? encode(s.scale, 0.125) : code;
    }
    case rule::exact: {
      if (!std::isfinite(a)) return static_cast<unsigned>(s.scale.nan);
      const double p = static_cast<double>(a) * (c.reference > 0 ? s.target : 1);
      const double q = c.reference > 0 ? static_cast<double>(c.reference) : static_cast<double>(c.largest);
      const unsigned code = round_quotient(s.scale, p, q, false, rounding::nearest_even, 0);
      return code == 0 && a > 0 ? 1 : code;
    }
    case rule::single:
      return encode(s.scale, div(a, c.largest));
    case rule::ufp4: {
      const float ideal = div(a, c.largest);
      return bits_of(ideal == 0 ? 1.0f : ideal);
    }
    default:
      return mx_scale(s, a);
  }
}

}  // namespace

block quantize(const scheme& s, float reference, const std::vector<float>& given, rounding how,
               const std::vector<unsigned>& random) {
  block b;
  for (const float x : given) b.has_nonfinite = b.has_nonfinite || !std::isfinite(x);
  if (b.has_nonfinite && (s.policy == nonfinite::poison || s.policy == nonfinite::reject)) {
    b.scale = s.scale.nan < 0 ? s.scale.top : static_cast<unsigned>(s.scale.nan);
    if (s.how == rule::ufp4) b.scale = 0x7FFFFFFFu;
    for (std::size_t i = 0; i < given.size(); ++i) {
      b.codes.push_back(encode(s.element, not_a_number));
      b.out.push_back(not_a_number);
    }
    return b;
  }
  std::vector<float> values = given;
  float a = 0;
  bool nan = false;
  for (float& x : values) {
    if (s.policy == nonfinite::saturate && std::isinf(x)) x = std::copysign(flt_max, x);
    if (std::isnan(x)) {
      nan = true;
    } else {
      a = std::fmax(a, std::fabs(x));
    }
  }
  const bool passes_over_nan = s.policy == nonfinite::saturate || s.how == rule::te || s.how == rule::four_over_six;
  if (nan && !passes_over_nan) a = not_a_number;

  const coder c{s, reference, tensor_scale(s, reference), values, how, random};
  const auto encode_under = [&](std::uint32_t scale) {
    block candidate;
    candidate.scale = scale;
    candidate.has_nonfinite = b.has_nonfinite;
    for (std::size_t i = 0; i < values.size(); ++i) {
      candidate.codes.push_back(c.code(values[i], scale, i));
      candidate.out.push_back(c.out(candidate.codes.back(), scale));
    }
    return candidate;
  };
  if (s.how != rule::four_over_six) return encode_under(block_scale(c, a));

  // Two scales, the second only where the sum of its errors is smaller.
  const float base = mul(div(a, c.largest), c.t.encode), top = mul(c.largest, static_cast<float>(s.target));
  float least = 0;
  for (const float ideal : {base, mul(base, 1.5f)}) {
    block candidate = encode_under(encode(s.scale, smaller(ideal, 448.0f)));
    float error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float v = mul(mul(decode(s.element, candidate.codes[i]), decode(s.scale, candidate.scale)), reference);
      error = add(error, std::fabs(add(div(v, top), -values[i])));
    }
    if (b.codes.empty() || error < least) {
      b = candidate;
      least = error;
    }
  }
  return b;
}

}  // namespace model
