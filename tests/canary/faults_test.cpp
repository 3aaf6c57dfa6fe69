// Every reason, from sequences written by hand; most are the scenarios of public reports.
#include <gtest/gtest.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using testing::PoolBytes;
using testing::Rig;

// ---------------------------------------------------------------- released while in use

TEST(Faults, TransferLandsAfterItsRequestWasAborted) {
  Rig rig;
  rig.alloc(1, {1, 2});
  rig.map(1, 0, {1, 2});
  // The transfer carries A's records, as A's life of the slots would have had them.
  Record a0{1000, 0, 1, rig.monitor.ledger(0)[1].generation, chain_next(kChainAnchor, 1000, 0), 5};
  Record a1{1001, 1, 1, rig.monitor.ledger(0)[2].generation, chain_next(a0.chain, 1001, 1), 6};
  rig.free({1, 2}, 1);
  rig.alloc(2, {1, 2});
  rig.expect_tokens(2, 2);
  rig.run(2, 0, {1, 2});
  EXPECT_EQ(rig.names(), "none");
  rig.record(1) = a0;
  rig.record(2) = a1;
  rig.verify(2, 0, 2);
  EXPECT_EQ(rig.names(), "token+chain+kv_bytes+foreign_write");
}

TEST(Faults, TransferAnnouncedAfterAbort) {
  Rig rig;
  rig.alloc(1, {1});
  rig.free({1}, 1);
  rig.alloc(2, {1});
  rig.run(2, 0, {1});
  const Record late{7, 0, 9, 9, chain_next(kChainAnchor, 7, 0), 1};
  rig.monitor.on_load(0, {&late, 1}, std::vector<std::int64_t>{1}, 1);
  EXPECT_EQ(rig.names(), "foreign_write");
}

TEST(Faults, WriteIntoFreeSlotShowsWhenItIsHandedOut) {
  Rig rig;
  rig.alloc(1, {3});
  rig.run(1, 0, {3});
  const Record old = rig.record(3);
  rig.free({3}, 1);
  rig.record(3) = old;  // a late raw write
  rig.alloc(2, {3});
  EXPECT_EQ(rig.names(), "foreign_write");
  rig.run(2, 0, {3});
  rig.look(2, 1);
  EXPECT_EQ(rig.names(), "none");
}

TEST(Faults, LateForwardWritesAFreedSlot) {
  Rig rig;
  rig.alloc(1, {3, 4});
  rig.run(1, 0, {3});
  rig.free({3, 4}, 1);
  rig.map(1, 1, {4});
  rig.monitor.stamp_now(rig.forward(1, 1, {4}).batch);
  EXPECT_EQ(rig.names(), "foreign_write");
}

TEST(Faults, WindowFreedUnderItsReader) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  rig.free({1}, 1);
  rig.alloc(2, {1});
  rig.run(2, 0, {1});
  rig.verify(1, 0, 3);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "stale+double_owner");
  EXPECT_EQ(v[0].slot, 1);
  EXPECT_EQ(v[0].request, 1u);
  EXPECT_EQ(v[0].stored_owner, 2u);
}

TEST(Faults, StoreReadsTheNextOwner) {
  Rig rig;
  rig.alloc(1, {1});
  rig.run(1, 0, {1});
  rig.free({1}, 1);
  rig.alloc(2, {1});
  rig.run(2, 0, {1});
  Record host;
  rig.monitor.on_store(0, std::vector<std::int64_t>{1}, {&host, 1});
  rig.alloc(3, {2});
  rig.bytes.copy(1, 2);
  rig.monitor.on_load(0, {&host, 1}, std::vector<std::int64_t>{2}, 3);
  rig.map(3, 0, {2});
  rig.know_tokens = true;
  rig.expected[3 * Rig::kCells] = 1000;  // request 3 shares request 1's prefix
  rig.verify(3, 0, 1);
  EXPECT_EQ(rig.names(), "token+chain");
}

TEST(Faults, NoKvArrived) {
  Rig rig;
  rig.alloc(1, {1});
  rig.run(1, 0, {1});
  rig.free({1}, 1);
  rig.alloc(2, {1});
  rig.map(2, 0, {1});
  rig.verify(2, 0, 1);
  EXPECT_EQ(rig.names(), "stale");
}

TEST(Faults, StoreBeforeTheWrite) {
  Rig rig;
  rig.alloc(1, {1});
  Record host{1, 2, 3, 4, 5, 6};
  rig.monitor.on_store(0, std::vector<std::int64_t>{1}, {&host, 1});
  EXPECT_EQ(host, Record{});
  rig.run(1, 0, {1});
  rig.free({1}, 1);
  rig.alloc(2, {2});
  rig.monitor.on_load(0, {&host, 1}, std::vector<std::int64_t>{2}, 2);
  EXPECT_EQ(rig.monitor.state(0, 2), SlotState::empty);
  rig.map(2, 0, {2});
  rig.verify(2, 0, 1);
  EXPECT_EQ(rig.names(), "stale");
}

TEST(Faults, ARecordWithAPositionThatNoTokenHasIsNotLoadedInSilence) {
  for (const std::uint32_t position : {0x80000000u, 0xFFFFFFFFu}) {
    Rig rig;
    rig.alloc(1, {1});
    const Record host{1, position, 3, 4, 5, 6};
    rig.monitor.on_load(0, {&host, 1}, std::vector<std::int64_t>{1}, 1);
    const std::vector<Violation> found = rig.monitor.poll();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].reasons, Reason::position);
    EXPECT_EQ(found[0].request, 1u);
    EXPECT_EQ(found[0].stored_position, position);
    EXPECT_EQ(rig.monitor.state(0, 1), SlotState::empty);
  }
}

TEST(Faults, AttachedPrefixIsRecycled) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{1, 2, 3}, 1, 99);
  rig.monitor.on_release(1);
  rig.map(2, 0, {1, 2, 3});
  rig.monitor.on_attach(2, 2, 0, 3);
  rig.look(2, 3);
  EXPECT_EQ(rig.names(), "none");
  rig.free({2}, 99);
  rig.alloc(3, {2});
  rig.run(3, 0, {2});
  rig.verify(2, 0, 3);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "stale+double_owner");
  EXPECT_EQ(v[0].slot, 2);
}

TEST(Faults, AttachedSlotIsRecycledForTheSameText) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3}, {10, 11, 12});
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{1, 2, 3}, 1, 99);
  rig.monitor.on_release(1);
  rig.map(2, 0, {1, 2, 3});
  rig.monitor.on_attach(2, 2, 0, 3);
  rig.look(2, 3);
  EXPECT_EQ(rig.names(), "none");
  rig.free({2}, 99);
  // The same tokens at the same positions: position, token, chain and digest are all as they were.
  rig.alloc(3, {7, 2});
  rig.run(3, 0, {7, 2}, {10, 11});
  rig.verify(2, 0, 3);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "stale+double_owner");
  EXPECT_EQ(v[0].slot, 2);
}

// ---------------------------------------------------------------- handed out twice

TEST(Faults, FreeListHoldsASlotTwice) {
  Rig rig;
  rig.alloc(1, {3});
  rig.alloc(2, {3});
  EXPECT_EQ(rig.names(), "double_owner");
  rig.expect_tokens(1, 1);
  rig.run(1, 0, {3});
  rig.run(2, 0, {3});
  rig.verify(1, 0, 1);
  const auto v = rig.monitor.poll();
  Reason all = Reason::none;
  for (const auto& x : v) {
    EXPECT_EQ(x.slot, 3);
    all |= x.reasons;
  }
  EXPECT_TRUE(any(all & Reason::double_owner));
  EXPECT_TRUE(any(all & Reason::token));
}

TEST(Faults, PageSplitFreedTwice) {
  Rig rig;
  const Rig::Slots page = {8, 9, 10, 11, 12, 13, 14, 15};
  rig.alloc(1, page);
  rig.free({8, 9, 10, 11}, 1);
  rig.free({12, 13, 14, 15}, 1);
  rig.alloc(2, page);
  EXPECT_EQ(rig.names(), "none");
  rig.alloc(3, page);
  const auto v = rig.monitor.poll();
  EXPECT_EQ(v.size(), page.size());
  for (const auto& x : v) EXPECT_EQ(names_of(x.reasons), "double_owner");
}

TEST(Faults, FreedTwice) {
  Rig rig;
  rig.alloc(1, {3});
  rig.free({3}, 1);
  rig.free({3}, 1);
  EXPECT_EQ(rig.names(), "double_owner");
}

TEST(Faults, FreedByAStranger) {
  Rig rig;
  rig.alloc(1, {3});
  rig.free({3}, 2);
  EXPECT_EQ(rig.names(), "double_owner");
}

TEST(Faults, FreedSlotIsInsertedIntoTheCache) {
  Rig rig;
  rig.alloc(1, {1, 2});
  rig.run(1, 0, {1, 2});
  rig.free({1}, 1);
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{1, 2}, 1, 99);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].slot, 1);
  EXPECT_EQ(names_of(v[0].reasons), "double_owner");
}

// ---------------------------------------------------------------- tables and namespaces

TEST(Faults, FullLocationUsedInASmallPool) {
  Rig rig(4);
  rig.alloc(1, {1});
  rig.map(1, 0, {6});
  rig.verify(1, 0, 1);
  EXPECT_EQ(rig.names(), "out_of_range");
}

TEST(Faults, WriteBeyondThePool) {
  Rig rig(8);
  rig.alloc(1, {1});
  rig.monitor.stamp_now(rig.forward(1, 0, {9}).batch);
  EXPECT_EQ(rig.names(), "out_of_range");
}

TEST(Faults, TableCellPointsToAnotherRequest) {
  Rig rig;
  rig.alloc(1, {1, 2, 3, 4});
  rig.run(1, 0, {1, 2, 3, 4});
  rig.alloc(2, {5, 6, 7, 8});
  rig.run(2, 0, {5, 6, 7, 8});
  rig.map(1, 1, {6});  // same position, another request's token
  rig.verify(1, 0, 4);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u) << "the cell after it is innocent";
  EXPECT_EQ(v[0].slot, 6);
  EXPECT_EQ(names_of(v[0].reasons), "chain");
  EXPECT_EQ(v[0].expected_position, 1);
}

TEST(Faults, AWalkThatStartsBehindTheFaultBlamesNobodyElse) {
  for (std::int64_t begin = 0; begin <= 4; ++begin) {
    Rig rig;
    rig.alloc(1, {1, 2, 3, 4, 9, 10});
    rig.run(1, 0, {1, 2, 3, 4, 9, 10});
    rig.alloc(2, {5, 6, 7, 8});
    rig.run(2, 0, {5, 6, 7, 8});
    rig.map(1, 1, {6});
    rig.verify(1, begin, 6);
    const auto v = rig.monitor.poll();
    EXPECT_EQ(v.size(), begin <= 1 ? 1u : 0u) << begin;
    for (const auto& x : v) EXPECT_EQ(x.slot, 6);
  }
}

TEST(Faults, TableCellPointsToAnotherPosition) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  rig.map(1, 1, {3, 2});
  rig.verify(1, 0, 3);
  const auto v = rig.monitor.poll();
  EXPECT_EQ(v.size(), 2u);
  for (const auto& x : v) EXPECT_TRUE(any(x.reasons & Reason::position));
}

TEST(Faults, TableCellIsZero) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  rig.map(1, 1, {0});
  rig.verify(1, 0, 3);
  EXPECT_EQ(rig.names(), "stale");
}

TEST(Faults, MoveCopiesRowsOfPages) {
  Rig rig;
  rig.alloc(1, {4, 5, 6, 7});
  rig.run(1, 0, {4, 5, 6, 7});
  rig.alloc(1, {8});
  rig.bytes.copy(6, 8);  // slot 5 was meant
  rig.monitor.on_move(0, std::vector<std::int64_t>{5}, std::vector<std::int64_t>{8});
  rig.map(1, 1, {8});
  rig.look(1, 4);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "kv_bytes");
  EXPECT_EQ(v[0].slot, 8);
}

// ---------------------------------------------------------------- bytes

TEST(Faults, EveryByteOfEverySourceCounts) {
  Options o;
  o.source_digests = true;
  for (std::size_t source = 0; source < 4; ++source) {
    const std::int64_t bytes = source % 2 == 0 ? 24 : 12;
    for (std::int64_t i = 0; i < bytes; ++i) {
      Rig rig(16, o);
      rig.alloc(1, {1, 2, 3});
      rig.run(1, 0, {1, 2, 3});
      *rig.bytes.byte(2, source, i) ^= 0x10;
      rig.look(1, 3);
      const auto v = rig.monitor.poll();
      ASSERT_EQ(v.size(), 1u) << source << ' ' << i;
      EXPECT_EQ(names_of(v[0].reasons), "kv_bytes");
      EXPECT_EQ(v[0].slot, 2);
      EXPECT_EQ(v[0].layer, static_cast<int>(source / 2));
      EXPECT_EQ(v[0].segment, source % 2 == 0 ? "kv" : "idx");
    }
  }
}

TEST(Faults, SideBufferNotLoaded) {
  Rig rig;
  rig.alloc(1, {1});
  rig.run(1, 0, {1});
  Record host;
  rig.monitor.on_store(0, std::vector<std::int64_t>{1}, {&host, 1});
  rig.alloc(2, {2});
  rig.bytes.copy(1, 2);
  for (int i = 0; i < 12; ++i) *rig.bytes.byte(2, 1, i) = 0;
  rig.monitor.on_load(0, {&host, 1}, std::vector<std::int64_t>{2}, 2);
  rig.look(2, 0);
  EXPECT_EQ(rig.names(), "kv_bytes");
}

TEST(Faults, WrongHeadSent) {
  // A rank with one head receives head 0 where its record is about head 1.
  KvLayout two;
  two.page_size = 1;
  two.page_bytes = {32};
  two.segments = {{"k.head0", SegmentRole::key, 0, 0, 32, 16, 0, ""},
                  {"k.head1", SegmentRole::key, 0, 16, 32, 16, 1, ""}};
  PoolBytes sender(4, 1, two);
  sender.fill(1, 7, 0);
  const auto sources = sources_of(two, 1, sender.spec.buffers);
  Source head1 = sources[1];
  head1.key_offset = 0;  // the receiver's only source

  KvLayout one;
  one.page_size = 1;
  one.page_bytes = {16};
  one.segments = {{"k.head0", SegmentRole::key, 0, 0, 16, 16, 0, ""}};
  PoolBytes receiver(4, 1, one);
  Monitor monitor({});
  monitor.add_pool(receiver.spec);
  monitor.on_alloc(0, std::vector<std::int64_t>{1}, 1);
  const Record r{
      7, 0, 1, 1, chain_next(kChainAnchor, 7, 0), *kv_digest({&head1, 1}, 1, 1, Depth::all)};
  for (const int head : {0, 1}) {
    std::memcpy(receiver.byte(1, 0, 0), sender.byte(1, static_cast<std::size_t>(head), 0), 16);
    monitor.on_load(0, {&r, 1}, std::vector<std::int64_t>{1}, 1);
    monitor.begin_step({});
    const auto v = monitor.poll();
    EXPECT_EQ(v.size(), head == 0 ? 1u : 0u);
    for (const auto& x : v) EXPECT_EQ(names_of(x.reasons), "kv_bytes");
    monitor.on_free(0, std::vector<std::int64_t>{1}, 1);
    monitor.on_alloc(0, std::vector<std::int64_t>{1}, 1);
  }
}

// ---------------------------------------------------------------- positions, tokens, padding

TEST(Faults, DraftPositionOneTooHigh) {
  Rig rig;
  rig.alloc(1, {1, 2, 3, 4});
  rig.run(1, 0, {1, 2, 3});
  rig.map(1, 3, {4});
  auto f = rig.forward(1, 3, {4});
  f.positions[0] = 4;
  rig.write_bytes(f);
  rig.monitor.stamp_now(f.batch);
  rig.verify(1, 0, 4);
  EXPECT_TRUE(any(rig.found() & Reason::position));
}

TEST(Faults, WrongInputIsSeenAsItIsStamped) {
  for (const bool wrong_token : {true, false}) {
    Rig rig;
    rig.alloc(1, {1, 2, 3});
    rig.expect_tokens(1, 3);
    rig.map(1, 0, {1, 2, 3});
    auto f = rig.forward(1, 0, {1, 2, 3});
    if (wrong_token) f.ids[1] = 77;
    if (!wrong_token) f.positions[1] = 9;
    rig.write_bytes(f);
    rig.monitor.stamp_now(f.batch);
    const auto v = rig.monitor.poll();  // no check has run yet
    ASSERT_EQ(v.size(), 1u);
    EXPECT_EQ(v[0].slot, 2);
    EXPECT_EQ(v[0].moment, Moment::tail);
    EXPECT_EQ(names_of(v[0].reasons), wrong_token ? "token" : "position");
    EXPECT_EQ(v[0].expected_token, 1001);
    EXPECT_EQ(v[0].stored_token, wrong_token ? 77 : 1001);
    EXPECT_EQ(v[0].expected_position, 1);
    EXPECT_EQ(v[0].stored_position, wrong_token ? 1 : 9);
  }
}

TEST(Legal, DraftsAreNoKnownTokens) {
  Rig rig;
  rig.alloc(1, {1, 2, 3});
  rig.expect_tokens(1, 3);
  rig.map(1, 0, {1, 2, 3});
  auto f = rig.forward(1, 1, {2, 3}, {10, 11});
  f.valid = {1};  // tokens 1 and 2 are proposals
  f.batch.valid_lens = f.valid;
  rig.write_bytes(f);
  rig.monitor.stamp_now(f.batch);
  EXPECT_EQ(rig.names(), "none");
}

TEST(Faults, ChunkTailTokenInTheDraftPool) {
  Rig rig;
  PoolBytes draft(16, 1);
  draft.spec.kind = PoolKind::draft;
  draft.spec.token_offset = 1;
  const int d = rig.monitor.add_pool(draft.spec);
  rig.monitor.on_alloc(d, std::vector<std::int64_t>{1, 2}, 1);
  rig.map(1, 0, {1, 2});
  rig.expect_tokens(1, 4);
  // Slot of position p holds token p + 1; the chunk's tail is fed 77 instead of token 2.
  auto f = rig.forward(1, 0, {1, 2}, {1001, 77});
  f.batch.pools = {&d, 1};
  for (std::size_t i = 0; i < 2; ++i) {
    draft.fill(f.locations[i], static_cast<std::uint32_t>(f.ids[i]), f.positions[i]);
  }
  rig.monitor.stamp_now(f.batch);
  Batch tables = rig.batch();
  tables.pools = {&d, 1};
  rig.monitor.verify_now(Moment::head, 1, 1, 0, 2, tables);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "token+chain");
  EXPECT_EQ(v[0].expected_token, 1002);
  EXPECT_EQ(v[0].stored_token, 77);
  EXPECT_EQ(v[0].pool, d);
}

TEST(Faults, DraftPoolWasNotWritten) {
  Rig rig;
  PoolBytes draft(16, 1);
  draft.spec.kind = PoolKind::draft;
  const int d = rig.monitor.add_pool(draft.spec);
  const int target = 0;
  rig.alloc(1, {1});
  rig.monitor.on_alloc(d, std::vector<std::int64_t>{1}, 1);
  rig.map(1, 0, {1});
  auto f = rig.forward(1, 0, {1});
  f.batch.pools = {&target, 1};
  rig.write_bytes(f);
  rig.monitor.stamp_now(f.batch);
  rig.map(2, 0, {1});
  rig.monitor.on_attach(2, 2, 0, 1);
  const Rig::Forward hit = rig.forward(2, 1, {});
  rig.monitor.begin_step(hit.batch);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "stale");
  EXPECT_EQ(v[0].pool, d);
}

TEST(Faults, NullSlotWritten) {
  {
    Rig rig;
    rig.bytes.fill(0, 9, 9);
    rig.verify(1, 0, 0);
    EXPECT_EQ(rig.names(), "null_slot_dirty");
  }
  {
    Rig rig;
    rig.record(0).token = 1;
    rig.look(1, 0);
    EXPECT_EQ(rig.names(), "null_slot_dirty");
  }
  {
    Rig rig;  // padding of a captured graph
    auto f = rig.forward(1, 0, {});
    f.ids = {1};
    f.positions = {0};
    f.locations = {0};
    f.batch.input_ids = f.ids;
    f.batch.positions = f.positions;
    f.batch.out_cache_loc = f.locations;
    rig.monitor.end_step(f.batch);
    EXPECT_EQ(rig.names(), "null_slot_dirty");
  }
}

TEST(Faults, ThirtyTwoBitAddressWraps) {
  // The writer truncates slot * stride: the record meant for `far` lands on the guard.
  Options o;
  o.depth = Depth::none;
  const std::int64_t far = (std::int64_t{1} << 20) + 5, guard = 5;
  Rig rig(far + 1, o);
  rig.alloc(1, {guard});
  rig.expect_tokens(1, 1);
  rig.run(1, 0, {guard});
  rig.alloc(2, {far});
  rig.map(2, 0, {far});
  rig.record(guard) = {
      2000, 0, 2, rig.monitor.ledger(0)[far].generation, chain_next(kChainAnchor, 2000, 0), 0};
  rig.verify(1, 0, 1);
  EXPECT_EQ(rig.names(), "token+chain+foreign_write");
  rig.verify(2, 0, 1);
  EXPECT_EQ(rig.names(), "stale");
}

TEST(Faults, RanksDisagree) {
  Rig a, b;
  for (Rig* rig : {&a, &b}) {
    rig->alloc(1, {1, 2, 3});
    rig->run(1, 0, rig == &a ? Rig::Slots{1, 2} : Rig::Slots{3, 1});
  }
  const std::uint64_t da = a.monitor.request_digest(1, 2, a.batch());
  EXPECT_EQ(da, b.monitor.request_digest(1, 2, b.batch())) << "slot numbers do not matter";
  const std::uint64_t shorter = b.monitor.request_digest(1, 1, b.batch());
  a.monitor.on_rank_digests(1, 1, std::vector<std::uint64_t>{da, da});
  EXPECT_EQ(a.names(), "none");
  a.monitor.on_rank_digests(1, 1, std::vector<std::uint64_t>{da, shorter});
  EXPECT_EQ(a.names(), "digest_differs_across_ranks");
}

TEST(Faults, EveryFieldOfARecordIsProtected) {
  for (int field = 0; field < 6; ++field) {
    for (const bool by_sweep : {false, true}) {
      Rig rig;
      rig.alloc(1, {1, 2, 3});
      rig.run(1, 0, {1, 2, 3});
      Record& r = rig.record(2);
      if (field == 0) r.token ^= 4;
      if (field == 1) r.position ^= 4;
      if (field == 2) r.owner ^= 4;
      if (field == 3) r.generation ^= 4;
      if (field == 4) r.chain ^= 4;
      if (field == 5) r.kv_digest ^= 4;
      if (by_sweep) {
        rig.monitor.flush();
      } else {
        rig.verify(1, 0, 3);
      }
      const auto v = rig.monitor.poll();
      ASSERT_EQ(v.size(), 1u) << field << by_sweep;
      EXPECT_EQ(v[0].slot, 2);
      const Reason want[] = {Reason::chain,         Reason::position, Reason::foreign_write,
                             Reason::foreign_write, Reason::chain,    Reason::kv_bytes};
      EXPECT_TRUE(any(v[0].reasons & want[field]))
          << field << by_sweep << ' ' << names_of(v[0].reasons);
    }
  }
}

// ---------------------------------------------------------------- legal

TEST(Legal, FreeAndReallocate) {
  Rig rig;
  rig.alloc(1, {1});
  rig.run(1, 0, {1});
  rig.free({1}, 1);
  EXPECT_EQ(rig.monitor.state(0, 1), SlotState::free);
  rig.alloc(2, {1});
  EXPECT_EQ(rig.monitor.state(0, 1), SlotState::empty);
  rig.look(2, 0);
  rig.run(2, 0, {1});
  EXPECT_EQ(rig.monitor.state(0, 1), SlotState::written);
  rig.verify(2, 0, 1);
  rig.monitor.flush();
  EXPECT_EQ(rig.names(), "none");
}

TEST(Legal, WindowTombstones) {
  Rig rig;
  PoolBytes swa(8, 1);
  std::vector<std::int64_t> lut(33, 0);
  swa.spec.kind = PoolKind::swa;
  swa.spec.window = 2;
  swa.spec.full_to_swa = lut;
  const int s = rig.monitor.add_pool(swa.spec);
  rig.alloc(1, {11, 12, 13});
  rig.monitor.on_alloc(s, std::vector<std::int64_t>{1, 2, 3}, 1);
  lut[11] = 1, lut[12] = 2, lut[13] = 3;
  rig.map(1, 0, {11, 12, 13});
  auto f = rig.forward(1, 0, {11, 12, 13});
  rig.monitor.begin_step(f.batch);
  rig.write_bytes(f);
  for (std::size_t i = 0; i < 3; ++i) {
    swa.fill(lut[static_cast<std::size_t>(f.locations[i])], static_cast<std::uint32_t>(f.ids[i]),
             f.positions[i]);
  }
  rig.monitor.end_step(f.batch);
  EXPECT_EQ(rig.monitor.state(s, 3), SlotState::written);
  rig.monitor.on_free(s, std::vector<std::int64_t>{1}, 1);
  lut[11] = 0;
  rig.look(1, 3);
  rig.verify(1, 0, 3);
  rig.monitor.flush();
  EXPECT_EQ(rig.names(), "none");
  // and a fault in the window is still seen
  *swa.byte(3, 0, 0) ^= 1;
  rig.look(1, 3);
  EXPECT_EQ(rig.names(), "kv_bytes");
}

TEST(Legal, ScratchNullSlot) {
  PoolBytes bytes(8, 1);
  bytes.spec.null_slot = NullSlot::scratch;
  Monitor monitor({});
  monitor.add_pool(bytes.spec);
  bytes.fill(0, 1, 1);
  const std::vector<std::int64_t> one = {0};
  Batch b;
  b.input_ids = b.positions = b.out_cache_loc = one;
  monitor.begin_step(b);
  monitor.end_step(b);
  EXPECT_TRUE(monitor.poll().empty());
}

TEST(Legal, SharedPrefixAndDuplicatesFreedOnInsert) {
  Rig rig;
  const Owner cache = 99;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3}, {5, 6, 7});
  rig.alloc(2, {4, 5, 6, 7});
  rig.run(2, 0, {4, 5, 6, 7}, {5, 6, 7, 8});
  // 1 finishes: its slots go to the cache. 2 is inserted: its first three are duplicates.
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{1, 2, 3}, 1, cache);
  rig.monitor.on_release(1);
  rig.free({4, 5, 6}, 2);
  rig.map(2, 0, {1, 2, 3});
  rig.monitor.on_attach(2, 2, 0, 3);
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{7}, 2, cache);
  rig.look(2, 4);
  rig.alloc(3, {4, 5, 6});
  rig.run(3, 0, {4, 5, 6});
  rig.verify(2, 0, 4);
  rig.monitor.on_release(2);
  rig.monitor.flush();
  EXPECT_EQ(rig.names(), "none");
}

TEST(Legal, DraftTokensAreRewritten) {
  Rig rig;
  rig.alloc(1, {1, 2, 3, 4});
  rig.run(1, 0, {1});
  rig.run(1, 1, {2, 3, 4}, {10, 11, 12});  // drafts
  rig.run(1, 1, {2}, {20});                // the first was rejected, and only it is rewritten
  rig.look(1, 2);
  rig.verify(1, 0, 2);
  rig.monitor.flush();
  EXPECT_EQ(rig.names(), "none");
}

}  // namespace
}  // namespace serinus::canary
