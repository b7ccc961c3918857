// Every seventh code of the 16-bit formats, and the special ones; a unit test takes all of them. In pieces, because
// compilers bound the length of one constant evaluation.
#include <cstdint>
#include <microscale/number/formats.hpp>
#include <utility>

namespace ms = microscale;

namespace {

// bfloat16 is the upper half of binary32.
constexpr bool is_bf16(int c) {
  const auto code = static_cast<std::uint16_t>(c);
  const std::uint32_t wide = static_cast<std::uint32_t>(c) << 16;
  const float x = ms::bf16::decode(code);
  const bool nan = (c & 0x7FFF) > 0x7F80, infinite = (c & 0x7FFF) == 0x7F80;
  if (ms::bf16::is_nan(code) != nan || ms::bf16::is_infinite(code) != infinite ||
      ms::bf16::is_finite(code) != (!nan && !infinite)) {
    return false;
  }
  if (nan) return ms::fp32::is_nan(x) && ms::bf16::is_nan(ms::bf16::encode(x));
  return ms::fp32::bits(x) == wide && ms::bf16::encode(x, ms::nearest_even{}, ms::overflow::ieee) == code;
}

// binary16: the exponent moves from bias 15 to bias 127; a subnormal is m / 2^24.
constexpr bool is_f16(int c) {
  const auto code = static_cast<std::uint16_t>(c);
  const int e = (c >> 10) & 31, m = c & 1023;
  const float x = ms::f16::decode(code);
  const std::uint32_t sign = static_cast<std::uint32_t>(c & 0x8000) << 16;
  if (ms::f16::is_nan(code) != (e == 31 && m != 0) || ms::f16::is_infinite(code) != (e == 31 && m == 0) ||
      ms::f16::is_finite(code) != (e != 31)) {
    return false;
  }
  if (e == 31 && m != 0) return ms::fp32::is_nan(x) && ms::f16::is_nan(ms::f16::encode(x));
  std::uint32_t want = sign;
  if (e == 31) {
    want |= 0x7F800000u;
  } else if (e > 0) {
    want |= static_cast<std::uint32_t>(e + 112) << 23 | static_cast<std::uint32_t>(m) << 13;
  } else {
    want |= __builtin_bit_cast(std::uint32_t, static_cast<float>(m) / 16777216.0f);
  }
  return ms::fp32::bits(x) == want && ms::f16::encode(x, ms::nearest_even{}, ms::overflow::ieee) == code;
}

constexpr int piece_size = 4096, stride = 7;

template <bool (*Is)(int), int Piece>
constexpr bool piece() {
  for (int c = Piece * piece_size; c < (Piece + 1) * piece_size; c += stride) {
    if (!Is(c)) return false;
  }
  return true;
}
template <bool (*Is)(int), int Piece>
inline constexpr bool piece_holds = piece<Is, Piece>();

template <bool (*Is)(int), int... Pieces>
constexpr bool all_hold(std::integer_sequence<int, Pieces...>) {
  return (piece_holds<Is, Pieces> && ...);
}

static_assert(all_hold<is_bf16>(std::make_integer_sequence<int, 65536 / piece_size>{}));
static_assert(all_hold<is_f16>(std::make_integer_sequence<int, 65536 / piece_size>{}));
static_assert(is_bf16(0x0001) && is_bf16(0x007F) && is_bf16(0x0080) && is_bf16(0x7F7F) && is_bf16(0x7F80) &&
              is_bf16(0x7F81) && is_bf16(0x7FFF) && is_bf16(0x8000) && is_bf16(0xFF80) && is_bf16(0xFFFF));
static_assert(is_f16(0x0001) && is_f16(0x03FF) && is_f16(0x0400) && is_f16(0x7BFF) && is_f16(0x7C00) &&
              is_f16(0x7C01) && is_f16(0x7FFF) && is_f16(0x8000) && is_f16(0xFC00) && is_f16(0xFFFF));

}  // namespace
