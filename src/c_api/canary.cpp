// The canary's Monitor for C.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary_config.h>
#include <serinus/canary_cuda.h>
#include <serinus/canary_dump.h>
#include <serinus/canary_ranks.h>
#include <serinus/canary_sink.h>
#include <serinus/version.h>
#include <serinus_c.h>

#include "c_api/call.h"
#include "c_api/layouts.h"

using namespace serinus;
using c_api::array;
using c_api::one_of;
using c_api::read_struct;
using c_api::required;

struct serinus_monitor {
  explicit serinus_monitor(canary::Monitor m) : monitor(std::move(m)) {}

  canary::Monitor monitor;
  std::mutex mutex;                        // of what follows: poll may come from any thread
  std::deque<serinus_violation> unpolled;  // taken from the monitor, not yet by the caller
  std::deque<serinus_slot> tainted_slots;
  std::deque<std::uint32_t> tainted_requests;
};

namespace {

static_assert(sizeof(serinus_record) == sizeof(canary::Record));

canary::Moment moment_of(std::int32_t value) {
  using canary::Moment;
  return one_of("moment", value, {Moment::head, Moment::tail, Moment::sweep});
}

canary::Options options_of(const serinus_monitor_options* pointer) {
  using namespace canary;
  Options o;
  if (pointer == nullptr) return o;
  const serinus_monitor_options given =
      read_struct("options", pointer, offsetof(serinus_monitor_options, event_capacity));
  o.format = one_of("format", given.format, {Format::serinus, Format::sglang});
  o.depth = one_of("depth", given.depth, {Depth::all, Depth::partial, Depth::none});
  o.mode = one_of("mode", given.mode, {Mode::log, Mode::raise, Mode::quarantine, Mode::none});
  o.verify = one_of("verify", given.verify, {VerifyPolicy::rolling, VerifyPolicy::all});
  if (given.threads != 0) o.threads = given.threads;
  if (given.records_per_step != 0) o.records_per_step = given.records_per_step;
  if (given.bytes_per_step != 0) o.bytes_per_step = given.bytes_per_step;
  if (given.sweep_interval != 0) o.sweep_interval = std::max<std::int64_t>(given.sweep_interval, 0);
  if (given.ring_capacity != 0) o.ring_capacity = given.ring_capacity;
  if (given.event_capacity != 0) o.event_capacity = std::max<std::int64_t>(given.event_capacity, 0);
  if (given.health_steps != 0) o.health_steps = std::max<std::int64_t>(given.health_steps, 0);
  o.source_digests = one_of("source_digests", given.source_digests, {false, true});
  return o;
}

canary::PoolSpec pool_of(const serinus_pool* pointer) {
  using namespace canary;
  const serinus_pool given = read_struct("pool", pointer, offsetof(serinus_pool, device_type));
  PoolSpec p;
  if (given.name != nullptr) p.name = given.name;
  p.kind = one_of("kind", given.kind, {PoolKind::full, PoolKind::swa, PoolKind::draft});
  p.layout = required("layout", given.layout).layout;
  if (given.num_layers != 0) p.num_layers = given.num_layers;
  for (const serinus_buffer& b : array("buffers", given.buffers, given.num_buffers))
    p.buffers.push_back({b.data, b.bytes, b.page_stride});
  p.num_slots = given.num_slots;
  p.null_slot = one_of("null_slot", given.null_slot, {NullSlot::clean, NullSlot::scratch});
  p.window = given.window;
  p.full_to_swa = array("full_to_swa", given.full_to_swa, given.full_to_swa_size);
  p.token_offset = given.token_offset;
  p.device = c_api::device("device_type", given.device_type, given.device_index);
  if (given.table_rows != 0) p.table_rows = given.table_rows;
  return p;
}

canary::Batch batch_of(const serinus_batch* pointer) {
  const serinus_batch given = read_struct("batch", pointer, offsetof(serinus_batch, parents));
  canary::Batch b;
  static_assert(sizeof(int) == sizeof(std::int32_t));
  b.pools = array("pools", given.pools, given.num_pools);
  b.rows = array("rows", given.rows, given.num_requests);
  b.prefix_lens = array("prefix_lens", given.prefix_lens, given.num_requests);
  b.extend_lens = array("extend_lens", given.extend_lens, given.num_requests);
  b.owners = array("owners", given.owners, given.num_requests);
  b.req_to_token = c_api::tensor("req_to_token", given.req_to_token);
  b.input_ids = array("input_ids", given.input_ids, given.num_tokens);
  b.positions = array("positions", given.positions, given.num_tokens);
  b.out_cache_loc = array("out_cache_loc", given.out_cache_loc, given.num_tokens);
  if (given.parents != nullptr) b.parents = {given.parents, given.num_tokens};
  b.expected_tokens = c_api::tensor("expected_tokens", given.expected_tokens);
  if (given.valid_lens != nullptr) b.valid_lens = {given.valid_lens, given.num_requests};
  return b;
}

canary::cuda::DeviceBatch device_batch_of(const serinus_device_batch& given) {
  const auto present = [](const char* name, const serinus_tensor& t) {
    return t.data == nullptr && t.rank == 0 ? std::nullopt : std::optional(c_api::tensor(name, t));
  };
  canary::cuda::DeviceBatch b;
  b.rows = c_api::tensor("rows", given.rows);
  b.prefix_lens = c_api::tensor("prefix_lens", given.prefix_lens);
  b.extend_lens = c_api::tensor("extend_lens", given.extend_lens);
  b.owners = c_api::tensor("owners", given.owners);
  b.req_to_token = c_api::tensor("req_to_token", given.req_to_token);
  b.input_ids = c_api::tensor("input_ids", given.input_ids);
  b.positions = c_api::tensor("positions", given.positions);
  b.out_cache_loc = c_api::tensor("out_cache_loc", given.out_cache_loc);
  b.expected_tokens = present("expected_tokens", given.expected_tokens);
  b.valid_lens = present("valid_lens", given.valid_lens);
  b.parents = present("parents", given.parents);
  return b;
}

// The fields that have the same name and meaning on both sides.
template <class From, class To>
void copy_numbers(const From& from, To& to) {
  to.pool = from.pool;
  to.slot = from.slot;
  to.expected_position = from.expected_position;
  to.stored_position = from.stored_position;
  to.expected_token = from.expected_token;
  to.stored_token = from.stored_token;
  to.expected_chain = from.expected_chain;
  to.stored_chain = from.stored_chain;
  to.expected_digest = from.expected_digest;
  to.stored_digest = from.stored_digest;
  to.expected_owner = from.expected_owner;
  to.stored_owner = from.stored_owner;
  to.expected_generation = from.expected_generation;
  to.stored_generation = from.stored_generation;
  to.request = from.request;
  to.row = from.row;
  to.layer = from.layer;
  to.prev_slot = from.prev_slot;
  to.first_step = from.first_step;
  to.last_step = from.last_step;
  to.count = from.count;
}

serinus_event event_for_c(const canary::LedgerEvent& e) {
  return {e.step, e.peer, static_cast<std::int32_t>(e.kind), e.owner};
}

serinus_violation violation_for_c(const canary::Violation& v) {
  serinus_violation c{};
  c.reasons = static_cast<std::uint32_t>(v.reasons);
  c.moment = static_cast<std::int32_t>(v.moment);
  c.format = static_cast<std::int32_t>(v.format);
  copy_numbers(v, c);
  v.segment.copy(c.segment, sizeof c.segment - 1);
  static_assert(SERINUS_MAX_EVENTS == canary::kEventsInAViolation);
  for (const canary::LedgerEvent& e : v.events) {
    if (c.num_events == SERINUS_MAX_EVENTS) break;
    c.events[c.num_events++] = event_for_c(e);
  }
  return c;
}

canary::Violation violation_of(const serinus_violation& v) {
  using namespace canary;
  Violation out;
  out.reasons = static_cast<Reason>(v.reasons);
  out.moment = moment_of(v.moment);
  out.format = one_of("format", v.format, {Format::serinus, Format::sglang});
  copy_numbers(v, out);
  out.segment.assign(v.segment, strnlen(v.segment, sizeof v.segment));
  for (std::size_t i = 0; i < std::min<std::uint64_t>(v.num_events, SERINUS_MAX_EVENTS); ++i) {
    using enum LedgerEventKind;
    const serinus_event& e = v.events[i];
    const auto kind =
        one_of("events.kind", e.kind, {alloc, free, transfer, moved_from, moved_to, store, load});
    out.events.push_back({e.step, kind, e.owner, e.peer});
  }
  return out;
}

// Runs `body` with the C++ monitor behind the handle.
template <class Body>
serinus_status with(serinus_monitor* monitor, Body&& body) noexcept {
  return c_api::call([&] { body(required("monitor", monitor).monitor); });
}

// Moves as many as fit from the queue's front; how many.
template <class T>
std::size_t take(std::deque<T>& queue, std::span<T> out) {
  const std::size_t n = std::min(out.size(), queue.size());
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(n);
  std::copy(queue.begin(), end, out.begin());
  queue.erase(queue.begin(), end);
  return n;
}

// Calls one of the three that take a batch on a GPU.
using DeviceStep = void (canary::Monitor::*)(const canary::cuda::DeviceBatch&, Stream,
                                             std::span<const int>);
serinus_status on_device(serinus_monitor* monitor, const serinus_device_batch* batch, void* stream,
                         DeviceStep step) noexcept {
  return with(monitor, [&](canary::Monitor& m) {
    const serinus_device_batch given = read_struct("batch", batch);
    (m.*step)(device_batch_of(given), Stream{stream}, array("pools", given.pools, given.num_pools));
  });
}

template <class T>
std::span<T> digests_of(const canary::Monitor& m, int pool, T* source_digests, std::size_t n) {
  if (source_digests == nullptr) return {};
  return {source_digests, n * static_cast<std::size_t>(m.num_sources(pool))};
}

}  // namespace

serinus_status serinus_monitor_create(const serinus_monitor_options* options,
                                      serinus_monitor** monitor) {
  return c_api::call([&] {
    required("monitor", monitor);
    *monitor = new serinus_monitor(canary::Monitor(options_of(options)));
  });
}

serinus_status serinus_monitor_create_configured(const char* config_file,
                                                 serinus_monitor** monitor) {
  return c_api::call([&] {
    required("monitor", monitor);
    const std::string file = config_file != nullptr ? config_file : "";
    *monitor = new serinus_monitor(canary::make_monitor(canary::read_config({}, file)));
  });
}

void serinus_monitor_destroy(serinus_monitor* monitor) {
  delete monitor;
}

serinus_status serinus_monitor_add_pool(serinus_monitor* monitor, const serinus_pool* pool,
                                        int32_t* number) {
  return with(monitor, [&](canary::Monitor& m) {
    const int n = m.add_pool(pool_of(pool));
    if (number != nullptr) *number = n;
  });
}

serinus_status serinus_monitor_on_alloc(serinus_monitor* monitor, int32_t pool,
                                        const int64_t* slots, size_t n, uint32_t owner) {
  return with(monitor,
              [&](canary::Monitor& m) { m.on_alloc(pool, array("slots", slots, n), owner); });
}

serinus_status serinus_monitor_on_free(serinus_monitor* monitor, int32_t pool, const int64_t* slots,
                                       size_t n, uint32_t owner) {
  return with(monitor,
              [&](canary::Monitor& m) { m.on_free(pool, array("slots", slots, n), owner); });
}

serinus_status serinus_monitor_on_transfer(serinus_monitor* monitor, int32_t pool,
                                           const int64_t* slots, size_t n, uint32_t from,
                                           uint32_t to) {
  return with(monitor,
              [&](canary::Monitor& m) { m.on_transfer(pool, array("slots", slots, n), from, to); });
}

serinus_status serinus_monitor_on_attach(serinus_monitor* monitor, uint32_t owner, int64_t row,
                                         int64_t begin, int64_t end) {
  return with(monitor, [&](canary::Monitor& m) { m.on_attach(owner, row, begin, end); });
}

serinus_status serinus_monitor_on_release(serinus_monitor* monitor, uint32_t owner) {
  return with(monitor, [&](canary::Monitor& m) { m.on_release(owner); });
}

serinus_status serinus_monitor_on_move(serinus_monitor* monitor, int32_t pool, const int64_t* from,
                                       const int64_t* to, size_t n) {
  return with(monitor, [&](canary::Monitor& m) {
    m.on_move(pool, array("from", from, n), array("to", to, n));
  });
}

serinus_status serinus_monitor_on_store(serinus_monitor* monitor, int32_t pool,
                                        const int64_t* slots, size_t n, serinus_record* records,
                                        uint32_t* source_digests) {
  return with(monitor, [&](canary::Monitor& m) {
    array("records", records, n);
    std::vector<canary::Record> out(n);
    m.on_store(pool, array("slots", slots, n), out, digests_of(m, pool, source_digests, n));
    if (n != 0) std::memcpy(records, out.data(), n * sizeof *records);
  });
}

serinus_status serinus_monitor_on_load(serinus_monitor* monitor, int32_t pool,
                                       const serinus_record* records,
                                       const uint32_t* source_digests, const int64_t* slots,
                                       size_t n, uint32_t owner) {
  return with(monitor, [&](canary::Monitor& m) {
    array("records", records, n);
    std::vector<canary::Record> in(n);
    if (n != 0) std::memcpy(static_cast<void*>(in.data()), records, n * sizeof *records);
    m.on_load(pool, in, array("slots", slots, n), owner, digests_of(m, pool, source_digests, n));
  });
}

serinus_status serinus_monitor_num_sources(serinus_monitor* monitor, int32_t pool, int64_t* n) {
  return with(monitor, [&](canary::Monitor& m) { required("n", n) = m.num_sources(pool); });
}

serinus_status serinus_monitor_begin_step(serinus_monitor* monitor, const serinus_batch* batch,
                                          void* stream) {
  return with(monitor, [&](canary::Monitor& m) { m.begin_step(batch_of(batch), Stream{stream}); });
}

serinus_status serinus_monitor_end_step(serinus_monitor* monitor, const serinus_batch* batch,
                                        void* stream) {
  return with(monitor, [&](canary::Monitor& m) { m.end_step(batch_of(batch), Stream{stream}); });
}

serinus_status serinus_monitor_begin_step_on_device(serinus_monitor* monitor,
                                                    const serinus_device_batch* batch,
                                                    void* stream) {
  return on_device(monitor, batch, stream, &canary::Monitor::begin_step);
}

serinus_status serinus_monitor_end_step_on_device(serinus_monitor* monitor,
                                                  const serinus_device_batch* batch, void* stream) {
  return on_device(monitor, batch, stream, &canary::Monitor::end_step);
}

serinus_status serinus_monitor_begin_replay(serinus_monitor* monitor,
                                            const serinus_device_batch* batch, void* stream) {
  return on_device(monitor, batch, stream, &canary::Monitor::begin_replay);
}

serinus_status serinus_monitor_verify_now(serinus_monitor* monitor, int32_t moment, uint32_t owner,
                                          int64_t row, int64_t begin, int64_t end,
                                          const serinus_batch* tables) {
  return with(monitor, [&](canary::Monitor& m) {
    m.verify_now(moment_of(moment), owner, row, begin, end, batch_of(tables));
  });
}

serinus_status serinus_monitor_request_digest(serinus_monitor* monitor, int64_t row, int64_t length,
                                              const serinus_batch* tables, uint64_t* digest) {
  return with(monitor, [&](const canary::Monitor& m) {
    required("digest", digest) = m.request_digest(row, length, batch_of(tables));
  });
}

serinus_status serinus_monitor_request_digests(serinus_monitor* monitor, int32_t pool,
                                               const serinus_device_batch* batch,
                                               const serinus_tensor* digests, void* stream) {
  return with(monitor, [&](const canary::Monitor& m) {
    const serinus_device_batch given = read_struct("batch", batch);
    m.request_digests(pool, device_batch_of(given),
                      c_api::tensor("digests", required("digests", digests)), Stream{stream});
  });
}

serinus_status serinus_monitor_on_rank_digests(serinus_monitor* monitor, uint32_t owner,
                                               int64_t row, const uint64_t* digests, size_t n) {
  return with(monitor, [&](canary::Monitor& m) {
    m.on_rank_digests(owner, row, array("digests", digests, n));
  });
}

serinus_status serinus_monitor_poll(serinus_monitor* monitor, serinus_violation* violations,
                                    size_t capacity, size_t* n) {
  return c_api::call([&] {
    serinus_monitor& handle = required("monitor", monitor);
    const auto out = array("violations", violations, capacity);
    required("n", n);
    const std::lock_guard lock(handle.mutex);
    for (const canary::Violation& v : handle.monitor.poll())
      handle.unpolled.push_back(violation_for_c(v));
    *n = take(handle.unpolled, out);
  });
}

serinus_status serinus_monitor_wait(serinus_monitor* monitor) {
  return with(monitor, [](canary::Monitor& m) { m.wait(); });
}

serinus_status serinus_monitor_flush(serinus_monitor* monitor) {
  return with(monitor, [](canary::Monitor& m) { m.flush(); });
}

serinus_status serinus_monitor_tainted(serinus_monitor* monitor, serinus_slot* slots,
                                       size_t slot_capacity, size_t* num_slots, uint32_t* requests,
                                       size_t request_capacity, size_t* num_requests) {
  return c_api::call([&] {
    serinus_monitor& handle = required("monitor", monitor);
    const auto out_slots = array("slots", slots, slot_capacity);
    const auto out_requests = array("requests", requests, request_capacity);
    required("num_slots", num_slots);
    required("num_requests", num_requests);
    const std::lock_guard lock(handle.mutex);
    const canary::Monitor::Tainted found = handle.monitor.tainted();
    for (const auto& [pool, slot] : found.slots) handle.tainted_slots.push_back({pool, slot});
    for (const canary::Owner request : found.requests) handle.tainted_requests.push_back(request);
    *num_slots = take(handle.tainted_slots, out_slots);
    *num_requests = take(handle.tainted_requests, out_requests);
  });
}

serinus_status serinus_monitor_get_stats(serinus_monitor* monitor, serinus_monitor_stats* stats) {
  return with(monitor, [&](const canary::Monitor& m) {
    const serinus_monitor_stats given = read_struct("stats", stats);
    const canary::Stats s = m.stats();
    *stats = {given.struct_size, s.steps,         s.records_written, s.records_verified,
              s.bytes_digested,  s.sweeps,        s.violations,      s.sightings,
              s.dropped,         s.skipped_empty, s.live_slots,      s.sweep_bound_steps,
              s.seconds_head,    s.seconds_tail,  s.seconds_sweep};
  });
}

serinus_status serinus_violation_print(const serinus_violation* violation, const char* pool_name,
                                       int32_t json, char* text, size_t capacity, size_t* needed) {
  return c_api::call([&] {
    const canary::Violation v = violation_of(required("violation", violation));
    const std::string line = json != 0 ? canary::to_json(v, &required("pool_name", pool_name))
                                       : canary::to_text(v, &required("pool_name", pool_name));
    const auto out = array("text", text, capacity);
    if (needed != nullptr) *needed = line.size() + 1;
    if (out.empty()) return;
    const std::size_t kept = std::min(line.size(), capacity - 1);
    std::memcpy(out.data(), line.data(), kept);
    out[kept] = '\0';
  });
}

serinus_status serinus_monitor_detach_pool(serinus_monitor* monitor, int32_t pool) {
  return with(monitor, [&](canary::Monitor& m) { m.detach_pool(pool); });
}

serinus_status serinus_monitor_log_to(serinus_monitor* monitor, const char* path) {
  return with(monitor, [&](canary::Monitor& m) {
    m.log_to(path != nullptr ? std::make_shared<canary::FileSink>(path) : nullptr);
  });
}

serinus_status serinus_monitor_events(serinus_monitor* monitor, int32_t pool, int64_t slot,
                                      serinus_event* events, size_t capacity, size_t* n) {
  return with(monitor, [&](const canary::Monitor& m) {
    const auto out = array("events", events, capacity);
    required("n", n);
    const std::vector<canary::LedgerEvent> found = m.events(pool, slot, capacity);
    *n = found.size();
    std::ranges::transform(found, out.begin(), event_for_c);
  });
}

serinus_status serinus_monitor_health(serinus_monitor* monitor, serinus_stall* stalls,
                                      size_t capacity, size_t* n) {
  return with(monitor, [&](const canary::Monitor& m) {
    const auto out = array("stalls", stalls, capacity);
    required("n", n);
    const std::vector<canary::Stall> found = m.health();
    *n = found.size();
    for (std::size_t i = 0; i < std::min(capacity, found.size()); ++i) {
      out[i] = {static_cast<std::int32_t>(found[i].moment), found[i].pool, found[i].since_step};
    }
  });
}

serinus_status serinus_monitor_dump(serinus_monitor* monitor, const char* path,
                                    int32_t with_bytes) {
  return with(monitor, [&](canary::Monitor& m) {
    using canary::DumpBytes;
    canary::DumpOptions options;
    options.bytes = one_of("with_bytes", with_bytes, {DumpBytes::none, DumpBytes::all});
    canary::write_dump(m, &required("path", path), options);
  });
}

serinus_status serinus_scan(const char* path, serinus_violation* violations, size_t capacity,
                            size_t* n) {
  return c_api::call([&] {
    const auto out = array("violations", violations, capacity);
    required("n", n);
    const canary::ScanResult r = canary::scan(canary::Dump(&required("path", path)), capacity);
    *n = r.violations.size() + static_cast<std::size_t>(r.more);
    std::ranges::transform(r.violations, out.begin(), violation_for_c);
  });
}

serinus_status serinus_monitor_transfer_terms(serinus_monitor* monitor, int32_t pool,
                                              serinus_transfer_terms* terms) {
  return with(monitor, [&](const canary::Monitor& m) {
    required("terms", terms);
    const canary::TransferTerms t = canary::transfer_terms(m.options(), m.pool(pool));
    std::memcpy(terms, &t, sizeof t);
  });
}

serinus_status serinus_check_transfer(const serinus_transfer_terms* mine,
                                      const serinus_transfer_terms* theirs) {
  static_assert(sizeof(serinus_transfer_terms) == sizeof(canary::TransferTerms));
  return c_api::call([&] {
    canary::TransferTerms a, b;
    std::memcpy(static_cast<void*>(&a), &required("mine", mine), sizeof a);
    std::memcpy(static_cast<void*>(&b), &required("theirs", theirs), sizeof b);
    canary::check_transfer(a, b);
  });
}

serinus_status serinus_monitor_rank_digest(serinus_monitor* monitor, int32_t pool, uint32_t owner,
                                           int64_t row, int64_t length,
                                           const serinus_tensor* req_to_token,
                                           serinus_request_digest* digest) {
  return with(monitor, [&](canary::Monitor& m) {
    required("digest", digest);
    const canary::RequestDigest d = canary::request_digest(
        m, pool, owner, row, length,
        c_api::tensor("req_to_token", required("req_to_token", req_to_token)));
    std::memcpy(digest, &d, sizeof d);
  });
}

serinus_status serinus_compare_ranks(serinus_monitor* monitor,
                                     const serinus_request_digest* gathered, int32_t num_ranks,
                                     size_t num_requests, int32_t compare_kv,
                                     serinus_rank_difference* differences, size_t capacity,
                                     size_t* n) {
  static_assert(sizeof(serinus_request_digest) == sizeof(canary::RequestDigest));
  return c_api::call([&] {
    const auto out = array("differences", differences, capacity);
    required("n", n);
    std::size_t total = 0;
    if (__builtin_mul_overflow(num_requests, static_cast<std::size_t>(std::max(num_ranks, 0)),
                               &total)) {
      throw std::length_error("gathered");
    }
    array("gathered", gathered, total);
    std::vector<canary::RequestDigest> all(total);
    if (total != 0) std::memcpy(static_cast<void*>(all.data()), gathered, total * sizeof all[0]);
    const bool kv = one_of("compare_kv", compare_kv, {false, true});
    const auto found = monitor != nullptr
                           ? canary::report_ranks(monitor->monitor, all, num_ranks, kv)
                           : canary::compare_ranks(all, num_ranks, kv);
    *n = found.size();
    for (std::size_t i = 0; i < std::min(capacity, found.size()); ++i) {
      const canary::RankDifference& d = found[i];
      out[i] = {
          d.rank,           d.owner,         d.request,   d.owner_differs || d.version ? 1 : 0,
          d.length ? 1 : 0, d.chain ? 1 : 0, d.kv ? 1 : 0};
    }
  });
}

uint32_t serinus_record_version(void) {
  return kRecordVersion;
}

uint32_t serinus_dump_version(void) {
  return kDumpVersion;
}
