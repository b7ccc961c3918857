// The GEMM accumulations that have a definition, on the GPU against the host: every policy, pairs of schemes, odd
// shapes.
#include <microscale/cuda/gemm.cuh>

#include "tensor_test.cuh"

namespace {

using namespace device_test;

struct operand {
  raw_quantized host, device;
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> data;
};

// Arbitrary codes under scales that lie close together, spread far apart, or are arbitrary too (NaN included).
template <class S>
void make_operand(operand& o, arena& memory, random_source& r, index_t rows, index_t cols, int spread) {
  using scale = typename S::scale;
  o.host.rows = rows;
  o.host.cols = cols;
  o.host.layout = r.below(2) ? ms::scale_layout::linear : ms::scale_layout::tile_128x4;
  const auto size = ms::size_of<S>(rows, cols, o.host.layout);
  o.host.code_pitch = size.code_pitch + r.below(5);
  o.host.scale_pitch = size.scale_pitch;
  o.codes.resize(static_cast<std::size_t>(rows * o.host.code_pitch));
  for (auto& b : o.codes) b = static_cast<std::uint8_t>(r.bits());
  if (spread < 2 && S::element::bits == 8) {  // few NaN codes, or every sum would be one
    for (auto& b : o.codes) b = static_cast<std::uint8_t>(b & 0x77);
  }
  std::vector<typename scale::storage> scales(static_cast<std::size_t>(size.scales));
  for (auto& s : scales) {
    const float ideal = std::ldexp(1.0f + r.uniform(), spread == 0 ? r.below(3) - 1 : r.below(28) - 14);
    s = spread < 2 ? scale::encode(ideal) : static_cast<typename scale::storage>(r.bits());
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
  r.add_elements(static_cast<std::uint64_t>(m * n));
}

template <class A, class B>
void test_pair(quantize_tester& t, results& r, const char* name) {
  random_source random(std::hash<std::string>{}(name));
  const int count = t.effort() == 0 ? 4 : 24;
  for (int i = 0; i < count; ++i) {
    static constexpr index_t depths[] = {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200, 257, 1000};
    index_t m = 1 + random.below(9), n = 1 + random.below(9), k = depths[random.below(16)];
    if (i == 0) m = 65, n = 70, k = 333;
    if (i == 1) m = 3, n = 5, k = 4100;
    const int spread = i % 3;
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
  return r.finish();
}
