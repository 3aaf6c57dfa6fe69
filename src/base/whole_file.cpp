#include "base/whole_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace serinus {

namespace {

namespace fs = std::filesystem;

// Whether a file may take the place of what `path` names. What this process has open may be a
// regular file, but others write into it, too.
bool is_replaceable(const std::string& path) {
  std::error_code ignored;
  const fs::file_type type = fs::status(path, ignored).type();
  const bool is_file = type == fs::file_type::regular || type == fs::file_type::not_found ||
                       type == fs::file_type::directory;  // the rename will say no
  const bool is_open =
      path.starts_with("/dev/std") || path.starts_with("/dev/fd/") || path.starts_with("/proc/");
  return is_file && !is_open;
}

}  // namespace

WholeFile::WholeFile(std::string path, Fail fail) : path_(std::move(path)), fail_(fail) {
  if (path_.find('\0') != std::string::npos) {
    errno = EINVAL;
    this->fail();
  }
  const bool replaced = is_replaceable(path_);
  if (replaced) {
    std::error_code failed;
    const fs::path real = fs::canonical(path_, failed);
    target_ = failed ? path_ : real.string();
    partial_ = target_ + ".partial";
    lock_partial();
  }
  errno = 0;
  out_.open(replaced ? partial_ : path_,
            std::ios::binary | (replaced ? std::ios::trunc : std::ios::app));
  if (!out_) this->fail();
}

WholeFile::Lock::~Lock() {
  if (fd >= 0) close(fd);
}

void WholeFile::lock_partial() {
  errno = 0;
  lock_.fd = open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_.fd < 0) fail();
  // A file system without locks has none to ask. A file that was renamed meanwhile is another's.
  struct stat locked = {}, named = {};
  const bool busy = flock(lock_.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const bool same = fstat(lock_.fd, &locked) == 0 && stat(partial_.c_str(), &named) == 0 &&
                    locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
  if (busy || !same) fail_(path_, "somebody else is writing it");
}

WholeFile::~WholeFile() {
  if (finished_ || partial_.empty()) return;
  out_.close();
  std::error_code ignored;
  fs::remove(partial_, ignored);
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
  if (!partial_.empty()) fs::rename(partial_, target_, failed);
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
