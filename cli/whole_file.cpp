#include "cli/whole_file.h"

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/raise.h"

namespace serinus::cli {

WholeFile::WholeFile(std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {
  errno = 0;
  out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_) fail();
}

WholeFile::~WholeFile() {
  if (finished_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void WholeFile::write(std::string_view text) {
  errno = 0;
  if (!out_.write(text.data(), static_cast<std::streamsize>(text.size()))) fail();
}

void WholeFile::finish() {
  errno = 0;
  out_.close();
  if (!out_) fail();
  std::error_code failed;
  std::filesystem::rename(partial_, path_, failed);
  if (failed) {
    errno = failed.value();
    fail();
  }
  finished_ = true;
}

void WholeFile::fail() const {
  const std::string why = errno != 0 ? std::generic_category().message(errno) : "the write failed";
  raise(errors::Page::report_not_written, {{"got", path_}, {"why", why}});
}

}  // namespace serinus::cli
