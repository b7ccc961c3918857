// The text of a vector file: lines to cases, a case to its fields. Knows which operations and keys there are, and
// nothing of numbers or of the library. docs/conformance.md says what a vector file is.
#pragma once

#include <cstddef>
#include <istream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace conformance {

// A file that cannot be read as vectors: where, and why.
struct malformed : std::runtime_error {
  malformed(std::size_t at_line, const std::string& why) : std::runtime_error(why), line(at_line) {}
  std::size_t line;
};

// One line `key=value key=value ...`, its keys checked against its operation.
struct vector_case {
  std::size_t line = 0;
  std::string id;
  std::string op;
  std::string policy;                                       // empty where the case holds under every policy
  std::vector<std::pair<std::string, std::string>> fields;  // inputs and expectations

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // The value of a field that must be there.
  const std::string& text(std::string_view key) const;
  // The value of a field, or what it is by default.
  std::string_view text_or(std::string_view key, std::string_view otherwise) const;
  // Reports this line as malformed.
  [[noreturn]] void fail(const std::string& why) const { throw malformed(line, why); }

 private:
  const std::string* find(std::string_view key) const;
};

// All cases of a file; throws `malformed` for the first line that is not right.
std::vector<vector_case> read_vectors(std::istream& in);

}  // namespace conformance
