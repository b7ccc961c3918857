// What an executor answered, and how it compares with what a case expects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <microscale/microscale.hpp>

#include "request.hpp"

namespace conformance {

// One field as computed on one path. A field may be computed on several (block by block, whole tensor, ...); each is
// held to the expectation, or to the first path where the case expects nothing.
struct computed_field {
  std::string field;
  std::string path;
  int digits = 8;  // how many hex digits a value is written with
  std::vector<std::uint32_t> values;
  std::vector<bool> is_nan;

  static computed_field floats(std::string field, std::string path, const std::vector<float>& values) {
    computed_field f{std::move(field), std::move(path), 8, {}, {}};
    for (const float x : values) {
      f.values.push_back(ms::fp32::bits(x));
      f.is_nan.push_back(ms::fp32::is_nan(x));
    }
    return f;
  }
  template <class Format, class Code>
  static computed_field codes(std::string field, std::string path, const std::vector<Code>& values) {
    computed_field f{std::move(field), std::move(path), (Format::bits + 3) / 4, {}, {}};
    for (const Code code : values) {
      f.values.push_back(code);
      f.is_nan.push_back(Format::is_nan(static_cast<typename Format::storage>(code)));
    }
    return f;
  }
  static computed_field bytes(std::string field, std::string path, const std::vector<std::uint8_t>& values) {
    return {std::move(field), std::move(path), 2, {values.begin(), values.end()}, std::vector<bool>(values.size())};
  }
};

struct outcome {
  std::vector<computed_field> fields;
  std::string skipped;  // why the case was not run; empty where it was
};

// Nothing where all fields are as expected, else "field[index] (path): expected X, got Y (N of M differ)" for each
// field that is not, separated by "; ".
std::string differences(const request& r, const outcome& o);

}  // namespace conformance
