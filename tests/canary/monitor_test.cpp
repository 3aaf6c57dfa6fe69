// The Monitor itself: options, modes, the ring, bounds against hostile tables, latency, threads.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include <serinus/error.h>
#include <serinus/log.h>

#include "mini_engine.h"

namespace serinus::canary {
namespace {

using testing::MiniEngine;
using testing::PoolBytes;
using testing::Rig;

// ---------------------------------------------------------------- modes

TEST(Modes, NoneDoesNothing) {
  Options o;
  o.mode = Mode::none;
  Rig rig(32, o);
  rig.alloc(1, {1});
  rig.alloc(2, {1});
  rig.run(1, 0, {1});
  *rig.bytes.byte(1, 0, 0) ^= 1;
  rig.look(1, 1);
  rig.monitor.flush();
  EXPECT_TRUE(rig.monitor.poll().empty());
  EXPECT_TRUE(rig.monitor.records(0).empty());
  EXPECT_EQ(rig.monitor.stats().steps, 0u);
}

TEST(Modes, LogSaysItOnce) {
  std::vector<std::string> lines;
  set_log_callback([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Rig rig;
  rig.alloc(1, {1, 2});
  rig.run(1, 0, {1, 2});
  *rig.bytes.byte(1, 0, 0) ^= 1;
  for (int i = 0; i < 5; ++i) rig.look(1, 2);
  set_log_callback({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("reasons=kv_bytes"), std::string::npos) << lines[0];
}

TEST(Modes, RaiseThrowsAtTheEndOfTheStep) {
  Options o;
  o.mode = Mode::raise;
  Rig rig(32, o);
  rig.alloc(1, {1, 2});
  rig.run(1, 0, {1, 2});
  *rig.bytes.byte(1, 0, 0) ^= 1;
  const auto f = rig.forward(1, 2, {});
  rig.monitor.begin_step(f.batch);
  try {
    rig.monitor.end_step(f.batch);
    FAIL();
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN3001");
    auto violations = rig.monitor.poll();
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_TRUE(any(violations[0].reasons & Reason::kv_bytes)) << e.what();
    // What is thrown (at the first sighting) and what a log says is one line, and it finds the page
    // of its reason.
    violations[0].count = 1;
    EXPECT_EQ(e.what(), to_text(violations[0], "kv"));
    const ErrorEntry* page = find_error("12:00:01 WARN " + to_text(violations[0], "kv"));
    ASSERT_NE(page, nullptr);
    EXPECT_EQ(page->id, "SRN3014");
  }
  rig.look(1, 2);  // known: no second throw
}

TEST(Modes, QuarantineListsWhatIsTainted) {
  Options o;
  o.mode = Mode::quarantine;
  Rig rig(32, o);
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  *rig.bytes.byte(3, 1, 5) ^= 1;
  rig.look(1, 3);
  const Monitor::Tainted t = rig.monitor.tainted();
  EXPECT_EQ(t.slots, (std::vector<std::pair<int, std::int64_t>>{{0, 3}}));
  EXPECT_EQ(t.requests, std::vector<Owner>{1});
  EXPECT_TRUE(rig.monitor.tainted().slots.empty());
}

// ---------------------------------------------------------------- the ring

TEST(Ring, OneFaultIsOneViolationWithACount) {
  Rig rig;
  rig.alloc(1, {1, 2});
  rig.run(1, 0, {1, 2});
  *rig.bytes.byte(1, 0, 0) ^= 1;
  for (int i = 0; i < 3; ++i) rig.look(1, 2);
  auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_GE(v[0].count, 6u);
  EXPECT_EQ(v[0].first_step, 1u);
  EXPECT_EQ(v[0].last_step, 3u);
  rig.look(1, 2);
  EXPECT_TRUE(rig.monitor.poll().empty());
  EXPECT_EQ(rig.monitor.stats().violations, 1u);
  EXPECT_GT(rig.monitor.stats().sightings, v[0].count);
  // A new reason at the same slot is handed out, once more, with all of them.
  rig.record(1).token ^= 1;
  rig.look(1, 2);
  v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "chain+kv_bytes");
  EXPECT_EQ(v[0].first_step, 1u);
  EXPECT_EQ(rig.monitor.stats().violations, 1u);
  // The slot's next life is another story.
  rig.free({1, 2}, 1);
  rig.alloc(2, {1, 2});
  rig.run(2, 0, {1, 2});
  *rig.bytes.byte(1, 0, 0) ^= 1;
  rig.look(2, 2);
  EXPECT_EQ(rig.monitor.poll().size(), 1u);
}

TEST(Ring, FullRingCountsWhatItDrops) {
  Options o;
  o.ring_capacity = 2;
  Rig rig(32, o);
  rig.alloc(1, {1, 2, 3, 4, 5});
  rig.run(1, 0, {1, 2, 3, 4, 5});
  for (std::int64_t s = 1; s <= 5; ++s) *rig.bytes.byte(s, 0, 0) ^= 1;
  rig.verify(1, 0, 5);
  EXPECT_EQ(rig.monitor.stats().dropped, 3u);
  EXPECT_EQ(rig.monitor.poll().size(), 2u);
  rig.verify(1, 0, 5);  // there is room again
  EXPECT_EQ(rig.monitor.poll().size(), 2u);
  EXPECT_EQ(rig.monitor.stats().violations, 4u);
}

// ---------------------------------------------------------------- rolling verification

// Slots that nobody reads: the sweep alone finds the fault, within the stated number of steps.
TEST(Latency, SweepStaysWithinItsBound) {
  for (const std::int64_t budget : {1, 2, 7, 16, 1000}) {
    for (std::int64_t victim = 1; victim <= 40; victim += 3) {
      Options o;
      o.records_per_step = budget;
      Rig rig(64, o);
      Rig::Slots slots(40);
      std::iota(slots.begin(), slots.end(), 1);
      rig.alloc(1, slots);
      rig.run(1, 0, slots);
      rig.monitor.on_transfer(0, slots, 1, 99);
      rig.monitor.on_release(1);
      for (std::int64_t i = 0; i < victim % 5; ++i) rig.monitor.end_step({});
      const std::int64_t bound = rig.monitor.stats().sweep_bound_steps;
      EXPECT_EQ(bound, (40 + std::max<std::int64_t>(budget / 2, 1) - 1) /
                               std::max<std::int64_t>(budget / 2, 1) +
                           1);
      *rig.bytes.byte(victim, 0, 3) ^= 1;
      std::int64_t steps = 0;
      while (rig.monitor.poll().empty() && steps <= bound) {
        rig.monitor.begin_step({});
        rig.monitor.end_step({});
        ++steps;
      }
      EXPECT_LE(steps, bound) << budget << ' ' << victim;
    }
  }
}

// A wrong table cell: the walk over the batch's cells finds it within 2 * cells / budget + 1
// forwards.
TEST(Latency, TableWalkStaysWithinItsBound) {
  for (const std::int64_t budget : {4, 16, 64}) {
    for (std::int64_t victim = 0; victim < 40; victim += 3) {
      Options o;
      o.records_per_step = budget;
      Rig rig(64, o);
      Rig::Slots slots(40), others = {50, 51, 52, 53};
      std::iota(slots.begin(), slots.end(), 1);
      rig.alloc(1, slots);
      rig.run(1, 0, slots);
      for (std::int64_t i = 0; i < victim % 4; ++i) rig.look(1, 40);
      rig.map(1, victim, {victim == 7 ? 9 : 8});
      const std::int64_t bound = (2 * 40 + budget - 1) / budget + 1;
      std::int64_t steps = 0;
      while (rig.monitor.poll().empty() && steps <= bound) {
        rig.look(1, 40);
        ++steps;
      }
      EXPECT_LE(steps, bound) << budget << ' ' << victim;
    }
  }
}

TEST(Latency, AttachedCellsAreVerifiedAtTheNextHead) {
  Options o;
  o.records_per_step = 1;
  Rig rig(64, o);
  Rig::Slots slots(40);
  std::iota(slots.begin(), slots.end(), 1);
  rig.alloc(1, slots);
  rig.run(1, 0, slots);
  *rig.bytes.byte(33, 0, 3) ^= 1;
  rig.monitor.on_transfer(0, slots, 1, 99);
  rig.map(2, 0, slots);
  rig.monitor.on_attach(2, 2, 0, 40);
  const auto f = rig.forward(2, 40, {});
  rig.monitor.begin_step(f.batch);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].slot, 33);
  EXPECT_EQ(v[0].moment, Moment::head);
}

TEST(Latency, AStepCostsNoMoreThanItsBudget) {
  Options o;
  o.records_per_step = 8;
  Rig rig(64, o);
  Rig::Slots slots(40);
  std::iota(slots.begin(), slots.end(), 1);
  rig.alloc(1, slots);
  rig.run(1, 0, slots);
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t before = rig.monitor.stats().records_verified;
    rig.look(1, 40);
    EXPECT_LE(rig.monitor.stats().records_verified - before, 8u);
  }
}

TEST(Latency, BytesHaveABudgetOfTheirOwn) {
  Options o;
  o.bytes_per_step = 8 * 72;  // a token is 72 bytes
  Rig rig(64, o);
  Rig::Slots slots(40);
  std::iota(slots.begin(), slots.end(), 1);
  rig.alloc(1, slots);
  rig.run(1, 0, slots);
  const std::uint64_t before = rig.monitor.stats().bytes_digested;
  rig.look(1, 40);
  const std::uint64_t bytes = rig.monitor.stats().bytes_digested - before;
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, 8u * 72);
}

TEST(Latency, TailSeesWhatTheForwardTrampled) {
  Options o;
  o.verify = VerifyPolicy::all;
  Rig rig(32, o);
  rig.alloc(1, {1, 2});
  rig.run(1, 0, {1, 2});
  const auto f = rig.forward(1, 2, {});
  rig.monitor.begin_step(f.batch);
  EXPECT_TRUE(rig.monitor.poll().empty());
  *rig.bytes.byte(2, 0, 0) ^= 1;
  rig.monitor.end_step(f.batch);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].moment, Moment::tail);
}

// ---------------------------------------------------------------- hostile input

std::int64_t hostile(std::mt19937_64& rng) {
  switch (rng() % 6) {
    case 0:
      return static_cast<std::int64_t>(rng());
    case 1:
      return std::numeric_limits<std::int64_t>::min();
    case 2:
      return std::numeric_limits<std::int64_t>::max();
    case 3:
      return -static_cast<std::int64_t>(rng() % 40);
    default:
      return static_cast<std::int64_t>(rng() % 70);
  }
}

TEST(Bounds, HostileTablesAreReportedAndNeverFollowed) {
  for (const Format format : {Format::serinus, Format::sglang}) {
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
      std::mt19937_64 rng(seed);
      Options o;
      o.format = format;
      o.verify = seed % 2 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling;
      o.ring_capacity = 16;
      Monitor monitor(o);
      PoolBytes full(32, 1), swa(16, 1), draft(32, 1);
      std::vector<std::int64_t> lut(32);
      for (auto& l : lut) l = hostile(rng);
      swa.spec.kind = PoolKind::swa;
      swa.spec.window = 3;
      swa.spec.full_to_swa = lut;
      draft.spec.kind = PoolKind::draft;
      draft.spec.token_offset = 1;
      for (PoolBytes* p : {&full, &swa, &draft}) monitor.add_pool(p->spec);
      std::vector<std::int32_t> table(4 * 16), tokens(4 * 16);
      for (auto& t : table) t = static_cast<std::int32_t>(hostile(rng));
      for (auto& t : tokens) t = static_cast<std::int32_t>(hostile(rng));
      for (int step = 0; step < 20; ++step) {
        std::vector<std::int64_t> rows, prefix, extend, ids, positions, locations, valid, slots;
        std::vector<Owner> owners;
        for (int i = 0; i < 4; ++i) {
          rows.push_back(hostile(rng));
          owners.push_back(static_cast<Owner>(rng() % 4));
          prefix.push_back(hostile(rng));
          // The flat arrays' own bookkeeping is the caller's in the sglang format.
          extend.push_back(format == Format::sglang ? 2 : hostile(rng));
          valid.push_back(hostile(rng));
        }
        for (int i = 0; i < 8; ++i) {
          ids.push_back(hostile(rng));
          positions.push_back(hostile(rng));
          locations.push_back(hostile(rng));
          slots.push_back(hostile(rng));
        }
        Batch b;
        b.req_to_token = TensorView(table.data(), DType::i32, {4, 16});
        b.expected_tokens = TensorView(tokens.data(), DType::i32, {4, 16});
        b.rows = rows;
        b.owners = owners;
        b.prefix_lens = prefix;
        b.extend_lens = extend;
        b.valid_lens = valid;
        b.input_ids = ids;
        b.positions = positions;
        b.out_cache_loc = locations;
        std::vector<Record> records(slots.size());
        const int pool = static_cast<int>(rng() % 3);
        monitor.on_alloc(pool, slots, 1 + static_cast<Owner>(rng() % 3));
        monitor.on_attach(1, hostile(rng), hostile(rng), hostile(rng));
        monitor.begin_step(b);
        monitor.on_store(pool, slots, records);
        monitor.on_load(pool, records, slots, 2);
        monitor.on_move(pool, slots, locations);
        monitor.end_step(b);
        monitor.verify_now(Moment::tail, 1, hostile(rng), hostile(rng), hostile(rng), b);
        monitor.request_digest(hostile(rng), hostile(rng), b);
        monitor.on_transfer(pool, slots, 1, 2);
        monitor.on_free(pool, slots);
        if (step % 5 == 0) monitor.poll();
      }
      monitor.flush();
      if (format == Format::serinus) {
        EXPECT_GT(monitor.stats().violations, 0u);
        EXPECT_GT(monitor.stats().dropped, 0u);
      }
    }
  }
}

TEST(Bounds, EveryOutsideCellIsNamed) {
  Rig rig(16);
  rig.alloc(1, {1, 2, 3, 4});
  rig.run(1, 0, {1, 2, 3, 4});
  const std::int32_t bad[] = {16, -1, std::numeric_limits<std::int32_t>::min()};
  for (int i = 0; i < 3; ++i) rig.table[Rig::kCells + static_cast<std::size_t>(i)] = bad[i];
  rig.verify(1, 0, 4);
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(names_of(v[i].reasons), "out_of_range");
    EXPECT_EQ(v[i].slot, bad[i]);
    EXPECT_EQ(v[i].expected_position, static_cast<std::int64_t>(i));
    EXPECT_EQ(v[i].row, 1);
  }
  rig.monitor.verify_now(Moment::head, 1, 99, 0, 4, rig.batch());
  EXPECT_EQ(rig.names(), "out_of_range");
  rig.verify(1, 4, Rig::kCells + 1);
  EXPECT_TRUE(any(rig.found() & Reason::out_of_range));
}

// ---------------------------------------------------------------- what is refused

template <class F>
std::string id_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.id();
  }
  return "nothing thrown";
}

TEST(Refused, Options) {
  for (int i = 0; i < 3; ++i) {
    Options o;
    (i == 0 ? o.records_per_step : i == 1 ? o.bytes_per_step : o.ring_capacity) = 0;
    EXPECT_EQ(id_of([&] { Monitor m(o); }), "SRN3003");
  }
  for (const std::int64_t kept :
       {std::int64_t{1} << 31, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::max()}) {
    for (int i = 0; i < 2; ++i) {
      Options o;
      (i == 0 ? o.ring_capacity : o.event_capacity) = kept;
      EXPECT_EQ(id_of([&] { Monitor m(o); }), "SRN3003") << kept;
    }
  }
}

TEST(Refused, Pools) {
  Monitor m({});
  const auto with = [&](auto change) {
    PoolBytes p(16, 2);
    change(p.spec);
    return id_of([&] { m.add_pool(p.spec); });
  };
  EXPECT_EQ(with([](PoolSpec& s) { s.num_slots = 0; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.num_slots = std::int64_t{1} << 31; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.num_slots = 17; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.num_layers = 0; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.buffers.pop_back(); }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.buffers[1].data = nullptr; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.layout.segments[0].buffer = 7; }), "SRN3002");
  EXPECT_EQ(with([](PoolSpec& s) { s.layout.page_size = 0; }), "SRN3002");
  // Segments over each other, and lengths whose sum no number holds.
  EXPECT_EQ(with([](PoolSpec& s) { s.layout.segments[1] = s.layout.segments[0]; }), "SRN1203");
  EXPECT_EQ(with([](PoolSpec& s) {
              for (KvSegment& seg : s.layout.segments) {
                seg.bytes = std::numeric_limits<std::int64_t>::max();
              }
            }),
            "SRN1203");
  EXPECT_EQ(with([](PoolSpec&) {}), "nothing thrown");
}

TEST(Refused, CallsThatCannotBeMeant) {
  Rig rig;
  EXPECT_EQ(id_of([&] { rig.monitor.on_alloc(1, {}, 1); }), "SRN3005");
  EXPECT_EQ(id_of([&] { rig.monitor.on_alloc(0, {}, 0); }), "SRN3007");
  EXPECT_EQ(id_of([&] {
              rig.monitor.on_move(0, std::vector<std::int64_t>{1}, std::vector<std::int64_t>{});
            }),
            "SRN3004");
  auto f = rig.forward(1, 0, {});
  f.batch.owners = {};
  EXPECT_EQ(id_of([&] { rig.monitor.begin_step(f.batch); }), "SRN3004");
  std::int64_t wide = 0;
  f = rig.forward(1, 0, {});
  f.batch.req_to_token = TensorView(&wide, DType::i64, {1, 1});
  EXPECT_EQ(id_of([&] { rig.monitor.begin_step(f.batch); }), "SRN3006");
  for (const std::int64_t size : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    for (int which = 0; which < 4; ++which) {
      f = rig.forward(1, 4, {});
      f.batch.expected_tokens = f.batch.req_to_token;
      TensorView& t = which < 2 ? f.batch.req_to_token : f.batch.expected_tokens;
      t.shape[static_cast<std::size_t>(which % 2)] = size;
      EXPECT_EQ(id_of([&] { rig.monitor.begin_step(f.batch); }), "SRN1013") << which;
    }
  }
}

// ---------------------------------------------------------------- threads

TEST(Threads, PollAndStatsFromAnotherThread) {
  Options o;
  o.threads = 2;
  MiniEngine engine(5, o);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> polls{0};
  std::thread reader([&] {
    while (!stop) {
      engine.monitor.poll();
      engine.monitor.tainted();
      polls += engine.monitor.stats().steps > 0;
    }
  });
  // On a busy machine the reader may need a while to get its turn.
  for (int i = 0; i < 200 || (polls == 0 && i < 1000000); ++i) {
    engine.step();
    if (i % 20 == 0) engine.monitor.records(0)[5].token ^= 1;
  }
  stop = true;
  reader.join();
  EXPECT_GT(polls.load(), 0u);
}

TEST(Threads, ResultsDoNotDependOnTheirNumber) {
  std::vector<std::string> said;
  for (const int threads : {1, 3}) {
    Options o;
    o.threads = threads;
    MiniEngine engine(7, o);
    for (int i = 0; i < 100; ++i) engine.step();
    for (std::int64_t s = 1; s < 100; s += 9) *engine.full.byte(s, 0, 0) ^= 1;
    engine.monitor.flush();
    std::string all;
    for (const Violation& v : engine.monitor.poll()) all += to_json(v, "kv") + "\n";
    said.push_back(all);
  }
  EXPECT_FALSE(said[0].empty());
  EXPECT_EQ(said[0], said[1]);
}

// Address space runs out where a 64 GB record buffer is asked for; the pool before it works on.
TEST(Monitor, APoolWithoutMemoryIsNoPool) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  // Sanitizers map terabytes for themselves, and end the program where memory ends.
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  if (!(statm >> pages) || pages > (std::uint64_t{1} << 20)) GTEST_SKIP() << "a sanitizer runs";
  for (const Format format : {Format::serinus, Format::sglang}) {
    Options o;
    o.format = format;
    o.depth = Depth::none;
    Monitor m(o);
    PoolSpec spec;
    spec.layout.page_size = 1;
    spec.num_slots = 4;
    ASSERT_EQ(m.add_pool(spec), 0);
    rlimit little = before;
    little.rlim_cur = rlim_t{8} << 30;
    ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
    spec.num_slots = std::numeric_limits<std::int32_t>::max();
    EXPECT_THROW(m.add_pool(spec), std::bad_alloc);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    EXPECT_THROW(m.on_alloc(1, std::vector<std::int64_t>{1}, 1), ValueError);
    spec.num_slots = 4;
    EXPECT_EQ(m.add_pool(spec), 1);
    m.on_alloc(1, std::vector<std::int64_t>{1}, 1);
    EXPECT_EQ(m.state(1, 1), SlotState::empty);
  }
}

// ---------------------------------------------------------------- the sglang format

KvLayout aligned_layout() {
  KvLayout layout;
  layout.name = "aligned";
  layout.page_size = 4;
  layout.page_bytes = {4 * 48};
  layout.segments = {{"a", SegmentRole::latent, 0, 0, 48, 32, -1, ""},
                     {"b", SegmentRole::rope, 0, 32, 48, 16, -1, ""}};
  return layout;
}

struct SglangRig : Rig {
  explicit SglangRig(Options o = options()) : Rig(4, {}), other(16, 2, aligned_layout()) {
    monitor = Monitor(o);
    bytes.spec = other.spec;
    monitor.add_pool(other.spec);
  }
  static Options options() {
    Options o;
    o.format = Format::sglang;
    o.sweep_interval = 2;
    return o;
  }
  PoolBytes other;
};

TEST(SglangFormat, LegalStepsAndEveryFaultItKnows) {
  const auto fresh = [] {
    auto rig = std::make_unique<SglangRig>();
    rig->alloc(1, {1, 2, 3});
    rig->run(1, 0, {1, 2});
    rig->run(1, 2, {3});
    EXPECT_EQ(rig->names(), "none");
    return rig;
  };
  {
    auto rig = fresh();
    rig->look(1, 3);
    EXPECT_EQ(rig->names(), "none");
    EXPECT_EQ(rig->monitor.stats().records_written, 3u);
  }
  {
    auto rig = fresh();  // the last byte of the last layer
    *rig->bytes.byte(2, 3, 15) ^= 1;
    rig->look(1, 3);
    const auto v = rig->monitor.poll();
    ASSERT_EQ(v.size(), 1u);
    EXPECT_EQ(v[0].slot, 2);
    EXPECT_EQ(v[0].format, Format::sglang);
    EXPECT_EQ(v[0].moment, Moment::tail);
    EXPECT_EQ(names_of(v[0].reasons), "kv_bytes");
    // What the format's own report leaves out.
    EXPECT_EQ(v[0].request, 1u);
    EXPECT_EQ(v[0].row, 1);
    EXPECT_EQ(v[0].expected_position, 1);
    EXPECT_EQ(v[0].prev_slot, 1);
  }
  {
    auto rig = fresh();
    rig->record(2).token ^= 1;
    rig->look(1, 3);
    const auto v = rig->monitor.poll();
    ASSERT_EQ(v.size(), 1u);
    EXPECT_EQ(v[0].slot, 3) << "this format sees it at the successor";
    EXPECT_EQ(names_of(v[0].reasons), "chain");
  }
  {
    auto rig = fresh();
    rig->expect_tokens(1, 3);
    rig->record(3).token ^= 1;
    rig->look(1, 3);
    EXPECT_EQ(rig->names(), "token");
  }
  {
    auto rig = fresh();
    rig->map(1, 1, {3});
    rig->verify(1, 0, 3);
    EXPECT_EQ(rig->names(), "position+chain");
  }
  {
    auto rig = fresh();
    rig->map(1, 1, {77});
    rig->look(1, 3);
    EXPECT_EQ(rig->names(), "none");
    EXPECT_GT(rig->monitor.stats().out_of_range, 0u);
  }
}

TEST(SglangFormat, SweepWalksTheTree) {
  SglangRig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  rig.monitor.set_sweep_source(
      0, [](std::vector<SweepEntry>& out) { out = {{1, 0, -1}, {2, 1, 1}, {3, 2, 2}}; });
  *rig.bytes.byte(2, 0, 0) ^= 1;
  for (int i = 0; i < 2; ++i) {
    rig.monitor.begin_step({});
    rig.monitor.end_step({});
  }
  const auto v = rig.monitor.poll();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].moment, Moment::sweep);
  EXPECT_EQ(v[0].slot, 2);
  EXPECT_GT(rig.monitor.stats().sweeps, 0u);
}

// The memory of a pool that is gone may be gone, too: its table as well as its bytes.
TEST(SglangFormat, ADigestIsOfThePoolsThatAreThere) {
  SglangRig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  const std::uint64_t alone = rig.monitor.request_digest(1, 3, rig.batch());
  auto table = std::make_unique<std::vector<std::int64_t>>(32, 5);
  PoolSpec swa = rig.bytes.spec;
  swa.kind = PoolKind::swa;
  swa.window = 4;
  swa.full_to_swa = *table;
  const int second = rig.monitor.add_pool(swa);
  EXPECT_NE(rig.monitor.request_digest(1, 3, rig.batch()), alone);
  rig.monitor.detach_pool(second);
  table.reset();
  EXPECT_EQ(rig.monitor.request_digest(1, 3, rig.batch()), alone);
}

TEST(SglangFormat, RecordsTravel) {
  SglangRig rig;
  rig.alloc(1, {1, 2, 3});
  rig.run(1, 0, {1, 2, 3});
  std::vector<Record> host(2);
  rig.monitor.on_store(0, std::vector<std::int64_t>{1, 2}, host);
  rig.alloc(2, {5, 6, 7});
  rig.bytes.copy(1, 5);
  rig.bytes.copy(2, 6);
  rig.monitor.on_load(0, host, std::vector<std::int64_t>{5, 6}, 2);
  rig.bytes.copy(6, 7);
  rig.monitor.on_move(0, std::vector<std::int64_t>{6}, std::vector<std::int64_t>{7});
  rig.map(2, 0, {5, 7});
  rig.look(2, 2);
  EXPECT_EQ(rig.names(), "none");
}

// ---------------------------------------------------------------- evidence

TEST(Events, AViolationCarriesTheLastOnesOfItsSlot) {
  Rig rig;
  rig.alloc(1, {5, 6});
  rig.run(1, 0, {5, 6});
  rig.monitor.on_transfer(rig.pool, Rig::Slots{5}, 1, 9);
  rig.free({5}, 9);
  rig.alloc(2, {5});
  rig.run(2, 0, {5});
  *rig.bytes.byte(5, 0, 3) ^= 1;
  rig.monitor.flush();
  const std::vector<Violation> found = rig.monitor.poll();
  ASSERT_EQ(found.size(), 1u);
  const std::vector<LedgerEvent> want = {{0, LedgerEventKind::alloc, 1},
                                         {1, LedgerEventKind::transfer, 1, 9},
                                         {1, LedgerEventKind::free, 9},
                                         {1, LedgerEventKind::alloc, 2}};
  EXPECT_EQ(found[0].events, want);
  EXPECT_NE(to_text(found[0], "kv").find(" events=alloc:1@0,transfer:1>9@1,free:9@1,alloc:2@1"),
            std::string::npos);
  // A free too many is its own evidence.
  rig.free({6}, 1);
  rig.free({6}, 1);
  const std::vector<Violation> twice = rig.monitor.poll();
  ASSERT_EQ(twice.size(), 1u);
  ASSERT_EQ(twice[0].events.size(), 3u);
  EXPECT_EQ(twice[0].events[2].kind, LedgerEventKind::free);
}

TEST(Events, TheRingIsBoundedAndNeverMixesSlots) {
  Options options;
  options.event_capacity = 7;
  Rig rig(32, options);
  std::mt19937 rng(5);
  std::deque<std::pair<std::int64_t, LedgerEvent>> last;  // the model: the last 7 events
  for (int i = 0; i < 500; ++i) {
    const std::int64_t slot = rng() % 6 + 1;
    const auto owner = static_cast<Owner>(i + 1);
    rig.alloc(owner, {slot});
    rig.free({slot}, owner);
    last.push_back({slot, {0, LedgerEventKind::alloc, owner}});
    last.push_back({slot, {0, LedgerEventKind::free, owner}});
    while (last.size() > 7) last.pop_front();
    for (std::int64_t s = -1; s < 40; ++s) {
      std::vector<LedgerEvent> want;
      for (const auto& [of, e] : last) {
        if (of == s) want.push_back(e);
      }
      ASSERT_EQ(rig.monitor.events(rig.pool, s, 99), want) << "slot " << s << " after " << i;
    }
  }
  options.event_capacity = 0;
  Rig none(32, options);
  none.alloc(1, {3});
  EXPECT_TRUE(none.monitor.events(none.pool, 3).empty());
  EXPECT_THROW(none.monitor.events(1, 3), ValueError);
}

// ---------------------------------------------------------------- bounded memory

// A sanitizer keeps what was freed, to see whether it is used again.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(Bounds, TenMillionViolations) {
  const auto resident_kb = [] {
    std::ifstream statm("/proc/self/statm");
    std::int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * 4;
  };
  Rig rig(4);
  // Slots that do not exist: every call is as many distinct faults, each of another request.
  std::vector<std::int64_t> slots(1000);
  std::iota(slots.begin(), slots.end(), std::int64_t{1} << 40);
  const auto make = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      for (std::int64_t& s : slots) s += 1000;
      rig.alloc(static_cast<Owner>(slots[0]), slots);
    }
  };
  std::uint64_t polled = 0;
  const auto poll = [&] { polled += rig.monitor.poll().size(); };
  for (int i = 0; i < 100; ++i) {  // fills all that is kept, also what is remembered of the polled
    make(1);
    poll();
  }
  const std::int64_t before = resident_kb();
  for (int i = 0; i < 99; ++i) {
    make(100);
    poll();
  }
  if (!kSanitized) {
    EXPECT_LT(resident_kb() - before, 8 << 10);
  }
  const Stats s = rig.monitor.stats();
  EXPECT_EQ(s.sightings, 10'000'000u);
  EXPECT_EQ(s.violations, polled);
  EXPECT_EQ(s.dropped, s.sightings - s.violations);  // none silently
  EXPECT_EQ(polled, 100u * 1000 + 99 * 1024);
}

TEST(Bounds, QuarantineSaysWhenItsListsAreNotWhole) {
  Options options;
  options.mode = Mode::quarantine;
  options.ring_capacity = 2;
  Rig rig(4, options);
  std::vector<std::int64_t> slots(128);
  std::iota(slots.begin(), slots.end(), 1000);
  rig.alloc(1, slots);  // most of them find the ring full, and are on the list all the same
  Monitor::Tainted t = rig.monitor.tainted();
  EXPECT_TRUE(t.complete);
  EXPECT_EQ(t.slots.size(), 128u);
  EXPECT_EQ(t.requests, std::vector<Owner>{1});
  slots.push_back(5000);
  rig.alloc(1, slots);
  t = rig.monitor.tainted();
  EXPECT_FALSE(t.complete);
  EXPECT_EQ(t.slots.size(), 128u);
  EXPECT_TRUE(rig.monitor.tainted().complete);
}

}  // namespace
}  // namespace serinus::canary
