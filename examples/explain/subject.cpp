#include "subject.hpp"

#include <microscale/interop/checkpoint.hpp>
#include <microscale/interop/ggml_blocks.hpp>

#include <algorithm>

namespace explain {

namespace {

using namespace ms::interop;

template <class Element>
std::vector<std::uint8_t> unpacked(const std::uint8_t* codes, index_t pitch, index_t rows, index_t cols) {
  std::vector<std::uint8_t> out;
  out.reserve(static_cast<std::size_t>(rows * cols));
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) out.push_back(ms::load_code<Element>(codes + r * pitch, c));
  }
  return out;
}

std::vector<std::uint8_t> unpacked(int bits, const std::uint8_t* codes, index_t rows, index_t cols) {
  const index_t pitch = ms::packed_bytes(bits, cols);
  if (bits == 4) return unpacked<ms::e2m1>(codes, pitch, rows, cols);
  if (bits == 6) return unpacked<ms::e2m3>(codes, pitch, rows, cols);
  return unpacked<ms::e4m3>(codes, pitch, rows, cols);
}

quantized_matrix from_checkpoint(const checkpoint_matrix& m) {
  quantized_matrix q;
  q.name = printable(m.name + ".weight");
  const stored_layout layout = layout_of(m.element);
  q.element_bits = 8 * layout.bytes / layout.elements;
  q.e8m0 = m.stored_as == convention::ocp_mx;
  q.block = q.e8m0 ? 32 : 16;
  q.rows = m.rows;
  q.cols = m.cols;
  q.codes = unpacked(q.element_bits, m.codes, m.rows, m.cols);
  q.scales.assign(m.scales, m.scales + m.rows * q.blocks_in_row());
  if (m.stored_as == convention::modelopt) q.kind = scalar_kind::multiplier;
  if (m.stored_as == convention::compressed_tensors) q.kind = scalar_kind::divisor;
  q.scalar = m.scalar;
  return q;
}

template <class S>
quantized_matrix from_ggml(const stored_tensor& t) {
  const auto blocks = from_ggml_blocks<S>(t.bytes, t.rows(), t.cols());
  quantized_matrix q;
  q.name = printable(t.name);
  q.e8m0 = std::is_same_v<typename S::scale, ms::e8m0>;
  q.block = S::block::columns;
  q.rows = t.rows();
  q.cols = t.cols();
  q.codes = unpacked(4, blocks.codes().data(), q.rows, q.cols);
  q.scales = blocks.scales();
  return q;
}

// The tensor as a subject; empty where it is neither.
subject subject_of(const tensor_index& index, const stored_tensor& t) {
  subject s;
  if (t.type == stored_type::ggml_mxfp4) {
    s.quantized = from_ggml<ms::mxfp4>(t);
  } else if (t.type == stored_type::ggml_nvfp4) {
    s.quantized = from_ggml<ms::nvfp4_single>(t);
  } else if (const auto m = find_checkpoint_matrix(index, t, amax_check::any_amax)) {
    s.quantized = from_checkpoint(*m);
  } else if (is_float(t.type) && t.shape.size() >= 2 && layout_of(t.type).bytes >= 2) {
    s.data = data_matrix{printable(t.name), t.rows(), t.cols(), load_floats(t)};
  }
  return s;
}

}  // namespace

subject read_subject(const std::string& argument) {
  // A colon may be part of a file's name.
  std::string file = argument, wanted;
  if (!std::filesystem::exists(file) && argument.rfind(':') != argument.npos) {
    file = argument.substr(0, argument.rfind(':'));
    wanted = argument.substr(argument.rfind(':') + 1);
  }
  const tensor_file opened(file);
  const tensor_index index = opened.index();
  std::vector<std::string> names;
  const stored_tensor* chosen = nullptr;
  for (const stored_tensor& t : opened.tensors()) {
    std::string name = t.name;
    const bool packed = name.ends_with(".weight_packed");
    if (packed) name.resize(name.size() - std::string_view("_packed").size());
    const bool is_matrix = t.shape.size() >= 2 && t.elements() > 0;
    const bool is_scales = name.ends_with(".weight_scale");
    if (!is_matrix || is_scales || (!wanted.empty() && t.name != wanted && name != wanted)) continue;
    names.push_back(name);
    chosen = &t;
  }
  if (names.empty())
    throw usage_error(file + (wanted.empty() ? ": holds no matrix" : ": holds no matrix '" + wanted + "'"));
  if (names.size() > 1) {
    throw usage_error(file + ": holds " + std::to_string(names.size()) +
                      " matrices; name one as FILE:TENSOR, for example '" + names[0] + "'");
  }
  subject s = subject_of(index, *chosen);
  if (!s.data && !s.quantized)
    throw usage_error(file + ": '" + chosen->name + "' is neither numbers nor a quantized matrix with its scales");
  return s;
}

quantized_matrix read_arrays(const std::filesystem::path& codes, const std::filesystem::path& scales, int element_bits,
                             int block, bool e8m0, bool packed, scalar_kind kind, float scalar) {
  const tensor_file codes_file(codes), scales_file(scales);
  const stored_tensor &c = codes_file.tensors().at(0), &s = scales_file.tensors().at(0);
  if (layout_of(c.type).bytes != 1 || c.shape.size() != 2)
    throw usage_error(codes.string() + ": expected a matrix of bytes");
  if (layout_of(s.type).bytes != 1) throw usage_error(scales.string() + ": expected scales of one byte");
  quantized_matrix q;
  q.name = codes.filename().string();
  q.element_bits = element_bits;
  q.block = block;
  q.e8m0 = e8m0;
  q.rows = c.rows();
  q.cols = packed ? c.cols() * 8 / element_bits : c.cols();
  q.kind = kind;
  q.scalar = scalar;
  if (packed) {
    q.codes = unpacked(element_bits, c.bytes.data(), q.rows, q.cols);
  } else {
    q.codes.assign(c.bytes.begin(), c.bytes.end());
    if (std::ranges::any_of(q.codes, [&](std::uint8_t code) { return code >> element_bits != 0; })) {
      throw usage_error(codes.string() + ": codes of more than " + std::to_string(element_bits) +
                        " bits; packed ones need --packed");
    }
  }
  if (s.elements() != q.rows * q.blocks_in_row()) {
    throw usage_error(scales.string() + ": expected " + std::to_string(q.rows) + " x " +
                      std::to_string(q.blocks_in_row()) + " scales, got " + text_of(s.shape));
  }
  q.scales.assign(s.bytes.begin(), s.bytes.end());
  return q;
}

}  // namespace explain
