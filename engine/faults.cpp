#include "engine/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/json.h"
#include "base/raise.h"
#include "engine/mix.h"
#include "error_ids.h"

namespace serinus::engine {

namespace {

using canary::Depth;
using canary::Owner;

using canary::Record;
using canary::SlotState;

constexpr std::array<FaultClassInfo, kFaultClasses> kClasses = {{
    {"byte_flip", "one bit of a cached token, in any pool, layer and segment", "KV bytes"},
    {"swapped_slots", "two cells of a running request's row change places", ""},
    {"remap", "a cell of a running request's row points elsewhere, or nowhere", ""},
    {"stale_page", "a running request's row shows a page that was given back", ""},
    {"write_after_free", "a token and its record land in a slot that was given back", ""},
    {"double_handout", "the allocator hands out a page that another request holds", "no SWA pool"},
    {"torn_transfer", "the second half of a token's bytes never arrives", "KV bytes, a host tier"},
    {"truncated_transfer", "the last tokens of a page never arrive", "KV bytes, a host tier"},
    {"side_buffer", "the last segment of a page's tokens is not transferred",
     "KV bytes, a host tier"},
    {"wrong_position", "a token is written at another position", ""},
    {"wrong_token", "the model is fed another token", ""},
    {"draft_offset", "a draft's token is off by one", "a draft pool"},
    {"pad_last_slot", "a padding lane takes -1 for the last slot of the pool", "KV bytes"},
    {"pad_null_slot", "a padding lane writes the null slot", "KV bytes, a clean null slot"},
    {"misread_layout", "a kernel rewrites a token as if its layout were another one", "KV bytes"},
    {"addr_wrap32", "a write's address loses its top bit", ""},
}};

constexpr std::int64_t kMaxFaults = 1'000'000;

constexpr const char* kNotCovered =
    "the damaged bytes lie outside what the record's digest covers (--real-data partial, or more "
    "sources than the sglang format takes)";

std::size_t index_of(FaultClass c) {
  return static_cast<std::size_t>(c);
}

std::string known_classes() {
  std::string names = "all";
  for (const FaultClassInfo& c : kClasses) names += fmt::format(", {}", c.name);
  return names;
}

std::int64_t count_of(std::string_view item, std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1 || n > kMaxFaults) {
    raise(errors::Page::fault_count, {{"class", printable(item)},
                                      {"most", std::to_string(kMaxFaults)},
                                      {"got", printable(text)}});
  }
  return n;
}

}  // namespace

std::span<const FaultClassInfo, kFaultClasses> fault_classes() noexcept {
  return kClasses;
}

FaultSpec parse_fault_spec(std::string_view text) {
  FaultSpec spec;
  if (text.empty() || text == "none") return spec;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t colon = item.find(':');
    const std::string_view name = item.substr(0, colon);
    const std::int64_t count =
        colon == std::string_view::npos ? 1 : count_of(name, item.substr(colon + 1));
    const auto it = std::find_if(kClasses.begin(), kClasses.end(),
                                 [name](const FaultClassInfo& c) { return c.name == name; });
    if (name != "all" && it == kClasses.end()) {
      raise(errors::Page::fault_class_unknown,
            {{"got", printable(name)}, {"known", known_classes()}});
    }
    std::int64_t& total =
        name == "all" ? spec.all : spec.counts[static_cast<FaultClass>(it - kClasses.begin())];
    total = std::min(total + count, kMaxFaults);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
  }
  return spec;
}

std::string fault_spec_help() {
  std::string help =
      "CLASS:COUNT,... with the classes below (CLASS alone: one), or all:COUNT, which spreads "
      "COUNT faults over the classes that the configuration has\n";
  for (const FaultClassInfo& c : kClasses) {
    help += fmt::format("  {:<19}{}{}\n", c.name, c.what,
                        c.needs.empty() ? "" : fmt::format(" (needs {})", c.needs));
  }
  return help;
}

FaultLab::FaultLab(FaultSpec spec, std::uint64_t seed, std::int64_t total_requests)
    : spec_(std::move(spec)),
      random_(mix(seed)),
      total_requests_(std::max<std::int64_t>(total_requests, 1)) {}

// ---------------------------------------------------------------- when

// Why the configuration cannot have faults of this class, or empty.
std::string FaultLab::why_not(const Engine& engine, FaultClass kind) const {
  const EngineOptions& o = engine.options();
  const std::string_view needs = kClasses[index_of(kind)].needs;
  const auto lacks = [&](std::string_view what, bool has) {
    return needs.find(what) != std::string_view::npos && !has;
  };
  if (lacks("KV bytes", o.real_data && o.canary.depth != Depth::none))
    return "no digest of the bytes in this configuration (--real-data none)";
  if (lacks("no SWA pool", o.window == 0)) return "not placed with an SWA pool";
  if (lacks("host tier", o.host_tokens > 0))
    return "no second tier in this configuration (--host-tokens)";
  if (lacks("draft pool", o.draft_layers > 0))
    return "no draft pool in this configuration (--draft-layers)";
  if (lacks("clean null slot", o.null_slot == canary::NullSlot::clean))
    return "padding may write the null slot in this configuration";
  if (kind == FaultClass::pad_null_slot && o.canary.format == canary::Format::sglang)
    return "the sglang format does not look at the null slot";
  return {};
}

// Times of injection: anywhere between the first requests and the last.
void FaultLab::plan(Engine& engine) {
  planned_ = true;
  std::vector<FaultClass> kinds;
  for (std::size_t i = 0; i < kFaultClasses; ++i) {
    const auto kind = static_cast<FaultClass>(i);
    const std::string why = why_not(engine, kind);
    if (why.empty()) kinds.push_back(kind);
    const auto asked = spec_.counts.find(kind);
    for (std::int64_t n = asked == spec_.counts.end() ? 0 : asked->second; n > 0; --n) {
      if (why.empty()) {
        waiting_.push_back({0, kind});
        continue;
      }
      engine.fault_log().add_not_placed(std::string(kClasses[i].name), engine.now(), why);
    }
  }
  // A dirty null slot is one report however often it is written: one fault a pool.
  auto null_slots = static_cast<std::int64_t>(engine.pools().size());
  for (std::int64_t n = 0, next = 0; n < spec_.all; ++next) {
    const FaultClass kind = kinds[static_cast<std::size_t>(next) % kinds.size()];
    if (kind == FaultClass::pad_null_slot && null_slots-- <= 0) continue;
    waiting_.push_back({0, kind});
    ++n;
  }
  constexpr std::uint64_t kResolution = 1'000'000;
  for (Planned& p : waiting_) {
    p.at = 0.85 * static_cast<double>(random_.below(kResolution)) / kResolution;
  }
  std::sort(waiting_.begin(), waiting_.end(), [](const Planned& a, const Planned& b) {
    return std::pair(a.at, a.kind) > std::pair(b.at, b.kind);
  });
}

void FaultLab::step_begin(Engine& engine) {
  if (engine.monitor() == nullptr) return;
  if (!planned_) plan(engine);
  const double done =
      static_cast<double>(engine.counters().requests) / static_cast<double>(total_requests_);
  while (!waiting_.empty() && waiting_.back().at <= done) {
    ++due_[index_of(waiting_.back().kind)];
    waiting_.pop_back();
  }
  if (due(FaultClass::byte_flip)) flip(engine);
  if (due(FaultClass::misread_layout)) misread(engine);
}

// ---------------------------------------------------------------- where

bool FaultLab::is_written(Engine& engine, Slot s) const {
  canary::Monitor& m = *engine.monitor();
  if (s.slot <= 0 || s.slot >= static_cast<std::int64_t>(m.records(s.pool).size())) return false;
  if (engine.options().canary.format == canary::Format::serinus) {
    return m.state(s.pool, s.slot) == SlotState::written;
  }
  // The sglang format knows no states: in use, and a record in it.
  const PageAllocator* pages =
      s.pool == engine.swa_pool() ? engine.swa_allocator() : &engine.allocator();
  const PageUse use = pages->use(s.slot / engine.options().page);
  return (use == PageUse::request || use == PageUse::cached) &&
         m.records(s.pool)[static_cast<std::size_t>(s.slot)] != Record{};
}

// Claims a slot for a fault: one fault a slot and life, or the reports could not be told apart.
bool FaultLab::take(Engine& engine, Slot s) {
  if (engine.fault_log().marked(s.pool, s.slot)) return false;
  const auto ledger = engine.monitor()->ledger(s.pool);
  const std::uint64_t life = s.slot >= 0 && s.slot < static_cast<std::int64_t>(ledger.size())
                                 ? ledger[static_cast<std::size_t>(s.slot)].generation
                                 : 0;
  return taken_
      .insert(
          mix(mix(static_cast<std::uint64_t>(s.pool), life), static_cast<std::uint64_t>(s.slot)))
      .second;
}

// The same for a slot of the full pool in every pool that has it.
bool FaultLab::take_everywhere(Engine& engine, std::int64_t slot) {
  for (const Slot& s : everywhere(engine, slot)) {
    if (!take(engine, s)) return false;
  }
  return true;
}

// A written slot of a running request, or of anybody.
std::optional<FaultLab::Slot> FaultLab::pick_written(Engine& engine) {
  const auto& running = engine.running();
  const std::int64_t page = engine.options().page;
  for (int attempt = 0; attempt < 64; ++attempt) {
    Slot s;
    s.pool = static_cast<int>(random_.below(engine.pools().size()));
    const std::uint64_t slots =
        static_cast<std::uint64_t>(engine.pools()[static_cast<std::size_t>(s.pool)].kv.num_slots());
    s.slot = static_cast<std::int64_t>(random_.below(slots));
    if (attempt % 2 == 0 && !running.empty()) {
      const Request& r = *running[random_.below(running.size())];
      if (r.length == 0) continue;
      const auto at =
          static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(r.length)));
      s.slot = r.pages[static_cast<std::size_t>(at / page)] * page + at % page;
      if (s.pool == engine.swa_pool()) {
        s.slot = engine.full_to_swa()[static_cast<std::size_t>(s.slot)];
      }
    }
    if (is_written(engine, s) && take(engine, s)) return s;
  }
  return std::nullopt;
}

// A request of the batch with at least `prefix` tokens behind it.
std::optional<std::size_t> FaultLab::pick_request(const ForwardBatch& batch, std::int64_t prefix) {
  if (batch.rows.empty()) return std::nullopt;
  const std::size_t first = random_.below(batch.rows.size());
  for (std::size_t n = 0; n < batch.rows.size(); ++n) {
    const std::size_t i = (first + n) % batch.rows.size();
    if (batch.rows[i] != 0 && batch.prefix_lens[i] >= prefix) return i;
  }
  return std::nullopt;
}

// One of the tokens that the batch writes; -1 if there is none.
std::int64_t FaultLab::pick_token(const ForwardBatch& batch, std::size_t& request) {
  if (batch.tokens() == 0) return -1;
  const auto k =
      static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(batch.tokens())));
  std::int64_t end = 0;
  for (request = 0; request < batch.rows.size(); ++request) {
    end += batch.extend_lens[request];
    if (k < end) break;
  }
  return k;
}

// A slot of the full pool, as each pool numbers it.
std::vector<FaultLab::Slot> FaultLab::everywhere(Engine& engine, std::int64_t slot) const {
  std::vector<Slot> all = {{0, slot}};
  if (engine.draft_pool() >= 0) all.push_back({engine.draft_pool(), slot});
  if (engine.swa_pool() >= 0) {
    const auto& map = engine.full_to_swa();
    const bool inside = slot >= 0 && slot < static_cast<std::int64_t>(map.size());
    const std::int64_t swa = inside ? map[static_cast<std::size_t>(slot)] : slot;
    if (swa != 0) all.push_back({engine.swa_pool(), swa});
  }
  return all;
}

void FaultLab::mark(Engine& engine, int fault, std::int64_t slot, int lives) {
  for (const Slot& s : everywhere(engine, slot)) {
    engine.fault_log().mark(fault, s.pool, s.slot, lives);
  }
}

// ---------------------------------------------------------------- bookkeeping

int FaultLab::placed(Engine& engine, FaultClass kind, std::string note) {
  --due_[index_of(kind)];
  return engine.fault_log().add(std::string(kClasses[index_of(kind)].name), engine.now(),
                                std::move(note));
}

void FaultLab::bind_to_request(Engine& engine, int fault, Owner owner) {
  engine.fault_log().mark_request(fault, owner);
  engine.fault_log().set_reason_if_masked(fault,
                                          "the request ended before a check came to the cell");
}

// Which bytes of a token the record's digest covers, found out by changing each of them in the null
// slot: that is a matter of the format, of the depth and of the layout.
const std::vector<bool>& FaultLab::covered_bytes(Engine& engine, int pool) {
  const auto [at, is_new] = covered_.try_emplace(pool);
  if (is_new) {
    const KvPool& kv = engine.pools()[static_cast<std::size_t>(pool)].kv;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kv.token_bytes()));
    kv.read_token(0, bytes);
    const auto digest = [&] {
      engine.send();
      return engine.monitor()->digest_of(pool, 0);
    };
    const auto as_it_is = digest();
    for (std::uint8_t& byte : bytes) {
      byte ^= 0xFFu;
      kv.write_token(0, bytes);
      at->second.push_back(digest() != as_it_is);
      byte ^= 0xFFu;
    }
    kv.write_token(0, bytes);
  }
  return at->second;
}

// Whether a digest of the token tells `after` from `before`.
bool FaultLab::is_covered(Engine& engine, int pool, std::span<const std::uint8_t> before,
                          std::span<const std::uint8_t> after) {
  const std::vector<bool>& covered = covered_bytes(engine, pool);
  for (std::size_t b = 0; b < covered.size(); ++b) {
    if (covered[b] && before[b] != after[b]) return true;
  }
  return false;
}

// Overwrites the meaning bytes of a slot. False, and nothing done, where they are the same already.
bool FaultLab::damage_bytes(Engine& engine, FaultClass kind, Slot s,
                            const std::vector<std::uint8_t>& bytes, std::string note) {
  const KvPool& kv = engine.pools()[static_cast<std::size_t>(s.pool)].kv;
  std::vector<std::uint8_t> before(bytes.size());
  kv.read_token(s.slot, before);
  if (before == bytes) return false;
  kv.write_token(s.slot, bytes);
  FaultLog& log = engine.fault_log();
  const int fault = placed(engine, kind, std::move(note));
  log.mark(fault, s.pool, s.slot, s.slot == 0 ? 1 << 30 : 1);
  if (!is_covered(engine, s.pool, before, bytes)) {
    log.set_not_visible(fault, kNotCovered);
    return true;
  }
  placed_.push_back({.fault = fault, .at = s, .bytes = bytes});
  return true;
}

// ---------------------------------------------------------------- bytes

void FaultLab::flip(Engine& engine) {
  const auto s = pick_written(engine);
  if (!s) return;
  const EnginePool& pool = engine.pools()[static_cast<std::size_t>(s->pool)];
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pool.kv.token_bytes()));
  pool.kv.read_token(s->slot, bytes);
  const std::size_t at = random_.below(bytes.size());
  bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1u << random_.below(8)));
  damage_bytes(engine, FaultClass::byte_flip, *s, bytes,
               fmt::format("byte {} of {}:{}", at, pool.name, s->slot));
}

void FaultLab::misread(Engine& engine) {
  const auto s = pick_written(engine);
  if (!s) return;
  const EnginePool& pool = engine.pools()[static_cast<std::size_t>(s->pool)];
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pool.kv.token_bytes()));
  pool.kv.read_token(s->slot, bytes);
  std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2),
              bytes.end());
  damage_bytes(engine, FaultClass::misread_layout, *s, bytes,
               fmt::format("halves of {}:{} change places", pool.name, s->slot));
}

// The tokens of the batch stand on each other's records, and on that of the last token before.
void FaultLab::follow(Engine& engine, const ForwardBatch& batch) {
  std::size_t token = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const std::int64_t before = batch.prefix_lens[i] > 0
                                    ? engine.table().slots(batch.rows[i])[batch.prefix_lens[i] - 1]
                                    : -1;
    std::vector<Slot> last = everywhere(engine, before);  // in each pool, at most one
    for (std::int64_t n = batch.extend_lens[i]; n > 0; --n, ++token) {
      for (const Slot& to : everywhere(engine, batch.out_cache_loc[token])) {
        const auto from = std::find_if(last.begin(), last.end(),
                                       [&](const Slot& s) { return s.pool == to.pool; });
        if (from == last.end()) {
          last.push_back(to);
          continue;
        }
        engine.fault_log().follows(to.pool, from->slot, to.slot);
        *from = to;  // where the SWA pool has no place for a token, the chain goes on all the same
      }
    }
  }
}

// A late write that its slot's owner wrote over: not even the same words again would be the
// fault's.
void FaultLab::written_over(std::span<const std::int64_t> slots) {
  if (late_.empty()) return;
  for (const std::int64_t slot : slots) {
    if (!late_.contains(slot)) continue;
    for (Placed& p : placed_) p.overwritten = p.overwritten || (p.record && p.at.slot == slot);
  }
}

void FaultLab::after_write(Engine& engine, ForwardBatch& batch) {
  if (engine.monitor() == nullptr) return;
  written_over(batch.out_cache_loc);
  if (engine.options().canary.format == canary::Format::sglang && !engine.fault_log().empty()) {
    follow(engine, batch);
  }
  const auto junk = [&](FaultClass kind, Slot s, const char* what) {
    const EnginePool& pool = engine.pools()[static_cast<std::size_t>(s.pool)];
    const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pool.kv.token_bytes()), 0x7f);
    damage_bytes(engine, kind, s, bytes, fmt::format("{} of {}", what, pool.name));
  };
  const auto pool = static_cast<int>(random_.below(engine.pools().size()));
  if (due(FaultClass::pad_last_slot)) {
    const Slot last{pool, engine.pools()[static_cast<std::size_t>(pool)].kv.num_slots() - 1};
    if (is_written(engine, last) && take(engine, last)) {
      junk(FaultClass::pad_last_slot, last, "the last slot");
    }
  }
  if (due(FaultClass::pad_null_slot) && take(engine, {pool, 0})) {
    junk(FaultClass::pad_null_slot, {pool, 0}, "the null slot");
  }
}

// ---------------------------------------------------------------- tables

void FaultLab::damage_table(Engine& engine, const ForwardBatch& batch) {
  const std::int64_t page = engine.options().page;
  const auto row_of = [&](std::size_t i) { return engine.table().slots(batch.rows[i]); };
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(n)));
  };
  // The last cell is left alone: the next token's chain is computed from it.
  if (due(FaultClass::swapped_slots)) {
    if (const auto i = pick_request(batch, 3)) {
      const std::int64_t cells = batch.prefix_lens[*i] - 1;
      const std::int64_t a = below(cells), b = (a + 1 + below(cells - 1)) % cells;
      std::int32_t* const row = row_of(*i);
      if (take_everywhere(engine, row[a]) && take_everywhere(engine, row[b])) {
        std::swap(row[a], row[b]);
        engine.cells_changed(batch.rows[*i], std::min(a, b), std::max(a, b) + 1);
        const int fault =
            placed(engine, FaultClass::swapped_slots,
                   fmt::format("cells {} and {} of request {}", a, b, batch.owners[*i]));
        bind_to_request(engine, fault, batch.owners[*i]);
      }
    }
  }
  if (due(FaultClass::remap)) {
    if (const auto i = pick_request(batch, 2)) {
      const std::int64_t cell = below(batch.prefix_lens[*i] - 1);
      const std::int64_t slots = engine.pools()[0].kv.num_slots();
      std::int32_t& at = row_of(*i)[cell];
      std::int64_t to = below(slots);
      if (random_.below(4) == 0)
        to = random_.below(2) == 0 ? -1 - below(slots) : slots + below(slots);
      to = std::clamp<std::int64_t>(to, INT32_MIN, INT32_MAX);
      if (to != at && take_everywhere(engine, to)) {
        at = static_cast<std::int32_t>(to);
        engine.cells_changed(batch.rows[*i], cell, cell + 1);
        const int fault =
            placed(engine, FaultClass::remap,
                   fmt::format("cell {} of request {} points to {}", cell, batch.owners[*i], to));
        bind_to_request(engine, fault, batch.owners[*i]);
      }
    }
  }
  std::erase_if(freed_pages_,
                [&](std::int64_t p) { return engine.allocator().use(p) != PageUse::free; });
  if (due(FaultClass::stale_page) && !freed_pages_.empty()) {
    if (const auto i = pick_request(batch, page + 1)) {
      const std::int64_t first = below((batch.prefix_lens[*i] - 1) / page) * page;
      const std::int64_t stale = freed_pages_[random_.below(freed_pages_.size())];
      bool fresh = true;
      for (std::int64_t t = 0; t < page; ++t) {
        fresh = take_everywhere(engine, stale * page + t) && fresh;
      }
      if (!fresh) return;
      for (std::int64_t t = 0; t < page; ++t) {
        row_of(*i)[first + t] = static_cast<std::int32_t>(stale * page + t);
      }
      engine.cells_changed(batch.rows[*i], first, first + page);
      const int fault = placed(engine, FaultClass::stale_page,
                               fmt::format("cells {}..{} of request {} show page {}", first,
                                           first + page - 1, batch.owners[*i], stale));
      bind_to_request(engine, fault, batch.owners[*i]);
    }
  }
}

void FaultLab::table_write(Engine&, std::int64_t, std::int64_t, std::span<std::int32_t> slots) {
  if (watched_.empty()) return;
  for (const std::int32_t slot : slots) {
    if (!watched_.contains(slot)) continue;
    for (Placed& p : placed_) p.read_again = p.read_again || (p.needs_reader && p.at.slot == slot);
  }
}

// ---------------------------------------------------------------- what a forward is told

void FaultLab::before_head(Engine& engine, ForwardBatch& batch) {
  if (engine.monitor() == nullptr) return;
  damage_table(engine, batch);
  damage_batch(engine, batch);
  wrap_address(engine, batch);
}

void FaultLab::damage_batch(Engine& engine, ForwardBatch& batch) {
  for (const FaultClass kind :
       {FaultClass::wrong_position, FaultClass::wrong_token, FaultClass::draft_offset}) {
    if (!due(kind)) continue;
    std::size_t request = 0;
    const std::int64_t k = pick_token(batch, request);
    if (k < 0) return;
    const auto at = static_cast<std::size_t>(k);
    const std::int64_t slot = batch.out_cache_loc[at];
    const bool draft = kind == FaultClass::draft_offset;
    // The draft reads the token of the slot itself, not the one after it.
    if (draft && batch.draft_ids[at] == batch.input_ids[at]) continue;
    if (!take_everywhere(engine, slot)) continue;
    std::string note =
        fmt::format("position {} of request {}", batch.positions[at], batch.owners[request]);
    if (draft) {
      batch.draft_ids[at] = batch.input_ids[at];
    } else if (kind == FaultClass::wrong_position) {
      batch.positions[at] += 1 + static_cast<std::int64_t>(random_.below(64));
    } else {
      batch.input_ids[at] =
          (batch.input_ids[at] + 1 + static_cast<std::int64_t>(random_.below(kVocabulary - 1))) %
          kVocabulary;
    }
    const int fault = placed(engine, kind, std::move(note));
    if (draft) {
      engine.fault_log().mark(fault, engine.draft_pool(), slot);
    } else {
      mark(engine, fault, slot);
    }
    placed_.push_back(
        {.fault = fault, .at = {draft ? engine.draft_pool() : 0, slot}, .needs_reader = true});
    watched_.insert(slot);
  }
}

// As an address that is computed in 32 bits, scaled to the pool: the top bit is lost.
void FaultLab::wrap_address(Engine& engine, ForwardBatch& batch) {
  if (!due(FaultClass::addr_wrap32)) return;
  std::size_t request = 0;
  const std::int64_t k = pick_token(batch, request);
  if (k < 0) return;
  const auto at = static_cast<std::size_t>(k);
  const std::int64_t page = engine.options().page;
  const std::int64_t slot = batch.out_cache_loc[at];
  if (slot < 2 * page) return;
  const std::int64_t stride = engine.pools()[0].kv.layout().page_bytes[0];
  const auto address = static_cast<std::uint64_t>(slot / page * stride);
  std::uint64_t top = 1;
  while (top * 2 <= address) top *= 2;
  const auto wrapped = static_cast<std::int64_t>(address - top) / stride * page + slot % page;
  if (wrapped < page || !take_everywhere(engine, slot) || !take_everywhere(engine, wrapped)) {
    return;
  }
  batch.out_cache_loc[at] = batch.write_loc[at] = wrapped;
  const int fault = placed(engine, FaultClass::addr_wrap32,
                           fmt::format("the write of slot {} lands in {}", slot, wrapped));
  mark(engine, fault, slot);
  mark(engine, fault, wrapped);
}

// ---------------------------------------------------------------- the life of a page

void FaultLab::before_free(Engine& engine, std::span<const std::int64_t> pages) {
  if (engine.monitor() == nullptr || !due(FaultClass::write_after_free)) return;
  const std::int64_t page = engine.options().page;
  const std::int64_t slot =
      pages[random_.below(pages.size())] * page +
      static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(page)));
  const Slot s{0, slot};
  if (!is_written(engine, s)) return;
  const Record record = engine.monitor()->records(0)[static_cast<std::size_t>(slot)];
  const KvPool& kv = engine.pools()[0].kv;
  std::vector<std::uint8_t> bytes(kv.has_bytes() ? static_cast<std::size_t>(kv.token_bytes()) : 0);
  if (kv.has_bytes()) kv.read_token(slot, bytes);
  --due_[index_of(FaultClass::write_after_free)];  // issued; counted again when it lands
  engine.later(1 + random_.below(4),
               [this, &engine, s, record, bytes] { land_late_write(engine, s, record, bytes, 0); });
}

void FaultLab::land_late_write(Engine& engine, Slot s, const Record& record,
                               const std::vector<std::uint8_t>& bytes, int waited) {
  // A slot that its next owner is about to write would be written over: the write comes later
  // still.
  constexpr int kLatest = 64;  // steps
  if (waited < kLatest && engine.monitor()->state(0, s.slot) == SlotState::empty) {
    engine.later(1, [this, &engine, s, record, bytes, waited] {
      land_late_write(engine, s, record, bytes, waited + 1);
    });
    return;
  }
  ++due_[index_of(FaultClass::write_after_free)];
  const Record there = engine.monitor()->records(0)[static_cast<std::size_t>(s.slot)];
  if (there == record || !take(engine, s)) return;  // the same again would be no fault
  if (!bytes.empty()) engine.pools()[0].kv.write_token(s.slot, bytes);
  engine.monitor()->set_record(0, s.slot, record);
  const int fault = placed(engine, FaultClass::write_after_free,
                           fmt::format("the old token of slot {} lands late", s.slot));
  engine.fault_log().mark(fault, 0, s.slot);
  placed_.push_back({.fault = fault, .at = s, .record = record});
  late_.insert(s.slot);
}

void FaultLab::after_free(Engine&, std::span<const std::int64_t> pages) {
  constexpr std::size_t kRemembered = 64;
  if (spec_.empty()) return;
  freed_pages_.insert(freed_pages_.end(), pages.begin(), pages.end());
  if (freed_pages_.size() > kRemembered) {
    freed_pages_.erase(freed_pages_.begin(), freed_pages_.end() - kRemembered);
  }
}

// A decoding request gets the page that an older one decodes into. Both are preempted in the next
// step, before the page could get into the prefix cache, as an engine would that believes its
// canary. An older one, because the youngest are preempted first: a page that one of the two lost
// in this step would be handed out to a third, and be in use twice without end.
void FaultLab::after_alloc(Engine& engine, Owner owner, std::span<std::int64_t> pages) {
  if (engine.monitor() == nullptr || !due(FaultClass::double_handout) || pages.size() != 1) return;
  const auto decodes = [](const Request& r) {
    return r.phase == Request::Phase::running && r.produced > 0 && r.pages.size() > r.path.size() &&
           r.text.output_length() - r.produced > 4 && r.known() - r.length <= 1;
  };
  const std::int64_t page = engine.options().page;
  const auto is_marked = [&](std::int64_t p) {
    for (std::int64_t slot = p * page; slot < (p + 1) * page; ++slot) {
      if (engine.fault_log().marked(0, slot)) return true;
    }
    return false;
  };
  const auto& running = engine.running();
  const auto taker = std::find_if(running.begin(), running.end(),
                                  [&](const auto& r) { return r->owner == owner; });
  if (taker == running.end() || (*taker)->produced == 0 ||
      (*taker)->text.output_length() - (*taker)->produced <= 4) {
    return;
  }
  const auto victim = std::find_if(running.begin(), taker, [&](const auto& r) {
    const std::int64_t begin = (static_cast<std::int64_t>(r->pages.size()) - 1) * page;
    return decodes(*r) && begin < r->length && !is_marked(r->pages.back());
  });
  if (victim == taker) return;
  const std::int64_t stolen = (*victim)->pages.back();
  const Owner loser = (*victim)->owner;
  engine.allocator().free(pages.first(1));
  pages[0] = stolen;
  const int fault =
      placed(engine, FaultClass::double_handout,
             fmt::format("page {} of request {} goes to request {}", stolen, loser, owner));
  for (std::int64_t t = 0; t < page; ++t) mark(engine, fault, stolen * page + t, 3);
  engine.fault_log().mark_request(fault, owner);
  engine.fault_log().mark_request(fault, loser);
  engine.later(1, [&engine, owner, loser] {
    // A format with a ledger has seen it; without one, it shows to whoever reads the page.
    if (engine.options().canary.format == canary::Format::sglang) {
      canary::Batch tables;
      tables.req_to_token = engine.slots_view();
      tables.expected_tokens = engine.tokens_view();
      for (const auto& r : engine.running()) {
        if (r->owner != owner && r->owner != loser) continue;
        engine.monitor()->verify_now(canary::Moment::head, r->owner, r->row, 0, r->length, tables);
      }
    }
    engine.preempt(owner);
    engine.preempt(loser);
  });
}

// ---------------------------------------------------------------- transfers

void FaultLab::before_transfer(Engine& engine, const Transfer& transfer) {
  torn_.reset();
  if (engine.monitor() == nullptr || transfer.pages.empty()) return;
  const bool to_host = transfer.kind == Transfer::Kind::store;
  for (const FaultClass kind :
       {FaultClass::torn_transfer, FaultClass::truncated_transfer, FaultClass::side_buffer}) {
    // Few stores: most copies are never loaded back, and then show nothing.
    if (!due(kind) || (to_host && random_.below(256) != 0)) continue;
    Torn torn{.kind = kind, .to_host = to_host};
    torn.pool = static_cast<int>(random_.below(engine.pools().size()));
    const std::size_t i = random_.below(transfer.pages.size());
    torn.page = to_host ? transfer.host_pages[i] : transfer.pages[i];
    const KvPool& kv = engine.pools()[static_cast<std::size_t>(torn.pool)].kv;
    for (std::int64_t t = 0; t < engine.options().page; ++t) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kv.token_bytes()));
      if (to_host) {
        const auto from = engine.host()->bytes(torn.pool, torn.page, t);
        bytes.assign(from.begin(), from.end());
      } else {
        kv.read_token(torn.page * engine.options().page + t, bytes);
      }
      torn.before.push_back(std::move(bytes));
    }
    torn_ = std::move(torn);
    return;
  }
}

// The transfer has landed; what the fault kept back is put to what lay there before.
void FaultLab::after_transfer(Engine& engine, const Transfer& transfer) {
  if (transfer.kind == Transfer::Kind::load && !late_.empty()) {
    std::vector<std::int64_t> slots;
    for (const std::int64_t page : transfer.pages) {
      for (std::int64_t t = 0; t < engine.options().page; ++t)
        slots.push_back(page * engine.options().page + t);
    }
    written_over(slots);
  }
  if (!torn_) return;
  const Torn torn = *std::exchange(torn_, std::nullopt);
  const std::int64_t page = engine.options().page;
  const EnginePool& pool = engine.pools()[static_cast<std::size_t>(torn.pool)];
  const auto bytes = static_cast<std::size_t>(pool.kv.token_bytes());
  const auto& segments = pool.kv.layout().segments;
  // Which bytes of which tokens did not arrive.
  std::int64_t first = 0, last = page;
  if (torn.kind == FaultClass::torn_transfer) {
    first = static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(page)));
    last = first + 1;
  } else if (torn.kind == FaultClass::truncated_transfer) {
    first = page - 1 - static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(page)));
  }
  std::vector<bool> lost(bytes, torn.kind == FaultClass::truncated_transfer);
  if (torn.kind == FaultClass::torn_transfer) {
    std::fill(lost.begin() + static_cast<std::ptrdiff_t>(bytes / 2), lost.end(), true);
  } else if (torn.kind == FaultClass::side_buffer) {
    const auto side = static_cast<std::size_t>(segments.back().bytes);
    const auto layer = static_cast<std::size_t>(pool.kv.layout().token_bytes());
    for (std::size_t end = layer; end <= bytes; end += layer) {
      std::fill(lost.begin() + static_cast<std::ptrdiff_t>(end - side),
                lost.begin() + static_cast<std::ptrdiff_t>(end), true);
    }
  }
  int fault = -1;
  bool visible = false;
  for (std::int64_t t = first; t < last; ++t) {
    const std::int64_t slot = torn.page * page + t;
    const Slot s{torn.to_host ? FaultLog::kHostPools + torn.pool : torn.pool, slot};
    std::vector<std::uint8_t> now(bytes);
    const auto host =
        torn.to_host ? engine.host()->bytes(torn.pool, torn.page, t) : std::span<std::uint8_t>{};
    if (torn.to_host) {
      now.assign(host.begin(), host.end());
    } else {
      pool.kv.read_token(slot, now);
    }
    const std::vector<std::uint8_t> arrived = now;
    const auto& before = torn.before[static_cast<std::size_t>(t)];
    for (std::size_t b = 0; b < bytes; ++b) {
      if (lost[b]) now[b] = before[b];
    }
    if (now == arrived || (!torn.to_host && !is_written(engine, s))) continue;
    if (torn.to_host) {
      std::copy(now.begin(), now.end(), host.begin());
    } else {
      pool.kv.write_token(slot, now);
    }
    if (fault < 0) {
      fault = placed(
          engine, torn.kind,
          fmt::format("{} page {} of {}, from token {}",
                      torn.to_host ? "stored to host" : "loaded to", torn.page, pool.name, t));
      if (torn.to_host) {
        engine.fault_log().set_reason_if_masked(fault, "the host's copy was never loaded back");
      }
    }
    visible = visible || is_covered(engine, torn.pool, arrived, now);
    engine.fault_log().mark(fault, s.pool, slot);
    placed_.push_back({.fault = fault, .at = s, .bytes = torn.to_host ? decltype(now){} : now});
  }
  if (fault >= 0 && !visible) engine.fault_log().set_not_visible(fault, kNotCovered);
}

// ---------------------------------------------------------------- the end

// What no check can have seen, and why. Everything else that is still pending was missed.
void FaultLab::drained(Engine& engine) {
  FaultLog& log = engine.fault_log();
  for (const Placed& p : placed_) {
    if (log.faults()[static_cast<std::size_t>(p.fault)].state != FaultState::pending) continue;
    // Where the life of the slot has ended, or the copy is on the host, the log knows enough.
    if (p.at.pool >= FaultLog::kHostPools || !log.marked(p.at.pool, p.at.slot)) continue;
    const EnginePool& pool = engine.pools()[static_cast<std::size_t>(p.at.pool)];
    if (p.record &&
        (p.overwritten ||
         engine.monitor()->records(p.at.pool)[static_cast<std::size_t>(p.at.slot)] != *p.record)) {
      log.set_masked(p.fault, "the slot's owner wrote over it before a check came to it");
    } else if (p.record &&
               engine.allocator().use(p.at.slot / engine.options().page) == PageUse::free) {
      log.set_not_visible(p.fault, "the slot was never handed out again");
    } else if (p.needs_reader && !p.read_again) {
      log.set_not_visible(p.fault,
                          "the record agrees with itself, and nobody came to read the slot again");
    } else if (!p.bytes.empty()) {
      std::vector<std::uint8_t> now(p.bytes.size());
      pool.kv.read_token(p.at.slot, now);
      if (now != p.bytes) {
        log.set_masked(p.fault, "the bytes were written over before a check came to them");
      }
    }
  }
  for (std::size_t i = 0; i < kFaultClasses; ++i) {
    const auto kind = static_cast<FaultClass>(i);
    std::int64_t left = due_[i];
    left += std::count_if(waiting_.begin(), waiting_.end(),
                          [kind](const Planned& p) { return p.kind == kind; });
    for (; left > 0; --left) {
      log.add_not_placed(std::string(kClasses[i].name), engine.now(),
                         kind == FaultClass::pad_null_slot
                             ? "the null slot of every pool is dirty already: one report"
                             : "the replay gave no opportunity for it");
    }
  }
}

}  // namespace serinus::engine
