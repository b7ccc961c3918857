// The library's CUDA executor behind the interface of operations.hpp.
#pragma once

#include <microscale/cuda/amax.cuh>
#include <microscale/cuda/gemm.cuh>
#include <microscale/cuda/hadamard_quantize.cuh>
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

// The decode multiplier of a stored datum.
template <ms::quantization_scheme S>
__global__ void stored_multiplier_kernel(const float* datum, float* multiplier) {
  *multiplier = S::from_stored(*datum).decode;
}

// Decoded, with the decode multiplier of the tensor scale beside.
template <class S, class U>
struct operand_sink : ms::detail::device::decoded_sink<S, U> {
  float* multiplier = nullptr;

  __device__ void write_datum(index_t, float datum) const {
    if (multiplier != nullptr) *multiplier = S::from_stored(datum).decode;
  }
};

template <ms::quantization_scheme S, class Roundings>
class cuda_scheme final : public scheme_operations {
 public:
  cuda_scheme() { add_scheme(backend::cuda, this); }

  const scheme_facts& facts() const override { return facts_; }

  std::size_t workspace(const matrix_memory& in, const packed_memory& out,
                        const quantize_request& request) const override {
    std::size_t bytes = 0;
    with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        const auto q = view_of<S>(out);
        const auto options = options_of(request);
        bytes = request.transform
                    ? ms::hadamard_quantize_workspace(ms::cuda{}, view, q, rounding, *request.transform, options)
                    : ms::quantize_workspace(ms::cuda{}, view, q, options);
      });
    });
    return bytes;
  }
  std::size_t workspace(const matrix_memory& in, const matrix_memory& out,
                        const quantize_request& request) const override {
    std::size_t bytes = S::has_tensor_scale && request.reference == nullptr ? sizeof(float) : 0;
    if (!request.transform) return bytes;
    with_rounding(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        if (!fits_transformed(view, view_of<bfloat16_t>(out), rounding, request)) {
          bytes += ms::detail::device::transformed_bytes(view);
        }
      });
    });
    return bytes;
  }

  void quantize(const place& at, const matrix_memory& in, const packed_memory& out,
                const quantize_request& request) const override {
    with_mode(Roundings{}, facts_.name, request, [&](auto rounding) {
      with_view(in, [&](auto view) {
        if (request.transform) {
          ms::hadamard_quantize_with(cuda::executor(at), view, view_of<S>(out), rounding, *request.transform,
                                     options_of(request), request.workspace);
        } else {
          ms::quantize_with(cuda::executor(at), view, view_of<S>(out), rounding, options_of(request),
                            request.workspace);
        }
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
                          const quantize_request& col_request, float* row_multiplier,
                          float* col_multiplier) const override {
    bool done = false;
    if (row_request.rounding == col_request.rounding) {
      with_mode(Roundings{}, facts_.name, row_request, [&]<class R>(R rounding) {
        with_view(in, [&](auto from) {
          done = run_both(at, from, view_of<bfloat16_t>(rows), view_of<bfloat16_t>(cols), rounding,
                          mode_of<R>::from(col_request), row_request, col_request, row_multiplier, col_multiplier);
        });
      });
    }
    if (done) return;
    scheme_operations::fake_quantize_both(at, in, rows, cols, row_request, col_request, row_multiplier, col_multiplier);
  }

 private:
  static ms::hadamard_options transform_of(const quantize_request& request) {
    return ms::detail::device::along(*request.transform, request.axis);
  }

  // Whether an operand is transformed and quantized by one kernel.
  template <class R, class T>
  static bool fits_transformed(ms::matrix_view<T> in, ms::matrix_view<bfloat16_t> out, R rounding,
                               const quantize_request& request) {
    namespace device = ms::detail::device;
    using Q = operand_of<S>;
    return device::fits_transformed<R>(
        device::describe_quantize<Q, R, T>(ms::cuda{}, in, rounding, options_of(request)),
        operand_sink<Q, bfloat16_t>{{device::as_stored(out, request.axis)}, nullptr}, *request.transform);
  }

  // Decodes as Q, which is S or operand_of<S>.
  template <class Q, class R, class T, class U>
  static void run(const place& at, ms::matrix_view<T> in, ms::matrix_view<U> out, R rounding,
                  const quantize_request& request, float* multiplier) {
    namespace device = ms::detail::device;
    if (in.empty()) return;
    const ms::cuda executor = cuda::executor(at);
    const auto options = options_of(request);
    const operand_sink<Q, U> sink{{device::as_stored(out, request.axis)}, multiplier};
    if (!request.transform) {
      const auto call = device::begin_quantize<Q, R, T>(executor, in, rounding, options, request.workspace);
      return device::launch_quantize<R>(executor, "fake quantization", call, sink);
    }
    const auto call = device::describe_quantize<Q, R, T>(executor, in, rounding, options);
    if (device::try_transformed<R>(executor, "transform and fake quantization", call, sink, transform_of(request),
                                   request.workspace)) {
      return;
    }
    const std::size_t bytes = device::transformed_bytes(in);
    const auto transformed = device::transformed_memory(in, request.workspace, bytes);
    ms::hadamard_into(executor, in, transformed, transform_of(request));
    quantize_request rest = request;
    rest.transform.reset();
    rest.workspace = request.workspace.subspan(bytes);
    run<Q>(at, transformed, out, rounding, rest, multiplier);
  }

  // Both axes from one read, where the library has a kernel for that; false where it has none.
  template <class R, class T>
  static bool run_both(const place& at, ms::matrix_view<T> in, ms::matrix_view<bfloat16_t> rows,
                       ms::matrix_view<bfloat16_t> cols, R row_rounding, R col_rounding,
                       const quantize_request& row_request, const quantize_request& col_request, float* row_multiplier,
                       float* col_multiplier) {
    namespace device = ms::detail::device;
    using operand = operand_of<S>;
    if constexpr (device::run_scheme<operand, R> && S::block::rows == 1) {
      if (in.empty() || row_request.transform) return false;
      const ms::cuda executor = cuda::executor(at);
      const auto row = device::describe_quantize<operand, R, T>(executor, in, row_rounding, options_of(row_request));
      const auto col = device::describe_quantize<operand, R, T>(executor, in, col_rounding, options_of(col_request));
      const operand_sink<operand, bfloat16_t> row_sink{{device::as_stored(rows, ms::axis::row)}, row_multiplier};
      const operand_sink<operand, bfloat16_t> col_sink{{device::as_stored(cols, ms::axis::col)}, col_multiplier};
      const char* const what = "fake quantization along both axes";
      return col_request.transform ? device::try_both_transformed<R>(executor, what, row_request.workspace, row, col,
                                                                     row_sink, col_sink, transform_of(col_request))
                                   : device::try_both<R, operand, T>(executor, what, in, row_request.workspace, row,
                                                                     col, row_sink, col_sink);
    } else {
      return false;
    }
  }

  scheme_facts facts_ = facts_of<S>();
};

template <ms::quantization_scheme A, ms::quantization_scheme B>
using cuda_gemm = products<cuda, A, B>;

}  // namespace microscale_torch
