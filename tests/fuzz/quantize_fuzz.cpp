// Whole matrices: any shape, pitch, axis, layout, tensor-scale tiles, scheme, policy, rounding, reference and data, by
// several executors, against the block functions called one block after another.
#include <microscale/host/executor.hpp>
#include <microscale/tensor/quantized.hpp>

#include <algorithm>
#include <vector>

#include "../unit/support/tensors.hpp"
#include "bytes.hpp"

namespace {

namespace ms = microscale;
using ms::index_t;
using tensors::size;

struct request {
  index_t rows = 0, cols = 0;  // of the input
  index_t slack = 0;           // between rows of the input
  index_t out_slack = 0;
  ms::axis along = ms::axis::row;
  ms::scale_layout layout = ms::scale_layout::linear;
  index_t tile_blocks = 0;  // rows of blocks under one tensor scale; 0: all
  bool own_reference = true;
  float reference = 0;
  index_t parts = 1;
  std::uint64_t seed = 0;
};

// Numbers that the input spells out, then drawn ones; some NaN and infinities where it asks for them.
std::vector<float> data(fuzz::reader& in, const request& q) {
  const bool nonfinite = in.below(4) == 0;
  std::vector<float> x = tensors::difficult(q.rows, q.cols, in.take<std::uint16_t>());
  for (std::size_t i = 0; i < x.size() && !in.empty(); ++i) {
    const auto bits = in.take<std::uint32_t>();
    if (ms::fp32::is_finite(ms::fp32::from_bits(bits)) || nonfinite) x[i] = ms::fp32::from_bits(bits);
  }
  return x;
}

// One of several executors, so that each operation is compiled once for them.
struct any_executor {
  unsigned kind;
  index_t parts;
  template <class F>
  void for_ranges(index_t count, index_t cost, F&& f) const {
    if (kind == 0) return ms::sequential{}.for_ranges(count, cost, f);
    tensors::backwards{parts}.for_ranges(count, cost, f);
  }
};

bool has_nonfinite(const std::vector<float>& x) {
  return std::any_of(x.begin(), x.end(), [](float v) { return !ms::fp32::is_finite(v); });
}

// The reference that a tensor, or a part of it, is quantized under; negative where it is refused.
template <class S>
float reference_of(const std::vector<float>& x, const request& q) {
  float g = q.own_reference ? tensors::largest_magnitude(x) : q.reference;
  if (q.own_reference && S::policy == ms::nonfinite::saturate) g = ms::finite_or_nan(g);
  if (!S::has_tensor_scale) return 0;
  const bool taken = ms::fp32::is_finite(g) || (S::tensor_scale::accepts_infinity && ms::fp32::is_infinite(g));
  return taken && (!ms::fp32::is_negative(g) || ms::fp32::is_zero(g)) ? ms::fp32::abs(g) : -1.0f;  // -0 is 0
}

template <class S, class T, class R>
void run(fuzz::reader& in, const request& q, R rounding) {
  using block = typename S::block;
  if constexpr (ms::stochastic_mode<R>) {
    rounding.seed = q.seed;
    rounding.stream = q.seed >> 7;
  }
  // The input as it lies, and what it means as floats, K-major.
  std::vector<float> x = data(in, q);
  std::vector<T> memory(size(q.rows * (q.cols + q.slack)));
  for (index_t r = 0; r < q.rows; ++r) {
    for (index_t c = 0; c < q.cols; ++c) {
      T& place = memory[size(r * (q.cols + q.slack) + c)];
      place = ms::from_float<T>(x[size(r * q.cols + c)]);
      x[size(r * q.cols + c)] = ms::to_float(place);
    }
  }
  const ms::matrix_view<const T> view = ms::matrix<const T>(memory.data(), q.rows, q.cols, q.cols + q.slack);
  const bool by_rows = q.along == ms::axis::row;
  const std::vector<float> stored = by_rows ? x : tensors::transposed(x, q.rows, q.cols);
  const index_t rows = by_rows ? q.rows : q.cols, cols = by_rows ? q.cols : q.rows;
  const ms::tensor_tile tile{.rows = S::has_tensor_scale ? q.tile_blocks * block::rows : 0, .cols = 0};

  tensors::guarded<S> first(rows, cols, q.out_slack, q.layout, tile);
  const index_t tiles = first.view().tile_rows(), height = tile.rows == 0 ? rows : tile.rows;

  // Tile by tile; draws belong to places in the whole matrix, so tiles are for modes without any.
  tensors::plain want;
  bool refused = S::policy == ms::nonfinite::reject && has_nonfinite(stored);
  std::vector<float> references;
  for (index_t i = 0; i < tiles; ++i) {
    const index_t from = i * height, to = std::min(rows, from + height);
    const std::vector<float> part(stored.begin() + from * cols, stored.begin() + std::max(from, to) * cols);
    const float g = reference_of<S>(part, q);
    refused = refused || g < 0;
    references.push_back(q.reference);
    if (refused) break;
    const tensors::plain p = tensors::by_blocks<S>(part, std::max<index_t>(0, to - from), cols, g, rounding);
    want.codes.insert(want.codes.end(), p.codes.begin(), p.codes.end());
    want.scales.insert(want.scales.end(), p.scales.begin(), p.scales.end());
    want.datum.insert(want.datum.end(), p.datum.begin(), p.datum.end());
  }

  const ms::quantize_options options{.axis = q.along, .reference = q.own_reference ? nullptr : references.data()};
  const auto with = [&](const auto& executor) {
    tensors::guarded<S> got(rows, cols, q.out_slack, q.layout, tile);
    bool threw = false;
    try {
      ms::quantize_with(executor, view, got.view(), rounding, options);
    } catch (const ms::error&) {
      threw = true;
    }
    fuzz::require(threw == refused);
    if (threw) {
      fuzz::require(got.untouched());
      return;
    }
    fuzz::require(!got.spilled());
    fuzz::require(tensors::read(got.view()) == want);

    // Back, in the orientation of the input, between rows that stay as they are.
    std::vector<float> back(size(q.rows * (q.cols + q.slack)), 77.0f);
    ms::dequantize_into(executor, got.view(), ms::matrix(back.data(), q.rows, q.cols, q.cols + q.slack), q.along);
    for (index_t r = 0; r < q.rows; ++r) {
      for (index_t c = 0; c < q.cols + q.slack; ++c) {
        const float y = back[size(r * (q.cols + q.slack) + c)];
        if (c >= q.cols) {
          fuzz::require(y == 77.0f);
          continue;
        }
        const index_t i = by_rows ? r : c, k = by_rows ? c : r;
        const auto v = got.view();
        const float z = ms::decode_element<S>(v.code(i, k), v.scale(i, k), v.factors(v.tile_index(i, k)));
        fuzz::require(ms::fp32::bits(y) == ms::fp32::bits(z) || (ms::fp32::is_nan(y) && ms::fp32::is_nan(z)));
      }
    }
  };
  with(any_executor{0, 1});
  with(any_executor{1, q.parts});
  with(ms::host{.threads = 2});
  with(ms::host{.threads = 1, .simd = ms::simd_level::portable});
}

// Few enough combinations to compile: BF16 is read, and then rounded, as FP32 is.
template <class S>
void with_rounding(fuzz::reader& in, const request& q, unsigned which) {
  if (which == 0) return run<S, ms::value<ms::bf16>>(in, q, ms::nearest_even{});
  if (which == 1 || q.tile_blocks != 0) return run<S, float>(in, q, ms::nearest_even{});
  if (which == 2) return run<S, float>(in, q, ms::stochastic_midpoint8{});
  run<S, float>(in, q, ms::stochastic_midpoint32{});
}

template <class... S>
void with_scheme(fuzz::reader& in, const request& q, unsigned scheme, unsigned which) {
  unsigned i = 0;
  ((i++ == scheme ? with_rounding<S>(in, q, which) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  fuzz::reader in{bytes, count};
  request q;
  const unsigned scheme = in.below(6), which = in.below(4);
  q.rows = in.below(40);
  q.cols = in.below(72);
  q.slack = in.below(3);
  q.out_slack = in.below(3);
  q.along = in.below(2) == 0 ? ms::axis::row : ms::axis::col;
  q.layout = in.below(2) == 0 ? ms::scale_layout::linear : ms::scale_layout::tile_128x4;
  q.tile_blocks = in.below(4) == 0 ? 1 + in.below(3) : 0;
  q.parts = 1 + in.below(7);
  q.own_reference = in.below(3) != 0;
  q.reference = in.take<float>();
  q.seed = in.take<std::uint32_t>();
  with_scheme<ms::nvfp4, ms::with_nonfinite<ms::nvfp4_2d, ms::nonfinite::poison>,
              ms::with_nonfinite<ms::ue5m3_fp4, ms::nonfinite::saturate>, ms::ue5m3_fp4_exact, ms::mxfp4,
              ms::with_nonfinite<ms::mxfp6_e3m2, ms::nonfinite::reject>>(in, q, scheme, which);
  return 0;
}
