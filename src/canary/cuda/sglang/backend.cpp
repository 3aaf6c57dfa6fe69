// The Monitor over pools on a GPU in the sglang format. A moment is launches: inputs made safe,
// plan, verify, write, and what was found goes to the Monitor's ring with what the format leaves
// out. Each stream has memory of its own for them, each capture, too; records belong to the pool.
// What is announced gathers on the host and goes along with the next step, as in the other format.
#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <serinus/canary_sglang.h>

#include "canary/cuda/device_backend.h"
#include "canary/cuda/layout.h"
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"
#include "canary/cuda/sglang/moments.h"
#include "canary/cuda/sglang/run.h"
#include "canary/sglang/monitored.h"
#include "canary/zero_array.h"

namespace serinus::canary::cuda {

namespace {

namespace sg = sglang;

/// How much a moment has to hold.
struct Sizes {
  std::int64_t entries = 1, requests = 1, tokens = 1;

  bool hold(const Sizes& o) const noexcept {
    return entries >= o.entries && requests >= o.requests && tokens >= o.tokens;
  }
  /// Room for `o`, too. What has to grow becomes twice as large: a batch grows a little at a time.
  Sizes grown(const Sizes& o) const noexcept {
    const auto more = [](std::int64_t had, std::int64_t needs) {
      return needs <= had ? had : std::max(needs, had * 2);
    };
    return {more(entries, o.entries), more(requests, o.requests), more(tokens, o.tokens)};
  }
};

/// Memory of one pool's moments in one stream.
class Room {
 public:
  Room(Device device, const Sizes& s, std::int64_t ring_capacity)
      : sizes(s), memory_(device, place(nullptr, ring_capacity)) {
    place(memory_.data(), ring_capacity);
  }

  Sizes sizes;
  sg::cuda::MomentWords* words = nullptr;
  sg::ViolationRow* ring = nullptr;
  std::int64_t* ring_entries = nullptr;
  // By entry, and how many there are.
  std::int64_t *slots = nullptr, *tokens = nullptr, *positions = nullptr, *prev_slots = nullptr;
  std::int32_t *num_valid = nullptr, *enable = nullptr;
  // By request, and how many there are.
  std::int64_t *offsets = nullptr, *seeds = nullptr, *no_seeds = nullptr;
  std::int64_t *prefixes = nullptr, *valid = nullptr;
  std::int32_t* num_rows = nullptr;
  // By new token.
  std::int64_t *new_slots = nullptr, *tree_slots = nullptr, *tree_seeds = nullptr,
               *chains = nullptr;
  std::vector<std::int64_t> planned;  ///< the batch that the plan is of; empty: none

 private:
  std::size_t place(void* at, std::int64_t ring_capacity) {
    Layout l(at);
    words = l.take<sg::cuda::MomentWords>(1);
    ring = l.take<sg::ViolationRow>(ring_capacity);
    ring_entries = l.take<std::int64_t>(ring_capacity);
    for (auto** to : {&slots, &tokens, &positions, &prev_slots}) {
      *to = l.take<std::int64_t>(sizes.entries);
    }
    for (auto** to : {&num_valid, &enable, &num_rows}) *to = l.take<std::int32_t>(1);
    offsets = l.take<std::int64_t>(sizes.requests + 1);
    for (auto** to : {&seeds, &no_seeds, &prefixes, &valid}) {
      *to = l.take<std::int64_t>(sizes.requests);
    }
    for (auto** to : {&new_slots, &tree_slots, &tree_seeds, &chains}) {
      *to = l.take<std::int64_t>(sizes.tokens);
    }
    return static_cast<std::size_t>(l.bytes());
  }

  gpu::Memory memory_;
};

/// A batch of host arrays on the device, and what only the host knows of it.
struct Work {
  DeviceBatch batch;
  std::int64_t entries = 1;           ///< that a plan may have
  std::vector<std::int64_t> planned;  ///< tells it from other batches
  std::int64_t first_cell = -1;       ///< of one request: its cells from here on; -1: as ever
};

class SglangCudaBackend final : public DeviceBackend {
 public:
  SglangCudaBackend(const Options& options, Reporter& reporter, Device device)
      : DeviceBackend(options, reporter, device) {}

  void add_pool(const PoolSpec& spec) override {
    pools_.push_back(std::make_unique<Pool>(spec, options_.depth, device_));
    Pool& p = *pools_.back();
    for (const gpu::Memory* m : {&p.head, &p.tail, &p.lives}) {
      clear({m->data(), DType::u8, {static_cast<std::int64_t>(m->bytes())}, device_}, own_.get());
    }
    gpu::synchronize(device_);
  }
  void detach_pool(int pool) override {
    retire(pool);
    Pool& p = at(pool);
    p.sources.clear();
    p.runs.clear();
    p.sweep_source = nullptr;
  }

  // --- announcements
  void on_alloc(int pool, std::span<const std::int64_t> slots, Owner) override {
    Pool& p = at(pool);
    ++life_;
    for (const std::int64_t slot : slots) {
      if (!p.has(slot)) continue;
      p.begun[slot] = life_;
      p.waiting_slots.push_back(slot);
      p.waiting_lives.push_back(life_);
    }
    gathered(slots.size());
  }
  void on_free(int, std::span<const std::int64_t>, Owner) override {}
  void on_transfer(int, std::span<const std::int64_t>, Owner, Owner) override {}
  void on_attach(Owner, std::int64_t, std::int64_t, std::int64_t) override {}
  void on_release(Owner) override {}
  void on_move(int pool, std::span<const std::int64_t> from,
               std::span<const std::int64_t> to) override {
    if (from.empty()) return;
    carried_.push_back({pool, {from.begin(), from.end()}, {to.begin(), to.end()}, {}, true});
    gathered(from.size());
  }
  void on_load(int pool, std::span<const Record> records, std::span<const std::int64_t> slots,
               Owner, std::span<const std::uint32_t>) override {
    if (slots.empty()) return;
    carried_.push_back(
        {pool, {}, {slots.begin(), slots.end()}, {records.begin(), records.end()}, true});
    gathered(slots.size());
  }
  void set_record(int pool, std::int64_t slot, const Record& record) override {
    carried_.push_back({pool, {}, {slot}, {record}, false});
    gathered(1);
  }
  void on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                std::span<std::uint32_t>) override {
    if (slots.empty()) return;
    settle();
    const gpu::Memory list(device_, slots.data(), slots.size_bytes());
    const gpu::Memory stored(device_, records.size_bytes());
    carry_records(at(pool), at(pool).tail, static_cast<const std::int64_t*>(list.data()),
                  std::ssize(slots), stored.data(), own_.get());
    gpu::synchronize(device_);
    stored.download(records.data(), records.size_bytes());
  }

  // --- the moments
  void head(const Batch& batch, Stream stream) override {
    check_stream(stream);
    make_room(stream);
    with_host_batch(batch, stream,
                    [&](int pool, const Work& work) { run(pool, Moment::head, work, stream); });
  }
  void tail(const Batch& batch, Stream stream) override {
    check_stream(stream);
    with_host_batch(batch, stream,
                    [&](int pool, const Work& work) { run(pool, Moment::tail, work, stream); });
  }
  void stamp(const Batch& batch, Stream stream) override {
    check_stream(stream);
    with_host_batch(batch, stream, [&](int pool, const Work& work) {
      run(pool, Moment::head, work, stream, false);
      run(pool, Moment::tail, work, stream, false);
    });
  }
  void head(const DeviceBatch& batch, std::span<const int> pools, Stream stream) override {
    if (!is_captured(stream)) {
      make_room(stream);
      bring(stream);
    }
    for (const int pool : pools_of(pools)) run(pool, Moment::head, work_of(pool, batch), stream);
    launched(stream);
  }
  void tail(const DeviceBatch& batch, std::span<const int> pools, Stream stream) override {
    if (!is_captured(stream)) bring(stream);
    for (const int pool : pools_of(pools)) run(pool, Moment::tail, work_of(pool, batch), stream);
    launched(stream);
  }
  /// Sweeps read the engine's tree on the host: they come between the graphs.
  void catch_up(const DeviceBatch&, std::span<const int>, Stream stream) override {
    make_room(stream);
    bring(stream);
    if (sweep_is_due()) sweep_now(stream);
  }
  void sweep(Stream stream) override {
    if (!is_captured(stream) && sweep_is_due()) sweep_now(stream);
    next_step(ring_, stream);
    launched(stream);
  }
  void flush() override {
    settle();
    outgrown_.clear();
    sweep_now(own_.get());
    wait();
  }
  void verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                  std::int64_t end, const Batch& tables, Stream stream) override {
    check_stream(stream);
    const std::int64_t extend = 0;
    std::int64_t valid =
        tables.expected_tokens.data != nullptr ? tables.expected_tokens.shape[1] : 0;
    for (std::size_t i = 0; i < tables.valid_lens.size() && i < tables.owners.size(); ++i) {
      if (tables.owners[i] == owner) valid = tables.valid_lens[i];
    }
    Batch one = tables;
    one.rows = {&row, 1};
    one.prefix_lens = {&end, 1};
    one.extend_lens = {&extend, 1};
    one.owners = {&owner, 1};
    one.valid_lens = {&valid, 1};
    one.input_ids = one.positions = one.out_cache_loc = one.parents = {};
    with_host_batch(one, stream, [&](int pool, Work work) {
      work.first_cell = std::max<std::int64_t>(begin, 0);
      if (work.entries > work.first_cell) run(pool, moment, work, stream);
    });
  }

  void set_sweep_source(int pool, std::function<void(std::vector<SweepEntry>&)> source) override {
    at(pool).sweep_source = std::move(source);
  }

  // --- raw state
  std::span<Record> records(int pool) override {
    settle();
    Pool& p = at(pool);
    p.copy.resize(static_cast<std::size_t>(p.spec.num_slots));
    p.tail.download(p.copy.data(), p.tail.bytes());
    return p.copy;
  }
  std::span<LedgerEntry> ledger(int) override { return {}; }
  SlotState state(int pool, std::int64_t slot) const override {
    const Pool& p = at(pool);
    if (!p.has(slot) || p.begun[slot] == 0) return SlotState::free;
    settle();
    Record r;
    p.tail.download(&r, sizeof r, static_cast<std::size_t>(slot) * sizeof r);
    return r == Record{} ? SlotState::empty : SlotState::written;
  }
  std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const override {
    // Of a copy of the slot's bytes, which lie there as if each source had one slot.
    std::vector<sg::RealKvSource> sources = at(pool).sources;
    std::vector<std::vector<std::uint8_t>> copies;
    gpu::synchronize(device_);
    for (sg::RealKvSource& s : sources) {
      const std::int64_t row = slot / s.page_size;
      if (slot < 0 || row >= s.tensor.shape[0]) return std::nullopt;
      const std::int64_t column = slot % s.page_size * s.num_bytes_per_token;
      if (column + s.read_bytes > s.tensor.shape[1]) return std::nullopt;
      std::vector<std::uint8_t>& copy = copies.emplace_back(static_cast<std::size_t>(s.read_bytes));
      gpu::copy_to_host(device_, copy.data(),
                        s.tensor.as<const std::uint8_t>() + row * s.tensor.strides[0] + column,
                        copy.size(), own_.get());
      s = {TensorView(copy.data(), DType::u8, {1, s.read_bytes}), 1, s.read_bytes, s.read_bytes};
    }
    gpu::synchronize(device_);
    return sg::real_kv_hash(sources, sg::mode_of(options_.depth), 0);
  }
  std::int64_t num_sources(int pool) const override { return std::ssize(at(pool).sources); }
  std::uint64_t request_digest(std::int64_t row, std::int64_t length,
                               const Batch& tables) const override {
    std::uint64_t h = sg::splitmix64(static_cast<std::uint64_t>(length) + 1);
    const std::vector<std::int32_t> locations = cells(tables.req_to_token, row, length);
    for (const int pool : pools_of(tables.pools)) {
      const Pool& p = at(pool);
      const std::vector<std::int64_t> mapping = full_to_swa(pool);
      const std::span<const Record> held = const_cast<SglangCudaBackend*>(this)->records(pool);
      for (std::int64_t slot : locations) {
        if (!mapping.empty() && slot >= 0) {
          slot = mapping[std::min(static_cast<std::size_t>(slot), mapping.size() - 1)];
        }
        h = sg::splitmix64(h ^ (p.has(slot) ? sg::chain_hash(std::bit_cast<sg::Record>(
                                                  held[static_cast<std::size_t>(slot)]))
                                            : 0));
      }
    }
    return h;
  }
  void request_digests(int pool, const DeviceBatch& batch, const TensorView& digests,
                       Stream stream) const override {
    const Pool& p = at(pool);
    PoolParams records;
    records.records = static_cast<Record*>(p.tail.data());
    records.num_slots = p.spec.num_slots;
    records.swa = p.spec.kind == PoolKind::swa;
    if (!p.spec.full_to_swa.empty()) {
      records.full_to_swa = p.spec.full_to_swa.data();
      records.full_to_swa_size = std::ssize(p.spec.full_to_swa);
    }
    cuda::request_digests(records, Format::sglang, batch, digests, device_, stream);
  }

 protected:
  int num_pools() const override { return static_cast<int>(pools_.size()); }
  const PoolSpec& spec(int pool) const override { return at(pool).spec; }
  std::span<const Source> sources(int pool) const override { return at(pool).runs; }
  bool describe(Violation& v, int, std::uint64_t& life) const override {
    v.format = Format::sglang;
    life = std::exchange(v.expected_generation, 0);
    return true;
  }
  bool pass_on(Stream stream) override {
    if (pending_slots_ == 0) return false;
    Staging::Parcel parcel(staging_, stream);
    const Announced announced = put_announced(parcel);
    parcel.send();
    launch_announced(parcel, announced);
    return true;
  }

 private:
  struct Pool {
    Pool(const PoolSpec& s, Depth depth, Device device)
        : spec(s),
          head(device, static_cast<std::size_t>(s.num_slots) * sizeof(Record)),
          tail(device, head.bytes()),
          lives(device, static_cast<std::size_t>(s.num_slots) * sizeof(std::uint32_t)),
          begun(s.num_slots) {
      if (depth == Depth::none) return;
      sources = sg::real_kv_sources(spec);
      runs = sources_of(s.layout, s.num_layers, s.buffers);
      slot_bytes = sg::bytes_of(sources, depth);
    }
    bool has(std::int64_t slot) const noexcept { return slot >= 0 && slot < spec.num_slots; }
    gpu::Memory& of(Moment m) noexcept { return m == Moment::head ? head : tail; }

    PoolSpec spec;
    gpu::Memory head, tail;          // a Record a slot
    gpu::Memory lives;               // a number a slot
    ZeroArray<std::uint32_t> begun;  // the same, as the device will have it
    std::vector<sg::RealKvSource> sources;
    std::vector<Source> runs;  // all bytes that the layout names
    std::int64_t slot_bytes = 0;
    std::function<void(std::vector<SweepEntry>&)> sweep_source;
    std::vector<std::int64_t> waiting_slots;  // whose lives begin with the next step
    std::vector<std::uint32_t> waiting_lives;
    std::map<std::pair<void*, std::uint64_t>, Room> rooms;  // by stream and capture
    std::vector<Record> copy;
  };
  /// Records that change places, or come from outside (`from` is empty), in the order of the calls.
  struct Carried {
    int pool = 0;
    std::vector<std::int64_t> from, to;
    std::vector<Record> records;
    bool both = true;  ///< halves: else the tail alone
  };
  struct Announced {
    std::vector<std::array<std::size_t, 3>> lives;  ///< by pool: slots, numbers, how many
    std::vector<Carried> carried;
    std::vector<std::array<std::size_t, 4>> places;  ///< from, to, records of both halves
  };

  Pool& at(int pool) const { return *pools_[static_cast<std::size_t>(pool)]; }

  // --- announcements
  /// All that was announced comes before what is launched next.
  void bring(Stream stream) {
    follow_announced(stream);
    pass_on(stream);
  }
  Announced put_announced(Staging::Parcel& parcel) {
    Announced a;
    for (const auto& p : pools_) {
      a.lives.push_back(
          {parcel.put(p->waiting_slots), parcel.put(p->waiting_lives), p->waiting_slots.size()});
      p->waiting_slots.clear();
      p->waiting_lives.clear();
    }
    a.carried = std::exchange(carried_, {});
    for (const Carried& c : a.carried) {
      const std::size_t bytes = c.to.size() * sizeof(Record);
      const bool moves = c.records.empty();
      a.places.push_back({parcel.put(c.from), parcel.put(c.to),
                          moves ? parcel.room(bytes) : parcel.put(c.records),
                          moves ? parcel.room(bytes) : 0});
    }
    pending_slots_ = 0;
    return a;
  }
  void launch_announced(const Staging::Parcel& parcel, const Announced& a) {
    const Stream stream = parcel.stream();
    follow_announced(stream);
    const auto list = [&](std::size_t at, std::int64_t n) {
      return parcel.view(at, DType::i64, {n}).as<const std::int64_t>();
    };
    bool any = false;
    for (std::size_t i = 0; i < a.lives.size(); ++i) {
      const auto [slots, numbers, count] = a.lives[i];
      const auto n = static_cast<std::int64_t>(count);
      if (n == 0) continue;
      any = true;
      Pool& p = *pools_[i];
      sg::cuda::begin_lives(
          static_cast<std::uint32_t*>(p.lives.data()), p.spec.num_slots, list(slots, n),
          parcel.view(numbers, DType::u32, {n}).as<std::uint32_t>(), n, device_, stream);
    }
    for (std::size_t i = 0; i < a.carried.size(); ++i) {
      const Carried& c = a.carried[i];
      const auto [from, to, records, heads] = a.places[i];
      const auto n = std::ssize(c.to);
      Pool& p = at(c.pool);
      any = true;
      const auto memory = [&](std::size_t at) {
        return parcel.view(at, DType::u8, {n * std::int64_t{sizeof(Record)}}).data;
      };
      const bool moves = c.records.empty();
      if (moves) {
        carry_records(p, p.tail, list(from, n), n, memory(records), stream);
        carry_records(p, p.head, list(from, n), n, memory(heads), stream);
      }
      sg::cuda::CarryParams back{.records = static_cast<sg::Record*>(p.tail.data()),
                                 .num_slots = p.spec.num_slots,
                                 .slots = list(to, n),
                                 .count = n,
                                 .list = static_cast<sg::Record*>(memory(records)),
                                 .to_list = false,
                                 .from = moves ? list(from, n) : nullptr};
      sg::cuda::carry(back, device_, stream);
      if (!c.both) continue;
      back.records = static_cast<sg::Record*>(p.head.data());
      if (moves) back.list = static_cast<sg::Record*>(memory(heads));
      back.without_bytes = !moves;  // the head pass runs before the bytes are written
      sg::cuda::carry(back, device_, stream);
    }
    if (!any) return;
    mark_announced(stream);
  }
  void carry_records(const Pool& p, const gpu::Memory& records, const std::int64_t* slots,
                     std::int64_t n, void* to, Stream stream) const {
    sg::cuda::carry({.records = static_cast<sg::Record*>(records.data()),
                     .num_slots = p.spec.num_slots,
                     .slots = slots,
                     .count = n,
                     .list = static_cast<sg::Record*>(to)},
                    device_, stream);
  }

  // --- batches
  /// Longest prefix that a plan lists: one cell beyond the table shows that it was asked for.
  static std::int64_t longest_prefix(const TensorView& table) {
    return table.rank == 2 && table.data != nullptr ? table.shape[1] + 1 : 1;
  }
  static bool has_window(const PoolSpec& spec) { return sg::translates(spec) && spec.window > 0; }

  template <class F>
  void with_host_batch(const Batch& b, Stream stream, F&& f) {
    Staging::Parcel parcel(staging_, stream);
    const Announced announced = put_announced(parcel);
    const std::array at{
        parcel.put(b.rows),          parcel.put(b.prefix_lens), parcel.put(b.extend_lens),
        parcel.put(b.owners),        parcel.put(b.input_ids),   parcel.put(b.positions),
        parcel.put(b.out_cache_loc), parcel.put(b.valid_lens),  parcel.put(b.parents)};
    parcel.room(16);  // so that there is an address even if all are empty
    parcel.send();
    launch_announced(parcel, announced);
    const std::int64_t n = std::ssize(b.rows), tokens = std::ssize(b.out_cache_loc);
    Work work;
    DeviceBatch& d = work.batch;
    d.rows = parcel.view(at[0], DType::i64, {n});
    d.prefix_lens = parcel.view(at[1], DType::i64, {n});
    d.extend_lens = parcel.view(at[2], DType::i64, {n});
    d.owners = parcel.view(at[3], DType::u32, {n});
    d.input_ids = parcel.view(at[4], DType::i64, {tokens});
    d.positions = parcel.view(at[5], DType::i64, {tokens});
    d.out_cache_loc = parcel.view(at[6], DType::i64, {tokens});
    d.req_to_token = b.req_to_token;
    if (b.expected_tokens.data != nullptr) d.expected_tokens = b.expected_tokens;
    if (!b.valid_lens.empty()) d.valid_lens = parcel.view(at[7], DType::i64, {n});
    if (!b.parents.empty()) d.parents = parcel.view(at[8], DType::i64, {tokens});
    work.entries = 0;
    const std::int64_t longest = longest_prefix(b.req_to_token);
    for (const std::int64_t prefix : b.prefix_lens) {
      work.entries += std::clamp<std::int64_t>(prefix, 0, longest);
    }
    work.planned = {n};
    for (const auto& list : {b.rows, b.prefix_lens, b.extend_lens}) {
      work.planned.insert(work.planned.end(), list.begin(), list.end());
    }
    for (const int pool : pools_of(b.pools)) f(pool, work);
    launched(stream);
  }
  Work work_of(int pool, const DeviceBatch& b) const {
    Work work;
    work.batch = b;
    const PoolSpec& s = spec(pool);
    std::int64_t each = longest_prefix(b.req_to_token);
    if (has_window(s)) each = std::min(each, s.window);
    work.entries = b.rows.shape[0] * each;
    for (const TensorView* t : {&b.rows, &b.prefix_lens, &b.extend_lens, &b.req_to_token}) {
      work.planned.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t->data)));
      work.planned.push_back(t->shape[0]);
    }
    return work;
  }

  // --- a moment
  Room& room_for(Pool& p, const Sizes& sizes, Stream stream) {
    const std::pair key{stream.handle, gpu::capture_of(device_, stream)};
    auto found = p.rooms.find(key);
    if (found != p.rooms.end() && found->second.sizes.hold(sizes)) return found->second;
    Sizes more = sizes;
    if (found != p.rooms.end()) {
      more = found->second.sizes.grown(sizes);
      (key.second == 0 ? outgrown_ : of_graphs_).push_back(std::move(found->second));
      p.rooms.erase(found);
    }
    const gpu::BesideCapture relaxed;
    return p.rooms.try_emplace(key, device_, more, options_.ring_capacity).first->second;
  }

  TensorView list(std::int64_t* at, std::int64_t n) const { return {at, DType::i64, {n}, device_}; }
  TensorView one(std::int32_t* at) const { return {at, DType::i32, {1}, device_}; }
  TensorView one(std::int64_t* at) const { return {at, DType::i64, {1}, device_}; }

  sg::VerifyPlan verify_plan(const Room& r, std::int64_t entries) const {
    return {list(r.slots, entries),      list(r.tokens, entries), list(r.positions, entries),
            list(r.prev_slots, entries), one(r.num_valid),        one(r.enable)};
  }
  sg::VerifyOrWriteContext context(Pool& p, const Room& r, Moment moment,
                                   std::int64_t* slot_runs) const {
    sg::VerifyOrWriteContext c;
    c.canary_buf = {p.of(moment).data(), DType::u8, {p.spec.num_slots, sg::kSlotBytes}, device_};
    c.kernel_kind = sg::tag_of(p.spec.kind, moment);
    c.violation_ring = {
        r.ring, DType::i64, {options_.ring_capacity, sg::kViolationFields}, device_};
    c.violation_entries = list(r.ring_entries, options_.ring_capacity);
    c.violation_write_index = one(&r.words->found);
    c.slot_run_counter = one(slot_runs);
    c.kernel_run_counter = one(&r.words->launches);
    c.enable_chain_position_assert = one(&r.words->assert_positions);
    c.out_of_range_counter = one(&r.words->out_of_range);
    if (moment != Moment::head && !p.sources.empty()) {
      c.real_kv_sources = p.sources;
      c.real_kv_hash_mode = sg::mode_of(options_.depth);
    }
    return c;
  }

  void run(int pool, Moment moment, const Work& work, Stream stream, bool verifies = true) {
    const BatchParams b = params_of(work.batch, device_);
    if (b.num_requests == 0) return;
    Pool& p = at(pool);
    const std::int64_t entries = std::max<std::int64_t>(work.entries, 1);
    Room& room =
        room_for(p, {entries, b.num_requests, std::max<std::int64_t>(b.num_tokens, 1)}, stream);
    sg::cuda::PrepareParams prepare{.words = room.words,
                                    .num_requests = b.num_requests,
                                    .num_tokens = b.num_tokens,
                                    .prefix_lens = b.prefix_lens,
                                    .longest_prefix = longest_prefix(work.batch.req_to_token),
                                    .prefixes = room.prefixes,
                                    .valid_lens = b.valid_lens,
                                    .all_valid = b.expected.width,
                                    .valid = room.valid,
                                    .locations = b.locations,
                                    .slots = room.new_slots};
    if (sg::translates(p.spec)) {
      prepare.full_to_swa = p.spec.full_to_swa.data();
      prepare.full_to_swa_size = std::ssize(p.spec.full_to_swa);
    }
    sg::cuda::prepare(prepare, device_, stream);

    const sg::VerifyPlan plan = verify_plan(room, entries);
    const sg::WritePlan rows{list(room.offsets, b.num_requests + 1),
                             list(room.seeds, b.num_requests), one(room.num_rows)};
    const sg::PlanParams planned = plan_params(p, room, work, plan, rows);
    // The tail checks what the head planned, unless another forward began in between.
    if (moment == Moment::head || room.planned != work.planned || work.first_cell >= 0) {
      sg::cuda::plan(planned, device_, stream);
    }
    room.planned =
        moment == Moment::head && work.first_cell < 0 ? work.planned : std::vector<std::int64_t>{};
    const bool checks_tokens = work.batch.expected_tokens.has_value();
    if (verifies) {
      sg::verify(context(p, room, moment, &room.words->verified), plan, checks_tokens, stream);
    }
    const bool is_tree = b.parents != nullptr;
    if (b.num_tokens > 0) write(p, room, moment, work.batch, rows, stream);
    report(pool, room, moment, planned, b.owners, is_tree, stream);
  }

  sg::PlanParams plan_params(const Pool& p, const Room& room, const Work& work,
                             const sg::VerifyPlan& plan, const sg::WritePlan& rows) const {
    const DeviceBatch& b = work.batch;
    const std::int64_t n = b.rows.shape[0];
    sg::PlanInput in;
    in.req_pool_indices = b.rows;
    in.prefix_lens = list(room.prefixes, n);
    in.extend_seq_lens = b.extend_lens;
    in.req_to_token = b.req_to_token;
    in.verify_capacity = plan.verify_slot_indices.shape[0];
    if (sg::translates(p.spec)) {
      in.swa_window_size = work.first_cell < 0 ? p.spec.window : 0;
      in.full_to_swa_index_mapping = list(const_cast<std::int64_t*>(p.spec.full_to_swa.data()),
                                          std::ssize(p.spec.full_to_swa));
    }
    if (b.expected_tokens) {
      in.req_to_verify_expected_tokens = b.expected_tokens;
      in.req_to_verify_expected_tokens_valid_lens = list(room.valid, n);
      in.kv_token_id_vs_position_offset = p.spec.token_offset;
    }
    sg::PlanParams params = sg::check_plan(plan, rows, in);
    // The last cells of one request are a window of it.
    if (work.first_cell >= 0) params.window = work.entries - work.first_cell;
    return params;
  }

  void write(Pool& p, const Room& room, Moment moment, const DeviceBatch& b,
             const sg::WritePlan& rows, Stream stream) const {
    const std::int64_t n = b.rows.shape[0], tokens = b.input_ids.shape[0];
    const sg::VerifyOrWriteContext c = context(p, room, moment, &room.words->written);
    sg::WriteInput in;
    in.input_ids = b.input_ids;
    in.positions = b.positions;
    in.out_cache_loc = list(room.new_slots, tokens);
    if (!b.parents) {
      sg::write(c, rows, in, stream);
      return;
    }
    sg::cuda::compose_tree({.write = sg::check_write(c, rows, in),
                            .words = room.words,
                            .parents = b.parents->as<const std::int64_t>(),
                            .seeds = room.tree_seeds,
                            .chains = room.chains,
                            .slots = room.tree_slots,
                            .no_seeds = room.no_seeds},
                           device_, stream);
    in.out_cache_loc = list(room.tree_slots, tokens);
    in.chain_hashes = list(room.chains, tokens);
    sg::WritePlan unseeded = rows;
    unseeded.write_seed_slot_indices = list(room.no_seeds, n);
    sg::write(c, unseeded, in, stream);
  }

  void report(int pool, const Room& room, Moment moment, const sg::PlanParams& plan,
              const Owner* owners, bool is_tree, Stream stream) {
    const Pool& p = at(pool);
    sg::cuda::report({.ring = params_of(ring_),
                      .words = room.words,
                      .rows = room.ring,
                      .entries = room.ring_entries,
                      .capacity = options_.ring_capacity,
                      .pool = pool,
                      .moment = moment,
                      .lives = static_cast<const std::uint32_t*>(p.lives.data()),
                      .num_slots = p.spec.num_slots,
                      .slot_bytes = moment != Moment::head ? p.slot_bytes : 0,
                      .plan = plan,
                      .owners = owners,
                      .slots = room.new_slots,
                      .tree = is_tree ? room.tree_seeds : nullptr},
                     device_, stream);
  }

  // --- sweeps
  bool sweep_is_due() const {
    return options_.sweep_interval > 0 &&
           step % static_cast<std::uint64_t>(options_.sweep_interval) == 0;
  }
  void sweep_now(Stream stream) {
    bool swept = false;
    for (int pool = 0; pool < num_pools(); ++pool) {
      // A copy: the function may put another in its own place, or detach the pool.
      const auto source = at(pool).sweep_source;
      if (!source) continue;
      std::vector<SweepEntry> entries;
      source(entries);
      if (!is_attached(pool)) continue;
      swept = true;
      const sg::HostVerifyPlan host = sg::sweep_plan(entries);
      const auto n = std::ssize(host.slots);
      Staging::Parcel parcel(staging_, stream);
      const std::array at{parcel.put(host.slots),
                          parcel.put(host.tokens),
                          parcel.put(host.positions),
                          parcel.put(host.prev_slots),
                          parcel.put(std::span(&host.num_valid, 1)),
                          parcel.put(std::span(&host.enable, 1))};
      parcel.send();
      const auto entry_list = [&](std::size_t i) { return parcel.view(at[i], DType::i64, {n}); };
      const sg::VerifyPlan plan{entry_list(0),
                                entry_list(1),
                                entry_list(2),
                                entry_list(3),
                                parcel.view(at[4], DType::i32, {1}),
                                parcel.view(at[5], DType::i32, {1})};
      Pool& p = this->at(pool);
      Room& room = room_for(p, {}, stream);
      sg::cuda::prepare({.words = room.words}, device_, stream);
      if (has_window(p.spec)) {
        const TensorView mapping = list(const_cast<std::int64_t*>(p.spec.full_to_swa.data()),
                                        std::ssize(p.spec.full_to_swa));
        for (const TensorView& slots : {plan.verify_slot_indices, plan.verify_prev_slot_indices}) {
          sg::translate_slots(slots, mapping, slots, stream);
        }
      }
      sg::verify(context(p, room, Moment::sweep, &room.words->verified), plan, false, stream);
      sg::PlanParams entries_of;
      entries_of.positions = plan.verify_expected_positions.as<std::int64_t>();
      entries_of.prev_slots = plan.verify_prev_slot_indices.as<std::int64_t>();
      report(pool, room, Moment::sweep, entries_of, nullptr, false, stream);
    }
    if (swept) ++stats.sweeps;
  }

  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<Carried> carried_;
  std::uint32_t life_ = 0;
  std::deque<Room> outgrown_;   // launches may be reading them until the next flush()
  std::deque<Room> of_graphs_;  // likewise, for as long as there are graphs
};

}  // namespace

}  // namespace serinus::canary::cuda

namespace serinus::canary {

std::unique_ptr<Backend> make_sglang_cuda_backend(const Options& options, Reporter& reporter,
                                                  Device device) {
  return std::make_unique<cuda::SglangCudaBackend>(options, reporter, device);
}

}  // namespace serinus::canary
