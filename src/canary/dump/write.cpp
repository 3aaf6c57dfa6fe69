// From a Monitor to a file.
#include <algorithm>

#include <serinus/version.h>

#include "base/raise.h"
#include "base/whole_file.h"
#include "canary/dump/format.h"

namespace serinus::canary {

namespace {

using dump::Checksum;

/// Sums up what it writes; the sum ends the file.
class Writer {
 public:
  explicit Writer(std::string path)
      : file_(std::move(path), [](const std::string& name, const std::string& why) {
          raise(errors::Page::dump_not_written, {{"got", name}, {"why", why}});
        }) {}

  void raw(const void* data, std::size_t n) {
    sum_.add(data, n);
    file_.write(data, n);
  }
  template <class T>
  void value(T v) {
    raw(&v, sizeof v);
  }
  template <class T>
  void array(std::span<const T> values) {
    raw(values.data(), values.size_bytes());
  }
  void text(std::string_view s) {
    s = s.substr(0, dump::kMaxName);
    value(static_cast<std::uint32_t>(s.size()));
    raw(s.data(), s.size());
  }

  void finish() {
    const std::uint64_t sum = sum_.finish();
    file_.write(&sum, sizeof sum);
    file_.finish();
  }

 private:
  WholeFile file_;
  Checksum sum_;
};

struct PoolPlan {
  std::vector<std::int64_t> slots, byte_slots;
  std::vector<SlotState> states;
  std::vector<Source> sources;
  std::int64_t token_bytes = 0;
};

PoolPlan plan_of(Monitor& m, int pool, const DumpOptions& options) {
  PoolPlan plan;
  const PoolSpec& spec = m.pool(pool);
  const std::span<const Record> records = m.records(pool);
  for (std::int64_t slot = 0; slot < spec.num_slots; ++slot) {
    const SlotState state = m.state(pool, slot);
    if (slot != 0 && state == SlotState::free &&
        records[static_cast<std::size_t>(slot)] == Record{}) {
      continue;
    }
    plan.slots.push_back(slot);
    plan.states.push_back(state);
  }
  if (m.options().depth != Depth::none) {
    plan.sources = sources_of(spec.layout, spec.num_layers, spec.buffers);
  }
  for (const Source& s : plan.sources) plan.token_bytes += s.bytes;
  if (plan.sources.empty()) return plan;
  if (options.bytes == DumpBytes::all) plan.byte_slots = plan.slots;
  if (options.bytes == DumpBytes::listed) {
    for (const auto& [p, slot] : options.listed) {
      if (p == pool && std::ranges::binary_search(plan.slots, slot))
        plan.byte_slots.push_back(slot);
    }
    std::ranges::sort(plan.byte_slots);
    const auto rest = std::ranges::unique(plan.byte_slots);
    plan.byte_slots.erase(rest.begin(), rest.end());
  }
  return plan;
}

template <class T>
void picked(Writer& w, std::span<const T> all, const std::vector<std::int64_t>& slots,
            std::size_t each = 1) {
  for (const std::int64_t slot : slots) {
    w.array(all.subspan(static_cast<std::size_t>(slot) * each, each));
  }
}

void write_layout(Writer& w, const KvLayout& layout) {
  w.text(layout.name);
  w.text(layout.source);
  w.value(layout.page_size);
  w.value(static_cast<std::uint32_t>(layout.page_bytes.size()));
  w.array(std::span<const std::int64_t>(layout.page_bytes));
  w.value(static_cast<std::uint32_t>(layout.segments.size()));
  for (const KvSegment& s : layout.segments) {
    w.text(s.name);
    w.text(s.meaning);
    w.value(static_cast<std::uint8_t>(s.role));
    w.value(static_cast<std::int32_t>(s.buffer));
    w.value(static_cast<std::int32_t>(s.head));
    w.value(s.offset);
    w.value(s.token_stride);
    w.value(s.bytes);
  }
}

void write_pool(Writer& w, Monitor& m, int pool, const PoolPlan& plan) {
  const PoolSpec& spec = m.pool(pool);
  w.text(spec.name);
  w.value(static_cast<std::uint8_t>(spec.kind));
  w.value(static_cast<std::uint8_t>(spec.null_slot));
  w.value(static_cast<std::int32_t>(spec.num_layers));
  w.value(static_cast<std::int32_t>(spec.token_offset));
  w.value(spec.num_slots);
  w.value(spec.window);
  w.value(m.null_digest(pool));
  write_layout(w, spec.layout);
  const std::vector<std::int64_t> swa = m.full_to_swa(pool);
  w.value(static_cast<std::uint64_t>(swa.size()));
  w.array(std::span<const std::int64_t>(swa));

  w.value(static_cast<std::uint64_t>(plan.slots.size()));
  w.array(std::span<const std::int64_t>(plan.slots));
  w.array(std::span<const SlotState>(plan.states));
  picked<Record>(w, m.records(pool), plan.slots);
  if (m.options().format == Format::serinus) picked<LedgerEntry>(w, m.ledger(pool), plan.slots);
  if (m.options().source_digests) {
    picked<std::uint32_t>(w, m.source_digests(pool), plan.slots, plan.sources.size());
  }
  w.value(static_cast<std::uint64_t>(plan.byte_slots.size()));
  w.array(std::span<const std::int64_t>(plan.byte_slots));
  for (const std::int64_t slot : plan.byte_slots) {
    const std::vector<std::uint8_t> bytes = m.slot_bytes(pool, slot);
    w.array(std::span<const std::uint8_t>(bytes));
  }
  const std::vector<std::pair<std::int64_t, LedgerEvent>> events = m.pool_events(pool);
  w.value(static_cast<std::uint64_t>(events.size()));
  for (const auto& [slot, e] : events) {
    w.value(slot);
    w.value(e.step);
    w.value(e.peer);
    w.value(static_cast<std::uint32_t>(e.owner));
    w.value(static_cast<std::uint32_t>(e.kind));
  }
}

// A row's pools as the dump counts them: `pools` are the numbers of those that are there.
std::vector<std::int32_t> numbers_of(const DumpRow& r, const std::vector<int>& pools) {
  std::vector<std::int32_t> numbers;
  for (const int pool : r.pools) {
    const auto at = std::ranges::find(pools, pool);
    if (at != pools.end()) numbers.push_back(static_cast<std::int32_t>(at - pools.begin()));
  }
  return numbers;
}

void write_row(Writer& w, const DumpRow& r, const std::vector<int>& pools) {
  const std::vector<std::int32_t> numbers = numbers_of(r, pools);
  w.value(r.owner);
  w.value(r.row);
  w.value(static_cast<std::uint32_t>(numbers.size()));
  w.array(std::span<const std::int32_t>(numbers));
  w.value(static_cast<std::uint64_t>(r.cells.size()));
  w.array(std::span<const std::int32_t>(r.cells));
  std::vector<std::int32_t> tokens = r.tokens;
  tokens.resize(r.cells.size(), -1);
  w.array(std::span<const std::int32_t>(tokens));
}

}  // namespace

namespace {

/// No dump that no reader takes.
void check_readable(const Monitor& m, const std::vector<int>& pools, const std::string& path) {
  const auto require = [&](bool ok, const std::string& why) {
    if (!ok) raise(errors::Page::dump_not_written, {{"got", path}, {"why", why}});
  };
  require(pools.size() <= dump::kMaxPools, std::to_string(pools.size()) +
                                               " pools, a dump has room for " +
                                               std::to_string(dump::kMaxPools));
  std::int64_t runs = 0;
  for (const int pool : pools) {
    const PoolSpec& spec = m.pool(pool);
    const std::int64_t segments = std::ssize(spec.layout.segments);
    const std::int64_t buffers = spec.layout.num_buffers();
    require(spec.num_layers <= dump::kMaxLayers && segments <= dump::kMaxSegments &&
                buffers <= dump::kMaxBuffers / spec.num_layers,
            "pool " + spec.name + " has more layers, segments or buffers than a dump has room for");
    if (m.options().depth != Depth::none) runs += spec.layout.page_size * segments;
  }
  require(runs <= dump::kMaxRuns, std::to_string(runs) +
                                      " segments in the pages of all pools, a dump has room for " +
                                      std::to_string(dump::kMaxRuns));
}

}  // namespace

void write_dump(Monitor& monitor, const std::string& path, const DumpOptions& options) {
  const Options& o = monitor.options();
  if (o.mode == Mode::none) {
    raise(errors::Page::dump_without_canary, {{"argument", "monitor"}, {"got", path}});
  }
  dump::Header h = {};
  std::memcpy(h.magic, dump::kMagic, sizeof h.magic);
  h.version = kDumpVersion;
  h.record_version = kRecordVersion;
  h.format = static_cast<std::uint8_t>(o.format);
  h.depth = static_cast<std::uint8_t>(o.depth);
  h.source_digests = o.source_digests && o.format == Format::serinus ? 1 : 0;
  std::vector<int> pools;
  for (int pool = 0; pool < monitor.num_pools(); ++pool) {
    if (monitor.is_attached(pool)) pools.push_back(pool);
  }
  h.num_pools = static_cast<std::uint32_t>(pools.size());
  h.step = monitor.stats().steps;
  // A row of pools that are gone says nothing; without any it would speak of all.
  std::vector<const DumpRow*> rows;
  for (const DumpRow& r : options.rows) {
    if (r.pools.empty() || !numbers_of(r, pools).empty()) rows.push_back(&r);
  }
  h.num_rows = static_cast<std::uint32_t>(rows.size());
  check_readable(monitor, pools, path);
  Writer w(path);
  w.value(h);
  for (const int pool : pools) write_pool(w, monitor, pool, plan_of(monitor, pool, options));
  for (const DumpRow* r : rows) write_row(w, *r, pools);
  w.finish();
}

}  // namespace serinus::canary
