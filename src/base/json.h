// Reads one JSON value out of a line, without building a tree: traces and scenarios are JSON Lines
// from outside, so every step is checked and nothing recurses deeper than kMaxDepth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace serinus {

/// What is wrong with the text, and at which byte. Readers turn it into an InputError that names
/// file, line and field.
struct JsonFault {
  std::size_t offset = 0;
  const char* why = "";
};

/// A JSON number: exact when it was written as an integer that fits, else a double.
struct JsonNumber {
  bool is_integer = false;
  std::int64_t integer = 0;
  double real = 0;  ///< always set, always finite
};

enum class JsonKind : std::uint8_t { object, array, string, number, boolean, null };
const char* name_of(JsonKind k) noexcept;

/// A cursor over one JSON text. Every function throws JsonFault where the text is not what it
/// expects.
///
///   json.begin_object();
///   while (json.next_key(key)) { if (key == "n") n = json.number(); else json.skip(); }
///   json.finish();
class JsonCursor {
 public:
  static constexpr int kMaxDepth = 32;

  explicit JsonCursor(std::string_view text) noexcept : text_(text) {}

  /// What the next value is, judged by its first byte.
  JsonKind kind();
  void begin_object();
  /// The next member's key, decoded; false after the last one. The value must be read (or skipped)
  /// before the next call.
  bool next_key(std::string& key);
  void begin_array();
  /// Whether another element follows; it must be read before the next call.
  bool next_element();

  JsonNumber number();
  std::string string();
  bool boolean();
  void skip();    ///< any value
  void finish();  ///< nothing but white space may follow

  /// The text of the next value as it stands, without moving on: for messages.
  std::string_view raw_value() const;
  std::size_t offset() const noexcept { return at_; }

 private:
  [[noreturn]] void fail(const char* why) const { throw JsonFault{at_, why}; }
  void white() noexcept;
  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c, const char* why);
  void literal(std::string_view word);
  void enter();
  bool next_item(char close);
  unsigned hex4();
  void escape(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool first_ = false;  ///< no item of the innermost container was read yet
};

/// `text` as a JSON string, in quotes. Bytes that are no UTF-8 stay what they are.
std::string json_string(std::string_view text);

/// Whether the bytes are well-formed UTF-8 (no surrogates, no overlong forms).
bool is_utf8(std::string_view text) noexcept;

/// `text` made safe to print in a message: control and non-ASCII bytes as \xNN, cut at `limit`.
std::string printable(std::string_view text, std::size_t limit = 60);

}  // namespace serinus
