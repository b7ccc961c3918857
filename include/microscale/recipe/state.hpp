// Saving and restoring what a layer carries from step to step, so that a resumed run is the same run.
//
// Random draws are functions of seed, step and place, and weights are the caller's: references are all there is to
// save. The text reads the same everywhere; numbers are stored as their bits, so nothing is lost:
//   microscale linear_state 1
//   activation 41f00000 51 0
//   weight 3dcccccd 51 2 3dcccccd 3d800000
//   output_gradient 00000000 0 0
// that is, for each operand, the amax, the step it was set at, and the count of the history that follows.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>

#include "linear.hpp"

namespace microscale {

inline constexpr int linear_state_version = 1;

namespace detail {

inline std::string hexadecimal_bits(float x) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text(8, '0');
  for (int i = 0; i < 8; ++i) text[static_cast<std::size_t>(i)] = digits[fp32::bits(x) >> (28 - 4 * i) & 0xFu];
  return text;
}

inline void append_state(std::string& text, std::string_view name, const reference_state& state) {
  text.append(name).append(" ").append(hexadecimal_bits(state.amax));
  text.append(" ").append(std::to_string(state.sampled_step)).append(" ").append(std::to_string(state.history.size()));
  for (const float a : state.history) text.append(" ").append(hexadecimal_bits(a));
  text.append("\n");
}

inline std::string read_word(std::istream& in, const char* what) {
  std::string word;
  if (!(in >> word)) fail("saved state", what, "the end of the stream");
  return word;
}

inline void expect_word(std::istream& in, const std::string& expected) {
  const std::string word = read_word(in, expected.c_str());
  if (word != expected) fail("saved state", expected, word);
}

template <class Int>
Int read_number(std::istream& in, const char* what, int base = 10) {
  const std::string word = read_word(in, what);
  Int value = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  const bool is_number = failure == std::errc{} && end == word.data() + word.size();
  if (!is_number || word.front() == '-') fail("saved state", what, word);  // no number here is negative
  return value;
}

inline float read_amax(std::istream& in) {
  const float amax = fp32::from_bits(read_number<std::uint32_t>(in, "the bits of an amax", 16));
  checked_amax(amax);
  return amax;
}

inline reference_state read_reference(std::istream& in, const char* name) {
  expect_word(in, name);
  reference_state state;
  state.amax = read_amax(in);
  state.sampled_step = read_number<std::int64_t>(in, "a step");
  for (auto left = read_number<std::int64_t>(in, "the length of a history"); left > 0; --left) {
    state.history.push_back(read_amax(in));
  }
  return state;
}

}  // namespace detail

// Writes a state; several may follow each other in one stream.
inline void write_state(std::ostream& out, const linear_state& state) {
  std::string text = "microscale linear_state " + std::to_string(linear_state_version) + "\n";
  detail::append_state(text, "activation", state.activation);
  detail::append_state(text, "weight", state.weight);
  detail::append_state(text, "output_gradient", state.output_gradient);
  if (!out.write(text.data(), static_cast<std::streamsize>(text.size()))) {
    detail::fail("stream of a state", "one that can be written", "a failure");
  }
}

// Reads the state that was written, bit for bit. Anything else (another version, a truncated file, an amax that is
// none) is an error.
inline linear_state read_state(std::istream& in) {
  detail::expect_word(in, "microscale");
  detail::expect_word(in, "linear_state");
  const int version = detail::read_number<int>(in, "a version");
  if (version != linear_state_version) {
    detail::fail("version of a saved state", std::to_string(linear_state_version), std::to_string(version));
  }
  linear_state state;
  state.activation = detail::read_reference(in, "activation");
  state.weight = detail::read_reference(in, "weight");
  state.output_gradient = detail::read_reference(in, "output_gradient");
  return state;
}

}  // namespace microscale
