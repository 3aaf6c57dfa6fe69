#include "serve/error_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "serve/html_escape.h"

namespace serinus::serve {

namespace {

// Text of a page: `code` is code, an empty line parts paragraphs.
std::string inline_html(std::string_view text) {
  std::string out;
  bool in_code = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '`' && (in_code || text.find('`', i + 1) != std::string_view::npos)) {
      out += in_code ? "</code>" : "<code>";
      in_code = !in_code;
    } else {
      out += html_escaped(text.substr(i, 1));
    }
  }
  return out;
}

std::string paragraphs(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find("\n\n"), text.size());
    out += fmt::format("<p>{}</p>\n", inline_html(text.substr(0, end)));
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  return out;
}

std::string items(std::string_view tag, const std::vector<std::string_view>& list) {
  std::string out = fmt::format("<{}>\n", tag);
  for (const std::string_view item : list) out += fmt::format("<li>{}</li>\n", inline_html(item));
  return out + fmt::format("</{}>\n", tag);
}

std::string code(std::string_view text, std::string_view kind, std::string_view label) {
  // Focusable, so that it can be scrolled without a mouse.
  return fmt::format(
      "<pre class=\"{}\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><code>{}</code></pre>\n",
      kind, label, html_escaped(text));
}

// {name} and the like in a message stand out.
std::string message_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '{') out += "<var>";
    out += html_escaped(std::string_view(&c, 1));
    if (c == '}') out += "</var>";
  }
  return out;
}

std::string document(std::string_view title, std::string_view body) {
  return fmt::format(R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{} · Serinus</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/style.css">
<script src="/page/theme.js"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<a class="brand" href="/"><img src="/page/icon.svg" alt="" width="28" height="28">Serinus</a>
<nav aria-label="Pages"><a href="/">Live</a><a href="/errors" aria-current="{}">Errors</a></nav>
<button id="theme" class="quiet" type="button">Theme: auto</button>
</header>
<main id="main" class="reading">
{}</main>
</body>
</html>
)",
                     html_escaped(title), title == "Errors" ? "page" : "true", body);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lowered(std::string_view s) {
  std::string out(s);
  std::ranges::transform(out, out.begin(), lower);
  return out;
}

// Whether every word of the query stands somewhere in the entry.
bool speaks_of(const ErrorEntry& e, std::string_view query) {
  std::string text;
  for (const std::string_view part : {e.id, e.slug, e.title, e.message, e.meaning, e.trigger}) {
    text += lowered(part) + '\n';
  }
  std::string words = lowered(query);
  for (std::string_view rest = words; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (text.find(rest.substr(0, end)) == std::string::npos) return false;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return true;
}

std::string search_form(std::string_view query) {
  return fmt::format(
      "<form class=\"search\" role=\"search\" action=\"/errors\" method=\"get\">\n"
      "<label for=\"q\">An id, a word, or the error line that you got</label>\n"
      "<div><input id=\"q\" name=\"q\" type=\"search\" value=\"{}\" autocomplete=\"off\" "
      "spellcheck=\"false\"><button type=\"submit\">Search</button></div>\n</form>\n",
      html_escaped(query));
}

}  // namespace

const ErrorEntry* error_named(std::string_view name) noexcept {
  const auto same = [name](std::string_view other) {
    return std::ranges::equal(name, other, {}, lower, lower);
  };
  for (const ErrorEntry& e : error_reference()) {
    if (same(e.id) || same(e.slug)) return &e;
  }
  return nullptr;
}

std::string error_index_html(std::string_view query) {
  std::vector<const ErrorEntry*> found;
  for (const ErrorEntry& e : error_reference()) {
    if (speaks_of(e, query)) found.push_back(&e);
  }
  // A pasted line has one page.
  if (found.empty()) {
    if (const ErrorEntry* e = find_error(query)) found.push_back(e);
  }
  std::string body = "<h1>The error reference</h1>\n" + search_form(query);
  if (query.empty()) {
    body += fmt::format(
        "<p class=\"soft\">Every error of Serinus has an id and a page: what it means, when it "
        "happens, how to mend it. There are {}.</p>\n",
        found.size());
  } else if (found.empty()) {
    body += fmt::format(
        "<p role=\"status\">Nothing here speaks of “{}”. <a href=\"/errors\">All errors</a></p>\n",
        html_escaped(query));
  } else {
    body += fmt::format("<p role=\"status\">{} found. <a href=\"/errors\">All errors</a></p>\n",
                        found.size());
  }
  if (!found.empty()) {
    body += "<ul class=\"index\">\n";
    for (const ErrorEntry* e : found) {
      body += fmt::format(
          "<li><a href=\"/errors/{}\"><span class=\"id\">{}</span> <b>{}</b><span "
          "class=\"line\">{}</span></a></li>\n",
          e->slug, e->id, inline_html(e->title), message_html(e->message));
    }
    body += "</ul>\n";
  }
  return document("Errors", body);
}

std::string error_page_html(const ErrorEntry& e) {
  std::string body = fmt::format(
      "<p class=\"soft\"><a href=\"/errors\">Errors</a> / {}</p>\n<h1>{}</h1>\n"
      "<p class=\"soft\"><code>{}</code> · {} · <a href=\"/api/errors/{}\">JSON</a></p>\n"
      "<p class=\"message\">{}</p>\n",
      e.id, inline_html(e.title), e.slug, e.exception, e.slug, message_html(e.message));
  body += "<h2>What it means</h2>\n" + paragraphs(e.meaning);
  body += "<h2>When it is raised</h2>\n" + paragraphs(e.trigger);
  body += "<h2>How people get there</h2>\n" + items("ul", e.situations);
  body += "<h2>How to mend it</h2>\n" + items("ol", e.solutions);
  body += "<div class=\"pair\"><section><h2>Before</h2>\n" +
          code(e.example_before, "before", "Before") + "</section><section><h2>After</h2>\n" +
          code(e.example_after, "after", "After") + "</section></div>\n";
  body += "<h2>To check beforehand</h2>\n" + code(e.guard, "", "To check beforehand");
  if (!e.related.empty()) {
    body += "<h2>Related</h2>\n<ul>\n";
    for (const std::string_view slug : e.related) {
      if (const ErrorEntry* other = error_named(slug)) {
        body += fmt::format("<li><a href=\"/errors/{}\">{} {}</a></li>\n", slug, other->id,
                            inline_html(other->title));
      }
    }
    body += "</ul>\n";
  }
  std::string files;
  for (const std::string_view f : e.raised_at)
    files += fmt::format("{}<code>{}</code>", files.empty() ? "" : ", ", html_escaped(f));
  return document(e.title, body + fmt::format("<p class=\"soft\">Raised in {}</p>\n", files));
}

std::string refusal_html(int status, std::string_view why) {
  return document(std::to_string(status),
                  fmt::format("<h1>{}</h1>\n<p>{}</p>\n<p><a href=\"/\">The live page</a> · <a "
                              "href=\"/errors\">The error reference</a></p>\n",
                              status, html_escaped(why)));
}

}  // namespace serinus::serve
