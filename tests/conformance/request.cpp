#include "request.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "registry.hpp"

namespace conformance {

namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// ---------------------------------------------------------------------------------------------------------------
// Numbers and lists.

// Hex digits, between `least` and `most` of them.
std::optional<std::uint64_t> parse_hex(std::string_view text, std::size_t least, std::size_t most) {
  if (text.size() < least || text.size() > most) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> items;
  if (list.empty()) return items;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    items.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

// How the numbers of a list are written: a fixed count of digits, or up to as many as their bits need.
struct hex_kind {
  const char* what;
  std::size_t least, most;
  int bits;  // the largest value has that many

  static hex_kind f32() { return {"8 hex digits of an f32", 8, 8, 32}; }
  static hex_kind f64() { return {"16 hex digits of an f64", 16, 16, 64}; }
  static hex_kind code(int bits) {
    return {bits > 8 ? "up to 4 hex digits of a code" : "one or two hex digits of a code", 1, bits > 8 ? 4u : 2u, bits};
  }
  static hex_kind draw() { return {"8 hex digits of a draw", 8, 8, 32}; }
  static hex_kind byte() { return {"one or two hex digits of a byte", 1, 2, 8}; }

  std::uint64_t parse(const vector_case& c, std::string_view key, std::string_view text) const {
    const auto value = parse_hex(text, least, most);
    if (!value || (bits < 64 && *value >> bits != 0)) {
      c.fail(std::string(key) + ": expected " + what + ", got " + quoted(text));
    }
    return *value;
  }
};

void check_count(const vector_case& c, std::string_view key, std::size_t got, std::size_t expected) {
  if (got != expected) {
    c.fail(std::string(key) + ": expected a list of " + std::to_string(expected) + ", got " + std::to_string(got));
  }
}

std::vector<std::uint32_t> parse_list(const vector_case& c, std::string_view key, hex_kind kind) {
  std::vector<std::uint32_t> values;
  for (const std::string_view item : split(c.text(key))) {
    values.push_back(static_cast<std::uint32_t>(kind.parse(c, key, item)));
  }
  return values;
}

std::vector<std::uint32_t> parse_list(const vector_case& c, std::string_view key, hex_kind kind, std::size_t count) {
  std::vector<std::uint32_t> values = parse_list(c, key, kind);
  check_count(c, key, values.size(), count);
  return values;
}

std::vector<float> parse_floats(const vector_case& c, std::string_view key) {
  std::vector<float> values;
  for (const std::uint32_t bits : parse_list(c, key, hex_kind::f32())) values.push_back(ms::fp32::from_bits(bits));
  return values;
}

float parse_float(const vector_case& c, std::string_view key) {
  return ms::fp32::from_bits(static_cast<std::uint32_t>(hex_kind::f32().parse(c, key, c.text(key))));
}

std::int64_t parse_integer(const vector_case& c, std::string_view key, std::int64_t least, std::int64_t most) {
  const std::string& text = c.text(key);
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    c.fail(std::string(key) + ": expected an integer from " + std::to_string(least) + " to " + std::to_string(most) +
           ", got " + quoted(text));
  }
  return value;
}

std::int64_t parse_extent(const vector_case& c, std::string_view key) {
  return parse_integer(c, key, 0, std::numeric_limits<std::int32_t>::max());
}

// The expectation `key` of a case that has it.
void parse_expected(request& r, const vector_case& c, std::string_view key, hex_kind kind, std::size_t count) {
  if (!c.has(key)) return;
  expectation e{std::string(key), {}};
  for (const std::string_view item : split(c.text(key))) {
    if (item == "nan") {
      e.items.emplace_back(std::nullopt);
    } else {
      e.items.emplace_back(static_cast<std::uint32_t>(kind.parse(c, key, item)));
    }
  }
  check_count(c, key, e.items.size(), count);
  r.expected.push_back(std::move(e));
}

// ---------------------------------------------------------------------------------------------------------------
// Names.

// How many bits a code of the format `name` may have in a file: eight for UE4M3, whose bit 7 decoders ignore.
int format_bits(const vector_case& c, const std::string& name) {
  int bits = 0;
  const bool known =
      visit_named(formats, name, [&]<class F>(type_tag<F>) { bits = std::is_same_v<F, ms::ue4m3> ? 8 : F::bits; });
  if (!known) c.fail("unknown format " + quoted(name));
  return bits;
}

struct scheme_facts {
  int element_bits = 0;
  bool has_float_scales = false, draws_scale = false;
  ms::index_t block_rows = 0, block_cols = 0;
  ms::tensor_datum stored = ms::tensor_datum::none;

  hex_kind scale_kind() const { return has_float_scales ? hex_kind::f32() : hex_kind::byte(); }
};

scheme_facts facts_of(const vector_case& c, const std::string& name) {
  scheme_facts facts;
  const bool known = visit_scheme(name, {}, [&]<class S>(type_tag<S>) {
    facts = {S::element::bits, S::scale::bits == 32, ms::refines_scale<S>,
             S::block::rows,   S::block::columns,    S::tensor_scale::stored};
  });
  if (!known) c.fail("unknown scheme " + quoted(name));
  return facts;
}

// The scales of a rows x cols matrix of the file.
std::size_t scale_count(const scheme_facts& facts, ms::index_t rows, ms::index_t cols, ms::axis axis) {
  if (axis == ms::axis::col) std::swap(rows, cols);
  return static_cast<std::size_t>(ms::ceil_div(rows, facts.block_rows) * ms::ceil_div(cols, facts.block_cols));
}

ms::axis parse_axis(const vector_case& c) {
  const std::string_view axis = c.text_or("axis", "row");
  if (axis != "row" && axis != "col") c.fail("unknown axis " + quoted(axis));
  return axis == "row" ? ms::axis::row : ms::axis::col;
}

// The rounding's name and its draws, one per element.
std::string parse_rounding(const vector_case& c, std::size_t count, std::vector<std::uint32_t>& random) {
  std::string name(c.text_or("rounding", "nearest_even"));
  bool takes_random = false;
  const bool known = visit_named(roundings, name, [&]<class R>(type_tag<R>) { takes_random = R::random_bits > 0; });
  if (!known) c.fail("unknown rounding " + quoted(name));
  if (takes_random != c.has("random")) {
    c.fail(takes_random ? "rounding " + name + " needs 'random'" : "rounding " + name + " takes no 'random'");
  }
  random.assign(count, 0);
  if (takes_random) random = parse_list(c, "random", hex_kind::byte(), count);
  return name;
}

// ---------------------------------------------------------------------------------------------------------------
// Operations.

void parse_encode(const vector_case& c, request& r) {
  encode_request e;
  e.format = c.text("format");
  const int bits = format_bits(c, e.format);
  e.is_wide = c.has("in64");
  if (e.is_wide == c.has("in")) c.fail("op encode needs one of 'in' and 'in64'");
  if (e.is_wide) {
    for (const std::string_view item : split(c.text("in64"))) {
      e.in64.push_back(ms::bit_cast<double>(hex_kind::f64().parse(c, "in64", item)));
    }
  } else {
    e.in = parse_floats(c, "in");
  }
  const std::size_t count = e.is_wide ? e.in64.size() : e.in.size();
  e.rounding = parse_rounding(c, count, e.random);
  const std::string_view overflow = c.text_or("overflow", "saturate");
  if (overflow != "saturate" && overflow != "ieee") c.fail("unknown overflow " + quoted(overflow));
  e.overflow = overflow == "ieee" ? ms::overflow::ieee : ms::overflow::saturate;
  parse_expected(r, c, "codes", hex_kind::code(bits), count);
  r.operation = std::move(e);
}

void parse_decode(const vector_case& c, request& r) {
  decode_request d;
  d.format = c.text("format");
  d.codes = parse_list(c, "codes", hex_kind::code(format_bits(c, d.format)));
  parse_expected(r, c, "out", hex_kind::f32(), d.codes.size());
  r.operation = std::move(d);
}

std::size_t element_count(ms::index_t rows, ms::index_t cols) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
}

void parse_quantize(const vector_case& c, request& r) {
  quantize_request q;
  q.scheme = c.text("scheme");
  const scheme_facts facts = facts_of(c, q.scheme);
  q.rows = parse_extent(c, "rows");
  q.cols = parse_extent(c, "cols");
  q.axis = parse_axis(c);
  q.in = parse_floats(c, "in");
  const std::size_t count = element_count(q.rows, q.cols);
  check_count(c, "in", q.in.size(), count);
  if (c.has("amax")) q.amax = parse_float(c, "amax");
  if (c.has("target")) {
    if (!q.scheme.starts_with("ue5m3_fp4")) c.fail("scheme " + q.scheme + " takes no 'target'");
    q.target = static_cast<int>(parse_integer(c, "target", 1, 1 << 20));
  }
  q.rounding = parse_rounding(c, count, q.random);
  if (facts.draws_scale != c.has("scale_random")) {
    c.fail("scheme " + q.scheme + (facts.draws_scale ? " needs 'scale_random'" : " takes no 'scale_random'"));
  }
  const std::size_t blocks = scale_count(facts, q.rows, q.cols, q.axis);
  if (facts.draws_scale) q.scale_random = parse_list(c, "scale_random", hex_kind::draw(), blocks);
  if (facts.stored == ms::tensor_datum::none && (c.has("tensor_scale") || c.has("tensor_encode"))) {
    c.fail("scheme " + q.scheme + " has no tensor scale");
  }
  parse_expected(r, c, "scales", facts.scale_kind(), blocks);
  parse_expected(r, c, "codes", hex_kind::code(facts.element_bits), count);
  parse_expected(r, c, "tensor_scale", hex_kind::f32(), 1);
  parse_expected(r, c, "tensor_encode", hex_kind::f32(), 1);
  parse_expected(r, c, "out", hex_kind::f32(), count);
  r.operation = std::move(q);
}

// The fields `prefix`codes and `prefix`scales.
stored_matrix parse_stored(const vector_case& c, const std::string& scheme, const std::string& prefix, ms::index_t rows,
                           ms::index_t cols, ms::axis axis) {
  const scheme_facts facts = facts_of(c, scheme);
  return {scheme,
          rows,
          cols,
          axis,
          parse_list(c, prefix + "codes", hex_kind::code(facts.element_bits), element_count(rows, cols)),
          parse_list(c, prefix + "scales", facts.scale_kind(), scale_count(facts, rows, cols, axis))};
}

void parse_dequantize(const vector_case& c, request& r) {
  dequantize_request d;
  const std::string& scheme = c.text("scheme");
  const scheme_facts facts = facts_of(c, scheme);
  const ms::index_t rows = parse_extent(c, "rows"), cols = parse_extent(c, "cols");
  d.in = parse_stored(c, scheme, "", rows, cols, parse_axis(c));

  // The one datum that the scheme stores; without it a decode multiplier is 1, the others have no default.
  using ms::tensor_datum;
  constexpr std::pair<std::string_view, tensor_datum> data[] = {{"amax", tensor_datum::reference},
                                                                {"tensor_encode", tensor_datum::encode},
                                                                {"tensor_scale", tensor_datum::decode}};
  for (const auto& [key, datum] : data) {
    if (datum != facts.stored) {
      if (c.has(key)) c.fail("scheme " + scheme + " does not store " + quoted(key));
    } else if (datum != tensor_datum::decode || c.has(key)) {
      d.datum = parse_float(c, key);
    }
  }
  parse_expected(r, c, "out", hex_kind::f32(), element_count(rows, cols));
  r.operation = std::move(d);
}

void parse_gemm(const vector_case& c, request& r) {
  gemm_request g;
  const std::string& scheme = c.text("scheme");
  const ms::index_t m = parse_extent(c, "m"), n = parse_extent(c, "n"), k = parse_extent(c, "k");
  g.a = parse_stored(c, scheme, "a_", m, k, ms::axis::row);
  g.b = parse_stored(c, std::string(c.text_or("b_scheme", scheme)), "b_", n, k, ms::axis::row);
  g.accumulate = c.text("accumulate");
  if (!visit_named(accumulations, g.accumulate, [](auto) {})) c.fail("unknown accumulate " + quoted(g.accumulate));
  const auto factor = [&](std::string_view key) { return c.has(key) ? parse_float(c, key) : 1.0f; };
  g.alpha = ms::fp32::mul(factor("a_tensor_scale"), factor("b_tensor_scale"));
  parse_expected(r, c, "out", hex_kind::f32(), element_count(m, n));
  r.operation = std::move(g);
}

void parse_pack(const vector_case& c, request& r) {
  pack_request p;
  p.bits = static_cast<int>(parse_integer(c, "bits", 1, 8));
  p.codes = parse_list(c, "codes", hex_kind::code(p.bits));
  parse_expected(r, c, "bytes", hex_kind::byte(),
                 static_cast<std::size_t>(ms::packed_bytes(p.bits, static_cast<ms::index_t>(p.codes.size()))));
  r.operation = std::move(p);
}

void parse_layout(const vector_case& c, request& r) {
  layout_request l;
  if (c.text("name") != "swizzle_128x4") c.fail("unknown layout " + quoted(c.text("name")));
  l.rows = parse_extent(c, "rows");
  l.cols = parse_extent(c, "cols");
  l.in = parse_list(c, "in", hex_kind::byte(), element_count(l.rows, l.cols));
  parse_expected(r, c, "bytes", hex_kind::byte(),
                 static_cast<std::size_t>(ms::scale_count(ms::scale_layout::tile_128x4, l.rows, l.cols)));
  r.operation = std::move(l);
}

void parse_hadamard(const vector_case& c, request& r) {
  hadamard_request h;
  h.size = static_cast<int>(parse_integer(c, "size", 2, ms::largest_hadamard));
  if ((h.size & (h.size - 1)) != 0) c.fail("size: expected a power of two, got " + quoted(c.text("size")));
  if (c.has("signs")) {
    const auto signs = split(c.text("signs"));
    check_count(c, "signs", signs.size(), static_cast<std::size_t>(h.size));
    for (int i = 0; i < h.size; ++i) {
      const std::string_view sign = signs[static_cast<std::size_t>(i)];
      if (sign != "+" && sign != "-") c.fail("signs: expected + or -, got " + quoted(sign));
      if (sign == "-") h.signs.negate(i);
    }
  }
  h.in = parse_floats(c, "in");
  if (h.in.size() % static_cast<std::size_t>(h.size) != 0) {
    c.fail("in: expected a multiple of " + std::to_string(h.size) + ", got " + std::to_string(h.in.size()));
  }
  parse_expected(r, c, "out", hex_kind::f32(), h.in.size());
  r.operation = std::move(h);
}

struct named_parser {
  std::string_view op;
  void (*parse)(const vector_case&, request&);
};

constexpr named_parser parsers[] = {
    {"encode", parse_encode}, {"decode", parse_decode}, {"quantize", parse_quantize}, {"dequantize", parse_dequantize},
    {"gemm", parse_gemm},     {"pack", parse_pack},     {"layout", parse_layout},     {"hadamard", parse_hadamard},
};

}  // namespace

request parse_request(const vector_case& c) {
  request r;
  r.line = c.line;
  r.id = c.id;
  r.policy = c.policy;
  const auto* parser = std::ranges::find(parsers, c.op, &named_parser::op);
  if (parser == std::end(parsers)) c.fail("unknown op " + quoted(c.op));
  parser->parse(c, r);
  return r;
}

}  // namespace conformance
