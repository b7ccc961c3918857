// The command line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "schemes.hpp"
#include "source.hpp"

namespace inspect {

struct options {
  std::filesystem::path file;
  std::vector<const scheme*> schemes;   // to measure
  std::vector<std::string> only, skip;  // parts of names
  bool skip_given = false;
  bool json = false;
  std::optional<std::filesystem::path> plot;
  const scheme* to = nullptr;
  target as = target::compressed_tensors;
  std::optional<std::string> from;
  bool bf16 = false;
  std::optional<std::filesystem::path> out;
  bool any_amax = false;
  int threads = 0;
  bool help = false;

  // Whether --only and --skip leave this name.
  bool wants(const std::string& name) const;
};

std::string usage();
// Takes "--name value" and "--name=value". Throws usage_error for what is not right.
options parse_options(const std::vector<std::string>& arguments);

}  // namespace inspect
