// What an engine publishes, and that it never waits for those who read.
#include "serve/feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "rig.h"

namespace serinus::serve {
namespace {

using canary::Violation;
using canary::testing::Rig;
using std::chrono::milliseconds;

Violation at_slot(std::int64_t slot) {
  Violation v;
  v.slot = slot;
  return v;
}

std::vector<std::uint64_t> numbers(const Feed::Violations& v) {
  std::vector<std::uint64_t> out;
  for (const SeenViolationPtr& s : v.list) out.push_back(s->number);
  return out;
}

using Numbers = std::vector<std::uint64_t>;

TEST(Feed, ViolationsFromWhereOneLeftOff) {
  Feed feed("test");
  EXPECT_EQ(feed.violations(std::nullopt, 10).last, 0u);
  for (int i = 1; i <= 5; ++i) feed.add(at_slot(i), "kv", "note");
  EXPECT_EQ(numbers(feed.violations(std::nullopt, 2)), (Numbers{4, 5}));
  EXPECT_EQ(numbers(feed.violations(0, 2)), (Numbers{1, 2}));
  EXPECT_EQ(numbers(feed.violations(2, 100)), (Numbers{3, 4, 5}));
  EXPECT_EQ(numbers(feed.violations(5, 100)), Numbers{});
  EXPECT_EQ(numbers(feed.violations(~0ull, 100)), Numbers{});
  EXPECT_EQ(numbers(feed.violations(2, 0)), Numbers{});
  EXPECT_EQ(feed.violations(2, 100).list[0]->violation.slot, 3);
}

TEST(Feed, KeepsTheNewestAndSaysWhatIsGone) {
  Feed feed("test");
  const auto most = static_cast<std::uint64_t>(Feed::kMaxViolations);
  for (std::uint64_t i = 0; i < 3 * most; ++i) feed.add(at_slot(1), "kv", "");
  const auto all = feed.violations(0, 10 * Feed::kMaxViolations);
  EXPECT_EQ(all.list.size(), Feed::kMaxViolations);
  EXPECT_EQ(all.first_kept, 2 * most + 1);
  EXPECT_EQ(all.list.front()->number, all.first_kept);
  EXPECT_EQ(all.last, 3 * most);
}

TEST(Feed, ThePictureOfAPool) {
  Rig rig(10000);
  Feed feed("test");
  feed.set_cache_owner(9);
  rig.alloc(1, {4, 5, 6, 7, 8});
  rig.run(1, 0, {4, 5, 6, 7});
  rig.monitor.on_transfer(0, std::vector<std::int64_t>{4, 5}, 1, 9);
  feed.end(rig.monitor);
  const auto picture = feed.picture();
  EXPECT_EQ(picture->state, EngineState::ended);
  EXPECT_EQ(picture->metrics.stats.steps, 1u);
  ASSERT_EQ(picture->pools.size(), 1u);
  const PoolPicture& p = picture->pools[0];
  EXPECT_EQ(p.slots_per_cell, 3);  // 10000 slots, 4096 cells
  EXPECT_EQ(p.num_cells(), 3334);
  const auto sum = [](const auto& v) { return std::accumulate(v.begin(), v.end(), 0u); };
  EXPECT_EQ(sum(p.written), 4u);
  EXPECT_EQ(sum(p.empty), 1u);
  EXPECT_EQ(sum(p.cached), 2u);
  EXPECT_EQ(p.written[1], 2u);  // 3, 4, 5
  EXPECT_EQ(p.cached[1], 2u);
  EXPECT_EQ(p.written[2], 2u);  // 6, 7, 8
  EXPECT_EQ(p.empty[2], 1u);
  EXPECT_EQ(p.passes, 1u);
}

TEST(Feed, CellsAreWholePages) {
  canary::Options options;
  options.depth = canary::Depth::none;
  Rig rig(100000, options);  // pages of 4
  Feed feed("test");
  feed.end(rig.monitor);
  const PoolPicture& p = feed.picture()->pools[0];
  EXPECT_EQ(p.slots_per_cell, 28);
  EXPECT_LE(p.num_cells(), PoolPicture::kMaxCells);
}

TEST(Feed, MapsAreLookedAtOnlyWhereSomebodyWantsThem) {
  Rig rig;
  Feed feed("test");
  feed.look(rig.monitor);
  EXPECT_EQ(feed.picture()->pools.at(0).passes, 0u);
  feed.want_maps();
  for (int i = 0; i < 400 && feed.picture()->pools.at(0).passes == 0; ++i) {
    feed.look(rig.monitor);
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_GT(feed.picture()->pools.at(0).passes, 0u);
}

TEST(Feed, NobodyAnswersWhereTheEngineStands) {
  Feed feed("test");
  EXPECT_FALSE(feed.ask(0, 1, milliseconds(10)));
}

TEST(Feed, ASlotIsAnsweredByTheEngine) {
  Rig rig;
  rig.alloc(1, {4, 5});
  rig.run(1, 0, {4});
  Feed feed("test");
  std::atomic<bool> done = false;
  std::thread reader([&] {
    const auto written = feed.ask(0, 4, milliseconds(60000));
    const auto empty = feed.ask(0, 5, milliseconds(60000));
    const auto outside = feed.ask(0, 1 << 30, milliseconds(60000));
    const auto no_pool = feed.ask(7, 1, milliseconds(60000));
    done = true;
    ASSERT_TRUE(written && empty && outside && no_pool);
    EXPECT_EQ(written->state, canary::SlotState::written);
    ASSERT_TRUE(written->record && written->ledger);
    EXPECT_EQ(written->record->token, Rig::token_of(1, 0));
    EXPECT_EQ(written->ledger->owner, 1u);
    ASSERT_EQ(written->events.size(), 1u);
    EXPECT_EQ(written->events[0].kind, canary::LedgerEventKind::alloc);
    EXPECT_EQ(empty->state, canary::SlotState::empty);
    EXPECT_FALSE(outside->record);
    EXPECT_FALSE(no_pool->ledger);
  });
  while (!done) feed.look(rig.monitor);
  reader.join();
}

// Readers of everything at once, beside an engine that steps: for ThreadSanitizer, and for sums.
TEST(Feed, ManyReaders) {
  Rig rig;
  rig.alloc(1, {4, 5, 6, 7});
  rig.run(1, 0, {4, 5, 6, 7});
  Feed feed("test");
  feed.look(rig.monitor);
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> read = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      std::uint64_t last = 0;
      while (!done) {
        feed.want_maps();
        const auto picture = feed.picture();
        EXPECT_LE(picture->metrics.stats.steps, 301u);
        const auto v = feed.violations(last, 50);
        if (!v.list.empty()) {
          EXPECT_EQ(v.list.front()->number, last + 1);
          last = v.list.back()->number;
        }
        feed.ask(0, 5, milliseconds(1));
        ++read;
      }
    });
  }
  for (int i = 0; i < 300 || read < 6; ++i) {
    *rig.bytes.byte(5, 0, 3) ^= 1;
    if (i < 300) rig.look(1, 4);
    for (Violation& v : rig.monitor.poll()) feed.add(std::move(v), "kv", "");
    feed.look(rig.monitor);
  }
  done = true;
  for (std::thread& t : readers) t.join();
  feed.end(rig.monitor);
  EXPECT_EQ(feed.picture()->metrics.stats.steps, 301u);
}

}  // namespace
}  // namespace serinus::serve
