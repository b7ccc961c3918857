// What a file says of a tensor: its name, shape and element type, and where its bytes lie.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../number/formats.hpp"
#include "../tensor/error.hpp"
#include "../tensor/packing.hpp"
#include "../tensor/view.hpp"

namespace microscale::interop {

static_assert(std::endian::native == std::endian::little,
              "the files of this layer are little-endian, and so is the host");

// Element types of safetensors, .npy and GGUF files. The last are blocks of ggml with scales of their own; `other` is
// one of those that this library does not decode, of which a file only tells the size.
enum class stored_type : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  c64,
  f64,
  f32,
  f16,
  bf16,
  e5m2,
  e4m3,
  e8m0,
  e5m2_fnuz,
  e4m3_fnuz,
  e2m3,
  e3m2,
  e2m1,
  ggml_mxfp4,
  ggml_nvfp4,
  other,
};

// `bytes` bytes hold `elements` elements.
struct stored_layout {
  int elements = 1;
  int bytes = 1;
};

// How elements of a type lie in bytes.
constexpr stored_layout layout_of(stored_type type) noexcept {
  using enum stored_type;
  switch (type) {
    case u16:
    case i16:
    case f16:
    case bf16:
      return {1, 2};
    case u32:
    case i32:
    case f32:
      return {1, 4};
    case u64:
    case i64:
    case f64:
    case c64:
      return {1, 8};
    case e2m3:
    case e3m2:
      return {4, 3};
    case e2m1:
      return {2, 1};
    case ggml_mxfp4:
      return {32, 17};
    case ggml_nvfp4:
      return {64, 36};
    default:
      return {1, 1};
  }
}

// The type's name as safetensors writes it; ggml's own for its blocks.
constexpr std::string_view name_of(stored_type type) noexcept {
  constexpr std::array<std::string_view, 25> names = {
      "BOOL",        "U8",      "I8",      "U16", "I16",   "U32",     "I32",     "U64",     "I64",
      "C64",         "F64",     "F32",     "F16", "BF16",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ",
      "F8_E4M3FNUZ", "F6_E2M3", "F6_E3M2", "F4",  "MXFP4", "NVFP4",   "other"};
  return names[static_cast<std::size_t>(type)];
}

// A tensor of a file. `bytes` points into the memory the file was read from, at any alignment.
struct stored_tensor {
  std::string name;
  stored_type type = stored_type::u8;
  std::vector<std::int64_t> shape;  // slowest dimension first, as numpy and safetensors have it
  std::span<const std::uint8_t> bytes;

  // Never overflows: readers refuse a shape whose product does.
  std::int64_t elements() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
  // As a matrix: the last dimension along a row, all others are rows. A scalar is 1 x 1.
  std::int64_t cols() const noexcept { return shape.empty() ? 1 : shape.back(); }
  std::int64_t rows() const noexcept {
    std::int64_t n = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

// "[2, 3]"
inline std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// Text from a file as it may be shown to people: what a terminal would act on becomes '?', the control characters of
// ASCII and those from U+0080 to U+009F, which UTF-8 writes in two bytes.
inline std::string printable(std::string_view text) {
  std::string out;
  for (; !text.empty(); text.remove_prefix(1)) {
    const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const bool of_two = byte(0) == 0xC2 && byte(1) >= 0x80 && byte(1) < 0xA0;
    out += of_two || byte(0) < 0x20 || byte(0) == 0x7F ? '?' : text[0];
    if (of_two) text.remove_prefix(1);
  }
  return out;
}

namespace detail {

// Every refusal of a file: what is wrong with which part of it.
[[noreturn]] inline void refuse(const std::string& what, const std::string& why) {
  throw error("microscale: " + what + ": " + why);
}
// The same of what a function found that does not know what it was given.
[[noreturn]] inline void refuse(const std::string& what, const error& found) {
  refuse(what, std::string(found.what()).substr(std::string_view("microscale: ").size()));
}

// Text from a file, quoted and shortened, as messages show it.
inline std::string shown(std::string_view text) {
  return "'" + printable(text.substr(0, 100)) + (text.size() > 100 ? "...'" : "'");
}

// How many bytes a tensor takes; none where that is not a whole number of blocks or does not fit 63 bits. Some
// dimensions may be zero, but the others may not overflow even so: readers multiply parts of a shape.
inline std::optional<std::uint64_t> stored_bytes(stored_layout layout, const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)() / 64;
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && product > most / extent)) return std::nullopt;
    empty = empty || extent == 0;
    if (extent > 0) product *= extent;
  }
  if (empty) return 0;
  if (product % layout.elements != 0) return std::nullopt;
  return static_cast<std::uint64_t>(product / layout.elements) * static_cast<std::uint64_t>(layout.bytes);
}

[[noreturn]] inline void refuse_no_floats(const stored_tensor& t) {
  refuse("tensor " + shown(t.name), "elements of type " + std::string(name_of(t.type)) + " are no floats");
}

template <class T>
T load(const std::uint8_t* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class Format>
void decode_run(const std::uint8_t* bytes, std::int64_t first, std::int64_t count, float* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (Format::bits == 16) {
      out[i] = Format::decode(load<std::uint16_t>(bytes + 2 * (first + i)));
    } else {
      out[i] = Format::decode(load_code<Format>(bytes, first + i));
    }
  }
}

}  // namespace detail

// Whether load_floats() knows the type.
constexpr bool is_float(stored_type type) noexcept {
  using enum stored_type;
  switch (type) {
    case f64:
    case f32:
    case f16:
    case bf16:
    case e5m2:
    case e4m3:
    case e8m0:
    case e2m3:
    case e3m2:
    case e2m1:
      return true;
    default:
      return false;
  }
}

// Elements [first, first + count) as floats: exact, but for F64, which is rounded to nearest. Packed types are bit
// streams with the first code in the lowest bits. Throws ms::error for a type that is no plain float, or a range
// outside the tensor.
inline void load_floats(const stored_tensor& t, std::int64_t first, std::int64_t count, float* out) {
  if (first < 0 || count < 0 || first > t.elements() - count) {
    microscale::detail::fail("range of a stored tensor", "elements below " + std::to_string(t.elements()),
                             std::to_string(count) + " from " + std::to_string(first));
  }
  const std::uint8_t* bytes = t.bytes.data();
  using enum stored_type;
  switch (t.type) {
    case f32:
      if (count > 0) std::memcpy(out, bytes + 4 * first, 4 * static_cast<std::size_t>(count));
      return;
    case f64:
      // Not a conversion of the language, which would round as the caller's environment says.
      for (std::int64_t i = 0; i < count; ++i) {
        const double x = detail::load<double>(bytes + 8 * (first + i));
        out[i] = fp32::from_bits(microscale::f32::encode(x, nearest_even{}, overflow::ieee));
      }
      return;
    case bf16:
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = fp32::from_bits(std::uint32_t{detail::load<std::uint16_t>(bytes + 2 * (first + i))} << 16);
      }
      return;
    case f16:
      return detail::decode_run<microscale::f16>(bytes, first, count, out);
    case e5m2:
      return detail::decode_run<microscale::e5m2>(bytes, first, count, out);
    case e4m3:
      return detail::decode_run<microscale::e4m3>(bytes, first, count, out);
    case e8m0:
      return detail::decode_run<microscale::e8m0>(bytes, first, count, out);
    case e2m3:
      return detail::decode_run<microscale::e2m3>(bytes, first, count, out);
    case e3m2:
      return detail::decode_run<microscale::e3m2>(bytes, first, count, out);
    case e2m1:
      return detail::decode_run<microscale::e2m1>(bytes, first, count, out);
    default:
      detail::refuse_no_floats(t);
  }
}

// The whole tensor, in the order of the file.
inline std::vector<float> load_floats(const stored_tensor& t) {
  if (!is_float(t.type)) detail::refuse_no_floats(t);
  std::vector<float> out(static_cast<std::size_t>(t.elements()));
  load_floats(t, 0, t.elements(), out.data());
  return out;
}

// Tensors by name; the span must outlive it. Of two with one name, the first.
class tensor_index {
 public:
  explicit tensor_index(std::span<const stored_tensor> tensors) {
    for (const stored_tensor& t : tensors) by_name_.emplace(t.name, &t);
  }
  // Null where there is none.
  const stored_tensor* find(std::string_view name) const noexcept {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : at->second;
  }

 private:
  std::unordered_map<std::string_view, const stored_tensor*> by_name_;
};

}  // namespace microscale::interop
