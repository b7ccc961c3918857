// M. Nibble order and odd counts.
#include "blocks.hpp"

#include <memory>
#include <microscale/tensor/quantized.hpp>

#include "support/tensors.hpp"

using namespace reports;

TEST_CASE("M1 element 0 lies in the low nibble, in a whole tensor as in the packing functions") {
  const float x[16] = {0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f};
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(x, 1, 16));
  CHECK(q.scales()[0] == 0x38);
  CHECK((q.codes()[0] == 0x21 && q.codes()[1] == 0x43 && q.codes()[2] == 0x65 && q.codes()[3] == 0x87));
  constexpr bool low_first = [] {
    const std::uint8_t codes[2] = {1, 2};
    std::uint8_t byte[1] = {};
    ms::store_codes<ms::e2m1>(byte, codes, 2);
    return byte[0] == 0x21 && ms::load_code<ms::e2m1>(byte, 0) == 1 && ms::load_code<ms::e2m1>(byte, 1) == 2;
  }();
  static_assert(low_first);
}

TEST_CASE("M3 odd counts: the last nibble is zero when written, ignored when read, and nothing lies beyond") {
  const std::vector<float> x = {6, -6, 1, -1, 0.5f};
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(x, 1, 5));
  CHECK(q.codes() == std::vector<std::uint8_t>{0xF7, 0xA2, 0x01});
  CHECK(ms::dequantize(q) == x);
  for (tensors::index_t cols = 1; cols <= 35; ++cols) {
    const auto m = tensors::difficult(2, cols, static_cast<std::uint64_t>(cols));
    tensors::guarded<ms::nvfp4_single> out(2, cols, 1);  // a byte of slack after each row
    ms::quantize_with(ms::sequential{}, ms::matrix(m, 2, cols), out.view(), ms::nearest_even{});
    CHECK(!out.spilled());
    const auto v = out.view();
    std::vector<float> before(static_cast<std::size_t>(2 * cols + 2), 7.0f), after = before;
    ms::dequantize_into(ms::sequential{}, v, ms::matrix(before.data() + 1, 2, cols));
    CHECK((before.front() == 7.0f && before.back() == 7.0f));  // neither more nor fewer floats
    if (cols % 2 == 1) {
      CHECK(v.codes[cols / 2] >> 4 == 0);
      for (tensors::index_t r = 0; r < 2; ++r) v.codes[r * v.code_pitch + cols / 2] |= 0xF0;
      ms::dequantize_into(ms::sequential{}, v, ms::matrix(after.data() + 1, 2, cols));
      CHECK(tensors::different(before, after) == 0);
    }
  }
}
