// An option that takes one of a few words.
#pragma once

#include <CLI/CLI.hpp>
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

}  // namespace serinus::cli
