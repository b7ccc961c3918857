// The library's CUDA executor behind the interface of operations.hpp.
#pragma once

#include <microscale/cuda/amax.cuh>
#include <microscale/cuda/gemm.cuh>
#include <microscale/cuda/quantize.cuh>

#include "typed.hpp"

namespace microscale_torch {

inline ms::cuda cuda_executor_of(const place& at) { return {.stream = static_cast<cudaStream_t>(at.stream)}; }

// The decode multiplier of a stored datum, and of a reference that is yet to become one.
template <ms::quantization_scheme S>
__global__ void stored_multiplier_kernel(const float* datum, float* multiplier) {
  *multiplier = S::from_stored(*datum).decode;
}
template <ms::quantization_scheme S>
__global__ void multiplier_kernel(const float* reference, bool own, int target, float* multiplier) {
  *multiplier = ms::detail::device::derive_factors<S>(*reference, own, target).back.decode;
}

template <ms::quantization_scheme S, class Roundings>
class cuda_scheme final : public scheme_operations {
 public:
  cuda_scheme() { add_scheme(backend::cuda, this); }

  const scheme_facts& facts() const override { return facts_; }

  void quantize(const place& at, const matrix_memory& in, const packed_memory& out,
                const quantize_request& request) const override {
    with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        ms::quantize_with(cuda_executor_of(at), view, view_of<S>(out), rounding, options_of(request),
                          workspace_of(request));
      });
    });
  }

  void dequantize(const place& at, const packed_memory& in, const matrix_memory& out, ms::axis along,
                  float* multiplier) const override {
    const auto q = view_of<const S>(in);
    with_view(out, [&](auto view) {
      if (multiplier == nullptr) {
        ms::dequantize_into(cuda_executor_of(at), q, view, along);
      } else {
        const ms::quantized_view<const unscaled<S>> plain{q.codes, q.scales,     nullptr,      q.rows,
                                                          q.cols,  q.code_pitch, q.scale_pitch};
        ms::dequantize_into(cuda_executor_of(at), plain, view, along);
        if constexpr (S::has_tensor_scale) {
          stored_multiplier_kernel<S><<<1, 1, 0, static_cast<cudaStream_t>(at.stream)>>>(in.datum, multiplier);
        }
      }
    });
  }

  void fake_quantize(const place& at, const matrix_memory& in, const matrix_memory& out,
                     const quantize_request& request, float* multiplier) const override {
    with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&]<class T>(ms::matrix_view<T> from) {
        if (multiplier != nullptr) {
          run<operand_of<S>>(at, from, view_of<bfloat16_t>(out), rounding, request, multiplier);
        } else {
          run<S>(at, from, view_of<T>(out), rounding, request, nullptr);
        }
      });
    });
  }

 private:
  static std::span<std::byte> workspace_of(const quantize_request& request) {
    if (request.workspace == nullptr) return {};
    return {reinterpret_cast<std::byte*>(request.workspace), sizeof(float)};
  }

  // Decodes as Q, which is S or operand_of<S>.
  template <class Q, class R, class T, class U>
  static void run(const place& at, ms::matrix_view<T> in, ms::matrix_view<U> out, R rounding,
                  const quantize_request& request, float* multiplier) {
    namespace device = ms::detail::device;
    if (in.empty()) return;
    const ms::cuda executor = cuda_executor_of(at);
    const auto call =
        device::begin_quantize<Q, R, T>(executor, in, rounding, options_of(request), workspace_of(request));
    if constexpr (S::has_tensor_scale) {
      if (multiplier != nullptr) {
        multiplier_kernel<S><<<1, 1, 0, executor.stream>>>(call.reference, call.own_reference, call.target, multiplier);
      }
    }
    device::launch_quantize<R>(executor, "fake quantization", call,
                               device::decoded_sink<Q, U>{device::as_stored(out, request.axis)});
  }

  scheme_facts facts_ = facts_of<S>();
};

template <ms::quantization_scheme A, ms::quantization_scheme B>
struct cuda_gemm {
  cuda_gemm() {
    add<ms::exact_f32>();
    add<ms::f32_blocks>();
    add<ms::blackwell_k64>();
  }

 private:
  template <class P>
  static std::size_t workspace(const packed_memory& a, const packed_memory& b) {
    return ms::gemm_workspace<P>(ms::cuda{}, view_of<const A>(a), view_of<const B>(b));
  }
  template <class P>
  static void run(const place& at, const packed_memory& a, const packed_memory& b, float* c,
                  std::span<std::byte> workspace) {
    ms::gemm_into<P>(cuda_executor_of(at), view_of<const A>(a), view_of<const B>(b), ms::matrix(c, a.rows, b.rows), {},
                     workspace);
  }
  template <class P>
  static void add() {
    add_gemm(backend::cuda, facts_of<A>().name, facts_of<B>().name, accumulation_name<P>, {&workspace<P>, &run<P>});
  }
};

}  // namespace microscale_torch
