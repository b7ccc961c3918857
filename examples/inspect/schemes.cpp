#include "schemes.hpp"

#include <microscale/conformance/named_schemes.hpp>
#include <microscale/host/executor.hpp>
#include <microscale/interop/ggml_blocks.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inspect {

namespace {

using namespace ms::interop;

constexpr convention convention_of(target to) {
  return to == target::modelopt             ? convention::modelopt
         : to == target::compressed_tensors ? convention::compressed_tensors
                                            : convention::ocp_mx;
}

int bin_of(float scale) {
  if (std::isnan(scale)) return scale_bins - 1;
  if (scale == 0.0f) return 0;
  return std::clamp(std::ilogb(scale) + 150, 1, scale_bins - 2);
}

template <class S>
struct of {
  using storage = typename S::scale::storage;

  static std::uint64_t bytes(index_t rows, index_t cols) {
    const auto size = ms::size_of<S>(rows, cols);
    return static_cast<std::uint64_t>(size.code_bytes) + static_cast<std::uint64_t>(size.scales) * sizeof(storage) +
           (S::has_tensor_scale ? sizeof(float) : 0);
  }

  static ms::quantization_metrics measure(ms::matrix_view<const float> x, float reference, scratch& memory,
                                          scale_histogram* bins) {
    const auto size = ms::size_of<S>(x.rows, x.cols);
    memory.codes.resize(std::max(memory.codes.size(), static_cast<std::size_t>(size.code_bytes)));
    memory.scales.resize(std::max(memory.scales.size(), static_cast<std::size_t>(size.scales) * sizeof(storage)));
    float datum = 1.0f;
    auto* const scales = reinterpret_cast<storage*>(memory.scales.data());
    const auto q = ms::quantized_view_of<S>(memory.codes.data(), scales, &datum, x.rows, x.cols);
    ms::quantize_options options;
    options.reference = &reference;
    ms::quantize_with(ms::host{.threads = 1}, x, q, ms::nearest_even{}, options);
    if (bins != nullptr) {
      for (index_t i = 0; i < size.scales; ++i)
        ++(*bins)[static_cast<std::size_t>(bin_of(S::scale::decode(q.scales[i])))];
    }
    return ms::measure(ms::host{.threads = 1}, x, q);
  }

  static bool fits(target to) {
    if constexpr (nvfp4_like<S>) return to != target::ocp_mx;
    // MXINT8 has no type in these files.
    if constexpr (mx_like<S>) {
      const bool is_float =
          !std::is_same_v<typename S::element, ms::int8> && !std::is_same_v<typename S::element, ms::int8_full>;
      return is_float && (to == target::ocp_mx || (to == target::gguf && S::element::bits == 4));
    }
    return false;
  }

  static float scalar(target to, float amax) {
    if constexpr (nvfp4_like<S>) {
      const float datum = S::stored(S::factors(amax));
      return to == target::compressed_tensors ? compressed_tensors_divisor<S>(datum) : modelopt_multiplier<S>(datum);
    }
    return 1.0f;
  }

  static std::vector<stored_tensor> tensors(target to, const std::string& name, index_t rows, index_t cols) {
    if constexpr (nvfp4_like<S> || mx_like<S>) {
      if (to != target::gguf) return checkpoint_tensors<S>(convention_of(to), name, rows, cols);
    }
    if constexpr (ggml_like<S>) {
      std::vector<stored_tensor> out = {{name + ".weight", ggml_type_of<S>, {rows, cols}, {}}};
      if (S::has_tensor_scale) out.push_back({name + ".scale", stored_type::f32, {1}, {}});
      return out;
    }
    return {};
  }

  static checkpoint_bytes encode(target to, ms::matrix_view<const float> x, float reference) {
    checkpoint_bytes out;
    if constexpr (nvfp4_like<S> || mx_like<S>) {
      ms::quantize_options options;
      options.reference = &reference;
      ms::quantized<S> q(x.rows, x.cols);
      ms::quantize_with(ms::host{.threads = 1}, x, q.view(), ms::nearest_even{}, options);
      if constexpr (ggml_like<S>) {
        if (to == target::gguf) {
          out.codes.resize(static_cast<std::size_t>(ggml_bytes<S>(x.rows, x.cols)));
          to_ggml_blocks<S>(std::as_const(q).view(), out.codes.data());
          return out;
        }
      }
      out = to_checkpoint<S>(convention_of(to), std::as_const(q).view());
    }
    return out;
  }
};

std::vector<scheme> make_schemes() {
  std::vector<scheme> all;
  ms::conformance::visit_named_schemes([&]<class S>(const char* name) {
    all.push_back({name, S::has_tensor_scale, S::block::rows, S::block::columns, of<S>::bytes, of<S>::measure,
                   of<S>::scalar, of<S>::tensors, of<S>::encode, of<S>::fits});
  });
  return all;
}

}  // namespace

std::span<const scheme> schemes() {
  static const std::vector<scheme> all = make_schemes();
  return all;
}

const scheme* find_scheme(std::string_view name) {
  const auto all = schemes();
  const auto at = std::ranges::find(all, name, &scheme::name);
  return at == all.end() ? nullptr : &*at;
}

}  // namespace inspect
