// How the engine calls its monitor: not at all without one, and on the clock.
#pragma once

#include <chrono>

#include "engine/engine.h"

namespace serinus::engine {

template <class F>
void Engine::watched(F&& f) {
  if (!monitor_) return;
  const auto begin = std::chrono::steady_clock::now();
  f(*monitor_);
  canary_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace serinus::engine
