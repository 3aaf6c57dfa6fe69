// Parses the embedded pages of errors/. The format is described in errors/README.md.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error_pages.h"
#include "base/raise.h"

namespace serinus {

namespace {

std::string_view trim(std::string_view s) {
  const auto first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

std::string_view take_line(std::string_view& rest) {
  const auto end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return line;
}

std::vector<std::string_view> split_commas(std::string_view s) {
  std::vector<std::string_view> out;
  while (!trim(s).empty()) {
    const auto comma = s.find(',');
    out.push_back(trim(s.substr(0, comma)));
    s = comma == std::string_view::npos ? std::string_view{} : s.substr(comma + 1);
  }
  return out;
}

// "- a\n- b\n" or "1. a\n2. b\n"; a line that starts otherwise continues its item.
std::vector<std::string_view> list_items(std::string_view body) {
  std::vector<std::string_view> out;
  std::string_view rest = body;
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    const std::size_t mark = line.starts_with("- ") ? 2
                             : line.find(". ") < 3  ? line.find(". ") + 2
                                                    : 0;
    if (mark != 0) {
      out.push_back(line.substr(mark));
    } else if (!out.empty() && !trim(line).empty()) {
      const char* begin = out.back().data();
      out.back() =
          std::string_view(begin, static_cast<std::size_t>(line.data() + line.size() - begin));
    }
  }
  return out;
}

// The text between ``` fences.
std::string_view fenced(std::string_view body) {
  const auto open = body.find("```");
  if (open == std::string_view::npos) return trim(body);
  const auto start = body.find('\n', open) + 1;
  return body.substr(start, body.find("\n```", start) - start);
}

ErrorEntry parse(const ErrorPageText& page) {
  ErrorEntry e;
  e.slug = page.slug;
  std::string_view rest = page.text;
  if (take_line(rest) != "---")
    throw std::logic_error("error page without front matter: " + std::string(page.slug));
  for (std::string_view line = take_line(rest); line != "---"; line = take_line(rest)) {
    const auto colon = line.find(": ");
    const std::string_view key = line.substr(0, colon);
    const std::string_view value = trim(line.substr(colon + 2));
    if (key == "id") e.id = value;
    if (key == "title") e.title = value;
    if (key == "message") e.message = value;
    if (key == "exception") e.exception = value;
    if (key == "related") e.related = split_commas(value);
    if (key == "raised_at") e.raised_at = split_commas(value);
  }
  while (!rest.empty()) {
    const auto heading = rest.find("## ");
    if (heading == std::string_view::npos) break;
    rest.remove_prefix(heading + 3);
    const std::string_view title = trim(take_line(rest));
    const auto end = rest.find("\n## ");
    const std::string_view body = rest.substr(0, end == std::string_view::npos ? end : end + 1);
    if (title == "Meaning") e.meaning = trim(body);
    if (title == "Trigger") e.trigger = trim(body);
    if (title == "Situations") e.situations = list_items(body);
    if (title == "Solutions") e.solutions = list_items(body);
    if (title == "Before") e.example_before = fenced(body);
    if (title == "After") e.example_after = fenced(body);
    if (title == "Guard") e.guard = fenced(body);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  }
  return e;
}

struct Reference {
  std::vector<ErrorEntry> by_page;  // order of errors::Page
  std::vector<ErrorEntry> by_id;
};

const Reference& reference() {
  static const Reference r = [] {
    Reference ref;
    for (const ErrorPageText& page : error_pages()) ref.by_page.push_back(parse(page));
    ref.by_id = ref.by_page;
    std::ranges::sort(ref.by_id, {}, &ErrorEntry::id);
    return ref;
  }();
  return r;
}

}  // namespace

const ErrorEntry& entry_of(errors::Page page) {
  return reference().by_page[static_cast<std::size_t>(page)];
}

std::span<const ErrorEntry> error_reference() {
  return reference().by_id;
}

const ErrorEntry* find_error(std::string_view text) {
  for (const ErrorEntry& e : error_reference()) {
    if (trim(text) == e.id || trim(text) == e.slug) return &e;
  }
  return nullptr;
}

}  // namespace serinus
