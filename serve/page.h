// The files of serve/page/, embedded at build.
#pragma once

#include <span>
#include <string_view>

namespace serinus::serve {

struct PageFile {
  std::string_view name;  ///< "live.js"
  std::string_view text;
};

std::span<const PageFile> page_files() noexcept;

/// Null where there is none.
const PageFile* page_file(std::string_view name) noexcept;

}  // namespace serinus::serve
