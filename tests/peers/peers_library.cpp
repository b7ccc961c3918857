// The library behind plain C functions, for the Python side of the comparisons with other implementations: formats,
// roundings and schemes by the names that vector files use. Each function returns 0 where it knows no such name.
#include <cstdint>
#include <string_view>
#include <vector>

#include "../conformance/registry.hpp"

namespace {

namespace ms = microscale;
using conformance::visit_named;

// The schemes whose owners are among the peers, and those that a peer computes too.
constexpr auto schemes = std::make_tuple(
    conformance::named<ms::nvfp4_torchao>{"nvfp4_torchao"}, conformance::named<ms::mxfp4>{"mxfp4"},
    conformance::named<ms::mxfp4_even>{"mxfp4_even"}, conformance::named<ms::mxfp4_ceil>{"mxfp4_ceil"},
    conformance::named<ms::mxfp6_e2m3>{"mxfp6_e2m3"}, conformance::named<ms::mxfp6_e3m2>{"mxfp6_e3m2"},
    conformance::named<ms::mxfp8_e4m3>{"mxfp8_e4m3"}, conformance::named<ms::mxfp8_e5m2>{"mxfp8_e5m2"},
    conformance::named<ms::mxfp8_e4m3_ceil>{"mxfp8_e4m3_ceil"},
    conformance::named<ms::mxfp8_e5m2_ceil>{"mxfp8_e5m2_ceil"}, conformance::named<ms::mxint8_full>{"mxint8_full"});

// Calls f(tag of the format); `e8m0_tie_even` is the policy of that name.
template <class F>
bool visit_format(std::string_view name, F&& f) {
  const bool tie_even = name == "e8m0_tie_even";
  return visit_named(conformance::formats, tie_even ? "e8m0" : name, tie_even ? name : std::string_view{}, f);
}

template <class T>
int encode(const char* format, const char* rounding, int ieee, const T* in, const std::uint32_t* random,
           std::int64_t count, std::uint32_t* codes) {
  return visit_format(format, [&](auto f) {
    visit_named(conformance::roundings, rounding, [&](auto r) {
      using F = typename decltype(f)::type;
      using R = typename decltype(r)::type;
      const ms::overflow on_overflow = ieee != 0 ? ms::overflow::ieee : ms::overflow::saturate;
      for (std::int64_t i = 0; i < count; ++i) {
        codes[i] = F::encode(in[i], R{}, on_overflow, random != nullptr ? random[i] : 0u);
      }
    });
  });
}

}  // namespace

extern "C" {

int microscale_decode(const char* format, const std::uint32_t* codes, std::int64_t count, float* out) {
  return visit_format(format, [&](auto f) {
    using F = typename decltype(f)::type;
    for (std::int64_t i = 0; i < count; ++i) out[i] = F::decode(static_cast<typename F::storage>(codes[i]));
  });
}

int microscale_encode_f32(const char* format, const char* rounding, int ieee, const float* in,
                          const std::uint32_t* random, std::int64_t count, std::uint32_t* codes) {
  return encode(format, rounding, ieee, in, random, count, codes);
}

int microscale_encode_f64(const char* format, const char* rounding, int ieee, const double* in,
                          const std::uint32_t* random, std::int64_t count, std::uint32_t* codes) {
  return encode(format, rounding, ieee, in, random, count, codes);
}

// A whole matrix under its own amax, to nearest: codes one per element, scales block by block, the stored datum, and
// the decoded values.
int microscale_quantize(const char* scheme, std::int64_t rows, std::int64_t cols, const float* in, std::uint32_t* codes,
                        std::uint32_t* scales, float* datum, float* out) {
  return visit_named(schemes, scheme, [&](auto s) {
    using S = typename decltype(s)::type;
    ms::quantized<S> q(rows, cols);
    ms::quantize_with(ms::sequential{}, ms::matrix(in, rows, cols), q.view(), ms::nearest_even{});
    for (ms::index_t r = 0; r < rows; ++r) {
      for (ms::index_t k = 0; k < cols; ++k) *codes++ = q.view().code(r, k);
    }
    for (const auto scale : q.scales()) *scales++ = scale;
    *datum = q.datum();
    ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(out, rows, cols));
  });
}

}  // extern "C"
