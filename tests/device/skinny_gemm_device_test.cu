// BF16 rows times packed weights: within the bound of the head of cuda/skinny_gemm.cuh of the sum in binary64, the same
// bits at every call, as stored and repacked, whole groups and odd shapes.
#include <microscale/cuda/skinny_gemm.cuh>

#include <cmath>
#include <functional>

#include "device_test.cuh"

namespace {

namespace ms = microscale;
using namespace device_test;
using ms::index_t;

struct shape {
  index_t m, n, k, experts;
  index_t x_gap, code_gap, y_gap;
  int spread;  // of the scales in binades; -1: every byte, NaN included
  bool tiled;  // layout of the scales
};

template <class S>
struct weights {
  std::vector<std::uint8_t> codes;
  std::vector<typename S::scale::storage> scales;
  std::vector<float> data;
  ms::quantized_view<const S> host;

  weights(random_source& r, const shape& s) {
    const index_t rows = s.n * s.experts;
    const auto layout = s.tiled ? ms::scale_layout::tile_128x4 : ms::scale_layout::linear;
    const auto size = ms::size_of<S>(rows, s.k, layout);
    const index_t pitch = size.code_pitch + s.code_gap;
    codes.resize(static_cast<std::size_t>(rows * pitch));
    for (auto& c : codes) c = static_cast<std::uint8_t>(r.bits());
    scales.resize(static_cast<std::size_t>(size.scales));
    for (auto& c : scales) {
      c = s.spread < 0 ? static_cast<typename S::scale::storage>(r.bits())
                       : S::scale::encode(std::ldexp(1.0f + r.uniform(), r.below(s.spread + 1) - s.spread / 2));
    }
    for (index_t e = 0; e < s.experts; ++e) data.push_back(std::ldexp(1.0f + r.uniform(), r.below(9) - 4));
    host = {codes.data(), scales.data(), data.data(), rows, s.k, pitch, size.scale_pitch, layout};
    if (s.experts > 1) host.tile.rows = s.n;
  }
};

struct outcome {
  bool within = true, gaps = true, same = true;
};

// One output against the sum in binary64, which is exact to far below the bound.
template <class S>
bool within_bound(const ms::quantized_view<const S>& w, index_t row, const std::uint16_t* x, float y) {
  double sum = 0, magnitude = 0;
  for (index_t k = 0; k < w.cols; ++k) {
    const double value = static_cast<double>(S::element::decode(w.code(row, k))) *
                         static_cast<double>(S::scale::is_finite(w.scale(row, k)) ? S::scale::decode(w.scale(row, k))
                                                                                  : ms::fp32::quiet_nan());
    const double p = value * static_cast<double>(ms::bf16::decode(x[k]));
    sum += p;
    magnitude += std::fabs(p);
  }
  const double factor = static_cast<double>(w.factors(w.tile_index(row, 0)).decode);
  if (std::isnan(sum)) return std::isnan(y);
  const double bound = (1.25 * static_cast<double>(w.cols) + 20) * 0x1p-23 * magnitude * std::fabs(factor) +
                       static_cast<double>(w.cols + 1) * 0x1p-109 * (1 + std::fabs(factor));
  if (magnitude > 0x1p120) return true;  // overflow on the way is allowed to differ; see the test of large scales
  return std::fabs(static_cast<double>(y) - sum * factor) <= bound;
}

template <class S, class W>
outcome multiply(const shape& s, const weights<S>& host, const W& w, const std::vector<std::uint16_t>& codes,
                 const std::vector<std::int32_t>& offsets, ms::matrix_view<const ms::value<ms::bf16>> x) {
  const index_t pitch = s.n + s.y_gap;
  device_array<float> y(static_cast<std::size_t>(s.m * pitch)), again(static_cast<std::size_t>(s.m * pitch));
  device_array<std::int32_t> ends(offsets);
  for (float* const out : {y.data(), again.data()}) {
    const auto c = ms::matrix(out, s.m, s.n, pitch);
    if (s.experts == 1) {
      ms::skinny_gemm_into(ms::cuda{}, x, w, c);
    } else {
      ms::grouped_skinny_gemm_into(ms::cuda{}, x, ends.data(), s.experts, w, c);
    }
  }
  synchronize("skinny GEMM");
  const auto got = y.host(), twice = again.host();
  outcome o;
  for (std::size_t i = 0; i < got.size(); ++i) o.same = o.same && float_bits(got[i]) == float_bits(twice[i]);
  index_t expert = 0;
  for (index_t i = 0; i < s.m; ++i) {
    while (expert < s.experts && i >= offsets[static_cast<std::size_t>(expert + 1)]) ++expert;
    for (index_t j = 0; j < pitch; ++j) {
      const float value = got[static_cast<std::size_t>(i * pitch + j)];
      if (j >= s.n || expert == s.experts) {
        o.gaps = o.gaps && float_bits(value) == 0xA5A5A5A5u;
      } else {
        o.within = o.within && within_bound(host.host, expert * s.n + j, codes.data() + i * (s.k + s.x_gap), value);
      }
    }
  }
  return o;
}

template <class S>
void test_scheme(results& r, const char* name) {
  random_source random(std::hash<std::string>{}(name));
  for (const shape& s : {shape{1, 64, 1024, 1, 0, 0, 0, 2, false},
                         {8, 48, 2048, 1, 0, 0, 0, 6, false},
                         {16, 33, 1000, 1, 8, 12, 3, 6, false},
                         {3, 17, 77, 1, 1, 1, 1, 4, true},
                         {37, 20, 530, 1, 0, 0, 0, 4, false},
                         {4, 4300, 64, 1, 0, 0, 0, 4, false},
                         {2, 5, 0, 1, 0, 0, 0, 4, false},
                         {5, 40, 600, 1, 0, 0, 0, -1, false},
                         {29, 32, 640, 4, 0, 0, 2, 4, false},
                         {12, 48, 96, 3, 0, 16, 0, 4, true},
                         // Long rows, so that x goes through its stages in each of the ways that there are.
                         {1, 20, 16896, 1, 0, 0, 0, 4, false},
                         {5, 24, 17000, 1, 0, 12, 0, 4, false},
                         {6, 24, 16896, 1, 0, 0, 0, 4, false},
                         {8, 48, 16896, 1, 0, 0, 0, 4, false},
                         {16, 20, 17000, 1, 0, 0, 0, 4, false}}) {
    const weights<S> host(random, s);
    std::vector<std::uint16_t> codes;
    for (index_t i = 0; i < s.m * (s.k + s.x_gap); ++i) {
      codes.push_back(ms::bf16::encode((random.uniform() - 0.5f) * std::ldexp(1.0f, random.below(8))));
    }
    std::vector<std::int32_t> offsets = {0};
    for (index_t e = 1; e < s.experts; ++e) {  // one expert without rows, rows of none at the end
      offsets.push_back(e == 2 ? offsets.back() : static_cast<std::int32_t>(s.m * e / s.experts));
    }
    offsets.push_back(static_cast<std::int32_t>(s.experts == 1 ? s.m : s.m - 1));
    device_array<std::uint16_t> x(codes);
    device_array<std::uint8_t> packed(host.codes);
    device_array<typename S::scale::storage> scales(host.scales);
    device_array<float> data(host.data);
    ms::quantized_view<const S> w = host.host;
    w.codes = packed.data();
    w.scales = scales.data();
    w.datum = data.data();
    const ms::matrix_view<const ms::value<ms::bf16>> rows{reinterpret_cast<const ms::value<ms::bf16>*>(x.data()), s.m,
                                                          s.k, s.k + s.x_gap};
    device_array<std::byte> memory(ms::repacked_bytes<S>(w.rows, w.cols));
    const auto repacked = ms::repack_into(ms::cuda{}, w, memory.data());
    const std::string what =
        std::string(name) + " " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
    for (const auto& [form, o] : {std::pair{" as stored", multiply(s, host, w, codes, offsets, rows)},
                                  std::pair{" repacked", multiply(s, host, repacked, codes, offsets, rows)}}) {
      r.expect(o.within, what + form + ": error bound");
      r.expect(o.gaps, what + form + ": gaps");
      r.expect(o.same, what + form + ": the same bits twice");
    }
    r.add_elements(static_cast<std::uint64_t>(2 * s.m * s.n));
  }
  r.end_group(name);
}

// One weight a row: every product is exact, so every bit is known. All scales under all codes.
template <class S>
void test_each_scale(results& r, const char* name) {
  constexpr index_t n = 256 * 16, k = 32;
  std::vector<std::uint8_t> codes(n * k / 2, 0);
  std::vector<typename S::scale::storage> scales(static_cast<std::size_t>(n * k / S::block::columns), 0);
  for (index_t j = 0; j < n; ++j) {
    codes[static_cast<std::size_t>(j * k / 2)] = static_cast<std::uint8_t>(j % 16);
    scales[static_cast<std::size_t>(j * (k / S::block::columns))] = static_cast<typename S::scale::storage>(j / 16);
  }
  std::vector<std::uint16_t> x(k, 0);
  x[0] = ms::bf16::encode(1.0f);
  device_array<std::uint8_t> packed(codes);
  device_array<typename S::scale::storage> stored(scales);
  device_array<std::uint16_t> row(x);
  device_array<float> y(n), one(std::vector<float>{1.0f});
  const ms::quantized_view<const S> w{packed.data(), stored.data(), one.data(), n, k, k / 2, k / S::block::columns};
  ms::skinny_gemm_into(ms::cuda{}, ms::matrix(reinterpret_cast<const ms::value<ms::bf16>*>(row.data()), 1, k), w,
                       ms::matrix(y.data(), 1, n), {.alpha = 1.0f});
  synchronize(name);
  const auto got = y.host();
  bool equal = true;
  for (index_t j = 0; j < n; ++j) {
    const auto scale = static_cast<typename S::scale::storage>(j / 16);
    const float value =
        S::scale::is_finite(scale)
            ? ms::fp32::mul(S::element::decode(static_cast<std::uint8_t>(j % 16)), S::scale::decode(scale))
            : ms::fp32::quiet_nan();
    const float y_j = got[static_cast<std::size_t>(j)];
    equal = equal && (std::isnan(value) ? std::isnan(y_j) : value == y_j);
  }
  r.expect(equal, std::string(name) + ": each scale under each code");
  r.add_elements(n);
  r.end_group(name);
}

}  // namespace

int main() {
  need_gpu();
  results r;
  test_scheme<ms::nvfp4>(r, "nvfp4");
  test_scheme<ms::ue5m3_fp4_2d>(r, "ue5m3_fp4_2d");
  test_scheme<ms::mxfp4>(r, "mxfp4");
  test_each_scale<ms::nvfp4>(r, "scales of nvfp4");
  test_each_scale<ms::ue5m3_single>(r, "scales of ue5m3");
  test_each_scale<ms::mxfp4>(r, "scales of mxfp4");
  return r.finish();
}
