// O. Sizes beyond 31 bits, without the memory for them. With it, on the device: tests/device/large_device_test.cu.
#include "blocks.hpp"

#include <microscale/number/random.hpp>
#include <microscale/tensor/view.hpp>

using namespace reports;
using ms::index_t;

TEST_CASE("O1 counts, sizes, offsets and positions are 64 bits wide") {
  constexpr index_t n = (index_t{1} << 31) + 32;
  CHECK(ms::ceil_div(n, index_t{16}) == 134217730);
  CHECK(ms::packed_bytes(4, n) == 1073741840);
  const auto row = ms::size_of<ms::nvfp4>(1, n);
  CHECK((row.code_bytes == 1073741840 && row.scales == 134217730));
  const auto column = ms::size_of<ms::mxfp8_e4m3>(n, 3);
  CHECK((column.code_bytes == 3 * n && column.scales == n));
  const auto square = ms::size_of<ms::nvfp4_2d>(1 << 20, 1 << 20, ms::scale_layout::tile_128x4);
  CHECK((square.code_bytes == index_t{1} << 39 && square.scales == index_t{1} << 32));

  const ms::quantized_view<ms::nvfp4> v{.rows = n, .cols = n, .code_pitch = n / 2, .scale_pitch = n / 16};
  CHECK(v.scale_offset(n - 1, n / 16 - 1) == n * (n / 16) - 1);
  CHECK((v.extent(n - 1, n / 16 - 1).columns == 16 && v.block_cols() == n / 16));
  auto tiled = v;
  tiled.layout = ms::scale_layout::tile_128x4;
  CHECK(tiled.scale_offset(n - 1, 0) ==
        (n - 1) / 128 * ms::ceil_div(n / 16, index_t{4}) * 512 + (n - 1) % 32 * 16 + (n - 1) % 128 / 32 * 4);

  // The pitch of a matrix, and an element far along, without touching memory.
  const ms::matrix_view<float> m{nullptr, n, n, n};
  CHECK(m.pitch == n);
  // Draws: rows of 2^31 + 32 elements, and positions past 2^32 that do not fall back onto small ones.
  const auto big = static_cast<std::uint64_t>(n);
  CHECK(ms::element_position(2, 5, big) == 2 * big + 5);
  CHECK(ms::element_position(big, 3, 17) == big * 32 + 3);
  const ms::random_key key{1, 2};
  int same = 0;
  for (std::uint64_t i = 0; i < 64; ++i) same += ms::draw<8>(key, (std::uint64_t{1} << 36) + i) == ms::draw<8>(key, i);
  CHECK(same < 8);
}
