// GEMM of any codes and scales, shapes and alphas, under the three exact accumulations and several executors, against
// sums in exact arithmetic.
#include <microscale/host/executor.hpp>
#include <microscale/tensor/gemm.hpp>

#include <vector>

#include "../unit/support/operands.hpp"
#include "../unit/support/tensors.hpp"
#include "bytes.hpp"

namespace {

namespace ms = microscale;
using ms::index_t;

struct request {
  index_t m, n, k, slack, parts;
  std::uint64_t seed;
  int spread;
  bool has_alpha;
  float alpha;
};

template <class P, class A, class B>
void run(const request& q, operands::order how) {
  const operands::operand<A> a(q.m, q.k, q.seed, q.spread);
  const operands::operand<B> b(q.n, q.k, q.seed + 1, q.spread);
  ms::gemm_options options;
  if (q.has_alpha) options.alpha = q.alpha;
  const index_t pitch = q.n + q.slack;
  const auto with = [&](const auto& executor) {
    std::vector<float> c(static_cast<std::size_t>(q.m * pitch), 77.0f);
    ms::gemm_into<P>(executor, a.view(), b.view(), ms::matrix(c.data(), q.m, q.n, pitch), options);
    for (index_t i = 0; i < q.m; ++i) {
      for (index_t j = 0; j < pitch; ++j) {
        const float got = c[static_cast<std::size_t>(i * pitch + j)];
        const float want =
            j < q.n ? model::mul(operands::model_dot(a, i, b, j, how), q.has_alpha ? q.alpha : 1.0f) : 77.0f;
        const bool both_nan = ms::fp32::is_nan(got) && ms::fp32::is_nan(want);
        fuzz::require(both_nan || ms::fp32::bits(got) == ms::fp32::bits(want));
      }
    }
  };
  if (q.parts == 1) with(ms::host{.threads = 2});
  with(tensors::backwards{q.parts});
}

template <class A, class B>
void with_accumulation(const request& q, unsigned which) {
  if (which == 0) return run<ms::exact_f32, A, B>(q, operands::order::exact);
  if (which == 1) return run<ms::f32_blocks, A, B>(q, operands::order::blocks);
  run<ms::blackwell_k64, A, B>(q, operands::order::blackwell);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  fuzz::reader in{bytes, count};
  const unsigned pair = in.below(4), which = in.below(3);
  request q{};
  q.m = in.below(5);
  q.n = in.below(6);
  q.k = in.take<std::uint16_t>() % 200;
  q.slack = in.below(3);
  q.parts = 1 + in.below(4);
  q.spread = static_cast<int>(in.below(5)) * 3;
  q.has_alpha = in.below(2) == 0;
  q.alpha = in.take<float>();
  q.seed = in.take<std::uint64_t>();
  if (pair == 0) with_accumulation<ms::nvfp4_single, ms::nvfp4_single>(q, which);
  if (pair == 1) with_accumulation<ms::mxfp4, ms::nvfp4_single>(q, which);
  if (pair == 2) with_accumulation<ms::ue5m3_single, ms::with_block<ms::ue5m3_single, ms::block<16, 16>>>(q, which);
  if (pair == 3) with_accumulation<ms::mxfp8_e4m3, ms::mxfp8_e5m2>(q, which);
  return 0;
}
