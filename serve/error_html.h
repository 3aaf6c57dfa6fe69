// The error reference as HTML, in the style of the live page.
#pragma once

#include <string>
#include <string_view>

#include <serinus/error.h>

namespace serinus::serve {

/// All errors, or those that `query` finds: an id, a slug, words, or a pasted error line.
std::string error_index_html(std::string_view query);
std::string error_page_html(const ErrorEntry& entry);
/// A page about a request that was refused.
std::string refusal_html(int status, std::string_view why);

/// The entry of exactly this id or slug, in any case.
const ErrorEntry* error_named(std::string_view id_or_slug) noexcept;

}  // namespace serinus::serve
