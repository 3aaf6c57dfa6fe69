// Options by name: words of the Python API to the library's enums.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <serinus/tensor.h>

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

/// Types that the elements of an mha_* layout may have.
inline DType kv_dtype_named(std::string_view word) {
  return named<DType>("dtype", word,
                      {{"uint8", DType::u8},
                       {"float8_e4m3fn", DType::e4m3},
                       {"bfloat16", DType::bf16},
                       {"float32", DType::f32}});
}

}  // namespace serinus::python
