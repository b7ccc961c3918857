#include "outcome.hpp"

#include <algorithm>

namespace conformance {

namespace {

std::string hex(std::uint32_t value, int digits) {
  constexpr char digit[] = "0123456789abcdef";
  std::string text;
  for (int i = digits - 1; i >= 0; --i) text += digit[(value >> (4 * i)) & 0xF];
  return text;
}

// What `field` should be: what the case says, or what the first path to compute it gave.
std::vector<expected_item> expected_of(const request& r, const outcome& o, const computed_field& field) {
  const auto told = std::ranges::find(r.expected, field.field, &expectation::field);
  if (told != r.expected.end()) return told->items;
  const auto first = std::ranges::find(o.fields, field.field, &computed_field::field);
  std::vector<expected_item> items;
  for (std::size_t i = 0; i < first->values.size(); ++i) {
    items.push_back(first->is_nan[i] ? expected_item{} : expected_item{first->values[i]});
  }
  return items;
}

std::string difference(const std::vector<expected_item>& expected, const computed_field& got) {
  const std::string where = got.path.empty() ? "" : " (" + got.path + ")";
  if (expected.size() != got.values.size()) {
    return got.field + where + ": expected " + std::to_string(expected.size()) + " values, got " +
           std::to_string(got.values.size());
  }
  std::size_t first = 0, count = 0;
  for (std::size_t i = expected.size(); i-- > 0;) {
    const bool same = expected[i] ? *expected[i] == got.values[i] : got.is_nan[i];
    if (!same) {
      first = i;
      ++count;
    }
  }
  if (count == 0) return {};
  std::string text = got.field;
  if (expected.size() > 1) text += "[" + std::to_string(first) + "]";
  text += where + ": expected " + (expected[first] ? hex(*expected[first], got.digits) : "nan") + ", got " +
          hex(got.values[first], got.digits);
  if (expected.size() > 1) text += " (" + std::to_string(count) + " of " + std::to_string(expected.size()) + " differ)";
  return text;
}

}  // namespace

std::string differences(const request& r, const outcome& o) {
  std::string text;
  const auto add = [&](const std::string& line) { text += (text.empty() || line.empty() ? "" : "; ") + line; };
  for (const computed_field& field : o.fields) add(difference(expected_of(r, o, field), field));
  for (const expectation& e : r.expected) {
    if (std::ranges::find(o.fields, e.field, &computed_field::field) == o.fields.end()) add(e.field + ": not computed");
  }
  return text;
}

}  // namespace conformance
