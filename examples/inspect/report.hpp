// What was measured, for people, for programs, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "work.hpp"

namespace inspect {

struct figures {
  const scheme* under = nullptr;
  std::uint64_t bytes = 0;
  ms::quantization_metrics metrics;
  scale_histogram scales{};
};

struct measured_item {
  const item* what = nullptr;
  float amax = 0.0f;
  std::vector<figures> schemes;  // empty for what is no matrix or was left out
};

struct report {
  std::string file, format;
  std::vector<measured_item> items;
  std::vector<figures> total;  // one for each scheme, over all matrices
  exponent_histogram elements{};
};

std::string to_table(const report& r);
std::string to_json(const report& r);
std::string to_svg(const report& r);

}  // namespace inspect
