// Runs scenarios: real pools, real bytes, a real monitor. Nothing here decides what is a violation;
// the lab only moves bytes, tells the monitor what an engine would tell it, and reads its reports.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/json.h"
#include "base/raise.h"
#include "engine/mix.h"
#include "engine/model.h"
#include "engine/request_text.h"
#include "engine/scenario.h"
#include "engine/zeroed_memory.h"
#include "error_ids.h"

namespace serinus::engine {

namespace {

using canary::Moment;
using canary::Owner;
using canary::PoolKind;
using canary::Record;
using canary::SweepEntry;
using canary::VerifyPolicy;
using canary::Violation;
using Verb = ScenarioOp::Verb;

constexpr std::int64_t kRows = kScenarioCache + 1;  // row 0 is padding, then one an owner

struct Impossible {
  std::string why, got;
};

// Which bytes of a token an operation touches. The record travels with the token's first byte.
struct Part {
  std::optional<int> buffer;
  std::int64_t begin = 0, end = INT64_MAX;

  static Part of(const ScenarioOp& op, std::int64_t token_bytes) {
    Part part{op.buffer, op.begin, op.end};
    if (op.half == 1) part.end = token_bytes / 2;
    if (op.half == 2) part.begin = token_bytes / 2;
    return part;
  }
  bool holds(int in_buffer, std::int64_t byte) const noexcept {
    return (!buffer || *buffer == in_buffer) && byte >= begin && byte < end;
  }
  bool carries_record() const noexcept { return buffer.value_or(0) == 0 && begin == 0; }
};

// The meaning bytes of some tokens and their records, away from a pool.
struct HostCopy {
  std::vector<std::vector<std::uint8_t>> bytes;
  std::vector<Record> records;
};

using Host = std::map<std::pair<std::string, int>, HostCopy>;  // by name and pool

class Pool {
 public:
  explicit Pool(const ScenarioPool& spec) : spec_(spec), layout_(layout_of(spec)) {
    const std::int64_t pages = (spec.slots + spec.page - 1) / spec.page;
    for (int layer = 0; layer < spec.layers; ++layer) {
      for (const std::int64_t page_bytes : layout_.page_bytes) {
        const std::int64_t stride = spec.page_stride != 0 ? spec.page_stride : page_bytes;
        memory_.emplace_back(static_cast<std::size_t>(pages * stride));
        buffers_.push_back({memory_.back().as<std::uint8_t>(), pages * stride, stride});
      }
    }
  }

  const ScenarioPool& spec() const noexcept { return spec_; }
  const KvLayout& layout() const noexcept { return layout_; }
  const std::vector<KvBuffer>& buffers() const noexcept { return buffers_; }
  std::int64_t token_bytes() const noexcept { return layout_.token_bytes() * spec_.layers; }
  bool holds(std::int64_t slot) const noexcept { return slot >= 0 && slot < spec_.slots; }

  // Calls f(buffer, place in the token, memory, bytes) for each run of a slot. A slot outside the
  // pool has no memory: a real engine would have trampled something else.
  template <class F>
  void each_run(std::int64_t slot, F&& f) const {
    if (!holds(slot)) return;
    std::int64_t place = 0;
    for (int layer = 0; layer < spec_.layers; ++layer) {
      for (const KvSegment& s : layout_.segments) {
        const KvBuffer& b =
            buffers_[static_cast<std::size_t>(layer * layout_.num_buffers() + s.buffer)];
        f(s.buffer, place, b.data + byte_offset(layout_, s, slot, b.page_stride), s.bytes);
        place += s.bytes;
      }
    }
  }

  std::vector<std::uint8_t> read(std::int64_t slot) const {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(token_bytes()));
    each_run(slot, [&](int, std::int64_t place, const std::uint8_t* from, std::int64_t n) {
      std::memcpy(out.data() + place, from, static_cast<std::size_t>(n));
    });
    return out;
  }

  void write(std::int64_t slot, const std::vector<std::uint8_t>& bytes, const Part& part) const {
    each_run(slot, [&](int buffer, std::int64_t place, std::uint8_t* to, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        if (part.holds(buffer, place + i)) to[i] = bytes[static_cast<std::size_t>(place + i)];
      }
    });
  }

 private:
  ScenarioPool spec_;
  KvLayout layout_;
  std::vector<ZeroedMemory> memory_;
  std::vector<KvBuffer> buffers_;
};

void copy_part(const std::vector<std::uint8_t>& from, std::vector<std::uint8_t>& to,
               const Pool& pool, const Part& part) {
  // The runs of any slot give each byte of the token its buffer.
  pool.each_run(0, [&](int buffer, std::int64_t place, const std::uint8_t*, std::int64_t n) {
    for (std::int64_t i = place; i < place + n; ++i) {
      if (part.holds(buffer, i))
        to[static_cast<std::size_t>(i)] = from[static_cast<std::size_t>(i)];
    }
  });
}

// What every machine agrees on: which tokens a request consists of.
class Texts {
 public:
  Texts() {
    for (Owner r = 1; r < kRows; ++r) {
      for (std::int64_t i = 0; i < kMaxTokens; ++i) {
        token(r, i) =
            static_cast<std::int32_t>(mix(r, static_cast<std::uint64_t>(i)) % kVocabulary);
      }
    }
  }
  std::int32_t& token(Owner r, std::int64_t i) {
    return tokens_[static_cast<std::size_t>(r * kMaxTokens + i)];
  }
  // The KV of a token depends on all tokens before it, and on the one that the model was fed.
  std::uint64_t state(Owner r, std::int64_t i, std::int32_t fed) {
    std::uint64_t h = 0;
    for (std::int64_t k = 0; k < i; ++k) h = mix(h, static_cast<std::uint64_t>(token(r, k)));
    return mix(h, static_cast<std::uint64_t>(fed));
  }
  TensorView view() { return TensorView(tokens_.data(), DType::i32, {kRows, kMaxTokens}); }

 private:
  std::vector<std::int32_t> tokens_ =
      std::vector<std::int32_t>(static_cast<std::size_t>(kRows * kMaxTokens));
};

// One rank's machine: pools, tables and the monitor that watches them.
class Machine {
 public:
  Machine(const Scenario& scenario, canary::Format format, Texts& texts)
      : texts_(texts),
        monitor_(
            {.format = format,
             .depth = scenario.depth,
             .verify = format == canary::Format::sglang ? VerifyPolicy::all : VerifyPolicy::rolling,
             .sweep_interval = 1}) {
    for (const ScenarioPool& spec : scenario.pools) pools_.emplace_back(spec);
    full_to_swa_.assign(static_cast<std::size_t>(scenario.pools[0].slots), 0);
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const Pool& p = pools_[i];
      canary::PoolSpec spec;
      spec.name = p.spec().name;
      spec.kind = p.spec().kind;
      spec.layout = p.layout();
      spec.num_layers = p.spec().layers;
      if (scenario.depth != canary::Depth::none) spec.buffers = p.buffers();
      spec.num_slots = p.spec().slots;
      spec.null_slot = p.spec().null_slot;
      spec.window = p.spec().window;
      spec.token_offset = p.spec().token_offset;
      if (spec.kind == PoolKind::swa) spec.full_to_swa = full_to_swa_;
      monitor_.add_pool(std::move(spec));
      if (format == canary::Format::sglang) {
        monitor_.set_sweep_source(static_cast<int>(i), [this, i](std::vector<SweepEntry>& out) {
          sweep_entries(static_cast<int>(i), out);
        });
      }
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  canary::Monitor& monitor() noexcept { return monitor_; }
  const Pool& pool(int i) const { return pools_[static_cast<std::size_t>(i)]; }

  void run(const ScenarioOp& op, Host& host);
  /// An operation that was issued before, with the row of the table as it was then.
  void land(const ScenarioOp& op, const std::vector<std::int32_t>& row, Host& host);
  std::vector<std::int32_t> row_of(Owner r) const {
    const auto from = table_.begin() + static_cast<std::ptrdiff_t>(r * kMaxTokens);
    return {from, from + kMaxTokens};
  }
  /// Cells of an issued write are in the table at once: the scheduler placed them.
  void place_cells(const ScenarioOp& op) {
    for (std::size_t i = 0; i < op.slots.slots.size(); ++i) {
      set_cell(op.tokens.request, op.tokens.begin + static_cast<std::int64_t>(i),
               op.slots.slots[i]);
    }
  }

  /// Writes tokens [0, end) of a request on this machine and takes copies of `tokens` along, one
  /// a pool.
  std::vector<HostCopy> prefill(const TokenRange& tokens);
  std::uint64_t digest(Owner r, std::int64_t length) {
    return monitor_.request_digest(r, length, batch_tables());
  }

 private:
  void set_cell(Owner r, std::int64_t cell, std::int64_t slot) {
    table_[static_cast<std::size_t>(r * kMaxTokens + cell)] = static_cast<std::int32_t>(slot);
    auto& length = row_length_[static_cast<std::size_t>(r)];
    length = std::max(length, cell + 1);
  }
  canary::Batch batch_tables() {
    canary::Batch b;
    b.req_to_token = TensorView(table_.data(), DType::i32, {kRows, kMaxTokens});
    b.expected_tokens = texts_.view();
    return b;
  }
  // The full pool's slot of a token, as pool `i` numbers it; -1 where that pool does not hold it.
  std::int64_t translate(int i, std::int64_t slot) const {
    if (pool(i).spec().kind != PoolKind::swa) return slot;
    if (!pool(0).holds(slot)) return -1;
    const std::int64_t swa = full_to_swa_[static_cast<std::size_t>(slot)];
    return swa == 0 ? -1 : swa;
  }
  // All pools share their slot numbers but for the SWA pool; it has an allocator of its own.
  template <class F>
  void each_sharing(int pool_index, F&& f) {
    for (int i = 0; i < static_cast<int>(pools_.size()); ++i) {
      if (i == pool_index || (pool_index == 0 && pool(i).spec().kind != PoolKind::swa)) f(i);
    }
  }
  void alloc(const ScenarioOp& op);
  void give(const ScenarioOp& op);
  void forward(const ScenarioOp& op, bool late);
  void forward_pools(const ScenarioOp& op, const std::vector<int>& pools, int offset, bool late);
  std::int64_t wrapped(std::int64_t slot) const;
  void pad(const ScenarioOp& op);
  void move(const ScenarioOp& op);
  void store(const ScenarioOp& op, Host& host);
  void load(const ScenarioOp& op, Host& host);
  void verify(const ScenarioOp& op);
  void idle() {
    const canary::Batch batch = batch_tables();
    monitor_.begin_step(batch);
    monitor_.end_step(batch);
  }
  void sweep_entries(int pool_index, std::vector<SweepEntry>& out) const;

  Texts& texts_;
  std::vector<Pool> pools_;
  std::vector<std::int64_t> full_to_swa_;
  std::vector<std::int32_t> table_ =
      std::vector<std::int32_t>(static_cast<std::size_t>(kRows * kMaxTokens));
  std::vector<std::int64_t> row_length_ = std::vector<std::int64_t>(kRows);
  std::vector<SweepEntry> tree_;  // slots of the full pool that the prefix cache holds
  canary::Monitor monitor_;
};

// ---------------------------------------------------------------- allocator and tables

void Machine::alloc(const ScenarioOp& op) {
  each_sharing(op.slots.pool, [&](int i) { monitor_.on_alloc(i, op.slots.slots, op.request); });
  if (op.slots.pool != 0) return;
  for (const std::int64_t slot : op.slots.slots) {
    const std::int64_t cell = row_length_[op.request];
    if (cell == kMaxTokens) throw Impossible{"fills a row beyond its end", op.text};
    set_cell(op.request, cell, slot);
  }
}

void Machine::give(const ScenarioOp& op) {
  each_sharing(op.slots.pool,
               [&](int i) { monitor_.on_transfer(i, op.slots.slots, op.request, op.other); });
  if (op.slots.pool != 0 || op.other != kScenarioCache) return;
  std::int64_t previous = -1;
  for (std::int64_t cell = 0; cell < row_length_[op.request]; ++cell) {
    const std::int64_t slot = table_[static_cast<std::size_t>(op.request * kMaxTokens + cell)];
    const auto& given = op.slots.slots;
    if (std::find(given.begin(), given.end(), slot) != given.end()) {
      tree_.push_back({.slot = slot, .position = cell, .prev_slot = previous});
    }
    previous = slot;
  }
}

// In the SWA pool an evicted slot is 0, and stays in the walk: the check passes it over.
void Machine::sweep_entries(int pool_index, std::vector<SweepEntry>& out) const {
  const auto translated = [&](std::int64_t slot) {
    return slot < 0 ? -1 : std::max<std::int64_t>(translate(pool_index, slot), 0);
  };
  for (const SweepEntry& e : tree_) {
    out.push_back(
        {.slot = translated(e.slot), .position = e.position, .prev_slot = translated(e.prev_slot)});
  }
}

// ---------------------------------------------------------------- forwards

// A forward of one request over op.tokens. `late`: its head check was long ago; the bytes land and
// the records are stamped, with tables as they were when it was issued.
void Machine::forward(const ScenarioOp& op, bool late) {
  if (!late) place_cells(op);
  // The target's forward; then a draft's own, which is fed the tokens that follow.
  for (const int offset : {0, 1}) {
    std::vector<int> pools;
    for (int i = 0; i < static_cast<int>(pools_.size()); ++i) {
      const bool named =
          op.pools.empty() || std::find(op.pools.begin(), op.pools.end(), i) != op.pools.end();
      if (named && pool(i).spec().token_offset == offset) pools.push_back(i);
    }
    if (!pools.empty()) forward_pools(op, pools, offset, late);
  }
}

// Where a kernel that computes slot * stride in 32 bits writes instead.
std::int64_t Machine::wrapped(std::int64_t slot) const {
  const std::int64_t page = pool(0).spec().page, stride = pool(0).buffers()[0].page_stride;
  const auto offset = static_cast<std::uint32_t>(slot / page * stride);
  return std::int64_t{offset} / stride * page + slot % page;
}

void Machine::forward_pools(const ScenarioOp& op, const std::vector<int>& pools, int offset,
                            bool late) {
  const Owner r = op.tokens.request;
  std::vector<std::int64_t> locations = op.to.slots.empty() ? op.slots.slots : op.to.slots;
  if (op.wrap32) {
    for (std::int64_t& slot : locations) slot = wrapped(slot);
  }
  const TokenRange& fed = op.as ? *op.as : op.tokens;
  std::vector<std::int64_t> ids, positions;
  for (std::int64_t i = 0; i < op.tokens.size(); ++i) {
    ids.push_back(texts_.token(fed.request, fed.begin + (op.as ? 0 : offset) + i));
    positions.push_back(op.position.value_or(op.tokens.begin) + i);
  }
  const std::int64_t row = r, prefix = op.tokens.begin, extend = op.tokens.size();
  // What a draft proposes is no token of the request yet: nobody knows better before it is
  // accepted.
  const std::int64_t known = op.as ? prefix + offset : kMaxTokens;
  canary::Batch batch = batch_tables();
  batch.pools = pools;
  batch.rows = {&row, 1};
  batch.prefix_lens = {&prefix, 1};
  batch.extend_lens = {&extend, 1};
  batch.owners = {&r, 1};
  batch.valid_lens = {&known, 1};
  batch.input_ids = ids;
  batch.positions = positions;
  batch.out_cache_loc = locations;
  if (!late) monitor_.begin_step(batch);
  for (const int p : pools) {
    for (std::size_t i = 0; i < locations.size(); ++i) {
      const std::int64_t at = prefix + static_cast<std::int64_t>(i);
      const std::uint64_t state = mix(texts_.state(r, at, static_cast<std::int32_t>(ids[i])),
                                      static_cast<std::uint64_t>(p));
      int source = 0;
      pool(p).each_run(translate(p, locations[i]),
                       [&](int, std::int64_t, std::uint8_t* to, std::int64_t n) {
                         model_bytes(state, source++, {to, static_cast<std::size_t>(n)});
                       });
    }
  }
  if (late) {
    monitor_.stamp_now(batch);
  } else {
    monitor_.end_step(batch);
  }
}

// A padding lane of a captured graph: no request, but a location. A negative one is an index from
// the end, as numpy and torch read it.
void Machine::pad(const ScenarioOp& op) {
  const std::int64_t row = 0, none = 0;
  const Owner nobody = 0;
  const std::vector<std::int64_t> zeros(op.slots.slots.size());
  canary::Batch batch = batch_tables();
  batch.rows = {&row, 1};
  batch.prefix_lens = {&none, 1};
  batch.extend_lens = {&none, 1};
  batch.owners = {&nobody, 1};
  batch.valid_lens = {&none, 1};
  batch.input_ids = zeros;
  batch.positions = zeros;
  batch.out_cache_loc = op.slots.slots;
  monitor_.begin_step(batch);
  const Pool& p = pool(op.slots.pool);
  for (std::int64_t slot : op.slots.slots) {
    if (slot < 0) slot += p.spec().slots;
    p.write(slot, std::vector<std::uint8_t>(static_cast<std::size_t>(p.token_bytes()), 0xff), {});
  }
  monitor_.end_step(batch);
}

void Machine::verify(const ScenarioOp& op) {
  canary::Batch tables = batch_tables();
  tables.pools = op.pools;
  for (const Moment moment : {Moment::head, Moment::tail}) {
    if (op.moment && *op.moment != moment) continue;
    monitor_.verify_now(moment, op.request, op.request, op.begin,
                        std::min(op.end, row_length_[op.request]), tables);
  }
}

// ---------------------------------------------------------------- copies

void Machine::move(const ScenarioOp& op) {
  const Pool& p = pool(op.slots.pool);
  const std::vector<std::int64_t>&from = op.slots.slots, &to = op.to.slots;
  for (const std::int64_t slot : from) {
    if (!p.holds(slot)) throw Impossible{"moves from outside the pool", std::to_string(slot)};
  }
  if (!op.as_pages) {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const std::int64_t slot : from) bytes.push_back(p.read(slot));
    for (std::size_t i = 0; i < to.size(); ++i) p.write(to[i], bytes[i], {});
  } else {
    // The kernel takes a page for rows of one token each, which is not how its layout lies: the
    // right bytes of the page change places.
    for (const KvBuffer& b : p.buffers()) {
      const std::int64_t row = b.page_stride / p.spec().page;
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (!p.holds(to[i])) continue;
        std::memmove(
            b.data + to[i] / p.spec().page * b.page_stride + to[i] % p.spec().page * row,
            b.data + from[i] / p.spec().page * b.page_stride + from[i] % p.spec().page * row,
            static_cast<std::size_t>(row));
      }
    }
  }
  monitor_.on_move(op.slots.pool, from, to);
}

void Machine::store(const ScenarioOp& op, Host& host) {
  const Pool& p = pool(op.slots.pool);
  const std::size_t n = op.slots.slots.size();
  HostCopy& copy = host[{op.name, op.slots.pool}];
  copy.bytes.resize(n, std::vector<std::uint8_t>(static_cast<std::size_t>(p.token_bytes())));
  copy.records.resize(n);
  const Part part = Part::of(op, p.token_bytes());
  if (part.carries_record()) monitor_.on_store(op.slots.pool, op.slots.slots, copy.records);
  for (std::size_t i = 0; i < n; ++i) {
    copy_part(p.read(op.slots.slots[i]), copy.bytes[i], p, part);
  }
}

void Machine::load(const ScenarioOp& op, Host& host) {
  const Pool& p = pool(op.slots.pool);
  const auto find = [&](const std::string& name, int of_pool) -> const HostCopy& {
    const auto it = host.find({name, of_pool});
    if (it == host.end()) throw Impossible{"loads a copy that was never made", name};
    return it->second;
  };
  const HostCopy& records = find(op.name, op.slots.pool);
  const HostCopy& bytes =
      op.source.empty() ? records : find(op.source, op.source_pool.value_or(op.slots.pool));
  const std::size_t n = op.slots.slots.size();
  const auto fits = [&](const HostCopy& c) {
    return c.bytes.size() == n && c.bytes[0].size() == static_cast<std::size_t>(p.token_bytes());
  };
  if (!fits(records) || !fits(bytes)) throw Impossible{"loads a copy of another shape", op.name};
  const Part part = Part::of(op, p.token_bytes());
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<std::uint8_t> token = bytes.bytes[i];
    if (op.swapped) {  // the reader takes the first half for the second
      std::rotate(token.begin(), token.begin() + p.token_bytes() / 2, token.end());
    }
    p.write(op.slots.slots[i], token, part);
  }
  if (!part.carries_record()) return;
  if (!op.raw) {
    monitor_.on_load(op.slots.pool, records.records, op.slots.slots, op.request);
    return;
  }
  // A remote writer puts bytes and records where it was once told to; nobody announces it.
  const std::span<Record> all = monitor_.records(op.slots.pool);
  for (std::size_t i = 0; i < n; ++i) {
    if (p.holds(op.slots.slots[i])) {
      all[static_cast<std::size_t>(op.slots.slots[i])] = records.records[i];
    }
  }
}

std::vector<HostCopy> Machine::prefill(const TokenRange& tokens) {
  ScenarioOp op;
  op.request = op.tokens.request = tokens.request;
  op.tokens.end = tokens.end;
  for (std::int64_t i = 0; i < tokens.end; ++i) op.slots.slots.push_back(i + 1);
  alloc(op);
  forward(op, false);
  const auto slots = std::span(op.slots.slots).subspan(static_cast<std::size_t>(tokens.begin));
  std::vector<HostCopy> copies(pools_.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    for (const std::int64_t slot : slots) copies[i].bytes.push_back(pools_[i].read(slot));
    copies[i].records.resize(slots.size());
    monitor_.on_store(static_cast<int>(i), slots, copies[i].records);
  }
  return copies;
}

// ---------------------------------------------------------------- dispatch

void Machine::run(const ScenarioOp& op, Host& host) {
  const Pool& p = pool(op.slots.pool);
  switch (op.verb) {
    case Verb::alloc:
      alloc(op);
      break;
    case Verb::free:
      each_sharing(op.slots.pool, [&](int i) { monitor_.on_free(i, op.slots.slots, op.request); });
      if (op.slots.pool == 0) {
        std::erase_if(tree_, [&](const SweepEntry& e) {
          return std::count(op.slots.slots.begin(), op.slots.slots.end(), e.slot) != 0;
        });
      }
      break;
    case Verb::give:
      give(op);
      break;
    case Verb::row:
      row_length_[op.request] = 0;
      for (std::size_t i = 0; i < op.slots.slots.size(); ++i) {
        set_cell(op.request, static_cast<std::int64_t>(i), op.slots.slots[i]);
      }
      break;
    case Verb::hit:
      for (std::int64_t i = 0; i < op.tokens.size(); ++i) {
        texts_.token(op.request, i) = texts_.token(op.tokens.request, op.tokens.begin + i);
        set_cell(op.request, i, op.slots.slots[static_cast<std::size_t>(i)]);
      }
      monitor_.on_attach(op.request, op.request, 0, op.tokens.size());
      break;
    case Verb::release:
      monitor_.on_release(op.request);
      break;
    case Verb::write:
      forward(op, false);
      break;
    case Verb::bytes:
      for (std::size_t i = 0; i < op.slots.slots.size(); ++i) {
        const Owner r = op.tokens.request;
        const std::int64_t at = op.tokens.begin + static_cast<std::int64_t>(i);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(p.token_bytes()));
        model_bytes(texts_.state(r, at, texts_.token(r, at)), 0, bytes);
        p.write(op.slots.slots[i], bytes, Part::of(op, p.token_bytes()));
      }
      break;
    case Verb::flip:
    case Verb::junk:
      for (const std::int64_t slot : op.slots.slots) {
        std::vector<std::uint8_t> bytes = p.read(slot);
        for (std::uint8_t& b : bytes) {
          b = op.verb == Verb::flip ? static_cast<std::uint8_t>(b ^ 1) : std::uint8_t{0xff};
        }
        Part part = Part::of(op, p.token_bytes());
        p.write(slot, bytes, part);
      }
      break;
    case Verb::store:
      store(op, host);
      break;
    case Verb::load:
      load(op, host);
      break;
    case Verb::move:
      move(op);
      break;
    case Verb::pad:
      pad(op);
      break;
    case Verb::map:
      for (std::size_t i = 0; i < op.slots.slots.size(); ++i) {
        if (!pool(0).holds(op.slots.slots[i])) {
          throw Impossible{"maps a slot outside the full pool", std::to_string(op.slots.slots[i])};
        }
        full_to_swa_[static_cast<std::size_t>(op.slots.slots[i])] = op.to.slots[i];
      }
      break;
    case Verb::verify:
      verify(op);
      break;
    case Verb::idle:
      idle();
      break;
    case Verb::sweep:
      idle();
      monitor_.flush();
      break;
    default:  // host, evict, issue, land, ranks, state: what the lab does around the machines
      break;
  }
}

void Machine::land(const ScenarioOp& op, const std::vector<std::int32_t>& row, Host& host) {
  const Owner r = op.verb == Verb::write ? op.tokens.request : op.request;
  const std::vector<std::int32_t> now = row_of(r);
  const auto put = [&](const std::vector<std::int32_t>& cells) {
    std::copy(cells.begin(), cells.end(),
              table_.begin() + static_cast<std::ptrdiff_t>(r * kMaxTokens));
  };
  put(row);
  if (op.verb == Verb::write) {
    forward(op, true);
  } else {
    run(op, host);
  }
  if (op.verb == Verb::write || op.verb == Verb::verify) put(now);
}

// ---------------------------------------------------------------- the lab

struct Issued {
  ScenarioOp op;
  std::vector<std::int32_t> row;
};

class Lab {
 public:
  Lab(const Scenario& scenario, canary::Format format) : scenario_(scenario), format_(format) {
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      machines_.push_back(std::make_unique<Machine>(scenario, format, texts_));
    }
  }

  ScenarioOutcome run() {
    for (std::size_t i = 0; i < scenario_.ops.size(); ++i) {
      const ScenarioOp& op = scenario_.ops[i];
      try {
        execute(op);
      } catch (const Impossible& e) {
        raise(errors::Page::scenario_malformed,
              {{"place", scenario_.place},
               {"name", fmt::format("ops[{}] `{}`", i, printable(op.text))},
               {"why", e.why},
               {"got", printable(e.got)}});
      }
      for (auto& m : machines_) collect(m->monitor(), op.text);
    }
    for (auto& m : machines_) {
      m->monitor().flush();
      collect(m->monitor(), "end");
    }
    for (const Expectation& e : scenario_.expect) {
      const bool met = std::any_of(found_.begin(), found_.end(), [&](const Violation& v) {
        return any(v.reasons & e.reason) && (e.anywhere || names(e.at, v));
      });
      if (!met) outcome_.missed.push_back(e.text);
    }
    return std::move(outcome_);
  }

 private:
  static bool names(const SlotList& list, const Violation& v) {
    return list.pool == v.pool &&
           std::find(list.slots.begin(), list.slots.end(), v.slot) != list.slots.end();
  }

  void execute(const ScenarioOp& op) {
    Machine& m = *machines_[static_cast<std::size_t>(op.rank)];
    if (op.verb == Verb::host) {
      make_elsewhere(op);
    } else if (op.verb == Verb::evict) {
      std::erase_if(host_, [&](const auto& h) { return h.first.first == op.name; });
    } else if (op.verb == Verb::issue) {
      const ScenarioOp& inner = op.issued[0];
      if (inner.verb == Verb::write) m.place_cells(inner);
      const Owner r = inner.verb == Verb::write ? inner.tokens.request : inner.request;
      issued_[op.name] = {inner, m.row_of(r)};
    } else if (op.verb == Verb::land) {
      const auto it = issued_.find(op.name);
      if (it == issued_.end()) throw Impossible{"lands what was never issued", op.name};
      const Issued landing = std::move(it->second);
      issued_.erase(it);
      machines_[static_cast<std::size_t>(landing.op.rank)]->land(landing.op, landing.row, host_);
    } else if (op.verb == Verb::ranks) {
      std::vector<std::uint64_t> digests;
      for (auto& machine : machines_) digests.push_back(machine->digest(op.request, op.end));
      for (auto& machine : machines_) {
        machine->monitor().on_rank_digests(op.request, op.request, digests);
      }
    } else if (op.verb == Verb::state) {
      for (const std::int64_t slot : op.slots.slots) {
        // The sglang format knows no states.
        if (format_ != canary::Format::serinus) break;
        if (m.monitor().state(op.slots.pool, slot) != op.state) outcome_.missed.push_back(op.text);
      }
    } else {
      m.run(op, host_);
    }
  }

  // Tokens that another machine computed: its pools are like these, with room for every token.
  void make_elsewhere(const ScenarioOp& op) {
    Scenario other = scenario_;
    for (ScenarioPool& p : other.pools) {
      p.slots = (kMaxTokens / p.page + 2) * p.page;
      p.page_stride = 0;
    }
    std::erase_if(other.pools, [](const ScenarioPool& p) { return p.kind == PoolKind::swa; });
    Machine machine(other, format_, texts_);
    std::vector<HostCopy> copies = machine.prefill(op.tokens);
    for (int i = 0, next = 0; i < static_cast<int>(scenario_.pools.size()); ++i) {
      if (scenario_.pools[static_cast<std::size_t>(i)].kind == PoolKind::swa) continue;
      host_[{op.name, i}] = std::move(copies[static_cast<std::size_t>(next++)]);
    }
    collect(machine.monitor(), op.text);
  }

  void collect(canary::Monitor& monitor, const std::string& after) {
    for (Violation& v : monitor.poll()) {
      const std::string& pool = scenario_.pools[static_cast<std::size_t>(v.pool)].name;
      outcome_.violations.push_back(fmt::format("after `{}`: {}", after, canary::to_text(v, pool)));
      outcome_.seen |= v.reasons;
      const bool expected =
          std::any_of(scenario_.expect.begin(), scenario_.expect.end(),
                      [&](const Expectation& e) {
                        return e.anywhere ? any(v.reasons & e.reason) : names(e.at, v);
                      }) ||
          std::any_of(scenario_.also.begin(), scenario_.also.end(),
                      [&](const SlotList& list) { return names(list, v); });
      if (!expected) {
        outcome_.false_alarms.push_back(
            fmt::format("{} at {}:{}", canary::names_of(v.reasons), pool, v.slot));
      }
      found_.push_back(std::move(v));
    }
  }

  const Scenario& scenario_;
  canary::Format format_;
  Texts texts_;
  std::vector<std::unique_ptr<Machine>> machines_;
  Host host_;
  std::map<std::string, Issued> issued_;
  std::vector<Violation> found_;
  ScenarioOutcome outcome_;
};

}  // namespace

ScenarioOutcome run_scenario(const Scenario& scenario, canary::Format format) {
  std::optional<Lab> lab;
  try {
    lab.emplace(scenario, format);
  } catch (const ValueError& e) {  // the monitor takes no such pool
    raise(errors::Page::scenario_malformed,
          {{"place", scenario.place}, {"name", "pools"}, {"why", e.what()}, {"got", e.value()}});
  }
  return lab->run();
}

}  // namespace serinus::engine
