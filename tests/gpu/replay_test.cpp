// The engine with its pools on the GPU: the same replay, the same faults, the same detections.
#include "engine/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "engine/faults.h"
#include "engine/trace/generate.h"
#include "tests/gpu/gpu_test.h"

namespace serinus::engine {
namespace {

using testing::kGpu;

struct Outcome {
  ReplayResult result;
  std::map<std::string, int> violations;  ///< by pool, slot and reasons
};

Outcome run(const std::vector<TraceRequest>& trace, EngineOptions options, Device device,
            const std::string& faults) {
  options.device = device;
  FaultLab lab(parse_fault_spec(faults), 11, std::ssize(trace));
  Outcome o;
  ReplayHooks hooks;
  if (faults != "none") hooks.injector = &lab;
  hooks.violation = [&](const canary::Violation& v, const std::string& pool, int) {
    ++o.violations[pool + " " + std::to_string(v.slot) + " " + canary::names_of(v.reasons)];
  };
  o.result = replay(trace, options, hooks);
  return o;
}

void expect_same(const EngineOptions& options, const std::string& faults) {
  std::ostringstream text;
  generate_trace({.requests = 8, .seed = 6}, text);
  TraceReader reader("generated", text.str());
  std::vector<TraceRequest> trace;
  TraceRequest r;
  while (reader.next(r)) {
    r.output_length = std::min<std::int64_t>(r.output_length, 40);
    trace.push_back(r);
  }
  const EngineOptions fits = fitted(options, trace);
  const Outcome cpu = run(trace, fits, {}, faults), gpu = run(trace, fits, kGpu, faults);
  const auto only_in = [](const Outcome& one, const Outcome& other) {
    std::string lines;
    for (const auto& [what, times] : one.violations) {
      const auto found = other.violations.find(what);
      if (found != other.violations.end() && found->second == times) continue;
      lines += what + " x" + std::to_string(times) + "\n";
    }
    return lines;
  };
  EXPECT_EQ(only_in(gpu, cpu), "");
  EXPECT_EQ(only_in(cpu, gpu), "");
  EXPECT_EQ(gpu.result.steps, cpu.result.steps);
  EXPECT_EQ(gpu.result.counters.tokens_written, cpu.result.counters.tokens_written);
  EXPECT_EQ(gpu.result.counters.false_alarms, 0);
  EXPECT_EQ(cpu.result.counters.false_alarms, 0);
  EXPECT_EQ(gpu.result.canary.records_verified, cpu.result.canary.records_verified);
  EXPECT_EQ(gpu.result.canary.records_written, cpu.result.canary.records_written);
  EXPECT_EQ(gpu.result.canary.bytes_digested, cpu.result.canary.bytes_digested);
  EXPECT_EQ(gpu.result.canary.sweeps, cpu.result.canary.sweeps);
  EXPECT_GT(gpu.result.canary.records_verified, 0u);
  ASSERT_EQ(gpu.result.faults.size(), cpu.result.faults.size());
  for (std::size_t i = 0; i < cpu.result.faults.size(); ++i) {
    const InjectedFault &g = gpu.result.faults[i], &c = cpu.result.faults[i];
    // Which of several slots is seen first within a step is chance there, and with it f.reasons.
    EXPECT_EQ(std::tuple(g.kind, g.state, g.detected_step),
              std::tuple(c.kind, c.state, c.detected_step))
        << c.kind << ": " << c.note << " (" << c.why << ")";
  }
}

using ReplayGpu = testing::GpuTest;

EngineOptions small() {
  EngineOptions o;
  o.pool_tokens = 40'000;
  o.layers = 1;
  o.step_tokens = 2048;
  o.canary.records_per_step = 1023;  // no multiple of the quarters that a moment has
  return o;
}

TEST_F(ReplayGpu, IsQuietWithoutFaults) {
  expect_same(small(), "none");
}

TEST_F(ReplayGpu, FindsTheFaultsOfATwoTierEngineWithDrafts) {
  EngineOptions o = small();
  o.host_tokens = 30'000;
  o.draft_layers = 1;
  expect_same(o, "all:30");
}

// The format sees less, and it knows nothing of owners: what it says is compared, not judged.
TEST_F(ReplayGpu, WatchesInTheSglangFormat) {
  EngineOptions o = small();
  o.canary.format = canary::Format::sglang;
  o.canary.sweep_interval = 50;
  o.draft_layers = 1;
  expect_same(o, "all:20");
}

TEST_F(ReplayGpu, WatchesAWindowedEngineInTheSglangFormat) {
  EngineOptions o = small();
  o.canary.format = canary::Format::sglang;
  o.host_tokens = 30'000;
  expect_same(o, "all:20");
  o.host_tokens = 0;
  o.window = 512;
  expect_same(o, "all:20");
}

TEST_F(ReplayGpu, FindsTheFaultsOfAWindowedEngine) {
  EngineOptions o = small();
  o.window = 512;
  o.null_slot = canary::NullSlot::scratch;
  expect_same(o, "all:20");
}

}  // namespace
}  // namespace serinus::engine
