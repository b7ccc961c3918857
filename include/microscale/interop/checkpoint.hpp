// Quantized weights as checkpoints store them: which tensors make up a matrix, and which way its tensor scale goes.
//
// Two conventions share the bytes of NVFP4 (codes two a byte, the first in the low nibble; E4M3 scales of 1 x 16
// blocks in rows) and differ in names and in the direction of the FP32 scalar. Taking one for the other scales every
// weight by the square of that scalar, and nothing else looks wrong.
//
//   ModelOpt            NAME.weight         NAME.weight_scale   NAME.weight_scale_2      a multiplier, amax / 2688
//   compressed-tensors  NAME.weight_packed  NAME.weight_scale   NAME.weight_global_scale a divisor, 2688 / amax
//
// OCP MX has no such scalar: NAME.weight with elements of 4, 6 or 8 bits (or NAME.weight_packed, compressed-tensors'
// mxfp4-pack-quantized) and NAME.weight_scale, E8M0 bytes of 1 x 32 blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../block/schemes.hpp"
#include "../tensor/quantized.hpp"
#include "stored_tensor.hpp"

namespace microscale::interop {

// Who stores a matrix in which way: see the head of this file.
enum class convention : std::uint8_t { modelopt, compressed_tensors, ocp_mx };

// As programs and messages call it.
constexpr std::string_view name_of(convention c) noexcept {
  constexpr std::string_view names[] = {"modelopt", "compressed-tensors", "ocp-mx"};
  return names[static_cast<std::size_t>(c)];
}

// E2M1 under UE4M3 scales, sixteen to a scale: what both NVFP4 conventions can hold. Square blocks are stored as rows,
// each scale sixteen times.
template <class S>
concept nvfp4_like = quantization_scheme<S> && std::is_same_v<typename S::element, e2m1> &&
                     std::is_same_v<typename S::scale, ue4m3> && S::block::columns == 16;

// Elements under E8M0 scales, 32 to a scale, without a tensor scale.
template <class S>
concept mx_like = quantization_scheme<S> && std::is_same_v<typename S::scale, e8m0> && S::block::columns == 32 &&
                  !S::has_tensor_scale;

// The scalar of each convention for a tensor of scheme S that stores `datum`. Exact where the scheme stores that very
// number (nvfp4_modelopt a multiplier, nvfp4_compressed_tensors a divisor); otherwise it is the scheme's own decode or
// encode multiplier, or the reciprocal of the number that is stored, rounded once. 1 without a tensor scale.
template <nvfp4_like S>
float modelopt_multiplier(float datum) {
  float result = 1.0f;
  microscale::detail::in_default_environment([&] { result = S::decode_multiplier(datum); });
  return S::has_tensor_scale ? result : 1.0f;
}
template <nvfp4_like S>
float compressed_tensors_divisor(float datum) {
  if (!S::has_tensor_scale) return 1.0f;
  float result = 1.0f;
  microscale::detail::in_default_environment([&] {
    result = S::tensor_scale::stored == tensor_datum::decode ? fp32::div(1.0f, datum) : S::from_stored(datum).encode;
  });
  return result;
}

// Refuses a scalar that is not a positive finite number, and one that cannot be what the convention says: read the
// right way, it stands for a tensor amax of 2688 times the multiplier. Weights never reach 2688, so a multiplier above
// 1, or a divisor below 1, means the file goes the other way. (A scalar near 1 says nothing, and passes.) Activations
// may be that large: check nothing with `any_amax`.
enum class amax_check : std::uint8_t { of_weights, any_amax };
inline void check_direction(convention c, float scalar, amax_check check = amax_check::of_weights) {
  const std::string name(name_of(c));
  if (!fp32::is_finite(scalar) || !fp32::less(0.0f, scalar)) {
    microscale::detail::fail("tensor scale", "a positive finite number", std::to_string(scalar));
  }
  if (check == amax_check::any_amax) return;
  if (c == convention::modelopt && fp32::less(1.0f, scalar)) {
    microscale::detail::fail("weight_scale_2", "a multiplier, at most 1 for weights",
                             std::to_string(scalar) + ", which looks like compressed-tensors' divisor");
  }
  if (c == convention::compressed_tensors && fp32::less(scalar, 1.0f)) {
    microscale::detail::fail("weight_global_scale", "a divisor, at least 1 for weights",
                             std::to_string(scalar) + ", which looks like ModelOpt's multiplier");
  }
}

// A matrix in the bytes of a checkpoint; it owns them.
struct checkpoint_bytes {
  std::vector<std::uint8_t> codes;   // rows x packed columns
  std::vector<std::uint8_t> scales;  // rows x ceil(columns / block)
  float scalar = 1.0f;               // multiplier or divisor, as the convention says; 1 for OCP MX
};

// A quantized matrix in the bytes of a convention. Throws ms::error for a NaN scale (loaders have no rule for one),
// more than one tensor scale, and a convention that the scheme does not fit.
template <class S>
checkpoint_bytes to_checkpoint(convention c, quantized_view<const S> q) {
  static_assert(nvfp4_like<S> || mx_like<S>, "a scheme that some checkpoint convention has");
  microscale::detail::check_quantized("quantized matrix", q);
  if (mx_like<S> != (c == convention::ocp_mx)) {
    microscale::detail::fail("convention", mx_like<S> ? "ocp-mx" : "modelopt or compressed-tensors",
                             std::string(name_of(c)));
  }
  if (q.tile != tensor_tile{}) microscale::detail::fail("tensor scale", "one for the whole matrix", "several");
  checkpoint_bytes out;
  const index_t bytes = packed_bytes(S::element::bits, q.cols);
  for (index_t r = 0; r < q.rows; ++r) {
    out.codes.insert(out.codes.end(), q.codes + r * q.code_pitch, q.codes + r * q.code_pitch + bytes);
    for (index_t b = 0; b < q.block_cols(); ++b) {
      const std::uint8_t scale = q.scale(r, b * S::block::columns);
      if (S::scale::is_nan(scale)) microscale::detail::fail("block scale", "a number", "NaN");
      out.scales.push_back(scale);
    }
  }
  if constexpr (nvfp4_like<S>) {
    const float datum = S::has_tensor_scale ? *q.datum : 1.0f;
    out.scalar = c == convention::modelopt ? modelopt_multiplier<S>(datum) : compressed_tensors_divisor<S>(datum);
  }
  return out;
}

// A quantized matrix in the tensors of a file, found by their names.
struct checkpoint_matrix {
  std::string name;  // without the suffixes
  convention stored_as = convention::modelopt;
  stored_type element = stored_type::e2m1;
  index_t rows = 0, cols = 0;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  float scalar = 1.0f;

  // As the scheme whose datum the file holds: nvfp4_modelopt, nvfp4_compressed_tensors, or an MX scheme with these
  // elements. The view reads this object and the file. Throws ms::error for another scheme.
  template <class S>
  quantized_view<const S> view() const {
    const bool fits = (stored_as == convention::modelopt && std::is_same_v<S, nvfp4_modelopt>) ||
                      (stored_as == convention::compressed_tensors && std::is_same_v<S, nvfp4_compressed_tensors>) ||
                      (stored_as == convention::ocp_mx && mx_like<S> && is_element<typename S::element>());
    if (!fits) {
      microscale::detail::fail("scheme of a checkpoint matrix",
                               "the one of its convention, " + std::string(name_of(stored_as)), "another");
    }
    const index_t pitch = packed_bytes(S::element::bits, cols);
    return {codes, scales, &scalar, rows, cols, pitch, ceil_div(cols, index_t{S::block::columns})};
  }

 private:
  template <class Element>
  bool is_element() const noexcept {
    return (element == stored_type::e2m1 && std::is_same_v<Element, e2m1>) ||
           (element == stored_type::e2m3 && std::is_same_v<Element, e2m3>) ||
           (element == stored_type::e3m2 && std::is_same_v<Element, e3m2>) ||
           (element == stored_type::e4m3 && std::is_same_v<Element, e4m3>) ||
           (element == stored_type::e5m2 && std::is_same_v<Element, e5m2>);
  }
};

namespace detail {

inline bool remove_suffix(std::string& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.resize(name.size() - suffix.size());
  return true;
}

// Codes of 4 bits are stored as bytes that hold two, or as elements of F4.
inline bool holds_codes(stored_type type) {
  using enum stored_type;
  return type == u8 || type == i8 || type == e2m1 || type == e2m3 || type == e3m2 || type == e4m3 || type == e5m2;
}

inline void check_scale_grid(const checkpoint_matrix& m, const stored_tensor& scales, index_t block) {
  const index_t columns = ceil_div(m.cols, block);
  if (scales.rows() != m.rows || scales.cols() != columns ||
      scales.bytes.size() != static_cast<std::size_t>(m.rows * columns)) {
    refuse("tensor " + shown(scales.name), "expected " + microscale::detail::shape_text(m.rows, columns) +
                                               " scales of one byte, got " + text_of(scales.shape));
  }
}

}  // namespace detail

// The quantized matrix whose codes are `codes`, one of `tensors`; none where no scales belong to it, or
// it is empty. Throws ms::error where names, shapes and types do not fit together, a scale is negative, or the scalar's
// direction is not its convention's (check_direction).
inline std::optional<checkpoint_matrix> find_checkpoint_matrix(const tensor_index& tensors, const stored_tensor& codes,
                                                               amax_check check = amax_check::of_weights) {
  checkpoint_matrix m;
  m.name = codes.name;
  const bool packed = detail::remove_suffix(m.name, ".weight_packed");
  if ((!packed && !detail::remove_suffix(m.name, ".weight")) || !detail::holds_codes(codes.type)) return std::nullopt;
  const stored_tensor* scales = tensors.find(m.name + ".weight_scale");
  const stored_tensor* multiplier = tensors.find(m.name + ".weight_scale_2");
  const stored_tensor* divisor = tensors.find(m.name + ".weight_global_scale");
  const bool fp8_per_tensor = scales != nullptr && scales->elements() <= 1;  // 8-bit weights under one scale
  if (scales == nullptr || codes.shape.size() < 2 || codes.elements() == 0 || fp8_per_tensor) return std::nullopt;
  const std::string what = "matrix " + detail::shown(m.name);
  if (multiplier != nullptr && divisor != nullptr) {
    detail::refuse(what, "has both weight_scale_2 and weight_global_scale, a multiplier and a divisor");
  }
  if (multiplier != nullptr && packed)
    detail::refuse(what, "weight_packed (compressed-tensors) with weight_scale_2 (ModelOpt)");
  if (divisor != nullptr && !packed)
    detail::refuse(what, "weight_global_scale (compressed-tensors) without weight_packed");

  const bool bytes_of_two = codes.type == stored_type::u8 || codes.type == stored_type::i8;
  m.element = bytes_of_two ? stored_type::e2m1 : codes.type;
  m.rows = codes.rows();
  m.cols = codes.cols() * (bytes_of_two ? 2 : 1);
  if (!bytes_of_two && m.cols % layout_of(codes.type).elements != 0)
    detail::refuse(what, "a row that does not end on a byte");
  m.codes = codes.bytes.data();
  m.scales = scales->bytes.data();
  const stored_tensor* scalar = multiplier != nullptr ? multiplier : divisor;
  m.stored_as = multiplier != nullptr ? convention::modelopt
                : divisor != nullptr  ? convention::compressed_tensors
                                      : convention::ocp_mx;
  if (scalar == nullptr) {
    const bool scale_type = scales->type == stored_type::e8m0 || scales->type == stored_type::u8;
    if (!scale_type) return std::nullopt;
    detail::check_scale_grid(m, *scales, 32);
    return m;
  }
  if (m.element != stored_type::e2m1) detail::refuse(what, "elements that are not E2M1");
  const bool scale_type = scales->type == stored_type::e4m3 || scales->type == stored_type::u8;
  if (!scale_type) detail::refuse(what, "scales of type " + std::string(name_of(scales->type)) + " instead of E4M3");
  detail::check_scale_grid(m, *scales, 16);
  if (scalar->type != stored_type::f32 || scalar->elements() != 1) {
    detail::refuse("tensor " + detail::shown(scalar->name),
                   "expected one F32, got " + std::string(name_of(scalar->type)) + " " + text_of(scalar->shape));
  }
  if (std::ranges::any_of(scales->bytes, [](std::uint8_t s) { return s >= 0x80; })) {
    detail::refuse("tensor " + detail::shown(scales->name), "a negative scale");
  }
  load_floats(*scalar, 0, 1, &m.scalar);
  try {
    check_direction(m.stored_as, m.scalar, check);
  } catch (const error& e) {
    detail::refuse(what, e);
  }
  return m;
}

// The tensors that a matrix becomes in a file: shapes and names only, for the header of a safetensors file. Their bytes
// are checkpoint_bytes::codes, ::scales and, but for OCP MX, ::scalar, in this order.
template <class S>
std::vector<stored_tensor> checkpoint_tensors(convention c, const std::string& name, index_t rows, index_t cols) {
  constexpr bool nibbles = S::element::bits == 4;
  const bool packed = c == convention::compressed_tensors || (c == convention::ocp_mx && nibbles);
  stored_type element = stored_type::u8;
  if (std::is_same_v<typename S::element, e4m3>) element = stored_type::e4m3;
  if (std::is_same_v<typename S::element, e5m2>) element = stored_type::e5m2;
  if (std::is_same_v<typename S::element, e2m3>) element = stored_type::e2m3;
  if (std::is_same_v<typename S::element, e3m2>) element = stored_type::e3m2;
  if (cols % S::block::columns != 0) {
    microscale::detail::fail("columns of a checkpoint matrix", "a multiple of " + std::to_string(S::block::columns),
                             std::to_string(cols));
  }
  std::vector<stored_tensor> tensors = {
      {name + (packed ? ".weight_packed" : ".weight"), element, {rows, nibbles ? cols / 2 : cols}, {}},
      {name + ".weight_scale",
       mx_like<S> ? (nibbles ? stored_type::u8 : stored_type::e8m0) : stored_type::e4m3,
       {rows, cols / S::block::columns},
       {}}};
  if (c == convention::modelopt) tensors.push_back({name + ".weight_scale_2", stored_type::f32, {}, {}});
  if (c == convention::compressed_tensors)
    tensors.push_back({name + ".weight_global_scale", stored_type::f32, {1}, {}});
  return tensors;
}

}  // namespace microscale::interop
