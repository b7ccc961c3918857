#include "svg.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "files.hpp"

namespace pretrain {
namespace {

constexpr double left = 76, right = 24, top = 78, between = 26, bottom = 58, width = 860;
constexpr const char* ink = "#24292f";
constexpr const char* grey = "#57606a";
constexpr const char* grid = "#e4e7eb";

struct range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void widen(double share) {
    if (!(low <= high)) low = 0, high = 1;
    const double margin = high > low ? share * (high - low) : 0.5;
    low -= margin;
    high += margin;
  }
};

// 1, 2 or 5 times a power of ten, so that about `count` steps cover the range.
double tick_step(range r, double count) {
  const double raw = (r.high - r.low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

// The multiples of a step within a range.
std::vector<double> ticks(range r, double step) {
  std::vector<double> values;
  const auto last = static_cast<long>(std::floor(r.high / step));
  for (auto n = static_cast<long>(std::ceil(r.low / step)); n <= last; ++n)
    values.push_back(static_cast<double>(n) * step);
  return values;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

std::string line(double x1, double y1, double x2, double y2, const char* color) {
  return "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) + "\" y2=\"" +
         fixed(y2, 1) + "\" stroke=\"" + color + "\"/>\n";
}

std::string text(double x, double y, const std::string& attributes, const std::string& content) {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" " + attributes + ">" + escape(content) +
         "</text>\n";
}

std::string fill(const char* color, const char* anchor, int size) {
  return std::string("fill=\"") + color + "\" text-anchor=\"" + anchor + "\" font-size=\"" + std::to_string(size) + '"';
}

std::string legend(const panel& p, double y) {
  std::string out;
  // Right to left, so that the names end at the edge of the panel.
  double x = width - right;
  for (std::size_t i = p.lines.size(); i-- > 0;) {
    const series& s = p.lines[i];
    if (s.name.empty()) continue;
    out += text(x, y, fill(ink, "end", 13), s.name);
    x -= 9.0 * static_cast<double>(s.name.size()) + 8;
    out += "<line x1=\"" + fixed(x - 22, 1) + "\" y1=\"" + fixed(y - 4, 1) + "\" x2=\"" + fixed(x, 1) + "\" y2=\"" +
           fixed(y - 4, 1) + "\" stroke=\"" + s.color + "\" stroke-width=\"3\" stroke-linecap=\"round\"/>\n";
    x -= 40;
  }
  return out;
}

}  // namespace

std::string to_svg(const std::string& title, const std::string& subtitle, const std::string& x_label,
                   const std::vector<panel>& panels) {
  range x_range;
  double height = top + bottom;
  for (const panel& p : panels) {
    height += p.height + (&p == &panels.front() ? 0 : between);
    for (const series& s : p.lines)
      for (const point& at : s.points) x_range.include(at.x);
  }
  if (!(x_range.low < x_range.high)) x_range.widen(0);
  const auto to_x = [&](double x) {
    return left + (x - x_range.low) / (x_range.high - x_range.low) * (width - left - right);
  };

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width, 0) + ' ' +
                    fixed(height, 0) + "\" width=\"" + fixed(width, 0) + "\" height=\"" + fixed(height, 0) +
                    "\" font-family=\"system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  svg += text(left, 30, fill(ink, "start", 18) + " font-weight=\"600\"", title);
  svg += text(left, 50, fill(grey, "start", 13), subtitle);
  if (!panels.empty()) svg += legend(panels.front(), top - 8);

  double y = top;
  for (const panel& p : panels) {
    range y_range;
    for (const series& s : p.lines)
      for (const point& at : s.points) y_range.include(at.y);
    y_range.widen(0.05);
    const auto to_y = [&](double value) {
      return y + (y_range.high - value) / (y_range.high - y_range.low) * p.height;
    };

    const double y_step = tick_step(y_range, p.height / 36);
    const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(y_step) + 1e-9)));
    for (const double value : ticks(y_range, y_step)) {
      const double at = to_y(value);
      svg += line(left, at, width - right, at, grid);
      svg += text(left - 8, at + 4, fill(grey, "end", 12), fixed(value, digits));
    }
    const double x_step = std::max(1.0, tick_step(x_range, 8));
    for (const double value : ticks(x_range, x_step)) {
      const double at = to_x(value);
      svg += line(at, y, at, y + p.height, grid);
      if (&p == &panels.back()) svg += text(at, y + p.height + 18, fill(grey, "middle", 12), fixed(value, 0));
    }
    svg += line(left, y + p.height, width - right, y + p.height, grey);
    svg += line(left, y, left, y + p.height, grey);
    const double middle = y + p.height / 2;
    svg +=
        text(22, middle, fill(ink, "middle", 13) + " transform=\"rotate(-90 22 " + fixed(middle, 1) + ")\"", p.label);

    for (const series& s : p.lines) {
      std::string points;
      for (const point& at : s.points)
        if (std::isfinite(at.y)) points += fixed(to_x(at.x), 1) + ',' + fixed(to_y(at.y), 1) + ' ';
      svg += "<polyline fill=\"none\" stroke=\"" + s.color + "\" stroke-linejoin=\"round\" " +
             (s.faint ? "stroke-width=\"1\" stroke-opacity=\"0.22\"" : "stroke-width=\"2\"") + " points=\"" + points +
             "\"/>\n";
    }
    y += p.height + between;
  }
  svg += text((left + width - right) / 2, height - 16, fill(ink, "middle", 13), x_label);
  return svg + "</svg>\n";
}

}  // namespace pretrain
