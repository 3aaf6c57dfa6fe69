// One page of the error reference: from text to an entry, and from a template to a match.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/error.h>

#include "base/error_pages.h"

namespace serinus {

/// Parses a page (format: errors/README.md). Never throws for what the page says: each thing that
/// is wrong becomes a sentence in `problems`, and the entry holds what could be read. `storage`
/// owns what had to be put together, such as a paragraph without its line breaks; it must outlive
/// the entry.
ErrorEntry parse_error_page(const ErrorPageText& page, std::deque<std::string>& storage,
                            std::vector<std::string>& problems);

/// A template cut at its placeholders: literals[0] {keys[0]} literals[1] ... literals[n].
struct MessageTemplate {
  std::vector<std::string_view> literals;
  std::vector<std::string_view> keys;

  explicit MessageTemplate(std::string_view message);
  /// Characters that are not placeholders, spaces left out: how specific it is.
  std::size_t literal_size() const noexcept;
  /// Whether `line` holds the message, with anything before it that ends at a word's edge and
  /// nothing behind it but punctuation. {name}, {argument}, {other} and {size} stand for one word
  /// unless they come first, behind some text; other placeholders for any text.
  bool matches(std::string_view line) const;
};

}  // namespace serinus
