// Every code of every format up to 8 bits against the value formula, and encoding where one number says it all.
#include <cstdint>
#include <limits>
#include <microscale/number/formats.hpp>

namespace ms = microscale;

namespace {

// 2^e in binary64, by multiplication.
constexpr double power(int e) {
  double p = 1;
  for (; e > 0; --e) p *= 2;
  for (; e < 0; ++e) p /= 2;
  return p;
}

// The layout as the standards print it, written down once more.
struct layout {
  int exponent_bits, mantissa_bits, bias;
  bool has_sign;
  int infinity, first_nan;  // magnitudes; none: past the last code
};

enum class kind { number, infinity, nan };

struct meaning {
  kind what;
  bool negative;
  double magnitude;
};

constexpr meaning meaning_of(const layout& l, int code) {
  const int sign = l.has_sign ? 1 << (l.exponent_bits + l.mantissa_bits) : 0;
  const int magnitude = code & ((1 << (l.exponent_bits + l.mantissa_bits)) - 1);
  const bool negative = (code & sign) != 0;
  if (magnitude >= l.first_nan) return {kind::nan, negative, 0};
  if (magnitude == l.infinity) return {kind::infinity, negative, 0};
  const int e = magnitude >> l.mantissa_bits, m = magnitude & ((1 << l.mantissa_bits) - 1);
  const double fraction = m / power(l.mantissa_bits);
  return {kind::number, negative, e == 0 ? fraction * power(1 - l.bias) : (1 + fraction) * power(e - l.bias)};
}

constexpr bool is_value(float x, bool negative, double magnitude) {
  return static_cast<double>(ms::fp32::abs(x)) == magnitude && ms::fp32::is_negative(x) == negative;
}

template <class F>
constexpr bool code_is(const layout& l, int c) {
  using storage = typename F::storage;
  const storage code = static_cast<storage>(c);
  const meaning want = meaning_of(l, c);
  const float got = F::decode(code);
  if (F::is_nan(code) != (want.what == kind::nan)) return false;
  if (F::is_infinite(code) != (want.what == kind::infinity)) return false;
  if (F::is_finite(code) != (want.what == kind::number)) return false;
  const ms::unpacked u = F::unpack_code(code);
  switch (want.what) {
    case kind::nan:
      return ms::fp32::is_nan(got) && u.kind == ms::number_class::nan && F::is_nan(F::encode(got));
    case kind::infinity:
      return got == (want.negative ? -ms::fp32::infinity() : ms::fp32::infinity()) &&
             u.kind == ms::number_class::infinite && u.negative == want.negative &&
             F::encode(got, ms::nearest_even{}, ms::overflow::ieee) == code;
    default:
      return is_value(got, want.negative, want.magnitude) && F::encode(got) == code &&
             F::encode(static_cast<double>(got)) == code && F::encode(u) == code && u.negative == want.negative &&
             static_cast<double>(u.significand) * power(u.exponent) == want.magnitude;
  }
}

template <class F>
constexpr bool codes_are(const layout& l, int first, int end) {
  for (int c = first; c < end; ++c) {
    if (!code_is<F>(l, c)) return false;
  }
  return true;
}

constexpr int never = 1 << 20;
constexpr layout ocp_e5m2{5, 2, 15, true, 0x7C, 0x7D}, with_nan_ff{5, 3, 15, false, never, 0xFF},
    reserved_top{5, 3, 15, false, 0xF8, 0xF9};

static_assert(codes_are<ms::e2m1>({2, 1, 1, true, never, never}, 0, 16));
static_assert(codes_are<ms::e1m2>({1, 2, 1, true, never, never}, 0, 16));
static_assert(codes_are<ms::e2m3>({2, 3, 1, true, never, never}, 0, 64));
static_assert(codes_are<ms::e3m2>({3, 2, 3, true, never, never}, 0, 64));
static_assert(codes_are<ms::e4m3>({4, 3, 7, true, never, 0x7F}, 0, 256));
static_assert(codes_are<ms::e5m2>(ocp_e5m2, 0, 128));
static_assert(codes_are<ms::e5m2>(ocp_e5m2, 128, 256));
static_assert(codes_are<ms::ue4m3>({4, 3, 7, false, never, 0x7F}, 0, 128));
static_assert(codes_are<ms::ue5m3>(with_nan_ff, 0, 128));
static_assert(codes_are<ms::ue5m3>(with_nan_ff, 128, 256));
static_assert(codes_are<ms::ue5m3_ieee>(reserved_top, 0, 128));
static_assert(codes_are<ms::ue5m3_ieee>(reserved_top, 128, 256));

// E2M1 and E1M2, spelt out.
constexpr bool are_e2m1_values() {
  const double values[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (int c = 0; c < 16; ++c) {
    if (!is_value(ms::e2m1::decode(static_cast<std::uint8_t>(c)), c >= 8, values[c % 8])) return false;
    if (!is_value(ms::e1m2::decode(static_cast<std::uint8_t>(c)), c >= 8, .25 * (c % 8))) return false;
  }
  return true;
}
static_assert(are_e2m1_values());

// Two's complement: all codes decode; the most negative one is left out of encoding unless the format is `full`.
template <class F>
constexpr bool is_fixed_point(int bits, bool full) {
  const int half = 1 << (bits - 1);
  for (int c = 0; c < 2 * half; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    const int n = c < half ? c : c - 2 * half;
    const float x = F::decode(code);
    if (static_cast<double>(x) * (half / 2) != n || (n == 0 && ms::fp32::is_negative(x))) return false;
    if (F::is_nan(code) || F::is_infinite(code) || !F::is_finite(code)) return false;
    const int back = n == -half && !full ? c + 1 : c;
    if (F::encode(x) != back || F::encode(F::unpack_code(code)) != back) return false;
  }
  return true;
}
static_assert(is_fixed_point<ms::int8>(8, false));
static_assert(is_fixed_point<ms::int4>(4, false));
static_assert(is_fixed_point<ms::int8_full>(8, true));
static_assert(is_fixed_point<ms::int4_full>(4, true));
static_assert(ms::int8::encode(-2.0f) == 0x81 && ms::int8_full::encode(-2.0f) == 0x80);
static_assert(ms::int4::encode(-1e30f) == 0x9 && ms::int4_full::encode(-ms::fp32::infinity()) == 0x8);
static_assert(ms::int4::encode(1e30) == 7 && ms::int8::encode(ms::fp32::infinity()) == 0x7F);
static_assert(ms::int8::encode(ms::fp32::quiet_nan()) == 0x7F && ms::int4::encode(-0.0f) == 0);
static_assert(ms::int8::encode(2.5f / 64) == 2 && ms::int8::encode(-3.5f / 64) == 0xFC);  // ties to even
static_assert(ms::int8::encode(-0.5f / 64) == 0);

// E8M0.
template <class F>
constexpr bool is_power_of_two() {
  for (int c = 0; c < 255; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    const float x = F::decode(code);
    if (static_cast<double>(x) != power(c - 127) || F::encode(x) != code || F::encode(F::unpack_code(code)) != code) {
      return false;
    }
    if (F::is_nan(code) || F::is_infinite(code) || !F::is_finite(code)) return false;
  }
  return F::is_nan(0xFF) && !F::is_finite(0xFF) && ms::fp32::is_nan(F::decode(0xFF)) &&
         F::encode(F::decode(0xFF)) == 0xFF;
}
static_assert(is_power_of_two<ms::e8m0>());
static_assert(is_power_of_two<ms::e8m0_tie_even>());
static_assert(ms::fp32::bits(ms::e8m0::decode(0x00)) == 0x00400000);
static_assert(ms::fp32::bits(ms::e8m0::decode(0x01)) == 0x00800000);
static_assert(ms::fp32::bits(ms::e8m0::decode(0x7F)) == 0x3F800000);
static_assert(ms::fp32::bits(ms::e8m0::decode(0xFE)) == 0x7F000000);
// Nothing below 2^-127, zero and negative numbers included, has a code but 00.
static_assert(ms::e8m0::encode(0.0f) == 0 && ms::e8m0::encode(-0.0f) == 0 && ms::e8m0::encode(-8.0f) == 0);
static_assert(ms::e8m0::encode(0x1p-149f) == 0 && ms::e8m0::encode(0x1p-127f) == 0 && ms::e8m0::encode(1e-300) == 0);
static_assert(ms::e8m0::encode(0x1p-149f, ms::toward_positive{}) == 0);
// Rounding up: the fraction of a subnormal counts too, and the top does not become NaN.
static_assert(ms::e8m0::encode(0x1p-127f + 0x1p-149f, ms::toward_positive{}) == 0x01);
static_assert(ms::e8m0::encode(1.0f, ms::toward_positive{}) == 0x7F);
static_assert(ms::e8m0::encode(0x1.000002p0f, ms::toward_positive{}) == 0x80);
static_assert(ms::e8m0::encode(0x1p127f, ms::toward_positive{}) == 0xFE);
static_assert(ms::e8m0::encode(0x1.8p127f, ms::toward_positive{}) == 0xFE);
static_assert(ms::e8m0::encode(ms::fp32::largest, ms::toward_positive{}) == 0xFE);
static_assert(ms::e8m0::encode(ms::fp32::infinity()) == 0xFE);
static_assert(ms::e8m0::encode(ms::fp32::infinity(), ms::nearest_even{}, ms::overflow::ieee) == 0xFF);
static_assert(ms::e8m0::encode(ms::fp32::largest, ms::nearest_even{}, ms::overflow::ieee) == 0xFF);
static_assert(ms::e8m0::encode(ms::fp32::largest, ms::toward_zero{}, ms::overflow::ieee) == 0xFE);
static_assert(ms::e8m0::encode(1.6f, ms::toward_zero{}) == 0x7F && ms::e8m0::encode(1.6f) == 0x80);
static_assert(ms::e8m0::encode(1.4f) == 0x7F && ms::e8m0::encode(1.4f, ms::toward_positive{}) == 0x80);
// Half-way: up, or to the even code.
static_assert(ms::e8m0::encode(1.5f) == 0x80 && ms::e8m0::encode(3.0f) == 0x81);
static_assert(ms::e8m0_tie_even::encode(1.5f) == 0x80 && ms::e8m0_tie_even::encode(3.0f) == 0x80);

// UE5M3: the top binade is finite in one variant and reserved in the other; bit 7 is exponent, never sign.
static_assert(ms::ue5m3::decode(0xF8) == 65536 && ms::ue5m3::decode(0xF9) == 73728 &&
              ms::ue5m3::decode(0xFA) == 81920 && ms::ue5m3::decode(0xFB) == 90112 &&
              ms::ue5m3::decode(0xFC) == 98304 && ms::ue5m3::decode(0xFD) == 106496 &&
              ms::ue5m3::decode(0xFE) == 114688 && ms::fp32::is_nan(ms::ue5m3::decode(0xFF)));
static_assert(ms::ue5m3::decode(0x78) == 1 && ms::ue5m3::decode(0x01) == 0x1p-17f &&
              ms::ue5m3::decode(0x07) == 0x7p-17f && ms::ue5m3::decode(0x08) == 0x1p-14f);
static_assert(ms::ue5m3_ieee::largest() == 61440 && ms::ue5m3_ieee::largest_code == 0xF7);
static_assert(ms::ue5m3::encode(1e30f) == 0xFE && ms::ue5m3_ieee::encode(1e30f) == 0xF7);
static_assert(ms::ue5m3::encode(118784.0f) == 0xFE && ms::ue5m3_ieee::encode(63488.0f) == 0xF7);
static_assert(ms::ue5m3::encode(118784.0f, ms::nearest_even{}, ms::overflow::ieee) == 0xFE);  // a tie, to even
static_assert(ms::ue5m3::encode(0x1.D00002p16f, ms::nearest_even{}, ms::overflow::ieee) == 0xFF);
static_assert(ms::ue5m3_ieee::encode(63488.0f, ms::nearest_even{}, ms::overflow::ieee) == 0xF8);
static_assert(ms::ue5m3_ieee::encode(63487.0f, ms::nearest_even{}, ms::overflow::ieee) == 0xF7);

// The seven ties of E2M1, both signs: to the even code.
static_assert(ms::e2m1::encode(0.25f) == 0 && ms::e2m1::encode(-0.25f) == 8);
static_assert(ms::e2m1::encode(0.75f) == 2 && ms::e2m1::encode(-0.75f) == 0xA);
static_assert(ms::e2m1::encode(1.25f) == 2 && ms::e2m1::encode(-1.25f) == 0xA);
static_assert(ms::e2m1::encode(1.75f) == 4 && ms::e2m1::encode(-1.75f) == 0xC);
static_assert(ms::e2m1::encode(2.5f) == 4 && ms::e2m1::encode(-2.5f) == 0xC);
static_assert(ms::e2m1::encode(3.5f) == 6 && ms::e2m1::encode(-3.5f) == 0xE);
static_assert(ms::e2m1::encode(5.0f) == 6 && ms::e2m1::encode(-5.0f) == 0xE);

// Ties of E4M3, and numbers that truncation would move.
static_assert(ms::e4m3::decode(ms::e4m3::encode(4.25f)) == 4 && ms::e4m3::decode(ms::e4m3::encode(4.75f)) == 5);
static_assert(ms::e4m3::decode(ms::e4m3::encode(200.5f)) == 208 && ms::e4m3::decode(ms::e4m3::encode(216.0f)) == 224);
static_assert(ms::e4m3::decode(ms::e4m3::encode(232.03683f)) == 240);

// One rounding, from whatever the source is.
static_assert(ms::e4m3::encode(17 + 0x1p-40) == 0x59);  // 18; through float it would be a tie and go to 16
static_assert(ms::e4m3::encode(17 - 0x1p-40) == 0x58 && ms::e4m3::encode(17.0) == 0x58);
static_assert(ms::e4m3::encode(-431.99999999999994) == 0xFD);
static_assert(ms::e2m1::encode(2.5 + 0x1p-51) == 5 && ms::e2m1::encode(-2.5 - 0x1p-51) == 0xD);
static_assert(ms::f32::encode(16777217) == 0x4B800000 && ms::f32::encode(16777219) == 0x4B800002);  // 2^24 + 1, + 3
static_assert(ms::f16::encode(2049) == 0x6800 && ms::f16::encode(2051) == 0x6802);
static_assert(ms::bf16::encode((std::int64_t{1} << 62) + (std::int64_t{1} << 54)) == 0x5E80);  // a tie, to even
static_assert(ms::bf16::encode((std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1) == 0x5E81);
static_assert(ms::bf16::encode(std::numeric_limits<std::int64_t>::min()) == 0xDF00);
static_assert(ms::bf16::encode(std::numeric_limits<std::uint64_t>::max()) == 0x5F80);
static_assert(ms::e4m3::encode(-17) == 0xD8 && ms::e4m3::encode(19u) == 0x5A && ms::e2m1::encode(true) == 2);
static_assert(ms::e2m1::encode(std::int8_t{-128}) == 0xF && ms::e5m2::encode(0) == 0 && ms::ue4m3::encode(-3) == 0);
static_assert(ms::e5m2::encode(5e-324) == 0 && ms::e5m2::encode(-5e-324) == 0x80);
static_assert(ms::e5m2::encode(1.7976931348623157e308) == 0x7B);

// Overflow is tested after rounding; saturating and not.
constexpr auto rne = ms::nearest_even{};
constexpr auto saturate = ms::overflow::saturate;
constexpr auto ieee = ms::overflow::ieee;
static_assert(ms::e4m3::encode(448.0f) == 0x7E && ms::e4m3::encode(464.0f) == 0x7E &&
              ms::e4m3::encode(465.0f) == 0x7E && ms::e4m3::encode(480.0f) == 0x7E &&
              ms::e4m3::encode(ms::fp32::infinity()) == 0x7E);
static_assert(ms::e4m3::encode(464.0f, rne, ieee) == 0x7E && ms::e4m3::encode(0x1.D00002p8f, rne, ieee) == 0x7F &&
              ms::e4m3::encode(465.0f, rne, ieee) == 0x7F && ms::e4m3::encode(480.0f, rne, ieee) == 0x7F);
static_assert(ms::e4m3::encode(-465.0f, rne, ieee) == 0xFF && ms::e4m3::encode(-465.0f, rne, saturate) == 0xFE);
static_assert(ms::e4m3::encode(ms::fp32::infinity(), rne, ieee) == 0x7F);
static_assert(ms::e4m3::encode(-ms::fp32::infinity(), rne, ieee) == 0xFF);
static_assert(ms::ue4m3::encode(464.0f) == 0x7E && ms::ue4m3::encode(0x1.D00002p8f) == 0x7E &&
              ms::ue4m3::encode(480.0f) == 0x7E && ms::ue4m3::encode(1e30f) == 0x7E);
static_assert(ms::e5m2::encode(58000.0f) == 0x7B && ms::e5m2::encode(61439.0f) == 0x7B &&
              ms::e5m2::encode(61440.0f) == 0x7B && ms::e5m2::encode(ms::fp32::infinity()) == 0x7B);
static_assert(ms::e5m2::encode(58000.0f, rne, ieee) == 0x7B && ms::e5m2::encode(61439.0f, rne, ieee) == 0x7B &&
              ms::e5m2::encode(61440.0f, rne, ieee) == 0x7C && ms::e5m2::encode(-61440.0f, rne, ieee) == 0xFC);
static_assert(ms::e5m2::encode(1e30f, ms::toward_zero{}, ieee) == 0x7B);
static_assert(ms::e5m2::encode(1e30f, ms::toward_negative{}, ieee) == 0x7B);
static_assert(ms::e5m2::encode(1e30f, ms::toward_positive{}, ieee) == 0x7C);
static_assert(ms::e5m2::encode(-1e30f, ms::toward_positive{}, ieee) == 0xFB);
static_assert(ms::e5m2::encode(-1e30f, ms::toward_negative{}, ieee) == 0xFC);
static_assert(ms::e2m1::encode(1e30f, rne, ieee) == 7 && ms::e2m1::encode(-ms::fp32::infinity(), rne, ieee) == 0xF);
static_assert(ms::f16::encode(65519.0f, rne, ieee) == 0x7BFF && ms::f16::encode(65520.0f, rne, ieee) == 0x7C00);
static_assert(ms::bf16::encode(ms::fp32::largest) == 0x7F7F &&
              ms::bf16::encode(ms::fp32::largest, rne, ieee) == 0x7F80);

// NaN: its code with the sign kept, else the largest positive value.
constexpr float nan = ms::fp32::quiet_nan();
static_assert(ms::e4m3::encode(nan) == 0x7F && ms::e4m3::encode(ms::fp32::negate(nan)) == 0xFF);
static_assert(ms::e5m2::encode(nan) == 0x7F && ms::ue4m3::encode(ms::fp32::negate(nan)) == 0x7F);
static_assert(ms::e2m1::encode(nan) == 7 && ms::e2m1::encode(ms::fp32::negate(nan)) == 7);
static_assert(ms::e2m3::encode(nan) == 0x1F && ms::e3m2::encode(nan) == 0x1F && ms::e1m2::encode(nan) == 7);
static_assert(ms::e4m3::encode(ms::fp32::from_bits(0x7F800001)) == 0x7F);  // a signalling one
static_assert(ms::e4m3::encode(std::numeric_limits<double>::quiet_NaN()) == 0x7F);

// -0 keeps its sign, also when a negative number underflows; unsigned formats have one zero.
static_assert(ms::e2m1::encode(-0.0f) == 8 && ms::e2m1::encode(-0.2f) == 8 && ms::e2m1::encode(0.2f) == 0);
static_assert(ms::e4m3::encode(-0x1p-11f) == 0x80 && ms::e4m3::encode(-0.0) == 0x80);
static_assert(ms::e5m2::encode(-0x1p-17f) == 0x80 && ms::e5m2::encode(-0x1.000002p-17f) == 0x81);
static_assert(ms::ue4m3::encode(-0.0f) == 0 && ms::ue5m3::encode(-1.0f) == 0 &&
              ms::ue5m3::encode(-ms::fp32::infinity()) == 0);
static_assert(ms::e2m1::encode(-0.2f, ms::toward_negative{}) == 9 &&
              ms::e2m1::encode(-0.2f, ms::toward_positive{}) == 8);

// Subnormal results: the step is that of the smallest normal binade, and every bit below counts.
static_assert(ms::e4m3::decode(1) == 0x1p-9f && ms::e4m3::decode(7) == 0x7p-9f && ms::e4m3::decode(8) == 0x1p-6f);
static_assert(ms::e4m3::encode(0x1p-10f) == 0 && ms::e4m3::encode(0x1.000002p-10f) == 1);
static_assert(ms::e4m3::encode(0x1.8p-9f) == 2 && ms::e4m3::encode(0x1.7FFFFEp-9f) == 1);
static_assert(ms::e4m3::encode(0x1p-10 + 0x1p-62) == 1 && ms::e4m3::encode(0x1p-149f) == 0);
static_assert(ms::bf16::encode(0x1p-134f) == 0 && ms::bf16::encode(0x1.1p-134f) == 1);
static_assert(ms::f32::encode(0x1p-150) == 0 && ms::f32::encode(0x1.0000000000001p-150) == 1);

// A bit that a format does not have is ignored on the way in.
static_assert(ms::e2m1::decode(0xF2) == 1 && ms::ue4m3::decode(0xB8) == 1 && ms::e2m3::decode(0xC8) == 1);

// A format of the user's own: one declaration.
struct ue3m4 : ms::minifloat<ms::float_layout{
                   .exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false, .top = ms::specials::none}> {};
static_assert(codes_are<ue3m4>({3, 4, 3, false, never, never}, 0, 128));
static_assert(ms::number_format<ue3m4> && ms::scale_format<ue3m4> && !ms::element_format<ue3m4>);
static_assert(ue3m4::largest() == 31.0f && ue3m4::encode(1e9f) == 0x7F && ue3m4::encode(nan) == 0x7F);
static_assert(ue3m4::bits == 7 && sizeof(ue3m4::storage) == 1);

struct e3m0 : ms::minifloat<ms::float_layout{.exponent_bits = 3, .mantissa_bits = 0, .bias = 3}> {};  // 0 and powers
static_assert(codes_are<e3m0>({3, 0, 3, true, never, never}, 0, 16));
static_assert(e3m0::encode(1.5f) == 4 && e3m0::encode(3.0f) == 4);  // ties to the even code

// What the concepts take and refuse.
static_assert(ms::element_format<ms::e2m1> && ms::element_format<ms::int8> && ms::element_format<ms::f16>);
static_assert(!ms::element_format<ms::ue4m3> && !ms::element_format<ms::e8m0> && !ms::element_format<ms::f32>);
static_assert(ms::scale_format<ms::ue5m3_ieee> && ms::scale_format<ms::e8m0> && ms::scale_format<ms::f32>);
struct no_format {};
static_assert(!ms::number_format<no_format> && !ms::number_format<float> && !ms::scale_format<int>);
static_assert(ms::real_number<float> && ms::real_number<double> && ms::real_number<int> &&
              ms::real_number<ms::unpacked>);
static_assert(!ms::real_number<no_format> && !ms::real_number<long double> && !ms::real_number<float*>);

// Storage is the smallest unsigned integer.
static_assert(sizeof(ms::e2m1::storage) == 1 && sizeof(ms::ue5m3::storage) == 1 && sizeof(ms::e8m0::storage) == 1);
static_assert(sizeof(ms::bf16::storage) == 2 && sizeof(ms::f16::storage) == 2 && sizeof(ms::f32::storage) == 4);

// What each format has: a sign, a zero, a NaN, infinities.
template <class... Formats>
constexpr bool have(bool sign, bool zero, bool not_a_number, bool infinity) {
  return ((Formats::has_sign == sign && Formats::has_zero == zero && Formats::has_nan == not_a_number &&
           Formats::has_infinity == infinity) &&
          ...);
}
static_assert(have<ms::e2m1, ms::e1m2, ms::e2m3, ms::e3m2>(true, true, false, false));
static_assert(have<ms::int4, ms::int8, ms::int4_full, ms::int8_full>(true, true, false, false));
static_assert(have<ms::e4m3>(true, true, true, false));
static_assert(have<ms::e5m2, ms::bf16, ms::f16, ms::f32>(true, true, true, true));
static_assert(have<ms::ue4m3, ms::ue5m3>(false, true, true, false));
static_assert(have<ms::ue5m3_ieee>(false, true, true, true));
static_assert(have<ms::e8m0, ms::e8m0_tie_even>(false, false, true, false));

}  // namespace
