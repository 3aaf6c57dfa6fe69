#include "base/error_page.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace serinus {

namespace {

constexpr std::array<std::string_view, 6> kExceptions = {"ValueError",          "TypeError",
                                                         "InputError",          "RuntimeError",
                                                         "NotImplementedError", "InternalError"};

std::string_view trim(std::string_view s) {
  const auto first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const auto end = s.find(separator);
    out.push_back(s.substr(0, end));
    if (end == std::string_view::npos) return out;
    s.remove_prefix(end + 1);
  }
}

// The mark that starts a list item: "- " or "12. ". 0 if the line starts none.
std::size_t item_mark(std::string_view line) {
  if (line.starts_with("- ")) return 2;
  const auto digits = line.find_first_not_of("0123456789");
  const bool numbered =
      digits != 0 && digits != std::string_view::npos && line.substr(digits).starts_with(". ");
  return numbered ? digits + 2 : 0;
}

class PageParser {
 public:
  PageParser(const ErrorPageText& page, std::deque<std::string>& storage,
             std::vector<std::string>& problems)
      : lines_(split(page.text, '\n')), storage_(storage), problems_(problems) {
    entry_.slug = page.slug;
  }

  ErrorEntry parse() {
    front_matter();
    while (at_ < lines_.size()) section();
    for (const auto& [name, seen] : sections_) {
      if (!seen) complain("has no section ## " + std::string(name));
    }
    return std::move(entry_);
  }

 private:
  void complain(std::string what) {
    problems_.push_back("errors/" + std::string(entry_.slug) + ".md " + std::move(what));
  }

  std::string_view keep(std::string s) { return storage_.emplace_back(std::move(s)); }

  void front_matter() {
    if (trim(lines_[0]) != "---") {
      complain("does not start with ---");
      return;
    }
    std::vector<std::string_view> seen;
    for (at_ = 1; at_ < lines_.size() && trim(lines_[at_]) != "---"; ++at_) {
      const std::string_view line = lines_[at_];
      const auto colon = line.find(':');
      if (colon == std::string_view::npos) {
        complain("has a line without key: value at its start: " + std::string(line));
        continue;
      }
      const std::string_view key = line.substr(0, colon);
      const std::string_view value = trim(line.substr(colon + 1));
      if (std::ranges::find(seen, key) != seen.end()) complain("gives twice: " + std::string(key));
      seen.push_back(key);
      if (key == "id") {
        entry_.id = value;
      } else if (key == "title") {
        entry_.title = value;
      } else if (key == "message") {
        entry_.message = value;
      } else if (key == "exception") {
        entry_.exception = value;
      } else if (key == "related") {
        entry_.related = comma_list(value);
      } else if (key == "raised_at") {
        entry_.raised_at = comma_list(value);
      } else {
        complain("has an unknown key: " + std::string(key));
      }
    }
    if (at_ == lines_.size()) complain("does not end its first part with ---");
    ++at_;
    const std::string_view id = entry_.id;
    if (!id.starts_with("SRN") || id.size() != 7 ||
        id.find_first_not_of("0123456789", 3) != std::string_view::npos) {
      complain("needs an id such as SRN1001, has: " + std::string(id));
    }
    if (entry_.title.empty()) complain("has no title");
    if (entry_.message.empty()) complain("has no message");
    if (entry_.raised_at.empty()) complain("has no raised_at");
    if (std::ranges::find(kExceptions, entry_.exception) == kExceptions.end()) {
      complain("names an exception that does not exist: " + std::string(entry_.exception));
    }
  }

  static std::vector<std::string_view> comma_list(std::string_view value) {
    std::vector<std::string_view> out;
    for (const std::string_view item : split(value, ',')) {
      if (!trim(item).empty()) out.push_back(trim(item));
    }
    return out;
  }

  void section() {
    const std::string_view heading = lines_[at_++];
    if (trim(heading).empty()) return;
    if (!heading.starts_with("## ")) {
      complain("has text outside its sections: " + std::string(heading));
      return;
    }
    const std::string_view title = trim(heading.substr(3));
    const std::size_t begin = at_;
    for (bool fenced = false; at_ < lines_.size(); ++at_) {
      if (lines_[at_].starts_with("```")) fenced = !fenced;
      if (!fenced && lines_[at_].starts_with("## ")) break;
    }
    const std::vector<std::string_view> body(lines_.begin() + static_cast<std::ptrdiff_t>(begin),
                                             lines_.begin() + static_cast<std::ptrdiff_t>(at_));
    const auto known = std::ranges::find(sections_, title, &Section::name);
    if (known == sections_.end()) {
      complain("has an unknown section ## " + std::string(title));
      return;
    }
    if (known->seen) complain("has twice the section ## " + std::string(title));
    known->seen = true;
    bool filled = false;
    if (title == "Meaning" || title == "Trigger") {
      std::string_view& text = title == "Meaning" ? entry_.meaning : entry_.trigger;
      text = keep(paragraphs(body));
      filled = !text.empty();
    } else if (title == "Situations" || title == "Solutions") {
      auto& list = title == "Situations" ? entry_.situations : entry_.solutions;
      list = items(body, title);
      filled = !list.empty();
    } else {
      std::string_view& code = title == "Before"  ? entry_.example_before
                               : title == "After" ? entry_.example_after
                                                  : entry_.guard;
      code = fenced(body, title);
      filled = !trim(code).empty();
    }
    if (!filled) complain("has an empty section ## " + std::string(title));
  }

  // Lines joined by spaces; an empty line starts a paragraph.
  static std::string paragraphs(const std::vector<std::string_view>& body) {
    std::string out;
    bool gap = false;
    for (const std::string_view line : body) {
      const std::string_view text = trim(line);
      if (text.empty()) {
        gap = true;
        continue;
      }
      if (!out.empty()) out += gap ? "\n\n" : " ";
      out += text;
      gap = false;
    }
    return out;
  }

  std::vector<std::string_view> items(const std::vector<std::string_view>& body,
                                      std::string_view title) {
    std::vector<std::string> texts;
    for (const std::string_view line : body) {
      const std::size_t mark = item_mark(line);
      if (trim(line).empty()) continue;
      if (mark != 0) {
        texts.emplace_back(trim(line.substr(mark)));
      } else if (texts.empty()) {
        complain("has a list in ## " + std::string(title) + " that does not start with - or 1.");
        return {};
      } else {
        texts.back().append(" ").append(trim(line));
      }
    }
    std::vector<std::string_view> out;
    for (std::string& t : texts) out.push_back(keep(std::move(t)));
    return out;
  }

  std::string_view fenced(const std::vector<std::string_view>& body, std::string_view title) {
    std::vector<std::string_view> code;
    int fences = 0;
    for (const std::string_view line : body) {
      if (line.starts_with("```")) {
        ++fences;
      } else if (fences == 1) {
        code.push_back(line);
      } else if (!trim(line).empty()) {
        complain("has text outside the ``` block in ## " + std::string(title));
      }
    }
    if (fences != 2) complain("needs one ``` block in ## " + std::string(title));
    if (code.empty()) return {};
    // Views into the page: from the first line to the end of the last one.
    const char* const end = code.back().data() + code.back().size();
    return {code.front().data(), static_cast<std::size_t>(end - code.front().data())};
  }

  struct Section {
    std::string_view name;
    bool seen = false;
  };

  std::vector<std::string_view> lines_;
  std::size_t at_ = 0;
  std::deque<std::string>& storage_;
  std::vector<std::string>& problems_;
  ErrorEntry entry_;
  std::array<Section, 7> sections_ = {
      {{"Meaning"}, {"Trigger"}, {"Situations"}, {"Solutions"}, {"Before"}, {"After"}, {"Guard"}}};
};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Whether a message that begins with `c` may be part of a longer word.
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
}

bool is_one_word(std::string_view key) {
  return key == "name" || key == "argument" || key == "other" || key == "size";
}

}  // namespace

ErrorEntry parse_error_page(const ErrorPageText& page, std::deque<std::string>& storage,
                            std::vector<std::string>& problems) {
  return PageParser(page, storage, problems).parse();
}

MessageTemplate::MessageTemplate(std::string_view message) {
  while (true) {
    const auto open = message.find('{');
    const auto close = open == std::string_view::npos ? open : message.find('}', open);
    if (close == std::string_view::npos) break;
    literals.push_back(message.substr(0, open));
    keys.push_back(message.substr(open + 1, close - open - 1));
    message.remove_prefix(close + 1);
  }
  literals.push_back(message);
}

std::size_t MessageTemplate::literal_size() const noexcept {
  std::size_t n = 0;
  for (const std::string_view l : literals) {
    n += static_cast<std::size_t>(std::ranges::count_if(l, [](char c) { return !is_space(c); }));
  }
  return n;
}

bool MessageTemplate::matches(std::string_view line) const {
  // Most lines lack one of the literals; finding that out is cheap.
  for (const std::string_view l : literals) {
    if (line.find(l) == std::string_view::npos) return false;
  }
  // reached[i]: what was matched so far can end before line[i]. Each step is linear in the line, so
  // no text can make it blow up.
  std::vector<char> reached(line.size() + 1);
  for (std::size_t i = 0; i <= line.size(); ++i) {
    reached[i] = i == 0 || !is_word(line[i - 1]);
  }
  std::vector<char> next(line.size() + 1);
  for (std::size_t k = 0;; ++k) {
    std::ranges::fill(next, 0);
    const std::string_view literal = literals[k];
    for (std::size_t i = 0; i + literal.size() <= line.size(); ++i) {
      if (reached[i] != 0 && line.substr(i, literal.size()) == literal)
        next[i + literal.size()] = 1;
    }
    std::swap(reached, next);
    if (k == keys.size()) break;
    std::ranges::fill(next, 0);
    // Behind a text that says whose message it is, a name may be several words: in "kv-canary:
    // {name} must be ..." the name of a call and its argument.
    const bool one_word = is_one_word(keys[k]) && (k > 0 || literal.empty());
    bool open = false;
    for (std::size_t i = 0; i <= line.size(); ++i) {
      if (open && one_word && is_space(line[i - 1])) open = false;
      if (open) next[i] = 1;
      if (reached[i] != 0) {
        open = true;
        if (!one_word) next[i] = 1;  // a value may be empty
      }
    }
    std::swap(reached, next);
  }
  constexpr std::string_view kMayFollow = "\"'`)]},;.";
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (reached[i] != 0 &&
        (i == line.size() || kMayFollow.find(line[i]) != std::string_view::npos)) {
      return true;
    }
  }
  return false;
}

}  // namespace serinus
