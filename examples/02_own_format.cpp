// A number format and a scheme of one's own, one declaration each. They work wherever the named ones do.
#include <cmath>
#include <cstdio>
#include <microscale/microscale.hpp>
#include <vector>

namespace ms = microscale;

// Three bits of exponent and four of mantissa: a finer step than UE4M3's, over a narrower range. Decoding, encoding,
// range and special values follow from the layout.
struct ue3m4 : ms::minifloat<ms::float_layout{.exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false}> {};
static_assert(ue3m4::largest() == 31.0f && ue3m4::smallest_positive() == 1.0f / 64.0f);
static_assert(ue3m4::encode(1.03f) == 0x30 && ue3m4::encode(1.04f) == 0x31);  // 1.03125 lies half-way

// E2M1 under those scales, 16 along a row: scale = RNE(amax / 6), element = RNE(x / scale), no tensor scale.
using mine = ms::scheme<ms::e2m1, ue3m4, ms::block<1, 16>, ms::amax_over_max>;

int main() {
  constexpr int rows = 128, cols = 512;
  std::vector<float> x(rows * cols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 9.0f * std::sin(0.7f * static_cast<float>(i * i % 65537));
  const auto matrix = ms::matrix(x, rows, cols);

  const double theirs = ms::measure(matrix, ms::quantize<ms::nvfp4_single>(matrix)).sqnr_db();
  const double ours = ms::measure(matrix, ms::quantize<mine>(matrix)).sqnr_db();
  std::printf("E2M1 under UE4M3 scales  %.2f dB\nE2M1 under UE3M4 scales  %.2f dB\n", theirs, ours);

  // A block is all there is to it; this one is quantized by the compiler.
  constexpr float block[16] = {6.0f, -3.0f, 1.0f};
  constexpr auto q = ms::quantize_block<mine>(block, 0.0f);
  static_assert(ue3m4::decode(q.scale) == 1.0f && q.codes[0] == 7 && q.codes[1] == 0xD && q.codes[2] == 2);
  return ours > theirs ? 0 : 1;
}
