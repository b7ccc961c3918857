// numpy's .npy format, versions 1 to 3, read and written.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stored_tensor.hpp"

namespace microscale::interop {

namespace detail {

struct npy_type {
  std::string_view descr;
  stored_type type;
};

// What numpy writes for each type on a little-endian machine. ml_dtypes' narrow floats are void types there, which do
// not say what they are.
inline constexpr npy_type npy_types[] = {
    {"|b1", stored_type::boolean}, {"|u1", stored_type::u8},  {"|i1", stored_type::i8},  {"<u2", stored_type::u16},
    {"<i2", stored_type::i16},     {"<u4", stored_type::u32}, {"<i4", stored_type::i32}, {"<u8", stored_type::u64},
    {"<i8", stored_type::i64},     {"<f2", stored_type::f16}, {"<f4", stored_type::f32}, {"<f8", stored_type::f64},
    {"<c8", stored_type::c64},
};

// The header: a Python dictionary with the keys descr, fortran_order and shape, each once.
class npy_header {
 public:
  explicit npy_header(std::string_view text) : text_(text) {
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !has_type_) {
        type();
      } else if (key == "fortran_order" && !has_order_) {
        order();
      } else if (key == "shape" && !has_shape_) {
        shape_of();
      } else {
        refuse("npy", "unexpected or repeated key " + shown(key));
      }
      if (!take(',') && !at('}')) refuse("npy", "a header that is no dictionary");
    }
    blanks();
    if (!text_.empty()) refuse("npy", "something follows the header's dictionary");
    if (!has_type_ || !has_order_ || !has_shape_) refuse("npy", "a header without descr, fortran_order or shape");
  }

  stored_type element = stored_type::u8;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;

 private:
  void blanks() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }
  bool at(char c) {
    blanks();
    return !text_.empty() && text_[0] == c;
  }
  bool take(char c) {
    if (!at(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse("npy", std::string("expected '") + c + "' in the header");
  }
  bool take_word(std::string_view word) {
    blanks();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::string_view quoted() {
    const char quote = at('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote);
    if (end == text_.npos) refuse("npy", "a string in the header does not end");
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return word;
  }
  void type() {
    const std::string_view descr = quoted();
    has_type_ = true;
    for (const npy_type& known : npy_types) {
      if (known.descr == descr) {
        element = known.type;
        return;
      }
    }
    refuse("npy",
           "elements of type " + shown(descr) + ", which are big-endian, structured or do not say what they are");
  }
  void order() {
    fortran_order = take_word("True");
    if (!fortran_order && !take_word("False")) refuse("npy", "fortran_order is neither True nor False");
    has_order_ = true;
  }
  void shape_of() {
    expect('(');
    while (!take(')')) {
      if (shape.size() == 64) refuse("npy", "more than 64 dimensions");
      blanks();
      std::int64_t extent = 0;
      bool any = false;
      for (; !text_.empty() && text_[0] >= '0' && text_[0] <= '9'; text_.remove_prefix(1), any = true) {
        if (extent > (std::numeric_limits<std::int64_t>::max)() / 10 - 1) refuse("npy", "a dimension too large");
        extent = extent * 10 + (text_[0] - '0');
      }
      if (!any) refuse("npy", "a shape that is no tuple of whole numbers");
      shape.push_back(extent);
      if (!take(',') && !at(')')) refuse("npy", "a shape that is no tuple of whole numbers");
    }
    has_shape_ = true;
  }

  std::string_view text_;
  bool has_type_ = false, has_order_ = false, has_shape_ = false;
};

}  // namespace detail

// The array of a .npy file; its bytes point into `file`, and its name is empty. Throws ms::error for what is no such
// file, for bytes that are not exactly those of its shape, and for what this library has no use for: big-endian and
// structured types, and arrays in column-major order (np.ascontiguousarray mends those).
inline stored_tensor read_npy(std::span<const std::uint8_t> file) {
  if (file.size() < 10 || std::string_view(reinterpret_cast<const char*>(file.data()), 6) != "\x93NUMPY") {
    detail::refuse("npy", "not a .npy file");
  }
  const int version = file[6];
  if (version < 1 || version > 3) detail::refuse("npy", "format version " + std::to_string(version) + " is unknown");
  const std::size_t preamble = version == 1 ? 10 : 12;
  if (file.size() < preamble) detail::refuse("npy", "the file ends within its header");
  const std::uint64_t length =
      version == 1 ? detail::load<std::uint16_t>(file.data() + 8) : detail::load<std::uint32_t>(file.data() + 8);
  if (length > file.size() - preamble) detail::refuse("npy", "the file ends within its header");
  const auto header_bytes = file.subspan(preamble, static_cast<std::size_t>(length));
  const detail::npy_header header({reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size()});

  stored_tensor t;
  t.type = header.element;
  t.shape = header.shape;
  t.bytes = file.subspan(preamble + static_cast<std::size_t>(length));
  const auto bytes = detail::stored_bytes(layout_of(t.type), t.shape);
  if (!bytes || *bytes != t.bytes.size()) {
    detail::refuse("npy", std::to_string(t.bytes.size()) + " bytes do not hold " + std::string(name_of(t.type)) +
                              " of shape " + text_of(t.shape));
  }
  if (header.fortran_order && t.shape.size() > 1) detail::refuse("npy", "an array in column-major order");
  return t;
}

// What precedes the elements in a .npy file of this type and shape: version 1, padded to a multiple of 64 as numpy
// does. Throws ms::error for a type that numpy has not.
inline std::string npy_header_bytes(const stored_tensor& t) {
  std::string descr;
  for (const detail::npy_type& known : detail::npy_types) {
    if (known.type == t.type) descr = known.descr;
  }
  if (descr.empty() || t.shape.size() > 64) {
    microscale::detail::fail("array for .npy", "a type of numpy's own and at most 64 dimensions",
                             std::string(name_of(t.type)) + " of shape " + text_of(t.shape));
  }
  std::string dictionary = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t extent : t.shape) dictionary += std::to_string(extent) + ", ";
  if (!t.shape.empty()) dictionary.resize(dictionary.size() - (t.shape.size() > 1 ? 2 : 1));
  dictionary += "), }";
  const std::size_t total = round_up(10 + dictionary.size() + 1, std::size_t{64});
  dictionary.resize(total - 11, ' ');
  dictionary += '\n';
  std::string out = "\x93NUMPY\x01";
  out += '\0';
  out += static_cast<char>(dictionary.size() & 0xFF);
  out += static_cast<char>(dictionary.size() >> 8);
  return out + dictionary;
}

}  // namespace microscale::interop
