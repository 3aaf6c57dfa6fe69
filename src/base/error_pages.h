// The text of errors/*.md as embedded at build time (cmake/EmbedErrors.cmake).
#pragma once

#include <span>
#include <string_view>

namespace serinus {

struct ErrorPageText {
  std::string_view slug;
  std::string_view text;
};

/// In the order of errors::Page.
std::span<const ErrorPageText> error_pages() noexcept;

}  // namespace serinus
