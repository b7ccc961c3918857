// Says where two quantized tensors differ, or one and the data it came from, how often, and which rule accounts for it.
#include <algorithm>
#include <charconv>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <microscale/conformance/report.hpp>

#include "rules.hpp"
#include "vectors.hpp"

namespace {

using namespace explain;
using microscale::conformance::detail::text_of;

constexpr const char* help =
    "usage: explain A B                         two quantized tensors, or one and the data it came from\n"
    "       explain A B DATA                    two, and the data of both\n"
    "       explain FILE.vec [--id ID]          the quantize cases of a vector file\n"
    "       explain --codes C.npy --scales S.npy [options] DATA\n"
    "A, B and DATA are FILE or FILE:TENSOR: .safetensors, the .index.json of a sharded checkpoint, .gguf, or for data\n"
    ".npy. A quantized tensor is NAME.weight with its scales, as ModelOpt, compressed-tensors or OCP MX store it.\n\n"
    "  --amax X             the reference that the tensor scale was derived from (default: what the stored scale "
    "says,\n"
    "                       or else the data's own)\n"
    "  --codes, --scales    a matrix of codes and one of scales, in bytes; with them:\n"
    "  --packed             the codes lie several to a byte\n"
    "  --bits N             bits of an element: 4 (default), 6, 8\n"
    "  --block N            elements that share a scale (default: 16)\n"
    "  --e8m0               the scales are powers of two\n"
    "  --multiplier X, --divisor X, --stored-amax X      what is stored of the tensor scale\n"
    "  --id ID              one case of a vector file, worked out\n"
    "  --help\n\n"
    "Exit code 0: every byte is accounted for. 1: some are not. 2: the question makes no sense.\n";

struct request {
  std::vector<std::string> files;
  std::optional<std::string> codes, scales, id;
  std::optional<float> amax;
  int bits = 4, block = 16;
  bool packed = false, e8m0 = false, help = false;
  scalar_kind kind = scalar_kind::none;
  float scalar = 1.0f;
};

template <class T>
T number_of(const std::string& option, const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || !(value >= T{0}) || value > T(3.4e38f)) {
    throw usage_error(option + ": expected a number that is not negative, got '" + text + "'");
  }
  return value;
}

int one_of(const std::string& option, const std::string& text, std::initializer_list<int> allowed) {
  for (const int value : allowed) {
    if (std::to_string(value) == text) return value;
  }
  throw usage_error(option + ": '" + text + "' is not one of the values it takes");
}

request parse(const std::vector<std::string>& arguments) {
  request r;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size() || arguments[i + 1].empty()) throw usage_error(a + ": a value is missing");
      return arguments[++i];
    };
    const auto scalar = [&](scalar_kind kind) {
      if (r.kind != scalar_kind::none) throw usage_error(a + ": one of --multiplier, --divisor, --stored-amax");
      r.kind = kind;
      r.scalar = number_of<float>(a, value());
    };
    if (a == "--help" || a == "-h")
      r.help = true;
    else if (a == "--packed")
      r.packed = true;
    else if (a == "--e8m0")
      r.e8m0 = true;
    else if (a == "--codes")
      r.codes = value();
    else if (a == "--scales")
      r.scales = value();
    else if (a == "--id")
      r.id = value();
    else if (a == "--amax")
      r.amax = number_of<float>(a, value());
    else if (a == "--bits")
      r.bits = one_of(a, value(), {4, 6, 8});
    else if (a == "--block")
      r.block = one_of(a, value(), {16, 32});
    else if (a == "--multiplier")
      scalar(scalar_kind::multiplier);
    else if (a == "--divisor")
      scalar(scalar_kind::divisor);
    else if (a == "--stored-amax")
      scalar(scalar_kind::amax);
    else if (a.starts_with("-") || a.empty())
      throw usage_error("unknown option '" + a + "'; --help lists them");
    else
      r.files.push_back(a);
  }
  if (r.help) return r;
  if (r.codes.has_value() != r.scales.has_value()) throw usage_error("--codes and --scales: one without the other");
  if (!r.codes && (r.packed || r.e8m0 || r.kind != scalar_kind::none))
    throw usage_error("--packed, --e8m0 and the tensor scale's options: only with --codes");
  const bool vectors = r.files.size() == 1 && r.files[0].ends_with(".vec");
  if (r.id && !vectors) throw usage_error("--id: only with a vector file");
  if (r.codes && r.files.size() != 1) throw usage_error("with --codes, one file: the data");
  if (!r.codes && !vectors && r.files.size() != 2 && r.files.size() != 3)
    throw usage_error("two or three files, or a vector file; --help says more");
  return r;
}

std::string of_all(index_t part, index_t all) { return std::to_string(part) + " of " + std::to_string(all); }

std::string name_of(const attempt& a) {
  return a.scheme + (a.rounding == "nearest_even" ? "" : ", rounding " + a.rounding);
}

// What most of the differing blocks have in common, where all of them do.
std::string pattern_of(const attempt& a) {
  const index_t n = a.blocks_differing;
  if (a.nonfinite_differing == n)
    return "every one of them holds a NaN or an infinity: a policy, not an order of operations";
  if (a.sign_of_zero_only == n) return "in every one of them only the signs of zeros differ";
  if (a.zero_differing == n) return "every one of them is all zeros: the rule for a zero block";
  if (a.neighbours_only == n)
    return "all scales agree, and every code is at most one step away: other rounding of elements, such as a "
           "stochastic one";
  return "";
}

// Returns whether every byte is accounted for.
bool explain_by_data(const quantized_matrix& q, const data_matrix& x, std::optional<float> amax) {
  std::cout << q.name << ": " << q.rows << " x " << q.cols << ", elements of " << q.element_bits << " bits, " << q.block
            << " to a scale, from " << x.name << "\n";
  const auto attempts = try_schemes(q, x, amax);
  if (attempts.empty())
    throw usage_error("no named scheme has elements of " + std::to_string(q.element_bits) + " bits in blocks of " +
                      std::to_string(q.block));
  const attempt& best = attempts.front();
  if (best.blocks_differing == 0) {
    std::cout << "every byte of " << best.blocks << (best.blocks == 1 ? " block" : " blocks") << " is that of:";
    for (const attempt& a : attempts) {
      if (a.blocks_differing > 0) break;
      std::cout << "\n  " << name_of(a);
      if (a.scalar_differs) std::cout << " (which would store the tensor scale " << text_of(a.own_scalar) << ")";
    }
    std::cout << '\n';
  } else {
    std::cout << "no named scheme gives these bytes; the nearest:\n";
    for (std::size_t i = 0; i < std::min<std::size_t>(attempts.size(), 5); ++i) {
      const attempt& a = attempts[i];
      std::cout << "  " << name_of(a) << ": " << of_all(a.blocks_differing, a.blocks) << " blocks differ, "
                << a.scales_differing << " scales and " << a.codes_differing << " codes\n";
    }
    if (const std::string pattern = pattern_of(best); !pattern.empty()) std::cout << pattern << '\n';
    std::cout << "the first that differs, by " << name_of(best) << ":\n" << worked_out(q, x, amax, best, best.first);
  }
  if (best.scalar_differs) {
    std::cout << "the file's tensor scale is " << text_of(q.scalar) << ", the data gives " << text_of(best.own_scalar)
              << ": another reference, or a scheme without one\n";
  }
  return best.blocks_differing == 0;
}

bool explain_two(const quantized_matrix& a, const quantized_matrix& b) {
  const difference d = compare(a, b);
  std::cout << a.name << " and " << b.name << ": " << a.rows << " x " << a.cols << "\n";
  std::cout << "codes differing   " << of_all(d.codes_differing, d.codes) << " (" << d.one_step << " by one step, "
            << d.sign_of_zero << " only in the sign of a zero)\n";
  std::cout << "scales differing  " << of_all(d.scales_differing, d.scales) << " (" << d.scale_up
            << " one code higher in the second, " << d.scale_down << " one lower)\n";
  if (d.scalar_differs) std::cout << "tensor scales     " << text_of(a.scalar) << " and " << text_of(b.scalar) << '\n';
  for (const std::string& turn : d.turned) std::cout << turn << '\n';
  if (d.first_block >= 0) {
    const index_t row = d.first_block / a.blocks_in_row(), col = d.first_block % a.blocks_in_row() * a.block;
    std::cout << "the first block that differs: row " << row << ", columns from " << col << "\n  scale";
    for (const auto* m : {&a, &b})
      std::cout << ' ' << static_cast<int>(m->scales[static_cast<std::size_t>(d.first_block)]);
    for (const auto* m : {&a, &b}) {
      std::cout << "\n  codes";
      for (index_t j = col; j < std::min(col + a.block, a.cols); ++j)
        std::cout << ' ' << static_cast<int>(m->codes[static_cast<std::size_t>(row * a.cols + j)]);
    }
    std::cout << '\n';
  }
  return d.codes_differing == 0 && d.scales_differing == 0 && !d.scalar_differs;
}

bool explain_vectors(const request& r) {
  std::size_t left_out = 0;
  const auto subjects = read_vector_subjects(r.files[0], left_out);
  if (r.id) {
    const auto at = std::ranges::find(subjects, *r.id, &vector_subject::id);
    if (at == subjects.end())
      throw usage_error(r.files[0] + ": no quantize case '" + *r.id + "' that can be explained");
    return explain_by_data(at->quantized, at->data, at->amax);
  }
  std::size_t as_named = 0, by_another = 0;
  for (const vector_subject& s : subjects) {
    const auto attempts = try_schemes(s.quantized, s.data, s.amax);
    std::string others;
    bool named = false;
    for (const attempt& a : attempts) {
      if (a.blocks_differing > 0) continue;
      named = named || (a.scheme == s.scheme && a.rounding == s.rounding);
      others += (others.empty() ? "" : "; ") + name_of(a);
    }
    as_named += named;
    by_another += !named && !others.empty();
    if (!named)
      std::cout << s.id << ": not " << s.scheme << (s.rounding == "nearest_even" ? "" : ", rounding " + s.rounding)
                << (others.empty() ? ", nor any other" : ", but " + others) << '\n';
  }
  std::cout << subjects.size() << " quantize cases: " << as_named << " are what the scheme they name gives, "
            << by_another << " what another does, " << subjects.size() - as_named - by_another << " neither; "
            << left_out << " left out (random rounding, columns, other targets, FP32 scales)\n";
  return as_named == subjects.size();
}

bool run(const request& r) {
  if (r.codes) {
    const auto q = read_arrays(*r.codes, *r.scales, r.bits, r.block, r.e8m0, r.packed, r.kind, r.scalar);
    const subject data = read_subject(r.files[0]);
    if (!data.data) throw usage_error(r.files[0] + ": is quantized itself");
    return explain_by_data(q, *data.data, r.amax);
  }
  if (r.files.size() == 1) return explain_vectors(r);
  std::vector<quantized_matrix> quantized;
  std::optional<data_matrix> data;
  for (const std::string& file : r.files) {
    subject s = read_subject(file);
    if (s.quantized)
      quantized.push_back(std::move(*s.quantized));
    else if (data)
      throw usage_error("two files of plain numbers; one has to be quantized");
    else
      data = std::move(*s.data);
  }
  if (quantized.size() > 2) throw usage_error("three quantized tensors; two, or two and their data");
  bool whole = true;
  if (quantized.size() == 2) whole = explain_two(quantized[0], quantized[1]);
  if (!data) return whole;
  whole = true;
  for (const quantized_matrix& q : quantized) {
    if (quantized.size() == 2) std::cout << '\n';
    whole = explain_by_data(q, *data, r.amax) && whole;
  }
  return whole;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const request r = parse({argv + 1, argv + argc});
    if (r.help) {
      std::cout << help;
      return 0;
    }
    return run(r) ? 0 : 1;
  } catch (const std::exception& e) {
    const std::string text = e.what(), prefix = "microscale: ";
    std::cerr << "explain: " << ms::interop::printable(text.starts_with(prefix) ? text.substr(prefix.size()) : text)
              << '\n';
    return 2;
  }
}
