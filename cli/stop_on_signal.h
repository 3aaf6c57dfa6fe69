// Ctrl-C as a wish: the first one asks for an end in good order, the second one ends at once.
#pragma once

#include <atomic>
#include <csignal>

namespace serinus::cli {

class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  static const std::atomic<bool>& requested() noexcept;

 private:
  struct sigaction old_int_ = {}, old_term_ = {};
};

}  // namespace serinus::cli
