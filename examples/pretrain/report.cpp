#include "report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "files.hpp"
#include "svg.hpp"

namespace pretrain {
namespace {

constexpr const char* none = "-";

const training_result* find_bf16(const std::vector<training_result>& results) {
  const auto it = std::ranges::find(results, "bf16", &training_result::recipe);
  return it == results.end() ? nullptr : &*it;
}

std::string loss(double value) { return std::isnan(value) ? none : fixed(value, 4); }

std::string gap(double value) {
  if (std::isnan(value)) return none;
  std::string text = value < 0 ? "" : "+";
  return text += fixed(value, 4);
}

std::string percent(double share) { return fixed(100 * share, 3) + " %"; }

using row = std::vector<std::string>;

// The first columns are names and stand left, the others are numbers and stand right.
std::string markdown(const std::vector<row>& rows, std::size_t names) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const row& r : rows)
    for (std::size_t i = 0; i < r.size(); ++i) widths[i] = std::max(widths[i], r[i].size());
  std::string out;
  for (const row& r : rows) {
    for (std::size_t i = 0; i < r.size(); ++i) {
      const std::string padding(widths[i] - r[i].size(), ' ');
      out += "| ";
      out += i < names ? r[i] + padding : padding + r[i];
      out += ' ';
    }
    out += "|\n";
    if (&r != &rows.front()) continue;
    for (std::size_t i = 0; i < r.size(); ++i) out += '|' + std::string(widths[i] + 1, '-') + (i < names ? '-' : ':');
    out += "|\n";
  }
  return out;
}

// The mean of each value and of its neighbours, a twentieth of the run altogether.
std::vector<point> smooth(const std::vector<double>& values) {
  const auto size = std::ssize(values);
  const std::ptrdiff_t reach = size / 40;
  std::vector<point> points;
  double sum = 0;
  std::ptrdiff_t begin = 0, end = 0;
  for (std::ptrdiff_t i = 0; i < size; ++i) {
    for (; end < std::min(size, i + reach + 1); ++end) sum += values[static_cast<std::size_t>(end)];
    for (; begin < std::max<std::ptrdiff_t>(0, i - reach); ++begin) sum -= values[static_cast<std::size_t>(begin)];
    points.push_back({static_cast<double>(i + 1), sum / static_cast<double>(end - begin)});
  }
  return points;
}

}  // namespace

std::string to_table(const std::vector<training_result>& results) {
  const training_result* bf16 = find_bf16(results);
  std::vector<row> losses = {{"recipe", "training loss", "gap to BF16", "held-out loss", "gap to BF16", "tokens/s"}};
  std::vector<row> operands = {
      {"recipe", "operand", "SQNR (dB)", "largest error", "underflowed scales", "saturated blocks"}};
  for (const training_result& r : results) {
    const bool compare = bf16 && &r != bf16;
    losses.push_back({r.recipe, loss(r.final_loss), compare ? gap(r.final_loss - bf16->final_loss) : none,
                      loss(r.held_out_loss), compare ? gap(r.held_out_loss - bf16->held_out_loss) : none,
                      fixed(r.tokens_per_second, 0)});
    const auto add = [&](const char* operand, const microscale::quantization_metrics& m) {
      if (m.elements == 0) return;  // nothing was quantized
      operands.push_back({r.recipe, operand, fixed(m.sqnr_db(), 2), general(m.largest_error, 3),
                          percent(m.underflowed_share()), percent(m.saturated_share())});
    };
    add("X", r.metrics.activation);
    add("W", r.metrics.weight);
    add("dY", r.metrics.output_gradient);
  }
  std::string table = markdown(losses, 1);
  if (operands.size() > 1) table += '\n' + markdown(operands, 2);
  for (const training_result& r : results)
    if (r.bf16_backward_since > 0)
      table += '\n' + r.recipe + ": backward pass in BF16 from step " + std::to_string(r.bf16_backward_since) + " on\n";
  return table;
}

std::string to_csv(const std::vector<training_result>& results, const training_config& config) {
  std::string csv = "recipe,step,tokens,learning_rate,loss,gradient_norm\n";
  for (const training_result& r : results)
    for (std::size_t i = 0; i < r.steps.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i) + 1;
      const training_step& s = r.steps[i];
      csv += r.recipe + ',' + std::to_string(step) + ',' + std::to_string(step * config.tokens_per_step()) + ',' +
             general(static_cast<double>(s.learning_rate), 9) + ',' + general(s.loss, 9) + ',' +
             general(s.gradient_norm, 9) + '\n';
    }
  return csv;
}

std::string to_plot(const std::vector<training_result>& results, const training_config& config, const corpus& text) {
  // Told apart without color vision, too: the palette of Okabe and Ito.
  constexpr std::array colors = {"#24292f", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"};
  const training_result* bf16 = find_bf16(results);
  panel losses{"training loss (nats per byte)", 320, {}};
  panel gaps{"gap to BF16", 150, {}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const training_result& r = results[i];
    const std::string color = colors[i % colors.size()];
    std::vector<double> values, differences;
    series raw{"", color, {}, true};
    for (std::size_t step = 0; step < r.steps.size(); ++step) {
      values.push_back(r.steps[step].loss);
      raw.points.push_back({static_cast<double>(step + 1), values.back()});
      if (bf16) differences.push_back(values.back() - bf16->steps[step].loss);
    }
    losses.lines.insert(losses.lines.begin(), std::move(raw));  // beneath the smooth lines
    losses.lines.push_back({r.recipe, color, smooth(values)});
    if (bf16) gaps.lines.push_back({r.recipe, color, smooth(differences)});
  }
  std::vector<panel> panels = {std::move(losses)};
  if (bf16 && results.size() > 1) panels.push_back(std::move(gaps));
  return to_svg("A byte-level transformer, pretrained from scratch",
                std::to_string(config.model.blocks) + " blocks of width " + std::to_string(config.model.width) + ", " +
                    std::to_string(config.tokens_per_step()) + " tokens a step, " +
                    fixed(static_cast<double>(text.bytes()) * 1e-6, 1) + " MB of text, seed " +
                    std::to_string(config.seed),
                "step", panels);
}

}  // namespace pretrain
