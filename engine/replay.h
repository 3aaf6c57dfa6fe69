// A trace, from its first request to its last, through the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <serinus/canary.h>

#include "engine/engine.h"
#include "engine/pool_map.h"
#include "engine/trace/trace.h"

namespace serinus::engine {

struct ReplayProgress {
  std::int64_t requests = 0, total_requests = 0;
  std::int64_t tokens = 0, total_tokens = 0;  ///< of finished requests, prompts and outputs
  std::uint64_t steps = 0;
  double seconds = 0;
};

struct ReplayResult;

struct ReplayHooks {
  std::function<void(const ReplayProgress&)> progress;  ///< after every step
  std::function<void(const canary::Violation&, const std::string& pool, int fault)> violation;
  /// Called once: between steps, after the one that found the first violation; at the end where
  /// none was found.
  std::function<void(Engine&)> snapshot;
  FaultInjector* injector = nullptr;
  const std::atomic<bool>* stop = nullptr;  ///< set: end after this step, with what there is
  std::function<void(Engine&)> started;     ///< before the first step
  std::function<void()> stepped;            ///< after every step; it may take its time
  /// At the end, while the engine is still there.
  std::function<void(const ReplayResult&)> finished;
};

struct ReplayResult {
  Counters counters;
  canary::Stats canary;
  std::vector<InjectedFault> faults;
  PoolMap pool_map;
  std::int64_t requests = 0;  ///< in the trace
  std::uint64_t steps = 0;
  double seconds = 0, canary_seconds = 0;
  bool interrupted = false;

  /// Steps from injection to first sighting, of the detected faults, ascending.
  std::vector<std::uint64_t> latencies() const;
  std::int64_t count(FaultState state) const;
};

/// Options with `max_length` set for this trace. Throws ValueError (naming the request) where one
/// of the requests can never fit the pool.
EngineOptions fitted(EngineOptions options, const std::vector<TraceRequest>& trace);

/// Replays the trace in order of arrival, as fast as the engine goes: arrival times give the order
/// and nothing else. Request i of the trace (from 0) has owner i + 1.
ReplayResult replay(const std::vector<TraceRequest>& trace, const EngineOptions& options,
                    const ReplayHooks& hooks = {});

}  // namespace serinus::engine
