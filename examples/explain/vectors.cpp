#include "vectors.hpp"

#include <microscale/conformance/named_schemes.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "vector_case.hpp"

namespace explain {

namespace {

std::vector<std::string_view> list_of(std::string_view text) {
  std::vector<std::string_view> items;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

std::uint32_t hex(const conformance::vector_case& c, std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (failure != std::errc{} || end != text.data() + text.size()) c.fail("'" + std::string(text) + "' is not hex");
  return value;
}

index_t size(const conformance::vector_case& c, std::string_view key) {
  const std::string& text = c.text(key);
  index_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < 0 || value > 1 << 20)
    c.fail("'" + text + "' is no size");
  return value;
}

// Fills in the formats of the scheme that the case names; false where it has none with scales of one byte.
bool set_formats(const std::string& scheme, quantized_matrix& q, int& block_rows) {
  bool found = false;
  ms::conformance::visit_named_schemes([&]<class S>(const char* name) {
    if (scheme != name || sizeof(typename S::scale::storage) != 1) return;
    found = true;
    q.element_bits = S::element::bits;
    q.block = S::block::columns;
    q.e8m0 = std::is_same_v<typename S::scale, ms::e8m0>;
    block_rows = S::block::rows;
  });
  return found;
}

// False where the case is of a sort that is left out.
bool read_case(const conformance::vector_case& c, vector_subject& s) {
  const bool usable =
      c.has("scales") && c.has("codes") && c.text_or("axis", "row") == "row" && !c.has("random") && !c.has("target");
  if (!usable || c.text("codes").find("nan") != std::string::npos) return false;
  s.id = c.id;
  s.scheme = c.text("scheme");
  s.rounding = c.text_or("rounding", "nearest_even");
  // Policies that the library offers as schemes of their own.
  if (c.policy == "scalar_reciprocal") s.scheme += "_reciprocal";
  if (c.policy == "int_full") s.scheme += "_full";
  quantized_matrix& q = s.quantized;
  int block_rows = 1;
  if (!set_formats(s.scheme, q, block_rows)) return false;
  q.name = s.data.name = c.id;
  q.rows = s.data.rows = size(c, "rows");
  q.cols = s.data.cols = size(c, "cols");
  for (const auto item : list_of(c.text("in"))) s.data.values.push_back(ms::fp32::from_bits(hex(c, item)));
  for (const auto item : list_of(c.text("codes"))) q.codes.push_back(static_cast<std::uint8_t>(hex(c, item)));
  const auto grid = list_of(c.text("scales"));
  const index_t columns = q.blocks_in_row();
  const auto elements = static_cast<std::size_t>(q.rows * q.cols);
  const auto scales = static_cast<std::size_t>(ms::ceil_div(q.rows, index_t{block_rows}) * columns);
  if (s.data.values.size() != elements || q.codes.size() != elements || grid.size() != scales)
    c.fail("the lists are not of the case's shape");
  for (const std::uint8_t code : q.codes) {
    if (code >> q.element_bits != 0) c.fail("a code of more bits than the format has");
  }
  for (index_t r = 0; r < q.rows; ++r) {
    for (index_t b = 0; b < columns; ++b) {
      q.scales.push_back(
          static_cast<std::uint8_t>(hex(c, grid[static_cast<std::size_t>(r / block_rows * columns + b)])));
    }
  }
  if (c.has("amax")) s.amax = ms::fp32::from_bits(hex(c, c.text("amax")));
  return true;
}

}  // namespace

std::vector<vector_subject> read_vector_subjects(const std::filesystem::path& path, std::size_t& left_out) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw usage_error(path.string() + ": cannot be opened");
  std::vector<vector_subject> subjects;
  left_out = 0;
  try {
    for (const auto& c : conformance::read_vectors(in)) {
      if (c.op != "quantize") continue;
      vector_subject s;
      if (read_case(c, s)) {
        subjects.push_back(std::move(s));
      } else {
        ++left_out;
      }
    }
  } catch (const conformance::malformed& e) {
    throw usage_error(path.string() + ":" + std::to_string(e.line) + ": " + e.what());
  }
  return subjects;
}

}  // namespace explain
