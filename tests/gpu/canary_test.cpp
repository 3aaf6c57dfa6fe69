// The serinus format on the GPU against the CPU's Monitor: the same histories with the same faults
// give the same records, the same ledger, and the same violations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>

#include "tests/gpu/device_problem.h"

namespace serinus::canary::cuda {
namespace {

using testing::check_cuda;
using testing::DeviceBuffer;
using testing::kGpu;
using testing::pick;
using Int = testing::Int;
using Ints = testing::Ints;
using Rng = testing::Rng;

void fill_random(std::vector<std::uint8_t>& bytes, Rng& rng) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng();
    std::memcpy(&bytes[i], &word, std::min(sizeof word, bytes.size() - i));
  }
}

/// A device copy of a host vector that is sent anew before every use.
template <class T>
class Mirror {
 public:
  explicit Mirror(std::size_t capacity, int poison = 0x7f)
      : buffer_(capacity * sizeof(T), poison) {}
  TensorView send(const std::vector<T>& v, DType dtype) {
    if (!v.empty()) buffer_.upload(v.data(), v.size() * sizeof(T));
    return TensorView(buffer_.data(), dtype, {static_cast<Int>(v.size())}, kGpu);
  }

 private:
  DeviceBuffer buffer_;
};

TensorView bytes_of(const DeviceBuffer& b) {
  return TensorView(b.data(), DType::u8, {static_cast<Int>(b.bytes())}, kGpu);
}

RingContent read(const DeviceBuffer& ring, Int capacity) {
  const std::vector<std::uint8_t> copy = ring.download<std::uint8_t>();
  return read_ring(std::as_bytes(std::span(copy)), capacity);
}

/// Two layers of two buffers: rows of `main` bytes, and odd little ones beside them. Rows may be
/// cut in two segments that lie back to back.
KvLayout odd_layout(Int page, Int main, Int side, Int offset, Int cut) {
  KvLayout l;
  l.name = "odd";
  l.page_size = page;
  l.page_bytes = {page * (main + offset) + offset, page * side};
  KvSegment a;
  a.name = "a";
  a.offset = offset;
  a.token_stride = main + offset;
  a.bytes = main;
  KvSegment b;
  b.name = "b";
  b.buffer = 1;
  b.token_stride = b.bytes = side;
  l.segments = {a, b};
  if (cut == 0) return l;
  KvSegment rest = a;
  rest.name = "rest";
  rest.offset = offset + cut;
  rest.bytes = main - cut;
  l.segments = {a, rest, b};
  l.segments[0].bytes = cut;
  return l;
}

struct Setup {
  Depth depth = Depth::all;
  VerifyPolicy verify = VerifyPolicy::all;
  Int main = 576, side = 12, offset = 0, page = 4, cut = 0;
  Int slots = 1000, rows = 10, width = 160, max_tokens = 256, ring = 512;
  bool captured = false;  ///< the moments of a step are captured once, and replayed
};

/// Captures what it is given the first time, and replays that every time.
class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (exec_ == nullptr) return;
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  template <class Launches>
  void run(const Launches& launches) {
    if (exec_ == nullptr) {
      check_cuda(cudaStreamCreate(&stream_));
      check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      launches(Stream{stream_});
      check_cuda(cudaStreamEndCapture(stream_, &graph_));
      check_cuda(cudaGraphInstantiate(&exec_, graph_, 0));
    }
    check_cuda(cudaGraphLaunch(exec_, stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

/// A CPU monitor and a GPU pool side by side. Every event goes to both.
class Both {
 public:
  static constexpr Int kSlots = Setup{}.slots, kRows = Setup{}.rows, kWidth = Setup{}.width;
  static constexpr Int kRecords = 64, kRing = Setup{}.ring;

  explicit Both(const Setup& s, std::uint64_t seed)
      : rng(seed),
        setup(s),
        table(static_cast<std::size_t>(setup.rows * setup.width)),
        expected(static_cast<std::size_t>(setup.rows * setup.width), -1) {
    const KvLayout layout = odd_layout(s.page, s.main, s.side, s.offset, s.cut);
    spec.layout = layout;
    spec.num_layers = 2;
    spec.num_slots = setup.slots;
    PoolSpec on_gpu = spec;
    for (int b = 0; b < 4; ++b) {
      const auto n = static_cast<std::size_t>(layout.page_bytes[static_cast<std::size_t>(b % 2)] *
                                              ((setup.slots + s.page - 1) / s.page));
      kv.emplace_back(n);
      fill_random(kv.back(), rng);
      gpu_kv.emplace_back(n);
      gpu_kv.back().upload(kv.back().data(), n);
      spec.buffers.push_back({.data = kv.back().data(), .bytes = static_cast<Int>(n)});
      on_gpu.buffers.push_back({.data = reinterpret_cast<std::uint8_t*>(gpu_kv.back().data()),
                                .bytes = static_cast<Int>(n)});
    }
    Options o;
    o.depth = s.depth;
    o.verify = s.verify;
    o.records_per_step = kRecords;
    o.ring_capacity = setup.ring;
    cpu = std::make_unique<Monitor>(o);
    cpu->add_pool(spec);

    pool = describe_pool(on_gpu, s.depth, 0, setup.rows);
    pool.records = TensorView(records.data(), DType::u8, {setup.slots, 32}, kGpu);
    pool.ledger = TensorView(ledger.data(), DType::i32, {setup.slots, 5}, kGpu);
    state = std::make_unique<DeviceBuffer>(pool_state_bytes(pool));
    pool.state = bytes_of(*state);
    init_pool(pool, on_gpu);
    ring = {bytes_of(ring_memory), setup.ring};
    clear_ring(ring);
  }

  void alloc(const Ints& slots, Owner owner) {
    cpu->on_alloc(0, slots, owner);
    on_alloc(pool, ring, lists[0].send(slots, DType::i64), owner, ++epoch);
    check_cuda(cudaDeviceSynchronize());
  }
  void free(const Ints& slots, Owner owner) {
    cpu->on_free(0, slots, owner);
    on_free(pool, ring, lists[0].send(slots, DType::i64), owner);
    check_cuda(cudaDeviceSynchronize());
  }
  void transfer(const Ints& slots, Owner from, Owner to) {
    cpu->on_transfer(0, slots, from, to);
    on_transfer(pool, ring, lists[0].send(slots, DType::i64), from, to);
    check_cuda(cudaDeviceSynchronize());
  }
  void move(const Ints& from, const Ints& to) {
    copy_bytes(from, to);
    cpu->on_move(0, from, to);
    const DeviceBuffer workspace(move_workspace_bytes(static_cast<Int>(from.size())));
    on_move(pool, ring, lists[0].send(from, DType::i64), lists[1].send(to, DType::i64),
            bytes_of(workspace));
    fresh.insert(fresh.end(), to.begin(), to.end());
    check_cuda(cudaDeviceSynchronize());
  }
  /// Store and load through host memory; `spoil` may change what travels.
  template <class Spoil>
  void reload(const Ints& from, const Ints& to, Owner owner, bool with_bytes, const Spoil& spoil) {
    std::vector<Record> travelling(from.size());
    cpu->on_store(0, from, travelling);
    const DeviceBuffer stored(from.size() * sizeof(Record));
    const TensorView view(stored.data(), DType::u8, {static_cast<Int>(from.size()), 32}, kGpu);
    on_store(pool, ring, lists[0].send(from, DType::i64), view);
    check_cuda(cudaDeviceSynchronize());
    EXPECT_EQ(stored.download<Record>(), travelling);
    spoil(travelling);
    stored.upload(travelling.data(), travelling.size() * sizeof(Record));
    if (with_bytes) copy_bytes(from, to);
    cpu->on_load(0, travelling, to, owner);
    on_load(pool, ring, view, lists[1].send(to, DType::i64), owner);
    check_cuda(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (travelling[i] != Record{}) fresh.push_back(to[i]);
    }
  }

  std::uint8_t* byte(int buffer, Int slot, Int i) {
    const std::vector<KvSegment>& segments = spec.layout.segments;
    const KvSegment& s = buffer % 2 == 0 ? segments.front() : segments.back();
    const Int page_bytes = spec.layout.page_bytes[static_cast<std::size_t>(buffer % 2)];
    return &kv[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(
        slot / setup.page * page_bytes + s.offset + slot % setup.page * s.token_stride + i)];
  }
  void sync_byte(int buffer, const std::uint8_t* at, std::size_t n) {
    const auto b = static_cast<std::size_t>(buffer);
    gpu_kv[b].upload(at, n, static_cast<std::size_t>(at - kv[b].data()));
  }
  void fill_bytes(Int slot) {
    for (int b = 0; b < 4; ++b) {
      const auto n = static_cast<std::size_t>(b % 2 == 0 ? setup.main : setup.side);
      std::uint8_t* const at = byte(b, slot, 0);
      for (std::size_t i = 0; i < n; ++i) at[i] = static_cast<std::uint8_t>(rng());
      sync_byte(b, at, n);
    }
  }
  void copy_bytes(const Ints& from, const Ints& to) {
    const auto before = kv;
    for (std::size_t i = 0; i < from.size(); ++i) {
      for (int b = 0; b < 4; ++b) {
        const auto n = static_cast<std::size_t>(b % 2 == 0 ? setup.main : setup.side);
        std::memcpy(byte(b, to[i], 0),
                    before[static_cast<std::size_t>(b)].data() +
                        (byte(b, from[i], 0) - kv[static_cast<std::size_t>(b)].data()),
                    n);
        sync_byte(b, byte(b, to[i], 0), n);
      }
    }
  }
  void flip_byte(Int slot) {
    const auto buffer = static_cast<int>(pick(rng, 0, 3));
    std::uint8_t* const at = byte(buffer, slot, pick(rng, 0, 1) == 0 ? 0 : 11);
    *at ^= 0x10;
    sync_byte(buffer, at, 1);
  }
  template <class Change>
  void change_record(Int slot, const Change& change) {
    Record& r = cpu->records(0)[static_cast<std::size_t>(slot)];
    change(r);
    records.upload(&r, sizeof r, static_cast<std::size_t>(slot) * sizeof r);
  }

  /// One forward over both; the vectors below describe it.
  void step() {
    Batch b;
    b.rows = rows;
    b.prefix_lens = prefix;
    b.extend_lens = extend;
    b.owners = owners;
    b.req_to_token = TensorView(table.data(), DType::i32, {setup.rows, setup.width});
    b.input_ids = ids;
    b.positions = positions;
    b.out_cache_loc = locations;
    b.expected_tokens = TensorView(expected.data(), DType::i32, {setup.rows, setup.width});
    b.valid_lens = valid;
    cpu->begin_step(b);
    cpu->end_step(b);

    const DeviceBatch head = send();
    DeviceBatch d = head;
    d.due.reset();
    if (!fresh.empty()) verify_slots(pool, ring, lists[10].send(fresh, DType::i64), Moment::head);
    fresh.clear();
    const auto moments = [&](Stream s) {
      const TensorView w = bytes_of(workspace);
      next_step(ring, s);
      verify(pool, ring, head, {Moment::head, setup.verify, kRecords / 4}, w, s);
      verify(pool, ring, d, {Moment::tail, setup.verify, kRecords / 4}, w, s);
      stamp(pool, ring, d, w, s);
      sweep(pool, ring, kRecords / 2, w, s);
    };
    if (setup.captured) {
      graph.run(moments);
    } else {
      moments({});
    }
    check_cuda(cudaDeviceSynchronize());
  }

  /// The batch on the device.
  DeviceBatch send() {
    DeviceBatch d;
    d.rows = lists[0].send(rows, DType::i64);
    d.prefix_lens = lists[1].send(prefix, DType::i64);
    d.extend_lens = lists[2].send(extend, DType::i64);
    d.owners = owner_list.send(owners, DType::u32);
    gpu_table.upload(table.data(), table.size() * 4);
    d.req_to_token = TensorView(gpu_table.data(), DType::i32, {setup.rows, setup.width}, kGpu);
    d.input_ids = lists[3].send(ids, DType::i64);
    d.positions = lists[4].send(positions, DType::i64);
    d.out_cache_loc = lists[5].send(locations, DType::i64);
    gpu_expected.upload(expected.data(), expected.size() * 4);
    d.expected_tokens =
        TensorView(gpu_expected.data(), DType::i32, {setup.rows, setup.width}, kGpu);
    d.valid_lens = lists[6].send(valid, DType::i64);
    std::vector<std::uint8_t> segments(static_cast<std::size_t>(setup.rows) *
                                       sizeof(AttachedCells));
    Ints due;
    std::size_t request = 0;
    for (const Owner owner : owners) {
      const auto found = attached.find(owner);
      const bool here = found != attached.end();
      if (here) {
        const AttachedCells cells{found->second[0], found->second[1], owner,
                                  static_cast<std::uint32_t>(found->second[2])};
        std::memcpy(&segments[static_cast<std::size_t>(rows[request]) * sizeof cells], &cells,
                    sizeof cells);
      }
      ++request;
      const bool is_due = here && due_owners.erase(owner) > 0;
      due.push_back(is_due ? found->second[0] : 0);
      due.push_back(is_due ? found->second[1] : 0);
    }
    d.attached = TensorView(segment_list.send(segments, DType::u8).data, DType::u8,
                            {setup.rows, 1, Int{sizeof(AttachedCells)}}, kGpu);
    const TensorView flat_due = lists[9].send(due, DType::i64);
    d.due = TensorView(flat_due.data, DType::i64, {static_cast<Int>(owners.size()), 2}, kGpu);
    return d;
  }

  using Seen = std::map<std::tuple<Int, std::uint32_t, Int, Int>, std::uint32_t>;
  /// What was found, by slot and life (row and cell where there is no slot).
  static Seen seen(const std::vector<Violation>& violations) {
    Seen s;
    for (const Violation& v : violations) {
      const bool nowhere = any(v.reasons & Reason::out_of_range) || v.slot == 0;
      s[{v.slot, nowhere ? 0 : v.expected_generation, nowhere ? v.row : -1,
         nowhere ? v.expected_position : -1}] |= static_cast<std::uint32_t>(v.reasons);
    }
    return s;
  }
  RingContent content() const { return read(ring_memory, setup.ring); }
  void expect_equal(const std::string& what) {
    const std::vector<Record> r = records.download<Record>();
    const std::vector<LedgerEntry> l = ledger.download<LedgerEntry>();
    for (Int s = 0; s < setup.slots; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const Record& want = cpu->records(0)[at];
      ASSERT_EQ(r[at], want) << what << ": record of slot " << s << " digest " << std::hex
                             << r[at].kv_digest << " " << want.kv_digest << " chain " << r[at].chain
                             << " " << want.chain;
      const LedgerEntry& e = cpu->ledger(0)[at];
      ASSERT_EQ(std::memcmp(&l[at], &e, sizeof e), 0)
          << what << ": ledger of slot " << s << ": owner " << l[at].owner << " " << e.owner
          << " generation " << l[at].generation << " " << e.generation << " prev " << l[at].prev
          << " " << e.prev << " written " << l[at].written << " " << e.written << " before "
          << l[at].previous_owner << " " << e.previous_owner;
    }
    const Seen got = seen(content().violations), want = seen(cpu->poll());
    for (const auto& [key, reasons] : want) {
      const auto found = got.find(key);
      EXPECT_EQ(found == got.end() ? "nothing" : names_of(static_cast<Reason>(found->second)),
                names_of(static_cast<Reason>(reasons)))
          << what << ": slot " << std::get<0>(key) << " row " << std::get<2>(key) << " cell "
          << std::get<3>(key);
    }
    for (const auto& [key, reasons] : got) {
      EXPECT_TRUE(want.contains(key))
          << what << ": only the GPU says " << names_of(static_cast<Reason>(reasons)) << " of slot "
          << std::get<0>(key) << " row " << std::get<2>(key) << " cell " << std::get<3>(key);
    }
  }

  Rng rng;
  Setup setup;
  std::vector<std::int32_t> table, expected;
  PoolSpec spec;
  std::deque<std::vector<std::uint8_t>> kv;
  std::deque<DeviceBuffer> gpu_kv;
  std::unique_ptr<Monitor> cpu;
  DevicePool pool;
  DeviceBuffer records{static_cast<std::size_t>(setup.slots) * sizeof(Record)};
  DeviceBuffer ledger{static_cast<std::size_t>(setup.slots) * sizeof(LedgerEntry)};
  std::unique_ptr<DeviceBuffer> state;
  DeviceBuffer ring_memory{ring_bytes(setup.ring)};
  DeviceRing ring;
  DeviceBuffer workspace{workspace_bytes(setup.rows, setup.max_tokens, setup.slots)};
  DeviceBuffer gpu_table{static_cast<std::size_t>(setup.rows * setup.width) * 4};
  DeviceBuffer gpu_expected{static_cast<std::size_t>(setup.rows * setup.width) * 4};
  std::deque<Mirror<Int>> lists = [this] {
    std::deque<Mirror<Int>> l;
    for (int i = 0; i < 11; ++i) l.emplace_back(static_cast<std::size_t>(2 * setup.max_tokens));
    return l;
  }();
  Mirror<Owner> owner_list{static_cast<std::size_t>(setup.rows) + 1};
  Mirror<std::uint8_t> segment_list{static_cast<std::size_t>(setup.rows) * sizeof(AttachedCells)};
  std::uint32_t epoch = 0;
  Graph graph;
  Ints fresh;
  std::map<Owner, Ints> attached;  ///< (begin, end, epoch)
  std::set<Owner> due_owners;
  // The batch.
  Ints rows, prefix, extend, valid, ids, positions, locations;
  std::vector<Owner> owners;
};

using CanaryGpu = testing::GpuTest;

constexpr Owner kCache = 900;

/// Requests that begin (some on a cached prefix), grow and end, with faults in between.
void run_history(const Setup& setup, std::uint64_t seed, int steps, bool faults) {
  Both both(setup, seed);
  Rng& rng = both.rng;
  Ints unused;
  for (Int s = 1; s < Both::kSlots; ++s) unused.push_back(s);
  std::ranges::shuffle(unused, rng);
  struct Request {
    Owner owner = 0;
    Int row = 0, length = 0, own_from = 0;
  };
  std::vector<Request> running;
  Ints cached;  // slots of a prefix that the cache owns
  std::vector<std::int32_t> cached_tokens;
  Owner next_owner = 1;
  const auto take = [&](std::size_t n) {
    Ints slots(unused.end() - static_cast<std::ptrdiff_t>(n), unused.end());
    unused.resize(unused.size() - n);
    return slots;
  };
  for (int step = 0; step < steps; ++step) {
    // Begin.
    if (running.size() < 6 && unused.size() > 300) {
      Request r{next_owner++, 0, 0, 0};
      for (Int row = 1; row < Both::kRows && r.row == 0; ++row) {
        if (std::ranges::none_of(running, [&](const Request& o) { return o.row == row; }))
          r.row = row;
      }
      if (!cached.empty() && pick(rng, 0, 1) == 0) {
        for (std::size_t i = 0; i < cached.size(); ++i) {
          const auto cell = static_cast<std::size_t>(r.row * Both::kWidth) + i;
          both.table[cell] = static_cast<std::int32_t>(cached[i]);
          both.expected[cell] = cached_tokens[i];
        }
        r.length = r.own_from = static_cast<Int>(cached.size());
        both.cpu->on_attach(r.owner, r.row, 0, r.length);
        both.attached[r.owner] = {0, r.length, static_cast<Int>(both.epoch)};
        both.due_owners.insert(r.owner);
      }
      running.push_back(r);
    }
    // The batch: everybody writes a few tokens; a padding row at the end.
    both.rows.clear(), both.prefix.clear(), both.extend.clear(), both.valid.clear();
    both.owners.clear(), both.ids.clear(), both.positions.clear(), both.locations.clear();
    for (Request& r : running) {
      const Int n = std::min(pick(rng, 1, 30), Both::kWidth - r.length);
      const Ints slots = take(static_cast<std::size_t>(n));
      if (n > 0) both.alloc(slots, r.owner);
      both.rows.push_back(r.row);
      both.owners.push_back(r.owner);
      both.prefix.push_back(r.length);
      both.extend.push_back(n);
      for (Int i = 0; i < n; ++i) {
        const auto cell = static_cast<std::size_t>(r.row * Both::kWidth + r.length + i);
        const Int token = pick(rng, 0, 150000);
        both.table[cell] = static_cast<std::int32_t>(slots[static_cast<std::size_t>(i)]);
        both.expected[cell] = static_cast<std::int32_t>(token);
        both.ids.push_back(token);
        both.positions.push_back(r.length + i);
        both.locations.push_back(slots[static_cast<std::size_t>(i)]);
        both.fill_bytes(slots[static_cast<std::size_t>(i)]);
      }
      both.valid.push_back(r.length + n);
    }
    both.rows.push_back(0);
    both.owners.push_back(0);
    both.prefix.push_back(0);
    both.extend.push_back(1);
    both.valid.push_back(0);
    both.ids.push_back(7);
    both.positions.push_back(0);
    both.locations.push_back(-1);

    if (faults && !running.empty() && step > 2) {
      const Request& r =
          running[static_cast<std::size_t>(pick(rng, 0, static_cast<Int>(running.size()) - 1))];
      const auto cell = static_cast<std::size_t>(r.row * Both::kWidth +
                                                 pick(rng, 0, std::max<Int>(0, r.length - 1)));
      const Int slot = both.table[cell];
      const Int other = pick(rng, 1, Both::kSlots - 1);
      if (r.length > 0) switch (pick(rng, 0, 11)) {
          case 0:
            both.flip_byte(slot);
            break;
          case 1:
            both.change_record(slot, [](Record& x) { x.token ^= 5; });
            break;
          case 2:
            both.change_record(slot, [](Record& x) { x.chain ^= 1ull << 40; });
            break;
          case 3:
            both.change_record(slot, [](Record& x) { x.owner ^= 3; });
            break;
          case 4:
            both.change_record(slot, [](Record& x) { x = {}; });
            break;
          case 5:  // a wrong table
            both.table[cell] = static_cast<std::int32_t>(other);
            break;
          case 6:
            both.table[cell] = static_cast<std::int32_t>(pick(rng, 0, 1) == 0 ? -7 : 5000);
            break;
          case 7:  // freed while it is read
            both.free({slot}, 0);
            break;
          case 8:  // handed out twice
            if (slot > 0 && slot < Both::kSlots) both.alloc({slot}, next_owner + 500);
            break;
          case 9:  // a location that is somebody else's
            if (!both.locations.empty()) both.locations[0] = other;
            break;
          case 10:  // the null slot of a clean pool
            both.locations.back() = 0;
            break;
          case 11:
            both.ids[0] ^= 1;
            break;
          default:
            break;
        }
    }
    both.step();
    for (std::size_t i = 0; i < running.size(); ++i) running[i].length += both.extend[i];
    // End: the first goes, and leaves its prefix to the cache.
    if (running.size() > 4 || (!running.empty() && running[0].length >= Both::kWidth)) {
      const Request r = running.front();
      running.erase(running.begin());
      Ints own, kept;
      for (Int i = r.own_from; i < r.length; ++i) {
        const Int slot = both.table[static_cast<std::size_t>(r.row * Both::kWidth + i)];
        if (slot <= 0 || slot >= Both::kSlots) continue;
        const bool keep = cached.empty() && r.own_from == 0 && i < 6 && !faults;
        (keep ? kept : own).push_back(slot);
        if (keep)
          cached_tokens.push_back(
              both.expected[static_cast<std::size_t>(r.row * Both::kWidth + i)]);
      }
      std::ranges::sort(own);
      own.erase(std::unique(own.begin(), own.end()), own.end());
      if (!kept.empty()) both.transfer(kept, r.owner, kCache);
      if (!kept.empty()) cached = kept;
      both.cpu->on_release(r.owner);
      both.attached.erase(r.owner);
      if (!own.empty()) both.free(own, r.owner);
      for (const Int s : own) {
        if (std::ranges::find(unused, s) == unused.end()) unused.insert(unused.begin(), s);
      }
    }
  }
  both.expect_equal("seed " + std::to_string(seed));
  if (!faults) {
    EXPECT_EQ(both.content().counts.violations, 0u) << "seed " << seed;
    EXPECT_GT(both.content().counts.records_verified, 0u);
  }
}

TEST_F(CanaryGpu, NothingIsReportedWithoutAFault) {
  for (const VerifyPolicy policy : {VerifyPolicy::all, VerifyPolicy::rolling}) {
    run_history({.depth = Depth::all, .verify = policy}, 1, 40, false);
    run_history({.depth = Depth::partial, .verify = policy, .main = 40}, 2, 40, false);
    run_history({.depth = Depth::none, .verify = policy}, 3, 40, false);
    // Rows of any length at any address: 1500 bytes two bytes from alignment, blocks of a row.
    run_history({.verify = policy, .main = 1500, .side = 7, .offset = 2, .page = 3}, 4, 12, false);
    run_history({.verify = policy, .main = 2048, .side = 8, .offset = 8, .page = 1}, 5, 12, false);
  }
}

TEST_F(CanaryGpu, FaultsAreTheCpusFaults) {
  for (std::uint64_t seed = 10; seed < 22; ++seed) {
    const Depth depth = static_cast<Depth>(seed % 3);
    run_history(
        {.depth = depth, .verify = seed % 2 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling}, seed,
        7, true);
    if (HasFailure()) return;
  }
}

// Forwards of thousands of tokens, whose chains are composed tile by tile: of many requests, of
// one, with tokens among them that are not stamped, that jump, or that go on where a row stood
// before.
TEST_F(CanaryGpu, LongForwardsAreTheCpus) {
  constexpr Int kLong = 6000;
  struct Case {
    Depth depth;
    Int shortest, longest;  ///< of a request's tokens
    Int oddities;           ///< one token of this many is odd; 0 = none
  };
  for (const Case& c : {Case{Depth::none, 1, 40, 0}, Case{Depth::all, 1000, 1100, 0},
                        Case{Depth::none, 5000, 5000, 0}, Case{Depth::partial, 200, 3000, 0},
                        Case{Depth::none, 900, 2500, 300}, Case{Depth::all, 1, 600, 50}}) {
    constexpr Int kManyRows = 300;
    Both both({.depth = c.depth,
               .main = 40,
               .side = 8,
               .slots = 2 * kLong,
               .rows = kManyRows,
               .width = kLong,
               .max_tokens = kLong,
               .ring = 16384},
              9);
    Rng& rng = both.rng;
    Ints unused;
    for (Int s = 1; s < 2 * kLong; ++s) unused.push_back(s);
    std::ranges::shuffle(unused, rng);
    std::vector<Int> lengths(kManyRows);
    for (int forward = 0; forward < 2; ++forward) {  // the second one goes on
      both.rows.clear(), both.prefix.clear(), both.extend.clear(), both.valid.clear();
      both.owners.clear(), both.ids.clear(), both.positions.clear(), both.locations.clear();
      for (Int row = 1; row < kManyRows; ++row) {
        const auto room = static_cast<Int>(kLong - static_cast<Int>(both.ids.size()));
        const Int n = std::min(pick(rng, c.shortest, c.longest), room);
        Int& length = lengths[static_cast<std::size_t>(row)];
        if (n <= 0 || length + n > kLong || static_cast<Int>(unused.size()) < n) break;
        const Ints slots(unused.end() - n, unused.end());
        unused.resize(unused.size() - slots.size());
        both.alloc(slots, static_cast<Owner>(row));
        both.rows.push_back(row);
        both.owners.push_back(static_cast<Owner>(row));
        both.prefix.push_back(length);
        both.extend.push_back(n);
        Int position = length;
        for (const Int slot : slots) {
          both.table[static_cast<std::size_t>(row * kLong + length)] =
              static_cast<std::int32_t>(slot);
          ++length;
          both.ids.push_back(pick(rng, 0, 150000));
          both.positions.push_back(position++);
          both.locations.push_back(slot);
          if (c.oddities == 0 || pick(rng, 1, c.oddities) != 1) continue;
          const Int odd = pick(rng, 0, 3);
          if (odd == 0) {  // goes on somewhere in what was there before
            position = pick(rng, 0, both.prefix.back());
            both.positions.back() = position++;
            continue;
          }
          // Is not stamped, and the next one goes on where this one should have been.
          --position;
          if (odd == 1) both.positions.back() = -5;
          if (odd == 2) both.locations.back() = -1;
          if (odd == 3) both.locations.back() = 3 * kLong;
        }
        both.valid.push_back(0);
      }
      both.step();
      const auto stamped = both.content().counts.records_written;
      EXPECT_GT(stamped, 1000u);
    }
    both.expect_equal("tokens a request " + std::to_string(c.longest));
    if (HasFailure()) return;
  }
}

// Batches that fill the device are shared out in other ways than small ones: a warp a tile, a lane
// a piece. So many tokens a multiprocessor, of rows of every kind.
TEST_F(CanaryGpu, LargeBatchesAreTheCpus) {
  struct Case {
    Depth depth;
    Int main, side, offset, page;
    Int tokens;  ///< a multiprocessor
    Int cut = 0;
  };
  for (const Case& c :
       {Case{Depth::all, 40, 8, 0, 4, 600}, Case{Depth::all, 272, 16, 0, 64, 520},
        Case{Depth::all, 656, 8, 0, 64, 520, 528}, Case{Depth::all, 576, 8, 16, 64, 520, 64},
        Case{Depth::all, 4240, 24, 16, 2, 70, 4112}, Case{Depth::all, 200, 12, 4, 1, 520},
        Case{Depth::all, 37, 7, 2, 3, 520}, Case{Depth::all, 5000, 8, 0, 2, 70},
        Case{Depth::all, 4500, 24, 8, 3, 70}, Case{Depth::all, 4100, 3, 2, 5, 70},
        Case{Depth::all, 15900, 8, 0, 2, 17}, Case{Depth::partial, 40, 16, 0, 64, 2100},
        Case{Depth::none, 40, 8, 0, 4, 2100}}) {
    const Int tokens = c.tokens * std::max(1, gpu::multiprocessors(kGpu));
    Both both({.depth = c.depth,
               .main = c.main,
               .side = c.side,
               .offset = c.offset,
               .page = c.page,
               .cut = c.cut,
               .slots = tokens + tokens / 50 + 2,
               .rows = 3,
               .width = tokens,
               .max_tokens = tokens},
              11);
    Ints slots;
    for (Int i = 0; i < tokens; ++i) slots.push_back(1 + i + i / 50);  // runs of 50
    std::ranges::shuffle(slots.begin() + tokens / 2, slots.end(), both.rng);
    const Int ours = tokens / 3;
    both.alloc(Ints(slots.begin(), slots.begin() + ours), 1);
    both.alloc(Ints(slots.begin() + ours, slots.end()), 2);
    both.rows = {1, 2}, both.owners = {1, 2}, both.prefix = {0, 0}, both.valid = {0, 0};
    both.extend = {ours, tokens - ours};
    for (Int i = 0; i < tokens; ++i) {
      const Int position = i < ours ? i : i - ours;
      both.table[static_cast<std::size_t>((i < ours ? 1 : 2) * tokens + position)] =
          static_cast<std::int32_t>(slots[static_cast<std::size_t>(i)]);
      both.ids.push_back(i % 32000);
      both.positions.push_back(position);
    }
    both.locations = slots;
    both.step();
    both.prefix = both.extend, both.extend = {0, 0};
    both.ids.clear(), both.positions.clear(), both.locations.clear();
    for (const Int i : {Int{0}, ours - 1, ours, tokens - 1}) {
      if (c.depth != Depth::none) both.flip_byte(slots[static_cast<std::size_t>(i)]);
    }
    both.change_record(slots[static_cast<std::size_t>(tokens / 2)],
                       [](Record& r) { r.chain ^= 1ull << 33; });
    both.step();
    EXPECT_GE(both.content().counts.violations, c.depth == Depth::none ? 1u : 4u);
    both.expect_equal("rows of " + std::to_string(c.main));
    if (HasFailure()) return;
  }
}

// The moments are captured once and replayed a thousand times, over requests that grow, end and
// begin again, with a fault now and then.
TEST_F(CanaryGpu, AStepCapturedOnceIsReplayedOverAChangingBatch) {
  for (const VerifyPolicy policy : {VerifyPolicy::rolling, VerifyPolicy::all}) {
    Both both({.depth = Depth::partial, .verify = policy, .captured = true}, 7);
    Rng& rng = both.rng;
    constexpr Int kRequests = 6, kTokens = 24;
    Ints unused;
    for (Int s = 1; s < Both::kSlots; ++s) unused.push_back(s);
    std::ranges::shuffle(unused, rng);
    Ints lengths(kRequests);
    std::vector<Ints> slots(kRequests);
    Owner next_owner = 1;
    both.owners.assign(kRequests + 1, 0);
    for (int step = 0; step < 1000; ++step) {
      both.rows.assign(kRequests + 1, 0), both.prefix = both.extend = both.valid = both.rows;
      both.ids.assign(kTokens, 0), both.positions = both.ids, both.locations.assign(kTokens, -1);
      std::size_t n = 0;
      for (std::size_t r = 0; r < kRequests; ++r) {
        const Int extend = pick(rng, 0, 4);
        if (both.owners[r] == 0 || lengths[r] + extend > Both::kWidth) {
          if (!slots[r].empty()) both.free(slots[r], both.owners[r]);
          unused.insert(unused.begin(), slots[r].begin(), slots[r].end());
          slots[r].clear();
          both.owners[r] = next_owner++;
          lengths[r] = 0;
        }
        both.rows[r] = static_cast<Int>(r) + 1;
        both.prefix[r] = lengths[r];
        both.extend[r] = extend;
        const Ints fresh(unused.end() - extend, unused.end());
        unused.resize(unused.size() - fresh.size());
        if (extend > 0) both.alloc(fresh, both.owners[r]);
        for (const Int slot : fresh) {
          const auto cell = static_cast<std::size_t>(both.rows[r] * Both::kWidth + lengths[r]);
          both.ids[n] = pick(rng, 0, 150000);
          both.table[cell] = static_cast<std::int32_t>(slot);
          both.expected[cell] = static_cast<std::int32_t>(both.ids[n]);
          both.positions[n] = lengths[r]++;
          both.locations[n++] = slot;
          both.fill_bytes(slot);
          slots[r].push_back(slot);
        }
        both.valid[r] = lengths[r];
      }
      both.extend[kRequests] = kTokens - static_cast<Int>(n);  // padding
      const Ints& victims = slots[static_cast<std::size_t>(step) % kRequests];
      if (step % 50 == 49 && victims.size() > 9) {
        const Int slot = victims[victims.size() / 2];
        if (step % 100 == 99) {
          both.flip_byte(slot);
        } else {
          both.change_record(slot, [](Record& x) { x.chain ^= 1ull << 20; });
        }
      }
      both.step();
    }
    EXPECT_GT(both.content().counts.violations, 10u);
    both.expect_equal("replayed");
  }
}

// Whatever a check reads while other streams write records and stamp, it ends, and stays within the
// buffers.
TEST_F(CanaryGpu, WritersThatDoNotWaitAreHarmless) {
  Both both({}, 8);
  constexpr Int kLength = 100;
  Ints slots(kLength);
  for (Int i = 0; i < kLength; ++i) slots[static_cast<std::size_t>(i)] = 1 + 7 * i;
  both.alloc(slots, 1);
  both.rows = {1}, both.owners = {1}, both.prefix = {0}, both.extend = {kLength};
  both.valid = {kLength}, both.locations = slots;
  for (Int i = 0; i < kLength; ++i) {
    both.table[static_cast<std::size_t>(Both::kWidth + i)] =
        static_cast<std::int32_t>(slots[static_cast<std::size_t>(i)]);
    both.expected[static_cast<std::size_t>(Both::kWidth + i)] = static_cast<std::int32_t>(i);
    both.ids.push_back(i);
    both.positions.push_back(i);
    both.fill_bytes(slots[static_cast<std::size_t>(i)]);
  }
  both.step();
  both.prefix = {kLength};
  DeviceBatch d = both.send();
  cudaStream_t streams[3] = {};
  for (cudaStream_t& s : streams) check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  const TensorView w = bytes_of(both.workspace);
  for (int i = 0; i < 200; ++i) {
    verify(both.pool, both.ring, d, {Moment::head, VerifyPolicy::all, 100}, w, {streams[0]});
    sweep(both.pool, both.ring, 100, w, {streams[1]});
    stamp(both.pool, both.ring, d, w, {streams[2]});
    if (i % 10 == 0) {
      check_cuda(cudaMemsetAsync(both.records.data(), i, Both::kSlots * 32, streams[2]));
    }
  }
  for (cudaStream_t s : streams) {
    check_cuda(cudaStreamSynchronize(s));
    check_cuda(cudaStreamDestroy(s));
  }
  EXPECT_GT(both.content().counts.sightings, 0u);
}

// A damaged chain, and a stranger's record, beside the borders of what a warp or a CTA looks at.
TEST_F(CanaryGpu, FaultsAtTheSeamsAreNamedOnce) {
  for (const Depth depth : {Depth::none, Depth::all}) {
    for (const Int cell : {0, 1, 30, 31, 32, 33, 63, 64, 95, 96, 127, 128, 149}) {
      for (const bool stranger : {false, true}) {
        Both both({.depth = depth}, 6);
        constexpr Int kLength = 150;
        Ints slots(kLength), others{700, 701};
        for (Int i = 0; i < kLength; ++i) slots[static_cast<std::size_t>(i)] = 2 + 3 * i;
        both.alloc(slots, 1);
        both.alloc(others, 2);
        both.rows = {1, 2}, both.owners = {1, 2}, both.prefix = {0, 0}, both.valid = {0, 0};
        both.extend = {kLength, 2};
        for (Int i = 0; i < kLength + 2; ++i) {
          const bool own = i < kLength;
          const Int slot = own ? slots[static_cast<std::size_t>(i)] : 700 + i - kLength;
          const Int position = own ? i : i - kLength;
          both.table[static_cast<std::size_t>((own ? 1 : 2) * Both::kWidth + position)] =
              static_cast<std::int32_t>(slot);
          both.ids.push_back(1000 + i);
          both.positions.push_back(position);
          both.locations.push_back(slot);
          both.fill_bytes(slot);
        }
        both.step();
        if (stranger) {
          both.table[static_cast<std::size_t>(Both::kWidth + cell)] = 701;
        } else {
          both.change_record(slots[static_cast<std::size_t>(cell)],
                             [](Record& r) { r.chain ^= 1ull << 33; });
        }
        both.prefix = {kLength, 2}, both.extend = {0, 0};
        both.ids.clear(), both.positions.clear(), both.locations.clear();
        both.step();
        EXPECT_EQ(both.content().violations.size(), 1u) << "cell " << cell;
        both.expect_equal("cell " + std::to_string(cell));
        if (HasFailure()) return;
      }
    }
  }
}

// Device -> host -> other slots: records travel with their bytes, and what does not is found.
TEST_F(CanaryGpu, TiersAreWatched) {
  enum Case { sound, torn, truncated, no_side_buffer, no_bytes };
  for (const Case c : {sound, torn, truncated, no_side_buffer, no_bytes}) {
    Both both({}, 3);
    const Ints from{5, 6, 7, 8, 9}, to{100, 101, 102, 103, 104};
    both.alloc(from, 1);
    both.rows = {1}, both.owners = {1}, both.prefix = {0}, both.extend = {5}, both.valid = {5};
    both.ids = {11, 12, 13, 14, 15}, both.positions = {0, 1, 2, 3, 4}, both.locations = from;
    for (std::size_t i = 0; i < from.size(); ++i) {
      both.table[Both::kWidth + i] = static_cast<std::int32_t>(from[i]);
      both.expected[Both::kWidth + i] = static_cast<std::int32_t>(both.ids[i]);
      both.fill_bytes(from[i]);
    }
    both.step();
    both.alloc(to, 2);
    both.reload(from, to, 2, c != no_bytes, [&](std::vector<Record>& r) {
      if (c == truncated) r[4] = {};
    });
    if (c == torn) {  // half of a token's bytes are still the old ones
      for (Int i = 0; i < 200; ++i) *both.byte(2, 102, 300 + i) ^= 0x55;
      both.sync_byte(2, both.byte(2, 102, 300), 200);
    }
    if (c == no_side_buffer) {
      for (const Int s : to) *both.byte(1, s, 3) ^= 1;
      for (const Int s : to) both.sync_byte(1, both.byte(1, s, 3), 1);
    }
    // Its new owner reads them.
    both.rows = {2}, both.owners = {2}, both.prefix = {5}, both.extend = {0}, both.valid = {5};
    both.ids.clear(), both.positions.clear(), both.locations.clear();
    for (std::size_t i = 0; i < to.size(); ++i) {
      both.table[2 * Both::kWidth + i] = static_cast<std::int32_t>(to[i]);
      both.expected[2 * Both::kWidth + i] = both.expected[Both::kWidth + i];
    }
    both.step();
    const RingContent found = both.content();
    const auto count = [&](Reason r) {
      return std::ranges::count_if(found.violations,
                                   [&](const Violation& v) { return v.reasons == r; });
    };
    EXPECT_EQ(found.violations.size(), c == sound                    ? 0u
                                       : c == torn || c == truncated ? 1u
                                                                     : 5u)
        << c;
    if (c == torn) {
      EXPECT_EQ(count(Reason::kv_bytes), 1);
    }
    if (c == truncated) {
      EXPECT_EQ(count(Reason::stale), 1);
    }
    if (c == no_side_buffer || c == no_bytes) {
      EXPECT_EQ(count(Reason::kv_bytes), 5);
    }
    both.expect_equal("tiers");
  }
}

TEST_F(CanaryGpu, MovedSlotsKeepTheirRecords) {
  Both both({}, 4);
  const Ints from{5, 6, 7}, to{6, 7, 8};  // overlapping
  both.alloc({5, 6, 7, 8}, 1);
  both.rows = {1}, both.owners = {1}, both.prefix = {0}, both.extend = {3}, both.valid = {0};
  both.ids = {1, 2, 3}, both.positions = {0, 1, 2}, both.locations = from;
  for (const Int s : from) both.fill_bytes(s);
  both.step();
  both.move(from, to);
  both.extend = {0}, both.ids.clear(), both.positions.clear(), both.locations.clear();
  both.step();
  both.expect_equal("move");
}

// One fault that is seen a thousand times is one row; more faults than rows are counted.
TEST_F(CanaryGpu, TheRingCountsWhatItCannotKeep) {
  Both both({.depth = Depth::none}, 5);
  Ints slots;
  for (Int s = 1; s < 200; ++s) slots.push_back(s);
  const DeviceBuffer small(ring_bytes(8));
  both.ring = {bytes_of(small), 8};
  clear_ring(both.ring);
  const TensorView list = both.lists[0].send(slots, DType::i64);
  for (int i = 0; i < 5; ++i) on_free(both.pool, both.ring, list, 1);  // free already
  check_cuda(cudaDeviceSynchronize());
  const RingContent c = read(small, 8);
  EXPECT_EQ(c.violations.size(), 8u);
  EXPECT_EQ(c.counts.violations, 8u);
  EXPECT_EQ(c.counts.sightings, 5u * 199u);
  EXPECT_GT(c.counts.dropped, 0u);
  for (const Violation& v : c.violations) {
    EXPECT_EQ(v.count, 5u);
    EXPECT_EQ(v.reasons, Reason::double_owner);
  }
}

// Whatever lies in the tensors, nothing outside them is touched (compute-sanitizer watches).
TEST_F(CanaryGpu, AnyNumbersAreHarmless) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Both both({.depth = static_cast<Depth>(seed % 3),
               .verify = seed % 2 == 0 ? VerifyPolicy::all : VerifyPolicy::rolling},
              seed);
    Rng& rng = both.rng;
    const auto wild = [&](std::size_t n) {
      Ints v(n);
      for (Int& x : v) x = pick(rng, 0, 2) == 0 ? pick(rng, -3, 300) : static_cast<Int>(rng());
      return v;
    };
    const TensorView lists[] = {both.lists[0].send(wild(50), DType::i64),
                                both.lists[1].send(wild(50), DType::i64)};
    const DeviceBuffer moves(move_workspace_bytes(50));
    const DeviceBuffer stored(50 * sizeof(Record));
    const TensorView view(stored.data(), DType::u8, {50, 32}, kGpu);
    on_alloc(both.pool, both.ring, lists[0], 3, 1);
    on_transfer(both.pool, both.ring, lists[1], 3, 4);
    on_move(both.pool, both.ring, lists[0], lists[1], bytes_of(moves));
    on_store(both.pool, both.ring, lists[1], view);
    on_load(both.pool, both.ring, view, lists[0], 3);
    on_free(both.pool, both.ring, lists[1], 0);
    verify_slots(both.pool, both.ring, lists[0], Moment::sweep);
    std::vector<std::int32_t> cells(both.table.size());
    for (std::int32_t& c : cells) c = static_cast<std::int32_t>(wild(1)[0]);
    both.gpu_table.upload(cells.data(), cells.size() * 4);
    DeviceBatch d;
    d.rows = both.lists[2].send(wild(9), DType::i64);
    d.prefix_lens = both.lists[3].send(wild(9), DType::i64);
    d.extend_lens = both.lists[4].send(wild(9), DType::i64);
    d.owners = both.owner_list.send({1, 2, 3, 4, 5, 6, 7, 8, 9}, DType::u32);
    d.req_to_token =
        TensorView(both.gpu_table.data(), DType::i32, {Both::kRows, Both::kWidth}, kGpu);
    d.input_ids = both.lists[5].send(wild(90), DType::i64);
    d.positions = both.lists[6].send(wild(90), DType::i64);
    d.out_cache_loc = both.lists[7].send(wild(90), DType::i64);
    d.expected_tokens = d.req_to_token;
    d.valid_lens = d.prefix_lens;
    const TensorView segments = both.lists[9].send(wild(30), DType::i64);
    d.attached = TensorView(segments.data, DType::u8, {5, 2, 24}, kGpu);
    const TensorView due = both.lists[10].send(wild(18), DType::i64);
    d.due = TensorView(due.data, DType::i64, {9, 2}, kGpu);
    const TensorView w = bytes_of(both.workspace);
    for (int i = 0; i < 3; ++i) {
      verify(both.pool, both.ring, d, {Moment::head, both.setup.verify, 100}, w);
      stamp(both.pool, both.ring, d, w);
      sweep(both.pool, both.ring, 100, w);
    }
    check_cuda(cudaDeviceSynchronize());
    EXPECT_GT(both.content().counts.sightings, 0u);
  }
}

}  // namespace
}  // namespace serinus::canary::cuda
