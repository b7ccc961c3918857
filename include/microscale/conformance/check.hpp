// Hold your own encoder, decoder or block quantizer against the library's definition.
//
//   const auto report = ms::conformance::check_quantizer<ms::nvfp4>(my_quantize_block);
//   if (!report) std::puts(report.text().c_str());
//
// Yours is any callable, in one of two forms: one number (or block) a call, or many at once, which is what a kernel
// wants. Results of check_quantizer say which sort of block differs, and which named scheme computes what yours does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../tensor/environment.hpp"
#include "adversarial.hpp"
#include "decision_points.hpp"
#include "named_schemes.hpp"
#include "report.hpp"

namespace microscale::conformance {

namespace detail {

// Codes of one meaning: the same, any two that are NaN, or, if so wished, zeros of both signs.
template <class F>
bool same_code(typename F::storage a, typename F::storage b, bool negative_zero = true) {
  if (a == b || (F::is_nan(a) && F::is_nan(b))) return true;
  return !negative_zero && fp32::is_zero(F::decode(a)) && fp32::is_zero(F::decode(b));
}

inline bool same_float(float a, float b) {
  return fp32::bits(a) == fp32::bits(b) || (fp32::is_nan(a) && fp32::is_nan(b));
}

inline void keep(report& r, const options& o, difference d) {
  if (r.first.size() < o.differences_kept) r.first.push_back(std::move(d));
}

// Their codes for `in`, all with the same draw.
template <class F, class R, class Theirs>
void encode_with(Theirs& theirs, const std::vector<float>& in, std::uint32_t random,
                 std::vector<typename F::storage>& out) {
  using storage = typename F::storage;
  out.assign(in.size(), storage{0});
  if constexpr (R::random_bits > 0 && std::is_invocable_v<Theirs&, float, std::uint32_t>) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = static_cast<storage>(theirs(in[i], random));
  } else if constexpr (R::random_bits > 0) {
    theirs(in.data(), in.size(), random, out.data());
  } else if constexpr (std::is_invocable_v<Theirs&, float>) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = static_cast<storage>(theirs(in[i]));
  } else {
    theirs(in.data(), in.size(), out.data());
  }
}

template <class F, class R, class Theirs>
void check_encoder_on(Theirs& theirs, const std::vector<float>& in, std::uint32_t random, const options& o, report& r) {
  std::vector<typename F::storage> got;
  encode_with<F, R>(theirs, in, random, got);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!o.nonfinite && !fp32::is_finite(in[i])) continue;
    ++r.cases;
    const auto expected = F::encode(in[i], R{}, overflow::saturate, random);
    if (same_code<F>(expected, got[i], o.negative_zero)) continue;
    ++r.different;
    const std::string draw = R::random_bits > 0 ? ", r = " + std::to_string(random) : "";
    keep(r, o,
         {text_of(in[i]) + draw, hex_of(expected) + " = " + text_of(F::decode(expected)),
          hex_of(got[i]) + " = " + text_of(F::decode(got[i]))});
  }
}

}  // namespace detail

// Theirs, for a rounding that draws nothing:
//   code theirs(float x)          or   void theirs(const float* x, std::size_t count, F::storage* codes)
// and for a stochastic one, r being its random integer:
//   code theirs(float x, std::uint32_t r)   or   void theirs(const float* x, std::size_t count, std::uint32_t r, codes)
// Overflow saturates. Negative numbers in a format without a sign are left out but for -0, since the formats say
// nothing of them. A stochastic rounding is tried with the draws at both ends, about the middle, and 16 others.
template <number_format F, rounding_mode R = nearest_even, class Theirs>
report check_encoder(Theirs&& theirs, const options& o = {}) {
  report r;
  r.subject = "encoder";
  std::vector<std::uint32_t> draws{0};
  if constexpr (R::random_bits > 0) {
    constexpr std::uint32_t largest = static_cast<std::uint32_t>((std::uint64_t{1} << R::random_bits) - 1);
    draws = {0, 1, largest / 2, largest / 2 + 1, largest - 1, largest};
    for (std::uint64_t i = 0; i < 16; ++i) draws.push_back(draw<R::random_bits>({o.seed, 1}, i));
  }
  for (const std::uint32_t random : draws) {
    if (o.every_float) {
      constexpr std::uint64_t chunk = 1 << 20, end = F::has_sign ? std::uint64_t{1} << 32 : std::uint64_t{1} << 31;
      std::vector<float> in(chunk);
      for (std::uint64_t first = 0; first < end; first += chunk) {
        for (std::uint64_t i = 0; i < chunk; ++i) in[i] = fp32::from_bits(static_cast<std::uint32_t>(first + i));
        detail::check_encoder_on<F, R>(theirs, in, random, o, r);
      }
    } else {
      detail::check_encoder_on<F, R>(theirs, decision_points<F, R>(false, random), random, o, r);
      if (F::has_sign) detail::check_encoder_on<F, R>(theirs, decision_points<F, R>(true, random), random, o, r);
    }
    if (!F::has_sign) detail::check_encoder_on<F, R>(theirs, {fp32::from_bits(fp32::sign_bit)}, random, o, r);
  }
  return r;
}

// Theirs:  float theirs(F::storage code)   or   void theirs(const F::storage* codes, std::size_t count, float* x)
// Every code of the format, up to 16 bits.
template <number_format F, class Theirs>
report check_decoder(Theirs&& theirs, const options& o = {}) {
  static_assert(F::bits <= 16, "every code of the format is tried");
  using storage = typename F::storage;
  report r;
  r.subject = "decoder";
  std::vector<storage> codes;
  for (std::uint32_t code = 0; code < (std::uint32_t{1} << F::bits); ++code)
    codes.push_back(static_cast<storage>(code));
  std::vector<float> got(codes.size());
  if constexpr (std::is_invocable_v<Theirs&, storage>) {
    for (std::size_t i = 0; i < codes.size(); ++i) got[i] = theirs(codes[i]);
  } else {
    theirs(codes.data(), codes.size(), got.data());
  }
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (!o.nonfinite && !F::is_finite(codes[i])) continue;
    ++r.cases;
    const float expected = F::decode(codes[i]);
    if (detail::same_float(expected, got[i]) ||
        (!o.negative_zero && fp32::is_zero(expected) && fp32::is_zero(got[i]))) {
      continue;
    }
    ++r.different;
    detail::keep(r, o, {"code " + detail::hex_of(codes[i]), detail::text_of(expected), detail::text_of(got[i])});
  }
  return r;
}

namespace detail {

template <class S, class Theirs>
std::vector<quantized_block<S>> quantize_with(Theirs& theirs, const adversarial_group<S>& g) {
  std::vector<quantized_block<S>> out;
  if constexpr (std::is_invocable_r_v<quantized_block<S>, Theirs&, const float(&)[S::block::elements], float>) {
    for (const auto& b : g.blocks) out.push_back(theirs(b.x, g.reference));
  } else {
    constexpr std::size_t size = S::block::elements;
    std::vector<float> x;
    for (const auto& b : g.blocks) x.insert(x.end(), std::begin(b.x), std::end(b.x));
    std::vector<typename S::element::storage> codes(x.size());
    std::vector<typename S::scale::storage> scales(g.blocks.size());
    theirs(x.data(), g.blocks.size(), g.reference, codes.data(), scales.data());
    out.resize(g.blocks.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(i * size), size, out[i].codes);
      out[i].scale = scales[i];
    }
  }
  return out;
}

// The same block by S and by T, whose codes are numbers of the same size. Under a NaN scale the codes mean nothing.
template <class S, class T>
bool same_block(const quantized_block<S>& expected, const quantized_block<T>& got, const options& o) {
  if (!same_code<typename S::scale>(expected.scale, got.scale)) return false;
  if (S::scale::is_nan(expected.scale)) return true;
  for (int i = 0; i < S::block::elements; ++i) {
    if (!same_code<typename S::element>(expected.codes[i], got.codes[i], o.negative_zero)) return false;
  }
  return true;
}

template <class S>
std::string text_of(const quantized_block<S>& q) {
  std::string s = "scale " + hex_of(q.scale) + " codes";
  for (const auto code : q.codes) s += " " + hex_of(code);
  return s;
}

template <class S>
std::string text_of(const adversarial_block<S>& b, float reference) {
  std::string s = std::string(name_of(b.kind));
  if (S::has_tensor_scale) s += ", reference " + text_of(reference);
  s += ":";
  for (const float x : b.x) s += " " + text_of(x);
  return s;
}

// Adds up how `got`, their results for `g`, differ from S and from the other definitions of that shape.
template <class S>
void hold_against(const adversarial_group<S>& g, const std::vector<quantized_block<S>>& got, const options& o,
                  report& r) {
  for (std::size_t i = 0; i < g.blocks.size(); ++i) {
    const auto& b = g.blocks[i];
    const auto expected = quantize_block<S>(b.x, g.reference);
    const bool differs = !same_block<S>(expected, got[i], o);
    tally& kind = r.by_kind[static_cast<std::size_t>(b.kind)];
    ++kind.cases;
    ++r.cases;
    if (differs) {
      ++kind.different;
      ++r.different;
      keep(r, o, {text_of(b, g.reference), text_of(expected), text_of(got[i])});
    }
    std::size_t other = 0;
    visit_comparable_schemes<S>([&]<class T>(const char*) {
      tally& t = r.named[other++];
      // What NaN and infinity become is a policy, not an order of operations.
      if (b.kind == block_kind::nonfinite) return;
      ++t.cases;
      if (!same_block<T>(quantize_block<T>(b.x, g.reference), got[i], o)) ++t.different;
    });
  }
}

}  // namespace detail

// Theirs, for a block of S::block::elements numbers, row by row where it is square, and the amax that the tensor scale
// derives from (1 for schemes without a tensor scale):
//   ms::quantized_block<S> theirs(const float (&x)[N], float reference)
// or for many blocks that share a reference, x and codes one block after another, codes not packed:
//   void theirs(const float* x, std::size_t blocks, float reference, S::element::storage* codes,
//               S::scale::storage* scales)
template <quantization_scheme S, class Theirs>
report check_quantizer(Theirs&& theirs, const options& o = {}) {
  report r;
  const char* name = scheme_name<S>();
  r.subject = std::string("quantizer to ") + (name != nullptr ? name : "a scheme without a name");
  for (int kind = 0; kind < block_kinds; ++kind) r.by_kind.push_back({name_of(static_cast<block_kind>(kind)), 0, 0});
  visit_comparable_schemes<S>([&]<class T>(const char* other) { r.named.push_back({other, 0, 0}); });

  constexpr int group_size = 64;
  adversary<S> maker(o.seed);
  for (int done = 0; done < o.blocks; done += group_size) {
    const adversarial_group<S> g = maker.group(smaller(group_size, o.blocks - done), o.nonfinite);
    const auto got = detail::quantize_with<S>(theirs, g);  // in the caller's floating-point environment
    microscale::detail::in_default_environment([&] { detail::hold_against<S>(g, got, o, r); });
  }
  std::ranges::stable_sort(r.named, {}, &tally::different);
  return r;
}

}  // namespace microscale::conformance
