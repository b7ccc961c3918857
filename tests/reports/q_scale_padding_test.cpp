// Q. Padding of the tensor core's scale layout.
#include <algorithm>

#include "blocks.hpp"

#include <microscale/tensor/quantized.hpp>

#include "support/tensors.hpp"

using namespace reports;
using tensors::index_t;

TEST_CASE("Q1 the whole padded buffer is written, padding zero, whatever lay there before") {
  const auto holds = []<class S>(S, index_t rows, index_t cols) {
    const auto x = tensors::difficult(rows, cols, 1);
    const auto size = ms::size_of<S>(rows, cols, ms::scale_layout::tile_128x4);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(size.code_bytes)),
        scales(static_cast<std::size_t>(size.scales), 0xFF);
    float datum = 0;
    const ms::quantized_view<S> out{codes.data(), scales.data(),   &datum, rows,
                                    cols,         size.code_pitch, 0,      ms::scale_layout::tile_128x4};
    ms::quantize_with(ms::sequential{}, ms::matrix(x, rows, cols), out, ms::nearest_even{});
    std::vector<bool> used(scales.size());
    for (index_t r = 0; r < out.block_rows(); ++r) {
      for (index_t c = 0; c < out.block_cols(); ++c) used[static_cast<std::size_t>(out.scale_offset(r, c))] = true;
    }
    int stale = 0;
    for (std::size_t i = 0; i < scales.size(); ++i) stale += !used[i] && scales[i] != 0;
    CHECK(stale == 0);
    return scales;
  };
  std::vector<float> one(16, 6.0f);
  const auto q = tensors::to_nearest<ms::nvfp4_single>(ms::matrix(one, 1, 16), {}, ms::scale_layout::tile_128x4);
  CHECK((q.scales().size() == 512 && q.scales()[0] == 0x38));
  CHECK(std::count(q.scales().begin(), q.scales().end(), 0) == 511);
  holds(ms::nvfp4_single{}, 1, 16);
  holds(ms::nvfp4{}, 129, 70);
  holds(ms::mxfp4{}, 33, 500);
  holds(ms::ue5m3_fp4_2d{}, 100, 100);
}
