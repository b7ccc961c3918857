// The library's CUDA executor behind the interface of operations.hpp.
#pragma once

#include <microscale/cuda/amax.cuh>
#include <microscale/cuda/gemm.cuh>
#include <microscale/cuda/quantize.cuh>

#include "typed.hpp"

// Decoding without the tensor scale changes nothing of how codes are found: the library's fast kernels serve it too.
namespace microscale::detail::device {
template <class Rule>
inline constexpr bool is_mx_rule<microscale_torch::operand_rule<Rule>> = is_mx_rule<Rule>;
template <class Rule>
inline constexpr bool multiplies_by_float<microscale_torch::operand_rule<Rule>> = multiplies_by_float<Rule>;
}  // namespace microscale::detail::device

namespace microscale_torch {

struct cuda {
  static constexpr backend where = backend::cuda;
  static ms::cuda executor(const place& at) { return {.stream = static_cast<cudaStream_t>(at.stream)}; }
};

// The request's rounding as one that reads its stream when kernels run, if R is such a one.
template <class R>
struct mode_of {
  static R from(const quantize_request& request) { return rounding_of<R>(request); }
};
template <class R>
struct mode_of<ms::with_stream_offset<R>> {
  static ms::with_stream_offset<R> from(const quantize_request& request) {
    return {rounding_of<R>(request), request.stream_offset};
  }
};

// with_rounding, with the mode that the request's stream wants.
template <class Roundings, class F>
void with_mode(Roundings built, const std::string& scheme, const quantize_request& request, F&& f) {
  with_rounding(built, scheme, request, [&]<class R>(R rounding) {
    if constexpr (ms::stochastic_mode<R>) {
      if (request.stream_offset != nullptr) return f(mode_of<ms::with_stream_offset<R>>::from(request));
    }
    f(rounding);
  });
}

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
    with_mode(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        ms::quantize_with(cuda::executor(at), view, view_of<S>(out), rounding, options_of(request),
                          workspace_of(request));
      });
    });
  }

  void dequantize(const place& at, const packed_memory& in, const matrix_memory& out, ms::axis along,
                  float* multiplier) const override {
    const auto q = view_of<const S>(in);
    with_view(out, [&](auto view) {
      if (multiplier == nullptr) {
        ms::dequantize_into(cuda::executor(at), q, view, along);
      } else {
        const ms::quantized_view<const unscaled<S>> plain{q.codes, q.scales,     nullptr,      q.rows,
                                                          q.cols,  q.code_pitch, q.scale_pitch};
        ms::dequantize_into(cuda::executor(at), plain, view, along);
        if constexpr (S::has_tensor_scale) {
          stored_multiplier_kernel<S><<<1, 1, 0, static_cast<cudaStream_t>(at.stream)>>>(in.datum, multiplier);
        }
      }
    });
  }

  void fake_quantize(const place& at, const matrix_memory& in, const matrix_memory& out,
                     const quantize_request& request, float* multiplier) const override {
    if (multiplier != nullptr) {
      with_mode(Roundings{}, facts_.name, request, [&](auto rounding) {
        with_view(in, [&](auto from) {
          run<operand_of<S>>(at, from, view_of<bfloat16_t>(out), rounding, request, multiplier);
        });
      });
    } else {
      with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
        with_view(in, [&]<class T>(ms::matrix_view<T> from) {
          run<S>(at, from, view_of<T>(out), rounding, request, nullptr);
        });
      });
    }
  }

  void fake_quantize_both(const place& at, const matrix_memory& in, const matrix_memory& rows,
                          const matrix_memory& cols, const quantize_request& row_request,
                          const quantize_request& col_request, float* multiplier) const override {
    bool done = false;
    if (row_request.rounding == col_request.rounding) {
      with_mode(Roundings{}, facts_.name, row_request, [&]<class R>(R rounding) {
        with_view(in, [&](auto from) {
          done = run_both(at, from, view_of<bfloat16_t>(rows), view_of<bfloat16_t>(cols), rounding,
                          mode_of<R>::from(col_request), row_request, col_request, multiplier);
        });
      });
    }
    if (!done) scheme_operations::fake_quantize_both(at, in, rows, cols, row_request, col_request, multiplier);
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
    const ms::cuda executor = cuda::executor(at);
    const auto call =
        device::begin_quantize<Q, R, T>(executor, in, rounding, options_of(request), workspace_of(request));
    derive_multiplier(executor, call, call.reference, multiplier);
    device::launch_quantize<R>(executor, "fake quantization", call,
                               device::decoded_sink<Q, U>{device::as_stored(out, request.axis)});
  }

  // Both axes from one read, where the library has a kernel for that; false where it has none.
  template <class R, class T>
  static bool run_both(const place& at, ms::matrix_view<T> in, ms::matrix_view<bfloat16_t> rows,
                       ms::matrix_view<bfloat16_t> cols, R row_rounding, R col_rounding,
                       const quantize_request& row_request, const quantize_request& col_request, float* multiplier) {
    namespace device = ms::detail::device;
    using operand = operand_of<S>;
    if constexpr (device::run_scheme<operand, R> && S::block::rows == 1) {
      if (in.empty()) return false;
      const ms::cuda executor = cuda::executor(at);
      const auto row = device::describe_quantize<operand, R, T>(executor, in, row_rounding, options_of(row_request));
      const auto col = device::describe_quantize<operand, R, T>(executor, in, col_rounding, options_of(col_request));
      if (!device::try_both<R, operand, T>(
              executor, "fake quantization along both axes", in, workspace_of(row_request), row, col,
              device::decoded_sink<operand, bfloat16_t>{device::as_stored(rows, ms::axis::row)},
              device::decoded_sink<operand, bfloat16_t>{device::as_stored(cols, ms::axis::col)})) {
        return false;
      }
      derive_multiplier(executor, row, row.own_reference ? row_request.workspace : row.reference, multiplier);
      return true;
    } else {
      return false;
    }
  }

  // Where the scheme has a tensor scale, its decode multiplier from the call's reference.
  template <class Call>
  static void derive_multiplier(const ms::cuda& executor, const Call& call, const float* reference, float* multiplier) {
    if constexpr (S::has_tensor_scale) {
      if (multiplier == nullptr) return;
      multiplier_kernel<S><<<1, 1, 0, executor.stream>>>(reference, call.own_reference, call.target, multiplier);
    }
  }

  scheme_facts facts_ = facts_of<S>();
};

template <ms::quantization_scheme A, ms::quantization_scheme B>
using cuda_gemm = products<cuda, A, B>;

}  // namespace microscale_torch
