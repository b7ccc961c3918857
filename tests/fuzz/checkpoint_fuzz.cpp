// Quantized matrices out of files: whatever find_checkpoint_matrix and from_ggml_blocks accept can be decoded, and the
// blocks of ggml written again are the same bytes.
#include <microscale/interop/checkpoint.hpp>
#include <microscale/interop/ggml_blocks.hpp>
#include <microscale/interop/gguf.hpp>
#include <microscale/interop/safetensors.hpp>

#include "tensors.hpp"

namespace ms = microscale;
using namespace ms::interop;

namespace {

template <class S>
void decode(ms::quantized_view<const S> q) {
  std::vector<float> out(static_cast<std::size_t>(q.rows * q.cols));
  ms::dequantize_into(ms::sequential{}, q, ms::matrix(out, q.rows, q.cols));
}

void decode(const checkpoint_matrix& m) {
  if (m.stored_as == convention::modelopt) return decode(m.view<ms::nvfp4_modelopt>());
  if (m.stored_as == convention::compressed_tensors) return decode(m.view<ms::nvfp4_compressed_tensors>());
  if (m.element == stored_type::e2m1) return decode(m.view<ms::mxfp4>());
  if (m.element == stored_type::e2m3) return decode(m.view<ms::mxfp6_e2m3>());
  if (m.element == stored_type::e3m2) return decode(m.view<ms::mxfp6_e3m2>());
  if (m.element == stored_type::e4m3) return decode(m.view<ms::mxfp8_e4m3>());
  decode(m.view<ms::mxfp8_e5m2>());
}

template <class S>
void decode_blocks(const stored_tensor& t) {
  if (t.elements() == 0) return;
  const auto q = from_ggml_blocks<S>(t.bytes, t.rows(), t.cols());
  decode(std::as_const(q).view());
  std::vector<std::uint8_t> again(t.bytes.size());
  to_ggml_blocks<S>(q.view(), again.data());
  std::vector<std::uint8_t> before(t.bytes.begin(), t.bytes.end());
  if (std::is_same_v<typename S::scale, ms::ue4m3>) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (i % 36 < 4 && before[i] == 0x7F) before[i] = 0;
    }
  }
  fuzz::require(again == before);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> file(data, size);
  try {
    const safetensors_file read = read_safetensors(file);
    const tensor_index index(read.tensors);
    for (const auto& t : read.tensors) {
      try {
        if (const auto m = find_checkpoint_matrix(index, t)) decode(*m);
      } catch (const ms::error&) {
      }
    }
  } catch (const ms::error&) {
  }
  try {
    for (const auto& t : read_gguf(file).tensors) {
      try {
        if (t.type == stored_type::ggml_mxfp4) decode_blocks<ms::mxfp4>(t);
        if (t.type == stored_type::ggml_nvfp4) decode_blocks<ms::nvfp4_single>(t);
      } catch (const ms::error&) {
      }
    }
  } catch (const ms::error&) {
  }
  return 0;
}
