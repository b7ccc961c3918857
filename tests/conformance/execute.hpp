// From a request to an outcome, by an executor: whatever runs the library's operations, here or on a device.
//
// An executor is a type with the static members of host_executor (host_executor.hpp). The templates below that depend
// on schemes are declared here and defined in execute_schemes.hpp and execute_gemm.hpp, so that a program can
// instantiate them family by family, each in a translation unit of its own:
//   template struct scheme_family<host_executor, nvfp4_family>;
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "outcome.hpp"
#include "registry.hpp"
#include "request.hpp"

namespace conformance {

struct ue5m3_family {
  static constexpr const auto& schemes = ue5m3_schemes;
};
struct nvfp4_family {
  static constexpr const auto& schemes = nvfp4_schemes;
};
struct mx_family {
  static constexpr const auto& schemes = mx_schemes;
};
// Of executors that say so by a member quantizes_with_scale_draws; others skip it.
struct drawn_family {
  static constexpr const auto& schemes = drawn_schemes;
};

// Nothing where the family has no such scheme under that policy.
template <class Executor, class Family>
struct scheme_family {
  static std::optional<outcome> quantize(const quantize_request& q, const std::string& policy);
  static std::optional<outcome> dequantize(const dequantize_request& d, const std::string& policy);
  // A GEMM whose operand A is of the family.
  static std::optional<outcome> gemm(const gemm_request& g, const std::string& policy);
};

// Codes as the storage type of a format.
template <class F>
std::vector<typename F::storage> stored_codes(const std::vector<std::uint32_t>& codes) {
  std::vector<typename F::storage> out;
  out.reserve(codes.size());
  for (const std::uint32_t code : codes) out.push_back(static_cast<typename F::storage>(code));
  return out;
}

// Codes of `Bits` bits, whatever they mean.
template <int Bits>
struct bits_only {
  static constexpr int bits = Bits;
  using storage = std::uint8_t;
};

template <class Executor>
class executes {
 public:
  static outcome run(const request& r) {
    return std::visit([&](const auto& operation) { return execute(operation, r.policy); }, r.operation);
  }

 private:
  static outcome skipped(const std::string& policy, const std::string& what) {
    return {{}, "policy " + policy + " is not offered for " + what};
  }

  static outcome execute(const encode_request& e, const std::string& policy) {
    outcome o;
    const bool offered = visit_named(formats, e.format, policy, [&]<class F>(type_tag<F>) {
      visit_named(roundings, e.rounding, [&]<class R>(type_tag<R>) {
        const auto codes = e.is_wide ? Executor::template encode<F, R>(e.in64, e.overflow, e.random)
                                     : Executor::template encode<F, R>(e.in, e.overflow, e.random);
        o.fields.push_back(computed_field::codes<F>("codes", "", codes));
      });
    });
    return offered ? o : skipped(policy, "encode to " + e.format);
  }

  static outcome execute(const decode_request& d, const std::string& policy) {
    outcome o;
    const bool offered = visit_named(formats, d.format, policy, [&]<class F>(type_tag<F>) {
      o.fields.push_back(computed_field::floats("out", "", Executor::template decode<F>(stored_codes<F>(d.codes))));
    });
    return offered ? o : skipped(policy, "decode from " + d.format);
  }

  static outcome execute(const quantize_request& q, const std::string& policy) {
    const auto o = of_any_family(
        [&]<class Family>(type_tag<Family>) { return scheme_family<Executor, Family>::quantize(q, policy); });
    return o ? *o : skipped(policy, "quantize to " + q.scheme);
  }

  static outcome execute(const dequantize_request& d, const std::string& policy) {
    const auto o = of_any_family(
        [&]<class Family>(type_tag<Family>) { return scheme_family<Executor, Family>::dequantize(d, policy); });
    return o ? *o : skipped(policy, "dequantize from " + d.in.scheme);
  }

  static outcome execute(const gemm_request& g, const std::string& policy) {
    const auto o =
        of_any_family([&]<class Family>(type_tag<Family>) { return scheme_family<Executor, Family>::gemm(g, policy); });
    return o ? *o : skipped(policy, "gemm");
  }

  // Packing and unpacking are the same everywhere: memory, not arithmetic.
  static outcome execute(const pack_request& p, const std::string& policy) {
    if (!policy.empty()) return skipped(policy, "pack");
    outcome o;
    with_bits<1>(p.bits, [&]<int Bits>() {
      const auto count = static_cast<ms::index_t>(p.codes.size());
      const auto codes = stored_codes<bits_only<Bits>>(p.codes);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(ms::packed_bytes(Bits, count)));
      ms::store_codes<bits_only<Bits>>(bytes.data(), codes.data(), count);
      std::vector<std::uint8_t> back;
      for (ms::index_t i = 0; i < count; ++i) back.push_back(ms::load_code<bits_only<Bits>>(bytes.data(), i));
      o.fields.push_back(computed_field::bytes("bytes", "", bytes));
      o.fields.push_back(computed_field::bytes("codes", "", codes));
      o.fields.push_back(computed_field::bytes("codes", "unpacked", back));
    });
    return o;
  }

  static outcome execute(const layout_request& l, const std::string& policy) {
    if (!policy.empty()) return skipped(policy, "layout");
    std::vector<std::uint8_t> bytes(
        static_cast<std::size_t>(ms::scale_count(ms::scale_layout::tile_128x4, l.rows, l.cols)));
    for (ms::index_t r = 0; r < l.rows; ++r) {
      for (ms::index_t c = 0; c < l.cols; ++c) {
        bytes[static_cast<std::size_t>(ms::tile_128x4_offset(r, c, l.cols))] =
            static_cast<std::uint8_t>(l.in[static_cast<std::size_t>(r * l.cols + c)]);
      }
    }
    return {{computed_field::bytes("bytes", "", bytes)}, {}};
  }

  static outcome execute(const hadamard_request& h, const std::string& policy) {
    if (!policy.empty()) return skipped(policy, "hadamard");
    return {{computed_field::floats("out", "", Executor::hadamard(h.in, {.size = h.size, .signs = h.signs}))}, {}};
  }

  template <class F>
  static std::optional<outcome> of_any_family(F&& f) {
    std::optional<outcome> o = f(type_tag<nvfp4_family>{});
    if (!o) o = f(type_tag<ue5m3_family>{});
    if (!o) o = f(type_tag<mx_family>{});
    if constexpr (requires { Executor::quantizes_with_scale_draws; }) {
      if (!o) o = f(type_tag<drawn_family>{});
    }
    return o;
  }

  template <int Bits, class F>
  static void with_bits(int bits, F&& f) {
    if (bits == Bits) return f.template operator()<Bits>();
    if constexpr (Bits < 8) with_bits<Bits + 1>(bits, f);
  }
};

}  // namespace conformance
