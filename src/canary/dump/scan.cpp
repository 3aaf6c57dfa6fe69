// What a dump says about itself: the checks of a sweep, and of a walk along each row, made without
// the memory that they are about.
#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <map>
#include <utility>

#include <serinus/canary_dump.h>
#include <serinus/canary_sglang.h>

#include "canary/serinus/judge.h"
#include "canary/serinus/pool.h"
#include "canary/sglang/hash.h"
#include "canary/sglang/kv_runs.h"

namespace serinus::canary {

namespace {

constexpr std::int64_t kChunkBytes = 4 << 20;

// What the record before a cell is: the index of its slot, or one of these.
constexpr std::int64_t kAnchor = -1, kUnknown = -2;

class Scanner {
 public:
  Scanner(const Dump& dump, std::size_t limit) : dump_(dump), limit_(limit) {}

  ScanResult run() {
    const int pools = static_cast<int>(dump_.pools.size());
    for (int pool = 0; pool < pools; ++pool) {
      if (dump_.format == Format::serinus) check_records(pool);
      check_bytes(pool);
    }
    for (const DumpRow& row : dump_.rows) {
      for (int pool = 0; pool < pools; ++pool) {
        if (row.pools.empty() || std::ranges::count(row.pools, pool) > 0) walk(pool, row);
      }
    }
    for (const DumpPool& p : dump_.pools) {
      result_.slots += std::ssize(p.slots);
      result_.written += std::ranges::count(p.states, SlotState::written);
    }
    add_events();
    return std::move(result_);
  }

 private:
  struct Place {
    int pool;
    std::int64_t slot;
    std::int64_t row, cell;  // where there is no slot; else -1
    auto operator<=>(const Place&) const = default;
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  const DumpPool& at(int pool) const { return dump_.pools[static_cast<std::size_t>(pool)]; }

  /// One violation a slot, or a cell where there is no slot. Null beyond the limit.
  Violation* report(Place place, Moment moment, Reason reasons) {
    if (place.slot >= 0) place.row = place.cell = -1;
    const auto known = known_.find(place);
    if (known != known_.end()) {
      Violation& v = result_.violations[known->second];
      v.reasons |= reasons;
      return &v;
    }
    if (result_.violations.size() >= limit_) {
      ++result_.more;
      return nullptr;
    }
    known_.emplace(place, result_.violations.size());
    Violation v;
    v.reasons = reasons;
    v.moment = moment;
    v.format = dump_.format;
    v.pool = place.pool;
    v.slot = place.slot;
    v.first_step = v.last_step = dump_.step;
    const DumpPool& p = at(place.pool);
    if (const std::int64_t i = p.find(place.slot); i >= 0) describe(p, index(i), v);
    result_.violations.push_back(std::move(v));
    return &result_.violations.back();
  }
  Violation* report_slot(int pool, std::int64_t slot, Reason reasons) {
    return report({pool, slot, -1, -1}, Moment::sweep, reasons);
  }
  Violation* report_cell(int pool, std::int64_t slot, Reason reasons, const DumpRow& row,
                         std::int64_t cell) {
    Violation* v = report({pool, slot, row.row, cell}, Moment::head, reasons);
    if (v == nullptr) return v;
    v->request = row.owner;
    v->row = row.row;
    v->expected_position = cell;
    return v;
  }

  void describe(const DumpPool& p, std::size_t i, Violation& v) const {
    const Record& r = p.records[i];
    if (dump_.format == Format::sglang) {
      const auto s = std::bit_cast<sglang::Record>(r);
      v.stored_token = s.token;
      v.stored_position = s.position;
      v.stored_chain = static_cast<std::uint64_t>(s.prev_hash);
      v.stored_digest = static_cast<std::uint64_t>(s.real_kv_hash);
      return;
    }
    describe_slot(r, p.ledger[i], v);
  }

  /// The last events of each slot at fault, in one pass a pool.
  void add_events() {
    for (int pool = 0; pool < static_cast<int>(dump_.pools.size()); ++pool) {
      const std::vector<SlotEvent>& events = at(pool).events;
      for (auto e = events.rbegin(); e != events.rend(); ++e) {
        const auto known = known_.find({pool, e->slot, -1, -1});
        if (known == known_.end()) continue;
        std::vector<LedgerEvent>& last = result_.violations[known->second].events;
        if (last.size() < kEventsInAViolation) last.push_back(e->event);
      }
    }
    for (Violation& v : result_.violations) std::ranges::reverse(v.events);
  }

  // ---- records against the ledger

  /// The record is of the slot's present life, as far as a dump can tell.
  static bool is_sound(const DumpPool& p, std::int64_t i) {
    const Record& r = p.records[index(i)];
    const LedgerEntry& e = p.ledger[index(i)];
    return p.states[index(i)] == SlotState::written && r.chain != 0 &&
           r.generation == e.generation && r.position + 1 == e.written;
  }

  static std::int64_t predecessor(const DumpPool& p, const LedgerEntry& e) {
    if (e.prev == -1 && e.written == 1) return kAnchor;
    const std::int64_t i = e.prev >= 0 ? p.find(e.prev) : -1;
    if (i < 0 || !is_sound(p, i)) return kUnknown;
    const LedgerEntry& before = p.ledger[index(i)];
    const bool is_it = before.written + 1 == e.written && !newer(before.generation, e.generation);
    return is_it ? i : kUnknown;
  }

  void check_records(int pool) {
    const DumpPool& p = at(pool);
    for (std::size_t i = 0; i < p.slots.size(); ++i) {
      const Record& r = p.records[i];
      const LedgerEntry& e = p.ledger[i];
      if (p.slots[i] == 0) {
        if (p.spec.null_slot == NullSlot::clean && r != Record{}) {
          report_slot(pool, 0, Reason::null_slot_dirty);
        }
        continue;
      }
      if (p.states[i] != SlotState::written) {
        if (r != Record{}) report_slot(pool, p.slots[i], Reason::foreign_write);
        continue;
      }
      Reason reasons = Reason::none;
      if (r.generation != e.generation) {
        reasons |= Reason::foreign_write;
      } else if (r.position + 1 != e.written) {
        reasons |= Reason::position;
      }
      std::uint64_t expected = 0;
      if (const std::int64_t before = predecessor(p, e); before != kUnknown) {
        expected = chain_next(before == kAnchor ? kChainAnchor : p.records[index(before)].chain,
                              r.token, e.written - 1);
        if (expected != r.chain) reasons |= Reason::chain;
      } else if (r.chain == 0) {
        reasons |= Reason::chain;
      }
      if (reasons == Reason::none) continue;
      if (Violation* v = report_slot(pool, p.slots[i], reasons)) {
        v->expected_position = std::int64_t{e.written} - 1;
        v->expected_chain = expected;
        v->prev_slot = e.prev;
      }
    }
  }

  // ---- bytes against records

  void check_bytes(int pool) {
    const DumpPool& p = at(pool);
    if (p.token_bytes == 0 || p.byte_slots.empty()) return;
    // Addresses that tell the buffers apart; nothing is read there.
    const std::size_t per_layer = p.spec.layout.page_bytes.size();
    std::vector<std::uint8_t> anchors(per_layer * index(p.spec.num_layers));
    std::vector<KvBuffer> buffers;
    for (std::size_t b = 0; b < anchors.size(); ++b) {
      buffers.push_back({&anchors[b], p.spec.layout.page_bytes[b % per_layer], 0});
    }
    std::vector<Source> sources = sources_of(p.spec.layout, p.spec.num_layers, buffers);
    const std::vector<Source> runs =
        dump_.format == Format::sglang ? sglang::kv_runs(sources) : std::vector<Source>{};
    const std::int64_t chunk = std::max<std::int64_t>(1, kChunkBytes / p.token_bytes);
    std::vector<std::uint8_t> rows;
    for (std::int64_t first = 0; first < std::ssize(p.byte_slots); first += chunk) {
      const std::int64_t n = std::min(chunk, std::int64_t{std::ssize(p.byte_slots)} - first);
      rows.resize(index(n * p.token_bytes));
      dump_.read_bytes(pool, first, n, rows.data());
      // In a dump the sources of a token lie one behind the other.
      for (Source& s : sources) {
        s.base = rows.data();
        s.buffer_bytes = std::ssize(rows);
        s.page_stride = p.token_bytes;
        s.offset = s.key_offset;
        s.token_stride = 0;
      }
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t slot = p.byte_slots[index(first + i)];
        if (dump_.format == Format::sglang) {
          compare_fold(pool, slot, runs, rows.data() + i * p.token_bytes);
        } else {
          compare_digest(pool, slot, sources, i);
        }
      }
    }
  }

  void compare_digest(int pool, std::int64_t slot, const std::vector<Source>& sources,
                      std::int64_t row) {
    const DumpPool& p = at(pool);
    const std::size_t i = index(p.find(slot));
    const bool is_null = slot == 0;
    if (is_null ? p.spec.null_slot != NullSlot::clean : p.states[i] != SlotState::written) return;
    ++result_.bytes_checked;
    const std::uint64_t stamped = is_null ? p.null_digest : p.records[i].kv_digest;
    const std::uint64_t now = kv_digest(sources, 1, row, dump_.depth).value_or(0);
    if (now == stamped) return;
    Violation* v = report_slot(pool, slot, is_null ? Reason::null_slot_dirty : Reason::kv_bytes);
    if (v == nullptr) return;
    v->expected_digest = now;
    v->stored_digest = stamped;
    if (is_null) return;
    v->expected_position = std::int64_t{p.ledger[i].written} - 1;
    if (p.source_digests.empty()) return;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const std::uint32_t word = p.source_digests[i * sources.size() + s];
      const auto c = digest_contribution(sources[s], 1, row, dump_.depth);
      if (word == 0 || !c || word == hash::source_word(*c)) continue;
      const std::size_t segments = p.spec.layout.segments.size();
      v->layer = static_cast<int>(s / segments);
      v->segment = p.spec.layout.segments[s % segments].name;
      break;
    }
  }

  void compare_fold(int pool, std::int64_t slot, const std::vector<Source>& runs,
                    const std::uint8_t* row) {
    const DumpPool& p = at(pool);
    const std::size_t i = index(p.find(slot));
    if (p.states[i] != SlotState::written || slot == 0) return;
    ++result_.bytes_checked;
    std::uint64_t fold = 0;
    for (const Source& run : runs) {
      const std::int64_t n = dump_.depth == Depth::partial ? sglang::kPartialBytes : run.bytes;
      std::uint64_t f = 0;
      for (std::int64_t w = 0; w < n; w += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, row + run.key_offset + w, 8);
        f = sglang::splitmix64(f ^ word);
      }
      fold = sglang::splitmix64(fold ^ f);
    }
    const auto stamped =
        static_cast<std::uint64_t>(std::bit_cast<sglang::Record>(p.records[i]).real_kv_hash);
    if (fold == stamped) return;
    if (Violation* v = report_slot(pool, slot, Reason::kv_bytes)) v->expected_digest = fold;
  }

  // ---- rows

  static constexpr std::int64_t kEvicted = -1, kOutside = -2;

  /// Where a cell of the table lies in this pool.
  static std::int64_t translate(const DumpPool& p, std::int64_t slot) {
    if (p.spec.kind == PoolKind::swa) {
      if (!p.full_to_swa.empty()) {
        if (slot < 0 || slot >= std::ssize(p.full_to_swa)) return kOutside;
        slot = p.full_to_swa[index(slot)];
      }
      if (slot == 0) return kEvicted;
    }
    return slot < 0 || slot >= p.spec.num_slots ? kOutside : slot;
  }

  void walk(int pool, const DumpRow& row) {
    const DumpPool& p = at(pool);
    const std::int64_t length = std::ssize(row.cells);
    const bool windowed = p.spec.kind == PoolKind::swa && p.spec.window > 0;
    // The tokens that a next one would look back at.
    const std::int64_t first =
        windowed ? std::max<std::int64_t>(0, length - p.spec.window + 1) : std::int64_t{0};
    std::int64_t before = first == 0 ? kAnchor : kUnknown;
    for (std::int64_t cell = first; cell < length; ++cell) {
      const std::int64_t slot = translate(p, row.cells[index(cell)]);
      ++result_.cells;
      if (slot == kEvicted) {
        before = kUnknown;
        continue;
      }
      if (slot == kOutside) {
        report_cell(pool, -1, Reason::out_of_range, row, cell);
        before = kUnknown;
        continue;
      }
      const std::int64_t i = p.find(slot);
      if (i < 0 || p.states[index(i)] != SlotState::written) {
        report_cell(pool, slot, Reason::stale, row, cell);
        before = kUnknown;
        continue;
      }
      before = check_cell(pool, row, cell, i, before) ? i : kUnknown;
    }
  }

  /// Whether the next cell can be judged by this one.
  bool check_cell(int pool, const DumpRow& row, std::int64_t cell, std::int64_t i,
                  std::int64_t before) {
    const DumpPool& p = at(pool);
    const Record& r = p.records[index(i)];
    const std::int64_t told = cell + p.spec.token_offset;
    const std::int64_t token =
        told >= 0 && told < std::ssize(row.tokens) ? row.tokens[index(told)] : -1;
    Reason reasons = Reason::none;
    std::uint64_t expected = 0;
    if (dump_.format == Format::serinus) {
      if (r.position != cell) reasons |= Reason::position;
      if (token >= 0 && r.token != token) reasons |= Reason::token;
      if (before != kUnknown) {
        expected = chain_next(before == kAnchor ? kChainAnchor : p.records[index(before)].chain,
                              token >= 0 ? static_cast<std::uint32_t>(token) : r.token,
                              static_cast<std::uint32_t>(cell));
        if (expected != r.chain) reasons |= Reason::chain;
      }
    } else {
      const auto s = std::bit_cast<sglang::Record>(r);
      if (s.position != cell) reasons |= Reason::position;
      if (token >= 0 && s.token != token) reasons |= Reason::token;
      if (before != kUnknown) {
        expected =
            before == kAnchor
                ? sglang::hash::kAnchorHash
                : sglang::chain_hash(std::bit_cast<sglang::Record>(p.records[index(before)]));
        if (expected != static_cast<std::uint64_t>(s.prev_hash)) reasons |= Reason::chain;
      }
    }
    if (reasons == Reason::none) return dump_.format == Format::sglang || is_sound(p, i);
    if (Violation* v = report_cell(pool, p.slots[index(i)], reasons, row, cell)) {
      v->expected_token = token;
      v->expected_chain = expected;
      if (before >= 0) v->prev_slot = p.slots[index(before)];
    }
    return false;
  }

  const Dump& dump_;
  std::size_t limit_;
  ScanResult result_;
  std::map<Place, std::size_t> known_;
};

}  // namespace

ScanResult scan(const Dump& dump, std::size_t limit) {
  return Scanner(dump, limit).run();
}

}  // namespace serinus::canary
