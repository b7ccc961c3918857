// The rounding modes as types, and as pure functions of the part that does not fit.
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <microscale/number/rounding.hpp>
#include <type_traits>

namespace ms = microscale;

namespace {

static_assert(ms::rounding_mode<ms::nearest_even> && ms::rounding_mode<ms::toward_zero> &&
              ms::rounding_mode<ms::toward_positive> && ms::rounding_mode<ms::toward_negative> &&
              ms::rounding_mode<ms::stochastic_midpoint8> && ms::rounding_mode<ms::stochastic_floor8>);
static_assert(ms::stochastic_mode<ms::stochastic_midpoint16> && ms::stochastic_mode<ms::stochastic_floor8> &&
              !ms::stochastic_mode<ms::nearest_even> && !ms::stochastic_mode<ms::toward_zero>);
struct no_mode {
  static constexpr int random_bits = 0;
};
static_assert(!ms::rounding_mode<no_mode> && !ms::rounding_mode<int>);
static_assert(ms::stochastic_midpoint8::random_bits == 8 && ms::stochastic_midpoint16::random_bits == 16 &&
              ms::stochastic_midpoint32::random_bits == 32 && ms::stochastic_floor8::random_bits == 8);
static_assert(std::is_trivially_copyable_v<ms::stochastic_midpoint8> && sizeof(ms::stochastic_midpoint8) == 16);
static_assert(std::is_empty_v<ms::nearest_even> && std::is_trivially_copyable_v<ms::remainder>);

// A user's own mode: everything that is not on the grid goes away from zero.
struct away_from_zero {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(ms::remainder rest, bool, bool, std::uint32_t) noexcept {
    return !rest.is_zero();
  }
};
static_assert(ms::rounding_mode<away_from_zero>);
static_assert(ms::e2m1::encode(2.0625f, away_from_zero{}) == 5 && ms::e2m1::encode(-2.0625f, away_from_zero{}) == 0xD);
static_assert(ms::e2m1::encode(0x1p-149f, away_from_zero{}) == 1 && ms::e2m1::encode(0.0f, away_from_zero{}) == 0);

// Half-way goes to the even neighbour, unless anything lies beyond.
static_assert(!ms::nearest_even::away({ms::half_step, false}, false, false, 0) &&
              ms::nearest_even::away({ms::half_step, false}, true, false, 0) &&
              ms::nearest_even::away({ms::half_step, true}, false, false, 0) &&
              !ms::nearest_even::away({ms::half_step - 1, true}, true, false, 0));

// Directed modes on E2M1, between 2 and 3 (codes 4 and 5).
template <class R>
constexpr bool gives(double x, int positive, int negative) {
  return ms::e2m1::encode(x, R{}) == positive && ms::e2m1::encode(-x, R{}) == negative;
}
static_assert(gives<ms::toward_zero>(2.999999, 4, 0xC) && gives<ms::toward_zero>(2, 4, 0xC));
static_assert(gives<ms::toward_positive>(2.000001, 5, 0xC) && gives<ms::toward_positive>(2, 4, 0xC));
static_assert(gives<ms::toward_negative>(2.999999, 4, 0xD) && gives<ms::toward_negative>(3, 5, 0xD));
static_assert(gives<ms::toward_positive>(5e-324, 1, 8) && gives<ms::toward_negative>(5e-324, 0, 9));

// numerics.md, section 2: delta = 1/2 goes to the lower neighbour for r = 127 and to the upper one for r = 128.
template <class R>
constexpr bool goes_away(double delta, std::uint32_t r) {  // 2 + delta lies between the codes 4 and 5
  const int code = ms::e2m1::encode(2 + delta, R{}, ms::overflow::saturate, r);
  return code == 5 && ms::e2m1::encode(-2 - delta, R{}, ms::overflow::saturate, r) == 0xD;
}
static_assert(!goes_away<ms::stochastic_midpoint8>(.5, 127) && goes_away<ms::stochastic_midpoint8>(.5, 128));
static_assert(!goes_away<ms::stochastic_floor8>(.5, 127) && goes_away<ms::stochastic_floor8>(.5, 128));
static_assert(!goes_away<ms::stochastic_midpoint8>(0, 255) && !goes_away<ms::stochastic_floor8>(0, 255));
static_assert(!goes_away<ms::stochastic_midpoint8>(1.0 / 512 - 0x1p-40, 255) &&
              goes_away<ms::stochastic_midpoint8>(1.0 / 512, 255));
static_assert(!goes_away<ms::stochastic_floor8>(1.0 / 256 - 0x1p-40, 255) &&
              goes_away<ms::stochastic_floor8>(1.0 / 256, 255));
static_assert(!goes_away<ms::stochastic_midpoint8>(511.0 / 512 - 0x1p-40, 0) &&
              goes_away<ms::stochastic_midpoint8>(511.0 / 512, 0));
static_assert(!goes_away<ms::stochastic_floor8>(1 - 0x1p-40, 0) && goes_away<ms::stochastic_floor8>(255.0 / 256, 1));
static_assert(!goes_away<ms::stochastic_midpoint16>(.5, 32767) && goes_away<ms::stochastic_midpoint16>(.5, 32768));
static_assert(!goes_away<ms::stochastic_midpoint32>(.5, 0x7FFFFFFF) &&
              goes_away<ms::stochastic_midpoint32>(.5, 0x80000000u));

// Nothing random moves a number past the largest finite one, except to infinity under `ieee`.
static_assert(ms::e5m2::encode(61000.0f, ms::stochastic_midpoint8{}, ms::overflow::saturate, 255) == 0x7B);
static_assert(ms::e5m2::encode(61000.0f, ms::stochastic_midpoint8{}, ms::overflow::ieee, 255) == 0x7C);
static_assert(ms::e5m2::encode(61000.0f, ms::stochastic_midpoint8{}, ms::overflow::ieee, 0) == 0x7B);

}  // namespace
