// cuda_headers [all]: the conversions of CUDA's cuda_fp4.h, cuda_fp6.h and cuda_fp8.h on the host, against the
// library's.
//
// Every code; every bfloat16 and binary16 number; FP32 numbers with every sign, exponent and upper eleven bits of the
// fraction over five fillings of the lower twelve, which has both sides of every decision point in it, and their FP64
// neighbours; with `all`, every FP32 number there is. Where CUDA is known to differ, the rule is written beside the
// conversion, and held to.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <microscale/number/formats.hpp>

namespace {

namespace ms = microscale;

long long compared = 0, known = 0, wrong = 0;

// `theirs` has to be `expected`, which is the library's code except where CUDA is known to differ.
void check(const char* what, double x, unsigned ours, unsigned expected, unsigned theirs) {
  static const char* last = nullptr;
  static int shown = 0;
  ++compared;
  known += expected != ours;
  if (expected == theirs) return;
  ++wrong;
  if (last != what) shown = 0;
  last = what;
  if (++shown <= 4) std::printf("FAILED %s of %a: expected %x, %x there\n", what, x, expected, theirs);
}

bool is_nan(double x) { return ms::unpack(x).kind == ms::number_class::nan; }
bool is_negative(double x) { return ms::unpack(x).negative; }

// How CUDA differs, format by format: a number whose code here is what CUDA gives for x.
//   FP8   a NaN loses its sign
//   E8M0  the sign of a number is ignored: there it is the code of |x|
template <class Format, class T>
T as_cuda_reads(T x) {
  constexpr bool is_power = !Format::has_zero;
  if (is_negative(static_cast<double>(x)) && (is_power || (Format::bits == 8 && is_nan(static_cast<double>(x)))))
    return -x;
  return x;
}

// f(x) for FP32 numbers.
template <class F>
void for_floats(bool all, F f) {
  if (all) {
    std::uint32_t b = 0;
    do f(ms::fp32::from_bits(b));
    while (++b != 0);
    return;
  }
  for (std::uint32_t top = 0; top < 1u << 20; ++top) {
    for (const std::uint32_t rest : {0u, 1u, 0x7FFu, 0x800u, 0xFFFu}) f(ms::fp32::from_bits(top << 12 | rest));
  }
}

// One rounding of one format: `theirs` converts a float or a double.
template <class Format, class Rounding, class Theirs>
void encoders(const char* what, bool all, ms::overflow on_overflow, Theirs theirs) {
  const auto one = [&](auto x) {
    const auto encode = [&](auto y) { return Format::encode(y, Rounding{}, on_overflow); };
    check(what, static_cast<double>(x), encode(x), encode(as_cuda_reads<Format>(x)), theirs(x));
  };
  for_floats(all, one);
  for_floats(false, [&](float x) {
    if (!ms::fp32::is_finite(x)) return;
    for (const double past : {1 - 0x1p-45, 1 + 0x1p-45}) one(static_cast<double>(x) * past);
  });
}

__nv_bfloat16_raw bf16_of(unsigned code) {
  __nv_bfloat16_raw r;
  r.x = static_cast<unsigned short>(code);
  return r;
}
__half_raw half_of(unsigned code) {
  __half_raw r;
  r.x = static_cast<unsigned short>(code);
  return r;
}

template <class Format, class OfHalf, class OfBf16>
void halves(const char* what, OfHalf of_half, OfBf16 of_bf16) {
  for (unsigned code = 0; code < 0x10000u; ++code) {
    const auto c = static_cast<std::uint16_t>(code);
    const auto one = [&](float x, unsigned theirs) {
      check(what, static_cast<double>(x), Format::encode(x), Format::encode(as_cuda_reads<Format>(x)), theirs);
    };
    one(ms::f16::decode(c), of_half(half_of(code)));
    one(ms::bf16::decode(c), of_bf16(bf16_of(code)));
  }
}

// Codes by way of binary16, which holds every value of these formats.
template <class Format, class ToHalf>
void decoder(const char* what, ToHalf to_half) {
  for (unsigned code = 0; code < 1u << Format::bits; ++code) {
    const float ours = Format::decode(static_cast<typename Format::storage>(code));
    const float theirs = ms::f16::decode(to_half(code).x);
    check(what, code, ms::fp32::bits(ours), ms::fp32::bits(ours), ms::fp32::bits(theirs));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "all") == 0;
  if (argc > 1 && !all) {
    std::fprintf(stderr, "usage: cuda_headers [all]\n");
    return 2;
  }
  using ms::overflow;
  const auto fp4 = [](auto rounding) {
    return [rounding](auto x) -> unsigned {
      if constexpr (sizeof(x) == 4)
        return __nv_cvt_float_to_fp4(x, __NV_E2M1, rounding);
      else
        return __nv_cvt_double_to_fp4(x, __NV_E2M1, rounding);
    };
  };
  encoders<ms::e2m1, ms::nearest_even>("e2m1", all, overflow::saturate, fp4(cudaRoundNearest));
  encoders<ms::e2m1, ms::toward_zero>("e2m1 toward zero", all, overflow::saturate, fp4(cudaRoundZero));
  const auto fp6 = [](auto kind, auto rounding) {
    return [kind, rounding](auto x) -> unsigned {
      if constexpr (sizeof(x) == 4)
        return __nv_cvt_float_to_fp6(x, kind, rounding);
      else
        return __nv_cvt_double_to_fp6(x, kind, rounding);
    };
  };
  encoders<ms::e2m3, ms::nearest_even>("e2m3", all, overflow::saturate, fp6(__NV_E2M3, cudaRoundNearest));
  encoders<ms::e3m2, ms::nearest_even>("e3m2", all, overflow::saturate, fp6(__NV_E3M2, cudaRoundNearest));
  encoders<ms::e2m3, ms::toward_zero>("e2m3 toward zero", all, overflow::saturate, fp6(__NV_E2M3, cudaRoundZero));
  encoders<ms::e3m2, ms::toward_zero>("e3m2 toward zero", all, overflow::saturate, fp6(__NV_E3M2, cudaRoundZero));
  const auto fp8 = [](auto kind, auto saturation) {
    return [kind, saturation](auto x) -> unsigned {
      if constexpr (sizeof(x) == 4)
        return __nv_cvt_float_to_fp8(x, saturation, kind);
      else
        return __nv_cvt_double_to_fp8(x, saturation, kind);
    };
  };
  encoders<ms::e4m3, ms::nearest_even>("e4m3", all, overflow::saturate, fp8(__NV_E4M3, __NV_SATFINITE));
  encoders<ms::e4m3, ms::nearest_even>("e4m3 without saturation", all, overflow::ieee, fp8(__NV_E4M3, __NV_NOSAT));
  encoders<ms::e5m2, ms::nearest_even>("e5m2", all, overflow::saturate, fp8(__NV_E5M2, __NV_SATFINITE));
  encoders<ms::e5m2, ms::nearest_even>("e5m2 without saturation", all, overflow::ieee, fp8(__NV_E5M2, __NV_NOSAT));
  const auto e8 = [](auto rounding, auto saturation) {
    return [rounding, saturation](auto x) -> unsigned {
      if constexpr (sizeof(x) == 4)
        return __nv_cvt_float_to_e8m0(x, saturation, rounding);
      else
        return __nv_cvt_double_to_e8m0(x, saturation, rounding);
    };
  };
  encoders<ms::e8m0, ms::toward_positive>("e8m0 up", all, overflow::saturate, e8(cudaRoundPosInf, __NV_SATFINITE));
  encoders<ms::e8m0, ms::toward_zero>("e8m0 down", all, overflow::saturate, e8(cudaRoundZero, __NV_SATFINITE));
  encoders<ms::e8m0, ms::toward_positive>("e8m0 up without saturation", all, overflow::ieee,
                                          e8(cudaRoundPosInf, __NV_NOSAT));
  encoders<ms::e8m0, ms::toward_zero>("e8m0 down without saturation", all, overflow::ieee,
                                      e8(cudaRoundZero, __NV_NOSAT));

  halves<ms::e2m1>(
      "e2m1 of 16 bits", [](auto h) { return __nv_cvt_halfraw_to_fp4(h, __NV_E2M1, cudaRoundNearest); },
      [](auto h) { return __nv_cvt_bfloat16raw_to_fp4(h, __NV_E2M1, cudaRoundNearest); });
  halves<ms::e2m3>(
      "e2m3 of 16 bits", [](auto h) { return __nv_cvt_halfraw_to_fp6(h, __NV_E2M3, cudaRoundNearest); },
      [](auto h) { return __nv_cvt_bfloat16raw_to_fp6(h, __NV_E2M3, cudaRoundNearest); });
  halves<ms::e3m2>(
      "e3m2 of 16 bits", [](auto h) { return __nv_cvt_halfraw_to_fp6(h, __NV_E3M2, cudaRoundNearest); },
      [](auto h) { return __nv_cvt_bfloat16raw_to_fp6(h, __NV_E3M2, cudaRoundNearest); });
  halves<ms::e4m3>(
      "e4m3 of 16 bits", [](auto h) { return __nv_cvt_halfraw_to_fp8(h, __NV_SATFINITE, __NV_E4M3); },
      [](auto h) { return __nv_cvt_bfloat16raw_to_fp8(h, __NV_SATFINITE, __NV_E4M3); });
  halves<ms::e5m2>(
      "e5m2 of 16 bits", [](auto h) { return __nv_cvt_halfraw_to_fp8(h, __NV_SATFINITE, __NV_E5M2); },
      [](auto h) { return __nv_cvt_bfloat16raw_to_fp8(h, __NV_SATFINITE, __NV_E5M2); });

  decoder<ms::e2m1>("e2m1 decoded",
                    [](unsigned c) { return __nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(c), __NV_E2M1); });
  decoder<ms::e2m3>("e2m3 decoded",
                    [](unsigned c) { return __nv_cvt_fp6_to_halfraw(static_cast<__nv_fp6_storage_t>(c), __NV_E2M3); });
  decoder<ms::e3m2>("e3m2 decoded",
                    [](unsigned c) { return __nv_cvt_fp6_to_halfraw(static_cast<__nv_fp6_storage_t>(c), __NV_E3M2); });
  decoder<ms::e4m3>("e4m3 decoded",
                    [](unsigned c) { return __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(c), __NV_E4M3); });
  decoder<ms::e5m2>("e5m2 decoded",
                    [](unsigned c) { return __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(c), __NV_E5M2); });
  for (unsigned c = 0; c < 256; ++c) {
    const auto theirs = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(c));
    const std::uint32_t ours = ms::fp32::bits(ms::e8m0::decode(static_cast<std::uint8_t>(c)));
    check("e8m0 decoded", c, ours, ours, ms::fp32::bits(ms::bf16::decode(theirs.x)));
  }
  std::printf("CUDA headers %d: %lld comparisons, %lld known differences, %lld unexplained\n", CUDART_VERSION, compared,
              known, wrong);
  return wrong != 0 ? 1 : 0;
}
