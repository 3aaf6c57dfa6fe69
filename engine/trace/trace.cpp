#include "engine/trace/trace.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "base/raise.h"
#include "error_ids.h"

namespace serinus::engine {

namespace {

// Thrown by the parsers of one line; next() turns it into an InputError or counts it.
struct BadLine {
  std::string field = "line";
  std::string why;
  std::string got;
};

constexpr std::int64_t kMooncakeBlock = 512, kQwenBlock = 16;
constexpr double kMaxArrivalUs = 4e18;

std::string whole_number(std::int64_t low, std::int64_t high) {
  return fmt::format("must be a whole number from {} to {}", low, high);
}

std::int64_t integer_field(JsonCursor& json, const std::string& field, std::int64_t low,
                           std::int64_t high) {
  const JsonCursor start = json;
  const bool is_number = json.kind() == JsonKind::number;
  const JsonNumber n = is_number ? json.number() : JsonNumber{};
  if (!n.is_integer || n.integer < low || n.integer > high) {
    throw BadLine{field, whole_number(low, high), printable(start.raw_value())};
  }
  return n.integer;
}

std::int64_t time_field(JsonCursor& json, const std::string& field, double us_per_unit) {
  const JsonCursor start = json;
  const bool is_number = json.kind() == JsonKind::number;
  const JsonNumber n = is_number ? json.number() : JsonNumber{};
  const double us = n.real * us_per_unit;
  if (!is_number || us < 0 || us > kMaxArrivalUs) {
    throw BadLine{field, "must be a time that is not negative", printable(start.raw_value())};
  }
  // Whole milliseconds stay exact; a double holds fractions of a second well below a microsecond.
  if (n.is_integer) return n.integer * static_cast<std::int64_t>(us_per_unit);
  return std::llround(us);
}

enum Field : std::uint8_t { timestamp, input, output, ids, chat, parent, turn, type, none };

Field field_of(std::string_view key) {
  if (key == "timestamp" || key == "created_time") return timestamp;
  if (key == "input_length" || key == "input_tokens") return input;
  if (key == "output_length" || key == "output_tokens") return output;
  if (key == "hash_ids") return ids;
  if (key == "chat_id") return chat;
  if (key == "parent_chat_id") return parent;
  if (key == "turn") return turn;
  if (key == "type") return type;
  return none;
}

// Mooncake's and Qwen-Bailian's lines differ in units and in the chat's fields.
void parse_json(std::string_view line, bool qwen, TraceRequest& r) {
  constexpr std::int64_t kMax = TraceReader::kMaxLength;
  JsonCursor json(line);
  std::string key;
  unsigned seen = 0;
  try {
    json.begin_object();
    while (json.next_key(key)) {
      const Field f = field_of(key);
      if (f != none && (seen & 1u << f) != 0) {
        throw BadLine{key, "stands twice (an alias counts)", printable(json.raw_value())};
      }
      seen |= 1u << f;
      switch (f) {
        case timestamp:
          r.arrival_us = time_field(json, key, qwen ? 1e6 : 1e3);
          break;
        case input:
          r.input_length = integer_field(json, key, 1, kMax);
          break;
        case output:
          r.output_length = integer_field(json, key, 0, kMax);
          break;
        case ids:
          json.begin_array();
          while (json.next_element()) {
            r.hash_ids.push_back(integer_field(json, key, 0, INT64_MAX));
          }
          break;
        case chat:
          r.chat_id = integer_field(json, key, 0, INT64_MAX);
          break;
        case parent:
          r.parent_chat_id = integer_field(json, key, -1, INT64_MAX);
          break;
        case turn:
          r.turn = integer_field(json, key, 0, INT32_MAX);
          break;
        case type:
          r.type = json.string();
          break;
        case none:
          json.skip();
          break;
      }
      key.clear();
    }
    json.finish();
  } catch (const JsonFault& fault) {
    // A line that ends too early is shown by its end.
    constexpr std::size_t kEnd = 40;
    const std::size_t at =
        fault.offset < line.size() ? fault.offset : line.size() - std::min(line.size(), kEnd);
    throw BadLine{key.empty() ? "line" : key, fmt::format("{} (byte {})", fault.why, fault.offset),
                  printable(line.substr(at))};
  }
  const auto require = [&](Field f, const char* name) {
    if ((seen & 1u << f) == 0) throw BadLine{name, "is missing", printable(line)};
  };
  require(timestamp, "timestamp");
  require(input, "input_length");
  require(output, "output_length");
  if (qwen) {
    require(chat, "chat_id");
  } else {
    require(ids, "hash_ids");
  }
  r.block_size = qwen ? kQwenBlock : kMooncakeBlock;
  const std::int64_t blocks = r.input_length / r.block_size;
  const std::int64_t rounded_up = (r.input_length + r.block_size - 1) / r.block_size;
  const auto have = static_cast<std::int64_t>(r.hash_ids.size());
  // Qwen-Bailian: a trace may name full blocks only, or no prefix at all.
  if (have != rounded_up && !(qwen && (have == blocks || have == 0))) {
    throw BadLine{"hash_ids",
                  fmt::format("must have {} ids, one a block of {} tokens of input_length {}",
                              rounded_up, r.block_size, r.input_length),
                  fmt::format("{} ids", have)};
  }
  if (have == 0) r.block_size = 0;
}

// "2023-11-16 18:17:03.9799600", with or without a fraction, with or without "Z" or "+00:00".
std::int64_t azure_time(std::string_view text) {
  const auto fail = [&] {
    throw BadLine{"TIMESTAMP", "must read as YYYY-MM-DD HH:MM:SS.fraction, in UTC",
                  printable(text)};
  };
  std::string_view rest = text;
  const auto number = [&](std::size_t digits, std::string_view separators) {
    int value = 0;
    if (rest.size() < digits) fail();
    const char* const begin = rest.data();
    const auto [end, error] = std::from_chars(begin, begin + digits, value);
    if (error != std::errc{} || end != begin + digits || value < 0) fail();
    rest.remove_prefix(digits);
    if (!separators.empty()) {
      if (rest.empty() || separators.find(rest.front()) == std::string_view::npos) fail();
      rest.remove_prefix(1);
    }
    return value;
  };
  const int year = number(4, "-");
  const int month = number(2, "-");
  const int day = number(2, " T");
  const int hour = number(2, ":");
  const int minute = number(2, ":");
  const int second = number(2, "");
  std::int64_t fraction_us = 0;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    std::int64_t unit = 100'000;
    std::size_t digits = 0;
    for (; digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9'; ++digits) {
      fraction_us += (rest[digits] - '0') * unit;
      unit /= 10;
    }
    if (digits == 0) fail();
    rest.remove_prefix(digits);
  }
  if (!rest.empty() && rest != "Z" && rest != "+00:00") fail();
  const std::chrono::year_month_day date{std::chrono::year{year},
                                         std::chrono::month{static_cast<unsigned>(month)},
                                         std::chrono::day{static_cast<unsigned>(day)}};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) fail();
  const auto days = std::chrono::sys_days{date}.time_since_epoch().count();
  return ((days * 24LL + hour) * 60 + minute) * 60'000'000LL + second * 1'000'000LL + fraction_us;
}

std::int64_t csv_integer(std::string_view text, const char* field, std::int64_t low) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low ||
      value > TraceReader::kMaxLength) {
    throw BadLine{field, whole_number(low, TraceReader::kMaxLength), printable(text)};
  }
  return value;
}

using AzureCells = std::array<std::string_view, 3>;
constexpr AzureCells kAzureHeader = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};

// The cells of a line, each of them bare or, as spreadsheets write them, in quotes (which none of
// the values contains). False where there are not just three.
bool azure_cells(std::string_view line, AzureCells& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool quoted = line.starts_with('"');
    if (quoted) line.remove_prefix(1);
    const std::size_t end = line.find(quoted ? '"' : ',');
    if (quoted && end == std::string_view::npos) return false;
    cells[i] = line.substr(0, end);
    line.remove_prefix(std::min(line.size(), cells[i].size() + (quoted ? 1 : 0)));
    if (line.starts_with(',') != (i + 1 < cells.size())) return false;
    if (!line.empty()) line.remove_prefix(1);
  }
  return line.empty();
}

bool is_azure_header(std::string_view line) {
  AzureCells cells;
  return azure_cells(line, cells) && cells == kAzureHeader;
}

void parse_azure(std::string_view line, TraceRequest& r) {
  AzureCells cells;
  if (!azure_cells(line, cells)) {
    throw BadLine{"line", "must have three cells: TIMESTAMP, ContextTokens, GeneratedTokens",
                  printable(line)};
  }
  r.arrival_us = azure_time(cells[0]);
  r.input_length = csv_integer(cells[1], "ContextTokens", 1);
  r.output_length = csv_integer(cells[2], "GeneratedTokens", 0);
}

// A file may lack the header: then it begins with a request.
bool is_azure_request(std::string_view line) {
  TraceRequest request;
  try {
    parse_azure(line, request);
    return true;
  } catch (const BadLine&) {
    return false;
  }
}

TraceFormat detect(std::string_view line) {
  if (is_azure_header(line) || is_azure_request(line)) return TraceFormat::azure;
  const std::size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || line[first] != '{') return TraceFormat::automatic;
  return line.find("\"chat_id\"") != std::string_view::npos ? TraceFormat::qwen
                                                            : TraceFormat::mooncake;
}

}  // namespace

const char* name_of(TraceFormat f) noexcept {
  switch (f) {
    case TraceFormat::automatic:
      return "automatic";
    case TraceFormat::mooncake:
      return "mooncake";
    case TraceFormat::qwen:
      return "qwen";
    case TraceFormat::azure:
      return "azure";
  }
  return "";
}

TraceReader::TraceReader(const std::string& path, TraceOptions options)
    : TraceReader(LineReader(path), options) {}

TraceReader::TraceReader(std::string name, std::string text, TraceOptions options)
    : TraceReader(LineReader(std::move(name), std::move(text)), options) {}

TraceReader::TraceReader(LineReader lines, TraceOptions options)
    : lines_(std::move(lines)), options_(options) {
  pending_ = next_line();
  if (!pending_) raise_empty();
  const std::string first = printable(line_);
  while (options_.format == TraceFormat::automatic) {
    options_.format = detect(line_);
    if (options_.format != TraceFormat::automatic) break;
    if (options_.skip_bad) skip("line", "is of no known trace format", printable(line_));
    if (!options_.skip_bad || !next_line()) {
      raise(errors::Page::trace_format_unknown,
            {{"file", printable(lines_.name(), 400)}, {"got", first}});
    }
  }
}

// Raises what is wrong with the current line, or counts it.
void TraceReader::skip(const std::string& field, const std::string& why, const std::string& got) {
  const std::string place =
      fmt::format("{}:{}", printable(lines_.name(), 400), lines_.line_number());
  const std::initializer_list<ErrorField> fields = {
      {"place", place}, {"name", printable(field)}, {"why", why}, {"got", got}};
  if (!options_.skip_bad) raise(errors::Page::trace_line_malformed, fields);
  if (skipped_++ == 0) first_skipped_ = error_message(errors::Page::trace_line_malformed, fields);
}

// The next line that is not blank, nor Azure's header.
bool TraceReader::next_line() {
  while (lines_.next(line_)) {
    if (line_.find_first_not_of(" \t") != std::string_view::npos) return true;
  }
  return false;
}

void TraceReader::raise_empty() const {
  raise(errors::Page::trace_empty,
        {{"got", printable(lines_.name(), 400)}, {"skipped", std::to_string(skipped_)}});
}

bool TraceReader::next(TraceRequest& request) {
  while (std::exchange(pending_, false) || next_line()) {
    if (options_.format == TraceFormat::azure && is_azure_header(line_)) continue;
    request = TraceRequest{};
    request.line = lines_.line_number();
    try {
      if (const std::string_view fault = lines_.fault(); !fault.empty()) {
        throw BadLine{"line", std::string(fault), printable(line_)};
      }
      if (options_.format == TraceFormat::azure) {
        parse_azure(line_, request);
        if (read_ == 0) azure_zero_us_ = request.arrival_us;
        request.arrival_us -= azure_zero_us_;
      } else {
        parse_json(line_, options_.format == TraceFormat::qwen, request);
      }
    } catch (const BadLine& bad) {
      skip(bad.field, bad.why, bad.got);
      continue;
    }
    ++read_;
    return true;
  }
  if (read_ == 0) raise_empty();
  return false;
}

std::vector<TraceRequest> read_trace(const std::string& path, TraceOptions options) {
  TraceReader reader(path, options);
  std::vector<TraceRequest> requests;
  for (TraceRequest r; reader.next(r);) requests.push_back(std::move(r));
  return requests;
}

}  // namespace serinus::engine
