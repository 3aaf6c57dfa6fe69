// What options take: one of a few words, or a number from somewhere on.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace serinus::cli {

/// CLI11's own transformers would also take the numbers behind the words, and name them in errors.
template <class T>
CLI::Option* add_choice(CLI::App& cmd, const std::string& flag, T& value,
                        std::vector<std::pair<std::string, T>> choices, const std::string& help) {
  std::vector<std::string> words;
  std::string now;
  for (const auto& [word, meaning] : choices) {
    words.push_back(word);
    if (meaning == value) now = word;
  }
  return cmd
      .add_option_function<std::string>(
          flag,
          [&value, choices = std::move(choices)](const std::string& given) {
            for (const auto& [word, meaning] : choices) {
              if (word == given) value = meaning;
            }
          },
          help)
      ->check(CLI::IsMember(words))
      ->default_str(now);
}

/// For Option::check(): a whole number, `least` or more.
inline CLI::Validator at_least(std::int64_t least) {
  return CLI::Validator(
      [least](const std::string& given) {
        std::int64_t n = 0;
        const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), n);
        const bool whole = error == std::errc{} && end == given.data() + given.size();
        return whole && n >= least
                   ? std::string()
                   : "must be a whole number, " + std::to_string(least) + " or more, got " + given;
      },
      "");
}

}  // namespace serinus::cli
