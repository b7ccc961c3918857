#include "report.hpp"

#include <microscale/interop/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace inspect {

namespace {

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0 ? "exact" : "-inf";
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr};
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < std::size(units); ++unit) value /= 1024.0;
  return fixed(value, unit == 0 ? 0 : 1) + ' ' + units[unit];
}

std::string percent(std::int64_t count, std::int64_t of) {
  if (count == 0) return "0";
  const double share = 100.0 * static_cast<double>(count) / static_cast<double>(of);
  return share < 0.01 ? "<0.01%" : fixed(share, 2) + "%";
}

// A row of cells for a table whose columns are as wide as their widest cell; the first `left` are flush left.
using row = std::vector<std::string>;
std::string table(const std::vector<row>& rows, std::size_t left) {
  std::vector<std::size_t> width;
  for (const row& cells : rows) {
    width.resize(std::max(width.size(), cells.size()));
    for (std::size_t i = 0; i < cells.size(); ++i) width[i] = std::max(width[i], cells[i].size());
  }
  std::string text;
  for (const row& cells : rows) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string space(width[i] - cells[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (i < left ? cells[i] + space : space + cells[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

using ms::interop::printable;

row cells_of(std::string name, std::string type, std::string shape, const figures& f) {
  const auto& m = f.metrics;
  const std::string at =
      m.worst_row < 0 ? "-" : "[" + std::to_string(m.worst_row) + ", " + std::to_string(m.worst_col) + "]";
  return {std::move(name),
          std::move(type),
          std::move(shape),
          std::string(f.under->name),
          size_text(f.bytes),
          fixed(m.sqnr_db(), 2),
          fixed(m.worst_db(), 2),
          at,
          percent(m.saturated_blocks, m.blocks),
          percent(m.underflowed_scales, m.blocks),
          percent(m.nan_scales, m.blocks),
          percent(m.nonfinite_blocks, m.blocks)};
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string json_of(const figures& f) {
  const auto& m = f.metrics;
  std::string s = "{\"bytes\":" + std::to_string(f.bytes) + ",\"sqnr_db\":" + number(m.sqnr_db());
  s += ",\"signal\":" + number(m.signal) + ",\"noise\":" + number(m.noise) +
       ",\"largest_error\":" + number(m.largest_error);
  s += ",\"worst_block\":";
  s += m.worst_row < 0 ? "null"
                       : "{\"row\":" + std::to_string(m.worst_row) + ",\"column\":" + std::to_string(m.worst_col) +
                             ",\"sqnr_db\":" + number(m.worst_db()) + "}";
  s += ",\"blocks\":" + std::to_string(m.blocks) + ",\"saturated\":" + std::to_string(m.saturated_blocks);
  s += ",\"underflowed\":" + std::to_string(m.underflowed_scales) + ",\"nan_scales\":" + std::to_string(m.nan_scales);
  return s + ",\"nonfinite\":" + std::to_string(m.nonfinite_blocks) + "}";
}

std::string json_of(const std::vector<figures>& all) {
  std::string s = "{";
  for (const figures& f : all)
    s += (s.size() > 1 ? "," : "") + ms::interop::json_string(f.under->name) + ":" + json_of(f);
  return s + "}";
}

// One histogram: bars over powers of two, from the first that occurs to the last.
struct bars {
  std::string title;
  std::vector<std::pair<int, double>> shares;  // exponent, share of all
  std::string note;
};

std::string xml(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

constexpr double plot_width = 640, plot_height = 130, plot_left = 56, plot_gap = 62;

std::string draw(const bars& b, double top) {
  std::string s = "<text x=\"" + fixed(plot_left, 0) + "\" y=\"" + fixed(top - 10, 1) + "\" font-weight=\"bold\">" +
                  xml(b.title) + "</text><text x=\"" + fixed(plot_left + plot_width, 0) + "\" y=\"" +
                  fixed(top - 10, 1) + "\" text-anchor=\"end\" fill=\"#555\">" + xml(b.note) + "</text>\n";
  double highest = 0.0;
  for (const auto& [exponent, share] : b.shares) highest = std::max(highest, share);
  const double bottom = top + plot_height;
  if (highest > 0.0) {
    const double step = plot_width / static_cast<double>(b.shares.size());
    const std::size_t every = std::max<std::size_t>(1, b.shares.size() / 16);
    for (std::size_t i = 0; i < b.shares.size(); ++i) {
      const double x = plot_left + step * static_cast<double>(i), h = plot_height * b.shares[i].second / highest;
      s += "<rect x=\"" + fixed(x + step * 0.1, 2) + "\" y=\"" + fixed(bottom - h, 2) + "\" width=\"" +
           fixed(step * 0.8, 2) + "\" height=\"" + fixed(h, 2) + "\" fill=\"#3b6ea8\"/>";
      if (i % every == 0) {
        s += "<text x=\"" + fixed(x + step / 2, 2) + "\" y=\"" + fixed(bottom + 15, 1) + "\" text-anchor=\"middle\">" +
             std::to_string(b.shares[i].first) + "</text>";
      }
    }
    s += "\n<text x=\"" + fixed(plot_left - 6, 0) + "\" y=\"" + fixed(top + 10, 1) + "\" text-anchor=\"end\">" +
         fixed(100.0 * highest, 1) + "%</text>";
  }
  return s + "<line x1=\"" + fixed(plot_left, 0) + "\" x2=\"" + fixed(plot_left + plot_width, 0) + "\" y1=\"" +
         fixed(bottom, 1) + "\" y2=\"" + fixed(bottom, 1) + "\" stroke=\"#333\"/>\n";
}

// Bars of the entries [first, last) of a histogram whose entry i has exponent i - bias; `others` are left out and
// named.
template <class Histogram>
bars bars_of(std::string title, const Histogram& counts, int first, int last, int bias, const std::string& others_name,
             std::int64_t others) {
  bars b{std::move(title), {}, ""};
  std::int64_t all = others;
  for (int i = first; i < last; ++i) all += counts[static_cast<std::size_t>(i)];
  while (first < last && counts[static_cast<std::size_t>(first)] == 0) ++first;
  while (first < last && counts[static_cast<std::size_t>(last - 1)] == 0) --last;
  for (int i = first; i < last; ++i) {
    b.shares.emplace_back(i - bias,
                          static_cast<double>(counts[static_cast<std::size_t>(i)]) / static_cast<double>(all));
  }
  if (all > 0) b.note = others_name + " " + percent(others, all);
  return b;
}

}  // namespace

std::string to_table(const report& r) {
  std::vector<row> rows = {{"tensor", "type", "shape", "scheme", "size", "SQNR dB", "worst block", "at", "saturated",
                            "underflowed", "NaN", "not finite"}};
  std::int64_t others = 0;
  std::uint64_t other_bytes = 0, bytes = 0;
  for (const measured_item& it : r.items) {
    if (it.schemes.empty()) {
      ++others;
      other_bytes += it.what->bytes();
      continue;
    }
    rows.push_back({printable(it.what->name), it.what->type, ms::interop::text_of(it.what->shape), "as stored",
                    size_text(it.what->bytes())});
    bytes += it.what->bytes();
    for (const figures& f : it.schemes) rows.push_back(cells_of("", "", "", f));
  }
  if (rows.size() > 1) {
    rows.push_back({"all of them", "", "", "as stored", size_text(bytes)});
    for (const figures& f : r.total) {
      row cells = cells_of("", "", "", f);
      cells[7] = "";  // a place in which tensor?
      rows.push_back(std::move(cells));
    }
  }
  std::string text = printable(r.file) + ": " + r.format + ", " + std::to_string(r.items.size()) +
                     (r.items.size() == 1 ? " tensor\n\n" : " tensors\n\n");
  if (rows.size() > 1) text += table(rows, 4);
  if (others > 0)
    text += (rows.size() > 1 ? "\n" : "") + std::string("not measured: ") + std::to_string(others) +
            " (vectors, other types, or left out), " + size_text(other_bytes) + "\n";
  return text;
}

std::string to_json(const report& r) {
  using ms::interop::json_string;
  std::string s = "{\"file\":" + json_string(r.file) + ",\"format\":" + json_string(r.format) + ",\"tensors\":[";
  for (std::size_t i = 0; i < r.items.size(); ++i) {
    const item& it = *r.items[i].what;
    std::string shape;
    for (const auto extent : it.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    s +=
        (i > 0 ? ",\n" : "\n") + std::string("{\"name\":") + json_string(it.name) + ",\"type\":" + json_string(it.type);
    s += ",\"shape\":[" + shape + "],\"bytes\":" + std::to_string(it.bytes());
    if (!r.items[i].schemes.empty()) {
      s += ",\"amax\":" + number(static_cast<double>(r.items[i].amax)) + ",\"schemes\":" + json_of(r.items[i].schemes);
    }
    s += "}";
  }
  return s + "],\n\"total\":" + json_of(r.total) + "}\n";
}

std::string to_svg(const report& r) {
  std::vector<bars> all;
  all.push_back(bars_of("elements: exponent of |x|", r.elements, 1, 255, 127, "zeros and subnormals", r.elements[0]));
  for (const figures& f : r.total) {
    all.push_back(bars_of(std::string(f.under->name) + ": exponent of the block scales", f.scales, 1, scale_bins - 1,
                          150, "zeros", f.scales[0]));
    if (!std::isnan(f.metrics.sqnr_db())) all.back().note += ", SQNR " + fixed(f.metrics.sqnr_db(), 2) + " dB";
  }
  const double height = 60 + static_cast<double>(all.size()) * (plot_height + plot_gap);
  const double width = plot_left + plot_width + 24;
  std::string s = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width, 0) + ' ' +
                  fixed(height, 0) +
                  "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
                  "fill=\"white\"/>\n<text x=\"" +
                  fixed(plot_left, 0) + "\" y=\"24\" font-size=\"15\">" + xml(r.file) + "</text>\n";
  for (std::size_t i = 0; i < all.size(); ++i)
    s += draw(all[i], 68 + static_cast<double>(i) * (plot_height + plot_gap));
  return s + "</svg>\n";
}

}  // namespace inspect
