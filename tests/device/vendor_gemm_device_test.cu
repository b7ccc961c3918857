// The vendor accumulation on the GPU: within its error bound of the exact product, with the handle left as it was; and
// the scales that its native path (which needs a newer GPU) would read.
#include <microscale/cuda/vendor_gemm.cuh>
#include <microscale/recipe/linear.cuh>
#include <microscale/recipe/recipes.hpp>

#include <array>
#include <cmath>

#include "device_test.cuh"

namespace {

namespace ms = microscale;
using namespace device_test;
using ms::index_t;

void check_blas(cublasStatus_t code) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  std::printf("FAILED: cuBLAS: %s\n", cublasGetStatusString(code));
  std::exit(1);
}

template <class S>
struct operand {
  ms::quantized<S> host;
  device_array<std::uint8_t> codes;
  device_array<typename S::scale::storage> scales;
  device_array<float> datum;

  operand(random_source& r, index_t rows, index_t cols)
      : host(make(r, rows, cols)),
        codes(host.codes()),
        scales(host.scales()),
        datum(std::vector<float>{host.datum()}) {}
  static ms::quantized<S> make(random_source& r, index_t rows, index_t cols) {
    std::vector<float> x;
    for (index_t i = 0; i < rows * cols; ++i) x.push_back((r.uniform() - 0.5f) * std::ldexp(1.0f, r.below(10) - 5));
    ms::quantized<S> q(rows, cols);
    ms::quantize_with(ms::sequential{}, ms::matrix(static_cast<const float*>(x.data()), rows, cols), q.view(),
                      ms::nearest_even{});
    return q;
  }
  ms::quantized_view<const S> view() const {
    const auto v = host.view();
    return {codes.data(), scales.data(), datum.data(), v.rows, v.cols, v.code_pitch, v.scale_pitch, v.layout};
  }
};

template <class A, class B>
void test_pair(results& r, cublasHandle_t handle, const char* name) {
  random_source random(5);
  struct shape {
    index_t m, n, k, gap;
  };
  for (const auto& [m, n, k, gap] :
       {shape{1, 1, 1, 0}, {3, 5, 17, 2}, {64, 48, 256, 0}, {129, 65, 1000, 3}, {7, 9, 0, 1}}) {
    const operand<A> a(random, m, k);
    const operand<B> b(random, n, k);
    for (const bool own_alpha : {false, true}) {
      ms::gemm_options options;
      if (own_alpha) options.alpha = 0.37f;
      const ms::cuda_blas blas{.handle = handle};
      const std::size_t bytes = ms::gemm_workspace<ms::vendor>(blas, a.view(), b.view());
      device_array<std::byte> workspace(bytes);
      device_array<float> c(static_cast<std::size_t>(m * (n + gap)));
      ms::gemm_into<ms::vendor>(blas, a.view(), b.view(), ms::matrix(c.data(), m, n, n + gap), options,
                                std::span<std::byte>(workspace.data(), bytes));
      synchronize(name);
      const auto got = c.host();
      const auto exact = ms::gemm<ms::exact_f32>(a.host, b.host, options);
      const auto x = ms::dequantize(a.host), y = ms::dequantize(b.host);
      const double scale = own_alpha ? 0.37 / static_cast<double>(a.host.decode_multiplier()) /
                                           static_cast<double>(b.host.decode_multiplier())
                                     : 1.0;
      bool within = true, gaps = true;
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < n + gap; ++j) {
          const float value = got[static_cast<std::size_t>(i * (n + gap) + j)];
          if (j >= n) {
            gaps = gaps && float_bits(value) == 0xA5A5A5A5u;
            continue;
          }
          double magnitude = 0;
          for (index_t l = 0; l < k; ++l) {
            magnitude += std::fabs(static_cast<double>(x[static_cast<std::size_t>(i * k + l)]) *
                                   static_cast<double>(y[static_cast<std::size_t>(j * k + l)]));
          }
          const double expected = static_cast<double>(exact[static_cast<std::size_t>(i * n + j)]);
          const double bound = (static_cast<double>(k) + 4) * 0x1p-23 * magnitude * scale;
          within = within && std::fabs(static_cast<double>(value) - expected) <= bound;
        }
      }
      const std::string what =
          std::string(name) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
      r.expect(within, what + ": error bound");
      r.expect(gaps, what + ": gaps");
      r.add_elements(static_cast<std::uint64_t>(m * n));
    }
  }
  r.end_group(name);
}

// Several products in one call, each row within its bound of the sum in binary64, rows of none left alone; one tensor
// scale, or one for each matrix.
void test_groups(results& r, cublasHandle_t handle) {
  using scheme = ms::nvfp4;
  constexpr index_t groups = 4, rows = 80, n = 24, k = 112;
  random_source random(9);
  const operand<scheme> a(random, rows, k), b(random, groups * n, k);
  std::vector<float> own;
  for (int g = 0; g < groups; ++g) own.push_back(std::ldexp(1.0f + random.uniform(), random.below(9) - 4));
  const device_array<float> own_on_device(own);
  const ms::cuda_blas blas{.handle = handle};
  for (const bool equal : {false, true}) {
    for (const bool own_scales : {false, true}) {
      const std::vector<std::int32_t> ends =
          equal ? std::vector<std::int32_t>{0, 20, 40, 60, 80} : std::vector<std::int32_t>{3, 30, 30, 61, 77};
      auto x = a.view(), w = b.view();
      ms::quantized_view<const scheme> host_x = a.host.view(), host_w = b.host.view();
      if (own_scales) {
        x.tile.rows = host_x.tile.rows = rows / groups;
        w.tile.rows = host_w.tile.rows = n;
        x.datum = w.datum = own_on_device.data();
        host_x.datum = host_w.datum = own.data();
      }
      device_array<float> c(static_cast<std::size_t>(rows * n));
      const auto y = ms::matrix(c.data(), rows, n);
      const std::size_t bytes = equal ? ms::batched_gemm_workspace<ms::vendor>(blas, x, w, groups)
                                      : ms::grouped_gemm_workspace<ms::vendor>(blas, x, w);
      const device_array<std::byte> memory(bytes);
      const std::span<std::byte> workspace(memory.data(), bytes);
      if (equal) {
        ms::batched_gemm_into<ms::vendor>(blas, x, w, y, groups, {}, workspace);
      } else {
        ms::grouped_gemm_into<ms::vendor>(blas, x, w, y, std::span<const std::int32_t>(ends), {}, workspace);
      }
      synchronize("groups");
      const auto got = c.host();
      bool within = true, alone = true;
      const auto value_of = [](const ms::quantized_view<const scheme>& q, index_t row, index_t at) {
        return static_cast<double>(scheme::element::decode(q.code(row, at))) *
               static_cast<double>(scheme::scale::decode(q.scale(row, at))) *
               static_cast<double>(q.factors(q.tile_index(row, 0)).decode);
      };
      for (index_t i = 0; i < rows; ++i) {
        index_t g = 0;
        while (g < groups && i >= ends[static_cast<std::size_t>(g + 1)]) ++g;
        const bool none = i < ends[0] || g == groups;
        for (index_t j = 0; j < n; ++j) {
          const float value = got[static_cast<std::size_t>(i * n + j)];
          if (none) {
            alone = alone && float_bits(value) == 0xA5A5A5A5u;
            continue;
          }
          double sum = 0, magnitude = 0;
          for (index_t at = 0; at < k; ++at) {
            const double p = value_of(host_x, i, at) * value_of(host_w, g * n + j, at);
            sum += p;
            magnitude += std::fabs(p);
          }
          within = within && std::fabs(static_cast<double>(value) - sum) <= (k + 4) * 0x1p-23 * magnitude;
        }
      }
      const std::string what = std::string(equal ? "batched" : "grouped") + (own_scales ? ", scales of their own" : "");
      r.expect(within, what + ": error bound");
      r.expect(alone, what + ": rows of none");
      r.add_elements(static_cast<std::uint64_t>(rows * n));
    }
  }
  const std::array<std::int32_t, 3> wrong = {0, 50, 40};
  device_array<float> c(static_cast<std::size_t>(rows * groups * n / 2));
  const std::size_t bytes = ms::grouped_gemm_workspace<ms::vendor>(blas, a.view(), b.view());
  const device_array<std::byte> memory(bytes);
  bool thrown = false;
  try {
    ms::grouped_gemm_into<ms::vendor>(blas, a.view(), b.view(), ms::matrix(c.data(), rows, groups * n / 2),
                                      std::span<const std::int32_t>(wrong), {},
                                      std::span<std::byte>(memory.data(), bytes));
  } catch (const ms::error&) {
    thrown = true;
  }
  r.expect(thrown, "offsets that descend");
  r.end_group("groups");
}

// Exported scales against the layout's own formula, padding zero.
void test_export(results& r) {
  random_source random(8);
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{1, 16}, {128, 64}, {130, 100}, {300, 1000}, {37, 528}}) {
    const operand<ms::nvfp4> q(random, rows, cols);
    const auto view = q.view();
    const index_t count = ms::detail::device::exported_scale_bytes(view);
    device_array<std::byte> out(static_cast<std::size_t>(count));
    ms::detail::device::native_scales(ms::cuda{}, view, out.data());
    synchronize("export");
    std::vector<std::byte> expected(static_cast<std::size_t>(count), std::byte{0});
    const auto host = q.host.view();
    for (index_t i = 0; i < host.block_rows(); ++i) {
      for (index_t j = 0; j < host.block_cols(); ++j) {
        expected[static_cast<std::size_t>(ms::tile_128x4_offset(i, j, host.block_cols()))] =
            std::byte{host.scales[host.scale_offset(i, j)]};
      }
    }
    r.expect(out.host() == expected, "exported scales of " + std::to_string(rows) + "x" + std::to_string(cols));
    r.add_elements(static_cast<std::uint64_t>(count));
  }
  r.end_group("exported scales");
}

void test_handle(results& r, cublasHandle_t handle) {
  random_source random(6);
  const operand<ms::nvfp4> a(random, 16, 64);
  cudaStream_t mine, other;
  check(cudaStreamCreate(&mine), "cudaStreamCreate");
  check(cudaStreamCreate(&other), "cudaStreamCreate");
  check_blas(cublasSetStream(handle, other));
  const ms::cuda_blas blas{.handle = handle, .executor = {.stream = mine}};
  const std::size_t bytes = ms::gemm_workspace<ms::vendor>(blas, a.view(), a.view());
  device_array<std::byte> workspace(bytes);
  device_array<float> c(256);
  ms::gemm_into<ms::vendor>(blas, a.view(), a.view(), ms::matrix(c.data(), 16, 16), {},
                            std::span<std::byte>(workspace.data(), bytes));
  cudaStream_t now = nullptr;
  cublasPointerMode_t mode;
  check_blas(cublasGetStream(handle, &now));
  check_blas(cublasGetPointerMode(handle, &mode));
  r.expect(now == other && mode == CUBLAS_POINTER_MODE_HOST, "the handle is as it was");
  bool thrown = false;
  try {
    ms::gemm_into<ms::vendor>(blas, a.view(), a.view(), ms::matrix(c.data(), 16, 16), {},
                              std::span<std::byte>(workspace.data(), bytes - 1));
  } catch (const ms::error&) {
    thrown = true;
  }
  r.expect(thrown, "a workspace that is too small");
  synchronize("handle");
  check_blas(cublasSetStream(handle, nullptr));
  cudaStreamDestroy(mine);
  cudaStreamDestroy(other);
  r.end_group("handle");
}

// BF16 operands, by cuBLAS and by the plain kernel: every product is exact, each of fewer than k additions errs by at
// most 2^-23 of the sum of magnitudes, whatever their order and rounding.
void test_bf16(results& r, cublasHandle_t handle) {
  random_source random(7);
  for (const auto& [m, n, k, gap] :
       {std::array<index_t, 4>{1, 1, 1, 0}, {5, 3, 17, 1}, {64, 48, 256, 0}, {9, 70, 1000, 3}, {4, 5, 0, 0}}) {
    const auto make = [&](index_t rows) {
      std::vector<ms::value<ms::bf16>> v(static_cast<std::size_t>(rows * (k + gap)) + 1);
      for (auto& e : v)
        e = ms::from_float<ms::value<ms::bf16>>((random.uniform() - 0.5f) * std::ldexp(1.0f, random.below(8)));
      return v;
    };
    const auto a = make(m), b = make(n);
    const device_array<ms::value<ms::bf16>> da(a), db(b);
    const device_array<float> by_blas(static_cast<std::size_t>(m * n)), by_kernel(static_cast<std::size_t>(m * n));
    const ms::matrix_view<const ms::value<ms::bf16>> left{da.data(), m, k, k + gap}, right{db.data(), n, k, k + gap};
    ms::bf16_gemm_into(ms::cuda_blas{.handle = handle}, left, right, ms::matrix(by_blas.data(), m, n));
    ms::bf16_gemm_into(ms::cuda{}, left, right, ms::matrix(by_kernel.data(), m, n));
    synchronize("bf16");
    const auto c = by_blas.host(), d = by_kernel.host();
    bool close = true;
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (index_t at = 0; at < k; ++at) {
          const double p = double{ms::to_float(a[static_cast<std::size_t>(i * (k + gap) + at)])} *
                           double{ms::to_float(b[static_cast<std::size_t>(j * (k + gap) + at)])};
          sum += p;
          magnitude += std::fabs(p);
        }
        const double bound = static_cast<double>(k) * 0x1p-23 * magnitude;
        for (const auto* const out : {&c, &d}) {
          close = close && std::fabs(double{(*out)[static_cast<std::size_t>(i * n + j)]} - sum) <= bound;
        }
      }
    }
    r.expect(close, "BF16 " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
  }
  r.end_group("bf16");
}

// A layer under `vendor`: its output is the exact product of the very operands that it quantized, within the bound.
void test_layer(results& r, cublasHandle_t handle) {
  constexpr index_t tokens = 48, in = 96, out = 32;
  random_source random(8);
  std::vector<float> x(tokens * in), w(out * in), dy(tokens * out);
  for (auto* const v : {&x, &w, &dy}) {
    for (float& e : *v) e = random.uniform() - 0.5f;
  }
  const device_array<float> dx_in(x), dw_in(w), dy_in(dy), y(dy.size()), dx(x.size()), dw(w.size());
  ms::cuda_linear<ms::recipes::nvfp4> layer(in, out, {.role = ms::layer_role::mlp_up, .index = 0, .count = 2});
  const ms::cuda_blas blas{.handle = handle};
  layer.forward(blas, {}, ms::matrix(dx_in.data(), tokens, in), ms::matrix(dw_in.data(), out, in),
                ms::matrix(y.data(), tokens, out));
  layer.backward(blas, {}, ms::matrix(dy_in.data(), tokens, out), ms::matrix(dx.data(), tokens, in),
                 ms::matrix(dw.data(), out, in));
  const auto compare = [&](const device_array<float>& got, auto left, auto right, index_t rows, index_t cols, index_t k,
                           const char* what) {
    device_array<float> expected(static_cast<std::size_t>(rows * cols));
    ms::gemm_into<ms::exact_f32>(ms::cuda{}, left, right, ms::matrix(expected.data(), rows, cols));
    synchronize(what);
    const auto a = got.host(), b = expected.host();
    // Operands are below 1 in magnitude, but for a transform's factor of at most 4 in each.
    const double bound = static_cast<double>(k) * static_cast<double>(k) * 16.0 * 0x1p-23;
    bool close = true, is_zero = true;
    for (std::size_t i = 0; i < a.size(); ++i) {
      close = close && std::fabs(double{a[i]} - double{b[i]}) <= bound;
      is_zero = is_zero && a[i] == 0.0f;
    }
    r.expect(close && !is_zero, what);
  };
  using ms::gemm_role;
  compare(y, layer.left<gemm_role::fprop>().view(), layer.right<gemm_role::fprop>().view(), tokens, out, in, "Y");
  compare(dx, layer.left<gemm_role::dgrad>().view(), layer.right<gemm_role::dgrad>().view(), tokens, in, out, "dX");
  compare(dw, layer.left<gemm_role::wgrad>().view(), layer.right<gemm_role::wgrad>().view(), out, in, tokens, "dW");
  r.end_group("nvfp4 layer");
}

}  // namespace

int main() {
  need_gpu();
  results r;
  cublasHandle_t handle;
  check_blas(cublasCreate(&handle));
  test_pair<ms::nvfp4, ms::nvfp4>(r, handle, "nvfp4 x nvfp4");
  test_pair<ms::ue5m3_fp4, ms::ue5m3_fp4_2d>(r, handle, "ue5m3_fp4 x ue5m3_fp4_2d");
  test_pair<ms::mxfp4, ms::mxfp8_e4m3>(r, handle, "mxfp4 x mxfp8_e4m3");
  test_groups(r, handle);
  test_export(r);
  test_handle(r, handle);
  test_bf16(r, handle);
  test_layer(r, handle);
  cublasDestroy(handle);
  return r.finish();
}
