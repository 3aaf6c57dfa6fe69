// Long random histories: legal ones raise nothing, and with one fault in them nothing but the fault
// is named, within the stated number of steps.
#include <gtest/gtest.h>

#include "mini_engine.h"

namespace serinus::canary {
namespace {

using testing::MiniEngine;

std::string text(const std::vector<Violation>& violations) {
  std::string out;
  for (const Violation& v : violations) out += to_text(v, std::to_string(v.pool)) + "\n";
  return out;
}

TEST(Histories, LegalOnesRaiseNothing) {
  MiniEngine* last = nullptr;
  int loads = 0, preemptions = 0, evictions = 0, hits = 0, duplicates = 0, moves = 0;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    Options o;
    o.depth = seed % 4 == 3 ? Depth::none : seed % 4 == 2 ? Depth::partial : Depth::all;
    o.verify = seed % 3 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling;
    const std::int64_t budgets[] = {1, 12, 4096};
    o.records_per_step = budgets[seed / 2 % 3];
    o.threads = seed % 5 == 0 ? 3 : 1;
    o.source_digests = seed % 2 == 1;
    MiniEngine engine(seed, o, seed % 2 == 0 ? 160 : 90);
    for (int i = 0; i < 600; ++i) {
      engine.step();
      const auto v = engine.monitor.poll();
      ASSERT_TRUE(v.empty()) << "seed " << seed << " step " << i << "\n" << text(v);
    }
    engine.monitor.flush();
    ASSERT_EQ(text(engine.monitor.poll()), "");
    const Stats s = engine.monitor.stats();
    EXPECT_GT(s.records_written, 1000u);
    EXPECT_GT(s.sweeps, 0u);
    loads += engine.loads, preemptions += engine.preemptions, evictions += engine.evictions;
    hits += engine.hits, duplicates += engine.duplicates, moves += engine.moves;
    last = &engine;
  }
  ASSERT_NE(last, nullptr);
  // The histories did what they are here for.
  EXPECT_GT(loads, 100);
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(hits, 500);
  EXPECT_GT(duplicates, 500);
  EXPECT_GT(moves, 100);
}

// One fault at one written slot, while the history goes on. Whatever is reported names that slot;
// and if the slot lives on, it is reported within the bound.
TEST(Histories, OneFaultNamesOneSlot) {
  int seen = 0, freed = 0;
  for (std::uint32_t seed = 0; seed < 240; ++seed) {
    Options o;
    const std::int64_t budgets[] = {8, 40, 4096};
    o.records_per_step = budgets[seed % 3];
    o.source_digests = seed % 2 == 0;
    MiniEngine engine(1000 + seed, o);
    for (int i = 0; i < 120; ++i) engine.step();
    ASSERT_EQ(text(engine.monitor.poll()), "");
    engine.copies = false;

    const int pool = static_cast<int>(engine.pick(3));
    auto ledger = engine.monitor.ledger(pool);
    std::vector<std::int64_t> written;
    for (std::size_t s = 1; s < ledger.size(); ++s) {
      if (ledger[s].written != 0) written.push_back(static_cast<std::int64_t>(s));
    }
    ASSERT_FALSE(written.empty());
    const std::int64_t slot = written[static_cast<std::size_t>(engine.pick(std::ssize(written)))];
    const std::uint32_t life = ledger[static_cast<std::size_t>(slot)].generation;
    Record& r = engine.monitor.records(pool)[static_cast<std::size_t>(slot)];
    testing::PoolBytes& bytes = pool == 0 ? engine.full : pool == 1 ? engine.swa : engine.draft;
    const int fault = static_cast<int>(seed / 3 % 8);
    switch (fault) {
      case 0:
        r.token ^= 1;
        break;
      case 1:
        r.position ^= 1;
        break;
      case 2:
        r.owner ^= 1;
        break;
      case 3:
        r.generation ^= 1;
        break;
      case 4:
        r.chain ^= 1;
        break;
      case 5:
        r.kv_digest ^= 1;
        break;
      case 6:
        *bytes.byte(slot, 1, engine.pick(12)) ^= 1;
        break;
      default:
        r = Record{3, r.position, r.owner, r.generation - 1, 12345, 6};  // a stranger's
    }
    const std::int64_t bound = engine.monitor.stats().sweep_bound_steps;
    bool found = false, gone = false;
    for (std::int64_t i = 0; i < bound && !found && !gone; ++i) {
      engine.step();
      const auto v = engine.monitor.poll();
      for (const Violation& x : v) {
        found = true;
        EXPECT_TRUE(x.pool == pool && (x.slot == slot)) << "seed " << seed << "\n" << text(v);
      }
      gone = ledger[static_cast<std::size_t>(slot)].generation != life ||
             ledger[static_cast<std::size_t>(slot)].owner == 0;
    }
    EXPECT_TRUE(found || gone) << "seed " << seed << " fault " << fault << " bound " << bound;
    seen += found, freed += gone && !found;
    // and after it was reported, nothing else is ever said about anything else
    for (int i = 0; i < 40 && found && !gone; ++i) {
      engine.step();
      for (const Violation& x : engine.monitor.poll()) {
        EXPECT_TRUE(x.pool == pool && x.slot == slot) << text({x});
      }
    }
  }
  EXPECT_GT(seen, 150) << freed;
}

}  // namespace
}  // namespace serinus::canary
