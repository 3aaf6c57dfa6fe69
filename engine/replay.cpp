#include "engine/replay.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace serinus::engine {

std::vector<std::uint64_t> ReplayResult::latencies() const {
  std::vector<std::uint64_t> steps;
  for (const InjectedFault& f : faults) {
    if (f.state == FaultState::detected) steps.push_back(f.detected_step - f.step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::int64_t ReplayResult::count(FaultState state) const {
  return std::count_if(faults.begin(), faults.end(),
                       [state](const InjectedFault& f) { return f.state == state; });
}

EngineOptions fitted(EngineOptions options, const std::vector<TraceRequest>& trace) {
  for (std::size_t i = 0; i < trace.size(); ++i) {
    Engine::require_fits(options, static_cast<canary::Owner>(i + 1), trace[i].input_length,
                         trace[i].output_length);
    options.max_length =
        std::max(options.max_length, trace[i].input_length + trace[i].output_length + 1);
  }
  return options;
}

ReplayResult replay(const std::vector<TraceRequest>& trace, const EngineOptions& options,
                    const ReplayHooks& hooks) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };

  Engine engine(fitted(options, trace));
  engine.set_injector(hooks.injector);
  bool found = false, snapped = hooks.snapshot == nullptr;
  const auto snap = [&] {
    if (!std::exchange(snapped, true)) hooks.snapshot(engine);
  };
  if (hooks.violation || hooks.snapshot) {
    engine.on_violation = [&](const canary::Violation& v, int fault) {
      found = true;
      if (!hooks.violation) return;
      hooks.violation(v, engine.pools()[static_cast<std::size_t>(v.pool)].name, fault);
    };
  }
  std::vector<std::size_t> order(trace.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(trace[a].arrival_us, a) < std::pair(trace[b].arrival_us, b);
  });
  ReplayProgress progress;
  progress.total_requests = static_cast<std::int64_t>(trace.size());
  for (const std::size_t i : order) {
    const TraceRequest& t = trace[i];
    progress.total_tokens += t.input_length + t.output_length;
    const auto owner = static_cast<canary::Owner>(i + 1);
    engine.submit(owner,
                  RequestText(owner, t.input_length, t.output_length, t.hash_ids, t.block_size));
  }

  ReplayResult result;
  result.requests = progress.total_requests;
  if (hooks.started) hooks.started(engine);
  while (engine.step()) {
    if (found) snap();
    result.pool_map.look(engine.now() - 1, engine.allocator(), engine.cache());
    if (hooks.stepped) hooks.stepped();
    if (hooks.stop != nullptr && hooks.stop->load(std::memory_order_relaxed)) {
      result.interrupted = true;
      break;
    }
    if (!hooks.progress) continue;
    progress.requests = engine.counters().requests;
    progress.tokens = engine.counters().finished_tokens;
    progress.steps = engine.now();
    progress.seconds = seconds();
    hooks.progress(progress);
  }
  engine.drain();
  snap();
  engine.fault_log().finish();
  result.counters = engine.counters();
  result.canary = engine.canary_stats();
  result.faults = engine.fault_log().faults();
  result.steps = engine.now();
  result.canary_seconds = engine.canary_seconds();
  result.seconds = seconds();
  if (hooks.finished) hooks.finished(result);
  return result;
}

}  // namespace serinus::engine
