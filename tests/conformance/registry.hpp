// The names of vector files and the library's types that they stand for.
#pragma once

#include <array>
#include <string_view>
#include <tuple>
#include <type_traits>

#include <microscale/microscale.hpp>

namespace conformance {

namespace ms = microscale;

template <class T>
struct type_tag {
  using type = T;
};

// A type under a name. A case may name a policy, which picks among several types of one name: `policies` lists those
// that a type holds under, and the one that is not `only_by_policy` speaks for cases that name none.
template <class T>
struct named {
  using type = T;
  std::string_view name;
  std::array<std::string_view, 3> policies = {};
  bool only_by_policy = false;

  constexpr bool speaks(std::string_view wanted, std::string_view policy) const {
    if (name != wanted) return false;
    if (policy.empty()) return !only_by_policy;
    for (const std::string_view p : policies) {
      if (p == policy) return true;
    }
    return false;
  }
};

// Calls f(type_tag<T>) for the first type of `list` under that name that holds under `policy`; false where none does.
template <class List, class F>
bool visit_named(const List& list, std::string_view name, std::string_view policy, F&& f) {
  const auto one = [&](const auto& entry) {
    if (!entry.speaks(name, policy)) return false;
    f(type_tag<typename std::remove_cvref_t<decltype(entry)>::type>{});
    return true;
  };
  return std::apply([&](const auto&... entry) { return (one(entry) || ...); }, list);
}

// The same for a case that names no policy.
template <class List, class F>
bool visit_named(const List& list, std::string_view name, F&& f) {
  return visit_named(list, name, {}, f);
}

inline constexpr auto formats = std::make_tuple(
    named<ms::e2m1>{"e2m1", {"nan_to_max"}}, named<ms::e1m2>{"e1m2", {"nan_to_max"}},
    named<ms::e2m3>{"e2m3", {"nan_to_max"}}, named<ms::e3m2>{"e3m2", {"nan_to_max"}}, named<ms::e4m3>{"e4m3"},
    named<ms::e5m2>{"e5m2"}, named<ms::int4>{"int4", {"int_symmetric", "nan_to_max"}},
    named<ms::int4_full>{"int4", {"int_full"}, true}, named<ms::int8>{"int8", {"int_symmetric", "nan_to_max"}},
    named<ms::int8_full>{"int8", {"int_full"}, true}, named<ms::ue4m3>{"ue4m3"}, named<ms::ue5m3>{"ue5m3"},
    named<ms::ue5m3_ieee>{"ue5m3_ieee"}, named<ms::e8m0>{"e8m0", {"e8m0_tie_up"}},
    named<ms::e8m0_tie_even>{"e8m0", {"e8m0_tie_even"}, true}, named<ms::bf16>{"bf16"}, named<ms::f16>{"f16"});

inline constexpr auto roundings = std::make_tuple(
    named<ms::nearest_even>{"nearest_even"}, named<ms::toward_zero>{"toward_zero"},
    named<ms::toward_positive>{"toward_positive"}, named<ms::toward_negative>{"toward_negative"},
    named<ms::stochastic_midpoint8>{"stochastic_midpoint8"}, named<ms::stochastic_floor8>{"stochastic_floor8"});

inline constexpr auto accumulations = std::make_tuple(
    named<ms::exact_f32>{"exact_f32"}, named<ms::f32_blocks>{"f32_blocks"}, named<ms::blackwell_k64>{"blackwell_k64"});

// The schemes, in families that are compiled apart.
inline constexpr auto ue5m3_schemes = std::make_tuple(
    named<ms::ue5m3_fp4>{"ue5m3_fp4", {"dequant_payload_first"}},
    named<ms::ue5m3_fp4_2d>{"ue5m3_fp4_2d", {"dequant_payload_first"}},
    named<ms::ue5m3_fp4_b32>{"ue5m3_fp4_b32", {"dequant_payload_first"}},
    named<ms::ue5m3_fp4_b32_2d>{"ue5m3_fp4_b32_2d", {"dequant_payload_first"}},
    named<ms::ue5m3_fp4_scale_first>{"ue5m3_fp4", {"dequant_scale_first"}, true},
    named<ms::with_block<ms::ue5m3_fp4_scale_first, ms::block<16, 16>>>{"ue5m3_fp4_2d", {"dequant_scale_first"}, true},
    named<ms::with_block<ms::ue5m3_fp4_scale_first, ms::block<1, 32>>>{"ue5m3_fp4_b32", {"dequant_scale_first"}, true},
    named<ms::with_block<ms::ue5m3_fp4_scale_first, ms::block<32, 32>>>{
        "ue5m3_fp4_b32_2d", {"dequant_scale_first"}, true},
    named<ms::ue5m3_fp4_exact>{"ue5m3_fp4_exact"}, named<ms::ue5m3_single>{"ue5m3_single"});

inline constexpr auto nvfp4_schemes = std::make_tuple(
    named<ms::nvfp4>{"nvfp4", {"nan_ignored"}}, named<ms::nvfp4_2d>{"nvfp4_2d", {"nan_ignored"}},
    named<ms::nvfp4_4over6>{"nvfp4_4over6", {"nan_ignored"}},
    named<ms::nvfp4_torchao>{"nvfp4_torchao", {"scalar_division"}},
    named<ms::nvfp4_torchao_reciprocal>{"nvfp4_torchao", {"scalar_reciprocal"}, true},
    named<ms::nvfp4_modelopt>{"nvfp4_modelopt", {"scalar_division"}},
    named<ms::nvfp4_modelopt_reciprocal>{"nvfp4_modelopt", {"scalar_reciprocal"}, true},
    named<ms::nvfp4_compressed_tensors>{"nvfp4_compressed_tensors", {"scalar_division"}},
    named<ms::nvfp4_compressed_tensors_reciprocal>{"nvfp4_compressed_tensors", {"scalar_reciprocal"}, true},
    named<ms::nvfp4_exact>{"nvfp4_exact"}, named<ms::nvfp4_single>{"nvfp4_single"});

inline constexpr auto mx_schemes = std::make_tuple(
    named<ms::mxfp4>{"mxfp4", {"inf_scale_nan"}}, named<ms::mxfp4_even>{"mxfp4_even", {"inf_scale_nan"}},
    named<ms::mxfp4_ceil>{"mxfp4_ceil", {"inf_scale_nan"}}, named<ms::mxfp4_folded>{"mxfp4_folded", {"inf_scale_nan"}},
    named<ms::mxfp4_folded_2d>{"mxfp4_folded_2d", {"inf_scale_nan"}},
    named<ms::mxfp6_e2m3>{"mxfp6_e2m3", {"inf_scale_nan"}}, named<ms::mxfp6_e3m2>{"mxfp6_e3m2", {"inf_scale_nan"}},
    named<ms::mxfp8_e4m3>{"mxfp8_e4m3", {"inf_scale_nan"}}, named<ms::mxfp8_e5m2>{"mxfp8_e5m2", {"inf_scale_nan"}},
    named<ms::mxfp8_e4m3_ceil>{"mxfp8_e4m3_ceil", {"inf_scale_nan"}},
    named<ms::mxfp8_e5m2_ceil>{"mxfp8_e5m2_ceil", {"inf_scale_nan"}},
    named<ms::mxint8>{"mxint8", {"inf_scale_nan", "int_symmetric"}},
    named<ms::mxint8_full>{"mxint8", {"int_full"}, true}, named<ms::ufp4>{"ufp4"});

// Schemes whose scales are rounded by a draw.
inline constexpr auto drawn_schemes = std::make_tuple(named<ms::nvfp4_ms_eden>{"nvfp4_ms_eden"});

// Calls f(type_tag<S>) for a scheme by name, as visit_named.
template <class F>
bool visit_scheme(std::string_view name, std::string_view policy, F&& f) {
  return visit_named(ue5m3_schemes, name, policy, f) || visit_named(nvfp4_schemes, name, policy, f) ||
         visit_named(mx_schemes, name, policy, f) || visit_named(drawn_schemes, name, policy, f);
}

// What a GEMM knows of an operand: its element and scale formats and its blocks. Many schemes are one kind of operand,
// so the pairs of kinds are few enough to be compiled all.
template <class Element, class Scale, int Rows, int Columns>
using operand = ms::scheme<Element, Scale, ms::block<Rows, Columns>, ms::amax_over_max>;

template <class S>
using operand_of =
    operand<std::conditional_t<std::is_same_v<typename S::element, ms::int8_full>, ms::int8, typename S::element>,
            typename S::scale, S::block::rows, S::block::columns>;

template <class... Kinds>
struct operand_list {
  // Calls f(type_tag<Kind>) if `Kind` is on the list.
  template <class Kind, class F>
  static bool visit(F&& f) {
    if constexpr ((std::is_same_v<Kind, Kinds> || ...)) {
      f(type_tag<Kind>{});
      return true;
    } else {
      return false;
    }
  }
};

using operand_kinds = operand_list<operand<ms::e2m1, ms::ue5m3_ieee, 1, 16>, operand<ms::e2m1, ms::ue5m3_ieee, 16, 16>,
                                   operand<ms::e2m1, ms::ue5m3_ieee, 1, 32>, operand<ms::e2m1, ms::ue5m3_ieee, 32, 32>,
                                   operand<ms::e2m1, ms::ue4m3, 1, 16>, operand<ms::e2m1, ms::ue4m3, 16, 16>,
                                   operand<ms::e2m1, ms::ue5m3, 1, 16>, operand<ms::e2m1, ms::e8m0, 1, 32>,
                                   operand<ms::e2m3, ms::e8m0, 1, 32>, operand<ms::e3m2, ms::e8m0, 1, 32>,
                                   operand<ms::e4m3, ms::e8m0, 1, 32>, operand<ms::e5m2, ms::e8m0, 1, 32>,
                                   operand<ms::int8, ms::e8m0, 1, 32>, operand<ms::e1m2, ms::f32, 1, 16>>;

}  // namespace conformance
