// The canary notices that it stopped running; and rare sweeps, idle pools and ends of work are
// none.
#include <gtest/gtest.h>

#include <serinus/log.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using testing::PoolBytes;
using testing::Rig;

/// The warnings that were logged while it lived.
struct Warnings {
  std::vector<std::string> lines;
  Warnings() {
    set_log_callback([this](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) lines.emplace_back(line);
    });
  }
  ~Warnings() { set_log_callback({}); }
};

struct Two : Rig {
  explicit Two(Options o = options()) : Rig(32, o), other(32, 1) {
    other.spec.name = "draft";
    other.spec.kind = PoolKind::draft;
    draft = monitor.add_pool(other.spec);
  }
  static Options options() {
    Options o;
    o.health_steps = 10;
    return o;
  }
  void step(std::vector<int> pools, bool head = true, bool tail = true) {
    Forward f = forward(1, 0, {});
    f.batch.pools = pools;
    if (head) monitor.begin_step(f.batch);
    if (tail) monitor.end_step(f.batch);
  }
  PoolBytes other;
  int draft = 0;
};

TEST(Health, AForwardPathWithoutBrackets) {
  Two e;
  const Warnings warnings;
  e.alloc(1, {3});
  e.monitor.on_alloc(e.draft, Rig::Slots{3}, 1);
  for (int i = 0; i < 10; ++i) e.step({0});
  EXPECT_TRUE(e.monitor.health().empty());
  e.step({0});  // the draft model's forwards are not bracketed
  const std::vector<Stall> want = {{Moment::head, 1, 0}, {Moment::tail, 1, 0}};
  EXPECT_EQ(e.monitor.health(), want);
  for (int i = 0; i < 50; ++i) e.step({0});
  ASSERT_EQ(warnings.lines.size(), 2u);  // once each
  EXPECT_EQ(warnings.lines[1], "kv-canary stopped running: moment=tail pool=draft since step=0");
  EXPECT_EQ(find_error(warnings.lines[1])->id, "SRN3022");
  e.step({0, 1});
  EXPECT_TRUE(e.monitor.health().empty());
}

TEST(Health, AMissingMoment) {
  Two e;
  e.alloc(1, {3});
  for (int i = 0; i < 11; ++i) e.step({0}, false, true);
  EXPECT_EQ(e.monitor.health(), (std::vector<Stall>{{Moment::head, 0, 0}}));
}

TEST(Health, NoStepAtAll) {
  Two e;
  const Warnings warnings;
  for (Owner o = 1; o <= 1000; ++o) {
    e.alloc(o, {5});
    e.free({5}, o);
  }
  const auto stalls = e.monitor.health();
  ASSERT_EQ(stalls.size(), 3u);  // head, tail and sweep of pool 0
  EXPECT_EQ(stalls[2].moment, Moment::sweep);
  EXPECT_EQ(warnings.lines.size(), 3u);
}

TEST(Health, IdlePoolsAndLongPausesAreFine) {
  Two e;
  e.alloc(1, {3});
  e.monitor.on_alloc(e.draft, Rig::Slots{3}, 1);
  e.step({});
  for (int i = 0; i < 500; ++i) e.step({0});  // nothing new in the draft pool
  EXPECT_TRUE(e.monitor.health().empty());
  e.monitor.flush();
  EXPECT_TRUE(e.monitor.health().empty());
}

TEST(Health, RareSweepsAreNoStall) {
  Options o = Two::options();
  o.format = Format::sglang;
  o.depth = Depth::none;
  o.sweep_interval = 1000;
  Rig e(32, o);
  e.monitor.set_sweep_source(0, [](std::vector<SweepEntry>&) {});
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      e.alloc(static_cast<Owner>(i % 5 + 1), {3});
      e.look(1, 0);
    }
  };
  steps(1500);
  EXPECT_TRUE(e.monitor.health().empty());
  // Without a source none is expected, however long.
  e.monitor.set_sweep_source(0, nullptr);
  steps(2500);
  EXPECT_TRUE(e.monitor.health().empty());
}

// A limit that is as good as none: 64 announcements for each of its steps are more than 64 bits
// hold.
TEST(Health, AVastLimitIsNone) {
  Options o = Two::options();
  for (const int bit : {57, 58, 60, 62}) {
    o.health_steps = std::int64_t{1} << bit;
    o.sweep_interval = std::int64_t{1} << bit;
    o.format = bit == 57 ? Format::sglang : Format::serinus;
    o.depth = Depth::none;
    Rig rig(32, o);
    for (int i = 0; i < 200; ++i) {
      rig.alloc(1, {3});
      rig.free({3}, 1);
    }
    EXPECT_TRUE(rig.monitor.health().empty()) << bit;
  }
}

TEST(Health, OffAndNone) {
  for (const bool off : {true, false}) {
    Options o = Two::options();
    if (off) o.health_steps = 0;
    if (!off) o.mode = Mode::none;
    Two e(o);
    e.alloc(1, {3});
    e.monitor.on_alloc(e.draft, Rig::Slots{3}, 1);
    for (int i = 0; i < 50; ++i) e.step({0});
    EXPECT_TRUE(e.monitor.health().empty());
  }
}

}  // namespace
}  // namespace serinus::canary
