// Line charts as SVG: panels one above the other over a common horizontal axis.
#pragma once

#include <string>
#include <vector>

namespace pretrain {

struct point {
  double x, y;
};

struct series {
  std::string name;  // empty: not in the legend
  std::string color;
  std::vector<point> points;
  bool faint = false;
};

struct panel {
  std::string label;  // of the vertical axis
  double height;
  std::vector<series> lines;
};

[[nodiscard]] std::string to_svg(const std::string& title, const std::string& subtitle, const std::string& x_label,
                                 const std::vector<panel>& panels);

}  // namespace pretrain
