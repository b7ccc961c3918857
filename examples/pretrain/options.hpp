// The command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "error.hpp"
#include "recipes.hpp"

namespace pretrain {

struct options {
  std::vector<const recipe*> recipes;
  std::int64_t steps = 1500;
  std::uint64_t seed = 1;
  std::optional<std::filesystem::path> text;  // none: the compiler's own headers
  std::filesystem::path out = "pretrain-out";
  int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  bool help = false;
};

[[nodiscard]] inline std::string recipe_names() {
  std::string names;
  for (const recipe& r : recipes()) names += (names.empty() ? "" : ", ") + std::string(r.name);
  return names;
}

[[nodiscard]] inline std::string usage() {
  const options defaults;
  std::string text =
      "usage: pretrain [options]\n"
      "Trains a small byte-level transformer from scratch, once under each recipe, and compares.\n\n"
      "  --recipe NAME[,NAME...]  what the internal linear layers compute in (default: those with *)\n";
  for (const recipe& r : recipes()) {
    std::string line = "      " + std::string(r.by_default ? "* " : "  ") + std::string(r.name);
    line.resize(std::max<std::size_t>(line.size() + 2, 27), ' ');
    text += line + std::string(r.summary) + '\n';
  }
  text += "  --steps N                training steps for each recipe (default " + std::to_string(defaults.steps) +
          ")\n" + "  --seed N                 of the weights, the batches and the rounding (default " +
          std::to_string(defaults.seed) + ")\n" +
          "  --text FILE              what to learn (default: the compiler's C++ standard headers)\n"
          "  --out DIR                where curves, plot and weights go (default " +
          defaults.out.string() + ")\n" +
          "  --threads N              changes the time, never a number (default: all)\n"
          "  --help\n";
  return text;
}

namespace detail {

template <class Integer>
Integer parse_number(std::string_view option, std::string_view text, Integer low, Integer high) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high)
    throw usage_error(std::string(option) + ": expected a whole number from " + std::to_string(low) + " to " +
                      std::to_string(high) + ", got '" + std::string(text) + "'");
  return value;
}

inline std::vector<const recipe*> parse_recipes(std::string_view list) {
  std::vector<const recipe*> chosen;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    const recipe* found = find_recipe(name);
    if (!found) throw usage_error("--recipe: unknown recipe '" + std::string(name) + "'; there are " + recipe_names());
    if (std::ranges::find(chosen, found) != chosen.end())
      throw usage_error("--recipe: '" + std::string(name) + "' is named twice");
    chosen.push_back(found);
    begin = end + 1;
  }
  return chosen;
}

}  // namespace detail

// Takes "--name value" and "--name=value".
[[nodiscard]] inline options parse_options(const std::vector<std::string>& arguments) {
  options result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      result.help = true;
      return result;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    constexpr std::string_view known[] = {"--recipe", "--steps", "--seed", "--text", "--out", "--threads"};
    if (std::ranges::find(known, name) == std::end(known))
      throw usage_error("unknown option '" + argument + "'; --help lists them");
    if (equals == std::string::npos && i + 1 == arguments.size()) throw usage_error(name + ": a value is missing");
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (value.empty()) throw usage_error(name + ": a value is missing");

    if (name == "--recipe") result.recipes = detail::parse_recipes(value);
    if (name == "--steps") result.steps = detail::parse_number<std::int64_t>(name, value, 1, 10'000'000);
    if (name == "--seed") result.seed = detail::parse_number<std::uint64_t>(name, value, 0, UINT64_MAX);
    if (name == "--threads") result.threads = detail::parse_number<int>(name, value, 1, 256);
    if (name == "--text") result.text = value;
    if (name == "--out") result.out = value;
  }
  if (result.recipes.empty())
    for (const recipe& r : recipes())
      if (r.by_default) result.recipes.push_back(&r);
  return result;
}

}  // namespace pretrain
