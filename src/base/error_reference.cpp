// The error reference: the embedded pages of errors/, parsed once, and the search in them.
#include <algorithm>
#include <cctype>
#include <deque>
#include <string>
#include <vector>

#include "base/error_page.h"
#include "base/raise.h"

namespace serinus {

namespace {

struct Reference {
  std::deque<std::string> storage;
  std::vector<ErrorEntry> by_page;  // order of errors::Page
  std::vector<ErrorEntry> by_id;
  std::vector<MessageTemplate> templates;  // order of by_id
};

const Reference& reference() {
  static const Reference r = [] {
    Reference ref;
    std::vector<std::string> problems;  // tests/base/error_pages_test.cpp lets none through
    for (const ErrorPageText& page : error_pages()) {
      ref.by_page.push_back(parse_error_page(page, ref.storage, problems));
    }
    ref.by_id = ref.by_page;
    std::ranges::sort(ref.by_id, {}, &ErrorEntry::id);
    for (const ErrorEntry& e : ref.by_id) ref.templates.emplace_back(e.message);
    return ref;
  }();
  return r;
}

std::string_view trim(std::string_view s) {
  const auto first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

// An id, a slug or a title, in any case; an id also by its number alone, a slug also with the
// underscores of its constant.
const ErrorEntry* by_name(std::string_view name) {
  std::string slug(name.substr(0, 256));
  std::ranges::replace(slug, '_', '-');
  constexpr std::size_t kLetters = 3;  // of "SRN1001"
  for (const ErrorEntry& e : reference().by_id) {
    if (same_ignoring_case(name, e.id) || name == e.id.substr(kLetters) ||
        same_ignoring_case(slug, e.slug) || same_ignoring_case(name, e.title)) {
      return &e;
    }
  }
  return nullptr;
}

// The first id of the reference that stands in the text as a word.
const ErrorEntry* by_id_within(std::string_view text) {
  constexpr std::size_t kSize = 7;  // "SRN1001"
  for (std::size_t i = 0; i + kSize <= text.size(); ++i) {
    if (lower(text[i]) != 's' || !is_digit(text[i + 3])) continue;
    const auto is_alnum = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    if (i > 0 && is_alnum(text[i - 1])) continue;
    if (i + kSize < text.size() && is_alnum(text[i + kSize])) continue;
    for (const ErrorEntry& e : reference().by_id) {
      if (same_ignoring_case(text.substr(i, kSize), e.id)) return &e;
    }
  }
  return nullptr;
}

// The most specific template that fits the line.
const ErrorEntry* by_message(std::string_view line) {
  constexpr std::size_t kLongest = 8192;
  line = line.substr(0, kLongest);
  const Reference& ref = reference();
  const ErrorEntry* best = nullptr;
  std::size_t best_size = 0;
  for (std::size_t i = 0; i < ref.by_id.size(); ++i) {
    const std::size_t size = ref.templates[i].literal_size();
    if (size > best_size && ref.templates[i].matches(line)) {
      best = &ref.by_id[i];
      best_size = size;
    }
  }
  return best;
}

// A JSON line about a violation, as the text that says the same; any other line as it is.
std::string as_text(std::string_view line) {
  constexpr std::string_view kBegin = "{\"reasons\":[";
  const auto end = line.find(']');
  if (!line.starts_with(kBegin) || end == std::string_view::npos) return std::string(line);
  std::string reasons(line.substr(kBegin.size(), end - kBegin.size()));
  std::erase(reasons, '"');
  std::ranges::replace(reasons, ',', '+');
  return "kv-canary violation: reasons=" + reasons + " " + std::string(line.substr(end + 1));
}

}  // namespace

const ErrorEntry& entry_of(errors::Page page) {
  return reference().by_page[static_cast<std::size_t>(page)];
}

std::span<const ErrorEntry> error_reference() {
  return reference().by_id;
}

const ErrorEntry* find_error(std::string_view text) {
  constexpr std::size_t kMost = 1 << 20;  // of a log, the end
  text = trim(text);
  if (text.size() > kMost) text.remove_prefix(text.size() - kMost);
  if (text.empty()) return nullptr;
  if (const ErrorEntry* e = by_name(text)) return e;
  if (const ErrorEntry* e = by_id_within(text)) return e;
  // Line by line, the last one first: that is where a traceback names the error.
  for (std::string_view rest = text; !rest.empty();) {
    const auto newline = rest.find_last_of('\n');
    const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (const ErrorEntry* e = by_message(as_text(trim(rest.substr(begin))))) return e;
    rest = rest.substr(0, newline == std::string_view::npos ? 0 : newline);
  }
  // A terminal or a mail may have broken the line.
  std::string whole;
  for (const char c : text.substr(0, 8192)) {
    const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (!space) {
      whole += c;
    } else if (!whole.ends_with(' ')) {
      whole += ' ';
    }
  }
  return by_message(whole);
}

}  // namespace serinus
