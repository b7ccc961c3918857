// The library's host executor behind the interface of operations.hpp.
#pragma once

#include <microscale/host/executor.hpp>
#include <microscale/tensor/gemm.hpp>
#include <microscale/tensor/hadamard_quantize.hpp>
#include <microscale/tensor/quantized.hpp>

#include "typed.hpp"

namespace microscale_torch {

struct cpu {
  static constexpr backend where = backend::cpu;
  static ms::host executor(const place& at) { return ms::host{.threads = at.threads}; }
};

template <ms::quantization_scheme S, class Roundings>
class cpu_scheme final : public scheme_operations {
 public:
  cpu_scheme() { add_scheme(backend::cpu, this); }

  const scheme_facts& facts() const override { return facts_; }

  void quantize(const place& at, const matrix_memory& in, const packed_memory& out,
                const quantize_request& request) const override {
    quantize_to(at, in, view_of<S>(out), request);
  }

  void dequantize(const place& at, const packed_memory& in, const matrix_memory& out, ms::axis along,
                  float* multiplier) const override {
    decode(at, view_of<const S>(in), out, along, multiplier);
  }

  void fake_quantize(const place& at, const matrix_memory& in, const matrix_memory& out,
                     const quantize_request& request, float* multiplier) const override {
    const bool along_row = request.axis == ms::axis::row;
    ms::quantized<S> q(along_row ? in.rows : in.cols, along_row ? in.cols : in.rows);
    quantize_to(at, in, q.view(), request);
    const ms::quantized<S>& codes = q;
    decode(at, codes.view(), out, request.axis, multiplier);
  }

 private:
  void quantize_to(const place& at, const matrix_memory& in, const ms::quantized_view<S>& out,
                   const quantize_request& request) const {
    with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        if (request.transform) {
          ms::hadamard_quantize_with(cpu::executor(at), view, out, rounding, *request.transform, options_of(request));
        } else {
          ms::quantize_with(cpu::executor(at), view, out, rounding, options_of(request));
        }
      });
    });
  }

  void decode(const place& at, const ms::quantized_view<const S>& q, const matrix_memory& out, ms::axis along,
              float* multiplier) const {
    with_view(out, [&](auto view) {
      if (multiplier == nullptr) {
        ms::dequantize_into(cpu::executor(at), q, view, along);
      } else {
        *multiplier = q.factors().decode;
        const ms::quantized_view<const unscaled<S>> plain{q.codes, q.scales,     nullptr,      q.rows,
                                                          q.cols,  q.code_pitch, q.scale_pitch};
        ms::dequantize_into(cpu::executor(at), plain, view, along);
      }
    });
  }

  scheme_facts facts_ = facts_of<S>();
};

template <ms::quantization_scheme A, ms::quantization_scheme B>
using cpu_gemm = products<cpu, A, B>;

}  // namespace microscale_torch
