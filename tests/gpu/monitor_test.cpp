// The Monitor over pools on a GPU against the Monitor over the same pools on the CPU: what is
// announced, written and spoilt happens to both, and both say the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>
#include <serinus/canary_dump.h>
#include <serinus/canary_inject.h>
#include <serinus/canary_ranks.h>

#include "tests/gpu/device_problem.h"

namespace serinus::canary {
namespace {

using testing::check_cuda;
using testing::DeviceBuffer;
using testing::kGpu;
using testing::pick;
using Int = testing::Int;
using Ints = testing::Ints;
using Rng = testing::Rng;

constexpr Owner kCache = 900;

/// Rows of `main` bytes and little ones beside them.
KvLayout layout_of(Int main) {
  KvLayout l;
  l.name = "twin";
  l.page_size = 4;
  l.page_bytes = {4 * main, 4 * 12};
  KvSegment a;
  a.name = "a";
  a.token_stride = a.bytes = main;
  KvSegment b;
  b.name = "b";
  b.buffer = 1;
  b.token_stride = b.bytes = 12;
  l.segments = {a, b};
  return l;
}

/// Host memory and a copy of it on the device, sent piece by piece.
template <class T>
struct Shared {
  explicit Shared(std::size_t n, T value = {}) : host(n, value), device(n * sizeof(T)) { send(); }
  void send() const { device.upload(host.data(), host.size() * sizeof(T)); }
  void send(std::size_t at, std::size_t n) const {
    device.upload(host.data() + at, n * sizeof(T), at * sizeof(T));
  }
  std::vector<T> host;
  DeviceBuffer device;
};

struct Setup {
  Depth depth = Depth::all;
  VerifyPolicy verify = VerifyPolicy::all;
  bool extra_pools = true;  ///< an SWA and a draft pool beside the full one
  Mode mode = Mode::log;
  Int ring = 512;
  bool source_digests = false;
  Int records = 62;  ///< a step; of thousands, a CTA has several slots
  Format format = Format::serinus;
};

class Twins {
 public:
  static constexpr Int kSlots = 1000, kRows = 10, kWidth = 160, kWindow = 24;
  static constexpr int kLayers = 2;

  explicit Twins(const Setup& s, std::uint64_t seed = 1)
      : rng(seed),
        table(static_cast<std::size_t>(kRows * kWidth)),
        expected(static_cast<std::size_t>(kRows * kWidth), -1),
        swa(static_cast<std::size_t>(kSlots)) {
    // A slot of the full pool and its place in the SWA pool, which is numbered backwards.
    for (Int i = 1; i < kSlots; ++i) swa.host[static_cast<std::size_t>(i)] = kSlots - i;
    swa.send();
    options.format = s.format;
    options.sweep_interval = 3;
    options.depth = s.depth;
    options.verify = s.verify;
    options.mode = s.mode;
    options.records_per_step = s.records;
    options.ring_capacity = s.ring;
    options.source_digests = s.source_digests;
    cpu = std::make_unique<Monitor>(options);
    gpu = std::make_unique<Monitor>(options);
    add("full", PoolKind::full);
    if (!s.extra_pools) return;
    add("swa", PoolKind::swa);
    add("draft", PoolKind::draft);
  }

  void add(const char* name, PoolKind kind, int token_offset = 0) {
    // The sglang format reads rows of whole 16 bytes.
    const Int small = options.format == Format::sglang ? 48 : 40;
    add(name, kind, layout_of(kind == PoolKind::full ? 576 : small), token_offset);
  }
  void add(const char* name, PoolKind kind, const KvLayout& layout, int token_offset = 0) {
    PoolSpec here;
    here.name = name;
    here.kind = kind;
    here.layout = layout;
    here.num_layers = kLayers;
    here.num_slots = kSlots;
    here.window = kind == PoolKind::swa ? kWindow : 0;
    here.token_offset = token_offset;
    PoolSpec there = here;
    there.device = kGpu;
    there.table_rows = kRows;
    if (kind == PoolKind::swa) {
      here.full_to_swa = swa.host;
      there.full_to_swa = {reinterpret_cast<const Int*>(swa.device.data()), swa.host.size()};
    }
    auto& buffers = kv.emplace_back();
    for (int l = 0; l < kLayers; ++l) {
      for (const Int page_bytes : here.layout.page_bytes) {
        const Int n = page_bytes * ((kSlots + layout.page_size - 1) / layout.page_size);
        Shared<std::uint8_t>& b = buffers.emplace_back(static_cast<std::size_t>(n));
        for (std::uint8_t& x : b.host) x = static_cast<std::uint8_t>(rng());
        b.send();
        here.buffers.push_back({.data = b.host.data(), .bytes = n});
        there.buffers.push_back(
            {.data = reinterpret_cast<std::uint8_t*>(b.device.data()), .bytes = n});
      }
    }
    layouts.push_back(here.layout);
    EXPECT_EQ(cpu->add_pool(here), gpu->add_pool(there));
  }

  template <class F>
  void both(const F& f) {
    f(*cpu);
    f(*gpu);
  }
  int pools() const { return static_cast<int>(kv.size()); }
  Int slot_in(int pool, Int slot) const {
    return cpu->pool(pool).kind == PoolKind::swa ? kSlots - slot : slot;
  }
  Ints slots_in(int pool, Ints slots) const {
    for (Int& s : slots) s = slot_in(pool, s);
    return slots;
  }
  /// Of the full pool, and its places in the others.
  void alloc(const Ints& slots, Owner owner) {
    for (int p = 0; p < pools(); ++p)
      both([&](Monitor& m) { m.on_alloc(p, slots_in(p, slots), owner); });
  }
  void free(const Ints& slots, Owner owner) {
    for (int p = 0; p < pools(); ++p)
      both([&](Monitor& m) { m.on_free(p, slots_in(p, slots), owner); });
  }
  void transfer(const Ints& slots, Owner from, Owner to) {
    for (int p = 0; p < pools(); ++p)
      both([&](Monitor& m) { m.on_transfer(p, slots_in(p, slots), from, to); });
  }

  /// Segments of a token, over all layers.
  int runs(int pool) const {
    return kLayers * static_cast<int>(layouts[static_cast<std::size_t>(pool)].segments.size());
  }
  /// One of them.
  void with_bytes(int pool, int run, Int slot, const auto& f) {
    const KvLayout& l = layouts[static_cast<std::size_t>(pool)];
    const auto segments = static_cast<int>(l.segments.size());
    const KvSegment& segment = l.segments[static_cast<std::size_t>(run % segments)];
    const int buffer = run / segments * l.num_buffers() + segment.buffer;
    Shared<std::uint8_t>& b = kv[static_cast<std::size_t>(pool)][static_cast<std::size_t>(buffer)];
    const auto at = static_cast<std::size_t>(
        byte_offset(l, segment, slot, l.page_bytes[static_cast<std::size_t>(segment.buffer)]));
    f(std::span(b.host).subspan(at, static_cast<std::size_t>(segment.bytes)));
    b.send(at, static_cast<std::size_t>(segment.bytes));
  }
  void write_kv(Int slot) {
    for (int p = 0; p < pools(); ++p) {
      for (int b = 0; b < runs(p); ++b) {
        with_bytes(p, b, slot_in(p, slot), [&](std::span<std::uint8_t> bytes) {
          for (std::uint8_t& x : bytes) x = static_cast<std::uint8_t>(rng());
        });
      }
    }
  }
  void flip_byte(int pool, Int slot) {
    // Every second run is one of rows of 12 bytes, which the sglang format does not read.
    const bool all = options.format == Format::serinus;
    const auto run = static_cast<int>(pick(rng, 0, runs(pool) - 1)) & (all ? ~0 : ~1);
    with_bytes(pool, run, slot_in(pool, slot),
               [&](std::span<std::uint8_t> b) { b[pick(rng, 0, 1) == 0 ? 0 : 11] ^= 0x10; });
  }
  template <class Change>
  void change_record(int pool, Int slot, const Change& change) {
    const Int at = slot_in(pool, slot);
    Record r = cpu->records(pool)[static_cast<std::size_t>(at)];
    change(r);
    both([&](Monitor& m) { m.set_record(pool, at, r); });
  }

  Batch batch(bool on_gpu) const {
    Batch b;
    b.rows = rows;
    b.prefix_lens = prefix;
    b.extend_lens = extend;
    b.owners = owners;
    b.input_ids = ids;
    b.positions = positions;
    b.out_cache_loc = locations;
    b.valid_lens = valid;
    b.parents = parents;
    const auto view = [&](const Shared<std::int32_t>& t) {
      return on_gpu ? TensorView(t.device.data(), DType::i32, {kRows, kWidth}, kGpu)
                    : TensorView(const_cast<std::int32_t*>(t.host.data()), DType::i32,
                                 {kRows, kWidth});
    };
    b.req_to_token = view(table);
    b.expected_tokens = view(expected);
    return b;
  }
  void step(Stream stream = {}) {
    table.send();
    expected.send();
    cpu->begin_step(batch(false));
    gpu->begin_step(batch(true), stream);
    cpu->end_step(batch(false));
    gpu->end_step(batch(true), stream);
  }
  void clear_batch() {
    rows.clear(), prefix.clear(), extend.clear(), valid.clear(), owners.clear();
    ids.clear(), positions.clear(), locations.clear(), parents.clear();
  }
  /// A request of `n` tokens at `slots`, in one step.
  void prefill(Int row, Owner owner, const Ints& slots) {
    clear_batch();
    rows = {row}, owners = {owner}, prefix = {0};
    extend = valid = {std::ssize(slots)};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto cell = static_cast<std::size_t>(row * kWidth) + i;
      table.host[cell] = static_cast<std::int32_t>(slots[i]);
      expected.host[cell] = static_cast<std::int32_t>(1000 * owner + i);
      ids.push_back(expected.host[cell]);
      positions.push_back(static_cast<Int>(i));
      write_kv(slots[i]);
    }
    locations = slots;
  }
  /// The requests of the last batch, with nothing new.
  void read_again() {
    for (std::size_t i = 0; i < prefix.size(); ++i) prefix[i] += extend[i];
    std::ranges::fill(extend, 0);
    ids.clear(), positions.clear(), locations.clear(), parents.clear();
  }

  using Key = std::tuple<int, Int, std::uint32_t, Int, Int>;
  using Seen = std::map<Key, Violation>;
  static void gather(Seen& seen, const std::vector<Violation>& found) {
    for (const Violation& v : found) {
      const bool nowhere = any(v.reasons & Reason::out_of_range) || v.slot == 0;
      const Key key{v.pool, v.slot, nowhere ? 0 : v.expected_generation, nowhere ? v.row : -1,
                    nowhere ? v.expected_position : -1};
      const auto [at, is_new] = seen.emplace(key, v);
      if (!is_new) at->second.reasons |= v.reasons;
    }
  }
  void poll() {
    gather(by_cpu, cpu->poll());
    gather(by_gpu, gpu->poll());
  }
  /// What does not depend on which of several sightings of a fault in one step comes first. A later
  /// one may know what `other` did not.
  static std::string line(const Violation& v, const Violation& other) {
    Violation w;
    w.reasons = v.reasons;
    w.pool = v.pool;
    w.slot = v.slot;
    w.expected_owner = v.expected_owner;
    w.expected_generation = v.expected_generation;
    w.first_step = v.first_step;
    w.events = v.events;
    if (other.layer >= 0 && v.layer >= 0) {
      w.layer = v.layer;
      w.segment = v.segment;
    }
    if (other.stored_position >= 0 && v.stored_position >= 0) {
      w.stored_position = v.stored_position;
      w.stored_token = v.stored_token;
      if (other.stored_chain != 0) w.stored_chain = v.stored_chain;
      w.stored_digest = v.stored_digest;
      w.stored_owner = v.stored_owner;
      w.stored_generation = v.stored_generation;
    }
    return to_text(w, "p");
  }
  void expect_equal(const std::string& what) {
    both([](Monitor& m) { m.flush(); });
    poll();
    for (int p = 0; p < pools(); ++p) {
      const auto r = gpu->records(p), want = cpu->records(p);
      const auto l = gpu->ledger(p), entry = cpu->ledger(p);
      ASSERT_EQ(r.size(), want.size());
      for (std::size_t s = 0; s < r.size(); ++s) {
        ASSERT_EQ(r[s], want[s]) << what << ": record " << s << " of pool " << p;
        if (options.format == Format::sglang) continue;  // which has no ledger
        ASSERT_EQ(std::memcmp(&l[s], &entry[s], sizeof l[s]), 0)
            << what << ": ledger " << s << " of pool " << p << ": owner " << l[s].owner << " "
            << entry[s].owner << " written " << l[s].written << " " << entry[s].written << " prev "
            << l[s].prev << " " << entry[s].prev;
      }
      EXPECT_TRUE(std::ranges::equal(gpu->source_digests(p), cpu->source_digests(p)))
          << what << ": source digests of pool " << p;
    }
    for (const auto& [key, v] : by_cpu) {
      const auto found = by_gpu.find(key);
      if (found == by_gpu.end()) {
        ADD_FAILURE() << what << ": only the CPU says " << to_text(v, "p");
      } else {
        EXPECT_EQ(line(found->second, v), line(v, found->second)) << what;
      }
    }
    for (const auto& [key, v] : by_gpu) {
      EXPECT_TRUE(by_cpu.contains(key)) << what << ": only the GPU says " << to_text(v, "p");
    }
  }
  void expect_equal_stats(const std::string& what) const {
    const Stats g = gpu->stats(), c = cpu->stats();
    EXPECT_EQ(g.steps, c.steps) << what;
    EXPECT_EQ(g.records_written, c.records_written) << what;
    EXPECT_EQ(g.records_verified, c.records_verified) << what;
    EXPECT_EQ(g.bytes_digested, c.bytes_digested) << what;
    EXPECT_EQ(g.skipped_empty, c.skipped_empty) << what;
    EXPECT_EQ(g.sweeps, c.sweeps) << what;
    EXPECT_EQ(g.live_slots, c.live_slots) << what;
    EXPECT_EQ(g.sweep_bound_steps, c.sweep_bound_steps) << what;
    EXPECT_EQ(g.violations, c.violations) << what;
    EXPECT_EQ(g.out_of_range, c.out_of_range) << what;
    EXPECT_EQ(g.checks, c.checks) << what;
  }

  Rng rng;
  Options options;
  Shared<std::int32_t> table, expected;
  Shared<Int> swa;
  std::vector<KvLayout> layouts;
  std::deque<std::deque<Shared<std::uint8_t>>> kv;  // by pool; two buffers a layer
  std::unique_ptr<Monitor> cpu, gpu;
  Seen by_cpu, by_gpu;
  // The batch.
  Ints rows, prefix, extend, valid, ids, positions, locations, parents;
  std::vector<Owner> owners;
};

constexpr Format kFormats[] = {Format::serinus, Format::sglang};

using MonitorGpu = testing::GpuTest;

/// Requests that begin (some on a cached prefix), grow and end, with faults in between.
void run_history(const Setup& setup, std::uint64_t seed, int steps, bool faults) {
  Twins t(setup, seed);
  Rng& rng = t.rng;
  Ints unused;
  for (Int s = 1; s < Twins::kSlots; ++s) unused.push_back(s);
  std::ranges::shuffle(unused, rng);
  struct Request {
    Owner owner = 0;
    Int row = 0, length = 0, own_from = 0;
  };
  std::vector<Request> running;
  Ints cached;
  std::vector<std::int32_t> cached_tokens;
  Owner next_owner = 1;
  for (int p = 0; p < t.pools() && setup.format == Format::sglang; ++p) {
    t.both([&](Monitor& m) {
      m.set_sweep_source(p, [&](std::vector<SweepEntry>& entries) {
        for (std::size_t i = 0; i < cached.size(); ++i) {
          entries.push_back({cached[i], static_cast<Int>(i), i == 0 ? -1 : cached[i - 1]});
        }
      });
    });
  }
  for (int step = 0; step < steps; ++step) {
    if (running.size() < 6 && unused.size() > 300) {
      Request r{next_owner++, 0, 0, 0};
      for (Int row = 1; row < Twins::kRows && r.row == 0; ++row) {
        if (std::ranges::none_of(running, [&](const Request& o) { return o.row == row; }))
          r.row = row;
      }
      if (!cached.empty() && pick(rng, 0, 1) == 0) {
        for (std::size_t i = 0; i < cached.size(); ++i) {
          const auto cell = static_cast<std::size_t>(r.row * Twins::kWidth) + i;
          t.table.host[cell] = static_cast<std::int32_t>(cached[i]);
          t.expected.host[cell] = cached_tokens[i];
        }
        r.length = r.own_from = std::ssize(cached);
        t.both([&](Monitor& m) { m.on_attach(r.owner, r.row, 0, r.length / 2); });
        t.both([&](Monitor& m) { m.on_attach(r.owner, r.row, r.length / 2, r.length); });
      }
      running.push_back(r);
    }
    t.clear_batch();
    for (Request& r : running) {
      const Int n = std::min(pick(rng, 1, 30), Twins::kWidth - r.length);
      Ints slots(unused.end() - n, unused.end());
      unused.resize(unused.size() - static_cast<std::size_t>(n));
      if (n > 0) t.alloc(slots, r.owner);
      t.rows.push_back(r.row);
      t.owners.push_back(r.owner);
      t.prefix.push_back(r.length);
      t.extend.push_back(n);
      for (Int i = 0; i < n; ++i) {
        const auto cell = static_cast<std::size_t>(r.row * Twins::kWidth + r.length + i);
        const Int token = pick(rng, 0, 150000), slot = slots[static_cast<std::size_t>(i)];
        t.table.host[cell] = static_cast<std::int32_t>(slot);
        t.expected.host[cell] = static_cast<std::int32_t>(token);
        t.ids.push_back(token);
        t.positions.push_back(r.length + i);
        t.locations.push_back(slot);
        t.write_kv(slot);
      }
      t.valid.push_back(r.length + n);
    }
    t.rows.push_back(0), t.owners.push_back(0), t.prefix.push_back(0), t.extend.push_back(1);
    t.valid.push_back(0), t.ids.push_back(7), t.positions.push_back(0), t.locations.push_back(-1);

    if (faults && !running.empty() && step > 2) {
      const Request& r = running[static_cast<std::size_t>(pick(rng, 0, std::ssize(running) - 1))];
      const auto cell = static_cast<std::size_t>(r.row * Twins::kWidth +
                                                 pick(rng, 0, std::max<Int>(0, r.length - 1)));
      const Int slot = t.table.host[cell], other = pick(rng, 1, Twins::kSlots - 1);
      const auto pool = static_cast<int>(pick(rng, 0, t.pools() - 1));
      if (r.length > 0 && slot > 0 && slot < Twins::kSlots) switch (pick(rng, 0, 11)) {
          case 0:
            t.flip_byte(pool, slot);
            break;
          case 1:
            t.change_record(pool, slot, [](Record& x) { x.token ^= 5; });
            break;
          case 2:
            t.change_record(pool, slot, [](Record& x) { x.chain ^= 1ull << 40; });
            break;
          case 3:
            t.change_record(pool, slot, [](Record& x) { x.owner ^= 3; });
            break;
          case 4:
            t.change_record(pool, slot, [](Record& x) { x = {}; });
            break;
          case 5:  // a wrong table
            t.table.host[cell] = static_cast<std::int32_t>(other);
            break;
          case 6:
            t.table.host[cell] = pick(rng, 0, 1) == 0 ? -7 : 5000;
            break;
          case 7:  // freed while it is read
            t.free({slot}, 0);
            break;
          case 8:  // handed out twice
            t.alloc({slot}, next_owner + 500);
            break;
          case 9:  // a location that is somebody else's
            t.locations[0] = other;
            break;
          case 10:  // the null slot of a clean pool
            t.locations.back() = 0;
            break;
          default:
            t.ids[0] ^= 1;
            break;
        }
    }
    t.step();
    if (step % 3 == 0) t.poll();
    for (std::size_t i = 0; i < running.size(); ++i) running[i].length += t.extend[i];
    if (running.size() > 4 || (!running.empty() && running[0].length >= Twins::kWidth)) {
      const Request r = running.front();
      running.erase(running.begin());
      Ints own, kept;
      for (Int i = r.own_from; i < r.length; ++i) {
        const auto cell = static_cast<std::size_t>(r.row * Twins::kWidth + i);
        const Int slot = t.table.host[cell];
        if (slot <= 0 || slot >= Twins::kSlots) continue;
        const bool keep = cached.empty() && r.own_from == 0 && i < 6 && !faults;
        (keep ? kept : own).push_back(slot);
        if (keep) cached_tokens.push_back(t.expected.host[cell]);
      }
      std::ranges::sort(own);
      own.erase(std::unique(own.begin(), own.end()), own.end());
      if (!kept.empty()) t.transfer(kept, r.owner, kCache);
      if (!kept.empty()) cached = kept;
      t.both([&](Monitor& m) { m.on_release(r.owner); });
      if (!own.empty()) t.free(own, r.owner);
      for (const Int s : own) {
        if (std::ranges::find(unused, s) == unused.end()) unused.insert(unused.begin(), s);
      }
    }
  }
  const std::string what = "seed " + std::to_string(seed);
  t.expect_equal(what);
  if (faults) return;
  EXPECT_TRUE(t.by_gpu.empty()) << what;
  t.expect_equal_stats(what);
  EXPECT_GT(t.gpu->stats().records_verified, 0u);
}

TEST_F(MonitorGpu, NothingIsReportedWithoutAFault) {
  for (const VerifyPolicy policy : {VerifyPolicy::all, VerifyPolicy::rolling}) {
    run_history({.depth = Depth::all, .verify = policy}, 1, 30, false);
    run_history({.depth = Depth::partial, .verify = policy, .source_digests = true}, 2, 30, false);
    run_history({.depth = Depth::none, .verify = policy}, 3, 30, false);
  }
  run_history({.depth = Depth::all, .verify = VerifyPolicy::rolling, .records = 4096}, 4, 10,
              false);
}

TEST_F(MonitorGpu, FaultsAreTheCpusFaults) {
  for (std::uint64_t seed = 10; seed < 22; ++seed) {
    run_history({.depth = static_cast<Depth>(seed % 3),
                 .verify = seed % 2 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling,
                 .extra_pools = seed % 4 < 2,
                 .source_digests = seed % 5 < 2,
                 .records = seed < 16 ? 62 : 4096},
                seed, 7, true);
    if (HasFailure()) return;
  }
}

// The same histories in SGLang's format: its kernels, with what a Monitor adds to their reports.
TEST_F(MonitorGpu, TheSglangFormatIsTheCpus) {
  for (const Depth depth : {Depth::none, Depth::partial, Depth::all}) {
    run_history({.depth = depth, .format = Format::sglang}, 1, 30, false);
  }
  for (std::uint64_t seed = 10; seed < 34; ++seed) {
    run_history({.depth = static_cast<Depth>(seed % 3),
                 .extra_pools = seed % 4 < 2,
                 .ring = 4096,
                 .format = Format::sglang},
                seed, 9, true);
    if (HasFailure()) return;
  }
}

// Every word of a report, of faults that one request sees: what it read or wrote, and where.
TEST_F(MonitorGpu, ReportsOfTheSglangFormatAreTheCpus) {
  Twins t({.format = Format::sglang});
  const Ints slots{5, 6, 7, 8, 9, 10};
  t.alloc(slots, 4);
  t.prefill(1, 4, slots);
  t.step();
  t.flip_byte(0, 6);
  t.change_record(0, 8, [](Record& r) { r.token ^= 1; });
  t.clear_batch();
  t.alloc({20, 21}, 4);
  t.rows = {1, 0}, t.owners = {4, 0}, t.prefix = {6, 0}, t.extend = {2, 1}, t.valid = {8, 0};
  t.ids = {7, 8, 9}, t.positions = {6, 9, 0}, t.locations = {20, 21, -1};  // a position jumps
  for (std::size_t i = 0; i < 2; ++i) {
    t.table.host[Twins::kWidth + 6 + i] = static_cast<std::int32_t>(20 + i);
    t.expected.host[Twins::kWidth + 6 + i] = static_cast<std::int32_t>(7 + i);
  }
  t.table.host[Twins::kWidth + 2] = 777;  // nothing was ever written there
  for (int i = 0; i < 4; ++i) t.step();
  t.cpu->verify_now(Moment::head, 4, 1, 3, 5, t.batch(false));
  t.gpu->verify_now(Moment::head, 4, 1, 3, 5, t.batch(true));
  t.expect_equal("reports");
  EXPECT_EQ(t.by_gpu.size(), 3u * 3 + 2);
  for (const auto& [key, v] : t.by_gpu) {
    EXPECT_EQ(to_text(v, "p"), to_text(t.by_cpu.at(key), "p"));
    EXPECT_EQ(v.format, Format::sglang);
    EXPECT_EQ(v.request, 4u);
  }
  t.expect_equal_stats("reports");
  EXPECT_GT(t.gpu->stats().records_verified, 100u);
}

// A sweep's source may find that its pool is gone.
TEST_F(MonitorGpu, ASweepMayDetachItsPool) {
  Twins t({.extra_pools = false, .format = Format::sglang});
  t.alloc({5, 6}, 4);
  t.prefill(1, 4, {5, 6});
  t.step();
  t.both([](Monitor& m) {
    m.set_sweep_source(0, [&m](std::vector<SweepEntry>& entries) {
      entries = {{5, 0, -1}, {6, 1, 5}};
      if (m.is_attached(0)) m.detach_pool(0);
    });
    m.flush();
    EXPECT_TRUE(m.poll().empty());
    EXPECT_EQ(m.stats().sweeps, 0u);
  });
}

// So many announcements that they are brought before the next step, while a graph is captured: they
// are no part of it.
TEST_F(MonitorGpu, AnnouncementsAreNoPartOfAGraph) {
  for (const Format format : kFormats) {
    Twins t({.depth = Depth::none, .extra_pools = false, .format = format});
    Ints slots;
    for (Int s = 1; s < Twins::kSlots; ++s) slots.push_back(s);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    t.alloc({1, 2}, 1);
    t.prefill(1, 1, {1, 2});
    t.step({stream});
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (Int n = 0; n < 1 << 20; n += std::ssize(slots)) {
      t.gpu->on_free(0, slots, 0);
      t.gpu->on_alloc(0, slots, 2);
    }
    check_cuda(cudaStreamEndCapture(stream, &graph));
    std::size_t nodes = 1;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0u) << name_of(format);
    check_cuda(cudaGraphDestroy(graph));
    check_cuda(cudaStreamDestroy(stream));
  }
}

// Batches that grow by a request at a time need memory for what they hold, not for what each of
// their sizes once grew to.
TEST_F(MonitorGpu, RoomGrowsWithTheBatch) {
  Twins t({.depth = Depth::none, .extra_pools = false, .format = Format::sglang});
  for (int n = 1; n <= 40; ++n) {
    t.clear_batch();
    t.rows.assign(n, 1), t.owners.assign(n, 1), t.prefix.assign(n, 0), t.extend.assign(n, 0);
    t.valid.assign(n, 0);
    t.step();
  }
  t.expect_equal("growth");
  EXPECT_TRUE(t.by_gpu.empty());
}

// Many announcements about one slot between two steps keep their order.
TEST_F(MonitorGpu, AnnouncementsOfOneSlotKeepTheirOrder) {
  Twins t({.depth = Depth::none, .extra_pools = false});
  for (Owner owner = 1; owner < 6; ++owner) {
    t.alloc({3, 4, 5}, owner);
    t.free({4}, owner);
    t.alloc({4, 7}, owner + 10);
    t.transfer({4}, owner + 10, owner + 20);
    t.free({3, 4, 5, 7}, 0);
  }
  t.alloc({3}, 1);
  t.alloc({3}, 2);  // twice
  t.free({9}, 1);   // free already
  t.alloc({-4, 5000, 0}, 3);
  t.prefill(1, 4, {});
  t.step();
  t.expect_equal("order");
  EXPECT_GE(t.by_gpu.size(), 3u);
}

// Every named layout, watched to the last byte of every segment; the indexer's keys, where an
// engine has them, are segments of the same token; a window is a pool of its own.
TEST_F(MonitorGpu, EveryNamedLayoutIsWatched) {
  std::vector<KvLayout> all;
  for (const std::string_view name : kv_layout_names()) {
    KvLayoutOptions options;
    if (name.starts_with("mha_")) options = {.page_size = 16, .heads = 2, .head_size = 64};
    all.push_back(kv_layout(name, options));
  }
  KvLayout dsa = kv_layout("fp8_656"), indexer = kv_layout("dsa_indexer_132");
  dsa.name = "fp8_656 and dsa_indexer_132";
  for (KvSegment s : indexer.segments) {
    s.name = "indexer." + s.name;
    s.buffer = dsa.num_buffers();
    dsa.segments.push_back(s);
  }
  dsa.page_bytes.push_back(indexer.page_bytes[0]);
  all.push_back(dsa);
  for (const KvLayout& layout : all) {
    for (const PoolKind kind : {PoolKind::full, PoolKind::swa}) {
      Twins t({.extra_pools = false});
      t.add(layout.name.c_str(), kind, layout);
      // Both ends of pages, in no order; a token for every run, and one more.
      Ints slots;
      for (int i = 0; i <= t.runs(1); ++i) {
        const Int page = layout.page_size, n = (i + 2) / 2;
        slots.push_back(i % 2 == 0 ? n * page : n * page - 1);
        if (slots.back() >= Twins::kSlots) slots.back() = 1 + i;  // small pages have few ends
      }
      std::ranges::sort(slots);
      slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
      slots.resize(std::min<std::size_t>(slots.size(), Twins::kWindow - 1));
      t.alloc(slots, 1);
      t.prefill(1, 1, slots);
      t.step();
      t.read_again();
      t.step();
      t.expect_equal(layout.name);
      EXPECT_TRUE(t.by_gpu.empty()) << layout.name;
      const Int runs = std::min<Int>(t.runs(1), std::ssize(slots));
      for (int run = 0; run < runs; ++run) {
        t.with_bytes(1, run, t.slot_in(1, slots[static_cast<std::size_t>(run)]),
                     [](std::span<std::uint8_t> bytes) { bytes.back() ^= 1; });
      }
      t.step();
      t.expect_equal(layout.name);
      EXPECT_EQ(std::ssize(t.by_gpu), runs) << layout.name;
      for (const auto& [key, v] : t.by_gpu) EXPECT_EQ(v.reasons, Reason::kv_bytes);
    }
  }
}

// A draft pool's slot p holds the KV of token p + 1, and it has steps of its own.
TEST_F(MonitorGpu, DraftPoolsAreATokenAhead) {
  Twins t({.extra_pools = false});
  t.add("draft", PoolKind::draft, 1);
  t.alloc({5, 6, 7}, 4);
  t.prefill(1, 4, {5, 6, 7});
  const Ints ids = t.ids;
  for (const int pool : {0, 1}) {
    t.ids = pool == 0 ? ids : Ints{ids[1], ids[2], 8};
    t.table.send();
    t.expected.send();
    for (const bool on_gpu : {false, true}) {
      Batch b = t.batch(on_gpu);
      b.pools = std::span(&pool, 1);
      Monitor& m = on_gpu ? *t.gpu : *t.cpu;
      m.begin_step(b);
      m.end_step(b);
    }
  }
  t.read_again();
  t.step();
  t.expect_equal("draft");
  EXPECT_TRUE(t.by_gpu.empty());
  t.expect_equal_stats("draft");
  t.expected.host[Twins::kWidth + 1] ^= 4;  // token 1: slot 6 of the target, slot 5 of the draft
  t.step();
  t.expect_equal("draft, wrong token");
  EXPECT_EQ(t.by_gpu.size(), 2u);
}

// What a reader attached is its own until the slot begins another life.
TEST_F(MonitorGpu, AttachedSlotsThatChangeHandsAreStale) {
  Twins t({.verify = VerifyPolicy::rolling, .extra_pools = false});
  const Ints slots{5, 6, 7};
  t.alloc(slots, 1);
  t.prefill(1, 1, slots);
  t.step();
  t.transfer(slots, 1, kCache);
  t.both([](Monitor& m) { m.on_release(1); });
  t.both([](Monitor& m) { m.on_attach(2, 2, 0, 3); });
  for (std::size_t i = 0; i < 3; ++i) {
    for (Shared<std::int32_t>* table : {&t.table, &t.expected}) {
      table->host[2 * Twins::kWidth + i] = table->host[Twins::kWidth + i];
    }
  }
  t.clear_batch();
  t.rows = {2}, t.owners = {2}, t.prefix = {3}, t.extend = {0}, t.valid = {3};
  t.step();
  t.both([](Monitor& m) { m.flush(); });
  t.poll();
  EXPECT_TRUE(t.by_cpu.empty());
  EXPECT_TRUE(t.by_gpu.empty());
  t.free(slots, kCache);
  t.alloc(slots, 3);
  t.prefill(3, 3, slots);
  t.rows.push_back(2), t.owners.push_back(2), t.prefix.push_back(3), t.extend.push_back(0);
  t.valid.push_back(3);
  t.step();
  t.expect_equal("recycled");
  ASSERT_EQ(t.by_gpu.size(), 3u);
  for (const auto& [key, v] : t.by_gpu) {
    EXPECT_EQ(v.reasons, Reason::stale | Reason::double_owner) << to_text(v, "kv");
  }
}

// Device -> host -> other slots, and slots that move; what did not come along is found.
TEST_F(MonitorGpu, TiersAndMovesAreWatched) {
  for (const Format format : kFormats) {
    Twins t({.extra_pools = false, .format = format});
    const Ints from{5, 6, 7, 8, 9}, to{100, 101, 102, 103, 104};
    t.alloc(from, 1);
    t.prefill(1, 1, from);
    t.step();
    std::vector<Record> here(5), there(5);
    t.cpu->on_store(0, from, here);
    t.gpu->on_store(0, from, there);
    EXPECT_EQ(here, there);
    t.alloc(to, 2);
    t.both([&](Monitor& m) { m.on_load(0, here, to, 2); });  // records without their bytes
    t.alloc({200, 201}, 1);
    t.both([&](Monitor& m) { m.on_move(0, Ints{5, 200}, Ints{200, 201}); });
    t.both([&](Monitor& m) { m.on_attach(2, 2, 0, 5); });
    t.clear_batch();
    t.rows = {2}, t.owners = {2}, t.prefix = {5}, t.extend = {0}, t.valid = {5};
    for (std::size_t i = 0; i < to.size(); ++i) {
      t.table.host[2 * Twins::kWidth + i] = static_cast<std::int32_t>(to[i]);
      t.expected.host[2 * Twins::kWidth + i] = t.expected.host[Twins::kWidth + i];
    }
    t.step();
    t.expect_equal("tiers");
    // Five loads and, where what moved is checked at once, a move without bytes.
    EXPECT_EQ(t.by_gpu.size(), format == Format::serinus ? 6u : 5u);
  }
}

// A report says which layer and which segment of it, wherever the slot's bytes came from.
TEST_F(MonitorGpu, DamagedBytesHaveALayerAndASegment) {
  for (const Depth depth : {Depth::all, Depth::partial}) {
    Twins t({.depth = depth, .source_digests = true});
    const Ints slots{5, 6, 7, 8}, loaded{100, 101, 102, 103};
    t.alloc(slots, 1);
    t.prefill(1, 1, slots);
    t.step();
    // Out and in again, with the words and without; and to another place.
    const auto n = static_cast<std::size_t>(t.gpu->num_sources(0));
    std::vector<Record> here(4), there(4);
    std::vector<std::uint32_t> words_here(4 * n), words_there(4 * n);
    t.cpu->on_store(0, slots, here, words_here);
    t.gpu->on_store(0, slots, there, words_there);
    EXPECT_EQ(words_here, words_there);
    t.alloc(loaded, 2);
    t.alloc({200}, 1);
    t.both([&](Monitor& m) {
      m.on_load(0, std::span(here).first(2), Ints{100, 101}, 2, std::span(words_here).first(2 * n));
      m.on_load(0, std::span(here).last(2), Ints{102, 103}, 2);
      m.on_move(0, Ints{8}, Ints{200});
    });
    for (int run = 0; run < t.runs(0); ++run) {
      // The bytes of the loads and of the move come along, but for one bit.
      for (const auto& [from, to] : {std::pair{5, 100}, {6, 101}, {7, 102}, {8, 103}, {8, 200}}) {
        std::vector<std::uint8_t> bytes;
        t.with_bytes(0, run, from,
                     [&](std::span<std::uint8_t> b) { bytes.assign(b.begin(), b.end()); });
        if (run == to % 4) bytes.back() ^= 4;
        t.with_bytes(0, run, to,
                     [&](std::span<std::uint8_t> b) { std::ranges::copy(bytes, b.begin()); });
      }
    }
    t.flip_byte(1, 6);
    t.expect_equal("layers");
    EXPECT_EQ(t.by_gpu.size(), 6u);
    for (const auto& [key, v] : t.by_gpu) {
      EXPECT_EQ(v.reasons, Reason::kv_bytes) << to_text(v, "kv");
      const Violation& want = t.by_cpu.at(key);
      EXPECT_EQ(v.layer, want.layer) << to_text(v, "kv");
      EXPECT_EQ(v.segment, want.segment) << to_text(v, "kv");
      const bool unknown = v.slot == 102 || v.slot == 103;
      EXPECT_EQ(v.layer < 0, unknown) << to_text(v, "kv");
      if (v.pool == 0 && !unknown) {
        EXPECT_EQ(v.layer * 2 + (v.segment == "b" ? 1 : 0), v.slot % 4);
      }
    }
  }
}

// A slot that was spoilt is checked where it is copied out, and counts as checked.
TEST_F(MonitorGpu, ASpoiltSlotIsSeenWhenItIsCopiedOut) {
  Twins t({.depth = Depth::none, .extra_pools = false});
  const Ints slots{5, 6, 7};
  t.alloc(slots, 1);
  t.prefill(1, 1, slots);
  t.step();
  t.change_record(0, 6, [](Record& r) { r.token ^= 1; });
  std::vector<Record> here(3), there(3);
  t.cpu->on_store(0, slots, here);
  t.gpu->on_store(0, slots, there);
  EXPECT_EQ(here, there);
  t.expect_equal("copied out");
  EXPECT_EQ(t.by_gpu.size(), 1u);
  t.expect_equal_stats("copied out");
}

// poll() alone brings a fault, once, with its evidence; what is seen again is counted.
TEST_F(MonitorGpu, AFaultComesWithAPoll) {
  Twins t({.extra_pools = false});
  t.alloc({5, 6, 7}, 4);
  t.prefill(1, 4, {5, 6, 7});
  t.step();
  t.read_again();
  t.step();
  t.flip_byte(0, 6);
  for (int i = 0; i < 4; ++i) t.step();
  t.free({5, 6, 7}, 4);  // later than what it is evidence for
  std::vector<Violation> found;
  for (int i = 0; i < 1000 && found.empty(); ++i) {
    found = t.gpu->poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(found.size(), 1u);
  const Violation& v = found[0];
  EXPECT_EQ(v.reasons, Reason::kv_bytes);
  EXPECT_EQ(v.slot, 6);
  EXPECT_EQ(v.first_step, 2u);
  EXPECT_EQ(v.request, 4u);
  EXPECT_EQ(v.expected_position, 1);
  ASSERT_EQ(v.events.size(), 1u);
  EXPECT_EQ(to_text(v.events[0]), "alloc:4@0");
  EXPECT_EQ(t.cpu->poll()[0].events, v.events);
  t.gpu->flush();
  EXPECT_TRUE(t.gpu->poll().empty());
  EXPECT_EQ(t.gpu->stats().violations, 1u);
  EXPECT_EQ(t.gpu->stats().sightings, t.cpu->stats().sightings);
}

// A ring of eight rows, a hundred faults: as long as somebody polls, none is lost.
TEST_F(MonitorGpu, TheRingIsEmptiedAndUsedAgain) {
  Twins t({.depth = Depth::none, .extra_pools = false, .ring = 8});
  t.prefill(1, 4, {});
  std::set<Int> seen;
  for (Int i = 1; i <= 100; ++i) {
    t.gpu->on_free(0, Ints{i}, 3);  // free already
    t.gpu->begin_step(t.batch(true));
    t.gpu->end_step(t.batch(true));
    check_cuda(cudaDeviceSynchronize());
    for (int k = 0; k < 3; ++k) {
      for (const Violation& v : t.gpu->poll()) {
        EXPECT_EQ(v.reasons, Reason::double_owner);
        EXPECT_TRUE(seen.insert(v.slot).second) << "slot " << v.slot << " twice";
      }
      check_cuda(cudaDeviceSynchronize());
    }
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(t.gpu->stats().dropped, 0u);
}

TEST_F(MonitorGpu, RaiseThrowsAtALaterStep) {
  Twins t({.extra_pools = false, .mode = Mode::raise});
  t.alloc({5, 6}, 4);
  t.prefill(1, 4, {5, 6});
  t.step();
  t.read_again();
  t.with_bytes(0, 0, 5, [](std::span<std::uint8_t> b) { b[3] ^= 1; });
  t.table.send();
  std::string what;
  for (int i = 0; i < 100 && what.empty(); ++i) {
    try {
      t.gpu->begin_step(t.batch(true));
      t.gpu->end_step(t.batch(true));
      check_cuda(cudaDeviceSynchronize());
    } catch (const RuntimeError& e) {
      what = e.what();
    }
  }
  EXPECT_NE(what.find("kv_bytes"), std::string::npos) << what;
}

// A pool goes, and its memory with it; the monitor goes on without it.
TEST_F(MonitorGpu, APoolMayGoBeforeItsMonitor) {
  for (const Format format : kFormats) {
    Twins t({.format = format});
    t.alloc({5, 6}, 4);
    t.prefill(1, 4, {5, 6});
    t.step();
    t.both([](Monitor& m) { m.detach_pool(2); });
    t.kv[2].clear();
    for (int i = 0; i < 5; ++i) t.step();
    t.both([](Monitor& m) { m.flush(); });
    EXPECT_TRUE(t.gpu->poll().empty());
    EXPECT_THROW(t.gpu->on_alloc(2, Ints{1}, 1), ValueError);
    t.kv.clear();
    t.gpu.reset();
  }
}

TEST_F(MonitorGpu, ADumpOfAPoolOnTheGpuIsTheCpusDump) {
  for (const Format format : kFormats) {
    Twins t({.format = format});
    t.alloc({5, 6, 7}, 4);
    t.prefill(1, 4, {5, 6, 7});
    t.step();
    t.flip_byte(0, 6);
    t.both([](Monitor& m) { m.flush(); });
    std::vector<std::string> dumps;
    for (Monitor* m : {t.cpu.get(), t.gpu.get()}) {
      const std::string path = ::testing::TempDir() + "twin.dump";
      write_dump(*m, path, {.bytes = DumpBytes::all});
      std::ifstream in(path, std::ios::binary);
      dumps.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      std::filesystem::remove(path);
    }
    EXPECT_GT(dumps[0].size(), 1000u);
    EXPECT_EQ(dumps[0], dumps[1]);
  }
}

TEST_F(MonitorGpu, RawStateAndDigestsAreTheCpus) {
  for (const Format format : kFormats) {
    Twins t({.format = format});
    t.alloc({5, 6, 7}, 4);
    t.prefill(1, 4, {5, 6});
    t.step();
    for (int p = 0; p < t.pools(); ++p) {
      for (const Int slot : {Int{5}, Int{6}, Int{7}, Int{8}, Int{995}, Int{-1}, Int{5000}}) {
        EXPECT_EQ(t.gpu->state(p, slot), t.cpu->state(p, slot)) << p << " " << slot;
        EXPECT_EQ(t.gpu->digest_of(p, slot), t.cpu->digest_of(p, slot)) << p << " " << slot;
        EXPECT_EQ(t.gpu->slot_bytes(p, slot), t.cpu->slot_bytes(p, slot));
      }
      EXPECT_EQ(t.gpu->null_digest(p), t.cpu->null_digest(p));
      EXPECT_EQ(t.gpu->num_sources(p), t.cpu->num_sources(p));
      EXPECT_EQ(t.gpu->full_to_swa(p), t.cpu->full_to_swa(p));
      EXPECT_EQ(t.gpu->slots_of(p, 1, 4, t.batch(true).req_to_token),
                t.cpu->slots_of(p, 1, 4, t.batch(false).req_to_token));
    }
    EXPECT_EQ(t.gpu->request_digest(1, 2, t.batch(true)),
              t.cpu->request_digest(1, 2, t.batch(false)));
  }
}

// For a check that a decision hangs on: what it found is there, at the first poll().
TEST_F(MonitorGpu, WaitBringsWhatACheckFound) {
  for (const Format format : kFormats) {
    Twins t({.format = format});
    t.alloc({5, 6, 7}, 4);
    t.prefill(1, 4, {5, 6, 7});
    t.step();
    t.gpu->wait();
    EXPECT_TRUE(t.gpu->poll().empty());
    t.flip_byte(0, 6);
    t.gpu->verify_now(Moment::tail, 4, 1, 0, 3, t.batch(true));
    t.gpu->wait();
    const std::vector<Violation> found = t.gpu->poll();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].slot, 6);
    EXPECT_EQ(found[0].reasons, Reason::kv_bytes);
    t.gpu->wait();
    EXPECT_TRUE(t.gpu->poll().empty()) << "once";
  }
}

TEST_F(MonitorGpu, WhatTheGpuCannotIsRefused) {
  Twins t({.extra_pools = false});
  t.prefill(1, 4, {5});
  EXPECT_THROW(t.gpu->begin_step(t.batch(false)), ValueError);  // tables on the host
  EXPECT_THROW(t.cpu->begin_step(t.batch(true)), ValueError);
  EXPECT_THROW(t.cpu->begin_step(cuda::DeviceBatch{}, {}), ValueError);
  EXPECT_THROW(t.gpu->on_attach(1, Twins::kRows, 0, 4), ValueError);
  PoolSpec elsewhere = t.gpu->pool(0);
  elsewhere.device = {};
  EXPECT_THROW(t.gpu->add_pool(elsewhere), ValueError);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_THROW(t.gpu->begin_step(t.batch(true), {stream}), NotImplementedError);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaGraphExecDestroy(exec));
  check_cuda(cudaStreamDestroy(stream));
}

// The same drill on both: the same faults done, the same faults found.
TEST_F(MonitorGpu, FaultsOnPurposeAreTheCpus) {
  for (const Format format : kFormats) {
    for (std::size_t p = 0; p < kNumPerturbations; ++p) {
      for (const int pool : {0, 1}) {
        Twins t({.depth = Depth::all, .format = format}, p + 1);
        InjectOptions drill{.enabled = true, .seed = 3 + p, .warmup_steps = 0, .pool = pool};
        drill.probability[p] = 1;
        Injector on_cpu(*t.cpu, drill), on_gpu(*t.gpu, drill);
        const Ints first{5, 6, 7, 8, 9}, second{20, 21, 22}, unread{30, 31};
        t.alloc(first, 1), t.alloc(second, 2), t.alloc(unread, 3);
        t.prefill(3, 3, unread);
        t.step();
        t.prefill(1, 1, first);
        t.step();
        t.prefill(2, 2, second);
        t.step();
        // A decode of both.
        t.clear_batch();
        t.alloc({10}, 1), t.alloc({23}, 2);
        t.rows = {1, 2}, t.owners = {1, 2}, t.prefix = {5, 3}, t.extend = {1, 1}, t.valid = {6, 4};
        t.ids = {77, 78}, t.positions = {5, 3}, t.locations = {10, 23};
        for (Int i = 0; i < 2; ++i) {
          const auto cell =
              static_cast<std::size_t>(t.rows[static_cast<std::size_t>(i)] * Twins::kWidth +
                                       t.prefix[static_cast<std::size_t>(i)]);
          t.table.host[cell] = static_cast<std::int32_t>(t.locations[static_cast<std::size_t>(i)]);
          t.expected.host[cell] = static_cast<std::int32_t>(77 + i);
          t.write_kv(t.locations[static_cast<std::size_t>(i)]);
        }
        t.table.send();
        t.expected.send();
        Ints ids = t.ids, positions = t.positions;
        const std::vector<Injected> there = on_gpu.before_step(t.batch(true), ids, positions);
        const std::vector<Injected> here = on_cpu.before_step(t.batch(false), t.ids, t.positions);
        EXPECT_EQ(ids, t.ids);
        EXPECT_EQ(positions, t.positions);
        t.cpu->begin_step(t.batch(false));
        t.gpu->begin_step(t.batch(true));
        t.cpu->end_step(t.batch(false));
        t.gpu->end_step(t.batch(true));
        const std::vector<Injected> there_after = on_gpu.after_step(t.batch(true));
        const std::vector<Injected> here_after = on_cpu.after_step(t.batch(false));
        const auto words = [](const std::vector<Injected>& before,
                              const std::vector<Injected>& after) {
          std::string all;
          for (const auto* done : {&before, &after}) {
            for (const Injected& i : *done) all += to_text(i) + "\n";
          }
          return all;
        };
        const std::string what = name_of(static_cast<Perturbation>(p));
        EXPECT_EQ(words(there, there_after), words(here, here_after)) << what;
        t.expect_equal(what);
        // The other format knows less of what was written.
        if (format == Format::serinus) {
          EXPECT_EQ(t.by_gpu.empty(), here.empty() && here_after.empty()) << what;
        }
      }
    }
  }
}

// Forwards in two streams, the host ahead of both.
TEST_F(MonitorGpu, StreamsTakeTurns) {
  for (const Format format : kFormats) {
    Twins t({.verify = VerifyPolicy::rolling, .extra_pools = false, .format = format});
    cudaStream_t streams[2] = {};
    for (cudaStream_t& s : streams) {
      check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    for (Int row = 1; row < 9; ++row) {
      const auto owner = static_cast<Owner>(row);
      Ints slots;
      for (Int i = 0; i < 60; ++i) slots.push_back(row * 100 + i);
      t.alloc(slots, owner);
      t.prefill(row, owner, slots);
      check_cuda(cudaDeviceSynchronize());  // of the test's own uploads
      t.step({streams[row % 2]});
      t.read_again();
      for (int i = 0; i < 20; ++i) t.step({streams[(row + i) % 2]});
      if (row % 3 != 0) continue;
      t.free(slots, owner);
      t.alloc({slots[0]}, owner + 100);
    }
    check_cuda(cudaDeviceSynchronize());
    t.expect_equal("streams");
    EXPECT_TRUE(t.by_gpu.empty());
    for (cudaStream_t s : streams) check_cuda(cudaStreamDestroy(s));
  }
}

// The forward of other requests begins before this one ends, each in a stream of its own.
TEST_F(MonitorGpu, SeveralStepsInFlight) {
  for (const Format format : kFormats) {
    Twins t({.verify = VerifyPolicy::rolling, .format = format});
    cudaStream_t streams[2] = {};
    for (cudaStream_t& s : streams) {
      check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    /// A decode of one request, with arrays of its own.
    struct Step {
      Ints rows, prefix, extend{1}, valid, ids, positions, locations;
      std::vector<Owner> owners;
      Batch batch(const Twins& twins, bool on_gpu) const {
        Batch b = twins.batch(on_gpu);
        b.rows = rows, b.prefix_lens = prefix, b.extend_lens = extend, b.owners = owners;
        b.valid_lens = valid, b.input_ids = ids, b.positions = positions;
        b.out_cache_loc = locations;
        return b;
      }
    };
    constexpr Int kForwards = 40, kRequests = 2;
    for (Int row = 1; row <= kRequests; ++row) {
      Ints slots;
      for (Int i = 0; i < kForwards; ++i) slots.push_back(row * 100 + i);
      t.alloc(slots, static_cast<Owner>(row));
      for (Int i = 0; i < kForwards; ++i) {
        const auto cell = static_cast<std::size_t>(row * Twins::kWidth + i);
        t.table.host[cell] = static_cast<std::int32_t>(slots[static_cast<std::size_t>(i)]);
        t.expected.host[cell] = static_cast<std::int32_t>(1000 * row + i);
        t.write_kv(slots[static_cast<std::size_t>(i)]);
      }
    }
    t.table.send();
    t.expected.send();
    check_cuda(cudaDeviceSynchronize());  // of the test's own uploads
    std::deque<Step> steps;
    const auto begin = [&](Int row, Int n) {
      Step& s = steps.emplace_back();
      s.rows = {row}, s.owners = {static_cast<Owner>(row)}, s.prefix = {n}, s.valid = {n + 1};
      s.ids = {1000 * row + n}, s.positions = {n}, s.locations = {row * 100 + n};
      t.cpu->begin_step(s.batch(t, false));
      t.gpu->begin_step(s.batch(t, true), {streams[row - 1]});
    };
    const auto end = [&](Int row) {
      const auto s = std::ranges::find_if(steps, [&](const Step& x) { return x.rows[0] == row; });
      t.cpu->end_step(s->batch(t, false));
      t.gpu->end_step(s->batch(t, true), {streams[row - 1]});
      steps.erase(s);
    };
    begin(1, 0);
    for (Int n = 0; n < kForwards; ++n) {
      begin(2, n);
      end(1);
      if (n + 1 < kForwards) begin(1, n + 1);
      end(2);
    }
    check_cuda(cudaDeviceSynchronize());
    t.expect_equal("in flight");
    EXPECT_TRUE(t.by_gpu.empty());
    t.flip_byte(0, 105);
    // The sglang format finds what somebody reads: nobody does any more.
    t.expect_equal("in flight, and a fault");
    EXPECT_EQ(t.by_gpu.size(), format == Format::serinus ? 1u : 0u);
    EXPECT_EQ(t.gpu->stats().records_written, t.cpu->stats().records_written);
    for (cudaStream_t s : streams) check_cuda(cudaStreamDestroy(s));
  }
}

/// A batch whose arrays lie on the device, filled anew before each use.
struct OnDevice {
  explicit OnDevice(const Twins& t) {
    const auto bs = std::ssize(t.rows), n = std::ssize(t.ids);
    const auto view = [](const DeviceBuffer& b, DType type, Int count) {
      return TensorView(b.data(), type, {count}, kGpu);
    };
    batch.rows = view(rows, DType::i64, bs);
    batch.prefix_lens = view(prefix, DType::i64, bs);
    batch.extend_lens = view(extend, DType::i64, bs);
    batch.owners = view(owners, DType::u32, bs);
    batch.valid_lens = view(valid, DType::i64, bs);
    batch.input_ids = view(ids, DType::i64, n);
    batch.positions = view(positions, DType::i64, n);
    batch.out_cache_loc = view(locations, DType::i64, n);
    if (!t.parents.empty()) batch.parents = view(parents, DType::i64, n);
    batch.req_to_token = t.batch(true).req_to_token;
    batch.expected_tokens = t.batch(true).expected_tokens;
  }
  void send(const Twins& t) const {
    const auto put = [](const DeviceBuffer& b, const auto& v) {
      b.upload(v.data(), v.size() * sizeof v[0]);
    };
    put(rows, t.rows), put(prefix, t.prefix), put(extend, t.extend), put(owners, t.owners);
    put(valid, t.valid), put(ids, t.ids), put(positions, t.positions);
    put(locations, t.locations);
    if (!t.parents.empty()) put(parents, t.parents);
    t.table.send();
    t.expected.send();
  }
  DeviceBuffer rows{512}, prefix{512}, extend{512}, owners{512}, valid{512}, ids{4096},
      positions{4096}, locations{4096}, parents{4096};
  cuda::DeviceBatch batch;
};

// A slot that is handed out again begins a life, and its next fault is another.
TEST_F(MonitorGpu, LivesOfTheSglangFormatAreTheCpus) {
  Twins t({.extra_pools = false, .format = Format::sglang});
  for (Owner owner = 1; owner <= 3; ++owner) {
    t.alloc({5, 6, 7}, owner);
    t.prefill(1, owner, {5, 6, 7});
    t.step();
    t.read_again();
    t.flip_byte(0, 6);
    t.step();
    t.step();
    t.both([](Monitor& m) { m.wait(); });
    EXPECT_EQ(t.cpu->poll().size(), 1u) << owner;
    EXPECT_EQ(t.gpu->poll().size(), 1u) << owner;
    t.free({5, 6, 7}, owner);
  }
  EXPECT_EQ(t.gpu->stats().sightings, t.cpu->stats().sightings);
}

// What nobody reads is swept where the engine's tree says that it lies, in every pool.
TEST_F(MonitorGpu, SweepsOfTheSglangFormatAreTheCpus) {
  for (const bool replayed : {false, true}) {
    Twins t({.format = Format::sglang});
    const Ints slots{5, 6, 7, 8};
    t.alloc(slots, 4);
    t.prefill(1, 4, slots);
    t.step();
    std::vector<SweepEntry> tree;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      tree.push_back({slots[i], static_cast<Int>(i), i == 0 ? -1 : slots[i - 1]});
    }
    t.both([&](Monitor& m) {
      for (int p = 0; p < t.pools(); ++p) {
        m.set_sweep_source(p, [&tree](std::vector<SweepEntry>& to) { to = tree; });
      }
    });
    t.flip_byte(0, 6);
    t.flip_byte(1, 7);
    t.change_record(2, 8, [](Record& r) { r.chain ^= 1; });
    t.clear_batch();
    const OnDevice device(t);
    for (int i = 0; i < 4; ++i) {
      t.cpu->begin_step(t.batch(false));
      t.cpu->end_step(t.batch(false));
      if (replayed) {
        t.gpu->begin_replay(device.batch, {});
      } else {
        t.gpu->begin_step(t.batch(true));
        t.gpu->end_step(t.batch(true));
      }
    }
    t.both([](Monitor& m) { m.wait(); });
    t.poll();
    EXPECT_EQ(t.by_gpu.size(), 3u);
    for (const auto& [key, v] : t.by_cpu) {
      ASSERT_TRUE(t.by_gpu.contains(key)) << to_text(v, "p");
      EXPECT_EQ(v.reasons, t.by_gpu.at(key).reasons);
      EXPECT_EQ(v.prev_slot, t.by_gpu.at(key).prev_slot);
      EXPECT_EQ(t.by_gpu.at(key).moment, Moment::sweep);
    }
    EXPECT_EQ(t.by_gpu.size(), t.by_cpu.size());
    if (!replayed) {
      EXPECT_EQ(t.gpu->stats().sweeps, t.cpu->stats().sweeps);
    }
  }
}

// A number that an engine may have got wrong: as a rule it is one of [low, high].
Int any_number(Rng& rng, Int low, Int high) {
  constexpr Int kWild[] = {-1,
                           -2,
                           -7,
                           1 << 20,
                           Int{1} << 40,
                           -(Int{1} << 40),
                           std::numeric_limits<Int>::max(),
                           std::numeric_limits<Int>::min()};
  return pick(rng, 0, 5) == 0 ? kWild[pick(rng, 0, std::ssize(kWild) - 1)] : pick(rng, low, high);
}

/// Batches of numbers that need not make sense, which come with announcements that need not either.
/// What is written is never what the chains of the same batch continue: in which order those happen
/// is nobody's promise.
void run_nonsense(std::uint64_t seed, int steps) {
  Twins t({.depth = static_cast<Depth>(seed % 3), .ring = 1 << 14, .format = Format::sglang}, seed);
  Rng& rng = t.rng;
  t.add("ahead", PoolKind::draft, static_cast<int>(any_number(rng, 0, 3)));
  constexpr Int kHalf = Twins::kSlots / 2;
  std::vector<SweepEntry> swept;
  for (int p = 0; p < t.pools(); ++p) {
    t.both([&](Monitor& m) { m.set_sweep_source(p, [&](auto& entries) { entries = swept; }); });
  }
  const auto some_slots = [&](Int n) {
    Ints slots;
    for (Int i = 0; i < n; ++i) {
      const Int slot = any_number(rng, 1, Twins::kSlots - 2);
      if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
    }
    return slots;
  };
  for (int step = 0; step < steps; ++step) {
    const std::string what = "seed " + std::to_string(seed) + " step " + std::to_string(step);
    // Tables name slots of one half, locations of the other.
    const bool low = pick(rng, 0, 1) == 0;
    for (std::int32_t& cell : t.table.host) {
      const Int slot = any_number(rng, low ? 1 : kHalf, low ? kHalf - 1 : Twins::kSlots - 2);
      cell = static_cast<std::int32_t>(std::clamp<Int>(slot, INT32_MIN, INT32_MAX));
    }
    for (std::int32_t& token : t.expected.host) token = static_cast<std::int32_t>(rng() % 8);
    for (Int s = 1; s < Twins::kSlots; ++s) {
      t.swa.host[static_cast<std::size_t>(s)] = any_number(rng, 0, 9) < 9 ? Twins::kSlots - s : -1;
    }
    // What lies beyond the mapping has its last entry.
    t.swa.host.back() = pick(rng, 0, 1) == 0 ? -1 : Int{1} << 40;
    t.swa.send();
    t.clear_batch();
    const Int n = pick(rng, 0, 9);
    Int tokens = 0;
    for (Int r = 0; r < n; ++r) {
      t.rows.push_back(any_number(rng, 0, Twins::kRows));
      t.owners.push_back(static_cast<Owner>(any_number(rng, 0, 9)));
      t.prefix.push_back(any_number(rng, 0, Twins::kWidth + 2));
      t.extend.push_back(any_number(rng, 0, 40));
      t.valid.push_back(any_number(rng, 0, Twins::kWidth + 2));
      tokens += std::clamp<Int>(t.extend.back(), 0, 40);
    }
    tokens = std::clamp<Int>(tokens + pick(rng, -3, 3), 0, kHalf - 2);
    Ints slots;
    for (Int s = low ? kHalf : 1; s < (low ? Twins::kSlots - 1 : kHalf); ++s) slots.push_back(s);
    std::ranges::shuffle(slots, rng);
    const bool is_tree = pick(rng, 0, 2) == 0;
    for (Int i = 0; i < tokens; ++i) {
      const Int slot = slots[static_cast<std::size_t>(i)];
      const Int said = any_number(rng, slot, slot);
      t.locations.push_back(said);
      const Int token = any_number(rng, 0, 8);
      t.ids.push_back(token == -1 ? 8 : token);  // of a report, -1 says that it is not known
      t.positions.push_back(
          i > 0 && pick(rng, 0, 9) > 0
              ? static_cast<Int>(static_cast<std::uint64_t>(t.positions.back()) + 1)
              : any_number(rng, 0, 170));
      if (is_tree) t.parents.push_back(any_number(rng, i - 3, i));
      t.write_kv(slot);
    }
    swept.clear();
    for (Int i = pick(rng, 0, 30); i > 0; --i) {
      swept.push_back({any_number(rng, 0, 999), any_number(rng, 0, 100), any_number(rng, -1, 999)});
    }
    // Announcements.
    for (Int i = pick(rng, 0, 4); i > 0; --i) {
      const auto pool = static_cast<int>(pick(rng, 0, t.pools() - 1));
      const Ints to = some_slots(pick(rng, 0, 20));
      Ints from = to;
      for (Int& f : from) f = any_number(rng, 0, Twins::kSlots - 1);
      std::vector<Record> records(to.size());
      for (Record& r : records) r = {1, 2, static_cast<Owner>(rng()), 0, rng(), rng()};
      switch (pick(rng, 0, 4)) {
        case 0:
          t.both([&](Monitor& m) { m.on_move(pool, from, to); });
          break;
        case 1:
          t.both([&](Monitor& m) { m.on_load(pool, records, to, 5); });
          break;
        case 2: {
          std::vector<Record> other = records;
          t.cpu->on_store(pool, to, records);
          t.gpu->on_store(pool, to, other);
          EXPECT_EQ(records, other) << what;
          break;
        }
        case 3:
          t.both([&](Monitor& m) { m.set_record(pool, 1 + std::ssize(to), Record{9, 9}); });
          break;
        default:
          t.both([&](Monitor& m) { m.on_alloc(pool, to, 6); });
      }
    }
    const Int row = any_number(rng, 0, Twins::kRows), begin = any_number(rng, 0, 40),
              end = any_number(rng, 0, 170), length = any_number(rng, 0, 170);
    const auto kind = pick(rng, 0, 7);
    const OnDevice device(t);
    device.send(t);
    for (const bool on_gpu : {false, true}) {
      Batch b = t.batch(on_gpu);
      Monitor& m = on_gpu ? *t.gpu : *t.cpu;
      if (kind == 0) b.valid_lens = {};
      if (kind == 1) b.expected_tokens = {};
      if (kind == 2) m.stamp_now(b);
      if (kind > 5 && on_gpu) {
        m.begin_step(device.batch, {});
        m.end_step(device.batch, {});
        check_cuda(cudaDeviceSynchronize());
        continue;
      }
      m.begin_step(b);
      if (kind == 3) {
        m.verify_now(static_cast<Moment>(step % 3), 5, row, begin, end, b);
      } else if (kind == 4) {
        m.flush();
      }
      m.end_step(b);
    }
    t.expect_equal(what);
    t.expect_equal_stats(what);
    EXPECT_EQ(t.cpu->request_digest(row, length, t.batch(false)),
              t.gpu->request_digest(row, length, t.batch(true)))
        << what;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(MonitorGpu, NonsenseInTheSglangFormatIsTheCpus) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    run_nonsense(seed, 6);
    if (HasFailure()) return;
  }
}

// Trees of drafts of any shape; then each request takes one path of its own, and gives back the
// rest.
void run_trees(const Setup& setup, std::uint64_t seed, bool faults, bool device_batch) {
  Twins t(setup, seed);
  Ints unused;
  for (Int s = 1; s < Twins::kSlots; ++s) unused.push_back(s);
  std::ranges::shuffle(unused, t.rng);
  const auto take = [&] {
    const Int slot = unused.back();
    unused.pop_back();
    return slot;
  };
  Ints lengths;
  for (Int row = 1; row <= 3; ++row) {
    Ints slots(static_cast<std::size_t>(pick(t.rng, 1, 20)));
    std::ranges::generate(slots, take);
    lengths.push_back(std::ssize(slots));
    t.alloc(slots, static_cast<Owner>(row));
    t.prefill(row, static_cast<Owner>(row), slots);
    t.step();
  }
  for (int step = 0; step < 3; ++step) {
    t.clear_batch();
    std::vector<Ints> paths;
    for (Int row = 1; row <= 3; ++row) {
      const auto owner = static_cast<Owner>(row);
      const Int prefix = lengths[static_cast<std::size_t>(row - 1)], begin = std::ssize(t.ids);
      // One tree of more tokens than a CTA has threads.
      const Int n = step == 0 && row == 2 ? 300 : pick(t.rng, 1, 40);
      t.rows.push_back(row), t.owners.push_back(owner), t.prefix.push_back(prefix);
      t.extend.push_back(n), t.valid.push_back(prefix);
      Ints depth, deepest;
      for (Int i = 0; i < n; ++i) {
        Int parent = i == 0 ? -1 : pick(t.rng, std::max<Int>(-1, i - 12), i - 1);
        if (parent >= 0 && depth[static_cast<std::size_t>(parent)] > 30) parent = -1;
        depth.push_back(parent < 0 ? 0 : depth[static_cast<std::size_t>(parent)] + 1);
        const Int slot = take();
        t.alloc({slot}, owner);
        t.locations.push_back(slot);
        t.write_kv(slot);
        t.ids.push_back(pick(t.rng, 0, 150000));
        t.positions.push_back(prefix + depth.back());
        t.parents.push_back(parent < 0 ? -1 : begin + parent);
        if (deepest.empty() || depth.back() > depth[static_cast<std::size_t>(deepest.back())]) {
          deepest = {i};
        }
      }
      for (Int i = deepest[0]; t.parents[static_cast<std::size_t>(begin + i)] >= 0;) {
        i = t.parents[static_cast<std::size_t>(begin + i)] - begin;
        deepest.insert(deepest.begin(), i);
      }
      for (Int& i : deepest) i += begin;
      paths.push_back(deepest);
    }
    if (faults) {
      const Int n = std::ssize(t.parents);
      const auto any = [&] { return static_cast<std::size_t>(pick(t.rng, 0, n - 1)); };
      for (const Int wild : {Int{-2}, n + 5, Int{INT64_MIN}}) t.parents[any()] = wild;
      t.locations[any()] = -1;
      t.locations[any()] = 5000;
      t.positions[any()] = -3;
      t.positions[any()] += 1;
    }
    // Padding of both kinds.
    t.rows.push_back(0), t.owners.push_back(0), t.prefix.push_back(0), t.extend.push_back(1);
    t.valid.push_back(0);
    for (int i = 0; i < 2; ++i) {
      t.ids.push_back(7), t.positions.push_back(0), t.locations.push_back(-1);
      t.parents.push_back(-1);
    }
    if (device_batch) {
      const OnDevice device(t);
      device.send(t);
      t.cpu->begin_step(t.batch(false));
      t.cpu->end_step(t.batch(false));
      t.gpu->begin_step(device.batch, {});
      t.gpu->end_step(device.batch, {});
      check_cuda(cudaDeviceSynchronize());
    } else {
      t.step();
    }
    t.poll();
    // What is accepted becomes the row.
    Ints rejected;
    std::set<Int> taken;
    for (std::size_t r = 0; r < paths.size(); ++r) {
      for (const Int i : paths[r]) {
        const auto at = static_cast<std::size_t>(i);
        const auto cell =
            static_cast<std::size_t>(static_cast<Int>(r + 1) * Twins::kWidth + lengths[r]++);
        t.table.host[cell] = static_cast<std::int32_t>(t.locations[at]);
        t.expected.host[cell] = static_cast<std::int32_t>(t.ids[at]);
        taken.insert(t.locations[at]);
      }
    }
    for (const Int slot : t.locations) {
      if (slot > 0 && slot < Twins::kSlots && !taken.contains(slot)) rejected.push_back(slot);
    }
    t.free(rejected, 0);
    t.clear_batch();
    for (Int row = 1; row <= 3; ++row) {
      t.rows.push_back(row), t.owners.push_back(static_cast<Owner>(row));
      t.prefix.push_back(lengths[static_cast<std::size_t>(row - 1)]), t.extend.push_back(0);
      t.valid.push_back(t.prefix.back());
    }
    t.step();
    t.poll();
  }
  const std::string what = "trees, seed " + std::to_string(seed);
  t.expect_equal(what);
  if (faults) {
    EXPECT_FALSE(t.by_gpu.empty()) << what;
  } else {
    EXPECT_TRUE(t.by_gpu.empty()) << what;
    t.expect_equal_stats(what);
  }
}

TEST_F(MonitorGpu, TreesOfDraftsAreTheCpus) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const serinus::canary::Setup setup{
        .depth = static_cast<Depth>(seed % 3),
        .verify = seed % 2 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling,
        .extra_pools = seed % 4 < 2,
        .ring = 4096,
        .format = kFormats[seed / 6]};
    run_trees(setup, seed, seed % 6 >= 3, seed % 2 == 1);
    if (HasFailure()) return;
  }
}

/// One decode step of four requests, ready to be described.
struct Decode {
  explicit Decode(Twins& twins) : t(twins) {
    for (Int row = 1; row <= 4; ++row) {
      lengths.push_back(40);
      Ints slots;
      for (Int i = 0; i < 40; ++i) slots.push_back(next++);
      t.alloc(slots, static_cast<Owner>(row));
      t.prefill(row, static_cast<Owner>(row), slots);
      t.step();
    }
  }
  void next_step() {
    t.clear_batch();
    for (Int row = 1; row <= 4; ++row) {
      Int& length = lengths[static_cast<std::size_t>(row - 1)];
      const auto cell = static_cast<std::size_t>(row * Twins::kWidth + length);
      const Int slot = next++;
      t.alloc({slot}, static_cast<Owner>(row));
      t.table.host[cell] = static_cast<std::int32_t>(slot);
      t.expected.host[cell] = static_cast<std::int32_t>(slot + 7);
      t.rows.push_back(row), t.owners.push_back(static_cast<Owner>(row));
      t.prefix.push_back(length), t.extend.push_back(1), t.valid.push_back(length + 1);
      t.ids.push_back(slot + 7), t.positions.push_back(length), t.locations.push_back(slot);
      t.write_kv(slot);
      ++length;
    }
  }
  Twins& t;
  Ints lengths;
  Int next = 1;
};

// For an all-gather: what the GPU makes of its own records, as the CPU does of its.
TEST_F(MonitorGpu, RequestDigestsAreMadeWhereTheRecordsLie) {
  for (const Format format : kFormats) {
    Twins t({.format = format});
    Ints slots;
    for (Int i = 0; i < Twins::kWidth; ++i) slots.push_back(i * 5 % 997 + 1);
    t.alloc(slots, 4);
    t.prefill(1, 4, slots);
    t.step();
    const Ints odd{slots[0], 990, -7, 1 << 30, slots[4]};  // nothing is there, nor there
    for (std::size_t i = 0; i < odd.size(); ++i) {
      t.table.host[2 * Twins::kWidth + i] = static_cast<std::int32_t>(odd[i]);
    }
    t.clear_batch();
    t.rows = {1, 1, 1, 2, 0, -5, Int{1} << 40, 1, 1};
    t.prefix = {Twins::kWidth, 7, 0, 5, 3, 3, 3, -1, Int{1} << 40};
    t.owners = {4, 4, 4, 9, 1, 1, 1, 4, 4};
    t.extend = t.valid = Ints(t.rows.size(), 0);
    OnDevice device(t);
    device.send(t);
    const auto bs = std::ssize(t.rows);
    const DeviceBuffer made(t.rows.size() * sizeof(RequestDigest));
    const TensorView digests(made.data(), DType::u8, {bs, 32}, kGpu);
    for (int p = 0; p < t.pools(); ++p) {
      t.gpu->request_digests(p, device.batch, digests, {});
      const auto got = made.download<RequestDigest>();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], request_digest(*t.cpu, p, t.owners[i], t.rows[i], t.prefix[i],
                                         t.batch(false).req_to_token))
            << "pool " << p << ", request " << i;
      }
      EXPECT_NE(got[0].chain, got[1].chain);
      EXPECT_NE(got[0].kv, got[1].kv);
    }
    EXPECT_THROW(t.gpu->request_digests(7, device.batch, digests, {}), ValueError);
    EXPECT_THROW(
        t.gpu->request_digests(0, device.batch, {made.data(), DType::u8, {bs, 31}, kGpu}, {}),
        ValueError);
    EXPECT_THROW(t.cpu->request_digests(0, device.batch, digests, {}), ValueError);
  }
}

/// How a forward is cut into graphs, and where the moments are.
struct Cut {
  const char* name;
  int pieces;
  bool inside;  ///< the head in the first piece, the tail in the last
  Depth depth;
  Format format = Format::serinus;
};

// Graphs that are launched again and again over the same buffers: of a whole forward and of its
// pieces, between which other kernels run, with the moments inside and outside.
TEST_F(MonitorGpu, GraphsHoldTheMoments) {
  for (const Cut& cut : {Cut{"one graph", 1, true, Depth::none},
                         {"one graph", 1, true, Depth::all},
                         {"one graph, moments outside", 1, false, Depth::all},
                         {"three pieces", 3, true, Depth::none},
                         {"three pieces", 3, true, Depth::all},
                         {"three pieces, moments outside", 3, false, Depth::none},
                         {"sglang, one graph", 1, true, Depth::all, Format::sglang},
                         {"sglang, moments outside", 1, false, Depth::none, Format::sglang},
                         {"sglang, three pieces", 3, true, Depth::partial, Format::sglang}}) {
    Twins t({.depth = cut.depth, .verify = VerifyPolicy::rolling, .format = cut.format});
    Decode decode(t);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const DeviceBuffer forward(1024);
    std::unique_ptr<OnDevice> device;
    std::vector<cudaGraphExec_t> pieces;
    for (int step = 0; step < 30; ++step) {
      decode.next_step();
      if (device == nullptr) {
        device = std::make_unique<OnDevice>(t);
        check_cuda(cudaDeviceSynchronize());
        for (int i = 0; i < cut.pieces; ++i) {
          cudaGraph_t graph = nullptr;
          check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
          if (cut.inside && i == 0) t.gpu->begin_step(device->batch, {stream});
          check_cuda(cudaMemsetAsync(forward.data(), step, 1024, stream));
          if (cut.inside && i + 1 == cut.pieces) t.gpu->end_step(device->batch, {stream});
          t.poll();  // while it is captured
          check_cuda(cudaStreamEndCapture(stream, &graph));
          check_cuda(cudaGraphInstantiate(&pieces.emplace_back(), graph, 0));
          check_cuda(cudaGraphDestroy(graph));
        }
      }
      if (step == 12) t.flip_byte(0, 3);
      if (step == 14) t.change_record(0, 90, [](Record& r) { r.token ^= 1; });
      if (step == 16) t.ids[1] ^= 2;
      if (step == 18) t.both([](Monitor& m) { m.on_attach(2, 2, 0, 9); });
      if (step == 20) t.free({5}, 0);
      device->send(t);
      check_cuda(cudaDeviceSynchronize());
      t.cpu->begin_step(t.batch(false));
      t.cpu->end_step(t.batch(false));
      if (cut.inside) {
        t.gpu->begin_replay(device->batch, {stream});
      } else {
        t.gpu->begin_step(device->batch, {stream});
      }
      for (cudaGraphExec_t piece : pieces) {
        check_cuda(cudaGraphLaunch(piece, stream));
        check_cuda(cudaMemsetAsync(forward.data(), step, 1024, stream));
      }
      if (!cut.inside) t.gpu->end_step(device->batch, {stream});
      check_cuda(cudaStreamSynchronize(stream));
      t.poll();
    }
    t.expect_equal(cut.name);
    EXPECT_GE(t.by_gpu.size(), cut.depth == Depth::none ? 3u : 4u) << cut.name;
    EXPECT_EQ(t.gpu->stats().records_written, t.cpu->stats().records_written) << cut.name;
    EXPECT_EQ(t.gpu->stats().steps, t.cpu->stats().steps) << cut.name;
    EXPECT_TRUE(t.gpu->health().empty()) << cut.name;
    for (cudaGraphExec_t piece : pieces) check_cuda(cudaGraphExecDestroy(piece));
    check_cuda(cudaStreamDestroy(stream));
  }
}

// While steps run, other threads ask for everything that may be asked from any thread.
TEST_F(MonitorGpu, AnyThreadMayPoll) {
  for (const Format format : kFormats) {
    Twins t({.verify = VerifyPolicy::rolling, .extra_pools = false, .ring = 64, .format = format});
    Decode decode(t);
    std::atomic<bool> done{false};
    std::vector<Violation> found[2];
    std::vector<std::thread> threads;
    for (std::vector<Violation>& mine : found) {
      threads.emplace_back([&] {
        while (!done) {
          for (Violation& v : t.gpu->poll()) mine.push_back(std::move(v));
          std::uint64_t seen = t.gpu->stats().violations + t.gpu->pool_stats().size();
          seen += t.gpu->health().size() + t.gpu->events(0, 5).size();
          seen += t.gpu->tainted().slots.size() + t.gpu->pool_events(0).size();
          EXPECT_GT(seen, 0u);
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      });
    }
    for (int step = 0; step < 60; ++step) {
      decode.next_step();
      if (step % 3 == 1) t.flip_byte(0, 1 + step);
      t.step();
      if (step % 3 == 1) t.cpu->verify_now(Moment::tail, 1, 1, 0, 40, t.batch(false));
      if (step % 3 == 1) t.gpu->verify_now(Moment::tail, 1, 1, 0, 40, t.batch(true));
    }
    t.both([](Monitor& m) { m.flush(); });
    done = true;
    for (std::thread& thread : threads) thread.join();
    // Each was handed out once, to whoever came first.
    std::multiset<Int> here, there;
    for (const Violation& v : t.cpu->poll()) here.insert(v.slot);
    for (const auto& mine : found) {
      for (const Violation& v : mine) there.insert(v.slot);
    }
    for (const Violation& v : t.gpu->poll()) there.insert(v.slot);
    EXPECT_EQ(there, here);
    EXPECT_EQ(here.size(), 20u);
  }
}

// A graph that lost the moments is found out, although begin_replay() is called.
TEST_F(MonitorGpu, AGraphWithoutTheMomentsIsAStall) {
  Twins t({.depth = Depth::none, .extra_pools = false});
  t.alloc({1, 2}, 1);
  t.prefill(1, 1, {1, 2});
  const OnDevice device(t);
  device.send(t);
  for (int i = 0; i < 300; ++i) t.gpu->begin_replay(device.batch, {});
  EXPECT_FALSE(t.gpu->health().empty());
}

/// A stream that is busy for as long as the host likes, five seconds at most: a call that waits for
/// it fails its test and does not hang.
class BusyStream {
 public:
  BusyStream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const auto wait = [](void* flag) {
      while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
    };
    is_busy_ = cudaLaunchHostFunc(stream_, wait, &go_) == cudaSuccess;
    watchdog_ = std::thread([this] {
      for (int i = 0; i < 500 && !go_; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      go_ = true;
    });
  }
  ~BusyStream() {
    go_ = true;
    watchdog_.join();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  /// False: an emulated device never is.
  bool is_busy() const { return is_busy_; }
  /// Whether it was busy until now.
  bool let_go() {
    const bool was_busy = !go_.exchange(true);
    check_cuda(cudaStreamSynchronize(stream_));
    return was_busy;
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> go_{false};
  bool is_busy_ = false;
  std::thread watchdog_;
};

// Every call of a step returns although the device has not come to it.
TEST_F(MonitorGpu, NothingWaitsForTheDevice) {
  for (const Format format : kFormats) {
    Twins t({.verify = VerifyPolicy::rolling, .format = format});
    Decode decode(t);
    decode.next_step();
    const OnDevice device(t);
    device.send(t);
    t.step();  // what is allocated once is there
    check_cuda(cudaDeviceSynchronize());
    BusyStream busy;
    if (!busy.is_busy()) GTEST_SKIP() << "an emulated device is never busy";
    const Stream stream{busy.get()};
    for (int i = 0; i < 4; ++i) {
      t.gpu->on_alloc(0, Ints{900 + i}, 7);
      t.gpu->on_free(0, Ints{900 + i}, 7);
      t.gpu->on_attach(3, 3, 0, 8);
      t.gpu->begin_step(t.batch(true), stream);
      t.gpu->end_step(t.batch(true), stream);
      t.gpu->begin_step(device.batch, stream);
      t.gpu->end_step(device.batch, stream);
      t.gpu->begin_replay(device.batch, stream);
      t.gpu->poll();
      t.gpu->stats();
    }
    EXPECT_TRUE(busy.let_go()) << "a call waited for the device";
    t.gpu->flush();
    EXPECT_EQ(t.gpu->stats().violations, 0u);
  }
}

// A receive that may never end runs in a stream of its own: wait() has nothing to do with it.
TEST_F(MonitorGpu, WaitDoesNotWaitForStreamsOfOthers) {
  Twins t({.extra_pools = false});
  t.alloc({5, 6, 7}, 4);
  t.prefill(1, 4, {5, 6, 7});
  t.step();
  t.gpu->wait();
  t.flip_byte(0, 6);
  BusyStream busy;
  if (!busy.is_busy()) GTEST_SKIP() << "an emulated device is never busy";
  t.gpu->on_free(0, Ints{9}, 3);  // free already
  t.gpu->verify_now(Moment::head, 4, 1, 0, 3, t.batch(true));
  t.gpu->wait();
  std::set<Int> found;
  for (const Violation& v : t.gpu->poll()) found.insert(v.slot);
  EXPECT_EQ(found, (std::set<Int>{6, 9}));
  EXPECT_TRUE(busy.let_go()) << "wait() waited for a stream that nobody gave it";
}

TEST_F(MonitorGpu, ModeNoneLaunchesNothing) {
  Twins t({.extra_pools = false, .mode = Mode::none});
  t.alloc({1, 2}, 1);
  t.prefill(1, 1, {1, 2});
  const OnDevice device(t);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  t.gpu->begin_step(device.batch, {stream});
  t.gpu->end_step(device.batch, {stream});
  t.gpu->begin_step(t.batch(true), {stream});
  check_cuda(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 1;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 0u);
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
}

// Another device is current when the monitor is called, and stays so.
TEST_F(MonitorGpu, AnotherDeviceMayBeCurrent) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one GPU only";
  Twins t({.extra_pools = false});
  t.alloc({1, 2}, 1);
  t.prefill(1, 1, {1, 2});
  t.table.send();
  check_cuda(cudaSetDevice(1));
  t.gpu->begin_step(t.batch(true));
  t.gpu->end_step(t.batch(true));
  t.gpu->flush();
  EXPECT_TRUE(t.gpu->poll().empty());
  int current = 0;
  check_cuda(cudaGetDevice(&current));
  EXPECT_EQ(current, 1);
  check_cuda(cudaSetDevice(0));
  EXPECT_EQ(t.gpu->stats().records_written, 2u);
}

}  // namespace
}  // namespace serinus::canary
