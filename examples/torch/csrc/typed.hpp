// From run-time types to the library's, for the sources that instantiate it.
#pragma once

#include <microscale/conformance/named_schemes.hpp>
#include <microscale/recipe/recipe.hpp>
#include <microscale/tensor/accumulate.hpp>
#include <microscale/tensor/error.hpp>

#include "operations.hpp"

namespace microscale_torch {

using bfloat16_t = ms::value<ms::bf16>;

template <class T>
ms::matrix_view<T> view_of(const matrix_memory& m) {
  return ms::matrix(static_cast<T*>(m.data), m.rows, m.cols);
}

// Calls f with a view whose element type is that of `m`.
template <class F>
void with_view(const matrix_memory& m, F&& f) {
  if (m.type == element_type::f32) {
    f(view_of<float>(m));
  } else {
    f(view_of<bfloat16_t>(m));
  }
}

template <class S>
ms::quantized_view<S> view_of(const packed_memory& p) {
  return ms::quantized_view_of<S>(p.codes, static_cast<typename S::scale::storage*>(p.scales), p.datum, p.rows, p.cols);
}

template <class... Rs>
struct roundings {};
using nearest_only = roundings<ms::nearest_even>;
using nearest_and_midpoint8 = roundings<ms::nearest_even, ms::stochastic_midpoint8>;
using nearest_and_floor8 = roundings<ms::nearest_even, ms::stochastic_floor8>;
using scale_draws_only = roundings<ms::with_scale_draws<>>;

template <class R>
inline constexpr rounding_kind kind_of = rounding_kind::nearest_even;
template <>
inline constexpr rounding_kind kind_of<ms::stochastic_midpoint8> = rounding_kind::stochastic_midpoint8;
template <>
inline constexpr rounding_kind kind_of<ms::stochastic_floor8> = rounding_kind::stochastic_floor8;
template <>
inline constexpr rounding_kind kind_of<ms::with_scale_draws<>> = rounding_kind::with_scale_draws;

template <class R>
R rounding_of(const quantize_request& request) {
  return ms::detail::rounding_with<R>::keys(request.key, request.scale_key);
}

// Calls f with the rounding mode that the request names, if it is one of those that were built.
template <class... Rs, class F>
void with_rounding(roundings<Rs...>, const std::string& scheme, const quantize_request& request, F&& f) {
  bool found = false;
  const auto attempt = [&]<class R>(R) {
    if (found || kind_of<R> != request.rounding) return;
    found = true;
    f(rounding_of<R>(request));
  };
  (attempt(Rs{}), ...);
  if (found) return;
  std::string built;
  ((built += (built.empty() ? "" : " or ") + std::string(name_of(kind_of<Rs>))), ...);
  ms::detail::fail(("rounding of " + scheme).c_str(), built, name_of(request.rounding));
}

inline ms::quantize_options options_of(const quantize_request& request) {
  ms::quantize_options options;
  options.axis = request.axis;
  options.reference = request.reference;
  options.target = request.target;
  return options;
}

// How a scheme decodes a matrix whose tensor scale is applied later, to the product.
struct without_tensor_scale {
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const ms::tensor_factors&) noexcept {
    return ms::fp32::mul(element, s);
  }
};
template <class S>
using unscaled = ms::scheme<typename S::element, typename S::scale, typename S::block, without_tensor_scale>;

// The scheme itself, decoded so: fake quantization under it gives element times block scale.
template <class Rule>
struct operand_rule : Rule {
  template <class S>
  MICROSCALE_HD static constexpr float decoded(float element, float s, const ms::tensor_factors&) noexcept {
    return ms::fp32::mul(element, s);
  }
};
template <class S>
struct operand_of : ms::scheme<typename S::element, typename S::scale, typename S::block,
                               operand_rule<typename S::rule>, typename S::tensor_scale, S::policy> {};

template <class S>
constexpr const char* scheme_name() {
  if constexpr (std::is_same_v<S, ms::nvfp4_ms_eden>) {  // which is not among those that draw nothing
    return "nvfp4_ms_eden";
  } else {
    return ms::conformance::scheme_name<S>();
  }
}

template <class S>
scheme_facts facts_of() {
  const char* name = scheme_name<S>();
  return {name != nullptr ? name : "",
          S::element::bits,
          static_cast<int>(sizeof(typename S::scale::storage)),
          S::block::rows,
          S::block::columns,
          S::has_tensor_scale};
}

template <class P>
inline constexpr const char* accumulation_name = nullptr;
template <>
inline constexpr const char* accumulation_name<ms::exact_f32> = "exact_f32";
template <>
inline constexpr const char* accumulation_name<ms::f32_blocks> = "f32_blocks";
template <>
inline constexpr const char* accumulation_name<ms::blackwell_k64> = "blackwell_k64";

// The products A B^T on a device (its backend, and its executor for a place) under each accumulation that has a
// definition. Functions of the library are found by their executor.
template <class Device, ms::quantization_scheme A, ms::quantization_scheme B>
struct products {
  products() {
    add<ms::exact_f32>();
    add<ms::f32_blocks>();
    add<ms::blackwell_k64>();
  }

 private:
  template <class P>
  static std::size_t workspace(const packed_memory& a, const packed_memory& b) {
    return gemm_workspace<P>(Device::executor({}), view_of<const A>(a), view_of<const B>(b));
  }
  template <class P>
  static void run(const place& at, const packed_memory& a, const packed_memory& b, float* c,
                  std::span<std::byte> workspace) {
    gemm_into<P>(Device::executor(at), view_of<const A>(a), view_of<const B>(b), ms::matrix(c, a.rows, b.rows), {},
                 workspace);
  }
  template <class P>
  static void add() {
    add_gemm(Device::where, facts_of<A>().name, facts_of<B>().name, accumulation_name<P>, {&workspace<P>, &run<P>});
  }
};

}  // namespace microscale_torch
