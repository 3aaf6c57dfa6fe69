// A replay that people look at while it runs: `serinus replay --serve`.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "engine/replay.h"
#include "serve/feed.h"
#include "serve/server.h"

namespace serinus::cli {

class ReplayWatch {
 public:
  /// Listens from here on. `pace`: steps a second at most, 0 = as fast as it goes.
  ReplayWatch(const serve::ServerOptions& options, const std::string& trace, double pace);

  /// The engine is there and stays until the hook `finished`.
  void begin(engine::Engine& engine);
  /// After each step; sleeps where the pace asks for it.
  void stepped();
  void add(const canary::Violation& v, const std::string& pool, int fault);
  void end();
  /// Answers until somebody asks for the end.
  void hold();
  const std::string& url() const noexcept { return server_.url(); }

 private:
  using Clock = std::chrono::steady_clock;
  void look_until(Clock::time_point time);

  serve::Feed feed_;
  serve::Server server_;  // after the feed: its threads read it
  std::chrono::duration<double> between_steps_;
  Clock::time_point next_step_;
  engine::Engine* engine_ = nullptr;
};

}  // namespace serinus::cli
