// The binary32 helpers in constant evaluation, where an overflow or a NaN must not stop the compiler.
#include <cstdint>
#include <microscale/number/bits.hpp>
#include <microscale/number/fp32.hpp>

namespace fp32 = microscale::fp32;

namespace {

constexpr float inf = fp32::infinity(), nan = fp32::quiet_nan(), top = fp32::largest;

constexpr bool is(float x, std::uint32_t bits) { return fp32::bits(x) == bits; }

static_assert(is(fp32::mul(3.0f, 0.1f), 0x3E99999A) && is(fp32::div(1.0f, 6.0f), 0x3E2AAAAB));
static_assert(is(fp32::add(16777216.0f, 1.0f), 0x4B800000) && is(fp32::sub(1.0f, 0x1p-25f), 0x3F800000));
static_assert(is(fp32::smallest_normal, 0x00800000) && is(top, 0x7F7FFFFF));
// Overflow, and the numbers just below it.
static_assert(is(fp32::mul(top, 2.0f), 0x7F800000) && is(fp32::mul(top, -2.0f), 0xFF800000));
static_assert(is(fp32::mul(top, 0x1.000002p0f), 0x7F800000) && is(fp32::mul(0x1.FFFFFCp126f, 2.0f), 0x7F7FFFFE));
static_assert(is(fp32::div(2688.0f, 1e-38f), 0x7F800000) && is(fp32::div(-1.0f, 0x1p-149f), 0xFF800000));
static_assert(is(fp32::add(top, 0x1p103f), 0x7F800000) && is(fp32::add(top, 0x1.FFFFFEp102f), 0x7F7FFFFF));
static_assert(is(fp32::sub(-top, top), 0xFF800000) && is(fp32::add(top, -top), 0));
// Underflow: gradual, ties to even, the sign kept.
static_assert(is(fp32::mul(0x1p-75f, 0x1p-75f), 0) && is(fp32::mul(-0x1p-75f, 0x1p-75f), 0x80000000));
static_assert(is(fp32::mul(0x1.8p-75f, 0x1p-75f), 1) && is(fp32::mul(0x1p-74f, 0x1.8p-75f), 2));
static_assert(is(fp32::div(0x1p-126f, 3.0f), 0x002AAAAB) && is(fp32::div(-0x1p-149f, 4.0f), 0x80000000));
static_assert(is(fp32::div(0x1p-149f, 2.0f), 0) && is(fp32::div(0x3p-149f, 2.0f), 2));
// Infinities and NaN.
static_assert(is(fp32::mul(inf, -2.0f), 0xFF800000) && fp32::is_nan(fp32::mul(inf, 0.0f)));
static_assert(fp32::is_nan(fp32::mul(nan, 0.0f)) && fp32::is_nan(fp32::add(1.0f, nan)));
static_assert(is(fp32::div(1.0f, 0.0f), 0x7F800000) && is(fp32::div(1.0f, -0.0f), 0xFF800000));
static_assert(fp32::is_nan(fp32::div(0.0f, 0.0f)) && fp32::is_nan(fp32::div(nan, 0.0f)) &&
              fp32::is_nan(fp32::div(inf, -inf)));
static_assert(is(fp32::div(-1.0f, inf), 0x80000000) && is(fp32::div(-inf, 3.0f), 0xFF800000) &&
              is(fp32::div(inf, 0.0f), 0x7F800000));
static_assert(fp32::is_nan(fp32::sub(inf, inf)) && is(fp32::add(inf, inf), 0x7F800000) &&
              is(fp32::add(1.0f, -inf), 0xFF800000));
static_assert(is(fp32::add(-0.0f, -0.0f), 0x80000000) && is(fp32::add(-0.0f, 0.0f), 0));

// Order and selection.
static_assert(fp32::less(-1.0f, 1.0f) && fp32::less(-2.0f, -1.0f) && fp32::less(-inf, -top) && fp32::less(top, inf));
static_assert(!fp32::less(-0.0f, 0.0f) && !fp32::less(0.0f, -0.0f) && fp32::less(-0x1p-149f, 0.0f));
static_assert(is(fp32::min_number(nan, 2.0f), 0x40000000) && is(fp32::min_number(2.0f, nan), 0x40000000));
static_assert(is(fp32::max_number(nan, 2.0f), 0x40000000) && is(fp32::max_number(-3.0f, 2.0f), 0x40000000));
static_assert(fp32::is_nan(fp32::min_number(nan, nan)) && fp32::is_nan(fp32::clamp(nan, -1.0f, 1.0f)));
static_assert(is(fp32::clamp(inf, -6.0f, 6.0f), 0x40C00000) && is(fp32::clamp(-7.0f, -6.0f, 6.0f), 0xC0C00000) &&
              is(fp32::clamp(-0.0f, -6.0f, 6.0f), 0x80000000));
static_assert(is(fp32::copy_sign(2.0f, -0.0f), 0xC0000000) && is(fp32::abs(-inf), 0x7F800000) &&
              is(fp32::negate(0.0f), 0x80000000));
static_assert(fp32::is_nan(fp32::from_bits(0xFF800001)) && !fp32::is_nan(inf) && fp32::is_infinite(-inf) &&
              !fp32::is_finite(inf) && fp32::is_finite(-top) && fp32::is_zero(-0.0f) && !fp32::is_zero(0x1p-149f));

// Integers.
static_assert(microscale::bit_width(0) == 0 && microscale::bit_width(1) == 1 && microscale::bit_width(255) == 8 &&
              microscale::bit_width(~std::uint64_t{0}) == 64);
static_assert(microscale::ceil_div(0, 16) == 0 && microscale::ceil_div(1, 16) == 1 &&
              microscale::ceil_div(32, 16) == 2);
static_assert(microscale::ceil_div(~std::uint64_t{0}, std::uint64_t{2}) == std::uint64_t{1} << 63);
static_assert(microscale::round_up(17, 16) == 32 && microscale::round_up(16, 16) == 16);

}  // namespace
