// The Monitor: checks what the caller hands over, then lets the record format's backend work.
#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include <serinus/log.h>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/backend.h"
#include "canary/event_log.h"
#include "canary/health.h"
#include "canary/reporter.h"
#include "canary/serinus/digest.h"

namespace serinus::canary {

namespace {

void check_options(const Options& o) {
  constexpr std::int64_t kMostKept = std::numeric_limits<std::int32_t>::max();
  const auto within = [](const char* name, std::int64_t got, std::int64_t least,
                         std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    if (got >= least && got <= most) return;
    raise(errors::Page::canary_option, {{"name", name},
                                        {"least", std::to_string(least)},
                                        {"most", std::to_string(most)},
                                        {"got", std::to_string(got)}});
  };
  within("records_per_step", o.records_per_step, 1);
  within("bytes_per_step", o.bytes_per_step, 1);
  within("sweep_interval", o.sweep_interval, 0);
  within("ring_capacity", o.ring_capacity, 1, kMostKept);
  within("event_capacity", o.event_capacity, 0, kMostKept);
  within("health_steps", o.health_steps, 0);
  within("threads", o.threads, 0);
}

void check_pool(const PoolSpec& p, const Options& options) {
  const auto require = [&](bool ok, const std::string& problem) {
    if (!ok) raise(errors::Page::canary_pool, {{"name", p.name}, {"got", problem}});
  };
  // Slot numbers are int32 in every engine's tables.
  require(p.num_slots >= 1 && p.num_slots <= std::numeric_limits<std::int32_t>::max(),
          "num_slots " + std::to_string(p.num_slots) + " is not in [1, 2^31)");
  require(p.num_layers >= 1, "num_layers " + std::to_string(p.num_layers) + " is not positive");
  require(p.layout.page_size >= 1,
          "the layout's page_size " + std::to_string(p.layout.page_size) + " is not positive");
  require(p.window >= 0, "window " + std::to_string(p.window) + " is negative");
  if (options.depth == Depth::none) return;
  const std::size_t want =
      static_cast<std::size_t>(p.num_layers) * static_cast<std::size_t>(p.layout.num_buffers());
  require(p.buffers.size() == want, std::to_string(p.buffers.size()) +
                                        " buffers where layers and layout need " +
                                        std::to_string(want) + " (Depth::none needs none)");
  require(!p.layout.segments.empty(), "the layout has no segments");
  for (const KvSegment& s : p.layout.segments) {
    require(s.buffer >= 0 && s.buffer < p.layout.num_buffers(),
            "segment " + s.name + " lies in no buffer");
    require(s.bytes >= 1 && s.offset >= 0 && s.token_stride >= 0,
            "segment " + s.name + " has no sensible place");
  }
  for (const KvBuffer& b : p.buffers) {
    require(b.data != nullptr && b.bytes >= 0 && b.page_stride >= 0, "a buffer is null");
  }
  p.layout.validate();
}

[[noreturn]] void refuse_device_batch() {
  raise(errors::Page::canary_table,
        {{"name", "batch"}, {"device", "cpu"}, {"got", "a batch on a GPU"}});
}

}  // namespace

struct Monitor::Impl {
  explicit Impl(Options o)
      : options(o),
        events(o.event_capacity),
        reporter(o.ring_capacity, o.mode, events),
        health(o.health_steps, o.format == Format::sglang ? o.sweep_interval : 0) {
    if (options.mode == Mode::none) return;
    backend = options.format == Format::serinus ? make_serinus_backend(options, reporter)
                                                : make_sglang_backend(options, reporter);
  }

  bool on() const noexcept { return backend != nullptr; }
  bool on_gpu() const noexcept { return device.type == DeviceType::cuda; }

  /// The first pool says where all of them lie.
  void choose_device(const PoolSpec& spec) {
    if (spec.device == device) return;
    if (!pools.empty()) {
      raise(errors::Page::canary_pool,
            {{"name", spec.name},
             {"got", "it lies on " + device_string(spec.device) + ", this monitor's pools on " +
                         device_string(device)}});
    }
    if (on()) {
      const auto make =
          options.format == Format::serinus ? make_cuda_backend : make_sglang_cuda_backend;
      backend = make(options, reporter, spec.device);
    }
    device = spec.device;
  }

  void check_pool_number(int pool) const {
    if (pool < 0 || static_cast<std::size_t>(pool) >= pools.size() ||
        std::find(detached.begin(), detached.end(), pool) != detached.end()) {
      raise(errors::Page::canary_no_such_pool,
            {{"got", std::to_string(pool)}, {"count", std::to_string(pools.size())}});
    }
  }
  void check(const Batch& batch) const {
    check_batch(batch, pools.size(), device);
    if (detached.empty()) return;
    for (const int pool : batch.pools) check_pool_number(pool);
  }
  static void check_same(const char* name, std::size_t got, const char* as, std::size_t want) {
    if (got != want) {
      raise(errors::Page::canary_lengths_differ, {{"name", name},
                                                  {"got", std::to_string(got)},
                                                  {"as", as},
                                                  {"want", std::to_string(want)}});
    }
  }
  static void check_owner(Owner owner) {
    if (owner == 0) raise(errors::Page::canary_owner, {{"name", "owner"}, {"got", "0"}});
  }
  void check_digests(const char* name, int pool, std::size_t got, std::size_t slots) const {
    if (got == 0) return;
    check_same(name, got, "slots x num_sources",
               slots * static_cast<std::size_t>(backend->num_sources(pool)));
  }

  /// Runs the checks of one moment on the clock, and publishes the counters.
  template <class F>
  void timed(Moment moment, F&& f) {
    static constexpr double Stats::* kSeconds[] = {&Stats::seconds_head, &Stats::seconds_tail,
                                                   &Stats::seconds_sweep};
    Stats& stats = backend->stats;
    const std::uint64_t sweeps = stats.sweeps;
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    stats.*kSeconds[static_cast<std::size_t>(moment)] += took.count();
    ++stats.checks[static_cast<std::size_t>(moment)];
    if (stats.sweeps != sweeps) {
      stats.last_sweep_time =
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
              .count();
    }
    publish();
  }

  /// After the tail: the sweep, and what a step ends with.
  void end_step(Stream stream) {
    const std::uint64_t sweeps = backend->stats.sweeps;
    timed(Moment::sweep, [&] {
      backend->sweep(stream);
      step_ended();
    });
    // The serinus format sweeps a part at every step; the sglang format all, now and then.
    if (options.format == Format::serinus || backend->stats.sweeps != sweeps) {
      looked(Moment::sweep, {});
    }
    tell_stalls();
    throw_if_asked();
  }

  void publish() {
    const std::lock_guard lock(mutex);
    published = backend->stats;
    published_step = backend->step;
    for (std::size_t i = 0; i < published_pools.size(); ++i) {
      published_pools[i].live_slots = backend->live_slots(static_cast<int>(i));
    }
  }

  /// Records what is announced before the backend judges it: then a report shows it, too.
  void note(int pool, LedgerEventKind kind, std::span<const std::int64_t> slots, Owner owner,
            std::int64_t peer = -1, std::span<const std::int64_t> peers = {}) {
    events.add(pool, kind, slots, owner, backend->step, peer, peers);
    {
      const std::lock_guard lock(mutex);
      health.used(pool, backend->step);
    }
    if (++announcements % kHealthEvery == 0) tell_stalls();
  }

  /// A moment looked at these pools (none named: at all).
  void looked(Moment moment, std::span<const int> at) {
    const std::lock_guard lock(mutex);
    for (const int pool : at) health.looked(moment, pool);
    if (!at.empty()) return;
    for (int pool = 0; pool < static_cast<int>(pools.size()); ++pool) health.looked(moment, pool);
  }

  void tell_stalls() {
    std::vector<Stall> stalls;
    {
      const std::lock_guard lock(mutex);
      stalls = health.new_ones(backend->step);
    }
    for (const Stall& s : stalls) {
      log(LogLevel::warning, to_text(s, pools[static_cast<std::size_t>(s.pool)].name));
    }
  }

  static constexpr std::uint64_t kHealthEvery = 64;  // announcements between looks, beside steps

  void check_pools(std::span<const int> named) const {
    for (const int pool : named) check_pool_number(pool);
  }

  void step_ended() {
    ++backend->step;
    ++backend->stats.steps;
  }

  void throw_if_asked() {
    if (options.mode != Mode::raise) return;
    backend->drain();
    const std::string first = reporter.first_since_last_call();
    constexpr std::string_view kBeginning = "kv-canary violation: ";  // of to_text() and the page
    if (first.empty()) return;
    raise(errors::Page::canary_violation, {{"got", first.substr(kBeginning.size())}});
  }

  Options options;
  Device device{};
  EventLog events;
  Reporter reporter;
  std::deque<PoolSpec> pools;
  std::vector<int> detached;
  std::unique_ptr<Backend> backend;
  std::uint64_t announcements = 0;
  std::uint64_t seen_device_steps = 0;
  mutable std::mutex mutex;  // of what follows
  HealthWatch health;
  std::uint64_t published_step = 0;
  Stats published;
  std::vector<PoolStats> published_pools;  // without `violations`, which the reporter counts
};

Monitor::Monitor(Options options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(options);
}
Monitor::~Monitor() = default;
Monitor::Monitor(Monitor&&) noexcept = default;
Monitor& Monitor::operator=(Monitor&&) noexcept = default;

int Monitor::add_pool(PoolSpec spec) {
  check_pool(spec, impl_->options);
  if (impl_->options.depth != Depth::none) {
    // Every byte of every slot must be there: after this, no digest asks again.
    for (const Source& s : sources_of(spec.layout, spec.num_layers, spec.buffers)) {
      for (const std::int64_t slot :
           {spec.num_slots - 1, std::min(spec.num_slots, spec.num_slots / spec.layout.page_size *
                                                             spec.layout.page_size) -
                                    1}) {
        if (slot >= 0 && !holds(s, spec.layout.page_size, slot)) {
          raise(errors::Page::canary_pool,
                {{"name", spec.name},
                 {"got", "slot " + std::to_string(slot) + " ends beyond a buffer of " +
                             std::to_string(s.buffer_bytes) + " bytes"}});
        }
      }
    }
  }
  impl_->choose_device(spec);
  impl_->events.add_pool(spec.num_slots);
  impl_->pools.push_back(std::move(spec));
  try {
    if (impl_->on()) impl_->backend->add_pool(impl_->pools.back());
    impl_->reporter.add_pool_name(impl_->pools.back().name);
    const PoolSpec& added = impl_->pools.back();
    const std::lock_guard lock(impl_->mutex);
    impl_->published_pools.push_back({added.name, added.kind, added.num_slots, 0, {}});
    impl_->health.add_pool();
    // The sglang format sweeps what set_sweep_source() shows it.
    const bool sweeps = impl_->options.format == Format::serinus;
    impl_->health.expect_sweeps(static_cast<int>(impl_->pools.size()) - 1, sweeps);
  } catch (...) {  // no memory for its records: then there is no such pool, anywhere
    impl_->pools.pop_back();
    impl_->events.drop_last_pool();
    throw;
  }
  return static_cast<int>(impl_->pools.size()) - 1;
}

void Monitor::detach_pool(int pool) {
  impl_->check_pool_number(pool);
  impl_->detached.push_back(pool);
  if (!impl_->on()) return;
  impl_->backend->detach_pool(pool);
  const std::lock_guard lock(impl_->mutex);
  impl_->health.forget(pool);
}

void Monitor::on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner) {
  impl_->check_pool_number(pool);
  Impl::check_owner(owner);
  if (!impl_->on()) return;
  impl_->note(pool, LedgerEventKind::alloc, slots, owner);
  impl_->backend->on_alloc(pool, slots, owner);
}

void Monitor::on_free(int pool, std::span<const std::int64_t> slots, Owner owner) {
  impl_->check_pool_number(pool);
  if (!impl_->on()) return;
  impl_->note(pool, LedgerEventKind::free, slots, owner);
  impl_->backend->on_free(pool, slots, owner);
}

void Monitor::on_transfer(int pool, std::span<const std::int64_t> slots, Owner from, Owner to) {
  impl_->check_pool_number(pool);
  Impl::check_owner(from);
  Impl::check_owner(to);
  if (!impl_->on()) return;
  impl_->note(pool, LedgerEventKind::transfer, slots, from, to);
  impl_->backend->on_transfer(pool, slots, from, to);
}

void Monitor::on_attach(Owner owner, std::int64_t row, std::int64_t begin, std::int64_t end) {
  Impl::check_owner(owner);
  if (impl_->on()) impl_->backend->on_attach(owner, row, begin, end);
}

void Monitor::on_release(Owner owner) {
  if (impl_->on()) impl_->backend->on_release(owner);
}

void Monitor::on_move(int pool, std::span<const std::int64_t> from,
                      std::span<const std::int64_t> to) {
  impl_->check_pool_number(pool);
  Impl::check_same("to", to.size(), "from", from.size());
  if (!impl_->on()) return;
  impl_->note(pool, LedgerEventKind::moved_to, from, 0, -1, to);
  impl_->note(pool, LedgerEventKind::moved_from, to, 0, -1, from);
  impl_->backend->on_move(pool, from, to);
}

void Monitor::on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                       std::span<std::uint32_t> source_digests) {
  impl_->check_pool_number(pool);
  Impl::check_same("records", records.size(), "slots", slots.size());
  if (!impl_->on()) return;
  impl_->check_digests("source_digests", pool, source_digests.size(), slots.size());
  impl_->note(pool, LedgerEventKind::store, slots, 0);
  impl_->backend->on_store(pool, slots, records, source_digests);
}

void Monitor::on_load(int pool, std::span<const Record> records,
                      std::span<const std::int64_t> slots, Owner owner,
                      std::span<const std::uint32_t> source_digests) {
  impl_->check_pool_number(pool);
  Impl::check_same("records", records.size(), "slots", slots.size());
  Impl::check_owner(owner);
  if (!impl_->on()) return;
  impl_->check_digests("source_digests", pool, source_digests.size(), slots.size());
  impl_->note(pool, LedgerEventKind::load, slots, owner);
  impl_->backend->on_load(pool, records, slots, owner, source_digests);
}

void Monitor::begin_step(const Batch& batch, Stream stream) {
  impl_->check(batch);
  if (!impl_->on()) return;
  impl_->timed(Moment::head, [&] { impl_->backend->head(batch, stream); });
  impl_->looked(Moment::head, batch.pools);
}

void Monitor::end_step(const Batch& batch, Stream stream) {
  impl_->check(batch);
  if (!impl_->on()) return;
  impl_->timed(Moment::tail, [&] { impl_->backend->tail(batch, stream); });
  impl_->looked(Moment::tail, batch.pools);
  impl_->end_step(stream);
}

void Monitor::begin_step(const cuda::DeviceBatch& batch, Stream stream,
                         std::span<const int> pools) {
  impl_->check_pools(pools);
  if (!impl_->on()) return;
  if (impl_->backend->is_captured(stream)) {
    impl_->backend->head(batch, pools, stream);
    return;
  }
  impl_->timed(Moment::head, [&] { impl_->backend->head(batch, pools, stream); });
  impl_->looked(Moment::head, pools);
}

void Monitor::end_step(const cuda::DeviceBatch& batch, Stream stream, std::span<const int> pools) {
  impl_->check_pools(pools);
  if (!impl_->on()) return;
  if (impl_->backend->is_captured(stream)) {
    impl_->backend->tail(batch, pools, stream);
    impl_->backend->sweep(stream);
    return;
  }
  impl_->timed(Moment::tail, [&] { impl_->backend->tail(batch, pools, stream); });
  impl_->looked(Moment::tail, pools);
  impl_->end_step(stream);
}

void Monitor::begin_replay(const cuda::DeviceBatch& batch, Stream stream,
                           std::span<const int> pools) {
  impl_->check_pools(pools);
  if (!impl_->on()) return;
  Impl& m = *impl_;
  m.timed(Moment::head, [&] { m.backend->catch_up(batch, pools, stream); });
  // Only the device knows whether the graph still holds the moments.
  m.backend->drain();
  const std::uint64_t steps = m.backend->device_steps();
  if (std::exchange(m.seen_device_steps, steps) != steps) {
    m.looked(Moment::head, pools);
    m.looked(Moment::tail, pools);
    m.looked(Moment::sweep, {});
  }
  m.step_ended();
  m.tell_stalls();
  m.throw_if_asked();
}

void Monitor::verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                         std::int64_t end, const Batch& tables, Stream stream) {
  impl_->check(tables);
  if (!impl_->on()) return;
  impl_->timed(moment,
               [&] { impl_->backend->verify_now(moment, owner, row, begin, end, tables, stream); });
}

void Monitor::stamp_now(const Batch& batch, Stream stream) {
  impl_->check(batch);
  if (!impl_->on()) return;
  impl_->backend->stamp(batch, stream);
  impl_->publish();
}

void Backend::head(const cuda::DeviceBatch&, std::span<const int>, Stream) {
  refuse_device_batch();
}
void Backend::tail(const cuda::DeviceBatch&, std::span<const int>, Stream) {
  refuse_device_batch();
}
void Backend::catch_up(const cuda::DeviceBatch&, std::span<const int>, Stream) {
  refuse_device_batch();
}
void Backend::request_digests(int, const cuda::DeviceBatch&, const TensorView&, Stream) const {
  refuse_device_batch();
}

std::vector<std::int32_t> Backend::cells(const TensorView& view, std::int64_t row,
                                         std::int64_t length) const {
  const Table table = table_of(view, "req_to_token");
  std::vector<std::int32_t> cells;
  if (!table.has_row(row)) return cells;
  for (std::int64_t i = 0; i < std::min(length, table.columns); ++i) {
    cells.push_back(table.at(row, i));
  }
  return cells;
}

std::uint64_t Monitor::request_digest(std::int64_t row, std::int64_t length,
                                      const Batch& tables) const {
  impl_->check(tables);
  return impl_->on() ? impl_->backend->request_digest(row, length, tables) : 0;
}

void Monitor::request_digests(int pool, const cuda::DeviceBatch& batch, const TensorView& digests,
                              Stream stream) const {
  impl_->check_pool_number(pool);
  if (impl_->on()) impl_->backend->request_digests(pool, batch, digests, stream);
}

void Monitor::on_rank_digests(Owner owner, std::int64_t row,
                              std::span<const std::uint64_t> digests) {
  if (!impl_->on() || impl_->pools.empty()) return;
  for (std::size_t i = 1; i < digests.size(); ++i) {
    if (digests[i] == digests[0]) continue;
    Violation v;
    v.reasons = Reason::digest_differs_across_ranks;
    v.format = impl_->options.format;
    v.request = owner;
    v.row = row;
    v.expected_digest = digests[0];
    v.stored_digest = digests[i];
    v.first_step = v.last_step = impl_->backend->step;
    impl_->reporter.report(std::move(v), owner);
    return;
  }
}

std::vector<Violation> Monitor::poll() {
  if (impl_->on()) impl_->backend->drain();
  return impl_->reporter.take();
}

void Monitor::wait() {
  if (impl_->on()) impl_->backend->wait();
}

void Monitor::flush() {
  if (!impl_->on()) return;
  impl_->timed(Moment::sweep, [&] { impl_->backend->flush(); });
  impl_->looked(Moment::sweep, {});
}

Monitor::Tainted Monitor::tainted() {
  if (impl_->on()) impl_->backend->drain();
  return impl_->reporter.take_tainted();
}

std::vector<LedgerEvent> Monitor::events(int pool, std::int64_t slot, std::size_t n) const {
  impl_->check_pool_number(pool);
  return impl_->events.last(pool, slot, n);
}

std::vector<Stall> Monitor::health() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->health.stalled(impl_->published_step);
}

void Monitor::log_to(std::shared_ptr<FileSink> sink) {
  impl_->reporter.log_to(std::move(sink));
}

Stats Monitor::stats() const {
  Stats s;
  {
    const std::lock_guard lock(impl_->mutex);
    s = impl_->published;
  }
  if (impl_->on()) impl_->backend->add_device_counts(s);
  const Reporter::Counts counts = impl_->reporter.counts();
  s.violations = counts.violations;
  s.sightings = counts.sightings;
  s.dropped = counts.dropped;
  return s;
}

std::vector<PoolStats> Monitor::pool_stats() const {
  std::vector<PoolStats> pools;
  {
    const std::lock_guard lock(impl_->mutex);
    pools = impl_->published_pools;
  }
  const std::vector<Reporter::ByReason> counts = impl_->reporter.counts_by_reason();
  for (std::size_t i = 0; i < pools.size() && i < counts.size(); ++i)
    pools[i].violations = counts[i];
  return pools;
}

std::span<Record> Monitor::records(int pool) {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->records(pool) : std::span<Record>{};
}

std::span<LedgerEntry> Monitor::ledger(int pool) {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->ledger(pool) : std::span<LedgerEntry>{};
}

void Monitor::set_record(int pool, std::int64_t slot, const Record& record) {
  impl_->check_pool_number(pool);
  if (impl_->on()) impl_->backend->set_record(pool, slot, record);
}

std::vector<std::int64_t> Monitor::slots_of(int pool, std::int64_t row, std::int64_t length,
                                            const TensorView& req_to_token) const {
  impl_->check_pool_number(pool);
  std::vector<std::int64_t> slots;
  if (!impl_->on()) return slots;
  const PoolSpec& spec = this->pool(pool);
  const std::vector<std::int64_t> swa = full_to_swa(pool);
  for (const std::int64_t location : impl_->backend->cells(req_to_token, row, length)) {
    std::int64_t slot = location;
    if (!swa.empty()) {
      const bool inside = slot >= 0 && slot < std::ssize(swa);
      slot = inside ? swa[static_cast<std::size_t>(slot)] : kNoSlot;
    }
    slots.push_back(slot >= 0 && slot < spec.num_slots ? slot : kNoSlot);
  }
  return slots;
}

std::vector<std::int64_t> Monitor::full_to_swa(int pool) const {
  const PoolSpec& spec = this->pool(pool);
  if (spec.kind != PoolKind::swa) return {};
  if (impl_->on() && impl_->on_gpu()) return impl_->backend->full_to_swa(pool);
  return {spec.full_to_swa.begin(), spec.full_to_swa.end()};
}

std::vector<std::uint8_t> Monitor::slot_bytes(int pool, std::int64_t slot) const {
  const PoolSpec& spec = this->pool(pool);
  if (!impl_->on() || impl_->options.depth == Depth::none || slot < 0 || slot >= spec.num_slots) {
    return {};
  }
  if (impl_->on_gpu()) return impl_->backend->slot_bytes(pool, slot);
  std::vector<std::uint8_t> bytes;
  const std::int64_t page = spec.layout.page_size;
  for (const Source& s : sources_of(spec.layout, spec.num_layers, spec.buffers)) {
    const std::uint8_t* const at =
        s.base + slot / page * s.page_stride + s.offset + slot % page * s.token_stride;
    bytes.insert(bytes.end(), at, at + s.bytes);
  }
  return bytes;
}

std::span<std::uint32_t> Monitor::source_digests(int pool) {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->source_digests(pool) : std::span<std::uint32_t>{};
}

std::uint64_t Monitor::null_digest(int pool) const {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->null_digest(pool) : 0;
}

std::vector<std::pair<std::int64_t, LedgerEvent>> Monitor::pool_events(int pool) const {
  impl_->check_pool_number(pool);
  return impl_->events.all(pool);
}

int Monitor::num_pools() const noexcept {
  return static_cast<int>(impl_->pools.size());
}

bool Monitor::is_attached(int pool) const noexcept {
  const std::vector<int>& gone = impl_->detached;
  return pool >= 0 && pool < num_pools() && std::find(gone.begin(), gone.end(), pool) == gone.end();
}

const PoolSpec& Monitor::pool(int pool) const {
  impl_->check_pool_number(pool);
  return impl_->pools[static_cast<std::size_t>(pool)];
}

const Options& Monitor::options() const noexcept {
  return impl_->options;
}

SlotState Monitor::state(int pool, std::int64_t slot) const {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->state(pool, slot) : SlotState::free;
}

std::optional<std::uint64_t> Monitor::digest_of(int pool, std::int64_t slot) const {
  impl_->check_pool_number(pool);
  if (!impl_->on() || slot < 0 || slot >= this->pool(pool).num_slots) return std::nullopt;
  return impl_->backend->digest_of(pool, slot);
}

std::int64_t Monitor::num_sources(int pool) const {
  impl_->check_pool_number(pool);
  return impl_->on() ? impl_->backend->num_sources(pool) : 0;
}

void Monitor::set_sweep_source(int pool, std::function<void(std::vector<SweepEntry>&)> source) {
  impl_->check_pool_number(pool);
  if (!impl_->on()) return;
  const bool expected = source != nullptr && impl_->options.sweep_interval > 0;
  impl_->backend->set_sweep_source(pool, std::move(source));
  if (impl_->options.format != Format::sglang) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->health.expect_sweeps(pool, expected);
}

}  // namespace serinus::canary
