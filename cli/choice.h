// What options take: one of a few words, or a number from somewhere on.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <serinus/tensor.h>

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

/// --device: cpu, cuda or cuda:N.
inline CLI::Option* add_device(CLI::App& cmd, Device& device, const std::string& help) {
  return cmd
      .add_option_function<std::string>(
          "--device",
          [&device](const std::string& text) {
            device = {text == "cpu" ? DeviceType::cpu : DeviceType::cuda, 0};
            if (text.size() > 5) device.index = std::stoi(text.substr(5));
          },
          help + ": cpu, cuda or cuda:N")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool known = text == "cpu" || text == "cuda" ||
                               (text.starts_with("cuda:") && text.size() > 5 && text.size() < 10 &&
                                text.find_first_not_of("0123456789", 5) == std::string::npos);
            return known ? std::string() : text + " is not cpu, cuda or cuda:N";
          },
          "DEVICE"))
      ->default_str("cpu");
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

/// For Option::check(): a number in [least, most]. CLI11's Range lets NaN through.
inline CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& given) {
        double x = 0;
        const bool within = CLI::detail::lexical_cast(given, x) && x >= least && x <= most;
        return within ? std::string()
                      : CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most) +
                            " is possible, got " + given;
      },
      "");
}

}  // namespace serinus::cli
