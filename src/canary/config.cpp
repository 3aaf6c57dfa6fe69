// One table of settings; files, environment and output all go by it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <serinus/canary_config.h>
#include <serinus/canary_sink.h>

#include "base/json.h"
#include "base/open_input.h"
#include "base/raise.h"

namespace serinus::canary {

namespace {

using errors::Page;

constexpr std::int64_t kMaxFileBytes = 1 << 20;

/// Where a value came from, to name it: "SERINUS_CANARY_MODE", or a file and key.
struct Place {
  std::string file;  // empty: the environment
  std::string name;
};

[[noreturn]] void wrong(const Place& at, const std::string& want, const std::string& got) {
  if (at.file.empty()) {
    raise(Page::config_value, {{"name", at.name}, {"want", want}, {"got", got}});
  }
  raise(Page::config_file,
        {{"file", at.file}, {"got", fmt::format("{} must be {}, got {}", at.name, want, got)}});
}

std::string lower_trimmed(std::string_view s) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  std::string out(s);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <class E>
struct Word {
  std::string_view name;
  E value;
};
constexpr Word<Format> kFormats[] = {{"serinus", Format::serinus}, {"sglang", Format::sglang}};
constexpr Word<Depth> kDepths[] = {
    {"none", Depth::none}, {"partial", Depth::partial}, {"all", Depth::all}};
constexpr Word<Mode> kModes[] = {{"none", Mode::none},
                                 {"log", Mode::log},
                                 {"raise", Mode::raise},
                                 {"quarantine", Mode::quarantine}};
constexpr Word<VerifyPolicy> kPolicies[] = {{"rolling", VerifyPolicy::rolling},
                                            {"all", VerifyPolicy::all}};
constexpr Word<bool> kBooleans[] = {{"false", false}, {"true", true}, {"0", false}, {"1", true}};

template <class E, std::size_t N>
std::optional<E> find(const Word<E> (&words)[N], std::string_view text) {
  const std::string name = lower_trimmed(text);
  const auto found = std::ranges::find(words, name, &Word<E>::name);
  return found == std::end(words) ? std::nullopt : std::optional(found->value);
}

template <class E, std::size_t N>
void set_word(E& out, const Word<E> (&words)[N], std::string_view text, const Place& at) {
  if (const auto value = find(words, text)) {
    out = *value;
    return;
  }
  std::vector<std::string_view> names;
  for (const Word<E>& w : words) names.push_back(w.name);
  wrong(at, fmt::format("one of {}", fmt::join(names, ", ")), printable(text));
}

template <class E, std::size_t N>
std::string word_of(const Word<E> (&words)[N], E value) {
  return std::string(std::ranges::find(words, value, &Word<E>::value)->name);
}

template <class I>
void set_number(I& out, std::string_view text, std::int64_t least, const Place& at) {
  const std::string word = lower_trimmed(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  constexpr std::int64_t most = std::numeric_limits<I>::max();
  if (error != std::errc{} || end != word.data() + word.size() || value < least || value > most) {
    wrong(at, fmt::format("a whole number in [{}, {}]", least, most), printable(text));
  }
  out = static_cast<I>(value);
}

/// One setting: how its text is read and written. Numbers and booleans stand bare in JSON.
struct Setting {
  std::string_view key;
  std::string_view sglang;  ///< the flag of SGLang that means the same, or ""
  JsonKind kind;
  void (*set)(Config&, std::string_view, const Place&);
  std::string (*get)(const Config&);
};

template <auto Field, std::int64_t kLeast>
constexpr Setting number(std::string_view key, std::string_view sglang = {}) {
  return {key, sglang, JsonKind::number,
          [](Config& c, std::string_view text, const Place& at) {
            set_number(c.options.*Field, text, kLeast, at);
          },
          [](const Config& c) { return std::to_string(c.options.*Field); }};
}
template <auto Field, const auto& kWords>
constexpr Setting word(std::string_view key, JsonKind kind = JsonKind::string,
                       std::string_view sglang = {}) {
  return {key, sglang, kind,
          [](Config& c, std::string_view text, const Place& at) {
            set_word(c.options.*Field, kWords, text, at);
          },
          [](const Config& c) { return word_of(kWords, c.options.*Field); }};
}

constexpr Setting kSettings[] = {
    word<&Options::format, kFormats>("format"),
    word<&Options::depth, kDepths>("depth", JsonKind::string, "kv_canary_real_data"),
    word<&Options::mode, kModes>("mode", JsonKind::string, "kv_canary"),
    word<&Options::verify, kPolicies>("verify"),
    number<&Options::records_per_step, 1>("records_per_step"),
    number<&Options::bytes_per_step, 1>("bytes_per_step"),
    word<&Options::source_digests, kBooleans>("source_digests", JsonKind::boolean),
    number<&Options::sweep_interval, 0>("sweep_interval", "kv_canary_sweep_interval"),
    number<&Options::ring_capacity, 1>("ring_capacity"),
    number<&Options::event_capacity, 0>("event_capacity"),
    number<&Options::health_steps, 0>("health_steps"),
    number<&Options::threads, 0>("threads"),
    {"violations_file", "", JsonKind::string,
     [](Config& c, std::string_view text, const Place&) { c.violations_file = text; },
     [](const Config& c) { return c.violations_file; }},
};

const Setting* setting_named(std::string_view key) {
  const auto found = std::ranges::find_if(kSettings, [&](const Setting& s) {
    return s.key == key || (!s.sglang.empty() && s.sglang == key);
  });
  return found == std::end(kSettings) ? nullptr : found;
}

std::string upper(std::string_view s) {
  std::string out(s);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

std::string read_file(const std::string& path) {
  std::ifstream in = open_input(path);
  std::string text(static_cast<std::size_t>(kMaxFileBytes) + 1, '\0');
  errno = 0;
  in.read(text.data(), std::ssize(text));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (!in.eof()) {
    const bool is_long = std::ssize(text) > kMaxFileBytes;
    raise(Page::input_file_unreadable,
          {{"got", path},
           {"why", is_long      ? "a configuration of more than a megabyte"
                   : errno != 0 ? std::generic_category().message(errno)
                                : "the read failed"}});
  }
  return text;
}

}  // namespace

Monitor make_monitor(const Config& config) {
  Monitor m(config.options);
  if (!config.violations_file.empty()) {
    m.log_to(std::make_shared<FileSink>(config.violations_file));
  }
  return m;
}

void apply_json(Config& config, std::string_view json, const std::string& file) {
  Config out = config;
  try {
    JsonCursor cursor(json);
    cursor.begin_object();
    std::string key;
    std::vector<const Setting*> seen;
    while (cursor.next_key(key)) {
      const Setting* setting = setting_named(key);
      if (setting == nullptr) {
        std::vector<std::string_view> names;
        for (const Setting& s : kSettings) names.push_back(s.key);
        raise(Page::config_file, {{"file", file},
                                  {"got", fmt::format("there is no key {}; known ones are {}",
                                                      printable(key), fmt::join(names, ", "))}});
      }
      if (std::ranges::count(seen, setting) > 0) {
        raise(Page::config_file,
              {{"file", file}, {"got", fmt::format("{} is given twice", setting->key)}});
      }
      seen.push_back(setting);
      const Place at{file, key};
      const JsonKind kind = cursor.kind();
      if (kind != setting->kind) {
        wrong(at, fmt::format("a {}", name_of(setting->kind)), printable(cursor.raw_value()));
      }
      if (kind == JsonKind::string) {
        setting->set(out, cursor.string(), at);
      } else {
        const std::string text(cursor.raw_value());
        cursor.skip();
        setting->set(out, text, at);
      }
    }
    cursor.finish();
  } catch (const JsonFault& fault) {
    raise(Page::config_file,
          {{"file", file}, {"got", fmt::format("{} at byte {}", fault.why, fault.offset)}});
  }
  config = std::move(out);
}

void apply_environment(Config& config, const Environment& environment) {
  Config out = config;
  for (const Setting& s : kSettings) {
    std::vector<std::string> names = {"SERINUS_CANARY_" + upper(s.key)};
    if (!s.sglang.empty()) names.push_back("SERINUS_" + upper(s.sglang));
    std::optional<std::string> first;
    for (const std::string& name : names) {
      const char* const text = environment(name.c_str());
      if (text == nullptr || *text == '\0') continue;
      s.set(out, text, {{}, name});
      const std::string value = s.get(out);
      if (first && *first != value)
        wrong({{}, name}, fmt::format("{} as {} says", *first, names[0]), text);
      first = value;
    }
  }
  config = std::move(out);
}

Config read_config(const Config& base, const std::string& file, const Environment& environment) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): a program that sets variables meanwhile is on its own
  const Environment get = environment ? environment : [](const char* n) { return std::getenv(n); };
  Config config = base;
  std::string path = file;
  if (path.empty()) {
    const char* const named = get("SERINUS_CANARY_CONFIG");
    if (named != nullptr) path = named;
  }
  if (!path.empty()) apply_json(config, read_file(path), path);
  apply_environment(config, get);
  return config;
}

const Config& process_config() {
  static const Config config = read_config();
  return config;
}

Options options_from_flags(std::string_view kv_canary, std::string_view kv_canary_real_data,
                           std::int64_t kv_canary_sweep_interval) {
  Options o;
  o.format = Format::sglang;
  const auto mode = find(kModes, kv_canary);
  if (!mode || *mode == Mode::quarantine) {
    raise(Page::canary_mode_word,
          {{"argument", "kv_canary"}, {"got", fmt::format("'{}'", printable(kv_canary))}});
  }
  o.mode = *mode;
  const auto depth = find(kDepths, kv_canary_real_data);
  if (!depth) {
    raise(Page::config_value, {{"name", "--kv-canary-real-data"},
                               {"want", "one of none, partial, all"},
                               {"got", printable(kv_canary_real_data)}});
  }
  o.depth = *depth;
  if (kv_canary_sweep_interval > 0 && o.mode == Mode::none) {
    raise(Page::canary_sweep_without_canary, {{"argument", "kv_canary_sweep_interval"},
                                              {"got", std::to_string(kv_canary_sweep_interval)},
                                              {"want", "{log, raise}"}});
  }
  o.sweep_interval = std::max<std::int64_t>(0, kv_canary_sweep_interval);
  return o;
}

std::string to_json(const Config& config) {
  std::string out;
  for (const Setting& s : kSettings) {
    const std::string value = s.get(config);
    out += fmt::format("{}{}:{}", out.empty() ? "{" : ",", json_string(s.key),
                       s.kind == JsonKind::string ? json_string(value) : value);
  }
  return out + "}";
}

}  // namespace serinus::canary
