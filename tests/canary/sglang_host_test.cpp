// The host side of the sglang format: scatter, translation, sweep, report, oracle, transfer, flip;
// and examples of the specification that the vectors do not hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>
#include <serinus/error.h>

#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang {
namespace {

using Entries = std::vector<std::vector<std::int64_t>>;

Entries listed(const std::vector<SweepEntry>& entries) {
  Entries out;
  for (const SweepEntry& e : entries) out.push_back({e.slot, e.position, e.prev_slot});
  return out;
}

TEST(SglangSweep, RootSlotsAreNotListedButLeadTheChain) {
  const std::vector<std::int64_t> root = {5, 6};
  const std::vector<std::int64_t> child = {7};
  PrefixTree tree;
  tree.nodes = {{.slots = root, .children = {1}}, {.slots = child}};
  EXPECT_EQ(listed(sweep_entries(tree)), (Entries{{7, 2, 6}}));
}

TEST(SglangSweep, OnlyUnifiedTreesCountNodesWithoutSlots) {
  const std::vector<std::int64_t> a = {3, 4};
  const std::vector<std::int64_t> c = {9};
  PrefixTree tree;
  tree.nodes = {{.children = {1}},
                {.slots = a, .key_length = 2, .children = {2}},
                {.key_length = 5, .children = {3}},
                {.slots = c, .key_length = 1}};
  EXPECT_EQ(listed(sweep_entries(tree)), (Entries{{3, 0, -1}, {4, 1, 3}, {9, 2, 4}}));
  tree.kind = PrefixTreeKind::unified;
  EXPECT_EQ(listed(sweep_entries(tree)), (Entries{{3, 0, -1}, {4, 1, 3}, {9, 7, 4}}));
}

TEST(SglangSweep, Filters) {
  const std::vector<std::int64_t> slots[] = {{1}, {2}, {3}};
  PrefixTree tree;
  tree.nodes = {{.children = {1, 2, 3}},
                {.slots = slots[0], .key_length = 1, .full_lock = 1},
                {.slots = slots[1], .key_length = 1, .swa_lock = 1},
                {.slots = slots[2], .key_length = 1, .swa_resident = false}};
  const auto with = [&](PrefixTreeKind kind, bool has_swa, SweepFilter filter) {
    tree.kind = kind;
    tree.has_swa_component = has_swa;
    std::vector<std::int64_t> out;
    for (const SweepEntry& e : sweep_entries(tree, filter)) out.push_back(e.slot);
    return out;
  };
  using Slots = std::vector<std::int64_t>;
  const SweepFilter unlocked{.unlocked_only = true};
  const SweepFilter resident{.swa_resident_only = true};
  const SweepFilter both{true, true};
  EXPECT_EQ(with(PrefixTreeKind::plain, false, unlocked), (Slots{2, 3}));
  EXPECT_EQ(with(PrefixTreeKind::plain, false, resident), (Slots{1, 2, 3}));
  EXPECT_EQ(with(PrefixTreeKind::swa, false, resident), (Slots{1, 2}));
  EXPECT_EQ(with(PrefixTreeKind::swa, false, both), (Slots{2}));
  EXPECT_EQ(with(PrefixTreeKind::unified, true, unlocked), (Slots{2, 3}));
  EXPECT_EQ(with(PrefixTreeKind::unified, true, both), (Slots{1}));
  EXPECT_EQ(with(PrefixTreeKind::unified, false, both), (Slots{2}));
}

TEST(SglangSweep, ATreeAsDeepAsALongConversation) {
  constexpr std::int32_t kDepth = 300000;
  const std::vector<std::int64_t> slot = {1};
  PrefixTree tree;
  tree.nodes.resize(kDepth);
  for (std::int32_t i = 0; i < kDepth; ++i) {
    tree.nodes[static_cast<std::size_t>(i)].slots = slot;
    if (i + 1 < kDepth) tree.nodes[static_cast<std::size_t>(i)].children = {i + 1};
  }
  const std::vector<SweepEntry> entries = sweep_entries(tree);
  ASSERT_EQ(entries.size(), static_cast<std::size_t>(kDepth - 1));
  EXPECT_EQ(entries.back().position, kDepth - 1);
}

TEST(SglangSweep, WhatIsNotATree) {
  for (const std::vector<std::int32_t>& children :
       {std::vector<std::int32_t>{0}, {1, 1}, {2}, {-1}, {INT32_MIN}}) {
    PrefixTree tree;
    tree.nodes = {{.children = children}, {}};
    EXPECT_THROW(sweep_entries(tree), ValueError);
  }
  PrefixTree cycle;
  cycle.nodes = {{.children = {1}}, {.children = {2}}, {.children = {1}}};
  EXPECT_THROW(sweep_entries(cycle), ValueError);
  EXPECT_TRUE(sweep_entries(PrefixTree{}).empty());
}

TEST(SglangSweep, Translation) {
  const std::vector<std::int64_t> mapping = {0, 7, 0, -1};
  std::vector<SweepEntry> entries = {{1, 0, -1}, {2, 1, 1}, {900, 2, 2}};
  translate_sweep(entries, 0, std::nullopt);
  EXPECT_EQ(listed(entries), (Entries{{1, 0, -1}, {2, 1, 1}, {900, 2, 2}}));
  EXPECT_THROW(translate_sweep(entries, 4, std::nullopt), ValueError);
  translate_sweep(entries, 4, mapping);
  EXPECT_EQ(listed(entries), (Entries{{7, 0, -1}, {0, 1, 7}, {-1, 2, 0}}));
}

TEST(SglangSweep, PlanHasRoomForOneAtLeast) {
  HostVerifyPlan empty = sweep_plan({});
  EXPECT_EQ(empty.slots.size(), 1u);
  EXPECT_EQ(empty.num_valid, 0);
  const std::vector<SweepEntry> entries = {{3, 0, -1}, {4, 1, 3}};
  HostVerifyPlan two = sweep_plan(entries);
  EXPECT_EQ(two.num_valid, 2);
  EXPECT_EQ(two.prev_slots, (std::vector<std::int64_t>{-1, 3}));
  EXPECT_EQ(two.tokens, (std::vector<std::int64_t>{-1, -1}));
}

TEST(SglangScatter, RowsOutsideThePoolAndStridedTensors) {
  std::vector<std::int64_t> flat = {10, -1, 20, -1, 30, -1};
  std::vector<std::int64_t> offsets = {0, 1, 2, 3};
  std::vector<std::int64_t> rows = {-1, 1, INT64_MAX};
  std::vector<std::int32_t> pool(8, 5);
  scatter_req_token_ids(TensorView(flat.data(), DType::i64, {3}, {2}), view(offsets), view(rows),
                        TensorView(pool.data(), DType::i32, {2, 2}, {4, 2}));
  EXPECT_EQ(pool, (std::vector<std::int32_t>{5, 5, 5, 5, 20, 5, 5, 5}));
  for (const std::vector<std::int64_t>& bad :
       {std::vector<std::int64_t>{INT64_MIN, INT64_MAX, INT64_MIN, 9},
        {9, 0, 9, 0},
        {-5, 9, INT64_MAX, INT64_MIN}}) {
    offsets = bad;
    rows = {0, 1, 1};
    scatter_req_token_ids(view(flat), view(offsets), view(rows), view(pool, 2, 4));
  }
}

TEST(SglangTranslate, AsThePlanDoes) {
  std::vector<std::int64_t> slots = {-1, 0, 2, 3, 900, INT64_MIN};
  std::vector<std::int64_t> mapping = {0, 5, 6, -1};
  translate_slots(view(slots), view(mapping), view(slots));
  EXPECT_EQ(slots, (std::vector<std::int64_t>{-1, 0, 6, -1, -1, INT64_MIN}));
}

TEST(SglangReport, UnknownTagAndBits) {
  EXPECT_EQ(report_text({99, 1, 2, 3, 4, 5, 6, 0}, 7, true, 8),
            "kv_canary violation: launch_tag=unknown(99) fail_reason=none slot_idx=1 position=2 "
            "stored_token=3 expected_token=4 stored_chain_hash=0x0000000000000005 "
            "expected_aux=0x0000000000000006\n"
            "KV cache canary violation detected (kernel_kind=unknown(99), slot_idx=1, position=2)\n"
            "canary_kind:       unknown(99)\n"
            "  fail_reasons: none\n"
            "  stored:   token_id=3   position=2 prev_hash=0x0000000000000005\n"
            "  expected: prev_hash=0x0000000000000006\n"
            "  total_violations=7 ring_overflow=True step_when_pumped=8");
  EXPECT_EQ(tag_name(-1), "unknown(-1)");
  EXPECT_EQ(name_of(LaunchTag::sweep_v_swa), "SWEEP_V_SWA");
  EXPECT_EQ(fail_reason_names(-1, "+"),
            "verify_chain_hash+verify_position+verify_real_kv_hash+write_token+write_position+"
            "verify_token");
}

// The digests are those of Python's hashlib.blake2b(text, digest_size=8), little-endian.
TEST(SglangOracle, RequestIds) {
  EXPECT_EQ(request_id_hash(""), -5426141060434712860);
  EXPECT_EQ(request_id_hash(std::string(127, 'a')), -8434693369549433341);
  EXPECT_EQ(request_id_hash(std::string(128, 'a')), -2731293961254377744);
  EXPECT_EQ(request_id_hash(std::string(129, 'a')), -7376115878442343708);
  EXPECT_EQ(request_id_hash(std::string(1000, 'z')), 2037168936145914494);
  EXPECT_EQ(request_id_hash("\xc3\xa9\xe2\x82\xac"), -6893312898452080577);
}

TEST(SglangOracle, VocabularyMustBePositive) {
  EXPECT_THROW(oracle_token(1, 2, 0), ValueError);
  EXPECT_THROW(oracle_token(1, 2, INT64_MIN), ValueError);
  EXPECT_EQ(oracle_token(1, 2, 1), 0);
}

TEST(SglangTransfer, OddListsAreRefused) {
  const std::vector<TransferBuffer> three(3);
  try {
    splice_kv(three, {}, {}, {}, {});
    FAIL();
  } catch (const RuntimeError& e) {
    EXPECT_STREQ(e.what(), "kv-canary: K/V split adapter expects even-length buf_info list, got 3");
  }
  EXPECT_EQ(splice_kv({}, {.address = 1}, {.address = 2}, {.address = 3}, {.address = 4}).size(),
            4u);
}

TEST(SglangRealKv, SlotsOutsideASourceAreNotRead) {
  std::vector<std::uint8_t> bytes(3 * 32);
  const RealKvSource s{TensorView(bytes.data(), DType::u8, {3, 32}), 2, 16, 16};
  for (const std::int64_t slot : {std::int64_t{-1}, INT64_MIN, std::int64_t{6}, INT64_MAX}) {
    EXPECT_FALSE(source_hash(s, RealKvHashMode::all, slot)) << slot;
    EXPECT_FALSE(real_kv_hash({&s, 1}, RealKvHashMode::partial, slot)) << slot;
    EXPECT_FALSE(flip_first_byte(s, slot)) << slot;
  }
  EXPECT_TRUE(source_hash(s, RealKvHashMode::all, 5));
  EXPECT_EQ(flip_first_byte(s, 5)->new_byte, 0xFF);
  EXPECT_EQ(bytes[2 * 32 + 16], 0xFF);
  // Sizes whose products do not fit 64 bits.
  const RealKvSource huge{TensorView(bytes.data(), DType::u8, {3, 32}), INT64_MAX / 2,
                          (INT64_MAX / 16) * 16, 16};
  EXPECT_FALSE(source_hash(huge, RealKvHashMode::all, INT64_MAX / 4));
  EXPECT_TRUE(source_hash(huge, RealKvHashMode::all, 0));
}

TEST(SglangWrite, ASlotInRecordZeroAndASeedInRecordZero) {
  Endpoint e(12);
  e.set(0, {5, 3, 123, 0});
  HostWritePlan plan(1);
  plan.offsets = {0, 1};
  plan.seeds = {0};
  plan.num_valid_reqs = 1;
  std::vector<std::int64_t> ids = {50};
  std::vector<std::int64_t> positions = {9};
  std::vector<std::int64_t> slots = {0};
  write(e.context(), plan.view(),
        {.input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)});
  EXPECT_EQ(static_cast<std::uint64_t>(e.record(0).prev_hash), 0xc725c07f0c04102bu);
  EXPECT_EQ(e.violations, 1);
  EXPECT_EQ(e.ring[0],
            (ViolationRow{0, 0, 9, 50, 50, static_cast<std::int64_t>(0xc725c07f0c04102bu), 4, 16}));
}

TEST(SglangWrite, OutOfRangeSlotsAndSeedsAreCountedAndLeftAlone) {
  Endpoint e(4);
  const std::vector<std::uint8_t> before = e.bytes;
  HostWritePlan plan(2);
  plan.offsets = {0, 2, 3};
  plan.seeds = {-1, 4};
  plan.num_valid_reqs = 2;
  std::vector<std::int64_t> ids = {1, 2, 3};
  std::vector<std::int64_t> positions = {0, 1, 2};
  std::vector<std::int64_t> slots = {4, kOutOfRangeSlot, 1};
  write(e.context(), plan.view(),
        {.input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)});
  EXPECT_EQ(e.bytes, before);
  EXPECT_EQ(e.out_of_range, 3);
  EXPECT_EQ(e.slot_runs, 3);
  EXPECT_EQ(e.violations, 0);
}

TEST(SglangPlan, CellsThatDoNotExist) {
  std::vector<std::int64_t> rows = {1, 9};
  std::vector<std::int64_t> prefix = {4, 2};
  std::vector<std::int64_t> extend = {1, 1};
  std::vector<std::int32_t> cells = {0, 0, 0, 11, 12, 13};
  HostVerifyPlan verify_plan(8);
  HostWritePlan write_plan(2);
  plan(verify_plan.view(), write_plan.view(),
       {.req_pool_indices = view(rows),
        .prefix_lens = view(prefix),
        .extend_seq_lens = view(extend),
        .req_to_token = view(cells, 2, 3),
        .verify_capacity = 8});
  EXPECT_EQ(verify_plan.num_valid, 6);
  verify_plan.slots.resize(6);
  EXPECT_EQ(verify_plan.slots, (std::vector<std::int64_t>{11, 12, 13, kOutOfRangeSlot,
                                                          kOutOfRangeSlot, kOutOfRangeSlot}));
  EXPECT_EQ(write_plan.seeds, (std::vector<std::int64_t>{kOutOfRangeSlot, kOutOfRangeSlot}));
}

}  // namespace
}  // namespace serinus::canary::sglang
