#include "base/whole_file.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace serinus {

WholeFile::WholeFile(std::string path, Fail fail)
    : path_(std::move(path)), partial_(path_ + ".partial"), fail_(fail) {
  errno = 0;
  out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_) this->fail();
}

WholeFile::~WholeFile() {
  if (finished_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void WholeFile::write(const void* bytes, std::size_t size) {
  errno = 0;
  if (!out_.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size))) fail();
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
  fail_(path_, errno != 0 ? std::generic_category().message(errno) : "the write failed");
}

}  // namespace serinus
