// `serinus explain`: the error reference in a terminal, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <serinus/error.h>

#include "base/raise.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "serve/error_json.h"

namespace serinus::cli {

namespace {

// ---------------------------------------------------------------- a page for a terminal

// Code keeps its lines, however long they are.
std::string indented(std::string_view code, std::string_view indent) {
  std::string out;
  for (std::size_t begin = 0; begin <= code.size();) {
    const std::size_t end = std::min(code.find('\n', begin), code.size());
    if (end > begin) out += indent;
    out += code.substr(begin, end - begin);
    out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string page(const ErrorEntry& e, std::size_t width, const Style& style) {
  std::string out = fmt::format("{}  {}\n{}\n\n", style.cyan(e.id), style.bold(e.title),
                                style.dim(fmt::format("{}, {}", e.exception, e.slug)));
  out += fmt::format("    {}\n", style.red(e.message));
  const auto heading = [&](std::string_view title) {
    out += fmt::format("\n{}\n", style.bold(title));
  };
  heading("What it means");
  out += wrap(e.meaning, width, "  ", "  ");
  heading("When it is raised");
  out += wrap(e.trigger, width, "  ", "  ");
  heading("How people get there");
  for (const std::string_view s : e.situations) out += wrap(s, width, "    ", "  - ");
  heading("How to mend it");
  for (std::size_t i = 0; i < e.solutions.size(); ++i) {
    const std::string number = fmt::format("  {}. ", i + 1);
    out += wrap(e.solutions[i], width, std::string(number.size(), ' '), number);
  }
  heading("Before");
  out += indented(e.example_before, style.red("  | "));
  heading("After");
  out += indented(e.example_after, style.green("  | "));
  heading("To check beforehand");
  out += indented(e.guard, "    ");
  if (!e.related.empty()) {
    heading("Related");
    for (const std::string_view slug : e.related) {
      const ErrorEntry* other = find_error(slug);
      if (other != nullptr) out += fmt::format("  {}  {}\n", style.cyan(other->id), other->title);
    }
  }
  std::string files;
  for (const std::string_view f : e.raised_at)
    files += (files.empty() ? "" : ", ") + std::string(f);
  out += fmt::format("\n{}\n", style.dim("raised in " + files));
  return out;
}

std::string list(const Style& style) {
  std::size_t width = 0;
  for (const ErrorEntry& e : error_reference()) width = std::max(width, e.slug.size());
  std::string out;
  for (const ErrorEntry& e : error_reference()) {
    out += fmt::format("{}  {:<{}}  {}\n", style.cyan(e.id), e.slug, width, style.dim(e.title));
  }
  out += fmt::format(
      "\n{} errors. serinus explain ID shows one; so does pasting a line that you "
      "got: serinus explain \"kv must be contiguous\"\n",
      error_reference().size());
  return out;
}

// ---------------------------------------------------------------- what was probably meant

using Trigrams = std::set<std::string>;

Trigrams trigrams(std::string_view text) {
  std::string s = " ";
  for (const char c : text.substr(0, 400)) {
    const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (word) s += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!word && s.back() != ' ') s += ' ';
  }
  if (s.back() != ' ') s += ' ';
  Trigrams out;
  for (std::size_t i = 0; i + 3 <= s.size(); ++i) out.insert(s.substr(i, 3));
  return out;
}

// Of the smaller set, the share that both have.
double likeness(const Trigrams& a, const Trigrams& b) {
  const auto common = std::ranges::count_if(a, [&](const std::string& t) { return b.contains(t); });
  const std::size_t smaller = std::min(a.size(), b.size());
  return smaller < 2 ? 0 : static_cast<double>(common) / static_cast<double>(smaller);
}

// The three entries that are most like the text, as lines; empty if none is.
std::string near_to(std::string_view text) {
  constexpr double kAlike = 0.4;
  const Trigrams given = trigrams(text);
  std::vector<std::pair<double, const ErrorEntry*>> near;
  for (const ErrorEntry& e : error_reference()) {
    double score = 0;
    for (const std::string_view field : {e.id, e.slug, e.title, e.message}) {
      score = std::max(score, likeness(given, trigrams(field)));
    }
    if (score >= kAlike) near.emplace_back(score, &e);
  }
  std::ranges::sort(near, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->id < b.second->id;
  });
  if (near.size() > 3) near.resize(3);
  std::string out;
  for (const auto& [score, e] : near) out += fmt::format("\n  {}  {}", e->id, e->title);
  return out.empty() ? "" : "; near it are" + out;
}

// ---------------------------------------------------------------- the command

// The end of standard input: a log may be long, and what failed stands last.
std::string read_standard_input() {
  constexpr std::size_t kKept = 1 << 20;
  std::string text;
  char buffer[1 << 16];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > 4 * kKept) text.erase(0, text.size() - kKept);
  }
  return text;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::string out(text.substr(0, kShown));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return fmt::format("\"{}{}\"", out, text.size() > kShown ? "..." : "");
}

void explain(const std::vector<std::string>& words, bool json) {
  if (words.empty()) {
    if (json) {
      serve::Json all = serve::Json::array();
      for (const ErrorEntry& e : error_reference()) all.push_back(serve::to_json(e));
      std::fputs(serve::dump(all).c_str(), stdout);
    } else {
      std::fputs(list(Style(output_has_colours())).c_str(), stdout);
    }
    return;
  }
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  if (text == "-") text = read_standard_input();
  const ErrorEntry* e = find_error(text);
  if (e == nullptr) {
    raise(errors::Page::no_such_error,
          {{"argument", "text"}, {"got", printable(text)}, {"near", near_to(text)}});
  }
  std::fputs(json ? serve::dump(serve::to_json(*e)).c_str()
                  : page(*e, output_width(), Style(output_has_colours())).c_str(),
             stdout);
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::vector<std::string> words;
    bool json = false;
  };
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("explain", "What an error means and how to mend it");
  cmd->add_option("ERROR", args->words,
                  "An id, a slug, or the line that you got (- reads it from standard input); "
                  "without one, all errors are listed");
  cmd->add_flag("--json", args->json, "Print JSON");
  // A pasted line may hold words that begin with a dash.
  cmd->allow_extras();
  cmd->callback([cmd, args, &exit_code] {
    for (const std::string& word : cmd->remaining()) {
      if (word != "--") args->words.push_back(word);
    }
    explain(args->words, args->json);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
