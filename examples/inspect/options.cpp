#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "error.hpp"

namespace inspect {

namespace {

constexpr std::string_view targets[] = {"modelopt", "compressed-tensors", "ocp-mx", "gguf"};
constexpr std::string_view measured_by_default[] = {"nvfp4", "ue5m3_fp4", "mxfp4"};
constexpr std::string_view skipped_by_default[] = {"embed", "lm_head", "norm"};

std::string joined(const auto& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::string scheme_names() {
  std::vector<std::string_view> names;
  for (const scheme& s : schemes()) names.push_back(s.name);
  return joined(names);
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

const scheme* scheme_of(const std::string& option, const std::string& name) {
  const scheme* found = find_scheme(name);
  if (found == nullptr) throw usage_error(option + ": unknown scheme '" + name + "'; there are " + scheme_names());
  return found;
}

int threads_of(const std::string& text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < 1 || value > 1024) {
    throw usage_error("--threads: expected a whole number from 1 to 1024, got '" + text + "'");
  }
  return value;
}

void set(options& o, const std::string& name, const std::string& value) {
  const auto one_of = [&](const auto& names) {
    const auto at = std::ranges::find(names, value);
    if (at == std::end(names)) throw usage_error(name + ": expected one of " + joined(names) + ", got '" + value + "'");
    return at - std::begin(names);
  };
  constexpr std::string_view sources[] = {"auto", "modelopt", "compressed-tensors", "ocp-mx", "gguf"};
  constexpr std::string_view types[] = {"f32", "bf16"};
  if (name == "--scheme") {
    for (const std::string& s : value == "all" ? split(scheme_names()) : split(value)) {
      const scheme* found = scheme_of(name, s.starts_with(" ") ? s.substr(1) : s);
      if (std::ranges::find(o.schemes, found) != o.schemes.end())
        throw usage_error(name + ": '" + s + "' is named twice");
      o.schemes.push_back(found);
    }
  }
  if (name == "--only") o.only.push_back(value);
  if (name == "--skip") o.skip.push_back(value), o.skip_given = true;
  if (name == "--plot") o.plot = value;
  if (name == "--to") o.to = scheme_of(name, value);
  if (name == "--as") o.as = static_cast<target>(one_of(targets));
  if (name == "--from") one_of(sources), o.from = value;
  if (name == "--dtype") o.bf16 = one_of(types) == 1;
  if (name == "--out") o.out = value;
  if (name == "--threads") o.threads = threads_of(value);
}

void check(options& o, bool as_given, bool dtype_given) {
  if (o.file.empty()) throw usage_error("a file is missing; --help says more");
  if (o.to != nullptr && o.from) throw usage_error("--to and --from: one at a time");
  const bool writes = o.to != nullptr || o.from.has_value();
  if (writes && !o.out) throw usage_error("--out: a file to write is missing");
  if (!writes && o.out) throw usage_error("--out: only with --to or --from");
  if (writes && (o.json || o.plot || !o.schemes.empty()))
    throw usage_error("--scheme, --json and --plot: not with --to or --from");
  if (o.to != nullptr && !as_given) throw usage_error("--as: say for whom the file is: " + joined(targets));
  if (o.to == nullptr && as_given) throw usage_error("--as: only with --to");
  if (!o.from && dtype_given) throw usage_error("--dtype: only with --from");
  if (o.to != nullptr && !o.to->fits(o.as)) {
    throw usage_error("--as: " + std::string(targets[static_cast<std::size_t>(o.as)]) + " has no place for " +
                      std::string(o.to->name));
  }
  if (o.to != nullptr && !o.skip_given && o.only.empty())
    o.skip.assign(std::begin(skipped_by_default), std::end(skipped_by_default));
  if (!writes && o.schemes.empty()) {
    for (const auto name : measured_by_default) o.schemes.push_back(find_scheme(name));
  }
}

}  // namespace

bool options::wants(const std::string& name) const {
  const auto holds = [&](const std::string& part) { return name.find(part) != name.npos; };
  return (only.empty() || std::ranges::any_of(only, holds)) && std::ranges::none_of(skip, holds);
}

std::string usage() {
  return "usage: inspect FILE [options]                          what quantizing each tensor costs\n"
         "       inspect FILE --to SCHEME --as WHOM --out FILE   converts a checkpoint\n"
         "       inspect FILE --from WHOM --out FILE             decodes one, to safetensors\n"
         "FILE is .safetensors, the .index.json of a sharded checkpoint, .gguf or .npy.\n\n"
         "  --scheme NAME[,NAME...]  what to measure, or 'all' (default: " +
         joined(measured_by_default) +
         ")\n"
         "  --only TEXT              only tensors with TEXT in their names; may be repeated\n"
         "  --skip TEXT              not those (default with --to: " +
         joined(skipped_by_default) +
         "); may be repeated\n"
         "  --json                   the figures as JSON\n"
         "  --plot FILE              histograms of elements and scales, as SVG\n"
         "  --to SCHEME              quantizes every NAME.weight of two dimensions that blocks divide; copies the "
         "rest\n"
         "  --as WHOM                " +
         joined(targets) +
         ": names, layout and direction of the tensor scale\n"
         "  --from WHOM              auto, or one of those, to refuse all others\n"
         "  --dtype f32|bf16         of the decoded matrices (default: f32)\n"
         "  --out FILE               written whole or not at all\n"
         "  --any-amax               takes tensor scales that look as if they went the other way\n"
         "  --threads N              changes the time, never a number (default: all)\n"
         "  --help\n\n"
         "schemes: " +
         scheme_names() + "\n";
}

options parse_options(const std::vector<std::string>& arguments) {
  options o;
  bool as_given = false, dtype_given = false;
  std::vector<std::string> seen;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      o.help = true;
      return o;
    }
    if (!argument.starts_with("-") && !argument.empty()) {
      if (!o.file.empty()) throw usage_error("one file at a time: '" + o.file.string() + "', '" + argument + "'");
      o.file = argument;
      continue;
    }
    if (argument == "--json" || argument == "--any-amax") {
      (argument == "--json" ? o.json : o.any_amax) = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    constexpr std::string_view known[] = {"--scheme", "--only", "--skip",  "--plot", "--to",
                                          "--as",     "--from", "--dtype", "--out",  "--threads"};
    if (std::ranges::find(known, name) == std::end(known))
      throw usage_error("unknown option '" + argument + "'; --help lists them");
    const bool repeats = name == "--only" || name == "--skip";
    if (!repeats && std::ranges::find(seen, name) != seen.end()) throw usage_error(name + ": given twice");
    seen.push_back(name);
    if (equals == std::string::npos && i + 1 == arguments.size()) throw usage_error(name + ": a value is missing");
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (value.empty()) throw usage_error(name + ": a value is missing");
    as_given = as_given || name == "--as";
    dtype_given = dtype_given || name == "--dtype";
    set(o, name, value);
  }
  check(o, as_given, dtype_given);
  return o;
}

}  // namespace inspect
