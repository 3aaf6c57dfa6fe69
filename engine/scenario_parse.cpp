// Reads scenario files: JSON Lines outside, operations of a few words inside.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/raise.h"
#include "engine/line_reader.h"
#include "engine/scenario.h"
#include "error_ids.h"

namespace serinus::engine {

namespace {

using canary::Owner;
using canary::PoolKind;
using Verb = ScenarioOp::Verb;

constexpr std::int64_t kMaxSlot = INT32_MAX;                    // a cell of the table is an int32
constexpr std::int64_t kMaxPoolBytes = std::int64_t{64} << 20;  // dense pools are real memory
constexpr std::int64_t kMaxVirtualBytes = std::int64_t{1} << 40;
constexpr std::size_t kMaxList = 4096;
constexpr std::size_t kMaxOps = 1000;

struct BadScenario {
  std::string field, why, got;
};

// ---------------------------------------------------------------- words

std::int64_t integer(std::string_view text, std::int64_t low, std::int64_t high,
                     const char* what = "a whole number") {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw BadScenario{"", fmt::format("needs {} from {} to {}", what, low, high), printable(text)};
  }
  return value;
}

// "3" or "3..5" (both ends included) as [begin, end).
std::pair<std::int64_t, std::int64_t> range(std::string_view text, std::int64_t low,
                                            std::int64_t high) {
  const std::size_t dots = text.find("..");
  const std::int64_t first = integer(text.substr(0, dots), low, high);
  if (dots == std::string_view::npos) return {first, first + 1};
  return {first, integer(text.substr(dots + 2), first, high) + 1};
}

Owner request(std::string_view word) {
  if (word == "cache") return kScenarioCache;
  if (word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z') {
    return static_cast<Owner>(word[0] - 'A' + 1);
  }
  throw BadScenario{"", "needs a request (A to Z, or cache)", printable(word)};
}

TokenRange tokens(std::string_view word) {
  if (word.size() < 3 || word[1] != '.') {
    throw BadScenario{"", "needs tokens of a request, such as A.0 or A.0..3", printable(word)};
  }
  const auto [begin, end] = range(word.substr(2), 0, kMaxTokens - 2);
  return {request(word.substr(0, 1)), begin, end};
}

int pool_named(const Scenario& s, std::string_view name) {
  for (std::size_t i = 0; i < s.pools.size(); ++i) {
    if (s.pools[i].name == name) return static_cast<int>(i);
  }
  throw BadScenario{"", "names a pool that the scenario does not have", printable(name)};
}

SlotList slot_list(const Scenario& s, std::string_view word) {
  SlotList list;
  if (const std::size_t colon = word.find(':'); colon != std::string_view::npos) {
    list.pool = pool_named(s, word.substr(0, colon));
    word.remove_prefix(colon + 1);
  }
  for (bool more = true; more;) {
    const std::size_t comma = word.find(',');
    const auto [begin, end] = range(word.substr(0, comma), -kMaxSlot, kMaxSlot);
    if (static_cast<std::size_t>(end - begin) + list.slots.size() > kMaxList) {
      throw BadScenario{"", "lists too many slots", printable(word)};
    }
    for (std::int64_t slot = begin; slot < end; ++slot) list.slots.push_back(slot);
    more = comma != std::string_view::npos;
    word.remove_prefix(more ? comma + 1 : word.size());
  }
  return list;
}

std::string name_word(std::string_view word) {
  const bool fine =
      !word.empty() && word.size() <= 32 && std::all_of(word.begin(), word.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
      });
  if (!fine) throw BadScenario{"", "needs a name of letters and digits", printable(word)};
  return std::string(word);
}

canary::Reason reason(std::string_view word) {
  for (std::uint32_t bit = 0; bit < 10; ++bit) {
    const auto r = static_cast<canary::Reason>(1u << bit);
    if (canary::names_of(r) == word) return r;
  }
  throw BadScenario{"", "names no reason (token, position, chain, kv_bytes, ...)", printable(word)};
}

// ---------------------------------------------------------------- operations

struct Syntax {
  std::string_view word;
  Verb verb;
  std::string_view arguments;  // one letter a positional argument
};

// R request, r request>request, S slots, s slots>slots, T tokens, N name, n new name, i integer,
// h slots>name, l name>slots, w state of a slot
constexpr Syntax kVerbs[] = {
    {"alloc", Verb::alloc, "RS"}, {"free", Verb::free, "S"},    {"give", Verb::give, "Sr"},
    {"row", Verb::row, "RS"},     {"hit", Verb::hit, "RST"},    {"release", Verb::release, "R"},
    {"write", Verb::write, "ST"}, {"bytes", Verb::bytes, "ST"}, {"flip", Verb::flip, "S"},
    {"junk", Verb::junk, "S"},    {"host", Verb::host, "NT"},   {"store", Verb::store, "h"},
    {"load", Verb::load, "lR"},   {"evict", Verb::evict, "N"},  {"move", Verb::move, "s"},
    {"pad", Verb::pad, "S"},      {"map", Verb::map, "s"},      {"verify", Verb::verify, "R"},
    {"idle", Verb::idle, ""},     {"sweep", Verb::sweep, ""},   {"land", Verb::land, "N"},
    {"ranks", Verb::ranks, "Ri"}, {"state", Verb::state, "Sw"},
};

// Splits "a>b".
std::pair<std::string_view, std::string_view> arrow(std::string_view word) {
  const std::size_t at = word.find('>');
  if (at == std::string_view::npos) throw BadScenario{"", "needs FROM>TO", printable(word)};
  return {word.substr(0, at), word.substr(at + 1)};
}

class Words {
 public:
  explicit Words(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t end = std::min(text.find(' ', i), text.size());
      if (end > i) words_.push_back(text.substr(i, end - i));
      i = end + 1;
    }
  }
  bool more() const noexcept { return at_ < words_.size(); }
  std::string_view take(const char* what) {
    if (!more()) throw BadScenario{"", fmt::format("lacks {}", what), ""};
    return words_[at_++];
  }
  /// All that was not taken yet.
  std::string_view rest() const noexcept {
    if (!more()) return {};
    const char* const from = words_[at_].data();
    return {from, static_cast<std::size_t>(words_.back().data() + words_.back().size() - from)};
  }
  bool accept(std::string_view word) noexcept {
    if (!more() || words_[at_] != word) return false;
    ++at_;
    return true;
  }

 private:
  std::vector<std::string_view> words_;
  std::size_t at_ = 0;
};

void positional(char kind, const Scenario& s, Words& words, ScenarioOp& op) {
  switch (kind) {
    case 'R':
      op.request = request(words.take("a request"));
      break;
    case 'r': {
      const auto [from, to] = arrow(words.take("requests FROM>TO"));
      op.request = request(from);
      op.other = request(to);
      break;
    }
    case 'S':
      op.slots = slot_list(s, words.take("slots"));
      break;
    case 's': {
      const auto [from, to] = arrow(words.take("slots FROM>TO"));
      op.slots = slot_list(s, from);
      op.to = slot_list(s, to);
      break;
    }
    case 'T':
      op.tokens = tokens(words.take("tokens"));
      break;
    case 'N':
      op.name = name_word(words.take("a name"));
      break;
    case 'i':
      op.end = integer(words.take("a count"), 1, kMaxTokens);
      break;
    case 'w': {
      const std::string_view word = words.take("free, empty or written");
      if (word == "free") {
        op.state = canary::SlotState::free;
      } else if (word == "empty") {
        op.state = canary::SlotState::empty;
      } else if (word == "written") {
        op.state = canary::SlotState::written;
      } else {
        throw BadScenario{"", "needs free, empty or written", printable(word)};
      }
      break;
    }
    case 'h': {
      const auto [from, to] = arrow(words.take("slots>NAME"));
      op.slots = slot_list(s, from);
      op.name = name_word(to);
      break;
    }
    case 'l': {
      const auto [from, to] = arrow(words.take("NAME>slots"));
      op.name = name_word(from);
      op.slots = slot_list(s, to);
      break;
    }
    default:
      break;
  }
}

// The rest of an operation: keywords in any order. A keyword that the verb has no use for is an
// error, so that a slip does not pass in silence.
void options(const Scenario& s, Words& words, ScenarioOp& op) {
  const auto is = [&op](std::initializer_list<Verb> verbs) {
    return std::find(verbs.begin(), verbs.end(), op.verb) != verbs.end();
  };
  const bool copies = is({Verb::store, Verb::load});
  while (words.more()) {
    if (is({Verb::write}) && words.accept("at")) {
      op.position = integer(words.take("a position"), 0, kMaxTokens - 1);
    } else if (is({Verb::write}) && words.accept("as")) {
      op.as = tokens(words.take("tokens"));
    } else if (is({Verb::write}) && words.accept("to")) {
      op.to = slot_list(s, words.take("slots"));
    } else if (is({Verb::write}) && words.accept("wrap32")) {
      op.wrap32 = true;
    } else if (is({Verb::write, Verb::verify}) && words.accept("in")) {
      op.pools.push_back(pool_named(s, words.take("a pool")));
    } else if (is({Verb::free}) && words.accept("by")) {
      op.request = request(words.take("a request"));
    } else if ((copies || is({Verb::flip, Verb::bytes})) && words.accept("buffer")) {
      op.buffer = static_cast<int>(integer(words.take("a buffer"), 0, 63));
    } else if ((copies || is({Verb::bytes})) && words.accept("half")) {
      op.half = static_cast<int>(integer(words.take("1 or 2"), 1, 2));
    } else if ((copies || is({Verb::flip, Verb::bytes})) && words.accept("byte")) {
      std::tie(op.begin, op.end) = range(words.take("a byte or a range"), 0, 1 << 20);
    } else if (is({Verb::load}) && words.accept("raw")) {
      op.raw = true;
    } else if (is({Verb::load}) && words.accept("bytes_of")) {
      std::string_view word = words.take("a name");
      if (const std::size_t colon = word.find(':'); colon != std::string_view::npos) {
        op.source_pool = pool_named(s, word.substr(0, colon));
        word.remove_prefix(colon + 1);
      }
      op.source = name_word(word);
    } else if (is({Verb::load}) && words.accept("swapped")) {
      op.swapped = true;
    } else if (is({Verb::move}) && words.accept("as_pages")) {
      op.as_pages = true;
    } else if (is({Verb::verify}) && words.accept("cells")) {
      std::tie(op.begin, op.end) = range(words.take("cells"), 0, kMaxTokens - 1);
    } else if (is({Verb::verify}) && words.accept("head")) {
      op.moment = canary::Moment::head;
    } else if (is({Verb::verify}) && words.accept("tail")) {
      op.moment = canary::Moment::tail;
    } else {
      throw BadScenario{"", "has a word that this operation does not know",
                        printable(words.take("a word"))};
    }
  }
}

ScenarioOp operation(const Scenario& s, std::string_view text, bool nested = false) {
  ScenarioOp op;
  op.text = std::string(text);
  Words words(text);
  if (words.accept("rank")) {
    op.rank = static_cast<int>(integer(words.take("a rank"), 0, s.ranks - 1, "a rank"));
  }
  const std::string_view verb = words.take("a verb");
  if (verb == "issue" && nested) {
    throw BadScenario{"", "cannot issue an issue", printable(text)};
  }
  if (verb == "issue") {
    op.verb = Verb::issue;
    op.name = name_word(words.take("a name"));
    const std::string_view rest = words.rest();
    op.issued.push_back(operation(s, rest, true));
    if (op.issued[0].verb == Verb::land) {
      throw BadScenario{"", "cannot issue a landing", printable(rest)};
    }
    op.issued[0].rank = op.rank;
    return op;
  }
  const auto* const known = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                         [verb](const Syntax& v) { return v.word == verb; });
  if (known == std::end(kVerbs)) throw BadScenario{"", "has an unknown verb", printable(verb)};
  op.verb = known->verb;
  for (const char kind : known->arguments) positional(kind, s, words, op);
  options(s, words, op);

  const auto same_count = [](std::int64_t a, std::int64_t b) {
    if (a != b) {
      throw BadScenario{"", "pairs lists of different lengths", fmt::format("{} and {}", a, b)};
    }
  };
  const auto count = [](const SlotList& l) { return static_cast<std::int64_t>(l.slots.size()); };
  const bool slots_and_tokens =
      op.verb == Verb::write || op.verb == Verb::bytes || op.verb == Verb::hit;
  if (slots_and_tokens) same_count(count(op.slots), op.tokens.size());
  if (op.as) same_count(op.as->size(), op.tokens.size());
  if (op.verb == Verb::move || op.verb == Verb::map || !op.to.slots.empty()) {
    same_count(count(op.slots), count(op.to));
  }
  if (op.verb == Verb::alloc || op.verb == Verb::row || op.verb == Verb::hit) {
    if (count(op.slots) > kMaxTokens) throw BadScenario{"", "lists too many slots", ""};
  }
  if (op.verb == Verb::write && op.slots.pool != 0) {
    throw BadScenario{"", "writes through the slots of the full pool; name others with `in`", ""};
  }
  return op;
}

// ---------------------------------------------------------------- JSON

template <class F>
void array(JsonCursor& json, const std::string& field, std::size_t limit, F&& element) {
  json.begin_array();
  for (std::size_t i = 0; json.next_element(); ++i) {
    const std::string name = fmt::format("{}[{}]", field, i);
    if (i == limit) throw BadScenario{name, fmt::format("is more than {}", limit), ""};
    try {
      element(json.string());
    } catch (BadScenario& bad) {
      bad.field = name;
      throw;
    } catch (const JsonFault& fault) {
      throw BadScenario{name, fault.why, printable(json.raw_value())};
    }
  }
}

std::int64_t number(JsonCursor& json, const std::string& field, std::int64_t low,
                    std::int64_t high) {
  const JsonCursor start = json;
  const bool is_number = json.kind() == JsonKind::number;
  const JsonNumber n = is_number ? json.number() : JsonNumber{};
  if (!n.is_integer || n.integer < low || n.integer > high) {
    throw BadScenario{field, fmt::format("must be a whole number from {} to {}", low, high),
                      printable(start.raw_value())};
  }
  return n.integer;
}

void pool_fields(JsonCursor& json, const std::string& field, ScenarioPool& pool) {
  json.begin_object();
  std::string key;
  while (json.next_key(key)) {
    const std::string name = field + "." + key;
    if (key == "kind") {
      const std::string value = json.string();
      if (value != "full" && value != "swa" && value != "draft") {
        throw BadScenario{name, "must be full, swa or draft", printable(value)};
      }
      pool.kind = value == "swa"     ? PoolKind::swa
                  : value == "draft" ? PoolKind::draft
                                     : PoolKind::full;
    } else if (key == "layout") {
      pool.layout = json.string();
    } else if (key == "slots") {
      pool.slots = number(json, name, 1, 1 << 22);
    } else if (key == "page") {
      pool.page = number(json, name, 1, 256);
    } else if (key == "layers") {
      pool.layers = static_cast<int>(number(json, name, 1, 64));
    } else if (key == "heads") {
      pool.heads = number(json, name, 1, 64);
    } else if (key == "head_size") {
      pool.head_size = number(json, name, 1, 512);
    } else if (key == "page_stride") {
      pool.page_stride = number(json, name, 0, kMaxVirtualBytes);
    } else if (key == "window") {
      pool.window = number(json, name, 1, kMaxTokens);
    } else if (key == "token_offset") {
      pool.token_offset = static_cast<int>(number(json, name, 0, 1));
    } else if (key == "null_slot") {
      const std::string value = json.string();
      if (value != "clean" && value != "scratch") {
        throw BadScenario{name, "must be clean or scratch", printable(value)};
      }
      pool.null_slot = value == "clean" ? canary::NullSlot::clean : canary::NullSlot::scratch;
    } else {
      throw BadScenario{printable(name), "is no field of a pool", printable(json.raw_value())};
    }
  }
}

Expectation expectation(const Scenario& s, const std::string& text) {
  Expectation e;
  e.text = text;
  const std::size_t at = text.find('@');
  e.reason = reason(std::string_view(text).substr(0, at));
  const std::string_view where =
      at == std::string::npos ? std::string_view("*") : std::string_view(text).substr(at + 1);
  e.anywhere = where == "*";
  if (!e.anywhere) e.at = slot_list(s, where);
  return e;
}

// Fields that need the pools are kept until the pools are known: JSON objects have no order.
struct Deferred {
  std::vector<std::string> ops, expect, also;
  bool has_ops = false, has_expect = false;
};

void check_pools(const Scenario& s) {
  if (s.pools.empty() || s.pools.size() > 8 || s.pools[0].kind != PoolKind::full) {
    throw BadScenario{"pools", "must be one to eight pools, the first of kind full",
                      fmt::format("{} pools", s.pools.size())};
  }
  for (const ScenarioPool& p : s.pools) {
    KvLayout layout;
    try {
      layout = layout_of(p);
    } catch (const Error& e) {
      throw BadScenario{p.name + ".layout", e.what(), printable(p.layout)};
    }
    const std::int64_t pages = (p.slots + p.page - 1) / p.page;
    const std::int64_t page_bytes =
        std::accumulate(layout.page_bytes.begin(), layout.page_bytes.end(), std::int64_t{0});
    const bool too_large = p.page_stride == 0 ? pages * page_bytes * p.layers > kMaxPoolBytes
                                              : pages * p.layers * layout.num_buffers() >
                                                    kMaxVirtualBytes / p.page_stride;
    if (too_large) {
      throw BadScenario{p.name, "is a pool too large for a scenario",
                        fmt::format("{} slots x {} layers", p.slots, p.layers)};
    }
  }
}

template <class F>
void each(const std::vector<std::string>& texts, const char* field, F&& parse) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    try {
      parse(texts[i]);
    } catch (BadScenario& bad) {
      bad.field = fmt::format("{}[{}] `{}`", field, i, printable(texts[i]));
      throw;
    }
  }
}

Scenario parse_line(std::string_view line) {
  Scenario s;
  s.pools.push_back({.name = "kv"});
  Deferred later;
  JsonCursor json(line);
  std::string key;
  std::vector<std::string> seen;
  try {
    json.begin_object();
    while (json.next_key(key)) {
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
        throw BadScenario{printable(key), "stands twice", printable(json.raw_value())};
      }
      seen.push_back(key);
      if (key == "id") {
        s.id = json.string();
      } else if (key == "class") {
        s.fault_class = json.string();
      } else if (key == "note") {
        s.note = json.string();
      } else if (key == "reports") {
        array(json, key, kMaxOps, [&](std::string text) { s.reports.push_back(std::move(text)); });
      } else if (key == "pools") {
        s.pools.clear();
        json.begin_object();
        for (std::string name; json.next_key(name);) {
          s.pools.push_back({.name = name_word(name)});
          pool_fields(json, key + "." + name, s.pools.back());
        }
      } else if (key == "ranks") {
        s.ranks = static_cast<int>(number(json, key, 1, 8));
      } else if (key == "depth") {
        const std::string value = json.string();
        if (value == "none") {
          s.depth = canary::Depth::none;
        } else if (value == "partial") {
          s.depth = canary::Depth::partial;
        } else if (value != "all") {
          throw BadScenario{key, "must be none, partial or all", printable(value)};
        }
      } else if (key == "ops") {
        later.has_ops = true;
        array(json, key, kMaxOps, [&](std::string text) { later.ops.push_back(std::move(text)); });
      } else if (key == "expect") {
        later.has_expect = true;
        array(json, key, kMaxOps,
              [&](std::string text) { later.expect.push_back(std::move(text)); });
      } else if (key == "also") {
        array(json, key, kMaxOps, [&](std::string text) { later.also.push_back(std::move(text)); });
      } else {
        throw BadScenario{printable(key), "is no field of a scenario", printable(json.raw_value())};
      }
      key.clear();
    }
    json.finish();
  } catch (const JsonFault& fault) {
    throw BadScenario{key.empty() ? "line" : printable(key),
                      fmt::format("{} (byte {})", fault.why, fault.offset),
                      printable(line.substr(std::min(fault.offset, line.size())))};
  }
  if (s.id.empty()) throw BadScenario{"id", "is missing", printable(line)};
  if (!later.has_ops) throw BadScenario{"ops", "is missing", printable(line)};
  if (!later.has_expect || later.expect.empty()) {
    throw BadScenario{"expect", "is missing (a legal scenario expects no_alarm)", printable(line)};
  }
  check_pools(s);
  each(later.ops, "ops", [&](const std::string& text) { s.ops.push_back(operation(s, text)); });
  if (later.expect != std::vector<std::string>{"no_alarm"}) {
    each(later.expect, "expect",
         [&](const std::string& text) { s.expect.push_back(expectation(s, text)); });
  }
  each(later.also, "also", [&](const std::string& text) { s.also.push_back(slot_list(s, text)); });
  return s;
}

std::vector<Scenario> read_all(LineReader& lines) {
  std::vector<Scenario> all;
  const std::string name = printable(lines.name(), 400);
  for (std::string_view line; lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", name, lines.line_number());
    try {
      if (const std::string_view fault = lines.fault(); !fault.empty()) {
        throw BadScenario{"line", std::string(fault), printable(line)};
      }
      all.push_back(parse_line(line));
      all.back().place = place;
    } catch (const BadScenario& bad) {
      raise(errors::Page::scenario_malformed,
            {{"place", place}, {"name", bad.field}, {"why", bad.why}, {"got", bad.got}});
    }
  }
  if (all.empty()) raise(errors::Page::scenario_file_empty, {{"got", name}});
  return all;
}

}  // namespace

KvLayout layout_of(const ScenarioPool& pool) {
  KvLayout joined;
  std::string_view names = pool.layout;
  for (bool more = true; more;) {
    const std::size_t plus = names.find('+');
    const std::string_view name = names.substr(0, plus);
    KvLayoutOptions options{.page_size = pool.page};
    if (name.starts_with("mha_")) {
      options.heads = pool.heads;
      options.head_size = pool.head_size;
    }
    KvLayout one = kv_layout(name, options);
    for (KvSegment& segment : one.segments) {
      segment.buffer += joined.num_buffers();
      if (!joined.name.empty()) segment.name = one.name + "." + segment.name;
    }
    joined.name += (joined.name.empty() ? "" : "+") + one.name;
    joined.page_size = one.page_size;
    joined.page_bytes.insert(joined.page_bytes.end(), one.page_bytes.begin(), one.page_bytes.end());
    joined.segments.insert(joined.segments.end(), one.segments.begin(), one.segments.end());
    more = plus != std::string_view::npos;
    names.remove_prefix(more ? plus + 1 : names.size());
  }
  joined.validate();
  return joined;
}

std::vector<Scenario> read_scenarios(const std::string& path) {
  LineReader lines(path);
  return read_all(lines);
}

std::vector<Scenario> parse_scenarios(const std::string& name, std::string text) {
  LineReader lines(name, std::move(text));
  return read_all(lines);
}

}  // namespace serinus::engine
