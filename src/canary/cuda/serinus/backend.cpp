#include "canary/cuda/serinus/backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"
#include "canary/serinus/digest.h"
#include "canary/serinus/judge.h"
#include "gpu/device.h"

namespace serinus::canary {

std::unique_ptr<Backend> make_cuda_backend(const Options& options, Reporter& reporter,
                                           Device device) {
  return std::make_unique<cuda::CudaBackend>(options, reporter, device);
}

}  // namespace serinus::canary

namespace serinus::canary::cuda {

namespace {

constexpr std::int64_t kAttachedEach = 8;             // of a row, on the device
constexpr std::size_t kSmallestWorkspace = 64 << 10;  // bytes

/// Two segments too many become one: it says less, and nothing wrong.
std::array<AttachedCells, kAttachedEach> on_device(Owner owner, const Attached& attached) {
  std::vector<Attached::Segment> s = attached.segments;
  while (std::ssize(s) > kAttachedEach) {
    std::size_t closest = 1;
    for (std::size_t i = 1; i < s.size(); ++i) {
      if (s[i].begin - s[i - 1].end < s[closest].begin - s[closest - 1].end) closest = i;
    }
    Attached::Segment& one = s[closest - 1];
    one.end = s[closest].end;
    if (newer(s[closest].epoch, one.epoch)) one.epoch = s[closest].epoch;
    s.erase(s.begin() + static_cast<std::ptrdiff_t>(closest));
  }
  std::array<AttachedCells, kAttachedEach> cells{};
  for (std::size_t i = 0; i < s.size(); ++i) cells[i] = {s[i].begin, s[i].end, owner, s[i].epoch};
  return cells;
}

}  // namespace

// ---------------------------------------------------------------- memory

struct CudaBackend::Pool {
  Pool(const PoolSpec& s, const Options& options, Device device, int number)
      : spec(s),
        sources(options.depth == Depth::none ? std::vector<Source>{}
                                             : sources_of(s.layout, s.num_layers, s.buffers)),
        view(describe_pool(s, options.depth, number, s.table_rows)),
        records(device, static_cast<std::size_t>(s.num_slots) * sizeof(Record)),
        ledger(device, static_cast<std::size_t>(s.num_slots) * sizeof(LedgerEntry)),
        state(device, pool_state_bytes(view)),
        live(static_cast<std::size_t>((s.num_slots + 63) / 64)),
        named(s.num_slots) {
    view.records = {records.data(), DType::u8, {s.num_slots, 32}, device};
    view.ledger = {ledger.data(), DType::i32, {s.num_slots, 5}, device};
    view.state = {state.data(), DType::u8, {static_cast<std::int64_t>(state.bytes())}, device};
    if (options.source_digests && !sources.empty()) {
      const std::int64_t n = std::ssize(sources);
      words.emplace(device, static_cast<std::size_t>(s.num_slots * n) * sizeof(std::uint32_t));
      view.source_digests = {words->data(), DType::u32, {s.num_slots, n}, device};
    }
    if (!s.full_to_swa.empty()) {
      view.full_to_swa = {const_cast<std::int64_t*>(s.full_to_swa.data()),
                          DType::i64,
                          {std::ssize(s.full_to_swa)},
                          device};
    }
  }
  bool has(std::int64_t slot) const noexcept { return slot >= 0 && slot < spec.num_slots; }
  void set_live(std::int64_t slot, bool on) noexcept {
    std::uint64_t& word = live[static_cast<std::size_t>(slot >> 6)];
    const std::uint64_t bit = std::uint64_t{1} << (slot & 63);
    num_live += static_cast<int>(on) - static_cast<int>((word & bit) != 0);
    word = on ? word | bit : word & ~bit;
  }

  /// What is announced from now on comes after all that waits.
  void close_lists() noexcept {
    first_list += static_cast<std::uint32_t>(lists.size());
    lists.clear();
  }

  PoolSpec spec;
  std::vector<Source> sources;  ///< on the device
  DevicePool view;
  gpu::Memory records, ledger, state;
  std::optional<gpu::Memory> words;  ///< Options::source_digests
  std::vector<std::uint64_t> live;   ///< as the device will have it: a bit a slot
  std::int64_t num_live = 0;
  // Lists of announcements that wait: the first of all slots, the second of those that have two,
  // ...
  std::vector<std::size_t> lists;   ///< in pending_
  std::uint32_t first_list = 1;     ///< number of lists[0]
  ZeroArray<std::uint32_t> named;   ///< number of the list that named a slot last
  std::vector<std::int64_t> fresh;  ///< loaded or moved: due at the next head
  std::uint64_t null_digest = 0;
  // Copies of the raw state.
  std::uint64_t version = 0;
  std::vector<Record> record_copy;
  std::vector<LedgerEntry> ledger_copy;
  std::vector<std::uint32_t> word_copy;
};

/// Calls of one kind about one pool, that go to the device as one launch.
struct CudaBackend::Pending {
  enum class Kind : std::uint8_t { lives, move, load, record };
  Kind kind = Kind::lives;
  int pool = 0;
  std::vector<Announcement> lives{};  ///< no slot twice
  std::vector<std::int64_t> slots{}, to{};
  std::vector<Record> records{};
  std::vector<std::uint32_t> words{};  ///< load: source digests
  Owner owner = 0;
};

/// What goes to the device in one copy, and the launches that read it.
class CudaBackend::Section : public Staging::Parcel {
 public:
  Section(CudaBackend& backend, Stream stream) : Parcel(backend.staging_, stream), b_(backend) {}

  // --- what was announced
  /// Takes it. The device reads it with launch_pending().
  void put_pending() {
    pending_.swap(b_.pending_);
    b_.pending_.clear();
    for (const auto& pool : b_.pools_) pool->close_lists();
    b_.pending_slots_ = 0;
    for (const Pending& p : pending_) {
      const bool moves = p.kind == Pending::Kind::move;
      const std::size_t n = p.slots.size();
      places_.push_back(
          {put(p.lives), put(p.slots), put(p.to), put(p.records),
           moves ? room(move_workspace_bytes(std::ssize(p.slots))) : 0,
           moves ? room(n * b_.words_each(p.pool) * sizeof(std::uint32_t)) : put(p.words)});
    }
    for (const std::int64_t row : std::exchange(b_.changed_rows_, {})) {
      std::array<AttachedCells, kAttachedEach> cells{};
      const auto found = b_.rows_.find(row);
      if (found != b_.rows_.end()) cells = on_device(found->second.first, found->second.second);
      changed_.emplace_back(row, put(std::span<const AttachedCells>(cells)));
    }
    for (const auto& pool : b_.pools_) {
      fresh_.push_back(std::exchange(pool->fresh, {}));
      fresh_at_.push_back(put(fresh_.back()));
    }
  }
  void launch_pending() {
    b_.follow_announced(stream_);
    if (pending_.empty() && changed_.empty()) return;
    for (std::size_t i = 0; i < pending_.size(); ++i) launch(pending_[i], places_[i]);
    constexpr std::size_t kRowBytes = kAttachedEach * sizeof(AttachedCells);
    for (const auto& [row, at] : changed_) {
      gpu::copy_to_device(
          b_.device_,
          static_cast<std::byte*>(b_.attached_->data()) + static_cast<std::size_t>(row) * kRowBytes,
          host(at), kRowBytes, stream_);
    }
    b_.mark_announced(stream_);
  }
  /// Slots that were loaded or moved: to be checked now, or at the next head.
  void verify_fresh() {
    for (std::size_t i = 0; i < fresh_.size(); ++i) {
      if (fresh_[i].empty()) continue;
      verify_slots(b_.pools_[i]->view, b_.ring_,
                   view(fresh_at_[i], DType::i64, {std::ssize(fresh_[i])}), Moment::head, stream_);
    }
  }
  /// All that was put goes, and what was announced is launched; what is fresh waits for a head.
  void pass_on() {
    send();
    launch_pending();
    for (std::size_t i = 0; i < fresh_.size(); ++i) b_.pools_[i]->fresh.swap(fresh_[i]);
  }

  // --- a batch whose arrays lie on the host
  void put_batch(const Batch& batch) {
    batch_ = {put(batch.rows),          put(batch.prefix_lens), put(batch.extend_lens),
              put(batch.owners),        put(batch.input_ids),   put(batch.positions),
              put(batch.out_cache_loc), put(batch.valid_lens),  put(batch.parents)};
    room(16);  // so that there is an address even if all are empty
  }
  DeviceBatch batch(const Batch& batch) const {
    const std::int64_t n = std::ssize(batch.rows), tokens = std::ssize(batch.out_cache_loc);
    DeviceBatch d;
    d.rows = view(batch_[0], DType::i64, {n});
    d.prefix_lens = view(batch_[1], DType::i64, {n});
    d.extend_lens = view(batch_[2], DType::i64, {n});
    d.owners = view(batch_[3], DType::u32, {n});
    d.req_to_token = batch.req_to_token;
    d.input_ids = view(batch_[4], DType::i64, {tokens});
    d.positions = view(batch_[5], DType::i64, {tokens});
    d.out_cache_loc = view(batch_[6], DType::i64, {tokens});
    if (batch.expected_tokens.data != nullptr) d.expected_tokens = batch.expected_tokens;
    if (!batch.valid_lens.empty()) d.valid_lens = view(batch_[7], DType::i64, {n});
    if (!batch.parents.empty()) d.parents = view(batch_[8], DType::i64, {tokens});
    return d;
  }

 private:
  struct Places {
    std::size_t lives, slots, to, records, workspace, words;
  };

  void launch(const Pending& p, const Places& at) const {
    const DevicePool& pool = b_.at(p.pool).view;
    const auto n = std::ssize(p.slots), each = static_cast<std::int64_t>(b_.words_each(p.pool));
    const auto words = [&] { return view(at.words, DType::u32, {n, each}); };
    switch (p.kind) {
      case Pending::Kind::lives:
        cuda::announce(pool, b_.ring_, view(at.lives, DType::u8, {std::ssize(p.lives), 24}),
                       stream_);
        break;
      case Pending::Kind::move:
        cuda::on_move(
            pool, b_.ring_, view(at.slots, DType::i64, {n}), view(at.to, DType::i64, {n}),
            view(at.workspace, DType::u8, {static_cast<std::int64_t>(move_workspace_bytes(n))}),
            stream_);
        if (each > 0) {
          move_sources(pool, view(at.slots, DType::i64, {n}), view(at.to, DType::i64, {n}), words(),
                       stream_);
        }
        break;
      case Pending::Kind::load:
        cuda::on_load(pool, b_.ring_, view(at.records, DType::u8, {n, 32}),
                      view(at.slots, DType::i64, {n}), p.owner, stream_);
        if (each > 0) load_sources(pool, words(), view(at.slots, DType::i64, {n}), stream_);
        break;
      case Pending::Kind::record:
        gpu::copy_to_device(b_.device_, pool.records.as<Record>() + p.slots[0], host(at.records),
                            sizeof(Record), stream_);
        break;
    }
  }

  CudaBackend& b_;
  std::vector<Pending> pending_;
  std::vector<Places> places_;
  std::vector<std::pair<std::int64_t, std::size_t>> changed_;
  std::vector<std::vector<std::int64_t>> fresh_;
  std::vector<std::size_t> fresh_at_;
  std::array<std::size_t, 9> batch_{};
};

CudaBackend::CudaBackend(const Options& options, Reporter& reporter, Device device)
    : DeviceBackend(options, reporter, device) {}

CudaBackend::~CudaBackend() = default;

void CudaBackend::add_pool(const PoolSpec& spec) {
  if (spec.table_rows < 1) {
    raise(errors::Page::canary_pool,
          {{"name", spec.name},
           {"got", "table_rows " + std::to_string(spec.table_rows) + " is not positive"}});
  }
  pools_.push_back(
      std::make_unique<Pool>(spec, options_, device_, static_cast<int>(pools_.size())));
  Pool& p = *pools_.back();
  init_pool(p.view, spec, own_.get());
  gpu::synchronize(device_);
  if (options_.depth != Depth::none && spec.null_slot == NullSlot::clean) {
    p.null_digest = digest_of(static_cast<int>(pools_.size()) - 1, 0).value_or(0);
  }
  if (spec.table_rows <= table_rows_) return;
  table_rows_ = spec.table_rows;
  const std::vector<AttachedCells> none(static_cast<std::size_t>(table_rows_ * kAttachedEach));
  attached_.reset();
  attached_.emplace(device_, none.data(), none.size() * sizeof(AttachedCells));
}

void CudaBackend::detach_pool(int pool) {
  retire(pool);
  Pool& p = at(pool);
  p.sources.clear();
  p.fresh.clear();
  std::ranges::fill(p.live, 0);
  p.num_live = 0;
}

TensorView CudaBackend::workspace(Stream stream, std::int64_t requests, std::int64_t tokens,
                                  std::int64_t slots) {
  const std::size_t bytes = workspace_bytes(requests, tokens, slots);
  const std::pair key{stream.handle, gpu::capture_of(device_, stream)};
  auto found = workspaces_.find(key);
  if (found != workspaces_.end() && found->second.bytes() < bytes) {
    outgrown_.push_back(std::move(found->second));
    workspaces_.erase(found);
    found = workspaces_.end();
  }
  if (found == workspaces_.end()) {
    const gpu::BesideCapture relaxed;
    found =
        workspaces_.emplace(key, gpu::Memory(device_, std::max(bytes, kSmallestWorkspace))).first;
  }
  return {
      found->second.data(), DType::u8, {static_cast<std::int64_t>(found->second.bytes())}, device_};
}

// ---------------------------------------------------------------- announcements

void CudaBackend::changed(std::size_t slots) {
  ++version_;
  gathered(slots);
}

CudaBackend::Pending& CudaBackend::next_pending(int pool) {
  Pending& p = pending_.emplace_back();
  p.pool = pool;
  at(pool).close_lists();
  return p;
}

void CudaBackend::announce(int pool, std::int64_t slot, LedgerEventKind kind, Owner owner,
                           std::uint32_t other) {
  Pool& p = at(pool);
  const bool inside = p.has(slot);
  std::size_t level = 0;  // after the list that named the slot last
  if (inside && p.named[slot] >= p.first_list) level = p.named[slot] - p.first_list + 1;
  if (level == p.lists.size()) {
    p.lists.push_back(pending_.size());
    pending_.emplace_back().pool = pool;
  }
  if (inside) p.named[slot] = p.first_list + static_cast<std::uint32_t>(level);
  pending_[p.lists[level]].lives.push_back({slot, kind, owner, other});
}

void CudaBackend::on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner) {
  Pool& p = at(pool);
  if (++epoch_ == 0) ++epoch_;  // a record of zeros must be of no life
  for (const std::int64_t slot : slots) {
    announce(pool, slot, LedgerEventKind::alloc, owner, epoch_);
    if (p.has(slot) && slot != 0) p.set_live(slot, true);
  }
  changed(slots.size());
}

void CudaBackend::on_free(int pool, std::span<const std::int64_t> slots, Owner owner) {
  Pool& p = at(pool);
  for (const std::int64_t slot : slots) {
    announce(pool, slot, LedgerEventKind::free, owner, 0);
    if (p.has(slot) && slot != 0) p.set_live(slot, false);
  }
  changed(slots.size());
}

void CudaBackend::on_transfer(int pool, std::span<const std::int64_t> slots, Owner from, Owner to) {
  for (const std::int64_t slot : slots) {
    announce(pool, slot, LedgerEventKind::transfer, from, to);
  }
  changed(slots.size());
}

void CudaBackend::forget_row(Owner owner) {
  const auto found = row_of_.find(owner);
  if (found == row_of_.end()) return;
  const auto row = rows_.find(found->second);
  if (row != rows_.end() && row->second.first == owner) {
    changed_rows_.insert(row->first);
    rows_.erase(row);
  }
  row_of_.erase(found);
}

void CudaBackend::on_attach(Owner owner, std::int64_t row, std::int64_t begin, std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0);
  if (begin >= end) return;
  if (row < 0 || row >= table_rows_) {
    raise(errors::Page::canary_pool,
          {{"name", pools_.empty() ? "" : pools_[0]->spec.name},
           {"got", "row " + std::to_string(row) + " is attached, table_rows is " +
                       std::to_string(table_rows_)}});
  }
  const auto known = row_of_.find(owner);
  if (known != row_of_.end() && known->second != row) forget_row(owner);
  row_of_[owner] = row;
  auto& [holder, attached] = rows_[row];
  if (holder != owner) attached = {};
  holder = owner;
  attached.attach(begin, end, epoch_);
  changed_rows_.insert(row);
  due_.push_back({owner, row, begin, end, std::vector<bool>(pools_.size())});
  ++version_;
}

void CudaBackend::on_release(Owner owner) {
  forget_row(owner);
  std::erase_if(due_, [&](const Due& d) { return d.owner == owner; });
}

void CudaBackend::on_move(int pool, std::span<const std::int64_t> from,
                          std::span<const std::int64_t> to) {
  if (from.empty()) return;
  Pending& p = next_pending(pool);
  p.kind = Pending::Kind::move;
  p.slots.assign(from.begin(), from.end());
  p.to.assign(to.begin(), to.end());
  for (const std::int64_t slot : to) {
    if (at(pool).has(slot) && slot != 0) at(pool).fresh.push_back(slot);
  }
  changed(from.size());
}

void CudaBackend::on_load(int pool, std::span<const Record> records,
                          std::span<const std::int64_t> slots, Owner owner,
                          std::span<const std::uint32_t> source_digests) {
  if (slots.empty()) return;
  Pending& p = next_pending(pool);
  p.kind = Pending::Kind::load;
  p.slots.assign(slots.begin(), slots.end());
  p.records.assign(records.begin(), records.end());
  p.owner = owner;
  p.words.resize(slots.size() * words_each(pool));  // zeros: not known
  std::copy_n(source_digests.begin(), std::min(source_digests.size(), p.words.size()),
              p.words.begin());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (at(pool).has(slots[i]) && slots[i] != 0 && records[i] != Record{}) {
      at(pool).fresh.push_back(slots[i]);
    }
  }
  changed(slots.size());
}

void CudaBackend::on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                           std::span<std::uint32_t> source_digests) {
  if (slots.empty()) return;
  settle();
  const gpu::Memory list(device_, slots.data(), slots.size_bytes());
  const gpu::Memory stored(device_, records.size_bytes());
  const auto n = std::ssize(slots);
  cuda::on_store(at(pool).view, ring_, {list.data(), DType::i64, {n}, device_},
                 {stored.data(), DType::u8, {n, 32}, device_}, own_.get());
  gpu::synchronize(device_);
  stored.download(records.data(), records.size_bytes());
  const std::size_t each = words_each(pool);
  if (source_digests.empty() || each == 0) return;
  const gpu::Memory words(device_, slots.size() * each * sizeof(std::uint32_t));
  store_sources(at(pool).view, {list.data(), DType::i64, {n}, device_},
                {words.data(), DType::u32, {n, static_cast<std::int64_t>(each)}, device_},
                own_.get());
  gpu::synchronize(device_);
  std::vector<std::uint32_t> copy(slots.size() * each);
  words.download(copy.data(), words.bytes());
  for (std::size_t i = 0; i < slots.size(); ++i) {  // of those that were written in this life
    if (records[i] == Record{}) continue;
    std::copy_n(copy.data() + i * each, each, source_digests.data() + i * each);
  }
}

std::size_t CudaBackend::words_each(int pool) const {
  return at(pool).words ? at(pool).sources.size() : 0;
}

void CudaBackend::stamp_words(const std::vector<int>& pools, const DeviceBatch& batch,
                              Stream stream) {
  for (const int pool : pools) {
    if (words_each(pool) > 0) stamp_sources(at(pool).view, batch, stream);
  }
}

/// Of damage that the checks before have found.
void CudaBackend::name_damaged(Stream stream) {
  for (int i = 0; i < static_cast<int>(pools_.size()); ++i) {
    if (is_attached(i) && words_each(i) > 0) name_sources(at(i).view, ring_, stream);
  }
}

void CudaBackend::set_record(int pool, std::int64_t slot, const Record& record) {
  Pending& p = next_pending(pool);
  p.kind = Pending::Kind::record;
  p.slots = {slot};
  p.records = {record};
  changed(1);
}

// ---------------------------------------------------------------- the moments

DeviceBatch CudaBackend::with_attached(DeviceBatch batch) const {
  if (!batch.attached && attached_) {
    batch.attached = {attached_->data(),
                      DType::u8,
                      {table_rows_, kAttachedEach, std::int64_t{sizeof(AttachedCells)}},
                      device_};
  }
  return batch;
}

void CudaBackend::run_head(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream) {
  const TensorView w = workspace(stream, batch.rows.shape[0], 0, 0);
  for (const int pool : pools) {
    verify(at(pool).view, ring_, batch,
           {Moment::head, options_.verify, records_a_moment(at(pool).view.slot_bytes)}, w, stream);
  }
  name_damaged(stream);
}

void CudaBackend::run_stamp(const std::vector<int>& pools, const DeviceBatch& batch,
                            Stream stream) {
  const TensorView w = workspace(stream, batch.rows.shape[0], batch.out_cache_loc.shape[0], 0);
  for (const int pool : pools) cuda::stamp(at(pool).view, ring_, batch, w, stream);
  stamp_words(pools, batch, stream);
}

void CudaBackend::run_tail(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream) {
  const TensorView w = workspace(stream, batch.rows.shape[0], batch.out_cache_loc.shape[0], 0);
  // The sweep goes along, and the step's end, where no pool is left out.
  swept_ = pools;
  counted_ = !pools.empty() && std::ranges::all_of(pools_of({}), [&](int pool) {
    return std::ranges::find(pools, pool) != pools.end();
  });
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const Pool& p = at(pools[i]);
    cuda::end_step(
        p.view, ring_, batch, {Moment::tail, options_.verify, records_a_moment(p.view.slot_bytes)},
        records_a_sweep(p.view.slot_bytes), counted_ && i + 1 == pools.size(), w, stream);
  }
  name_damaged(stream);
  stamp_words(pools, batch, stream);
}

std::vector<CudaBackend::Cells> CudaBackend::take_due(int pool, const Batch* batch) {
  std::vector<Cells> cells;
  const Pool& p = at(pool);
  const bool windowed = p.spec.kind == PoolKind::swa && p.spec.window > 0;
  for (Due& due : due_) {
    std::int64_t prefix = due.end, valid = due.end;
    if (batch != nullptr) {
      const auto found = std::ranges::find(batch->owners, due.owner);
      if (found == batch->owners.end()) continue;
      const auto i = static_cast<std::size_t>(found - batch->owners.begin());
      if (batch->rows[i] == 0) continue;
      prefix = std::max<std::int64_t>(batch->prefix_lens[i], 0);
      valid = batch->valid_lens.empty() ? batch->expected_tokens.shape[1] : batch->valid_lens[i];
    }
    if (due.done[static_cast<std::size_t>(pool)]) continue;
    due.done[static_cast<std::size_t>(pool)] = true;
    if (options_.verify == VerifyPolicy::all) continue;  // all of it is verified anyway
    const std::int64_t begin =
        windowed ? std::max(due.begin, prefix - p.spec.window + 1) : due.begin;
    if (begin < due.end) cells.push_back({due.owner, due.row, begin, due.end, valid});
  }
  std::erase_if(due_, [&](const Due& d) {
    for (int i = 0; i < static_cast<int>(d.done.size()); ++i) {
      if (!d.done[static_cast<std::size_t>(i)] && is_attached(i)) return false;
    }
    return true;
  });
  return cells;
}

/// Requests that are nothing but their due cells. Two calls of it: before and after send().
class CudaBackend::CellBatch {
 public:
  CellBatch(Section& section, const std::vector<Cells>& cells) : n_(std::ssize(cells)) {
    std::vector<std::int64_t> rows, due, valid;
    std::vector<Owner> owners;
    for (const Cells& c : cells) {
      rows.push_back(c.row);
      owners.push_back(c.owner);
      due.push_back(c.begin);
      due.push_back(c.end);
      valid.push_back(c.valid);
    }
    at_ = {section.put(rows), section.put(owners), section.put(due), section.put(valid),
           section.put(std::vector<std::int64_t>(cells.size()))};
  }
  std::int64_t count() const noexcept { return n_; }
  DeviceBatch batch(const Section& s, const TensorView& table,
                    const std::optional<TensorView>& expected) const {
    DeviceBatch d;
    d.rows = s.view(at_[0], DType::i64, {n_});
    d.owners = s.view(at_[1], DType::u32, {n_});
    d.prefix_lens = d.extend_lens = s.view(at_[4], DType::i64, {n_});
    d.due = s.view(at_[2], DType::i64, {n_, 2});
    d.valid_lens = s.view(at_[3], DType::i64, {n_});
    d.input_ids = d.positions = d.out_cache_loc = s.view(at_[4], DType::i64, {0});
    d.req_to_token = table;
    d.expected_tokens = expected;
    return d;
  }

 private:
  std::int64_t n_;
  std::array<std::size_t, 5> at_{};
};

void CudaBackend::verify_due(const Section& section, int pool, const CellBatch& cells,
                             Moment moment, const TensorView& table,
                             const std::optional<TensorView>& expected) {
  if (cells.count() == 0) return;
  verify(at(pool).view, ring_, with_attached(cells.batch(section, table, expected)),
         {moment, VerifyPolicy::rolling, 1}, workspace(section.stream(), cells.count(), 0, 0),
         section.stream());
}

void CudaBackend::head(const Batch& batch, Stream stream) {
  check_stream(stream);
  ++version_;
  make_room(stream);
  const std::vector<int> pools = pools_of(batch.pools);
  Section section(*this, stream);
  section.put_pending();
  section.put_batch(batch);
  std::vector<CellBatch> due;
  for (const int pool : pools) due.emplace_back(section, take_due(pool, &batch));
  section.send();
  section.launch_pending();
  section.verify_fresh();
  const DeviceBatch d = with_attached(section.batch(batch));
  for (std::size_t i = 0; i < pools.size(); ++i) {
    verify_due(section, pools[i], due[i], Moment::head, d.req_to_token, d.expected_tokens);
  }
  run_head(pools, d, stream);
  launched(stream);
}

void CudaBackend::tail(const Batch& batch, Stream stream) {
  check_stream(stream);
  ++version_;
  Section section(*this, stream);
  section.put_pending();
  section.put_batch(batch);
  section.pass_on();
  run_tail(pools_of(batch.pools), with_attached(section.batch(batch)), stream);
}

void CudaBackend::stamp(const Batch& batch, Stream stream) {
  check_stream(stream);
  ++version_;
  Section section(*this, stream);
  section.put_pending();
  section.put_batch(batch);
  section.pass_on();
  run_stamp(pools_of(batch.pools), with_attached(section.batch(batch)), stream);
  launched(stream);
}

void CudaBackend::catch_up(const DeviceBatch& batch, std::span<const int> named, Stream stream) {
  ++version_;
  make_room(stream);
  const std::vector<int> pools = pools_of(named);
  Section section(*this, stream);
  section.put_pending();
  std::vector<CellBatch> due;
  for (const int pool : pools) due.emplace_back(section, take_due(pool, nullptr));
  section.send();
  section.launch_pending();
  section.verify_fresh();
  for (std::size_t i = 0; i < pools.size(); ++i) {
    verify_due(section, pools[i], due[i], Moment::head, batch.req_to_token, batch.expected_tokens);
  }
  name_damaged(stream);
}

void CudaBackend::head(const DeviceBatch& batch, std::span<const int> pools, Stream stream) {
  if (!is_captured(stream)) catch_up(batch, pools, stream);
  run_head(pools_of(pools), with_attached(batch), stream);
  launched(stream);
}

void CudaBackend::tail(const DeviceBatch& batch, std::span<const int> pools, Stream stream) {
  ++version_;
  if (!is_captured(stream)) {
    Section section(*this, stream);
    section.put_pending();
    section.pass_on();
  }
  run_tail(pools_of(pools), with_attached(batch), stream);
}

void CudaBackend::sweep(Stream stream) {
  stats.live_slots = stats.sweep_bound_steps = 0;
  for (int i = 0; i < static_cast<int>(pools_.size()); ++i) {
    if (!is_attached(i)) continue;
    const Pool& p = at(i);
    const std::int64_t budget = records_a_sweep(p.view.slot_bytes);
    if (std::ranges::find(swept_, i) == swept_.end()) {
      cuda::sweep(p.view, ring_, budget, workspace(stream, 0, 0, budget), stream);
    }
    stats.live_slots += p.num_live;
    stats.sweep_bound_steps =
        std::max(stats.sweep_bound_steps, (p.num_live + budget - 1) / budget + 1);
  }
  name_damaged(stream);
  if (!counted_) next_step(ring_, stream);
  launched(stream);
  swept_.clear();
  counted_ = false;
}

void CudaBackend::verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                             std::int64_t end, const Batch& tables, Stream stream) {
  check_stream(stream);
  ++version_;
  begin = std::max<std::int64_t>(begin, 0);
  if (begin >= end) return;
  std::int64_t valid = tables.expected_tokens.shape[1];
  for (std::size_t i = 0; i < tables.valid_lens.size() && i < tables.owners.size(); ++i) {
    if (tables.owners[i] == owner) valid = tables.valid_lens[i];
  }
  Section section(*this, stream);
  section.put_pending();
  const CellBatch cells(section, {{owner, row, begin, end, valid}});
  section.pass_on();
  std::optional<TensorView> expected;
  if (tables.expected_tokens.data != nullptr) expected = tables.expected_tokens;
  for (const int pool : pools_of(tables.pools)) {
    verify_due(section, pool, cells, moment, tables.req_to_token, expected);
  }
  name_damaged(stream);
  launched(stream);
}

void CudaBackend::flush() {
  settle();
  {
    Section section(*this, own_.get());
    section.put_pending();  // what was loaded or moved
    std::vector<std::pair<int, std::vector<std::int64_t>>> live;
    std::vector<std::size_t> places;
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
      if (!is_attached(pool)) continue;
      std::vector<std::int64_t> slots;
      const std::vector<std::uint64_t>& words = at(pool).live;
      for (std::size_t w = 0; w < words.size(); ++w) {
        for (std::uint64_t word = words[w]; word != 0; word &= word - 1) {
          slots.push_back(static_cast<std::int64_t>(w) * 64 + std::countr_zero(word));
        }
      }
      places.push_back(section.put(slots));
      live.emplace_back(pool, std::move(slots));
    }
    const CellBatch nobody(section, {});
    const std::size_t no_table = section.room(16);
    section.send();
    section.verify_fresh();
    const DeviceBatch none =
        nobody.batch(section, section.view(no_table, DType::i32, {1, 1}), std::nullopt);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const auto& [pool, slots] = live[i];
      const Pool& p = at(pool);
      const auto n = std::ssize(slots);
      if (n > 0) {
        verify_slots(p.view, ring_, section.view(places[i], DType::i64, {n}), Moment::sweep,
                     own_.get());
      }
      // No request at all: the null slot alone.
      verify(p.view, ring_, none, {Moment::sweep, VerifyPolicy::all, 1},
             workspace(own_.get(), 0, 0, 0), own_.get());
    }
    name_damaged(own_.get());
  }
  wait();
  const std::lock_guard lock(drain_mutex_);
  flushed_sweeps_ += pools_.size() - detached_.size();
}

// ---------------------------------------------------------------- raw state

bool CudaBackend::pass_on(Stream stream) {
  if (pending_.empty() && changed_rows_.empty()) return false;
  Section section(*this, stream);
  section.put_pending();
  section.pass_on();
  return true;
}

bool CudaBackend::describe(Violation& v, int source, std::uint64_t& life) const {
  if (any(v.reasons & Reason::kv_bytes) && source == kNotNamed && is_attached(v.pool) &&
      words_each(v.pool) > 0) {
    return false;
  }
  if (source >= 0) {
    const std::vector<KvSegment>& segments = spec(v.pool).layout.segments;
    const auto i = static_cast<std::size_t>(source);
    v.layer = static_cast<int>(i / segments.size());
    v.segment = segments[i % segments.size()].name;
  }
  const bool of_a_cell = any(v.reasons & Reason::out_of_range) ||
                         (v.slot == 0 && !any(v.reasons & Reason::null_slot_dirty));
  life = of_a_cell ? life_of_cell(v.row, v.expected_position) : v.expected_generation;
  return true;
}

int CudaBackend::num_pools() const {
  return static_cast<int>(pools_.size());
}
const PoolSpec& CudaBackend::spec(int pool) const {
  return at(pool).spec;
}
std::span<const Source> CudaBackend::sources(int pool) const {
  return at(pool).sources;
}

std::span<Record> CudaBackend::records(int pool) {
  settle();
  Pool& p = at(pool);
  p.record_copy.resize(static_cast<std::size_t>(p.spec.num_slots));
  p.records.download(p.record_copy.data(), p.records.bytes());
  return p.record_copy;
}

std::span<LedgerEntry> CudaBackend::ledger(int pool) {
  settle();
  Pool& p = at(pool);
  p.ledger_copy.resize(static_cast<std::size_t>(p.spec.num_slots));
  p.ledger.download(p.ledger_copy.data(), p.ledger.bytes());
  p.version = version_;
  return p.ledger_copy;
}

std::span<std::uint32_t> CudaBackend::source_digests(int pool) {
  Pool& p = at(pool);
  if (!p.words) return {};
  settle();
  p.word_copy.resize(p.words->bytes() / sizeof(std::uint32_t));
  p.words->download(p.word_copy.data(), p.words->bytes());
  return p.word_copy;
}

SlotState CudaBackend::state(int pool, std::int64_t slot) const {
  Pool& p = at(pool);
  if (!p.has(slot)) return SlotState::free;
  if (p.version != version_) const_cast<CudaBackend*>(this)->ledger(pool);
  return state_of(p.ledger_copy[static_cast<std::size_t>(slot)]);
}

std::optional<std::uint64_t> CudaBackend::digest_of(int pool, std::int64_t slot) const {
  const Pool& p = at(pool);
  if (!p.has(slot)) return std::nullopt;
  const std::vector<std::uint8_t> bytes = slot_bytes(pool, slot);
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (Source s : p.sources) {
    s.base = bytes.data() + at;
    s.buffer_bytes = s.bytes;
    s.page_stride = s.offset = s.token_stride = 0;
    sum = digest_add(sum, digest_contribution(s, 1, 0, options_.depth).value_or(0));
    at += s.bytes;
  }
  return options_.depth == Depth::none ? 0 : digest_finish(sum, options_.depth);
}

std::uint64_t CudaBackend::null_digest(int pool) const {
  return at(pool).null_digest;
}
std::int64_t CudaBackend::live_slots(int pool) const {
  return at(pool).num_live;
}
std::int64_t CudaBackend::num_sources(int pool) const {
  return std::ssize(at(pool).sources);
}

std::uint64_t CudaBackend::request_digest(std::int64_t row, std::int64_t length,
                                          const Batch& tables) const {
  std::uint64_t h = hash::mix64(static_cast<std::uint64_t>(length) + 1);
  const std::vector<std::int32_t> locations = cells(tables.req_to_token, row, length);
  for (const int pool : pools_of(tables.pools)) {
    Pool& p = at(pool);
    const std::vector<std::int64_t> swa = full_to_swa(pool);
    const std::span<const Record> records = const_cast<CudaBackend*>(this)->records(pool);
    for (const std::int64_t location : locations) {
      std::int64_t slot = location;
      if (!swa.empty()) {
        slot = slot >= 0 && slot < std::ssize(swa) ? swa[static_cast<std::size_t>(slot)] : -1;
      }
      const bool absent = p.spec.kind == PoolKind::swa && slot == 0;
      const bool known = p.has(slot) && !absent;
      h = hash::mix64(h ^ (known ? records[static_cast<std::size_t>(slot)].chain : 0));
    }
  }
  return h;
}

void CudaBackend::request_digests(int pool, const DeviceBatch& batch, const TensorView& digests,
                                  Stream stream) const {
  cuda::request_digests(at(pool).view, batch, digests, stream);
}

}  // namespace serinus::canary::cuda
