#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace serinus::cli {

namespace {

// Before this share the first step and its page faults are all that a rate tells of.
constexpr double kTelling = 0.05;

}  // namespace

std::string grouped(std::int64_t n) {
  std::string text = std::to_string(n);
  const std::int64_t first = n < 0 ? 1 : 0;
  for (auto i = static_cast<std::int64_t>(text.size()) - 3; i > first; i -= 3)
    text.insert(static_cast<std::size_t>(i), 1, ' ');
  return text;
}

std::string bytes_text(double bytes) {
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000)
      return fmt::format(fmt::runtime(*unit == 'B' ? "{:.0f} {}" : "{:.3g} {}"), bytes, unit);
    bytes /= 1000;
  }
  return fmt::format("{:.3g} TB", bytes);
}

std::string duration_text(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

ProgressLine::ProgressLine(std::string unit) : unit_(std::move(unit)), terminal_(isatty(2) == 1) {
  next_ = terminal_ ? 0.2 : 10;
}

void ProgressLine::show(std::int64_t done, std::int64_t total, std::int64_t work_done,
                        std::int64_t work_total, double seconds) {
  if (seconds < next_) return;
  next_ = seconds + (terminal_ ? 0.1 : 10);
  const double share =
      work_total > 0 ? static_cast<double>(work_done) / static_cast<double>(work_total) : 0;
  const double rate = seconds > 0 ? static_cast<double>(work_done) / seconds : 0;
  std::string words =
      fmt::format("{:3.0f} %  {} of {} {}", 100 * share, grouped(done), grouped(total), unit_);
  if (share >= kTelling) {
    words += fmt::format("  {:.3g} {} tokens/s  {} left", rate >= 1e6 ? rate / 1e6 : rate / 1e3,
                         rate >= 1e6 ? "M" : "k",
                         duration_text(static_cast<double>(work_total - work_done) / rate));
  }
  if (!terminal_) {
    fmt::print(stderr, "{}\n", words);
    return;
  }
  constexpr int kWidth = 24;
  const int filled = std::clamp(static_cast<int>(share * kWidth), 0, kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "─";
  fmt::print(stderr, "\r\033[K{} {}", bar, words);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::end() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace serinus::cli
