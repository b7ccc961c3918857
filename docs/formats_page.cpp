// Prints docs/formats.md from the declarations in the library. The test docs.formats compares; to renew the page:
//
//   g++ -std=c++20 -Iinclude docs/formats_page.cpp -o build/formats_page && build/formats_page > docs/formats.md
#include <cstdint>
#include <cstdio>
#include <microscale/conformance/named_schemes.hpp>
#include <microscale/number/formats.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace ms = microscale;

namespace {

template <class F>
void visit_formats(F&& f) {
  f.template operator()<ms::e2m1>("e2m1");
  f.template operator()<ms::e1m2>("e1m2");
  f.template operator()<ms::int4>("int4");
  f.template operator()<ms::int4_full>("int4_full");
  f.template operator()<ms::e2m3>("e2m3");
  f.template operator()<ms::e3m2>("e3m2");
  f.template operator()<ms::e4m3>("e4m3");
  f.template operator()<ms::e5m2>("e5m2");
  f.template operator()<ms::int8>("int8");
  f.template operator()<ms::int8_full>("int8_full");
  f.template operator()<ms::ue4m3>("ue4m3");
  f.template operator()<ms::ue5m3>("ue5m3");
  f.template operator()<ms::ue5m3_ieee>("ue5m3_ieee");
  f.template operator()<ms::e8m0>("e8m0");
  f.template operator()<ms::e8m0_tie_even>("e8m0_tie_even");
  f.template operator()<ms::bf16>("bf16");
  f.template operator()<ms::f16>("f16");
  f.template operator()<ms::f32>("f32");
}

template <class F>
std::string format_name() {
  std::string name;
  visit_formats([&]<class G>(const char* text) {
    if constexpr (std::is_same_v<F, G>) name = text;
  });
  return name;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

std::string hex(unsigned code, int bits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%0*X", (bits + 3) / 4, code);
  return text;
}

// Runs of codes for which `is` holds: "0x7F, 0xFF", "0x7D–0x7F".
template <class F, class Is>
std::string codes_that(Is is) {
  const unsigned count = 1u << F::bits;
  std::string text;
  for (unsigned first = 0; first < count; ++first) {
    if (!is(static_cast<typename F::storage>(first))) continue;
    unsigned last = first;
    while (last + 1 < count && is(static_cast<typename F::storage>(last + 1))) ++last;
    if (!text.empty()) text += ", ";
    text += hex(first, F::bits);
    if (last > first) text += "–" + hex(last, F::bits);
    first = last;
  }
  return text.empty() ? "none" : text;
}

template <class F>
void print_format(const char* name) {
  float largest = 0, lowest = 0, smallest = 0;
  int values = 0;
  bool zero_seen = false;
  for (unsigned i = 0; i < 1u << F::bits; ++i) {
    const auto code = static_cast<typename F::storage>(i);
    if (!F::is_finite(code)) continue;
    const float x = F::decode(code);
    if (x == 0.0f) {
      values += zero_seen ? 0 : 1;
      zero_seen = true;
      continue;
    }
    ++values;
    if (x > largest) largest = x;
    if (x < lowest) lowest = x;
    if (x > 0 && (smallest == 0 || x < smallest)) smallest = x;
  }
  std::printf("| `%s` | %d | %d | %s | %s | %s | %s | %s | %s |\n", name, F::bits, values, number(largest).c_str(),
              lowest < 0 ? number(lowest).c_str() : "–", number(smallest).c_str(), zero_seen ? "yes" : "no",
              codes_that<F>([](auto code) { return F::is_infinite(code); }).c_str(),
              codes_that<F>([](auto code) { return F::is_nan(code); }).c_str());
}

template <class F>
void print_values(const char* name) {
  std::printf("| `%s` |", name);
  const char* comma = " ";
  for (unsigned i = 0; i < 1u << (F::bits - 1); ++i) {
    std::printf("%s%s", comma, number(F::decode(static_cast<typename F::storage>(i))).c_str());
    comma = ", ";
  }
  std::printf(" |\n");
}

template <class S>
void print_scheme(const char* name) {
  using block = typename S::block;
  const double bits = S::element::bits + double{sizeof(typename S::scale::storage)} * 8 / block::elements;
  std::printf("| `%s` | `%s` | `%s` | %d × %d | %s | %s |\n", name, format_name<typename S::element>().c_str(),
              format_name<typename S::scale>().c_str(), block::rows, block::columns, number(bits).c_str(),
              S::has_tensor_scale ? "yes" : "no");
}

}  // namespace

int main() {
  std::puts(
      "# Formats and schemes in numbers\n\n"
      "Printed by `docs/formats_page.cpp` from the declarations in the library; a test holds this page to them. What each\n"
      "computes, operation by operation, is in [numerics.md](numerics.md).\n\n"
      "## Formats\n\n"
      "| format | bits | finite values | largest | lowest | smallest above 0 | zero | infinity | NaN |\n"
      "|---|--:|--:|--:|--:|--:|---|---|---|");
  visit_formats([]<class F>(const char* name) {
    if constexpr (F::bits <= 16) print_format<F>(name);
  });
  std::puts(
      "\n`f32` is IEEE 754 binary32. `int4` and `int8` decode their lowest code but never encode to it; the `_full` forms do.\n"
      "A format without NaN encodes NaN as its largest value, and counts on the scale to say so.\n\n"
      "## Values of the narrow elements\n\n"
      "Those of the codes whose top bit is 0, in their order.\n\n"
      "| format | values |\n|---|---|");
  visit_formats([]<class F>(const char* name) {
    if constexpr (F::bits <= 6 && F::has_sign) print_values<F>(name);
  });
  std::puts(
      "\n## Schemes\n\n"
      "Bits an element are those stored: its own, and its share of the block's scale. What stands here of `nvfp4` and "
      "`ue5m3_fp4`\nholds for `nvfp4_ms_eden` and `ue5m3_fp4_scale_first` too.\n\n"
      "| scheme | element | scale | block | bits an element | tensor scale |\n|---|---|---|---|--:|---|");
  ms::conformance::visit_named_schemes([]<class S>(const char* name) { print_scheme<S>(name); });
}
