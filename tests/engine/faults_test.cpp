// The fault lab on small replays: every class is caught, nothing is imagined, same seed same
// result.
#include "engine/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include <serinus/error.h>

#include "engine/random.h"
#include "engine/replay.h"

namespace serinus::engine {
namespace {

// Conversations that share a system prompt and come back with more, more than the pool holds.
std::vector<TraceRequest> small_trace() {
  Random random(5);
  std::vector<TraceRequest> trace;
  std::vector<std::vector<std::int64_t>> talks;
  std::int64_t next_id = 1;
  for (int i = 0; i < 150; ++i) {
    TraceRequest r;
    r.arrival_us = i;
    r.block_size = 32;
    if (!talks.empty() && random.below(2) == 0) r.hash_ids = talks[random.below(talks.size())];
    if (r.hash_ids.empty()) r.hash_ids = {0};
    for (std::uint64_t n = 1 + random.below(6); n > 0; --n) r.hash_ids.push_back(next_id++);
    if (r.hash_ids.size() > 16) r.hash_ids.resize(16);
    r.input_length = static_cast<std::int64_t>(r.hash_ids.size()) * 32;
    r.output_length = 8 + static_cast<std::int64_t>(random.below(40));
    talks.push_back(r.hash_ids);
    trace.push_back(std::move(r));
  }
  return trace;
}

EngineOptions small_options() {
  EngineOptions o;
  o.layers = 2;
  o.page = 8;
  o.pool_tokens = 4096;
  o.host_tokens = 8192;
  o.draft_layers = 1;
  o.max_running = 12;
  o.step_tokens = 512;
  o.threads = 1;
  return o;
}

struct Replayed {
  ReplayResult result;
  std::vector<std::string> unexplained;
};

Replayed replayed(const std::string& spec, const EngineOptions& options, std::uint64_t seed = 1) {
  const std::vector<TraceRequest> trace = small_trace();
  FaultLab lab(parse_fault_spec(spec), seed, static_cast<std::int64_t>(trace.size()));
  Replayed r;
  ReplayHooks hooks;
  hooks.injector = &lab;
  hooks.violation = [&](const canary::Violation& v, const std::string& pool, int fault) {
    if (fault < 0 && r.unexplained.size() < 5) r.unexplained.push_back(canary::to_text(v, pool));
  };
  r.result = replay(trace, options, hooks);
  return r;
}

std::string describe(const std::vector<InjectedFault>& faults) {
  std::string text;
  for (const InjectedFault& f : faults) {
    text += "\n  " + f.kind + " step " + std::to_string(f.step) + ", " + f.note + ": " +
            name_of(f.state) + " " + f.why;
  }
  return text;
}

class EachFaultClass : public testing::TestWithParam<FaultClassInfo> {};

TEST_P(EachFaultClass, IsDetectedAndExplainsAllAlarms) {
  const Replayed r = replayed(std::string(GetParam().name) + ":12", small_options());
  const ReplayResult& result = r.result;
  EXPECT_EQ(result.counters.requests, 150);
  EXPECT_EQ(result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
  EXPECT_GE(result.count(FaultState::detected), 1) << describe(result.faults);
  EXPECT_EQ(result.count(FaultState::missed), 0) << describe(result.faults);
  EXPECT_EQ(result.count(FaultState::pending), 0);
  EXPECT_EQ(result.faults.size(), 12u);
  for (const InjectedFault& f : result.faults) {
    EXPECT_EQ(f.kind, GetParam().name);
    const bool unseen = f.state == FaultState::masked || f.state == FaultState::not_visible ||
                        f.state == FaultState::not_placed;
    EXPECT_EQ(unseen, !f.why.empty()) << describe({f});
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, EachFaultClass, testing::ValuesIn(fault_classes()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FaultLab, AllClassesTogetherAreCaughtOrAccountedFor) {
  const Replayed r = replayed("all:80", small_options(), 3);
  EXPECT_EQ(r.result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
  EXPECT_EQ(r.result.count(FaultState::missed), 0) << describe(r.result.faults);
  EXPECT_GE(r.result.count(FaultState::detected), 30) << describe(r.result.faults);
  EXPECT_EQ(r.result.faults.size(), 80u);
}

// The format has no ledger and names no owner, and yet its reports lead to the faults: by the slot,
// the request that read it, or the record before it.
TEST(FaultLab, InTheSglangFormatEveryAlarmIsExplained) {
  for (const bool swa : {false, true}) {
    EngineOptions o = small_options();
    o.canary.format = canary::Format::sglang;
    if (swa) {
      o.host_tokens = 0;
      o.window = 48;
    }
    for (const std::uint64_t seed : {1u, 2u}) {
      const Replayed r = replayed("all:100", o, seed);
      EXPECT_EQ(r.result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
      EXPECT_EQ(r.result.count(FaultState::missed), 0) << describe(r.result.faults);
      EXPECT_GE(r.result.count(FaultState::detected), 40) << describe(r.result.faults);
      for (const InjectedFault& f : r.result.faults) {
        // Every step walks every cell, so a cell that shows another slot is seen at once.
        if (f.kind != "remap" && f.kind != "swapped_slots" && f.kind != "stale_page") continue;
        if (f.pool >= 0) {
          EXPECT_EQ(f.state, FaultState::detected) << describe({f});
        }
      }
    }
  }
}

TEST(FaultLab, VerifyAllCatchesThemToo) {
  EngineOptions o = small_options();
  o.canary.verify = canary::VerifyPolicy::all;
  const Replayed r = replayed("swapped_slots:10,remap:10,stale_page:10,wrong_token:10", o);
  EXPECT_EQ(r.result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
  EXPECT_EQ(r.result.count(FaultState::missed), 0) << describe(r.result.faults);
  // Every step walks every cell: what was placed was seen.
  EXPECT_EQ(r.result.count(FaultState::masked), 0) << describe(r.result.faults);
  EXPECT_GE(r.result.count(FaultState::detected), 30) << describe(r.result.faults);
}

TEST(FaultLab, SameSeedSameFaultsOnAnyNumberOfThreads) {
  const auto trail = [](const Replayed& r) {
    std::vector<std::tuple<std::string, std::string, int, std::uint64_t, std::uint64_t>> t;
    for (const InjectedFault& f : r.result.faults)
      t.emplace_back(f.kind, f.note, static_cast<int>(f.state), f.step, f.detected_step);
    return t;
  };
  EngineOptions threads = small_options();
  threads.threads = 3;
  const auto first = trail(replayed("all:40", small_options(), 7));
  EXPECT_EQ(first, trail(replayed("all:40", threads, 7)));
  EXPECT_NE(first, trail(replayed("all:40", small_options(), 8)));
}

TEST(FaultLab, WithoutFaultsThereIsNothing) {
  const Replayed r = replayed("none", small_options());
  EXPECT_TRUE(r.result.faults.empty());
  EXPECT_EQ(r.result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
  EXPECT_EQ(r.result.counters.requests, 150);
}

TEST(FaultLab, SaysWhatTheConfigurationCannotHave) {
  EngineOptions o = small_options();
  o.host_tokens = 0;
  o.draft_layers = 0;
  o.null_slot = canary::NullSlot::scratch;
  const Replayed r = replayed("torn_transfer:2,draft_offset,pad_null_slot,byte_flip:2", o);
  EXPECT_EQ(r.result.faults.size(), 6u);
  EXPECT_EQ(r.result.count(FaultState::not_placed), 4) << describe(r.result.faults);
  EXPECT_NE(describe(r.result.faults).find("no second tier in this configuration"),
            std::string::npos);
  // `all` takes what there is.
  const Replayed all = replayed("all:20", o);
  for (const InjectedFault& f : all.result.faults) {
    EXPECT_NE(f.kind, "torn_transfer");
    EXPECT_NE(f.kind, "draft_offset");
  }
}

TEST(FaultLab, BytesOutsideAPartialDigestAreNotVisible) {
  EngineOptions o = small_options();
  o.canary.depth = canary::Depth::partial;
  const Replayed r = replayed("byte_flip:30", o);
  EXPECT_EQ(r.result.count(FaultState::missed), 0) << describe(r.result.faults);
  EXPECT_GE(r.result.count(FaultState::not_visible), 15) << describe(r.result.faults);
  o.real_data = false;
  const Replayed none = replayed("byte_flip:3,remap:3", o);
  EXPECT_EQ(none.result.count(FaultState::missed), 0) << describe(none.result.faults);
  EXPECT_EQ(none.result.counters.false_alarms, 0) << testing::PrintToString(none.unexplained);
}

// What a digest covers is the format's own matter: 16 bytes of a source in the sglang format's
// partial depth, and four sources at most in any.
TEST(FaultLab, BytesThatTheFormatDoesNotReadAreNotVisible) {
  EngineOptions o = small_options();
  o.canary.format = canary::Format::sglang;
  o.canary.depth = canary::Depth::partial;
  const std::string spec = "byte_flip:30,torn_transfer:10,truncated_transfer:10,misread_layout:5";
  const Replayed partial = replayed(spec, o);
  EXPECT_EQ(partial.result.count(FaultState::missed), 0) << describe(partial.result.faults);
  EXPECT_GE(partial.result.count(FaultState::not_visible), 20);
  EXPECT_GE(partial.result.count(FaultState::detected), 5);
  o.canary.depth = canary::Depth::all;
  o.layers = 6;
  const Replayed layers = replayed(spec, o);
  EXPECT_EQ(layers.result.count(FaultState::missed), 0) << describe(layers.result.faults);
  EXPECT_GE(layers.result.count(FaultState::not_visible), 3);
  EXPECT_GE(layers.result.count(FaultState::detected), 20);
  EXPECT_EQ(layers.result.counters.false_alarms + partial.result.counters.false_alarms, 0);
}

// A page in two hands must not get into the prefix cache, nor be lost by one of them: it would be
// free and in use at once, and the alarms would go on for ever.
class LabThatLooksAfterPages : public FaultLab {
 public:
  using FaultLab::FaultLab;
  void step_begin(Engine& engine) override {
    FaultLab::step_begin(engine);
    engine.cache().for_each_on_device([&](RadixCache::Node, std::int64_t page) {
      astray += engine.allocator().use(page) != PageUse::cached;
    });
    std::map<std::int64_t, int> holders;
    for (const auto& r : engine.running()) {
      for (std::size_t i = r->path.size(); i < r->pages.size(); ++i) ++holders[r->pages[i]];
    }
    for (const auto& [page, n] : holders) {
      astray += n > 2 || engine.allocator().use(page) != PageUse::request;
    }
  }
  std::int64_t astray = 0;
};

TEST(FaultLab, APageInTwoHandsIsGoneWithThem) {
  const std::vector<TraceRequest> trace = small_trace();
  std::int64_t detected = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    for (const std::int64_t decode_tokens : {1, 3}) {
      EngineOptions o = small_options();
      o.decode_tokens = decode_tokens;
      o.draft_layers = seed % 2 == 0 ? 1 : 0;
      o.real_data = false;
      LabThatLooksAfterPages lab(parse_fault_spec("double_handout:30"), seed, 150);
      ReplayHooks hooks;
      hooks.injector = &lab;
      const ReplayResult r = replay(trace, o, hooks);
      EXPECT_EQ(lab.astray, 0);
      EXPECT_EQ(r.counters.false_alarms, 0);
      EXPECT_EQ(r.count(FaultState::missed), 0) << describe(r.faults);
      detected += r.count(FaultState::detected);
    }
  }
  EXPECT_GE(detected, 60);
}

TEST(FaultLab, FindsFaultsWithASlidingWindow) {
  EngineOptions o = small_options();
  o.host_tokens = 0;
  o.window = 40;
  const Replayed r = replayed("all:60", o);
  EXPECT_EQ(r.result.counters.false_alarms, 0) << testing::PrintToString(r.unexplained);
  EXPECT_EQ(r.result.count(FaultState::missed), 0) << describe(r.result.faults);
  EXPECT_GE(r.result.count(FaultState::detected), 15) << describe(r.result.faults);
}

TEST(FaultSpec, ReadsClassesAndCounts) {
  const FaultSpec spec = parse_fault_spec("byte_flip:50,remap,all:7,byte_flip:2");
  EXPECT_EQ(spec.all, 7);
  EXPECT_EQ(spec.counts.at(FaultClass::byte_flip), 52);
  EXPECT_EQ(spec.counts.at(FaultClass::remap), 1);
  EXPECT_TRUE(parse_fault_spec("").empty());
  EXPECT_TRUE(parse_fault_spec("none").empty());
  for (const FaultClassInfo& c : fault_classes()) {
    EXPECT_NE(fault_spec_help().find(c.name), std::string::npos);
    EXPECT_EQ(parse_fault_spec(c.name).counts.size(), 1u);
  }
}

TEST(FaultSpec, NamesWhatIsWrong) {
  const auto error = [](const char* text) {
    try {
      parse_fault_spec(text);
    } catch (const ValueError& e) {
      return e.id() + " " + e.what();
    }
    return std::string("no error");
  };
  EXPECT_TRUE(error("byteflip:3")
                  .starts_with("SRN5101 there is no class of fault byteflip; known are all, "
                               "byte_flip, swapped_slots, "));
  EXPECT_TRUE(error("byte_flip:3,").starts_with("SRN5101 there is no class of fault ; known"));
  const std::string count = "SRN5102 --faults remap needs a count from 1 to 1000000, got ";
  EXPECT_EQ(error("remap:0"), count + "0");
  EXPECT_EQ(error("remap:-1"), count + "-1");
  EXPECT_EQ(error("remap:1e3"), count + "1e3");
  EXPECT_EQ(error("remap:"), count);
  EXPECT_EQ(error("remap:99999999999999999999"), count + "99999999999999999999");
}

}  // namespace
}  // namespace serinus::engine
