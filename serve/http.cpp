#include "serve/http.h"

#include <algorithm>
#include <charconv>

namespace serinus::serve {

namespace {

bool is_token_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view s) {
  return !s.empty() && std::ranges::all_of(s, is_token_char);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool is_control(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u < 0x20 || u == 0x7f;
}

// The words of a header that is a list.
bool lists(std::string_view value, std::string_view word) {
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    if (same_word(trimmed(value.substr(0, comma)), word)) return true;
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
  return false;
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<std::string> decoded(std::string_view s, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    char c = s[i];
    if (c == '%') {
      if (i + 2 >= s.size()) return std::nullopt;
      const int high = hex(s[i + 1]), low = hex(s[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (is_control(c)) return std::nullopt;
    out += c;
  }
  return out;
}

// What the headers say together; one header line at a time.
struct Headers {
  Head& head;
  bool has_length = false, is_http10 = false;
  std::uint64_t length = 0;

  std::optional<Refusal> add(std::string_view name, std::string_view value) {
    if (same_word(name, "host")) {
      if (head.host) return Refusal{400, "two Host headers"};
      head.host = value;
    } else if (same_word(name, "authorization")) {
      if (!head.authorization.empty()) return Refusal{400, "two Authorization headers"};
      head.authorization = value;
    } else if (same_word(name, "accept")) {
      head.accept = value;
    } else if (same_word(name, "connection")) {
      if (lists(value, "close")) head.keep_alive = false;
    } else if (same_word(name, "transfer-encoding")) {
      head.has_body = true;
    } else if (same_word(name, "content-length")) {
      if (has_length) return Refusal{400, "two Content-Length headers"};
      const bool digits =
          !value.empty() && std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
      if (!digits) return Refusal{400, "a Content-Length that is no number"};
      const auto n = parse_number(value, kMaxBody);
      if (!n) return Refusal{413, "a body of more than " + std::to_string(kMaxBody) + " bytes"};
      has_length = true;
      length = *n;
    }
    return std::nullopt;
  }
};

std::optional<Refusal> parse_request_line(std::string_view line, Head& head, bool& is_http10) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Refusal{400, "the request line is not METHOD TARGET VERSION"};
  }
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method)) return Refusal{400, "the method is no word"};
  if (target.size() > kMaxTarget) {
    return Refusal{414, "a target of more than " + std::to_string(kMaxTarget) + " bytes"};
  }
  if (target.empty() || std::ranges::any_of(target, [](char c) {
        return c == ' ' || is_control(c) || static_cast<unsigned char>(c) >= 0x80;
      })) {
    return Refusal{400, "the target holds characters that must be escaped"};
  }
  is_http10 = version == "HTTP/1.0";
  if (!is_http10 && version != "HTTP/1.1") return Refusal{505, "neither HTTP/1.1 nor HTTP/1.0"};
  head.method = method;
  head.target = target;
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> parse_head(std::string_view text, Head& head) {
  head = {};
  if (text.size() > kMaxHead) {
    return Refusal{431, "a head of more than " + std::to_string(kMaxHead) + " bytes"};
  }
  Headers headers{head};
  std::size_t lines = 0;
  for (;; ++lines) {
    const std::size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return Refusal{400, "the head does not end"};
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (std::ranges::any_of(line, [](char c) { return is_control(c) && c != '\t'; })) {
      return Refusal{400, "a control character in the head"};
    }
    if (lines == 0) {
      if (auto refusal = parse_request_line(line, head, headers.is_http10)) return refusal;
      continue;
    }
    if (line.empty()) break;
    if (lines > kMaxHeaders) {
      return Refusal{431, "more than " + std::to_string(kMaxHeaders) + " headers"};
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
      return Refusal{400, "a header line without a name"};
    }
    if (auto refusal = headers.add(line.substr(0, colon), trimmed(line.substr(colon + 1)))) {
      return refusal;
    }
  }
  if (!text.empty()) return Refusal{400, "something behind the head"};
  if (!head.host && !headers.is_http10) return Refusal{400, "no Host header"};
  if (headers.is_http10) head.keep_alive = false;
  if (headers.has_length && head.has_body) return Refusal{400, "a body with two lengths"};
  if (headers.length > 0) head.has_body = true;
  return std::nullopt;
}

const std::string* Target::find(std::string_view key) const noexcept {
  for (const auto& [name, value] : query) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::optional<Target> parse_target(std::string_view text) {
  if (text.empty() || text.front() != '/') return std::nullopt;
  text = text.substr(0, text.find('#'));
  const std::size_t mark = std::min(text.find('?'), text.size());
  Target target;
  auto path = decoded(text.substr(0, mark), false);
  if (!path) return std::nullopt;
  target.path = std::move(*path);
  std::string_view rest = text.substr(std::min(mark + 1, text.size()));
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    auto key = decoded(pair.substr(0, equals), true);
    auto value = decoded(pair.substr(std::min(equals + 1, pair.size())), true);
    if (!key || !value) return std::nullopt;
    target.query.emplace_back(std::move(*key), std::move(*value));
  }
  return target;
}

std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t most) noexcept {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n > most) return std::nullopt;
  return n;
}

bool same_secret(std::string_view given, std::string_view secret) noexcept {
  // Volatile: the compiler may not stop at the first difference either.
  volatile unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference =
        static_cast<unsigned char>(difference | static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0 && !secret.empty();
}

bool is_loopback_host(std::string_view host) noexcept {
  // A port may follow, behind the bracket of an IPv6 address.
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && (host.front() != '[' || host[colon - 1] == ']')) {
    if (!parse_number(host.substr(colon + 1), 65535)) return false;
    host = host.substr(0, colon);
  }
  if (same_word(host, "localhost") || host == "[::1]") return true;
  // 127.0.0.0/8, written in full.
  int numbers = 0;
  bool first_is_127 = false;
  while (!host.empty()) {
    const std::size_t dot = std::min(host.find('.'), host.size());
    const auto n = parse_number(host.substr(0, dot), 255);
    if (!n || dot == host.size() - 1) return false;
    if (numbers == 0) first_is_127 = *n == 127;
    ++numbers;
    host.remove_prefix(std::min(dot + 1, host.size()));
  }
  return numbers == 4 && first_is_127;
}

}  // namespace serinus::serve
