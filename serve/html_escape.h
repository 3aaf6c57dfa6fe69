// Text that may hold anything, as part of an HTML page.
#pragma once

#include <string>
#include <string_view>

namespace serinus::serve {

/// Markup characters as entities, control characters but newlines as spaces: whatever the text
/// holds (file names, notes, paths from outside), the page stays one page.
std::string html_escaped(std::string_view text);

}  // namespace serinus::serve
