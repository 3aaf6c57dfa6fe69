#include "cli/stop_on_signal.h"

namespace serinus::cli {

namespace {

std::atomic<bool> stop_requested{false};

}  // namespace

StopOnSignal::StopOnSignal() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
}

StopOnSignal::~StopOnSignal() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

const std::atomic<bool>& StopOnSignal::requested() noexcept {
  return stop_requested;
}

}  // namespace serinus::cli
