#include "source.hpp"

#include <microscale/host/executor.hpp>
#include <microscale/interop/ggml_blocks.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace inspect {

namespace {

using namespace ms::interop;

std::function<void(index_t, index_t, index_t, index_t, float*)> load_plain(const stored_tensor& t) {
  return [&t, width = t.cols()](index_t row, index_t rows, index_t col, index_t cols, float* out) {
    if (cols == width) return load_floats(t, row * width, rows * width, out);
    for (index_t r = 0; r < rows; ++r) load_floats(t, (row + r) * width + col, cols, out + r * cols);
  };
}

// Part of a quantized matrix. Blocks lie within rows here, and never across `col`.
template <class S>
ms::quantized_view<const S> part_of(ms::quantized_view<const S> q, index_t row, index_t rows, index_t col,
                                    index_t cols) {
  q.codes += row * q.code_pitch + ms::packed_bytes(S::element::bits, col);
  q.scales += row * q.scale_pitch + col / S::block::columns;
  q.rows = rows;
  q.cols = cols;
  return q;
}

template <class S>
void use(item& it, const std::shared_ptr<const checkpoint_matrix>& m) {
  it.load = [m](index_t row, index_t rows, index_t col, index_t cols, float* out) {
    ms::dequantize_into(ms::host{.threads = 1}, part_of(m->view<S>(), row, rows, col, cols),
                        ms::matrix(out, rows, cols));
  };
}

void use_checkpoint(item& it, const checkpoint_matrix& found) {
  const auto m = std::make_shared<const checkpoint_matrix>(found);
  using enum stored_type;
  if (m->stored_as == convention::modelopt) return use<ms::nvfp4_modelopt>(it, m);
  if (m->stored_as == convention::compressed_tensors) return use<ms::nvfp4_compressed_tensors>(it, m);
  if (m->element == e2m1) return use<ms::mxfp4>(it, m);
  if (m->element == e2m3) return use<ms::mxfp6_e2m3>(it, m);
  if (m->element == e3m2) return use<ms::mxfp6_e3m2>(it, m);
  if (m->element == e4m3) return use<ms::mxfp8_e4m3>(it, m);
  return use<ms::mxfp8_e5m2>(it, m);
}

template <class S>
void use_ggml(item& it, const stored_tensor& t, float datum) {
  it.load = [&t, datum, width = t.cols()](index_t row, index_t rows, index_t col, index_t cols, float* out) {
    for (index_t r = 0; r < rows; ++r) {
      const auto first = static_cast<std::size_t>(ggml_bytes<S>(row + r, width) + ggml_bytes<S>(1, col));
      const auto count = static_cast<std::size_t>(ggml_bytes<S>(1, cols));
      const auto q = from_ggml_blocks<S>(t.bytes.subspan(first, count), 1, cols, datum);
      ms::dequantize_into(ms::sequential{}, q.view(), ms::matrix(out + r * cols, 1, cols));
    }
  };
}

// llama.cpp's tensor scale of an NVFP4 tensor, beside it: a multiplier. Null where there is none.
const stored_tensor* ggml_scale(const tensor_index& index, std::string name) {
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  const stored_tensor* scale = index.find(name + ".scale");
  return scale != nullptr && scale->type == stored_type::f32 && scale->elements() == 1 ? scale : nullptr;
}

item plain_item(const stored_tensor& t, std::string_view type) {
  item it;
  it.name = t.name;
  it.type = type;
  it.shape = t.shape;
  it.rows = t.rows();
  it.cols = t.cols();
  it.parts = {&t};
  if (is_float(t.type)) {
    it.stored = storage::plain;
    it.load = load_plain(t);
  }
  return it;
}

item checkpoint_item(const checkpoint_matrix& m, const stored_tensor& codes, const tensor_index& index) {
  item it;
  it.name = m.name + ".weight";
  it.stored = m.stored_as == convention::modelopt             ? storage::modelopt
              : m.stored_as == convention::compressed_tensors ? storage::compressed_tensors
                                                              : storage::ocp_mx;
  it.type = std::string(name_of(m.stored_as)) + " " + std::string(name_of(m.element));
  it.rows = m.rows;
  it.cols = m.cols;
  it.shape = codes.shape;
  it.shape.back() = m.cols;
  it.parts = {&codes, index.find(m.name + ".weight_scale")};
  for (const char* suffix : {".weight_scale_2", ".weight_global_scale"}) {
    if (const stored_tensor* scalar = index.find(m.name + suffix)) it.parts.push_back(scalar);
  }
  use_checkpoint(it, m);
  return it;
}

item ggml_item(const stored_tensor& t, const tensor_index& index) {
  item it = plain_item(t, name_of(t.type));
  it.stored = storage::gguf;
  if (t.type == stored_type::ggml_mxfp4) {
    use_ggml<ms::mxfp4>(it, t, 1.0f);
  } else if (const stored_tensor* scale = ggml_scale(index, t.name)) {
    float multiplier = 1.0f;
    load_floats(*scale, 0, 1, &multiplier);
    check_direction(convention::modelopt, multiplier, amax_check::any_amax);
    it.parts.push_back(scale);
    use_ggml<ms::nvfp4_modelopt>(it, t, multiplier);
  } else {
    use_ggml<ms::nvfp4_single>(it, t, 1.0f);
  }
  return it;
}

}  // namespace

std::uint64_t item::bytes() const {
  std::uint64_t sum = 0;
  for (const auto* part : parts) sum += part->bytes.size();
  return sum;
}

std::vector<item> items_of(const tensor_file& file, bool any_amax) {
  const tensor_index index = file.index();
  const amax_check check = any_amax ? amax_check::any_amax : amax_check::of_weights;
  std::vector<item> items;
  std::set<const stored_tensor*> taken;
  for (const stored_tensor& t : file.tensors()) {
    const bool ggml = (t.type == stored_type::ggml_mxfp4 || t.type == stored_type::ggml_nvfp4) && t.elements() > 0;
    if (ggml)
      items.push_back(ggml_item(t, index));
    else if (const auto m = find_checkpoint_matrix(index, t, check))
      items.push_back(checkpoint_item(*m, t, index));
    else
      continue;
    taken.insert(items.back().parts.begin(), items.back().parts.end());
  }
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const stored_tensor& t = file.tensors()[i];
    if (!taken.contains(&t)) items.push_back(plain_item(t, file.type_name(i)));
  }
  // In the order of the file, so that reading goes forward.
  std::map<const stored_tensor*, std::size_t> place;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) place[&file.tensors()[i]] = i;
  std::ranges::sort(items, {}, [&](const item& it) { return place.at(it.parts.front()); });
  return items;
}

}  // namespace inspect
