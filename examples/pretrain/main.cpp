// Pretrains a small language model on real text, once under each recipe, and compares them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "corpus.hpp"
#include "error.hpp"
#include "files.hpp"
#include "options.hpp"
#include "parallel.hpp"
#include "report.hpp"
#include "safetensors.hpp"
#include "trainer.hpp"

namespace {

using namespace pretrain;

std::string minutes_and_seconds(double seconds) {
  const long whole = std::lround(seconds);
  return std::to_string(whole / 60) + (whole % 60 < 10 ? ":0" : ":") + std::to_string(whole % 60);
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

// One line that rewrites itself on a terminal; eleven lines a recipe elsewhere.
class progress_line {
 public:
  explicit progress_line(std::string name) : name_(std::move(name)) {}

  void operator()(const progress& now) {
    const bool last = now.step == now.steps;
    const auto time = clock::now();
    const std::int64_t tenth = std::max<std::int64_t>(1, now.steps / 10);
    const bool due =
        on_terminal_ ? time - shown_ > std::chrono::milliseconds(100) : now.step == 1 || now.step % tenth == 0;
    if (!due && !last) return;
    shown_ = time;
    const std::string steps = std::to_string(now.steps);
    std::cout << (on_terminal_ ? "\r" : "") << std::left << std::setw(10) << name_ << "step " << std::right
              << std::setw(static_cast<int>(steps.size())) << now.step << '/' << steps << "   loss "
              << fixed(now.loss, 4) << "   " << std::setw(6) << fixed(now.tokens_per_second, 0) << " tokens/s   "
              << minutes_and_seconds(now.seconds_left) << " left" << (on_terminal_ && !last ? "   " : "\n")
              << std::flush;
  }

 private:
  using clock = std::chrono::steady_clock;
  std::string name_;
  bool on_terminal_ = isatty(STDOUT_FILENO) == 1;
  clock::time_point shown_{};
};

void create_output_directory(const std::filesystem::path& out) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (!std::filesystem::is_directory(out, error) || access(out.c_str(), W_OK) != 0)
    throw usage_error("--out: cannot write into '" + out.string() + "'");
}

void run(const options& chosen) {
  training_config config;
  config.steps = chosen.steps;
  config.seed = chosen.seed;
  const corpus text = load_corpus(chosen.text, config.model.context);
  create_output_directory(chosen.out);
  thread_pool pool(chosen.threads);

  const std::int64_t parameters =
      transformer(config.model, *chosen.recipes.front(), chosen.seed, pool).parameter_count();
  std::cout << "text      " << text.source << ": " << counted(text.files, "file") << ", " << text.bytes()
            << " bytes, cksum " << text.checksum << "; " << text.held_out.size() << " bytes held out\n"
            << "model     " << config.model.blocks << " blocks of width " << config.model.width << ", "
            << counted(config.model.heads, "head") << ", context " << config.model.context << ", " << parameters
            << " parameters\n"
            << "run       " << counted(config.steps, "step") << " of " << config.sequences * config.model.context
            << " tokens, seed " << config.seed << ", " << counted(pool.size(), "thread") << "\n\n";

  std::vector<training_result> results;
  for (const recipe* r : chosen.recipes) {
    results.push_back(train(config, *r, text, pool, progress_line(std::string(r->name))));
    write_file(chosen.out / ("weights-" + std::string(r->name) + ".safetensors"),
               to_safetensors(results.back().weights, {{"recipe", std::string(r->name)},
                                                       {"seed", std::to_string(config.seed)},
                                                       {"steps", std::to_string(config.steps)}}));
    results.back().weights.clear();
  }

  const std::string table = to_table(results);
  write_file(chosen.out / "curves.csv", to_csv(results, config));
  write_file(chosen.out / "curves.svg", to_plot(results, config, text));
  write_file(chosen.out / "table.md", table);
  std::cout << '\n'
            << table << "\nwritten to " << chosen.out.string()
            << ": curves.csv, curves.svg, table.md, weights-*.safetensors\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const options chosen = parse_options({argv + 1, argv + argc});
    if (chosen.help)
      std::cout << usage();
    else
      run(chosen);
    return 0;
  } catch (const usage_error& error) {
    std::cerr << "pretrain: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "pretrain: " << error.what() << '\n';
    return 1;
  }
}
