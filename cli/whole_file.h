// A file that appears under its name only when it is whole: written beside it, then renamed.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

namespace serinus::cli {

class WholeFile {
 public:
  /// Opens `path`.partial. Throws InputError (SRN4301) where that cannot be.
  explicit WholeFile(std::string path);
  /// Removes what was written, unless finish() succeeded.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view text);
  /// Closes and renames. Throws InputError where a byte could not be written.
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::string path_, partial_;
  std::ofstream out_;
  bool finished_ = false;
};

}  // namespace serinus::cli
