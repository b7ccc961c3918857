// The library on a GPU, as the vector runner (tests/conformance) calls it: the same members as host_executor.
#pragma once

#include <microscale/microscale.cuh>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../conformance/execute.hpp"
#include "../../conformance/host_executor.hpp"

namespace conformance {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// A vector in device memory.
template <class T>
class on_device {
 public:
  explicit on_device(std::size_t n) : n_(n) { check(cudaMalloc(&data_, n * sizeof(T) + 1)); }
  explicit on_device(const std::vector<T>& from) : on_device(from.size()) {
    check(cudaMemcpy(data_, from.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  on_device(const T* from, std::size_t n) : on_device(std::vector<T>(from, from + n)) {}
  ~on_device() { cudaFree(data_); }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;
  T* data() const { return data_; }
  void to_host(T* to) const { check(cudaMemcpy(to, data_, n_ * sizeof(T), cudaMemcpyDeviceToHost)); }
  std::vector<T> host() const {
    std::vector<T> v(n_);
    to_host(v.data());
    return v;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_;
};

// A quantized matrix in device memory, of the shape and with the contents of one on the host.
template <class S>
struct quantized_on_device {
  on_device<std::uint8_t> codes;
  on_device<typename S::scale::storage> scales;
  on_device<float> datum;
  ms::quantized_view<S> view;

  explicit quantized_on_device(const ms::quantized<S>& q)
      : codes(q.codes()), scales(q.scales()), datum(std::vector<float>{q.datum()}) {
    const auto host = q.view();
    view = {codes.data(), scales.data(),   datum.data(),     host.rows,
            host.cols,    host.code_pitch, host.scale_pitch, host.layout};
  }
  void to_host(ms::quantized<S>& q) const {
    const auto host = q.view();
    codes.to_host(host.codes);
    scales.to_host(host.scales);
    datum.to_host(host.datum);
  }
};

template <class F, class R, class T>
__global__ void encode_kernel(const T* in, const std::uint32_t* random, int n, ms::overflow on_overflow,
                              typename F::storage* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = F::encode(in[i], R{}, on_overflow, random[i]);
}
template <class F>
__global__ void decode_kernel(const typename F::storage* in, int n, float* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = F::decode(in[i]);
}
// quantize_block as somebody's own kernel calls it.
template <class S, class R>
__global__ void quantize_blocks_kernel(const block_input<S>* in, int n, ms::tensor_factors t,
                                       ms::quantized_block<S>* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  if constexpr (R::random_bits > 0) {
    out[i] = ms::quantize_block<S>(in[i].x, t, R{}, listed_draws{in[i].draws}, in[i].extent);
  } else {
    out[i] = ms::quantize_block<S>(in[i].x, t, R{}, ms::no_draws{}, in[i].extent);
  }
}

// The pairs of operands that vector files multiply; more would take minutes to compile.
template <class A, class B>
struct pair {};
template <class S>
using kind = operand_of<S>;
template <class Pair, class... Pairs>
inline constexpr bool is_one_of = (std::is_same_v<Pair, Pairs> || ...);
template <class A, class B>
inline constexpr bool is_compiled =
    std::is_same_v<A, B> ||
    is_one_of<pair<A, B>, pair<kind<ms::nvfp4>, kind<ms::mxfp4>>, pair<kind<ms::ue5m3_fp4_2d>, kind<ms::mxfp6_e2m3>>,
              pair<kind<ms::mxfp6_e2m3>, kind<ms::ue5m3_fp4_2d>>, pair<kind<ms::ue5m3_fp4>, kind<ms::ue5m3_fp4_b32_2d>>,
              pair<kind<ms::ue5m3_fp4_b32_2d>, kind<ms::ue5m3_fp4>>, pair<kind<ms::ue5m3_fp4_b32>, kind<ms::ufp4>>,
              pair<kind<ms::ue5m3_fp4_b32>, kind<ms::ue5m3_fp4_b32_2d>>, pair<kind<ms::ufp4>, kind<ms::ue5m3_fp4_b32>>,
              pair<kind<ms::ue5m3_fp4_b32_2d>, kind<ms::nvfp4>>, pair<kind<ms::nvfp4>, kind<ms::ue5m3_fp4_b32_2d>>,
              pair<kind<ms::nvfp4>, kind<ms::mxfp6_e3m2>>, pair<kind<ms::mxfp6_e3m2>, kind<ms::nvfp4>>,
              pair<kind<ms::nvfp4_2d>, kind<ms::ue5m3_fp4>>, pair<kind<ms::ue5m3_fp4>, kind<ms::nvfp4_2d>>,
              pair<kind<ms::ue5m3_single>, kind<ms::nvfp4_2d>>, pair<kind<ms::nvfp4_2d>, kind<ms::ue5m3_single>>,
              pair<kind<ms::mxfp4>, kind<ms::mxfp8_e4m3>>, pair<kind<ms::mxfp8_e4m3>, kind<ms::mxfp4>>,
              pair<kind<ms::mxfp6_e3m2>, kind<ms::ue5m3_single>>, pair<kind<ms::ue5m3_single>, kind<ms::mxfp6_e3m2>>,
              pair<kind<ms::mxfp8_e4m3>, kind<ms::mxfp8_e5m2>>, pair<kind<ms::mxfp8_e5m2>, kind<ms::mxfp8_e4m3>>,
              pair<kind<ms::mxfp8_e5m2>, kind<ms::ue5m3_fp4_b32>>, pair<kind<ms::ue5m3_fp4_b32>, kind<ms::mxfp8_e5m2>>,
              pair<kind<ms::mxint8>, kind<ms::mxfp4>>, pair<kind<ms::mxfp4>, kind<ms::mxint8>>,
              pair<kind<ms::ufp4>, kind<ms::mxint8>>, pair<kind<ms::mxint8>, kind<ms::ufp4>>,
              pair<kind<ms::nvfp4>, kind<ms::mxfp8_e4m3>>, pair<kind<ms::nvfp4>, kind<ms::ue5m3_fp4_2d>>,
              pair<kind<ms::nvfp4>, kind<ms::ue5m3_single>>, pair<kind<ms::nvfp4>, kind<ms::nvfp4_2d>>,
              pair<kind<ms::nvfp4>, kind<ms::mxfp6_e2m3>>, pair<kind<ms::ue5m3_fp4>, kind<ms::ue5m3_fp4_2d>>,
              pair<kind<ms::mxfp4>, kind<ms::ue5m3_fp4_b32_2d>>, pair<kind<ms::mxfp8_e4m3>, kind<ms::mxfp6_e2m3>>,
              pair<kind<ms::mxfp8_e5m2>, kind<ms::nvfp4_2d>>>;

struct device_executor {
  static unsigned grid(std::size_t n) { return static_cast<unsigned>(n / 64 + 1); }

  template <class F, class R, class T>
  static std::vector<typename F::storage> encode(const std::vector<T>& in, ms::overflow on_overflow,
                                                 const std::vector<std::uint32_t>& random) {
    const on_device<T> from(in);
    const on_device<std::uint32_t> draws(random);
    const on_device<typename F::storage> out(in.size());
    encode_kernel<F, R>
        <<<grid(in.size()), 64>>>(from.data(), draws.data(), static_cast<int>(in.size()), on_overflow, out.data());
    check(cudaGetLastError());
    return out.host();
  }

  template <class F>
  static std::vector<float> decode(const std::vector<typename F::storage>& codes) {
    const on_device<typename F::storage> from(codes);
    const on_device<float> out(codes.size());
    decode_kernel<F><<<grid(codes.size()), 64>>>(from.data(), static_cast<int>(codes.size()), out.data());
    check(cudaGetLastError());
    return out.host();
  }

  template <class S, class R>
  static std::vector<ms::quantized_block<S>> quantize_blocks(const std::vector<block_input<S>>& in,
                                                             const ms::tensor_factors& t) {
    const on_device<block_input<S>> from(in);
    const on_device<ms::quantized_block<S>> out(in.size());
    quantize_blocks_kernel<S, R><<<grid(in.size()), 64>>>(from.data(), static_cast<int>(in.size()), t, out.data());
    check(cudaGetLastError());
    return out.host();
  }

  template <class S>
  static ms::quantized<S> quantize(ms::matrix_view<const float> in, const ms::quantize_options& options) {
    const bool by_row = options.axis == ms::axis::row;
    ms::quantized<S> q(by_row ? in.rows : in.cols, by_row ? in.cols : in.rows);
    const quantized_on_device<S> out(q);
    with_device_input(in, options, [&](auto view, const ms::quantize_options& o, std::span<std::byte> workspace) {
      with_mode(options.rounding,
                [&](auto rounding) { ms::quantize_with(ms::cuda{}, view, out.view, rounding, o, workspace); });
    });
    out.to_host(q);
    return q;
  }

  template <class S>
  static std::vector<float> fake_quantize(ms::matrix_view<const float> in, const ms::quantize_options& options) {
    const on_device<float> out(static_cast<std::size_t>(in.rows * in.cols));
    with_device_input(in, options, [&](auto view, const ms::quantize_options& o, std::span<std::byte> workspace) {
      with_mode(options.rounding, [&](auto rounding) {
        using R = decltype(rounding);
        namespace device = ms::detail::device;
        const auto call = device::begin_quantize<S, R, float>(ms::cuda{}, view, rounding, o, workspace);
        const device::decoded_sink<S, float> sink{device::as_stored(ms::matrix(out.data(), in.rows, in.cols), o.axis)};
        device::launch_quantize<R>(ms::cuda{}, "fake quantization", call, sink);
      });
    });
    return out.host();
  }

  template <class S>
  static std::vector<float> dequantize(const ms::quantized<S>& q, ms::axis axis) {
    const quantized_on_device<S> from(q);
    const on_device<float> out(static_cast<std::size_t>(q.rows() * q.cols()));
    const bool by_row = axis == ms::axis::row;
    ms::dequantize_into(ms::cuda{}, from.view,
                        ms::matrix(out.data(), by_row ? q.rows() : q.cols(), by_row ? q.cols() : q.rows()), axis);
    return out.host();
  }

  template <class P, class A, class B>
  static std::vector<float> gemm(const ms::quantized<A>& a, const ms::quantized<B>& b, float alpha) {
    if constexpr (is_compiled<A, B>) {
      const quantized_on_device<A> left(a);
      const quantized_on_device<B> right(b);
      const on_device<float> out(static_cast<std::size_t>(a.rows() * b.rows()));
      ms::gemm_into<P>(ms::cuda{}, left.view, right.view, ms::matrix(out.data(), a.rows(), b.rows()), {.alpha = alpha});
      return out.host();
    } else {
      throw std::runtime_error("this pair of operands is not compiled for the device: see device_executor.cuh");
    }
  }

  static std::vector<float> hadamard(const std::vector<float>& in, const ms::hadamard_options& options) {
    const on_device<float> from(in), out(in.size());
    const auto count = static_cast<ms::index_t>(in.size());
    ms::hadamard_into(ms::cuda{}, ms::matrix(static_cast<const float*>(from.data()), 1, count),
                      ms::matrix(out.data(), 1, count), options);
    return out.host();
  }

 private:
  // The runner asks for whole tensors only under roundings that draw nothing: the others need not be compiled.
  template <class F>
  static void with_mode(const ms::any_rounding& rounding, F&& f) {
    std::visit(
        [&]<class R>(R mode) {
          if constexpr (R::random_bits == 0) {
            f(mode);
          } else {
            throw std::runtime_error("whole tensors under a stochastic rounding have no listed draws");
          }
        },
        rounding);
  }
  template <class F>
  static void with_device_input(ms::matrix_view<const float> in, const ms::quantize_options& options, F&& f) {
    const on_device<float> data(in.data, static_cast<std::size_t>(in.rows * in.cols));
    const on_device<float> reference(options.reference != nullptr ? std::vector<float>{*options.reference}
                                                                  : std::vector<float>{});
    const on_device<std::byte> workspace(sizeof(float));
    ms::quantize_options o = options;
    if (options.reference != nullptr) o.reference = reference.data();
    f(ms::matrix(static_cast<const float*>(data.data()), in.rows, in.cols), o,
      std::span<std::byte>(workspace.data(), sizeof(float)));
    check(cudaDeviceSynchronize());
  }
};

}  // namespace conformance
