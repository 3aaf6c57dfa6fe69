// A file of a report: whole or absent.
#pragma once

#include <string>
#include <utility>

#include "base/raise.h"
#include "base/whole_file.h"

namespace serinus::cli {

class ReportFile : public WholeFile {
 public:
  /// Throws InputError (SRN4301) here and later, where it cannot be written.
  explicit ReportFile(std::string path)
      : WholeFile(std::move(path), [](const std::string& name, const std::string& why) {
          raise(errors::Page::report_not_written, {{"got", name}, {"why", why}});
        }) {}
};

}  // namespace serinus::cli
