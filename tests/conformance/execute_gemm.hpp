// The GEMM of every pair of operand kinds under every accumulation, for execute.hpp. Include it where
// scheme_family::gemm is instantiated.
#pragma once

#include "execute_schemes.hpp"

namespace conformance {

template <class Executor, class A, class B>
std::vector<float> gemm_pair(const ms::quantized<A>& a, const gemm_request& g) {
  const ms::quantized<B> b = pack<B>(g.b, 1.0f);
  std::vector<float> out;
  visit_named(accumulations, g.accumulate,
              [&]<class P>(type_tag<P>) { out = Executor::template gemm<P>(a, b, g.alpha); });
  return out;
}

template <class Executor, class A>
std::vector<float> gemm_of(const gemm_request& g, const std::string& policy) {
  const ms::quantized<A> a = pack<A>(g.a, 1.0f);
  std::vector<float> out;
  // The policy is that of A; where it says nothing of B's scheme, B is as without one.
  const auto multiply = [&]<class S>(type_tag<S>) {
    operand_kinds::visit<operand_of<S>>([&]<class B>(type_tag<B>) { out = gemm_pair<Executor, A, B>(a, g); });
  };
  if (!visit_scheme(g.b.scheme, policy, multiply)) visit_scheme(g.b.scheme, {}, multiply);
  return out;
}

template <class Executor, class Family>
std::optional<outcome> scheme_family<Executor, Family>::gemm(const gemm_request& g, const std::string& policy) {
  std::optional<outcome> o;
  visit_named(Family::schemes, g.a.scheme, policy, [&]<class S>(type_tag<S>) {
    operand_kinds::visit<operand_of<S>>([&]<class A>(type_tag<A>) {
      o = outcome{{computed_field::floats("out", "", gemm_of<Executor, A>(g, policy))}, {}};
    });
  });
  return o;
}

}  // namespace conformance
