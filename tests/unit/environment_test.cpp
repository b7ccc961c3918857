// The caller's floating-point environment: it changes nothing, and comes back as it was, flags included.
#include <microscale/tensor/environment.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cfenv>
#include <cstdint>
#include <functional>
#include <limits>
#include <microscale/block/schemes.hpp>
#include <microscale/host/executor.hpp>
#include <microscale/host/vendor_gemm.hpp>
#include <microscale/interop/checkpoint.hpp>
#include <microscale/recipe/pairwise_sparse.hpp>
#include <microscale/recipe/reference.hpp>
#include <microscale/recipe/second_moment.hpp>
#include <microscale/recipe/shrinkage.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/hadamard.hpp>
#include <microscale/tensor/metrics.hpp>
#include <microscale/tensor/rescale.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/tensors.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ms = microscale;
using namespace tensors;

namespace {

// Flush-to-zero and denormals-are-zero, where the processor has such a switch.
void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | (std::uint64_t{1} << 24)));
#endif
}

std::uint64_t control_state() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return static_cast<std::uint64_t>(std::fegetround());
#endif
}

void append(std::vector<std::uint32_t>& all, const plain& p) {
  all.insert(all.end(), p.codes.begin(), p.codes.end());
  all.insert(all.end(), p.scales.begin(), p.scales.end());
  all.insert(all.end(), p.datum.begin(), p.datum.end());
}
void append(std::vector<std::uint32_t>& all, const std::vector<float>& x) {
  for (const float v : x) all.push_back(ms::fp32::is_nan(v) ? 0x7FC00000u : ms::fp32::bits(v));
}

const std::vector<float>& data() {
  static const std::vector<float> x = [] {
    std::vector<float> d = difficult(40, 48, 1);
    for (std::size_t i = 0; i < 480; ++i) d[i] *= 0x1p-120f;  // blocks of subnormals
    return d;
  }();
  return x;
}

// The parts of other systems that say more than "a GEMM": two parts of an activation, a second moment, a measure.
std::vector<std::uint32_t> parts_of_systems() {
  const ms::sequential executor;
  std::vector<std::uint32_t> all;
  const auto in = ms::matrix(std::as_const(data()), 40, 48);
  const auto parts = ms::split_pairwise<ms::nvfp4, ms::nvfp4>(executor, in);
  append(all, read(parts.dense.view()));
  append(all, ms::gemm(executor, parts, parts.sparse));
  std::vector<float> squares(data().size()), roots(data().size());
  for (std::size_t i = 0; i < squares.size(); ++i) squares[i] = ms::fp32::abs(data()[i]);
  const auto moment = ms::store_second_moment<ms::nvfp4>(executor, ms::matrix(std::as_const(squares), 40, 48));
  ms::load_root_of_second_moment(executor, moment, ms::matrix(roots, 40, 48));
  append(all, moment.means);
  append(all, roots);
  const ms::shrinkage s = ms::measure_shrinkage(in, parts.sparse.view());
  for (const double x : {s.signal, s.projection, s.decoded_magnitude}) {
    all.push_back(static_cast<std::uint32_t>(__builtin_bit_cast(std::uint64_t, x)));
  }
  return all;
}

// Everything that a whole-tensor call computes, by an executor.
template <class Executor>
std::vector<std::uint32_t> everything(const Executor& executor) {
  std::vector<std::uint32_t> all;
  const auto in = ms::matrix(data(), 40, 48);
  const auto quantize = [&]<class S>(S, ms::axis along, const float* reference) {
    const bool along_rows = along == ms::axis::row;
    guarded<S> q(along_rows ? 40 : 48, along_rows ? 48 : 40);
    ms::quantize_with(executor, in, q.view(), ms::nearest_even{}, {.axis = along, .reference = reference});
    append(all, read(q.view()));
    std::vector<float> y(data().size());
    ms::dequantize_into(executor, q.view(), ms::matrix(y, 40, 48), along);
    append(all, y);
    return q;
  };
  const float tiny = 0x1p-130f, other = 0.3f;
  auto a = quantize(ms::nvfp4{}, ms::axis::row, nullptr);
  auto b = quantize(ms::ue5m3_fp4{}, ms::axis::row, &other);
  quantize(ms::ue5m3_fp4{}, ms::axis::col, &tiny);
  quantize(ms::nvfp4_compressed_tensors{}, ms::axis::col, &other);
  quantize(ms::nvfp4_torchao{}, ms::axis::row, &tiny);
  auto m = quantize(ms::mxfp8_e4m3{}, ms::axis::row, nullptr);

  std::vector<float> c(40 * 40);
  ms::gemm_into<ms::exact_f32>(executor, a.view(), b.view(), ms::matrix(c, 40, 40));
  append(all, c);
  ms::gemm_into<ms::f32_blocks>(executor, a.view(), m.view(), ms::matrix(c, 40, 40));
  append(all, c);
  ms::gemm_into<ms::blackwell_k64>(executor, b.view(), b.view(), ms::matrix(c, 40, 40));
  append(all, c);
  std::vector<std::byte> workspace(ms::gemm_workspace<ms::vendor>(executor, a.view(), b.view()));
  ms::gemm_into<ms::vendor>(executor, a.view(), b.view(), ms::matrix(c, 40, 40), {}, std::span(workspace));
  append(all, c);

  std::vector<float> y(data().size());
  ms::hadamard_into(executor, in, ms::matrix(y, 40, 48));
  append(all, y);
  append(all, std::vector<float>{ms::amax(executor, in)});
  const auto metrics = ms::measure(in, a.view());
  all.push_back(static_cast<std::uint32_t>(__builtin_bit_cast(std::uint64_t, metrics.noise) >> 20));
  ms::rescale(b.view(), 0x1p-128f);
  append(all, read(b.view()));
  const ms::quantized<ms::nvfp4> owner = [&] {
    ms::quantized<ms::nvfp4> q(1, 16);
    *q.view().datum = 0.3f;
    return q;
  }();
  append(all, std::vector<float>{owner.decode_multiplier()});
  return all;
}

// Runs `work` in an environment of the caller's and reports whether that was there afterwards.
bool kept(const std::function<void()>& set, const std::function<void()>& work) {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetenv(FE_DFL_ENV);
  set();
  const std::uint64_t control = control_state();
  const int flags = std::fetestexcept(FE_ALL_EXCEPT), rounding = std::fegetround();
  work();
  const bool same =
      control_state() == control && std::fetestexcept(FE_ALL_EXCEPT) == flags && std::fegetround() == rounding;
  std::fesetenv(&before);
  return same;
}

const std::function<void()> environments[] = {
    [] {},
    [] { std::fesetround(FE_UPWARD); },
    [] { std::fesetround(FE_DOWNWARD); },
    [] { std::fesetround(FE_TOWARDZERO); },
    [] { flush_subnormals(); },
    [] { flush_subnormals(), std::fesetround(FE_UPWARD); },
    [] { std::feraiseexcept(FE_DIVBYZERO); },
    [] { std::feraiseexcept(FE_ALL_EXCEPT); },
};

}  // namespace

TEST_CASE("no environment of the caller's changes a bit, and each comes back with its flags") {
  const auto want = everything(ms::sequential{}), want_parts = parts_of_systems();
  CHECK(want.size() > 20000);
  CHECK(want_parts.size() > 4000);
  for (const auto& set : environments) {
    std::vector<std::uint32_t> got;
    CHECK(kept(set, [&] { got = everything(ms::sequential{}); }));
    CHECK(got == want);
    CHECK(kept(set, [&] { got = everything(backwards{3}); }));
    CHECK(got == want);
    CHECK(kept(set, [&] { got = parts_of_systems(); }));
    CHECK(got == want_parts);
  }
}

TEST_CASE("the threads of ms::host set their own") {
  constexpr index_t rows = 520, cols = 256;
  const std::vector<float> x = difficult(rows, cols, 3);
  const auto run = [&](auto executor) {
    guarded<ms::ue5m3_fp4> q(rows, cols);
    ms::quantize_with(executor, ms::matrix(x, rows, cols), q.view(), ms::nearest_even{});
    return read(q.view());
  };
  const plain want = run(ms::sequential{});
  for (const auto& set : environments) {
    plain got;
    CHECK(kept(set, [&] { got = run(ms::host{.threads = 4}); }));
    CHECK(got == want);
  }
}

TEST_CASE("numbers are compared and converted one by one without a look at the environment") {
  const std::vector<double> doubles = {0x1.4p-148, -(1.0 + 0x1p-30), 1.0 + 0x1.8p-24, 0x1.ffffffp127, 1e300, -0.0};
  const std::vector<std::uint32_t> floats = {2u, 0xBF800000u, 0x3F800001u, 0x7F800000u, 0x7F800000u, 0x80000000u};
  ms::interop::stored_tensor stored{"x", ms::interop::stored_type::f64, {6}, {}};
  stored.bytes = {reinterpret_cast<const std::uint8_t*>(doubles.data()), 48};
  for (const auto& set : environments) {
    std::vector<float> read(6);
    std::vector<float> held;
    std::string refused;
    CHECK(kept(set, [&] {
      ms::interop::load_floats(stored, 0, 6, read.data());
      // Amaxes of subnormals: of the window, and of the micro-batches of one step.
      ms::reference_state state;
      const float amaxes[][2] = {{0x1p-141f, 0x1p-139f}, {0x1p-140f, 0x1p-142f}, {0x1p-145f, 0x1p-144f}, {1.0f, 1.0f}};
      for (int i = 0; i < 8; ++i) {
        held.push_back(*ms::update_reference(ms::delayed_scaling{.window = 2}, state, 1 + i / 2,
                                             [&] { return amaxes[i / 2][i % 2]; }));
      }
      refused = message_of([] {
        ms::interop::check_direction(ms::interop::convention::modelopt, 0x1p-130f);
        ms::interop::check_direction(ms::interop::convention::compressed_tensors, 1.0f);
      });
    }));
    std::vector<std::uint32_t> got;
    append(got, read);
    CHECK(got == floats);
    CHECK(held ==
          std::vector<float>{0x1p-141f, 0x1p-141f, 0x1p-139f, 0x1p-139f, 0x1p-139f, 0x1p-139f, 0x1p-140f, 0x1p-140f});
    CHECK(refused.empty());
  }
}

TEST_CASE("the environment comes back when a call throws") {
  const float bad = std::numeric_limits<float>::quiet_NaN();
  for (const auto& set : environments) {
    bool thrown = false;
    CHECK(kept(set, [&] {
      guarded<ms::nvfp4> q(40, 48);
      thrown = !message_of([&] {
                  ms::quantize_with(ms::sequential{}, ms::matrix(data(), 40, 48), q.view(), ms::nearest_even{},
                                    {.reference = &bad});
                }).empty();
    }));
    CHECK(thrown);
    CHECK(kept(set, [&] {
      thrown = false;
      try {
        ms::detail::in_default_environment([] { throw std::runtime_error("inside"); });
      } catch (const std::runtime_error&) {
        thrown = true;
      }
    }));
    CHECK(thrown);
  }
}

TEST_CASE("the tests above do set what they say") {
  const volatile float subnormal = 0x1p-140f, one = 1.0f, ulp = 0x1p-24f;
  volatile float flushed = 1.0f, up = 0.0f;
  kept(environments[4], [&] { flushed = subnormal * one; });
  kept(environments[1], [&] { up = one + ulp; });
#if defined(__x86_64__) || defined(__aarch64__)
  CHECK(ms::fp32::bits(flushed) == 0);
#endif
  CHECK(up > 1.0f);
}
