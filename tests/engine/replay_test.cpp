// A whole trace: golden counts, with and without the canary.
#include "engine/replay.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/trace/generate.h"

namespace serinus::engine {
namespace {

std::vector<TraceRequest> generated(std::int64_t requests) {
  std::ostringstream out;
  generate_trace({.requests = requests, .seed = 6}, out);
  TraceReader reader("generated", out.str());
  std::vector<TraceRequest> trace;
  TraceRequest r;
  while (reader.next(r)) trace.push_back(r);
  return trace;
}

// Full blocks that were seen before, after the same predecessors: what an infinite cache hits.
std::int64_t golden_hits(const std::vector<TraceRequest>& trace) {
  std::set<std::vector<std::int64_t>> seen;
  std::int64_t hits = 0;
  for (const TraceRequest& r : trace) {
    std::vector<std::int64_t> prefix;
    bool hit = true;
    for (std::int64_t b = 0; b < r.input_length / r.block_size; ++b) {
      prefix.push_back(r.hash_ids[static_cast<std::size_t>(b)]);
      hit = !seen.insert(prefix).second && hit;
      hits += hit;
    }
  }
  return hits;
}

EngineOptions endless(const std::vector<TraceRequest>& trace) {
  EngineOptions o;
  o.pool_tokens = 64;
  for (const TraceRequest& r : trace) o.pool_tokens += r.input_length + r.output_length + 64;
  o.real_data = false;
  o.serial = true;
  o.max_running = 1;
  o.decode_tokens = 64;
  return o;
}

TEST(Replay, HitsWhatAnInfiniteCacheHits) {
  const auto trace = generated(300);
  const std::int64_t golden = golden_hits(trace);
  ASSERT_GT(golden, 500);
  const ReplayResult r = replay(trace, endless(trace));
  EXPECT_EQ(r.counters.requests, 300);
  EXPECT_EQ(r.counters.prefix_hit_tokens, golden * trace[0].block_size);
  EXPECT_EQ(r.counters.false_alarms, 0);
  EXPECT_EQ(r.counters.evicted_tokens, 0);
}

// Without the canary: the counts are the engine's alone.
TEST(Replay, HitsTheGoldenNumberOfTheConversationTrace) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets the environment
  const char* traces = std::getenv("SERINUS_TRACES");
  const std::filesystem::path path =
      std::filesystem::path(traces != nullptr ? traces : SERINUS_SOURCE_DIR "/../shared/traces") /
      "mooncake/conversation_trace.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const auto trace = read_trace(path.string());
  EngineOptions o = endless(trace);
  o.watch = false;
  const ReplayResult r = replay(trace, o);
  EXPECT_EQ(r.counters.requests, 12031);
  EXPECT_EQ(r.counters.input_tokens, 144793823);
  EXPECT_EQ(r.counters.prefix_hit_tokens, std::int64_t{105592} * 512);
}

TEST(Replay, SameSeedSameResultOnAnyNumberOfThreads) {
  const auto trace = generated(60);
  EngineOptions o;
  o.pool_tokens = 200000;
  o.layers = 1;
  std::map<std::string, int> results;
  for (const int threads : {1, 3}) {
    o.threads = threads;
    const ReplayResult r = replay(trace, o);
    EXPECT_EQ(r.counters.false_alarms, 0);
    std::ostringstream all;
    all << r.steps << ' ' << r.counters.tokens_written << ' ' << r.counters.prefix_hit_tokens << ' '
        << r.counters.evicted_tokens << ' ' << r.canary.records_verified << ' '
        << r.canary.bytes_digested << ' ' << r.canary.sweeps;
    ++results[all.str()];
  }
  EXPECT_EQ(results.size(), 1u);
}

TEST(Replay, EndsEarlyWithWhatThereIs) {
  const auto trace = generated(60);
  EngineOptions o;
  o.real_data = false;
  std::atomic<bool> stop{false};
  ReplayHooks hooks;
  hooks.stop = &stop;
  hooks.progress = [&](const ReplayProgress& p) { stop = p.requests >= 10; };
  const ReplayResult r = replay(trace, o, hooks);
  EXPECT_TRUE(r.interrupted);
  EXPECT_GE(r.counters.requests, 10);
  EXPECT_LT(r.counters.requests, 60);
  EXPECT_EQ(r.requests, 60);
}

}  // namespace
}  // namespace serinus::engine
