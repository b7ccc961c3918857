// JSON (RFC 8259) from a source that may be hostile: read value by value, so that memory grows only with what the
// caller keeps, and to a limited depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "stored_tensor.hpp"

namespace microscale::interop {

namespace detail {

// The length of the UTF-8 sequence that `text` begins with, 0 where it is none (RFC 3629: shortest form, no
// surrogates).
constexpr std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0), second = byte(1);
  if (text.empty()) return 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if ((lead & 0xF0u) == 0xE0u) {
    const bool shortest = lead != 0xE0 || second >= 0xA0, surrogate = lead == 0xED && second >= 0xA0;
    return follows(1) && follows(2) && shortest && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool shortest = lead != 0xF0 || second >= 0x90, unicode = lead != 0xF4 || second < 0x90;
    return follows(1) && follows(2) && follows(3) && shortest && unicode ? 4 : 0;
  }
  return 0;
}

inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

inline void append_utf8(std::string& out, std::uint32_t point) {
  const auto add = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xC0 | point >> 6);
  } else {
    if (point < 0x10000) {
      add(0xE0 | point >> 12);
    } else {
      add(0xF0 | point >> 18);
      add(0x80 | (point >> 12 & 0x3F));
    }
    add(0x80 | (point >> 6 & 0x3F));
  }
  add(0x80 | (point & 0x3F));
}

}  // namespace detail

// A cursor over a JSON text. Each call reads the value at the cursor and moves past it; what is not as asked throws
// ms::error with the byte it was found at. `what` names the text in messages.
class json_reader {
 public:
  json_reader(std::string_view text, std::string what, int depth = 32)
      : text_(text), what_(std::move(what)), depth_(depth) {}

  // Calls member(key) for each member, which has to read the member's value. Keys may repeat.
  template <class F>
  void object(F&& member) {
    enter('{');
    for (bool more = !take('}'); more;) {
      const std::string key = string();
      expect(':');
      member(key);
      more = another('}');
    }
    ++depth_;
  }
  // Calls item() for each item, which has to read it.
  template <class F>
  void array(F&& item) {
    enter('[');
    for (bool more = !take(']'); more;) {
      item();
      more = another(']');
    }
    ++depth_;
  }

  // A string, unescaped; always valid UTF-8.
  std::string string() {
    expect('"');
    std::string out;
    while (true) {
      if (at_ == text_.size()) refuse("a string does not end");
      const char c = text_[at_];
      if (c == '"') break;
      if (c == '\\') {
        ++at_;
        escape(out);
      } else {
        if (static_cast<unsigned char>(c) < 0x20) refuse("a control character in a string");
        const std::size_t length = detail::utf8_length(text_.substr(at_, 4));
        if (length == 0) refuse("a string that is not UTF-8");
        out.append(text_, at_, length);
        at_ += length;
      }
    }
    ++at_;
    return out;
  }

  // A whole number from 0 to 2^63 - 1, without fraction or exponent.
  std::int64_t size() {
    blanks();
    const std::size_t first = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      const int digit = text_[at_] - '0';
      if (value > ((std::numeric_limits<std::int64_t>::max)() - digit) / 10) refuse("a number too large");
      value = value * 10 + digit;
    }
    if (at_ == first) refuse("expected a whole number that is not negative");
    if (text_[first] == '0' && at_ - first > 1) refuse("a number with leading zeros");
    if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) {
      refuse("expected a whole number");
    }
    return value;
  }

  // Any value, checked and dropped.
  void skip() {
    blanks();
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '{') return object([&](const std::string&) { skip(); });
    if (c == '[') return array([&] { skip(); });
    if (c == '"') return static_cast<void>(string());
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return;
      }
    }
    number();
  }

  // Nothing but blanks follows.
  void end() {
    blanks();
    if (at_ != text_.size()) refuse("something follows the value");
  }

  [[noreturn]] void refuse(const std::string& why) const {
    detail::refuse(what_, why + " (at byte " + std::to_string(at_) + ")");
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char c) {
    blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(std::string("expected '") + c + "'");
  }
  void enter(char c) {
    if (depth_ == 0) refuse("values nested too deeply");
    expect(c);
    --depth_;
  }
  // After a member or an item: whether another follows.
  bool another(char close) {
    if (take(',')) return true;
    if (!take(close)) refuse(std::string("expected ',' or '") + close + "'");
    return false;
  }
  void digits() {
    if (at_ == text_.size() || !is_digit(text_[at_])) refuse("expected a value");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  }
  void number() {
    const auto next_is = [&](std::string_view any) { return at_ < text_.size() && any.find(text_[at_]) != any.npos; };
    if (next_is("-")) ++at_;
    const std::size_t first = at_;
    digits();
    if (text_[first] == '0' && at_ - first > 1) refuse("a number with leading zeros");
    if (next_is(".")) {
      ++at_;
      digits();
    }
    if (next_is("eE")) {
      ++at_;
      if (next_is("+-")) ++at_;
      digits();
    }
  }
  std::uint32_t hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      std::uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<std::uint32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        digit = static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        refuse("expected four hex digits");
      }
      value = value << 4 | digit;
    }
    return value;
  }
  // The cursor stands after a backslash.
  void escape(std::string& out) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    ++at_;
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t i = letters.find(c); c != '\0' && i != letters.npos) {
      out += meanings[i];
      return;
    }
    if (c != 'u') {
      --at_;
      refuse("an unknown escape in a string");
    }
    std::uint32_t point = hex4();
    if (point >= 0xD800 && point < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair");
      point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    } else if (point >= 0xD800 && point <= 0xDFFF) {
      refuse("half of a surrogate pair");
    }
    detail::append_utf8(out, point);
  }

  std::string_view text_;
  std::string what_;
  int depth_;
  std::size_t at_ = 0;
};

// Text as a JSON string, quotes included. Bytes that are not UTF-8 become '?'.
inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    std::size_t length = detail::utf8_length(text);
    if (length == 0) {
      out += '?';
      length = 1;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (c < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[c >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out + '"';
}

}  // namespace microscale::interop
