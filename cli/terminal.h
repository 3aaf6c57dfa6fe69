// What standard output is, and text set to its width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace serinus::cli {

/// Columns of the terminal, within [40, 100]; 80 where there is none.
std::size_t output_width();

/// Whether colours may be written: standard output is a terminal and NO_COLOR is not set.
bool output_has_colours();

/// `text` broken at spaces so that no line is longer than `width` (unless one word is), every line
/// behind `indent`, the first one behind `first` instead. Line breaks of the text stay. Ends with a
/// line break.
std::string wrap(std::string_view text, std::size_t width, std::string_view indent,
                 std::string_view first);

/// `text` between the escape codes of a style, or as it is.
class Style {
 public:
  explicit Style(bool colours) : colours_(colours) {}
  std::string bold(std::string_view text) const { return with("1", text); }
  std::string dim(std::string_view text) const { return with("2", text); }
  std::string red(std::string_view text) const { return with("1;31", text); }
  std::string green(std::string_view text) const { return with("32", text); }
  std::string cyan(std::string_view text) const { return with("36", text); }

 private:
  std::string with(std::string_view code, std::string_view text) const;
  bool colours_;
};

}  // namespace serinus::cli
