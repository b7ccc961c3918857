// Says what quantizing the tensors of a file costs under each scheme, and converts checkpoints.
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "convert.hpp"
#include "error.hpp"
#include "options.hpp"
#include "report.hpp"

namespace {

using namespace inspect;
using ms::interop::tensor_file;

std::string format_name(ms::interop::file_format format) {
  constexpr std::string_view names[] = {"safetensors", "sharded safetensors", "GGUF", "npy"};
  return std::string(names[static_cast<std::size_t>(format)]);
}

// What is read is not to be written over: its numbers cannot be had back from what was made of them.
void refuse_overwriting(const tensor_file& file, const std::string& option,
                        const std::optional<std::filesystem::path>& written) {
  if (!written) return;
  for (const auto& read : file.files()) {
    std::error_code unknown;
    if (std::filesystem::equivalent(read, *written, unknown))
      throw usage_error(option + ": '" + written->string() + "' is a file that is read");
  }
}

measured_item measure_item(const item& it, const options& o, report& r, progress& shown) {
  measured_item m{&it, 0.0f, {}};
  if (it.is_matrix() && o.wants(it.name)) {
    const ms::host on{.threads = o.threads};
    m.amax = find_amax(on, it, o.plot ? &r.elements : nullptr);
    const auto measured = measure(on, it, o.schemes, m.amax, o.plot.has_value());
    for (std::size_t i = 0; i < o.schemes.size(); ++i) {
      const scheme& s = *o.schemes[i];
      m.schemes.push_back({&s, s.bytes(it.rows, it.cols), measured[i].metrics, {}});
      r.total[i].bytes += m.schemes.back().bytes;
      r.total[i].metrics += measured[i].metrics;
      add_to(r.total[i].scales, measured[i].scales);
    }
  }
  for (const auto* part : it.parts) ms::interop::release_pages(part->bytes);
  shown.add(it.bytes());
  return m;
}

void measure_file(const tensor_file& file, const options& o) {
  const std::vector<item> items = items_of(file, o.any_amax);
  report r;
  r.file = o.file.filename().string();
  r.format = format_name(file.format());
  for (const scheme* s : o.schemes) r.total.push_back({s, 0, {}, {}});
  std::uint64_t total = 0;
  for (const item& it : items) total += it.bytes();
  {
    progress shown("reading", total);
    for (const item& it : items) r.items.push_back(measure_item(it, o, r, shown));
  }
  if (o.plot) {
    ms::interop::output_file plot(*o.plot);
    plot.write(to_svg(r));
    plot.commit();
  }
  std::cout << (o.json ? to_json(r) : to_table(r)) << std::flush;
  if (!std::cout) throw std::runtime_error("standard output cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const options o = parse_options({argv + 1, argv + argc});
    if (o.help) {
      std::cout << usage();
      return 0;
    }
    const tensor_file file(o.file);
    refuse_overwriting(file, "--out", o.out);
    refuse_overwriting(file, "--plot", o.plot);
    if (o.to != nullptr) {
      std::cout << quantize_checkpoint(file, o) << '\n';
    } else if (o.from) {
      std::cout << dequantize_checkpoint(file, o) << '\n';
    } else {
      measure_file(file, o);
    }
    return 0;
  } catch (const usage_error& e) {
    std::cerr << "inspect: " << message_of(e) << '\n';
    return 2;
  } catch (const ms::error& e) {
    std::cerr << "inspect: " << message_of(e) << '\n';
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "inspect: " << message_of(e) << '\n';
    return 1;
  }
}
