// The GEMM accumulations that have a definition, on the GPU against the host: every policy, pairs of schemes, odd
// shapes; E2M1 on tensor cores too, at the limits of its conditions (cuda/blackwell_gemm.cuh).
#include <algorithm>
#include <cmath>

#include <microscale/cuda/gemm.cuh>

#include "tensor_test.cuh"

namespace {

using namespace device_test;

struct operand {
  raw_quantized host, device;
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> data;
};

// Where scales lie: close together, spread over 28 binades, anywhere (NaN included); or where the conditions of
// cuda/blackwell_gemm.cuh end: scales of the largest significand over codes of the largest magnitude, the runs of a
// group a few binades apart; or outlier channels and blocks of zeros.
enum spread { close, far, arbitrary, limit, outliers, spreads };

// The scale of block `column`, under `limit` and `outliers`.
inline float limit_scale(random_source& r, index_t column) {
  const int apart =
      static_cast<int>(column / 4 * 5 % 37);  // the same in every row, so that whole tiles are at the limit
  return std::ldexp(r.below(8) ? 15.0f : 8.0f, column % 2 == 0 ? -10 : apart - 10);
}
inline float outlier_scale(random_source& r, index_t column) {
  if (r.below(4) == 0) return 0.0f;
  return std::ldexp(1.0f + r.uniform(), column % 5 == 2 ? 6 : r.below(3) - 1);
}

template <class S>
void make_operand(operand& o, arena& memory, random_source& r, index_t rows, index_t cols, enum spread spread) {
  using scale = typename S::scale;
  o.host.rows = rows;
  o.host.cols = cols;
  o.host.layout = r.below(2) ? ms::scale_layout::linear : ms::scale_layout::tile_128x4;
  const auto size = ms::size_of<S>(rows, cols, o.host.layout);
  o.host.code_pitch = size.code_pitch + r.below(5);
  o.host.scale_pitch = size.scale_pitch;
  o.codes.resize(static_cast<std::size_t>(rows * o.host.code_pitch));
  for (auto& b : o.codes) b = static_cast<std::uint8_t>(r.bits());
  if (spread == limit) {
    for (auto& b : o.codes) b = static_cast<std::uint8_t>(r.below(6) ? b | 0x77 : b);
  }
  if (spread == outliers) {
    for (auto& b : o.codes) b = static_cast<std::uint8_t>(r.below(3) ? b : 0);
  }
  if (spread != arbitrary && S::element::bits == 8) {  // few NaN codes, or every sum would be one
    for (auto& b : o.codes) b = static_cast<std::uint8_t>(b & 0x77);
  }
  std::vector<typename scale::storage> scales(static_cast<std::size_t>(size.scales));
  index_t column = 0;
  for (auto& s : scales) {
    const float ideal = spread == limit ? limit_scale(r, column)
                        : spread == outliers
                            ? outlier_scale(r, column)
                            : std::ldexp(1.0f + r.uniform(), spread == close ? r.below(3) - 1 : r.below(28) - 14);
    s = spread != arbitrary ? scale::encode(ideal) : static_cast<typename scale::storage>(r.bits());
    column = (column + 1) % size.scale_pitch;
  }
  o.scales.resize(scales.size() * sizeof(scales[0]));
  if (!o.scales.empty()) std::memcpy(o.scales.data(), scales.data(), o.scales.size());
  if (S::has_tensor_scale && r.below(3) == 0) o.host.tile.rows = S::block::rows * (1 + r.below(2));
  o.data.resize(static_cast<std::size_t>(count_tiles(o.host)));
  for (auto& d : o.data) d = std::ldexp(1.0f + r.uniform(), r.below(20) - 10);
  o.host.codes = o.codes.data();
  o.host.scales = o.scales.data();
  o.host.datum = o.data.data();
  o.device = o.host;
  o.device.codes = memory.take(static_cast<index_t>(o.codes.size()), r.below(5));
  o.device.scales = memory.take(static_cast<index_t>(o.scales.size()));
  o.device.datum = reinterpret_cast<float*>(memory.take(static_cast<index_t>(o.data.size()) * 4));
  check(cudaMemcpy(o.device.codes, o.codes.data(), o.codes.size(), cudaMemcpyHostToDevice), "copy to the device");
  check(cudaMemcpy(o.device.scales, o.scales.data(), o.scales.size(), cudaMemcpyHostToDevice), "copy to the device");
  check(cudaMemcpy(o.device.datum, o.data.data(), o.data.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
}

template <class P, class A, class B>
void test_product(quantize_tester& t, results& r, const operand& a, const operand& b, index_t gap,
                  const ms::gemm_options& options, ms::cuda_launch launch, const std::string& what) {
  const index_t m = a.host.rows, n = b.host.rows;
  std::vector<float> expected(static_cast<std::size_t>(m * n));
  ms::gemm_into<P>(cores{}, view_of<const A>(a.host), view_of<const B>(b.host), ms::matrix(expected.data(), m, n),
                   options);
  std::uint8_t* const c = t.memory().take(m * (n + gap) * 4);
  ms::gemm_into<P>(ms::cuda{.launch = launch}, view_of<const A>(a.device), view_of<const B>(b.device),
                   ms::matrix(reinterpret_cast<float*>(c), m, n, n + gap), options);
  synchronize(what.c_str());
  r.expect(t.same_matrix(element_type::f32, c, m, n, n + gap, expected.data()), what);
  const index_t bytes =
      static_cast<index_t>(ms::gemm_workspace<P>(ms::cuda{}, view_of<const A>(a.device), view_of<const B>(b.device)));
  if (bytes > 0) {
    std::uint8_t* const workspace = t.memory().take(bytes);
    std::uint8_t* const fast = t.memory().take(m * (n + gap) * 4);
    ms::gemm_into<P>(ms::cuda{.launch = launch}, view_of<const A>(a.device), view_of<const B>(b.device),
                     ms::matrix(reinterpret_cast<float*>(fast), m, n, n + gap), options,
                     std::span<std::byte>(reinterpret_cast<std::byte*>(workspace), static_cast<std::size_t>(bytes)));
    synchronize(what.c_str());
    r.expect(t.same_matrix(element_type::f32, fast, m, n, n + gap, expected.data()), what + " with a workspace");
  }
  r.add_elements(static_cast<std::uint64_t>(m * n));
}

template <class A, class B>
void test_pair(quantize_tester& t, results& r, const char* name) {
  random_source random(std::hash<std::string>{}(name));
  const int count = t.effort() == 0 ? 5 : 30;
  for (int i = 0; i < count; ++i) {
    static constexpr index_t depths[] = {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200, 257, 1000};
    index_t m = 1 + random.below(9), n = 1 + random.below(9), k = depths[random.below(16)];
    if (i == 5) m = 65, n = 70, k = 333;
    if (i == 6) m = 3, n = 5, k = 4100;
    if (i < 5 && t.effort() > 0) m = 100 + 30 * i, n = 200 - 35 * i, k = 300 + 100 * i;  // several tiles
    const auto spread = static_cast<enum spread>(i % spreads);
    t.memory().reset();
    operand a, b;
    make_operand<A>(a, t.memory(), random, m, k, spread);
    make_operand<B>(b, t.memory(), random, n, k, spread);
    ms::gemm_options options;
    if (random.below(3) == 0) options.alpha = 0.37f;
    const index_t gap = random.below(4);
    const ms::cuda_launch launch{64u << random.below(3), random.below(2) ? 1u << 20 : 3u};
    const std::string what = std::string(name) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" +
                             std::to_string(k) + " spread " + std::to_string(spread);
    test_product<ms::exact_f32, A, B>(t, r, a, b, gap, options, launch, what + " exact_f32");
    test_product<ms::f32_blocks, A, B>(t, r, a, b, gap, options, launch, what + " f32_blocks");
    test_product<ms::blackwell_k64, A, B>(t, r, a, b, gap, options, launch, what + " blackwell_k64");
  }
  r.end_group(name);
}

// Several products in one call: rows of C of each group against the product of that group alone; rows of none stay.
template <class P, class A, class B>
void test_groups(quantize_tester& t, results& r, const char* name, index_t n, index_t k) {
  constexpr index_t groups = 4;
  random_source random(17);
  for (const bool equal : {false, true}) {
    const std::vector<std::int32_t> ends =
        equal ? std::vector<std::int32_t>{0, 40, 80, 120, 160} : std::vector<std::int32_t>{3, 140, 140, 145, 158};
    t.memory().reset();
    operand a, b;
    make_operand<A>(a, t.memory(), random, 160, k, close);
    make_operand<B>(b, t.memory(), random, groups * n, k, close);
    std::uint8_t* const offsets = t.memory().take(index_t{sizeof(std::int32_t)} * (groups + 1));
    check(cudaMemcpy(offsets, ends.data(), ends.size() * sizeof ends[0], cudaMemcpyHostToDevice), "copy");
    const auto* const device_ends = reinterpret_cast<const std::int32_t*>(offsets);
    std::vector<float> expected(static_cast<std::size_t>(160 * n), device_test::bits_float(0xA5A5A5A5u));
    std::vector<float> all(static_cast<std::size_t>(160 * groups * n));
    ms::gemm_into<P>(cores{}, view_of<const A>(a.host), view_of<const B>(b.host),
                     ms::matrix(all.data(), 160, groups * n));
    for (index_t g = 0; g < groups; ++g) {
      for (index_t i = ends[static_cast<std::size_t>(g)]; i < ends[static_cast<std::size_t>(g + 1)]; ++i) {
        std::copy_n(all.begin() + (i * groups + g) * n, n, expected.begin() + i * n);
      }
    }
    const auto x = view_of<const A>(a.device);
    const auto w = view_of<const B>(b.device);
    const std::size_t bytes = equal ? ms::batched_gemm_workspace<P>(ms::cuda{}, x, w, groups)
                                    : ms::grouped_gemm_workspace<P>(ms::cuda{}, x, w, device_ends, groups);
    for (const bool fast : {false, true}) {
      std::uint8_t* const out = t.memory().take(160 * n * 4);
      std::uint8_t* const memory = t.memory().take(static_cast<index_t>(bytes));
      const auto c = ms::matrix(reinterpret_cast<float*>(out), 160, n);
      const std::span<std::byte> workspace(reinterpret_cast<std::byte*>(memory), fast ? bytes : 0);
      if (equal) {
        ms::batched_gemm_into<P>(ms::cuda{}, x, w, c, groups, {}, workspace);
      } else {
        ms::grouped_gemm_into<P>(ms::cuda{}, x, w, c, device_ends, groups, {}, workspace);
      }
      synchronize(name);
      r.expect(t.same_matrix(element_type::f32, out, 160, n, n, expected.data()),
               std::string(name) + (equal ? " batched" : " grouped") + (fast ? " with a workspace" : ""));
      r.add_elements(static_cast<std::uint64_t>(160 * n));
    }
  }
  r.end_group(name);
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_pair<ms::nvfp4, ms::nvfp4>(t, r, "nvfp4 x nvfp4");
  test_pair<ms::ue5m3_fp4, ms::ue5m3_fp4_2d>(t, r, "ue5m3_fp4 x ue5m3_fp4_2d");
  test_pair<ms::ue5m3_fp4_b32, ms::ue5m3_fp4_b32_2d>(t, r, "ue5m3_fp4_b32 x ue5m3_fp4_b32_2d");
  test_pair<ms::ue5m3_fp4, ms::nvfp4_compressed_tensors>(t, r, "ue5m3_fp4 x nvfp4_compressed_tensors");
  test_pair<ms::mxfp4, ms::mxfp4>(t, r, "mxfp4 x mxfp4");
  test_pair<ms::mxfp8_e4m3, ms::mxfp8_e5m2>(t, r, "mxfp8_e4m3 x mxfp8_e5m2");
  test_pair<ms::mxint8, ms::mxfp6_e3m2>(t, r, "mxint8 x mxfp6_e3m2");
  test_pair<ms::ufp4, ms::ufp4>(t, r, "ufp4 x ufp4");
  test_pair<ms::nvfp4, ms::mxfp8_e4m3>(t, r, "nvfp4 x mxfp8_e4m3");
  test_groups<ms::blackwell_k64, ms::nvfp4, ms::nvfp4>(t, r, "groups of nvfp4 x nvfp4", 130, 200);
  test_groups<ms::exact_f32, ms::ue5m3_single, ms::ue5m3_single>(t, r, "exact groups of ue5m3_single", 130, 200);
  return r.finish();
}
