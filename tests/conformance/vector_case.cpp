#include "vector_case.hpp"

#include <algorithm>
#include <unordered_set>

namespace conformance {

namespace {

constexpr std::string_view header = "microscale-vectors 1";

// What a line of each operation may hold besides id, op and policy, as space-separated keys. A key that is an input of
// one operation may be an expectation of another.
struct operation_keys {
  std::string_view op, inputs, expectations;
};

constexpr operation_keys operations[] = {
    {"encode", "format in in64 rounding overflow random", "codes"},
    {"decode", "format codes", "out"},
    {"quantize", "scheme rows cols in amax axis rounding random scale_random target",
     "scales codes tensor_scale tensor_encode out"},
    {"dequantize", "scheme rows cols axis codes scales amax tensor_encode tensor_scale", "out"},
    {"gemm", "scheme b_scheme m n k a_codes a_scales a_tensor_scale b_codes b_scales b_tensor_scale accumulate", "out"},
    {"pack", "bits codes", "bytes"},
    {"layout", "name rows cols in", "bytes"},
    {"hadamard", "size signs in", "out"},
};

constexpr std::string_view policies[] = {
    "nan_to_max",        "nan_ignored",   "inf_scale_nan",         "int_symmetric",       "int_full",
    "e8m0_tie_up",       "e8m0_tie_even", "dequant_payload_first", "dequant_scale_first", "scalar_division",
    "scalar_reciprocal",
};

bool is_word_of(std::string_view words, std::string_view word) {
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

vector_case parse_line(std::size_t number, std::string_view line) {
  vector_case c;
  c.line = number;
  std::unordered_set<std::string> seen;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    const std::string_view field = line.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = field.find('=');
    if (field.empty()) c.fail("fields are separated by single spaces, and none follows the last");
    if (equals == std::string_view::npos || equals == 0) c.fail("expected key=value, got " + quoted(field));
    std::string key(field.substr(0, equals));
    std::string value(field.substr(equals + 1));
    if (!seen.insert(key).second) c.fail("key " + quoted(key) + " is given twice");
    if (key == "id") {
      c.id = std::move(value);
    } else if (key == "op") {
      c.op = std::move(value);
    } else if (key == "policy") {
      c.policy = std::move(value);
    } else {
      c.fields.emplace_back(std::move(key), std::move(value));
    }
  }
  if (c.id.empty()) c.fail("a case needs an id");
  if (c.op.empty()) c.fail("a case needs an op");

  const auto* op = std::ranges::find(operations, c.op, &operation_keys::op);
  if (op == std::end(operations)) c.fail("unknown op " + quoted(c.op));
  if (seen.contains("policy") && std::ranges::find(policies, c.policy) == std::end(policies)) {
    c.fail("unknown policy " + quoted(c.policy));
  }
  bool expects = false;
  for (const auto& [key, value] : c.fields) {
    const bool is_expectation = is_word_of(op->expectations, key);
    if (!is_expectation && !is_word_of(op->inputs, key)) c.fail("unknown key " + quoted(key) + " for op " + c.op);
    expects = expects || is_expectation;
  }
  if (!expects) c.fail("nothing is expected");
  return c;
}

}  // namespace

const std::string* vector_case::find(std::string_view key) const {
  const auto at = std::ranges::find_if(fields, [&](const auto& field) { return field.first == key; });
  return at == fields.end() ? nullptr : &at->second;
}

const std::string& vector_case::text(std::string_view key) const {
  const std::string* value = find(key);
  if (value == nullptr) fail("op " + op + " needs " + quoted(key));
  return *value;
}

std::string_view vector_case::text_or(std::string_view key, std::string_view otherwise) const {
  const std::string* value = find(key);
  return value == nullptr ? otherwise : std::string_view(*value);
}

std::vector<vector_case> read_vectors(std::istream& in) {
  std::vector<vector_case> cases;
  std::unordered_set<std::string> ids;
  std::string line;
  std::size_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (number == 1) {
      if (line != header) throw malformed(1, "the first line is not '" + std::string(header) + "'");
    } else if (!line.empty() && line[0] != '#') {
      cases.push_back(parse_line(number, line));
      if (!ids.insert(cases.back().id).second) cases.back().fail("id " + quoted(cases.back().id) + " is used twice");
    }
  }
  if (in.bad()) throw malformed(number + 1, "the file cannot be read further");
  if (number == 0) throw malformed(1, "the first line is not '" + std::string(header) + "'");
  return cases;
}

}  // namespace conformance
