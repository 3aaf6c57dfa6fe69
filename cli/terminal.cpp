#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace serinus::cli {

namespace {

// Code points: bytes that do not continue a UTF-8 character.
std::size_t columns(std::string_view s) {
  return static_cast<std::size_t>(
      std::ranges::count_if(s, [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::size_t output_width() {
  winsize size{};
  std::size_t width = 80;
  if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col != 0) {
    width = size.ws_col;
  }
  return std::clamp<std::size_t>(width, 40, 100);
}

bool output_has_colours() {
  const char* no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

std::string wrap(std::string_view text, std::size_t width, std::string_view indent,
                 std::string_view first) {
  std::string out(first);
  std::size_t column = columns(first);
  bool line_is_empty = true;
  std::string_view rest = text;
  while (!rest.empty()) {
    if (rest.front() == '\n') {
      out += '\n';
      rest.remove_prefix(1);
      if (!rest.empty() && rest.front() != '\n') out += indent;
      column = columns(indent);
      line_is_empty = true;
      continue;
    }
    if (rest.front() == ' ') {
      rest.remove_prefix(1);
      continue;
    }
    const std::string_view word = rest.substr(0, rest.find_first_of(" \n"));
    if (!line_is_empty && column + 1 + columns(word) > width) {
      out += '\n';
      out += indent;
      column = columns(indent);
      line_is_empty = true;
    }
    if (!line_is_empty) {
      out += ' ';
      ++column;
    }
    out += word;
    column += columns(word);
    line_is_empty = false;
    rest.remove_prefix(word.size());
  }
  out += '\n';
  return out;
}

std::string Style::with(std::string_view code, std::string_view text) const {
  return colours_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

}  // namespace serinus::cli
