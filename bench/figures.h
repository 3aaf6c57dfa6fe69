// What a benchmark on the CPU found: each figure with its goal beside it, for people and as JSON.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace serinus::bench {

/// What a figure has to reach; none by default.
struct Goal {
  enum class Side : char { none, least, most };
  Side side = Side::none;
  double bound = 0;

  bool reached_by(double value) const {
    return side == Side::least ? value >= bound : value <= bound;
  }
  std::string text() const {
    return fmt::format("{} {:g}", side == Side::least ? ">=" : "<=", bound);
  }
};
inline Goal at_least(double bound) {
  return {Goal::Side::least, bound};
}
inline Goal at_most(double bound) {
  return {Goal::Side::most, bound};
}

class Figures {
 public:
  void add(const std::string& name, double value, const std::string& unit, Goal goal = {},
           const std::string& detail = "") {
    std::string verdict;
    std::string object =
        fmt::format("{{\"name\": \"{}\", \"value\": {:.4g}, \"unit\": \"{}\"", name, value, unit);
    if (goal.side != Goal::Side::none) {
      const bool reached = goal.reached_by(value);
      verdict = fmt::format("(goal {}: {})", goal.text(), reached ? "reached" : "missed");
      object += fmt::format(", \"goal\": \"{}\", \"reached\": {}", goal.text(), reached);
    }
    fmt::print("{:58} {:8.3f} {:10} {:26} {}\n", name, value, unit, verdict, detail);
    std::fflush(stdout);
    json_ += fmt::format("{}\n    {}}}", json_.empty() ? "" : ",", object);
  }

  /// An array, an object a figure. Nothing where `path` is empty; false if it cannot be written.
  bool write(const std::string& path) const {
    if (path.empty()) return true;
    std::ofstream file(path);
    file << "[" << json_ << "\n  ]\n";
    if (file.flush()) return true;
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return false;
  }

 private:
  std::string json_;
};

}  // namespace serinus::bench
