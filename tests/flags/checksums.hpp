// Prints a checksum for each thing that the library promises to compute alike under any flag: codes, scales, stored
// data and decoded values of schemes and policies, on data that is hard on them, and the GEMM accumulations. The
// programs are compiled many times; compare.cmake holds each build, in each environment, against the one without
// optimization.
//
//   PROGRAM default | as_started | flush | upward | flush_upward
//
// Whole tensors (`whole`) are computed in the environment that is named: the default one, the one that the process
// started with, subnormals flushed, rounding upward, or both. Block functions (`block`) state the default environment
// as their precondition, so only `default` prints them. Lines that begin with # are remarks.
#pragma once

#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <microscale/block/schemes.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/hadamard.hpp>
#include <microscale/tensor/rescale.hpp>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace checksums {

namespace ms = microscale;

inline bool in_default_environment = false;

// FNV-1a over 32-bit words. Data, sums and bits are made by integer arithmetic alone, so that only the library is
// under test.
struct checksum {
  std::uint64_t state = 0xCBF29CE484222325u;
  void add(std::uint32_t word) {
    for (int i = 0; i < 4; ++i) state = (state ^ (word >> (8 * i) & 0xFFu)) * 0x100000001B3u;
  }
  void add_float(float x) { add(ms::fp32::is_nan(x) ? ms::fp32::quiet_nan_bits : ms::fp32::bits(x)); }
  void print(const char* kind, const std::string& what) const {
    std::printf("%s %s %016llx\n", kind, what.c_str(), static_cast<unsigned long long>(state));
  }
};

struct generator {
  std::uint64_t state;
  std::uint32_t next() {
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
  }
  std::uint32_t below(std::uint32_t n) { return next() % n; }
};

// significand * 2^exponent, moved by `ulps` patterns; exact where the significand has at most 24 bits.
inline float number(std::uint64_t significand, int exponent, bool negative, int ulps = 0) {
  const std::uint32_t bits =
      ms::f32::encode(ms::unpacked{.negative = negative, .exponent = exponent, .significand = significand});
  return ms::fp32::from_bits((bits & 0x7FFFFFFFu) != 0 ? bits + static_cast<std::uint32_t>(ulps) : bits);
}

inline constexpr ms::index_t rows = 37, cols = 70;  // tails on both axes

// Runs of sixteen, each hard in its own way.
inline std::vector<float> data(std::uint64_t seed, bool all_finite) {
  generator random{seed};
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  std::uint32_t kind = 0;
  int exponent = 0;
  std::uint64_t unit = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 16 == 0) {
      kind = random.below(all_finite ? 8 : 10);
      exponent = static_cast<int>(random.below(24)) - 14;
      unit = 8 + random.below(8);
    }
    const bool negative = random.below(2) != 0;
    const std::uint32_t fraction = random.next() >> 8;  // drawn one by one: arguments have no order
    const int near = random.below(4) == 0 ? static_cast<int>(random.below(3)) - 1 : 0;
    switch (kind) {
      case 0:  // on ties times a scale, or next to them
      case 1:
        x[i] = number((i % 16 == 5 ? 24 : random.below(25)) * unit, exponent - 2, negative, near);
        break;
      case 2:  // an amax on a tie of the scale, or next to it
        x[i] = number((i % 16 == 5 ? 6 : random.below(6)) * (2 * unit + 1), exponent, negative, near);
        break;
      case 3:  // far apart
        x[i] = number(fraction, static_cast<int>(random.below(150)) - 100, negative);
        break;
      case 4:  // subnormal
        x[i] = number(fraction >> 1, -149, negative);
        break;
      case 5:  // zeros
        x[i] = number(0, 0, negative);
        break;
      case 6:  // tiny: scales underflow
        x[i] = number(fraction, -60 - static_cast<int>(random.below(70)), negative);
        break;
      case 8:
      case 9: {  // something that is no finite number
        const std::uint32_t patterns[] = {0x7FC00000u, 0xFFC00001u, 0x7F800001u, 0x7F800000u, 0xFF800000u};
        x[i] = random.below(6) == 0 ? ms::fp32::from_bits(patterns[random.below(kind == 8 ? 3 : 5)])
                                    : number(fraction, -24, negative);
        break;
      }
      default:
        x[i] = number(fraction, -22 - static_cast<int>(random.below(6)), negative);
        break;
    }
  }
  return x;
}

inline const std::vector<float> finite = data(1, true), any = data(2, false);

template <class S>
struct memory {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols));
  std::vector<typename S::scale::storage> scales =
      std::vector<typename S::scale::storage>(static_cast<std::size_t>(rows * cols));
  float datum = 0;
  ms::quantized_view<S> view(ms::index_t r, ms::index_t c) {
    return ms::quantized_view_of<S>(codes.data(), scales.data(), &datum, r, c);
  }
  void add_to(checksum& sum) const {
    for (const std::uint8_t c : codes) sum.add(c);
    for (const auto s : scales) sum.add(static_cast<std::uint32_t>(s));
    sum.add_float(datum);
  }
};

// Both axes, three references, finite numbers and others, and back again.
template <class S, class R>
void whole(const std::string& name, R rounding) {
  checksum sum;
  memory<S> q;
  std::vector<float> y(finite.size());
  const float references[] = {number(2688, 0, false), number(0x123457, -20, false), number(3, -140, false)};
  const auto run = [&](const std::vector<float>& x, ms::axis along, const float* reference) {
    const bool along_rows = along == ms::axis::row;
    const auto view = q.view(along_rows ? rows : cols, along_rows ? cols : rows);
    ms::quantize_with(ms::sequential{}, ms::matrix(x.data(), rows, cols), view, rounding,
                      {.axis = along, .reference = reference});
    ms::dequantize_into(ms::sequential{}, view, ms::matrix(y, rows, cols), along);
    q.add_to(sum);
    for (const float v : y) sum.add_float(v);
  };
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    run(finite, along, nullptr);
    for (const float& reference : references) {
      run(finite, along, &reference);
      if (S::policy != ms::nonfinite::reject) run(any, along, &reference);
    }
  }
  sum.print("whole", name);
}

template <class S, class R>
void blocks(const std::string& name, R rounding) {
  if (!in_default_environment) return;
  checksum sum;
  for (const std::uint32_t bits : {0x45280000u, 0x3F91A2B8u, 0x00000600u}) {
    const ms::tensor_factors t = S::factors(ms::fp32::from_bits(bits));
    for (const std::vector<float>* x : {&finite, &any}) {
      for (std::size_t start = 0; start + S::block::elements <= x->size(); start += S::block::elements) {
        float in[S::block::elements], out[S::block::elements];
        for (std::size_t i = 0; i < S::block::elements; ++i) in[i] = (*x)[start + i];
        ms::quantized_block<S> q;
        if constexpr (ms::stochastic_mode<R>) {
          q = ms::quantize_block<S>(in, t, rounding, ms::block_draws<R, typename S::block>(rounding, start, 0, 16));
        } else {
          q = ms::quantize_block<S>(in, t, rounding);
        }
        ms::dequantize_block(q, t, out);
        sum.add(static_cast<std::uint32_t>(q.scale));
        sum.add(q.has_nonfinite ? 1 : 0);
        for (const auto c : q.codes) sum.add(c);
        for (const float v : out) sum.add_float(v);
      }
    }
  }
  sum.print("block", name);
}

// Whole tensors, and block functions too where `AndBlocks` says so.
template <class S, bool AndBlocks = false, class R = ms::nearest_even>
void scheme(const std::string& name, R rounding = {}) {
  whole<S>(name, rounding);
  if constexpr (AndBlocks) blocks<S>(name, rounding);
}

template <class S, ms::nonfinite Policy>
void policy(const std::string& name) {
  scheme<ms::with_nonfinite<S, Policy>, true>(name);
}

template <class P, class A, class B>
void accumulation(const std::string& name, memory<A>& a, memory<B>& b) {
  checksum sum;
  std::vector<float> c(static_cast<std::size_t>(rows * rows));
  ms::gemm_into<P>(ms::sequential{}, a.view(rows, cols), b.view(rows, cols), ms::matrix(c, rows, rows));
  for (const float v : c) sum.add_float(v);
  sum.print("whole", name);
}

template <class A, class B>
void gemms(const std::string& name) {
  memory<A> a;
  memory<B> b;
  const float reference = number(5, -1, false);
  ms::quantize_with(ms::sequential{}, ms::matrix(finite.data(), rows, cols), a.view(rows, cols), ms::nearest_even{},
                    {.reference = &reference});
  ms::quantize_with(ms::sequential{}, ms::matrix(any.data(), rows, cols), b.view(rows, cols), ms::nearest_even{},
                    {.reference = &reference});
  accumulation<ms::exact_f32>("gemm " + name + " exact_f32", a, b);
  accumulation<ms::f32_blocks>("gemm " + name + " f32_blocks", a, b);
  accumulation<ms::blackwell_k64>("gemm " + name + " blackwell_k64", a, b);
}

inline void transforms() {
  checksum sum;
  std::vector<float> y(finite.size());
  for (const int size : {2, 16, 64}) {
    ms::hadamard_into(ms::sequential{}, ms::matrix(finite.data(), rows, 64, cols), ms::matrix(y.data(), rows, 64, cols),
                      {.size = size});
    for (const float v : y) sum.add_float(v);
  }
  memory<ms::nvfp4> q;
  ms::quantize_with(ms::sequential{}, ms::matrix(finite.data(), rows, cols), q.view(rows, cols), ms::nearest_even{});
  sum.add(static_cast<std::uint32_t>(ms::rescale(q.view(rows, cols), number(0x123457, -20, false))));
  q.add_to(sum);
  sum.print("whole", "hadamard, rescale");
}

inline void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | (std::uint64_t{1} << 24)));
#endif
}

inline bool subnormals_are_flushed() {
  volatile float subnormal = ms::fp32::from_bits(0x00400000u), two = 2.0f;
  volatile float product = subnormal * two;
  return ms::fp32::is_zero(product);
}

// Sets the environment that the command line names; false if it names none.
inline bool enter_environment(int argc, char** argv) {
  const std::string_view environment = argc == 2 ? argv[1] : "";
  std::printf("# started with subnormals %s\n", subnormals_are_flushed() ? "flushed" : "kept");
  if (environment == "default") {
    std::fesetenv(FE_DFL_ENV);
    in_default_environment = true;
  } else if (environment == "flush") {
    flush_subnormals();
  } else if (environment == "upward") {
    std::fesetround(FE_UPWARD);
  } else if (environment == "flush_upward") {
    flush_subnormals();
    std::fesetround(FE_UPWARD);
  } else if (environment != "as_started") {
    std::fprintf(stderr, "one of: default as_started flush upward flush_upward\n");
    return false;
  }
  return true;
}

}  // namespace checksums
