// Lines of a text file from outside, in bounded memory: traces and scenarios are read through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <string>
#include <string_view>

namespace serinus::engine {

class LineReader {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{4} << 20;  ///< bytes

  /// Opens a file. Throws InputError where it is missing, a directory, unreadable or compressed.
  explicit LineReader(const std::string& path);
  /// Reads from memory; `name` stands for the file in messages.
  LineReader(std::string name, std::string text);

  /// The next line without its end ("\n" or "\r\n"; a byte order mark is dropped), valid until the
  /// next call. False at the end of the file. A line beyond kMaxLine is cut there, before the
  /// rest of it is read, and is a fault(). Throws InputError where the file cannot be read on.
  bool next(std::string_view& line);

  /// Why the last line cannot be text, or empty: too long, NUL bytes, not UTF-8.
  std::string_view fault() const;

  const std::string& name() const noexcept { return name_; }
  std::uint64_t line_number() const noexcept {
    return line_number_;
  }  ///< of the last line; 1 = first

 private:
  bool fill();

  std::string name_;
  std::unique_ptr<std::istream> in_;
  std::string buffer_;
  std::size_t at_ = 0;  ///< start of the unread bytes in buffer_
  std::string_view line_;
  bool too_long_ = false, ended_ = false;
  std::uint64_t line_number_ = 0;
};

}  // namespace serinus::engine
