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
#include "ranks.hpp"
#include "recipes.hpp"
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
  // Names take `width` characters.
  progress_line(std::string name, std::size_t width) : name_(std::move(name)) {
    name_.resize(std::max(width, name_.size()), ' ');
  }

  void operator()(const progress& now) {
    const bool last = now.step == now.steps;
    const auto time = clock::now();
    const std::int64_t tenth = std::max<std::int64_t>(1, now.steps / 10);
    const bool due =
        on_terminal_ ? time - shown_ > std::chrono::milliseconds(100) : now.step == 1 || now.step % tenth == 0;
    if (!due && !last) return;
    shown_ = time;
    const std::string steps = std::to_string(now.steps);
    std::cout << (on_terminal_ ? "\r" : "") << name_ << "step " << std::setw(static_cast<int>(steps.size())) << now.step
              << '/' << steps << "   loss " << fixed(now.loss, 4) << "   " << std::setw(6)
              << fixed(now.tokens_per_second, 0) << " tokens/s   " << minutes_and_seconds(now.seconds_left) << " left"
              << (on_terminal_ && !last ? "   " : "\n") << std::flush;
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

std::filesystem::path checkpoint_file(const options& chosen, const recipe& r) {
  return chosen.out / ("checkpoint-" + std::string(r.name));
}

// Makes the directory one of this run: no checkpoint of another one is left to be mistaken for its own.
void begin_run(const options& chosen) {
  std::error_code ignored;
  for (const recipe& r : recipes()) std::filesystem::remove(checkpoint_file(chosen, r), ignored);
  write_file(chosen.out / run_file, to_run_file(chosen));
}

void describe(const training_config& config, const corpus& text, std::int64_t parameters, int threads) {
  std::cout << "text      " << text.source << ": " << counted(text.files, "file") << ", " << text.bytes()
            << " bytes, cksum " << text.checksum << "; " << text.held_out.size() << " bytes held out\n"
            << "model     " << config.model.blocks << " blocks of width " << config.model.width << ", "
            << counted(config.model.heads, "head") << ", context " << config.model.context << ", " << parameters
            << " parameters\n"
            << "run       " << counted(config.steps, "step") << " of " << config.tokens_per_step() << " tokens, seed "
            << config.seed << ", " << counted(threads, "thread");
  if (config.ranks > 1) std::cout << " on each of " << config.ranks << " ranks";
  if (config.accumulate > 1) std::cout << ", " << config.accumulate << " micro-batches a step on each";
  std::cout << "\n\n";
}

void write_reports(const options& chosen, const training_config& config, const corpus& text,
                   const std::vector<training_result>& results) {
  write_file(chosen.out / "curves.csv", to_csv(results, config));
  if (chosen.stop_at.value_or(config.steps) < config.steps) {
    std::cout << "\nstopped after step " << *chosen.stop_at << "; go on with --resume " << chosen.out.string() << '\n';
    return;
  }
  const std::string table = to_table(results);
  write_file(chosen.out / "curves.svg", to_plot(results, config, text));
  write_file(chosen.out / "table.md", table);
  std::cout << '\n'
            << table << "\nwritten to " << chosen.out.string()
            << ": curves.csv, curves.svg, table.md, weights-*.safetensors\n";
}

void run(const options& chosen, const ranks& everyone) {
  training_config config;
  config.steps = chosen.steps;
  config.accumulate = chosen.accumulate;
  config.ranks = everyone.count();
  config.seed = chosen.seed;
  const corpus text = load_corpus(chosen.text, config.model.context);
  create_output_directory(chosen.out);
  if (everyone.is_first() && !chosen.resume) begin_run(chosen);
  everyone.meet();
  thread_pool pool(chosen.threads_of_each(everyone.count()));
  if (everyone.is_first())
    describe(config, text,
             transformer(config.model, *chosen.recipes.front(), chosen.seed, pool, everyone).parameter_count(),
             pool.size());

  std::size_t width = 10;
  for (const recipe* r : chosen.recipes) width = std::max(width, r->name.size() + 2);
  std::vector<training_result> results;
  for (const recipe* r : chosen.recipes) {
    const checkpointing checkpoints{.file = checkpoint_file(chosen, *r),
                                    .every = chosen.checkpoint,
                                    .stop_at = chosen.stop_at.value_or(config.steps),
                                    .resume = chosen.resume};
    results.push_back(train(config, *r, text, pool, everyone, checkpoints, progress_line(std::string(r->name), width)));
    training_result& result = results.back();
    if (everyone.is_first() && !result.weights.empty())
      write_file(chosen.out / ("weights-" + std::string(r->name) + ".safetensors"),
                 to_safetensors(result.weights, {{"recipe", std::string(r->name)},
                                                 {"seed", std::to_string(config.seed)},
                                                 {"steps", std::to_string(config.steps)}}));
    result.weights.clear();
  }
  if (everyone.is_first()) write_reports(chosen, config, text, results);
}

// One line, and an exit code. Where other ranks may be waiting for this one, it ends them.
int refuse(const std::exception& error, int code, const ranks& everyone, bool is_known_to_all) {
  if (everyone.is_first() || !is_known_to_all) std::cerr << "pretrain: " << error.what() << '\n';
  if (everyone.count() > 1 && !is_known_to_all) ranks::abort(code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const ranks everyone;
  options chosen;
  try {
    chosen = parse_options({argv + 1, argv + argc});
  } catch (const usage_error& error) {
    return refuse(error, 2, everyone, true);
  }
  try {
    if (!chosen.help && !chosen.list) {
      run(chosen, everyone);
    } else if (everyone.is_first()) {
      std::cout << (chosen.help ? usage() : list_of_recipes());
    }
    return 0;
  } catch (const usage_error& error) {
    return refuse(error, 2, everyone, false);
  } catch (const std::exception& error) {
    return refuse(error, 1, everyone, false);
  }
}
