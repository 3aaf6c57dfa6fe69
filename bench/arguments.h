// The command line of a benchmark: options by name, each with a value.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <string>

namespace serinus::bench {

class Arguments {
 public:
  /// What is no option of `known`, or has no value, is said on standard error; fine() is false
  /// then.
  Arguments(int argc, char** argv, std::initializer_list<const char*> known) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (std::ranges::none_of(known, [&](const char* k) { return name == k; })) {
        std::fprintf(stderr, "no such option: %s\n", argv[i]);
        fine_ = false;
      } else if (i + 1 == argc) {
        std::fprintf(stderr, "%s needs a value\n", argv[i]);
        fine_ = false;
      } else {
        values_[name] = argv[i + 1];
      }
    }
  }

  bool fine() const { return fine_; }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  /// 1 or more.
  int count(const std::string& name, int otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : std::max(1, std::atoi(found->second.c_str()));
  }

 private:
  std::map<std::string, std::string> values_;
  bool fine_ = true;
};

}  // namespace serinus::bench
