// A file that appears under its name only when it is whole: written beside it, then renamed. What a
// link leads to is replaced, not the link. A device or a pipe cannot be replaced: it is written to.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

namespace serinus {

class WholeFile {
 public:
  /// Raises the page that belongs to the file; must not return.
  using Fail = void (*)(const std::string& path, const std::string& why);

  /// Opens `path`.partial, or what is no regular file. Fails where that cannot be, where the path
  /// holds a NUL, at which the system would end it, and while somebody else writes the same file.
  WholeFile(std::string path, Fail fail);
  /// Removes what was written, unless finish() succeeded.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(const void* bytes, std::size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Closes and renames. Fails where a byte could not be written.
  void finish();

 private:
  /// Held as long as the partial file is written; a process that dies lets go of it.
  struct Lock {
    int fd = -1;
    ~Lock();
  };

  void lock_partial();
  void fail() const;

  std::string path_;
  std::string target_, partial_;  ///< renamed from partial_; both empty where nothing is
  Fail fail_;
  Lock lock_;
  std::ofstream out_;
  bool finished_ = false;
};

}  // namespace serinus
