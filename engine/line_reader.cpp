#include "engine/line_reader.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/open_input.h"
#include "base/raise.h"
#include "error_ids.h"

namespace serinus::engine {

namespace {

constexpr std::size_t kChunk = std::size_t{64} << 10;

}  // namespace

LineReader::LineReader(const std::string& path) : name_(path) {
  const auto fail = [&](std::string why) {
    raise(errors::Page::input_file_unreadable, {{"got", printable(path, 400)}, {"why", why}});
  };
  std::error_code status;
  if (std::filesystem::is_directory(path, status)) fail("it is a directory");
  in_ = std::make_unique<std::ifstream>(open_input(path));
  fill();
  if (buffer_.starts_with("\x1f\x8b") || buffer_.starts_with("\x28\xb5\x2f\xfd") ||
      buffer_.starts_with("PK\x03\x04")) {
    fail("it is compressed; unpack it first");
  }
}

LineReader::LineReader(std::string name, std::string text)
    : name_(std::move(name)), in_(std::make_unique<std::istringstream>(std::move(text))) {}

// Appends a chunk to the unread bytes; false at the end of the file.
bool LineReader::fill() {
  if (ended_) return false;
  buffer_.erase(0, at_);
  at_ = 0;
  const std::size_t have = buffer_.size();
  buffer_.resize(have + kChunk);
  in_->read(buffer_.data() + have, static_cast<std::streamsize>(kChunk));
  buffer_.resize(have + static_cast<std::size_t>(in_->gcount()));
  if (in_->bad()) {
    raise(errors::Page::input_file_unreadable,
          {{"got", printable(name_, 400)}, {"why", "reading stopped with an I/O error"}});
  }
  ended_ = !*in_;
  return buffer_.size() > have;
}

bool LineReader::next(std::string_view& line) {
  if (std::exchange(too_long_, false)) {  // the rest of the line before
    std::size_t end = std::string::npos;
    while ((end = buffer_.find('\n', at_)) == std::string::npos) {
      at_ = buffer_.size();
      if (!fill()) return false;
    }
    at_ = end + 1;
  }
  std::size_t searched = 0;
  std::size_t end = std::string::npos;
  for (;;) {
    end = buffer_.find('\n', at_ + searched);
    if (end != std::string::npos) break;
    searched = buffer_.size() - at_;
    if (searched > kMaxLine) break;
    if (!fill()) {
      end = buffer_.size();
      break;
    }
  }
  if (end == buffer_.size() && at_ == end) return false;
  ++line_number_;
  too_long_ = end == std::string::npos || end - at_ > kMaxLine;
  const std::size_t size = too_long_ ? kMaxLine : end - at_;
  line_ = std::string_view(buffer_).substr(at_, size);
  at_ = too_long_ ? at_ + size : std::min(end + 1, buffer_.size());
  if (line_.ends_with('\r')) line_.remove_suffix(1);
  if (line_number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.remove_prefix(3);
  line = line_;
  return true;
}

std::string_view LineReader::fault() const {
  if (too_long_) return "is longer than 4 MiB";
  if (line_.find('\0') != std::string_view::npos) return "holds NUL bytes: is this a binary file?";
  if (!is_utf8(line_)) return "is not UTF-8: is this a binary file?";
  return {};
}

}  // namespace serinus::engine
