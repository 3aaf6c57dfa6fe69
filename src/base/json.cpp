#include "base/json.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace serinus {

const char* name_of(JsonKind k) noexcept {
  switch (k) {
    case JsonKind::object:
      return "object";
    case JsonKind::array:
      return "array";
    case JsonKind::string:
      return "string";
    case JsonKind::number:
      return "number";
    case JsonKind::boolean:
      return "boolean";
    case JsonKind::null:
      return "null";
  }
  return "";
}

void JsonCursor::white() noexcept {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
    ++at_;
  }
}

void JsonCursor::expect(char c, const char* why) {
  white();
  if (at_ >= text_.size()) fail("ends too early");
  if (text_[at_] != c) fail(why);
  ++at_;
}

void JsonCursor::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("is no JSON value");
  at_ += word.size();
}

JsonKind JsonCursor::kind() {
  white();
  if (at_ >= text_.size()) fail("ends too early");
  switch (text_[at_]) {
    case '{':
      return JsonKind::object;
    case '[':
      return JsonKind::array;
    case '"':
      return JsonKind::string;
    case 't':
    case 'f':
      return JsonKind::boolean;
    case 'n':
      return JsonKind::null;
    default:
      break;
  }
  if (text_[at_] == '-' || (text_[at_] >= '0' && text_[at_] <= '9')) return JsonKind::number;
  fail("is no JSON value");
}

void JsonCursor::enter() {
  if (++depth_ > kMaxDepth) fail("is nested too deeply");
  first_ = true;
}

void JsonCursor::begin_object() {
  expect('{', "should be an object");
  enter();
}

void JsonCursor::begin_array() {
  expect('[', "should be an array");
  enter();
}

// Moves over a comma or the closing bracket; whether another item follows.
bool JsonCursor::next_item(char close) {
  white();
  if (at_ >= text_.size()) fail("ends too early");
  if (text_[at_] == close) {
    ++at_;
    --depth_;
    first_ = false;
    return false;
  }
  if (!first_) {
    if (text_[at_] != ',') fail("lacks a comma");
    ++at_;
    white();
    if (at_ >= text_.size()) fail("ends too early");
  }
  first_ = false;
  return true;
}

bool JsonCursor::next_key(std::string& key) {
  if (!next_item('}')) return false;
  if (peek() != '"') fail("has a key that is no string");
  key = string();
  expect(':', "lacks a colon after a key");
  return true;
}

bool JsonCursor::next_element() {
  return next_item(']');
}

JsonNumber JsonCursor::number() {
  if (kind() != JsonKind::number) fail("should be a number");
  // JSON's grammar is narrower than from_chars: no leading zero, no bare point.
  const std::size_t begin = at_;
  const auto digits = [this] {
    const std::size_t from = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == from) fail("is no JSON number");
  };
  bool is_integer = true;
  if (peek() == '-') ++at_;
  if (peek() == '0') {
    ++at_;
    if (peek() >= '0' && peek() <= '9') fail("is a number with a leading zero");
  } else {
    digits();
  }
  if (peek() == '.') {
    is_integer = false;
    ++at_;
    digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    is_integer = false;
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    digits();
  }
  const char* const from = text_.data() + begin;
  const char* const to = text_.data() + at_;
  JsonNumber n;
  if (is_integer && std::from_chars(from, to, n.integer).ec == std::errc{}) {
    n.is_integer = true;
    n.real = static_cast<double>(n.integer);
    return n;
  }
  if (std::from_chars(from, to, n.real).ec != std::errc{} || !std::isfinite(n.real)) {
    at_ = begin;
    fail("is a number out of range");
  }
  return n;
}

unsigned JsonCursor::hex4() {
  unsigned value = 0;
  if (text_.size() - at_ < 4) fail("ends too early");
  const char* const from = text_.data() + at_;
  const auto [end, error] = std::from_chars(from, from + 4, value, 16);
  if (error != std::errc{} || end != from + 4) fail("has a bad \\u escape");
  at_ += 4;
  return value;
}

void JsonCursor::escape(std::string& out) {
  if (at_ >= text_.size()) fail("ends too early");
  const char c = text_[at_++];
  constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  if (const std::size_t i = kFrom.find(c); i != std::string_view::npos) {
    out += kTo[i];
    return;
  }
  if (c != 'u') fail("has an unknown escape");
  unsigned code = hex4();
  if (code >= 0xd800 && code < 0xdc00) {  // the first half of a surrogate pair
    if (text_.substr(at_, 2) != "\\u") fail("has half a surrogate pair");
    at_ += 2;
    const unsigned low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("has half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code <= 0xdfff) {
    fail("has half a surrogate pair");
  }
  const auto put = [&out](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

std::string JsonCursor::string() {
  if (kind() != JsonKind::string) fail("should be a string");
  ++at_;
  std::string out;
  for (;;) {
    if (at_ >= text_.size()) fail("ends within a string");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) fail("has a control character within a string");
    ++at_;
    if (c == '\\') {
      escape(out);
    } else {
      out += c;
    }
  }
  ++at_;
  return out;
}

bool JsonCursor::boolean() {
  if (kind() != JsonKind::boolean) fail("should be true or false");
  const bool value = peek() == 't';
  literal(value ? "true" : "false");
  return value;
}

void JsonCursor::skip() {
  switch (kind()) {
    case JsonKind::object: {
      begin_object();
      std::string key;
      while (next_key(key)) skip();
      break;
    }
    case JsonKind::array:
      begin_array();
      while (next_element()) skip();
      break;
    case JsonKind::string:
      string();
      break;
    case JsonKind::number:
      number();
      break;
    case JsonKind::boolean:
      boolean();
      break;
    case JsonKind::null:
      literal("null");
      break;
  }
}

void JsonCursor::finish() {
  white();
  if (at_ != text_.size()) fail("goes on after its end");
}

std::string_view JsonCursor::raw_value() const {
  JsonCursor ahead = *this;
  ahead.white();
  const std::size_t begin = ahead.at_;
  try {
    ahead.skip();
  } catch (const JsonFault&) {
    return text_.substr(begin);
  }
  return text_.substr(begin, ahead.at_ - begin);
}

std::string json_string(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      out += "\\u00";
      out += kHex[u >> 4];
      out += kHex[u & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned c = byte(i);
    if (c < 0x80) {
      ++i;
      continue;
    }
    const std::size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4) return false;
    for (std::size_t k = 1; k < n; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    const unsigned second = byte(i + 1);
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) ||
        (c == 0xf0 && second < 0x90) || (c == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += n;
  }
  return true;
}

std::string printable(std::string_view text, std::size_t limit) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace serinus
