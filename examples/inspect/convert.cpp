#include "convert.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "error.hpp"
#include "work.hpp"

namespace inspect {

namespace {

using namespace ms::interop;

// A tensor of the file to be, and what writes its bytes. Tensors of one matrix share what quantizing it left for later.
struct output {
  stored_tensor tensor;
  std::function<void(output_file&)> write;
};

std::span<const std::uint8_t> bytes_of(const float& x) { return {reinterpret_cast<const std::uint8_t*>(&x), sizeof x}; }

// The matrix, rows at a time, so that memory does not grow with it: rows of whole tiles' height.
template <class F>
void for_rows(const item& it, F&& f) {
  constexpr index_t step = 64;
  const index_t tall = std::max(step, (index_t{1} << 22) / it.cols / step * step);
  std::vector<float> numbers;
  for (index_t row = 0; row < it.rows; row += tall) {
    const index_t rows = std::min(tall, it.rows - row);
    numbers.resize(static_cast<std::size_t>(rows * it.cols));
    it.load(row, rows, 0, it.cols, numbers.data());
    f(ms::matrix(static_cast<const float*>(numbers.data()), rows, it.cols));
  }
}

// Encodes rows on all threads, in pieces whose results are joined in order.
std::vector<checkpoint_bytes> encode(const ms::host& on, const options& o, ms::matrix_view<const float> x, float amax) {
  constexpr index_t step = 64;
  const index_t pieces = ms::ceil_div(x.rows, step);
  std::vector<checkpoint_bytes> parts(static_cast<std::size_t>(pieces));
  on.for_ranges(pieces, step * x.cols, [&](index_t first, index_t last) {
    for (index_t i = first; i < last; ++i) {
      const index_t row = i * step;
      const auto piece = ms::matrix(x.data + row * x.pitch, std::min(step, x.rows - row), x.cols, x.pitch);
      parts[static_cast<std::size_t>(i)] = o.to->encode(o.as, piece, amax);
    }
  });
  return parts;
}

// f(), with the name of the matrix before what it throws.
template <class F>
void naming(const item& it, F&& f) {
  try {
    f();
  } catch (const ms::error& e) {
    throw usage_error("matrix '" + it.name + "': " + message_of(e));
  }
}

bool is_converted(const item& it, const options& o) {
  return it.stored != storage::opaque && it.shape.size() == 2 && it.name.ends_with(".weight") && it.rows > 0 &&
         it.cols >= o.to->block_columns && o.wants(it.name);
}

index_t columns_of_a_block(const options& o) {
  return o.as == target::gguf && o.to->block_columns == 16 ? 64 : o.to->block_columns;
}

std::vector<output> quantized_outputs(const item& it, const options& o, const ms::host& on, progress& shown) {
  const float amax = find_amax(on, it);
  const float scalar = o.to->scalar(o.as, amax);
  const std::string name = it.name.substr(0, it.name.size() - std::string_view(".weight").size());
  std::vector<output> outputs;
  const auto scales = std::make_shared<std::vector<std::uint8_t>>();
  for (stored_tensor& t : o.to->tensors(o.as, name, it.rows, it.cols)) {
    output out{std::move(t), {}};
    if (out.tensor.type == stored_type::f32) {
      out.write = [scalar](output_file& to) { to.write(bytes_of(scalar)); };
    } else if (outputs.empty()) {
      out.write = [&it, &o, on, amax, scales, &shown](output_file& to) {
        naming(it, [&] {
          for_rows(it, [&](ms::matrix_view<const float> x) {
            for (const checkpoint_bytes& part : encode(on, o, x, amax)) {
              to.write(part.codes);
              scales->insert(scales->end(), part.scales.begin(), part.scales.end());
            }
          });
        });
        shown.add(it.bytes());
      };
    } else {
      out.write = [scales](output_file& to) {
        to.write(*scales);
        *scales = {};
      };
    }
    outputs.push_back(std::move(out));
  }
  return outputs;
}

output copied(const stored_tensor& t, progress& shown) {
  return {{t.name, t.type, t.shape, {}}, [&t, &shown](output_file& to) {
            to.write(t.bytes);
            shown.add(t.bytes.size());
          }};
}

void write_safetensors(const std::filesystem::path& path, std::vector<output>& outputs,
                       const std::map<std::string, std::string>& metadata) {
  // Stable: scales stay behind the codes that they come from.
  std::ranges::stable_sort(outputs, [](const output& a, const output& b) { return by_alignment(a.tensor, b.tensor); });
  std::vector<stored_tensor> tensors;
  for (const output& out : outputs) tensors.push_back(out.tensor);
  output_file file(path);
  file.write(safetensors_header(tensors, metadata));
  for (const output& out : outputs) out.write(file);
  file.commit();
}

void write_gguf(const std::filesystem::path& path, const std::vector<output>& outputs, const options& o,
                std::string architecture) {
  std::vector<stored_tensor> tensors;
  for (const output& out : outputs) tensors.push_back(out.tensor);
  const std::uint32_t file_type = o.to->block_columns == 16 ? 39 : 38;  // llama.cpp's MOSTLY_NVFP4 and MOSTLY_MXFP4_MOE
  const gguf_header header = make_gguf_header(tensors, {{"general.architecture", std::move(architecture)}},
                                              {{"general.file_type", file_type}});
  output_file file(path);
  file.write(header.bytes);
  const std::uint64_t start = file.written();
  const auto pad_to = [&](std::uint64_t place) {
    const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(place - file.written()), 0);
    file.write(zeros);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    pad_to(start + header.offsets[i]);
    outputs[i].write(file);
  }
  pad_to(ms::round_up(file.written(), std::uint64_t{32}));
  file.commit();
}

// What a loader has to be told beside the tensors, as compressed-tensors and ModelOpt write it into config.json and
// hf_quant_config.json.
std::string quantization_config(const options& o, const std::vector<std::string>& left) {
  std::string ignored;
  for (const std::string& name : left) ignored += (ignored.empty() ? "" : ",") + json_string(name);
  const std::string group = std::to_string(o.to->block_columns);
  if (o.as == target::modelopt) {
    return R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","group_size":)" + group +
           R"(,"kv_cache_quant_algo":null,"exclude_modules":[)" + ignored + "]}}";
  }
  const bool nvfp4 = o.as == target::compressed_tensors;
  return std::string(R"({"quant_method":"compressed-tensors","format":")") + (nvfp4 ? "nvfp4" : "mxfp4") +
         R"(-pack-quantized","quantization_status":"compressed","config_groups":{"group_0":{"targets":["Linear"],"weights":)" +
         R"({"num_bits":4,"type":"float","strategy":")" + (nvfp4 ? "tensor_group" : "group") + R"(","group_size":)" +
         group + R"(,"symmetric":true,"dynamic":false)" + (nvfp4 ? "" : R"(,"scale_dtype":"torch.uint8")") +
         R"(},"input_activations":null,"output_activations":null}},"ignore":[)" + ignored + "]}";
}

std::string matrices_text(std::size_t count) { return std::to_string(count) + (count == 1 ? " matrix" : " matrices"); }

}  // namespace

std::string quantize_checkpoint(const tensor_file& file, const options& o) {
  const std::vector<item> items = items_of(file, o.any_amax);
  const ms::host on{.threads = o.threads};
  std::uint64_t total = 0;
  for (const item& it : items) total += it.bytes();
  progress shown("writing", total);
  std::vector<output> outputs;
  std::vector<std::string> left;  // matrices that stay as they are
  std::size_t matrices = 0;
  for (const item& it : items) {
    if (is_converted(it, o) && it.cols % columns_of_a_block(o) == 0) {
      ++matrices;
      for (output& out : quantized_outputs(it, o, on, shown)) outputs.push_back(std::move(out));
    } else {
      if (it.name.ends_with(".weight") && it.shape.size() == 2) left.push_back(it.name.substr(0, it.name.size() - 7));
      for (const stored_tensor* part : it.parts) outputs.push_back(copied(*part, shown));
    }
  }
  if (matrices == 0)
    throw usage_error(o.file.string() + ": holds no matrix NAME.weight to quantize (see --only, --skip)");
  std::set<std::string> names;
  for (const output& out : outputs) {
    if (!names.insert(out.tensor.name).second)
      throw usage_error(o.file.string() + ": tensor '" + out.tensor.name + "' would be written twice");
  }
  if (o.as == target::gguf) {
    const auto architecture = file.metadata().find("general.architecture");
    write_gguf(*o.out, outputs, o, architecture == file.metadata().end() ? "unknown" : architecture->second);
  } else {
    auto metadata = file.format() == file_format::gguf ? std::map<std::string, std::string>() : file.metadata();
    metadata["format"] = "pt";
    if (o.as != target::ocp_mx || o.to->name.starts_with("mxfp4")) {
      metadata[o.as == target::modelopt ? "hf_quant_config" : "quantization_config"] = quantization_config(o, left);
    }
    write_safetensors(*o.out, outputs, metadata);
  }
  return "wrote " + o.out->string() + ": " + matrices_text(matrices) + " as " + std::string(o.to->name);
}

std::string dequantize_checkpoint(const tensor_file& file, const options& o) {
  constexpr std::string_view names[] = {"", "modelopt", "compressed-tensors", "ocp-mx", "gguf"};
  const std::vector<item> items = items_of(file, o.any_amax);
  std::uint64_t total = 0;
  for (const item& it : items) total += it.bytes();
  progress shown("writing", total);
  std::vector<output> outputs;
  std::size_t matrices = 0;
  for (const item& it : items) {
    if (!it.is_quantized() || !o.wants(it.name)) {
      for (const stored_tensor* part : it.parts) outputs.push_back(copied(*part, shown));
      continue;
    }
    const std::string_view stored = names[static_cast<std::size_t>(it.stored)];
    if (*o.from != "auto" && *o.from != stored) {
      throw usage_error("--from: matrix '" + it.name + "' is stored as " + std::string(stored) + ", not " + *o.from);
    }
    ++matrices;
    output out{{it.name, o.bf16 ? stored_type::bf16 : stored_type::f32, it.shape, {}}, {}};
    out.write = [&it, &o, &shown](output_file& to) {
      std::vector<std::uint16_t> halves;
      for_rows(it, [&](ms::matrix_view<const float> x) {
        const auto count = static_cast<std::size_t>(x.rows * x.cols);
        if (!o.bf16) return to.write({reinterpret_cast<const std::uint8_t*>(x.data), count * sizeof(float)});
        halves.resize(count);
        for (std::size_t i = 0; i < count; ++i) halves[i] = ms::from_float<ms::value<ms::bf16>>(x.data[i]).code();
        to.write({reinterpret_cast<const std::uint8_t*>(halves.data()), count * sizeof(std::uint16_t)});
      });
      shown.add(it.bytes());
    };
    outputs.push_back(std::move(out));
  }
  if (matrices == 0) throw usage_error(o.file.string() + ": holds no quantized matrix");
  write_safetensors(*o.out, outputs, {{"format", "pt"}});
  return "wrote " + o.out->string() + ": " + matrices_text(matrices) + " decoded";
}

}  // namespace inspect
