// How far a long command is: a bar on a terminal, a plain line now and then elsewhere. On stderr.
#pragma once

#include <cstdint>
#include <string>

namespace serinus::cli {

class ProgressLine {
 public:
  /// `unit` names what is counted, e.g. "requests".
  explicit ProgressLine(std::string unit);

  /// Cheap to call often: writes only where it is time.
  void show(std::int64_t done, std::int64_t total, std::int64_t work_done, std::int64_t work_total,
            double seconds);
  /// Leaves the terminal clean.
  void end();

 private:
  std::string unit_;
  bool terminal_;
  double next_ = 0;
  bool shown_ = false;
};

/// "12 031": thousands apart.
std::string grouped(std::int64_t n);
/// "1.31 GB", "640 B".
std::string bytes_text(double bytes);
/// "1 min 12 s", "4.2 s".
std::string duration_text(double seconds);

}  // namespace serinus::cli
