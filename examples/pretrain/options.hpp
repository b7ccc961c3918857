// The command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
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
  std::int64_t steps = 1000;
  int accumulate = 1;
  std::uint64_t seed = 1;
  std::optional<std::filesystem::path> text;  // none: the compiler's own headers
  std::filesystem::path out = "pretrain-out";
  bool resume = false;                  // what is above comes from a run in `out`
  std::optional<std::int64_t> stop_at;  // none: go to the last step
  std::int64_t checkpoint = 100;        // steps between checkpoints
  int threads = 0;                      // 0: all there are, shared by the ranks
  bool help = false;
  bool list = false;

  // So many of `ranks` processes on this machine should use.
  [[nodiscard]] int threads_of_each(int ranks) const {
    return threads > 0 ? threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / ranks, 1, 64);
  }
};

[[nodiscard]] inline std::string joined_names(const std::vector<const recipe*>& list) {
  std::string names;
  for (const recipe* r : list) names.append(names.empty() ? "" : ",").append(r->name);
  return names;
}

[[nodiscard]] inline std::vector<const recipe*> default_recipes() {
  std::vector<const recipe*> list;
  for (const recipe& r : recipes())
    if (r.by_default) list.push_back(&r);
  return list;
}

// The recipes, one a line; those of a default run with a star.
[[nodiscard]] inline std::string list_of_recipes() {
  std::size_t width = 0;
  for (const recipe& r : recipes()) width = std::max(width, r.name.size());
  std::string text;
  for (const recipe& r : recipes())
    text.append(r.by_default ? "* " : "  ")
        .append(r.name)
        .append(width + 2 - r.name.size(), ' ')
        .append(r.summary)
        .append("\n");
  return text;
}

[[nodiscard]] inline std::string usage() {
  const options defaults;
  return "usage: pretrain [options]\n"
         "       mpirun -n RANKS pretrain [options]\n"
         "Trains a small byte-level transformer from scratch, once under each recipe, and compares.\n\n"
         "  --recipe NAME[,NAME...]  what the internal linear layers compute in (default: " +
         joined_names(default_recipes()) +
         ")\n"
         "  --list                   the recipes there are\n"
         "  --steps N                training steps for each recipe (default " +
         std::to_string(defaults.steps) +
         ")\n"
         "  --accumulate N           micro-batches of a step, on each rank (default 1)\n"
         "  --seed N                 of the weights, the batches and the rounding (default " +
         std::to_string(defaults.seed) +
         ")\n"
         "  --text FILE              what to learn (default: the compiler's C++ standard headers)\n"
         "  --out DIR                where curves, plot, weights and checkpoints go (default " +
         defaults.out.string() +
         ")\n"
         "  --resume DIR             goes on with a run that was stopped or killed; takes all of the above from it\n"
         "  --stop-at N              leaves after step N of the schedule, with a checkpoint\n"
         "  --checkpoint N           steps between checkpoints (default " +
         std::to_string(defaults.checkpoint) +
         ")\n"
         "  --threads N              changes the time, never a number (default: all, shared by the ranks)\n"
         "  --help\n";
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
    if (!found) throw usage_error("--recipe: unknown recipe '" + std::string(name) + "'; --list has them");
    if (std::ranges::find(chosen, found) != chosen.end())
      throw usage_error("--recipe: '" + std::string(name) + "' is named twice");
    chosen.push_back(found);
    begin = end + 1;
  }
  return chosen;
}

}  // namespace detail

namespace detail {

// Takes "--name value" and "--name=value".
inline options parse_given(const std::vector<std::string>& arguments) {
  options result;
  bool has_run = false;  // an option that a resumed run brings along
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h" || argument == "--list") {
      (argument == "--list" ? result.list : result.help) = true;
      return result;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    constexpr std::string_view of_run[] = {"--recipe", "--steps", "--accumulate", "--seed", "--text", "--out"};
    constexpr std::string_view of_process[] = {"--resume", "--stop-at", "--checkpoint", "--threads"};
    const bool is_of_run = std::ranges::find(of_run, name) != std::end(of_run);
    if (!is_of_run && std::ranges::find(of_process, name) == std::end(of_process))
      throw usage_error("unknown option '" + argument + "'; --help lists them");
    if (equals == std::string::npos && i + 1 == arguments.size()) throw usage_error(name + ": a value is missing");
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (value.empty()) throw usage_error(name + ": a value is missing");

    constexpr std::int64_t most_steps = 10'000'000;
    has_run = has_run || is_of_run;
    if (name == "--recipe") result.recipes = parse_recipes(value);
    if (name == "--steps") result.steps = parse_number<std::int64_t>(name, value, 1, most_steps);
    if (name == "--accumulate") result.accumulate = parse_number<int>(name, value, 1, 1024);
    if (name == "--seed") result.seed = parse_number<std::uint64_t>(name, value, 0, UINT64_MAX);
    if (name == "--stop-at") result.stop_at = parse_number<std::int64_t>(name, value, 1, most_steps);
    if (name == "--checkpoint") result.checkpoint = parse_number<std::int64_t>(name, value, 1, most_steps);
    if (name == "--threads") result.threads = parse_number<int>(name, value, 1, 256);
    if (name == "--text") result.text = value;
    if (name == "--out") result.out = value;
    if (name == "--resume") {
      result.out = value;
      result.resume = true;
    }
  }
  if (result.resume && has_run)
    throw usage_error("--resume: recipes, steps, seed, text and place are those of the run that goes on");
  if (result.recipes.empty()) result.recipes = default_recipes();
  return result;
}

}  // namespace detail

// The file in a run's directory that says what the run is: its options, one a line, for --resume.
inline constexpr std::string_view run_file = "run.txt";

[[nodiscard]] inline std::string to_run_file(const options& chosen) {
  std::string text = "--recipe=" + joined_names(chosen.recipes) + "\n--steps=" + std::to_string(chosen.steps) +
                     "\n--accumulate=" + std::to_string(chosen.accumulate) + "\n--seed=" + std::to_string(chosen.seed) +
                     "\n";
  if (chosen.text) text += "--text=" + std::filesystem::absolute(*chosen.text).string() + '\n';
  return text;
}

// What the command line asks for; of a run that goes on, what the run's own file says.
[[nodiscard]] inline options parse_options(const std::vector<std::string>& arguments) {
  options given = detail::parse_given(arguments);
  if (given.resume) {
    const std::filesystem::path path = given.out / run_file;
    std::ifstream in(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    if (lines.empty()) throw usage_error("--resume: no run in '" + given.out.string() + "'");
    options run;
    try {
      run = detail::parse_given(lines);
    } catch (const usage_error& error) {
      throw usage_error("--resume: '" + path.string() + "' is damaged: " + error.what());
    }
    given.recipes = run.recipes;
    given.steps = run.steps;
    given.accumulate = run.accumulate;
    given.seed = run.seed;
    given.text = run.text;
  }
  if (given.stop_at.value_or(0) > given.steps)
    throw usage_error("--stop-at: expected a step of the run, 1 to " + std::to_string(given.steps) + ", got " +
                      std::to_string(*given.stop_at));
  return given;
}

}  // namespace pretrain
