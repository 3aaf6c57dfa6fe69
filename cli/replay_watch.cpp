#include "cli/replay_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "cli/stop_on_signal.h"

namespace serinus::cli {

ReplayWatch::ReplayWatch(const serve::ServerOptions& options, const std::string& trace, double pace)
    : feed_("replay of " + trace),
      server_(options, &feed_),
      between_steps_(pace > 0 ? 1 / pace : 0),
      next_step_(Clock::now()) {}

void ReplayWatch::begin(engine::Engine& engine) {
  engine_ = &engine;
  feed_.set_cache_owner(engine::kCacheOwner);
  feed_.look(*engine.monitor());
}

void ReplayWatch::stepped() {
  feed_.look(*engine_->monitor());
  if (between_steps_.count() <= 0) return;
  next_step_ += std::chrono::duration_cast<Clock::duration>(between_steps_);
  next_step_ = std::max(next_step_, Clock::now());  // what is late stays late
  look_until(next_step_);
}

void ReplayWatch::add(const canary::Violation& v, const std::string& pool, int fault) {
  std::string note = "no fault explains it";
  if (fault >= 0) {
    const auto& faults = engine_->fault_log().faults();
    note = fmt::format("injected: {}", faults[static_cast<std::size_t>(fault)].kind);
  }
  feed_.add(v, pool, std::move(note));
}

void ReplayWatch::end() {
  feed_.end(*engine_->monitor());
}

void ReplayWatch::hold() {
  look_until(Clock::time_point::max());
}

void ReplayWatch::look_until(Clock::time_point time) {
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  while (!StopOnSignal::requested()) {
    const auto now = Clock::now();
    if (now >= time) return;
    std::this_thread::sleep_for(std::min<Clock::duration>(kBetweenLooks, time - now));
    feed_.look(*engine_->monitor());
  }
}

}  // namespace serinus::cli
