// The host's side of the sglang format beyond its vectors: errors, raise mode, overflow, logs.
#include <gtest/gtest.h>

#include <limits>

#include <serinus/canary_sglang_host.h>
#include <serinus/error.h>

#include "tests/canary/error_of.h"

namespace serinus::canary::sglang {
namespace {

TEST(Capacities, RefuseWhatCannotBe) {
  CapacityInput in;
  in.req_to_token_pool_size = 8;
  in.pool_slot_count = 0;
  in.max_prefill_tokens = 64;
  EXPECT_EQ(error_of([&] { launch_capacities(in); }),
            "SRN3218 kv-canary: pool_slot_count must be positive, got 0");
  in.pool_slot_count = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_NE(error_of([&] { launch_capacities(in); }).find("wraps"), std::string::npos);
  in.pool_slot_count = 100;
  in.cuda_graph_max_bs = -1;
  EXPECT_EQ(error_of([&] { launch_capacities(in); }),
            "SRN3219 kv-canary: cuda_graph_max_bs must be non-negative, got -1");
  in.cuda_graph_max_bs = 4;
  const LaunchCapacities c = launch_capacities(in);
  EXPECT_EQ(error_of([&] { check_forward(c, 8, 64); }), "no error");
  EXPECT_EQ(error_of([&] { check_forward(c, 9, 1); }).substr(0, 7), "SRN3220");
  EXPECT_EQ(error_of([&] { check_forward(c, 1, 65); }).substr(0, 7), "SRN3221");
}

TEST(PlanInput, ShortArraysAreErrorsAndChangeNothing) {
  const std::vector<std::int64_t> rows = {1, 2}, short_one = {5};
  std::vector<std::int64_t> a(2, 9), b(2, 9), c(2, 9), d(2, 9);
  ForwardInput in;
  in.mode = ForwardMode::target_verify;
  in.batch_size = 2;
  in.rows = rows;
  in.seq_lens = short_one;
  EXPECT_EQ(error_of([&] { fill_plan_lengths(in, {a, b, c, d}); }),
            "SRN3211 kv-canary: seq_lens length must be >= 2, got 1");
  in.mode = ForwardMode::prebuilt;
  EXPECT_EQ(error_of([&] { fill_plan_lengths(in, {a, b, c, d}); }),
            "SRN3223 Unsupported forward mode for kv-canary: PREBUILT");
  in.batch_size = 3;
  EXPECT_EQ(error_of([&] { fill_plan_lengths(in, {a, b, c, d}); }).substr(0, 7), "SRN3222");
  for (const auto& v : {a, b, c, d}) EXPECT_EQ(v, std::vector<std::int64_t>(2, 9));
  // Graph padding: two rows, one position. The rest is zero, histories where they are known.
  in.mode = ForwardMode::decode;
  in.batch_size = 2;
  in.positions = short_one;
  in.history_lens = short_one;
  fill_plan_lengths(in, {a, b, c, d});
  EXPECT_EQ(b, (std::vector<std::int64_t>{5, 0}));
  EXPECT_EQ(c, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(d, (std::vector<std::int64_t>{5, 0}));
}

TEST(SwaDivergence, LinesInALog) {
  const SwaDivergence one{4, 40, 12, 2, 3}, two{8, 80, 24, 5, 0};
  std::string log = "x ";
  log += swa_divergence_line(one);
  log += "\nkv_canary_swa_divergence={\"forward\nkv_canary_swa_divergence={\"forward_ct\":8,";
  log += "\"verify_full\":80,\"verify_swa\":24,\"swa_full_idx_divergence\":5} tail";
  EXPECT_EQ(find_swa_divergence(log), (std::vector<SwaDivergence>{one, two}));
}

TEST(SwaDivergence, HostileNumbersStayInside) {
  std::vector<std::int32_t> cells = {-1, 2147483647, -2147483647, 3};
  const TensorView table(cells.data(), DType::i32, {1, 4});
  const std::vector<std::int64_t> map = {0, 1, 2, 0, 0, -1}, rows = {0, -5, 7},
                                  lens = {1 << 30, 4, 4};
  const SwaDivergence d = swa_divergence(table, map, rows, lens);
  EXPECT_EQ(d.swa_full_idx_divergence, 1);  // 2^31 - 1 takes the last entry
  EXPECT_EQ(d.swa_out_of_window_tokens, 1);
  EXPECT_THROW(swa_divergence(table, {}, rows, lens), ValueError);
}

struct Steps {
  std::vector<ViolationRow> ring = std::vector<ViolationRow>(2);
  std::vector<std::int64_t> runs = std::vector<std::int64_t>(kNumLaunchTags);
  DeviceState now;
  HostTimeline timeline;
  explicit Steps(HostOptions o) : timeline(std::move(o)) {
    for (ViolationRow& r : ring) r.fail_reason_bits = 1;
    now.ring = ring;
    now.kernel_run_counters = now.slot_run_counters = runs;
  }
  HostReport step() { return timeline.end_outer_step(now); }
};

TEST(Timeline, RaisesOnceWithAllRows) {
  Steps s({.mode = Mode::raise});
  s.now.violations = 1;
  EXPECT_TRUE(s.step().violations.empty());  // staged
  s.now.violations = 5;                      // the ring holds two
  const std::string said = error_of([&] { s.step(); });
  EXPECT_EQ(said.substr(0, 51), "SRN3225 kv_canary violation: launch_tag=HEAD_K_FULL");
  EXPECT_NE(said.find("total_violations=5 ring_overflow=True step_when_pumped=2\nkv_canary violat"),
            std::string::npos)
      << said;
  EXPECT_EQ(s.timeline.steps(), 2);
  EXPECT_EQ(error_of([&] { s.step(); }), "no error");
}

TEST(Timeline, LogModeReportsEachRowOnceAndNothingBeyondTheRing) {
  Steps s({.mode = Mode::log});
  s.now.violations = 1;
  s.step();
  EXPECT_EQ(s.step().violations.size(), 1u);
  EXPECT_TRUE(s.step().violations.empty());
  s.now.violations = 9;
  EXPECT_EQ(s.step().violations.size(), 1u);
  EXPECT_TRUE(s.step().violations.empty());
}

TEST(Timeline, OverflowAndDivergenceComeOneStepLate) {
  Steps s({.swa_divergence_interval = 2});
  const std::vector<PlanOverflow> overflow = {{70, 60}};
  s.now.overflows = overflow;
  EXPECT_TRUE(s.step().overflow_warnings.empty());
  s.now.overflows = {};
  s.now.divergence = {2, 10, 5, 1, 0};
  const HostReport second = s.step();
  ASSERT_EQ(second.overflow_warnings.size(), 1u);
  EXPECT_EQ(second.overflow_warnings[0],
            "kv-canary: per-forward verify skipped this step due to overflow (total=70, "
            "capacity=60); check ServerArgs / pool sizing");
  EXPECT_TRUE(second.divergence_line.empty());
  s.now.divergence = {3, 11, 6, 1, 0};  // not of the staged step
  EXPECT_EQ(s.step().divergence_line, swa_divergence_line({2, 10, 5, 1, 0}));
  EXPECT_TRUE(s.step().overflow_warnings.empty());
}

TEST(Timeline, HealthLooksAtWhatCanRun) {
  HostOptions o;
  o.tags = {LaunchTag::head_k_full, LaunchTag::head_v_full, LaunchTag::sweep_k_full};
  Steps s(o);
  const auto run = [&](std::int64_t until) {
    while (s.timeline.steps() < until) {
      ++s.runs[0];
      s.step();
    }
  };
  run(150);  // V gate off, sweeps off: only head K has to move
  while (s.timeline.steps() < 200) s.step();
  EXPECT_EQ(error_of([&] { s.step(); }), "no error");  // it moved until step 150
  while (s.timeline.steps() < 300) s.step();
  EXPECT_EQ(error_of([&] { s.step(); }),
            "SRN3224 kv-canary: kernel_run_counter did not increase since previous check for "
            "tags=[HEAD_K_FULL] at step=300; canary path is not executing");
}

}  // namespace
}  // namespace serinus::canary::sglang
