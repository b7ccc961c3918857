// The library on the host, as the vector runner calls it. Another executor of the same members runs the same files on
// other hardware: see execute.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include <microscale/microscale.hpp>

namespace conformance {

namespace ms = microscale;

// One block as quantize_block takes it, with the draws of a stochastic rounding spelled out.
template <class S>
struct block_input {
  float x[S::block::elements] = {};
  std::uint32_t draws[S::block::elements] = {};
  ms::block_extent extent = {};
};

// Draws read from a list.
struct listed_draws {
  const std::uint32_t* draws;
  MICROSCALE_HD constexpr std::uint32_t operator()(int i) const noexcept { return draws[i]; }
};

// The same, and the draw of the block's scale.
struct listed_block_draws : listed_draws {
  std::uint32_t scale_draw;
  MICROSCALE_HD constexpr std::uint32_t scale() const noexcept { return scale_draw; }
};

struct host_executor {
  static constexpr bool quantizes_with_scale_draws = true;

  template <class F, class R, class T>
  static std::vector<typename F::storage> encode(const std::vector<T>& in, ms::overflow on_overflow,
                                                 const std::vector<std::uint32_t>& random) {
    std::vector<typename F::storage> codes;
    for (std::size_t i = 0; i < in.size(); ++i) codes.push_back(F::encode(in[i], R{}, on_overflow, random[i]));
    return codes;
  }

  template <class F>
  static std::vector<float> decode(const std::vector<typename F::storage>& codes) {
    std::vector<float> out;
    out.reserve(codes.size());
    for (const auto code : codes) out.push_back(F::decode(code));
    return out;
  }

  template <class S, class R>
  static std::vector<ms::quantized_block<S>> quantize_blocks(const std::vector<block_input<S>>& in,
                                                             const ms::tensor_factors& t) {
    std::vector<ms::quantized_block<S>> out;
    for (const auto& b : in) {
      if constexpr (R::random_bits > 0) {
        out.push_back(ms::quantize_block<S>(b.x, t, R{}, listed_draws{b.draws}, b.extent));
      } else {
        out.push_back(ms::quantize_block<S>(b.x, t, R{}, ms::no_draws{}, b.extent));
      }
    }
    return out;
  }

  template <class S, class R>
  static std::vector<ms::quantized_block<S>> quantize_drawn_blocks(const std::vector<block_input<S>>& in,
                                                                   const std::vector<std::uint32_t>& scale_draws,
                                                                   const ms::tensor_factors& t) {
    std::vector<ms::quantized_block<S>> out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const listed_block_draws draws{{in[i].draws}, scale_draws[i]};
      out.push_back(ms::quantize_block<S>(in[i].x, t, ms::with_scale_draws<R>{}, draws, in[i].extent));
    }
    return out;
  }

  template <class S>
  static ms::quantized<S> quantize(ms::matrix_view<const float> in, const ms::quantize_options& options) {
    return ms::quantize<S>(in, options);
  }

  template <class S>
  static std::vector<float> fake_quantize(ms::matrix_view<const float> in, const ms::quantize_options& options) {
    return ms::fake_quantize<S>(in, options);
  }

  template <class S>
  static std::vector<float> dequantize(const ms::quantized<S>& q, ms::axis axis) {
    return ms::dequantize(q, axis);
  }

  template <class P, class A, class B>
  static std::vector<float> gemm(const ms::quantized<A>& a, const ms::quantized<B>& b, float alpha) {
    return ms::gemm<P>(a, b, {.alpha = alpha});
  }

  static std::vector<float> hadamard(const std::vector<float>& in, const ms::hadamard_options& options) {
    std::vector<float> out(in.size());
    const auto count = static_cast<ms::index_t>(in.size());
    ms::hadamard_into(ms::sequential{}, ms::matrix(in, 1, count), ms::matrix(out, 1, count), options);
    return out;
  }
};

}  // namespace conformance
