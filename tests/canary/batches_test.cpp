// Pools of every named layout, batches of every kind, several steps in flight, pools that go.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include <serinus/canary_sink.h>
#include <serinus/error.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using testing::PoolBytes;
using testing::Rig;

Options all_of(Format format) {
  Options o;
  o.format = format;
  o.verify = VerifyPolicy::all;
  o.source_digests = format == Format::serinus;
  return o;
}

/// A rig over another layout.
struct LayoutRig : Rig {
  LayoutRig(const KvLayout& layout, int layers, Options o) : Rig(4, o) {
    PoolBytes other(3 * layout.page_size, layers, layout);
    Monitor m(o);
    pool = m.add_pool(other.spec);
    monitor = std::move(m);
    bytes = std::move(other);
  }
};

// ---------------------------------------------------------------- layouts

TEST(Layouts, EveryNamedOneIsWatchedToItsLastByte) {
  for (const std::string_view name : kv_layout_names()) {
    KvLayoutOptions options;
    if (name.starts_with("mha_")) options = {.page_size = 4, .heads = 2, .head_size = 8};
    const KvLayout layout = kv_layout(name, options);
    LayoutRig rig(layout, 3, all_of(Format::serinus));
    const std::int64_t page = layout.page_size;
    const Rig::Slots slots = {page - 1, 2 * page + 1, page};  // both ends of pages, in no order
    rig.alloc(1, slots);
    rig.run(1, 0, slots);
    rig.look(1, 3);
    ASSERT_TRUE(rig.monitor.poll().empty()) << name;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      for (std::size_t s = 0; s < layout.segments.size(); ++s) {
        const KvSegment& segment = layout.segments[s];
        std::uint8_t* const last =
            rig.bytes.byte(slots[1], layer * layout.segments.size() + s, segment.bytes - 1);
        *last ^= 1;
        rig.look(1, 3);
        const std::vector<Violation> found = rig.monitor.poll();
        ASSERT_EQ(found.size(), 1u) << name << " " << segment.name;
        EXPECT_EQ(found[0].reasons, Reason::kv_bytes);
        EXPECT_EQ(found[0].slot, slots[1]);
        EXPECT_EQ(found[0].layer, static_cast<int>(layer));
        EXPECT_EQ(found[0].segment, segment.name);
        *last ^= 1;
        // A new life, so that the next fault is another.
        rig.free(slots, 1);
        rig.alloc(1, slots);
        rig.run(1, 0, slots);
        ASSERT_TRUE(rig.monitor.poll().empty());
      }
    }
  }
}

TEST(Layouts, PagesInterleavedOverLayersAndPaddingIsNobodys) {
  // One allocation: page p of layer l lies at (p * 2 + l) * page bytes. dsv4_584 pads its pages.
  const KvLayout layout = kv_layout("dsv4_584", {.page_size = 4});
  const std::int64_t page = layout.page_bytes[0];
  std::vector<std::uint8_t> memory(static_cast<std::size_t>(3 * 2 * page));
  PoolSpec spec;
  spec.layout = layout;
  spec.num_layers = 2;
  spec.num_slots = 12;
  for (int l = 0; l < 2; ++l) {
    spec.buffers.push_back(
        {memory.data() + l * page, static_cast<std::int64_t>(memory.size()) - l * page, 2 * page});
  }
  Rig rig(4, all_of(Format::serinus));
  Monitor m(all_of(Format::serinus));
  m.add_pool(spec);
  rig.monitor = std::move(m);
  rig.alloc(1, {5, 6});
  const Rig::Forward f = rig.forward(1, 0, {5, 6});
  rig.map(1, 0, {5, 6});
  rig.monitor.begin_step(f.batch);
  rig.monitor.end_step(f.batch);
  std::size_t seen = 0;
  for (std::uint8_t& byte : memory) {
    byte ^= 1;
    rig.monitor.verify_now(Moment::tail, 1, 1, 0, 2, rig.batch());
    const bool is_slot = !rig.monitor.poll().empty();
    byte ^= 1;
    if (!is_slot) continue;
    ++seen;
    rig.free({5, 6}, 1);
    rig.alloc(1, {5, 6});
    rig.monitor.begin_step(f.batch);
    rig.monitor.end_step(f.batch);
  }
  // Both slots in both layers; the null slot's life does not end, so it is said once.
  EXPECT_EQ(seen, 2u * 2 * 583 + 1);
}

// ---------------------------------------------------------------- batches

/// A forward of several requests at once.
struct Mixed : Rig::Forward {
  Rig& rig;
  explicit Mixed(Rig& r) : rig(r) {}

  void add(Owner owner, std::int64_t first, const Rig::Slots& slots) {
    Forward::add(owner, first, slots);
    rig.map(owner, first, slots);
  }
  Batch batch() const { return with(rig.batch()); }
  void write() const { rig.write_bytes(*this); }
};

class Formats : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Both, Formats, ::testing::Values(Format::serinus, Format::sglang),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Formats, ExtendMixedAndDecode) {
  Rig rig(64, all_of(GetParam()));
  for (Owner o = 1; o <= 3; ++o) rig.expect_tokens(o, 20);
  const auto run = [&](const Mixed& m) {
    rig.monitor.begin_step(m.batch());
    m.write();
    rig.monitor.end_step(m.batch());
  };
  rig.alloc(1, {10, 11, 12, 13, 14, 15});
  rig.alloc(2, {20, 21, 22});
  rig.alloc(3, {30, 31});
  Mixed extend(rig);
  extend.add(1, 0, {10, 11, 12});
  extend.add(2, 0, {20, 21});
  run(extend);
  Mixed mixed(rig);  // a chunk, a decode, a new request
  mixed.add(1, 3, {13, 14});
  mixed.add(2, 2, {22});
  mixed.add(3, 0, {30});
  run(mixed);
  Mixed decode(rig);
  decode.add(1, 5, {15});
  decode.add(3, 1, {31});
  run(decode);
  Mixed idle(rig);
  run(idle);
  EXPECT_EQ(rig.names(), "none");
  EXPECT_EQ(rig.monitor.stats().records_written, 5u + 4 + 2);
  rig.table[1 * Rig::kCells + 2] = 22;  // and a fault among them is one
  rig.look(1, 6);
  const auto found = rig.monitor.poll();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].request, 1u);
}

TEST_P(Formats, TargetVerifyRejectsAndWritesOver) {
  Rig rig(64, all_of(GetParam()));
  rig.alloc(1, {3, 4, 5, 6, 7, 8});
  rig.run(1, 0, {3, 4});
  rig.run(1, 2, {5, 6, 7}, {900, 901, 902});  // three drafts
  rig.run(1, 3, {6, 7, 8}, {910, 911, 912});  // the first was accepted; the others are written over
  rig.run(1, 6, {});
  EXPECT_EQ(rig.names(), "none");
  EXPECT_EQ(rig.record(6).position, GetParam() == Format::serinus ? 3u : 0u);
}

TEST_P(Formats, TreesOfDrafts) {
  Rig rig(64, all_of(GetParam()));
  rig.alloc(1, {3, 4, 5});
  rig.run(1, 0, {3, 4, 5});
  rig.alloc(1, {10, 11, 12, 13, 14});
  // 5 - 10 - 12
  //   - 11 - 13 - 14
  Mixed tree(rig);
  tree.add(1, 3, {10, 11, 12, 13, 14});
  tree.parents = {-1, -1, 0, 1, 3};
  tree.positions = {3, 3, 4, 4, 5};
  tree.ids = {700, 701, 702, 703, 704};
  rig.monitor.begin_step(tree.batch());
  tree.write();
  rig.monitor.end_step(tree.batch());
  EXPECT_EQ(rig.names(), "none");
  // The path 11, 13, 14 is accepted.
  rig.map(1, 3, {11, 13, 14});
  rig.free({10, 12}, 1);
  rig.look(1, 6);
  EXPECT_EQ(rig.names(), "none");
  // A dense prefix, as if the drafts had been a line, is another path.
  rig.map(1, 3, {11, 12, 13});
  rig.look(1, 6);
  EXPECT_NE(rig.names(), "none");
}

TEST(Trees, TheChainIsThatOfTheAcceptedPath) {
  Rig tree(64, all_of(Format::serinus)), line(64, all_of(Format::serinus));
  for (Rig* r : {&tree, &line}) {
    r->alloc(1, {3, 4, 10, 11, 12});
    r->run(1, 0, {3, 4});
  }
  Mixed m(tree);
  m.add(1, 2, {10, 11, 12});
  m.parents = {-1, -1, 1};
  m.positions = {2, 2, 3};
  m.ids = {700, 701, 702};
  tree.monitor.begin_step(m.batch());
  tree.monitor.end_step(m.batch());
  line.run(1, 2, {11, 12}, {701, 702});
  EXPECT_EQ(tree.record(11).chain, line.record(11).chain);
  EXPECT_EQ(tree.record(12).chain, line.record(12).chain);
  EXPECT_NE(tree.record(10).chain, line.record(11).chain);
  EXPECT_EQ(tree.monitor.ledger(0)[12].prev, 11);
}

TEST_P(Formats, ParentsMayBeAnything) {
  Rig rig(64, all_of(GetParam()));
  rig.alloc(1, {3, 4, 5, 6});
  Mixed m(rig);
  m.add(1, 0, {3, 4, 5, 6});
  for (const std::int64_t wild :
       {std::int64_t{-2}, std::int64_t{2}, std::int64_t{99}, std::int64_t{INT64_MIN}}) {
    m.parents = {-1, 0, wild, 2};
    rig.monitor.begin_step(m.batch());
    rig.monitor.end_step(m.batch());
    const std::string names = rig.names();
    if (GetParam() == Format::serinus) {
      EXPECT_NE(names.find("out_of_range"), std::string::npos) << wild;
    }
  }
  m.parents = {-1};
  EXPECT_THROW(rig.monitor.begin_step(m.batch()), ValueError);
}

TEST_P(Formats, SeveralStepsInFlight) {
  Rig rig(64, all_of(GetParam()));
  rig.alloc(1, {3, 4, 5});
  rig.alloc(2, {10, 11, 12});
  // The second forward begins before the first one ends; nothing is polled in between.
  for (int round = 0; round < 2; ++round) {
    Mixed a(rig), b(rig);
    a.add(1, round == 0 ? 0 : 2, round == 0 ? Rig::Slots{3, 4} : Rig::Slots{5});
    b.add(2, round == 0 ? 0 : 2, round == 0 ? Rig::Slots{10, 11} : Rig::Slots{12});
    rig.monitor.begin_step(a.batch());
    rig.monitor.begin_step(b.batch());
    a.write();
    rig.monitor.end_step(a.batch());
    b.write();
    rig.monitor.end_step(b.batch());
  }
  EXPECT_EQ(rig.names(), "none");
  EXPECT_EQ(rig.monitor.stats().records_written, 6u);
  *rig.bytes.byte(11, 0, 0) ^= 1;
  rig.record(4).chain ^= 1;
  for (int i = 0; i < 3; ++i) rig.look(1, 3);  // seen, not polled
  for (int i = 0; i < 3; ++i) rig.look(2, 3);
  EXPECT_NE(rig.names(), "none");
}

// ---------------------------------------------------------------- pools that go

TEST(Detach, NothingOfThePoolIsReadAgain) {
  for (const Format format : {Format::serinus, Format::sglang}) {
    Rig rig(32, all_of(format));
    auto other = std::make_unique<PoolBytes>(32, 1);
    other->spec.name = "other";
    const int second = rig.monitor.add_pool(other->spec);
    rig.alloc(1, {3, 4});
    rig.monitor.on_alloc(second, Rig::Slots{3, 4}, 1);
    rig.run(1, 0, {3, 4});
    rig.monitor.poll();
    rig.monitor.on_attach(1, 1, 0, 2);  // due in both pools
    rig.monitor.detach_pool(second);
    other.reset();  // ASan would see a read
    rig.run(1, 2, {});
    rig.monitor.flush();
    EXPECT_EQ(rig.names(), "none");
    EXPECT_FALSE(rig.monitor.is_attached(second));
    EXPECT_TRUE(rig.monitor.is_attached(0));
    EXPECT_THROW(rig.monitor.on_alloc(second, Rig::Slots{3}, 1), ValueError);
    Batch named = rig.batch();
    const std::vector<int> pools = {0, second};
    named.pools = pools;
    EXPECT_THROW(rig.monitor.begin_step(named), ValueError);
    EXPECT_TRUE(rig.monitor.health().empty());
  }
}

TEST(Detach, MemoryMayGoBeforeTheMonitor) {
  auto rig = std::make_unique<Rig>();
  rig->alloc(1, {3});
  rig->run(1, 0, {3});
  const Monitor monitor = std::move(rig->monitor);
  rig.reset();
}

// ---------------------------------------------------------------- threads

TEST(Threads, EveryCallThatMayComeFromAnyThread) {
  Options o;
  o.mode = Mode::quarantine;
  o.ring_capacity = 16;
  Rig rig(32, o);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> polled{0};
  std::vector<std::thread> others;
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&] {
      while (!stop) {
        polled += rig.monitor.poll().size();
        rig.monitor.tainted();
        rig.monitor.stats();
        rig.monitor.pool_stats();
        rig.monitor.health();
        rig.monitor.events(0, 3);
        rig.monitor.pool_events(0);
        rig.monitor.log_to(nullptr);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    rig.alloc(1, {3, 4, 5});
    rig.run(1, 0, {3, 4, 5});
    *rig.bytes.byte(4, 0, 0) ^= 1;
    rig.look(1, 3);
    rig.monitor.flush();
    rig.free({3, 4, 5}, 1);
  }
  stop = true;
  for (std::thread& t : others) t.join();
  polled += rig.monitor.poll().size();
  EXPECT_EQ(polled + rig.monitor.stats().dropped,
            rig.monitor.stats().violations + rig.monitor.stats().dropped);
  EXPECT_GT(polled, 0u);
}

}  // namespace
}  // namespace serinus::canary
