// ms::value<F>: a number in a format as a regular type, and its numeric_limits.
#include <compare>
#include <cstdint>
#include <limits>
#include <microscale/number/value.hpp>
#include <type_traits>

namespace ms = microscale;

namespace {

template <class F>
using value = ms::value<F>;

template <class T>
constexpr bool is_plain = std::is_trivially_copyable_v<T>&& std::is_standard_layout_v<T>;
static_assert(is_plain<value<ms::e2m1>> && is_plain<value<ms::e8m0>> && is_plain<value<ms::bf16>>);
static_assert(sizeof(value<ms::e2m1>) == 1 && sizeof(value<ms::e4m3>) == 1 && sizeof(value<ms::bf16>) == 2 &&
              sizeof(value<ms::f16>) == 2 && sizeof(value<ms::f32>) == 4);

// Conversions are explicit, both ways.
static_assert(!std::is_convertible_v<float, value<ms::e4m3>> && !std::is_convertible_v<value<ms::e4m3>, float>);
static_assert(std::is_constructible_v<value<ms::e4m3>, float> && std::is_constructible_v<value<ms::e4m3>, double> &&
              std::is_constructible_v<value<ms::e4m3>, int> && std::is_constructible_v<float, value<ms::e4m3>>);
static_assert(!std::is_constructible_v<value<ms::e4m3>, const char*>);
static_assert(value<ms::e4m3>(17 + 0x1p-40).code() == 0x59 && value<ms::e2m1>(2.5f).code() == 4);
static_assert(value<ms::e4m3>(1000).code() == 0x7E && static_cast<float>(value<ms::e4m3>(1000)) == 448);
static_assert(static_cast<double>(value<ms::ue5m3>::from_code(0xFE)) == 114688.0);
static_assert(value<ms::e2m1>{}.code() == 0);

// Comparison is by value: zeros are equal, NaN is unordered, and codes of different signs are in order.
constexpr auto code = [](int c) { return value<ms::e4m3>::from_code(static_cast<std::uint8_t>(c)); };
static_assert(code(0x00) == code(0x80) && !(code(0x00) < code(0x80)) && code(0x38) != code(0xB8));
static_assert(code(0x7F) != code(0x7F) && (code(0x7F) <=> code(0x38)) == std::partial_ordering::unordered);
static_assert(!(code(0x7F) < code(0x38)) && !(code(0xFF) > code(0x38)) && !(code(0x7F) == code(0xFF)));
static_assert(code(0xFE) < code(0x81) && code(0x81) < code(0x80) && code(0x80) < code(0x01) && code(0x01) < code(0x7E));
static_assert(code(0x38) >= code(0x38) && code(0x39) > code(0x38));
static_assert(-code(0x38) == code(0xB8) && (-code(0x00)).code() == 0x80 && -(-code(0x12)) == code(0x12));

template <class F>
concept can_be_negated = requires(value<F> x) {
  -x;
};
static_assert(can_be_negated<ms::e2m1> && !can_be_negated<ms::ue4m3> && !can_be_negated<ms::e8m0>);

// The order of codes is the order of values, in every format without a sign.
template <class F>
constexpr bool is_ordered() {
  for (int c = 1; c <= F::largest_code; ++c) {
    const auto below = value<F>::from_code(static_cast<typename F::storage>(c - 1));
    const auto above = value<F>::from_code(static_cast<typename F::storage>(c));
    if (!(below < above) || below == above || !(above > below)) return false;
  }
  return true;
}
static_assert(is_ordered<ms::ue4m3>() && is_ordered<ms::ue5m3>() && is_ordered<ms::ue5m3_ieee>() &&
              is_ordered<ms::e8m0>() && is_ordered<ms::e2m1>() && is_ordered<ms::e4m3>() && is_ordered<ms::int8>());

template <class F>
using limits = std::numeric_limits<value<F>>;

template <class F>
constexpr bool has_limits(double max, double lowest, double min, double denorm_min, double epsilon, int digits) {
  return static_cast<double>((limits<F>::max)()) == max && static_cast<double>(limits<F>::lowest()) == lowest &&
         static_cast<double>((limits<F>::min)()) == min && static_cast<double>(limits<F>::denorm_min()) == denorm_min &&
         static_cast<double>(limits<F>::epsilon()) == epsilon && limits<F>::digits == digits &&
         limits<F>::is_specialized && limits<F>::radix == 2 && !limits<F>::is_integer;
}
static_assert(has_limits<ms::e2m1>(6, -6, 1, .5, .5, 2));
static_assert(has_limits<ms::e1m2>(1.75, -1.75, 1, .25, .25, 3));
static_assert(has_limits<ms::e2m3>(7.5, -7.5, 1, .125, .125, 4));
static_assert(has_limits<ms::e3m2>(28, -28, .25, .0625, .25, 3));
static_assert(has_limits<ms::e4m3>(448, -448, 0x1p-6, 0x1p-9, .125, 4));
static_assert(has_limits<ms::e5m2>(57344, -57344, 0x1p-14, 0x1p-16, .25, 3));
static_assert(has_limits<ms::ue4m3>(448, 0, 0x1p-6, 0x1p-9, .125, 4));
static_assert(has_limits<ms::ue5m3>(114688, 0, 0x1p-14, 0x1p-17, .125, 4));
static_assert(has_limits<ms::ue5m3_ieee>(61440, 0, 0x1p-14, 0x1p-17, .125, 4));
static_assert(has_limits<ms::e8m0>(0x1p127, 0x1p-127, 0x1p-126, 0x1p-127, 1, 1));
static_assert(has_limits<ms::bf16>(0x1.FEp127, -0x1.FEp127, 0x1p-126, 0x1p-133, 0x1p-7, 8));
static_assert(has_limits<ms::f16>(65504, -65504, 0x1p-14, 0x1p-24, 0x1p-10, 11));
static_assert(has_limits<ms::f32>(0x1.FFFFFEp127, -0x1.FFFFFEp127, 0x1p-126, 0x1p-149, 0x1p-23, 24));
static_assert(has_limits<ms::int8>(127 / 64.0, -127 / 64.0, 1 / 64.0, 1 / 64.0, 1 / 64.0, 7));
static_assert(has_limits<ms::int8_full>(127 / 64.0, -2, 1 / 64.0, 1 / 64.0, 1 / 64.0, 7));
static_assert(has_limits<ms::int4_full>(1.75, -2, .25, .25, .25, 3));

static_assert(limits<ms::e5m2>::has_infinity && limits<ms::e5m2>::has_quiet_NaN && limits<ms::e5m2>::is_signed);
static_assert(!limits<ms::e4m3>::has_infinity && limits<ms::e4m3>::has_quiet_NaN);
static_assert(!limits<ms::e2m1>::has_infinity && !limits<ms::e2m1>::has_quiet_NaN && limits<ms::e2m1>::is_bounded);
static_assert(!limits<ms::ue5m3>::has_infinity && limits<ms::ue5m3>::has_quiet_NaN && !limits<ms::ue5m3>::is_signed);
static_assert(limits<ms::e5m2>::infinity().code() == 0x7C && limits<ms::e5m2>::infinity() > (limits<ms::e5m2>::max)());
static_assert(limits<ms::e4m3>::quiet_NaN() != limits<ms::e4m3>::quiet_NaN());
static_assert(ms::fp32::is_nan(static_cast<float>(limits<ms::e8m0>::quiet_NaN())));
template <class L>
concept offers_infinity = requires {
  L::infinity();
};
template <class L>
concept offers_nan = requires {
  L::quiet_NaN();
};
static_assert(offers_infinity<limits<ms::bf16>> && !offers_infinity<limits<ms::e4m3>> && !offers_nan<limits<ms::e2m1>>);

// 1 + epsilon is the next value after 1, where the two lie on the grid of the format.
template <class F>
constexpr bool epsilon_is_next() {
  const auto one = value<F>(1.0f);
  const auto next = value<F>::from_code(static_cast<typename F::storage>(one.code() + 1));
  return static_cast<double>(next) == 1 + static_cast<double>(limits<F>::epsilon());
}
static_assert(epsilon_is_next<ms::e2m1>() && epsilon_is_next<ms::e1m2>() && epsilon_is_next<ms::e3m2>() &&
              epsilon_is_next<ms::e4m3>() && epsilon_is_next<ms::ue5m3>() && epsilon_is_next<ms::e8m0>() &&
              epsilon_is_next<ms::f16>() && epsilon_is_next<ms::int8>());

}  // namespace
