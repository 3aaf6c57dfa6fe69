// Options by name: words of the Python API to the library's enums.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/raise.h"

namespace serinus::python {

/// The value that `word` stands for; serinus.ValueError listing the words for any other.
template <class E>
E named(std::string_view option, std::string_view word,
        std::initializer_list<std::pair<std::string_view, E>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (name == word) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  raise(errors::Page::python_unknown_option,
        {{"name", std::string(option)}, {"want", known}, {"got", "'" + std::string(word) + "'"}});
}

}  // namespace serinus::python
