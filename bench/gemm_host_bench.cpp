// GEMM on the host, C = A B^T: packed 4-bit operands beside what a user would take instead, on the same values in one
// run. Names are gemm/OPERANDS/BACKEND/MxNxK; an item is one multiply-add. Everything runs on one thread but
// `host_2_threads`.
//
//   host            B is a packed_operand (nvfp4_weights: A is bf16)    host_as_stored  B is packed on the way
//   host_avx2, host_portable                        the same, with fewer instructions
//   openblas_f32, eigen_f32, onednn_bf16            both operands decoded beforehand; oneDNN may reorder B beforehand
#include <benchmark/benchmark.h>

#include <compare>
#include <cstdint>
#include <map>
#include <microscale/microscale.hpp>
#include <random>
#include <string>
#include <vector>

#if MICROSCALE_BENCH_OPENBLAS
#include <cblas.h>
#endif
#if MICROSCALE_BENCH_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif
#if MICROSCALE_BENCH_EIGEN
#include <Eigen/Core>
#endif

#include "processors.hpp"

namespace ms = microscale;

namespace {

struct shape {
  ms::index_t m, n, k;
  friend auto operator<=>(const shape&, const shape&) = default;
};

// What benchmarks of one shape share, made when the first of them runs.
template <class T>
T& made_once(const shape& s) {
  static std::map<shape, T> made;
  return made.try_emplace(s, s).first->second;
}

std::size_t size(ms::index_t n) { return static_cast<std::size_t>(n); }

std::vector<float> normal_numbers(ms::index_t count, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size(count));
  for (float& v : x) v = normal(generator);
  return x;
}

template <class S>
ms::quantized<S> quantized_normal(ms::index_t rows, ms::index_t cols, std::uint64_t seed) {
  const std::vector<float> x = normal_numbers(rows * cols, seed);
  ms::quantized<S> q(rows, cols);
  ms::quantize_with(ms::host{}, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{});
  return q;
}

// The operands of a shape.
template <class S>
struct problem {
  shape of;
  ms::quantized<S> a, b;
  ms::packed_operand<S> packed;
  std::vector<float> c;

  explicit problem(const shape& s)
      : of(s),
        a(quantized_normal<S>(s.m, s.k, 1)),
        b(quantized_normal<S>(s.n, s.k, 2)),
        packed(b.view()),
        c(size(s.m * s.n)) {}

  ms::matrix_view<float> out() { return ms::matrix(c, of.m, of.n); }

  static problem& get(const shape& s) { return made_once<problem>(s); }
};

void count(benchmark::State& state, const shape& s) {
  benchmark::ClobberMemory();
  state.SetItemsProcessed(state.iterations() * s.m * s.n * s.k);
}

template <class S, class P = ms::f32_blocks>
void packed(benchmark::State& state, const shape& s, const ms::host& executor) {
  problem<S>& p = problem<S>::get(s);
  for (auto _ : state) ms::gemm_into<P>(executor, p.a.view(), p.packed, p.out());
  count(state, s);
}

struct mxfp8_problem {
  ms::quantized<ms::mxfp8_e4m3> a, b;
  explicit mxfp8_problem(const shape& s)
      : a(quantized_normal<ms::mxfp8_e4m3>(s.m, s.k, 1)), b(quantized_normal<ms::mxfp8_e4m3>(s.n, s.k, 2)) {}
};
void mxfp8(benchmark::State& state, const shape& s) {
  const mxfp8_problem& p = made_once<mxfp8_problem>(s);
  std::vector<float> c(size(s.m * s.n));
  for (auto _ : state) {
    ms::gemm_into<ms::f32_blocks>(ms::host{.threads = 1}, p.a.view(), p.b.view(), ms::matrix(c, s.m, s.n));
  }
  count(state, s);
}

void two_threads(benchmark::State& state, const shape& s) {
  const bench::on_all_processors here;
  packed<ms::nvfp4>(state, s, ms::host{.threads = 2});
}

template <class S>
void as_stored(benchmark::State& state, const shape& s) {
  problem<S>& p = problem<S>::get(s);
  for (auto _ : state) ms::gemm_into<ms::f32_blocks>(ms::host{.threads = 1}, p.a.view(), p.b.view(), p.out());
  count(state, s);
}

// What the others multiply: the values of the NVFP4 operands.
struct decoded {
  std::vector<float> a, b;
  std::vector<ms::value<ms::bf16>> a_bf16, b_bf16;
  std::vector<float> c;

  explicit decoded(const shape& s)
      : a(ms::dequantize(problem<ms::nvfp4>::get(s).a)),
        b(ms::dequantize(problem<ms::nvfp4>::get(s).b)),
        c(size(s.m * s.n)) {
    for (const float x : a) a_bf16.push_back(ms::from_float<ms::value<ms::bf16>>(x));
    for (const float x : b) b_bf16.push_back(ms::from_float<ms::value<ms::bf16>>(x));
  }
  static decoded& get(const shape& s) { return made_once<decoded>(s); }
};

// Weights alone quantized: what decoding them and an ordinary GEMM would give.
void weights(benchmark::State& state, const shape& s) {
  problem<ms::nvfp4>& p = problem<ms::nvfp4>::get(s);
  const decoded& d = decoded::get(s);
  for (auto _ : state) {
    ms::gemm_into<ms::f32_blocks>(ms::host{.threads = 1}, ms::matrix(d.a_bf16, s.m, s.k), p.packed, p.out());
  }
  count(state, s);
}

#if MICROSCALE_BENCH_OPENBLAS
void openblas(benchmark::State& state, const shape& s) {
  decoded& d = decoded::get(s);
  openblas_set_num_threads(1);
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  for (auto _ : state) {
    if (m == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1.0f, d.b.data(), k, d.a.data(), 1, 0.0f, d.c.data(), 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, d.a.data(), k, d.b.data(), k, 0.0f,
                  d.c.data(), n);
    }
  }
  count(state, s);
  state.SetLabel(openblas_get_corename());
}
#endif

#if MICROSCALE_BENCH_ONEDNN
void onednn(benchmark::State& state, const shape& s) {
  using namespace dnnl;
  decoded& d = decoded::get(s);
  omp_set_num_threads(1);
  const engine cpu(engine::kind::cpu, 0);
  stream in_order(cpu);
  using type = memory::data_type;
  using tag = memory::format_tag;
  const memory::desc a({s.m, s.k}, type::bf16, tag::ab), b({s.k, s.n}, type::bf16, tag::ba),
      c({s.m, s.n}, type::f32, tag::ab);
  const matmul::primitive_desc product(matmul::desc(a, memory::desc({s.k, s.n}, type::bf16, tag::any), c), cpu);
  const memory right(b, cpu, d.b_bf16.data()), reordered(product.weights_desc(), cpu);
  memory from = right, to = reordered;
  reorder(from, to).execute(in_order, from, to);
  in_order.wait();
  const matmul multiply(product);
  for (auto _ : state) {
    multiply.execute(in_order, {{DNNL_ARG_SRC, memory(a, cpu, d.a_bf16.data())},
                                {DNNL_ARG_WEIGHTS, reordered},
                                {DNNL_ARG_DST, memory(c, cpu, d.c.data())}});
    in_order.wait();
  }
  count(state, s);
  state.SetLabel(product.impl_info_str());
}
#endif

#if MICROSCALE_BENCH_EIGEN
void eigen(benchmark::State& state, const shape& s) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  decoded& d = decoded::get(s);
  const Eigen::Map<const matrix> a(d.a.data(), s.m, s.k), b(d.b.data(), s.n, s.k);
  Eigen::Map<matrix> c(d.c.data(), s.m, s.n);
  for (auto _ : state) c.noalias() = a * b.transpose();
  count(state, s);
}
#endif

template <class F, class... Rest>
void add(const std::string& what, const shape& s, F f, Rest... rest) {
  const std::string name =
      "gemm/" + what + "/" + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
  benchmark::RegisterBenchmark(name.c_str(), f, s, rest...)->UseRealTime();
}

[[maybe_unused]] const bool registered = [] {
  const ms::host one{.threads = 1};
  for (const shape& s : {shape{1, 4096, 4096}, shape{128, 4096, 4096}, shape{4096, 4096, 1024}}) {
#if MICROSCALE_BENCH_OPENBLAS
    add("openblas_f32/host", s, openblas);
#endif
    add("nvfp4/host", s, packed<ms::nvfp4>, one);
#if MICROSCALE_BENCH_ONEDNN
    add("onednn_bf16/host", s, onednn);
#endif
#if MICROSCALE_BENCH_EIGEN
    add("eigen_f32/host", s, eigen);
#endif
    add("nvfp4_weights/host", s, weights);
    add("nvfp4/host_2_threads", s, two_threads);
    add("nvfp4/host_as_stored", s, as_stored<ms::nvfp4>);
    add("ue5m3_fp4_b32/host", s, packed<ms::ue5m3_fp4_b32>, one);
    add("mxfp4/host", s, packed<ms::mxfp4>, one);
  }
  const shape middle{128, 4096, 4096}, prime{127, 4093, 4099};
#if MICROSCALE_BENCH_OPENBLAS
  add("openblas_f32/host", prime, openblas);
#endif
  add("nvfp4/host", prime, packed<ms::nvfp4>, one);
  add("nvfp4/host_avx2", middle, packed<ms::nvfp4>, ms::host{.threads = 1, .simd = ms::simd_level::avx2});
  add("nvfp4/host_portable", middle, packed<ms::nvfp4>, ms::host{.threads = 1, .simd = ms::simd_level::portable});
  add("nvfp4_exact_f32/host", middle, packed<ms::nvfp4, ms::exact_f32>, one);
  add("nvfp4_blackwell_k64/host", middle, packed<ms::nvfp4, ms::blackwell_k64>, one);
  add("mxfp8_e4m3/host", middle, mxfp8);
  return true;
}();

}  // namespace
