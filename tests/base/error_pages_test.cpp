// Walks every page of errors/ and every place in the sources that raises one, and holds them
// against each other. A failure says which file to mend, and how.
#include "base/error_pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/error.h>

#include "base/error_page.h"

namespace serinus {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SERINUS_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string page_file(const ErrorEntry& e) {
  return fmt::format("errors/{}.md", e.slug);
}

// ---------------------------------------------------------------- scanner of the sources

bool is_identifier(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The end of the string or character literal that starts at `i`.
std::size_t skip_literal(std::string_view s, std::size_t i) {
  if (s[i] == '"' && i > 0 && s[i - 1] == 'R') {
    const auto open = s.find('(', i);
    const std::string close = fmt::format("){}\"", s.substr(i + 1, open - i - 1));
    const auto end = s.find(close, open);
    return end == std::string_view::npos ? s.size() : end + close.size();
  }
  for (std::size_t j = i + 1; j < s.size(); ++j) {
    if (s[j] == '\\') {
      ++j;
    } else if (s[j] == s[i]) {
      return j + 1;
    }
  }
  return s.size();
}

bool starts_literal(std::string_view s, std::size_t i) {
  // 1'000 is a number.
  return s[i] == '"' || (s[i] == '\'' && (i == 0 || !is_identifier(s[i - 1])));
}

// The source with its comments blanked out; offsets stay.
std::string without_comments(std::string s) {
  for (std::size_t i = 0; i < s.size();) {
    if (starts_literal(s, i)) {
      i = skip_literal(s, i);
    } else if (s.compare(i, 2, "//") == 0) {
      for (; i < s.size() && s[i] != '\n'; ++i) s[i] = ' ';
    } else if (s.compare(i, 2, "/*") == 0) {
      const std::size_t end = std::min(s.find("*/", i), s.size() - 2) + 2;
      for (; i < end; ++i) {
        if (s[i] != '\n') s[i] = ' ';
      }
    } else {
      ++i;
    }
  }
  return s;
}

std::size_t skip_space(std::string_view s, std::size_t i) {
  while (i < s.size() && std::isspace(static_cast<unsigned char>(s[i])) != 0) ++i;
  return i;
}

std::string_view identifier_at(std::string_view s, std::size_t i) {
  std::size_t end = i;
  while (end < s.size() && is_identifier(s[end])) ++end;
  return s.substr(i, end - i);
}

using Keys = std::set<std::string>;

// The keys of {{"key", value}, ...} at `i`; nothing if that is not what stands there.
std::optional<Keys> field_list(std::string_view s, std::size_t i) {
  if (i >= s.size() || s[i] != '{') return std::nullopt;
  Keys keys;
  int depth = 0;
  bool key_due = false;
  while (i < s.size()) {
    if (starts_literal(s, i)) {
      const std::size_t end = skip_literal(s, i);
      if (key_due) keys.emplace(s.substr(i + 1, end - i - 2));
      key_due = false;
      i = end;
      continue;
    }
    const char c = s[i++];
    if (c == '{' || c == '(' || c == '[') {
      if (key_due) return std::nullopt;
      key_due = ++depth == 2 && c == '{';
    } else if (c == '}' || c == ')' || c == ']') {
      if (--depth == 0) return keys;
    } else if (key_due && std::isspace(static_cast<unsigned char>(c)) == 0) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// A field list at `i`, written there or in a variable that the file fills with one.
std::optional<Keys> fields_at(std::string_view s, std::size_t i) {
  if (std::optional<Keys> keys = field_list(s, i)) return keys;
  const std::string_view variable = identifier_at(s, i);
  if (variable.empty()) return std::nullopt;
  for (const char* format : {" {} = {{", " {}{{"}) {
    const std::string start = fmt::format(fmt::runtime(format), variable);
    if (const auto at = s.rfind(start, i); at != std::string_view::npos) {
      return field_list(s, at + start.size() - 1);
    }
  }
  return std::nullopt;
}

struct Site {
  std::string file;
  std::size_t line = 0;
  std::string page;               // with underscores, as in errors::Page
  bool looked_up = false;         // entry_of(page): there are no fields
  std::vector<Keys> field_lists;  // one of them must fit; several where a helper raises
  std::string place() const { return fmt::format("{}:{}", file, line); }
};

// Field lists of raise(variable, {...}): the file's helpers, which get their page from a caller.
std::vector<Keys> lists_of_helpers(std::string_view s) {
  std::vector<Keys> out;
  for (const std::string_view call : {"raise(", "error_message("}) {
    for (auto at = s.find(call); at != std::string_view::npos; at = s.find(call, at + 1)) {
      const std::size_t argument = skip_space(s, at + call.size());
      const std::string_view variable = identifier_at(s, argument);
      const std::size_t comma = skip_space(s, argument + variable.size());
      if (variable.empty() || comma >= s.size() || s[comma] != ',') continue;
      if (auto keys = fields_at(s, skip_space(s, comma + 1))) out.push_back(*keys);
    }
  }
  return out;
}

std::vector<Site> sites_in(const std::string& file, const std::string& source) {
  const std::string s = without_comments(source);
  std::vector<Site> out;
  for (auto at = s.find("Page::"); at != std::string::npos; at = s.find("Page::", at + 1)) {
    if (at > 0 && is_identifier(s[at - 1])) continue;
    Site site;
    site.file = file;
    site.line = 1 + static_cast<std::size_t>(
                        std::count(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    const std::size_t name = at + 6;
    site.page = identifier_at(s, name);
    std::size_t begin = at;
    if (s.compare(at >= 8 ? at - 8 : 0, 8, "errors::") == 0) begin -= 8;
    site.looked_up = begin >= 9 && s.compare(begin - 9, 9, "entry_of(") == 0;
    std::size_t next = skip_space(s, name + site.page.size());
    // condition ? Page::a : Page::b, {...}
    while (next < s.size() && s[next] == ':') {
      const auto other = s.find("Page::", next);
      if (other == std::string::npos) break;
      next = skip_space(s, other + 6 + identifier_at(s, other + 6).size());
    }
    std::optional<Keys> keys;
    if (next < s.size() && s[next] == ',') keys = fields_at(s, skip_space(s, next + 1));
    site.field_lists = keys ? std::vector<Keys>{*keys} : lists_of_helpers(s);
    out.push_back(std::move(site));
  }
  // raise("slug", {...}): code that has the public headers only.
  constexpr std::string_view kRaise = "raise(";
  for (auto at = s.find(kRaise); at != std::string::npos; at = s.find(kRaise, at + 1)) {
    const std::size_t slug = skip_space(s, at + kRaise.size());
    if (slug >= s.size() || s[slug] != '"') continue;
    Site site;
    site.file = file;
    site.line = 1 + static_cast<std::size_t>(
                        std::count(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    const std::size_t end = skip_literal(s, slug);
    site.page = s.substr(slug + 1, end - slug - 2);
    std::ranges::replace(site.page, '-', '_');
    const std::size_t comma = skip_space(s, end);
    if (comma < s.size() && s[comma] == ',') {
      if (auto keys = fields_at(s, skip_space(s, comma + 1))) site.field_lists.push_back(*keys);
    }
    out.push_back(std::move(site));
  }
  return out;
}

const std::vector<Site>& all_sites() {
  static const std::vector<Site> sites = [] {
    std::vector<Site> out;
    for (const char* top : {"src", "engine", "cli", "serve", "python", "examples"}) {
      if (!fs::exists(kRoot / top)) continue;
      for (const auto& f : fs::recursive_directory_iterator(kRoot / top)) {
        const std::string extension = f.path().extension().string();
        if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") {
          continue;
        }
        const std::string file = fs::relative(f.path(), kRoot).generic_string();
        for (Site& s : sites_in(file, read(f.path()))) out.push_back(std::move(s));
      }
    }
    std::ranges::sort(out, [](const Site& a, const Site& b) {
      return std::tie(a.file, a.line) < std::tie(b.file, b.line);
    });
    return out;
  }();
  return sites;
}

std::string constant_of(const ErrorEntry& e) {
  std::string name(e.slug);
  std::ranges::replace(name, '-', '_');
  return name;
}

// ---------------------------------------------------------------- the scanner itself

TEST(Scanner, ReadsFieldLists) {
  EXPECT_EQ(field_list(R"({{"name", f("{}", a)}, {"got", x}})", 0), (Keys{"got", "name"}));
  EXPECT_EQ(field_list("{}", 0), Keys{});
  EXPECT_EQ(field_list(R"({{ "name" , std::vector<int>{1, 2}[0] }})", 0), Keys{"name"});
  EXPECT_EQ(field_list("{a, b}", 0), Keys{});
  EXPECT_EQ(field_list("{{a, b}}", 0), std::nullopt);
  EXPECT_EQ(field_list("x", 0), std::nullopt);
}

TEST(Scanner, FindsSites) {
  const std::vector<Site> s = sites_in("f.cpp", R"cpp(
    // raise(errors::Page::in_a_comment, {});
    raise(errors::Page::first, {{"name", "x"}});
    raise(big ? Page::second : errors::Page::third, {{"got", "}"}});
    const auto fields = {{"why", a}};
    throw_it(Page::fourth, fields);
    require(ok, Page::fifth, "n", 1);
    void require(bool ok, Page page, const char* n, int v) {
      raise(page, {{"name", n}});
    }
    entry_of(errors::Page::sixth);
    ErrorPage::not_one;
    serinus::raise("sev-enth", {{"peer", "1"}});
  )cpp");
  std::vector<std::string> pages;
  for (const Site& site : s) pages.push_back(site.page);
  EXPECT_EQ(pages, (std::vector<std::string>{"first", "second", "third", "fourth", "fifth", "sixth",
                                             "sev_enth"}));
  EXPECT_EQ(s[0].place(), "f.cpp:3");
  EXPECT_EQ(s[0].field_lists, std::vector<Keys>{{"name"}});
  EXPECT_EQ(s[1].field_lists, std::vector<Keys>{{"got"}});
  EXPECT_EQ(s[2].field_lists, std::vector<Keys>{{"got"}});
  EXPECT_EQ(s[3].field_lists, std::vector<Keys>{{"why"}});
  EXPECT_EQ(s[4].field_lists, std::vector<Keys>{{"name"}});
  EXPECT_FALSE(s[4].looked_up);
  EXPECT_TRUE(s[5].looked_up);
  EXPECT_EQ(s[6].place(), "f.cpp:13");
  EXPECT_EQ(s[6].field_lists, std::vector<Keys>{{"peer"}});
}

// ---------------------------------------------------------------- pages

TEST(Pages, AreWellFormed) {
  std::deque<std::string> storage;
  std::vector<std::string> problems;
  for (const ErrorPageText& page : error_pages()) parse_error_page(page, storage, problems);
  for (const std::string& p : problems) ADD_FAILURE() << p << "\n(the format: errors/README.md)";
  EXPECT_GE(error_reference().size(), 2u);
}

TEST(Pages, IdsAreUniqueAndInARangeOfTheReadme) {
  // | SRN1xxx | area |
  std::map<char, std::string> ranges;
  const std::string readme = read(kRoot / "errors/README.md");
  for (auto at = readme.find("| SRN"); at != std::string::npos; at = readme.find("| SRN", at + 1)) {
    EXPECT_EQ(readme.substr(at + 6, 3), "xxx") << "errors/README.md: a row that names no range";
    ranges[readme[at + 5]] = readme.substr(at, readme.find('\n', at) - at);
  }
  ASSERT_FALSE(ranges.empty()) << "errors/README.md has no table of ranges";
  std::map<std::string_view, std::string> seen;
  std::set<char> used;
  for (const ErrorEntry& e : error_reference()) {
    if (e.id.size() != 7) continue;  // Pages.AreWellFormed has said so
    const auto [other, is_new] = seen.emplace(e.id, page_file(e));
    EXPECT_TRUE(is_new) << page_file(e) << " has the id of " << other->second << ": " << e.id;
    EXPECT_TRUE(ranges.contains(e.id[3]))
        << page_file(e) << ": " << e.id << " is in no range of errors/README.md";
    used.insert(e.id[3]);
  }
  for (const auto& [digit, row] : ranges) {
    EXPECT_TRUE(used.contains(digit)) << "errors/README.md: no page is in the range of " << row;
  }
}

TEST(Pages, RelatedSlugsExist) {
  for (const ErrorEntry& e : error_reference()) {
    for (const std::string_view slug : e.related) {
      EXPECT_NE(slug, e.slug) << page_file(e) << " is related to itself";
      EXPECT_TRUE(std::ranges::any_of(error_reference(),
                                      [&](const ErrorEntry& o) { return o.slug == slug; }))
          << page_file(e) << ": related names a page that does not exist: " << slug;
    }
  }
}

TEST(Pages, TemplatesSayEnoughToBeFound) {
  std::map<std::string_view, std::string> seen;
  for (const ErrorEntry& e : error_reference()) {
    const MessageTemplate t(e.message);
    EXPECT_GE(t.literal_size(), 6u) << page_file(e) << ": the message is hardly more than "
                                    << "placeholders, no error line can be told by it";
    for (const std::string_view key : t.keys) {
      EXPECT_TRUE(!key.empty() && std::ranges::all_of(key, is_identifier))
          << page_file(e) << ": a placeholder must be a plain name, not {" << key << "}";
    }
    const auto [other, is_new] = seen.emplace(e.message, page_file(e));
    EXPECT_TRUE(is_new) << page_file(e) << " has the message of " << other->second;
  }
}

TEST(Pages, EveryOneIsFoundByItsIdItsSlugAndItsMessage) {
  for (const ErrorEntry& e : error_reference()) {
    EXPECT_EQ(find_error(e.id), &e) << page_file(e);
    EXPECT_EQ(find_error(e.slug), &e) << page_file(e);
    const MessageTemplate t(e.message);
    std::string line;
    for (std::size_t i = 0; i < t.literals.size(); ++i) {
      line += t.literals[i];
      if (i < t.keys.size()) line += "7x";
    }
    for (const char* prefix : {"", "ValueError: ", "serinus.Error: ", "12:30:01 [rank 3] ERROR "}) {
      const ErrorEntry* found = find_error(prefix + line);
      ASSERT_NE(found, nullptr) << page_file(e) << " is not found by: " << prefix << line;
      EXPECT_EQ(found->slug, e.slug)
          << page_file(e) << ": its message is taken for that of " << page_file(*found) << ": "
          << prefix << line << "\nMake one of the two messages more specific.";
    }
  }
}

// ---------------------------------------------------------------- raise sites

TEST(Sites, FillExactlyThePlaceholdersOfTheirTemplate) {
  std::map<std::string, const ErrorEntry*> entries;
  for (const ErrorEntry& e : error_reference()) entries[constant_of(e)] = &e;
  EXPECT_GE(all_sites().size(), 10u) << "the scanner finds hardly any raise site";
  for (const Site& s : all_sites()) {
    if (s.looked_up) continue;
    const auto entry = entries.find(s.page);
    // A page that does not exist does not compile, but code of another build may name one.
    if (entry == entries.end()) {
      ADD_FAILURE() << s.place() << ": errors::Page::" << s.page << " has no page";
      continue;
    }
    const MessageTemplate t(entry->second->message);
    const Keys want(t.keys.begin(), t.keys.end());
    const auto fits = [&](const Keys& given) {
      return std::ranges::includes(given, want) &&
             std::ranges::all_of(given, [&](const std::string& k) {
               return want.contains(k) || k == "name" || k == "argument" || k == "got" ||
                      k == "value";
             });
    };
    if (std::ranges::any_of(s.field_lists, fits)) continue;
    if (s.field_lists.empty()) {
      ADD_FAILURE() << s.place() << ": cannot see with which fields errors::Page::" << s.page
                    << " is raised. Write raise(errors::Page::" << s.page
                    << ", {{\"key\", value}, ...}), or a helper in the same file that calls "
                       "raise(page, {{\"key\", value}, ...}).";
    } else {
      ADD_FAILURE() << s.place() << ": errors::Page::" << s.page << " is raised with the fields {"
                    << fmt::format("{}", fmt::join(s.field_lists.front(), ", ")) << "}, but "
                    << page_file(*entry->second) << " has the message\n  " << entry->second->message
                    << "\nGive exactly its placeholders (beside them, only name or argument and "
                       "got or value).";
    }
  }
}

TEST(Sites, AreWhatThePagesSay) {
  std::map<std::string, std::set<std::string>> files;
  for (const Site& s : all_sites()) files[s.page].insert(s.file);
  for (const ErrorEntry& e : error_reference()) {
    const std::set<std::string> said(e.raised_at.begin(), e.raised_at.end());
    const std::set<std::string>& is = files[constant_of(e)];
    EXPECT_FALSE(is.empty()) << page_file(e) << ": nothing raises errors::Page::" << constant_of(e)
                             << "; raise it or delete the page";
    if (!is.empty()) {
      EXPECT_EQ(said, is) << page_file(e)
                          << ": write `raised_at: " << fmt::format("{}", fmt::join(is, ", "))
                          << "`";
    }
  }
}

TEST(Sites, OutsideTheLibraryRaiseBySlug) {
  const std::string unknown = "no-such-slug-anywhere";  // not a site
  try {
    raise("peer-lost", {{"peer", "3"}, {"got", "it hung up"}, {"doing", "gathering"}});
    ADD_FAILURE() << "went on";
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN8001");
    EXPECT_STREQ(e.what(), "rank 3 is gone: it hung up, while gathering");
    EXPECT_EQ(e.value(), "it hung up");
  }
  EXPECT_THROW(raise(unknown, {}), InternalError);
  EXPECT_THROW(raise("peer-lost", {{"peer", "3"}}), InternalError) << "a value is missing";
}

// ---------------------------------------------------------------- the parser against bad pages

std::string problems_of(const std::string& text) {
  std::deque<std::string> storage;
  std::vector<std::string> problems;
  parse_error_page({"x", text}, storage, problems);
  return fmt::format("{}", fmt::join(problems, "\n"));
}

const std::string kGood =
    "---\nid: SRN1001\ntitle: T\nmessage: m {name}\nexception: ValueError\nrelated: a, b-c\n"
    "raised_at: src/a.cpp, src/b.cpp\n---\n## Meaning\nOne\ntwo.\n\nThree.\n## Trigger\nT.\n"
    "## Situations\n- a\n  b\n- c\n## Solutions\n1. d\n2. e\n## Before\n```python\n## not a "
    "heading\n"
    "x = 1\n```\n## After\n```\ny\n\nz\n```\n## Guard\n```\ng\n```\n";

TEST(Parser, ReadsAPage) {
  std::deque<std::string> storage;
  std::vector<std::string> problems;
  const ErrorEntry e = parse_error_page({"x", kGood}, storage, problems);
  EXPECT_TRUE(problems.empty()) << problems.front();
  EXPECT_EQ(e.id, "SRN1001");
  EXPECT_EQ(e.message, "m {name}");
  EXPECT_EQ(e.meaning, "One two.\n\nThree.");
  EXPECT_EQ(e.situations, (std::vector<std::string_view>{"a b", "c"}));
  EXPECT_EQ(e.solutions, (std::vector<std::string_view>{"d", "e"}));
  EXPECT_EQ(e.example_before, "## not a heading\nx = 1");
  EXPECT_EQ(e.example_after, "y\n\nz");
  EXPECT_EQ(e.guard, "g");
  EXPECT_EQ(e.related, (std::vector<std::string_view>{"a", "b-c"}));
  EXPECT_EQ(e.raised_at, (std::vector<std::string_view>{"src/a.cpp", "src/b.cpp"}));
}

TEST(Parser, NamesWhatIsWrong) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string s = kGood;
    s.replace(s.find(from), from.size(), to);
    return problems_of(s);
  };
  EXPECT_EQ(problems_of(kGood), "");
  EXPECT_EQ(changed("SRN1001", "SRN101"), "errors/x.md needs an id such as SRN1001, has: SRN101");
  EXPECT_EQ(changed("ValueError", "OddError"),
            "errors/x.md names an exception that does not exist: OddError");
  EXPECT_EQ(changed("title: T\n", ""), "errors/x.md has no title");
  EXPECT_EQ(changed("title: T", "title: T\ntitle: U"), "errors/x.md gives twice: title");
  EXPECT_EQ(changed("title: T", "title: T\ntit1e: U"), "errors/x.md has an unknown key: tit1e");
  EXPECT_EQ(changed("## Trigger\nT.\n", ""), "errors/x.md has no section ## Trigger");
  EXPECT_EQ(changed("T.\n", "\n"), "errors/x.md has an empty section ## Trigger");
  EXPECT_EQ(changed("## Trigger", "## Tr"),
            "errors/x.md has an unknown section ## Tr\nerrors/x.md has no section ## Trigger");
  EXPECT_EQ(changed("```\ng\n```", "g"),
            "errors/x.md has text outside the ``` block in ## Guard\n"
            "errors/x.md needs one ``` block in ## Guard\n"
            "errors/x.md has an empty section ## Guard");
  EXPECT_NE(changed("---\nid", "id"), "");
}

TEST(Parser, SurvivesEveryPrefixAndEveryLostLine) {
  for (std::size_t n = 0; n < kGood.size() - 1; ++n) {
    EXPECT_NE(problems_of(kGood.substr(0, n)), "") << n;
  }
  for (std::size_t at = 0; at < kGood.size(); at = kGood.find('\n', at) + 1) {
    std::string s = kGood;
    s.erase(at, s.find('\n', at) + 1 - at);
    problems_of(s);
  }
}

}  // namespace
}  // namespace serinus
