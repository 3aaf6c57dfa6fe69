// Reading back: cells of a request's table row, slots of the ledger, the null slot.
#include <algorithm>
#include <array>

#include "base/parallel.h"
#include "canary/serinus/backend.h"
#include "canary/serinus/lanes.h"

namespace serinus::canary {

namespace {

constexpr std::int64_t kChunk = 256;  ///< cells that are translated, and bytes compared, at once

using Before = ChainBefore;

/// The fast path: cells whose record is this reader's, of a life that it may read, with the right
/// position, token and chain. Everything that it does not vouch for is examined apart.
struct SoundRun {
  const Record* records;
  const std::uint8_t* marks;
  Owner owner;
  bool attached;  ///< the cells are attached, at `epoch`
  std::uint32_t epoch;
  const std::int32_t* tokens;  ///< of the row, where any are known
  std::int64_t token_stride, token_offset, valid;

  bool is_stranger(const Record& r) const noexcept {
    return (r.owner != owner) & !(attached & !newer(r.generation, epoch));
  }

  /// How many of the n cells from `cell` on, in `slots`, are sound; `before` moves along. Lines of
  /// slots[i + kLinesAhead] are asked for, so the array is that much longer.
  template <bool kTokens>
  std::int64_t length(const std::int32_t* slots, std::int64_t n, std::int64_t cell,
                      Before& before) const {
    std::int64_t i = 0;
    while (i < n) {
      if (before.usable && n - i >= kGroup && group<kTokens>(slots + i, cell + i, before)) {
        i += kGroup;
        continue;
      }
      const std::int64_t end = std::min(n, i + kGroup);
      i += one_by_one<kTokens>(slots + i, end - i, cell + i, before);
      if (i < end) break;
    }
    return i;
  }

  RecordGroup group_at(const std::int32_t* slots, std::int64_t cell) const {
    return {.records = records,
            .marks = marks,
            .slots = slots,
            .position = static_cast<std::uint32_t>(cell)};
  }

  /// Whether kGroup cells are sound that one owner wrote in one life, as most neighbours are. False
  /// where that is not so, or more has to be looked at.
  template <bool kTokens>
  bool group(const std::int32_t* slots, std::int64_t cell, Before& before) const {
    if (slots[0] < 0 || is_stranger(records[slots[0]])) return false;
    RecordGroup g = group_at(slots, cell);
    if constexpr (kTokens) {
      const std::int64_t at = cell + token_offset;
      if (at < valid) {
        if (at < 0 || at + kGroup > valid || token_stride != 1) return false;
        g.tokens = tokens + at;
      }
    }
    if (!group_holds(g, before.chain)) return false;
    before = {true, before.chain, slots[kGroup - 1]};
    return true;
  }

  template <bool kTokens>
  std::int64_t one_by_one(const std::int32_t* slots, std::int64_t n, std::int64_t cell,
                          Before& before) const {
    std::uint64_t chain = before.chain;
    bool usable = before.usable;
    const RecordGroup ahead = group_at(slots, cell);
    std::int64_t i = 0;
    for (; i < n; ++i) {
      ahead.ask_for(i + kLinesAhead);
      const std::int32_t slot = slots[i];
      if (slot < 0) break;
      const Record& r = records[slot];
      const auto position = static_cast<std::uint32_t>(cell + i);
      // chain_value() but for its last step, which changes five of 2^61 values: examine() takes it.
      const std::uint64_t now =
          hash::fold(hash::chain_step(chain, hash::token_term(r.token, r.position)));
      bool bad = is_stranger(r) | (r.chain == 0);
      bad |= marks[slot] != hash::mark(r);
      bad |= r.position != position;
      bad |= usable & (now != r.chain);
      if constexpr (kTokens) {
        const std::int64_t at = cell + i + token_offset;
        if (at >= 0 && at < valid) {
          const std::int32_t token = tokens[at * token_stride];
          bad |= (token >= 0) & (r.token != static_cast<std::uint32_t>(token));
        }
      }
      if (bad) break;
      chain = r.chain;
      usable = true;
    }
    if (i > 0) before = {true, chain, slots[i - 1]};
    return i;
  }
};

}  // namespace

/// Slots whose bytes are still to be compared, and who reads them.
struct SerinusBackend::Pending {
  Moment moment = Moment::head;
  Owner request = 0;
  std::int64_t row = -1;
  std::vector<std::int64_t> slots;
};

/// One request's row, as one pool sees it.
struct SerinusBackend::Walk {
  const Pool& p;
  Owner owner;
  std::int64_t row;
  const Table& table;
  const Table& expected;
  std::int64_t valid;
  const Reader* reader;

  enum class Kind { slot, absent, outside };
  struct Place {
    Kind kind = Kind::absent;
    std::int64_t slot = -1;
  };

  Place place(std::int64_t cell) const noexcept {
    std::int64_t slot = table.at(row, cell);
    if (p.spec.kind == PoolKind::swa && !p.spec.full_to_swa.empty()) {
      if (slot < 0 || slot >= static_cast<std::int64_t>(p.spec.full_to_swa.size())) {
        return {Kind::outside, slot};
      }
      slot = p.spec.full_to_swa[static_cast<std::size_t>(slot)];
    }
    if (p.spec.kind == PoolKind::swa && slot == 0) return {};  // evicted from the window
    return {p.has(slot) ? Kind::slot : Kind::outside, slot};
  }

  std::int64_t token(std::int64_t cell) const noexcept {
    const std::int64_t at = cell + p.spec.token_offset;
    return at >= 0 && at < valid ? expected.at(row, at) : -1;
  }

  /// The reader's right to the slot: none = it holds what the reader was given.
  Verdict right(std::int64_t cell, std::int64_t slot) const {
    const Attached::Segment* s = reader != nullptr ? reader->attached.covering(cell) : nullptr;
    return judge_right(p.records[slot], p.ledger[slot], p.sealed(slot),
                       {.owner = owner,
                        .claims = p.claims(slot, owner),
                        .attached = s != nullptr,
                        .epoch = s != nullptr ? s->epoch : 0});
  }

  Verdict content(std::int64_t slot, std::int64_t cell, const Before& before) const {
    return judge_content(p.records[slot], p.ledger[slot], p.sealed(slot), cell, token(cell),
                         before);
  }

  /// The chain before `cell`, if its predecessor holds what the reader was given.
  Before before(std::int64_t cell) const {
    if (cell == 0) return {true, kChainAnchor, -1};
    const Place at = place(cell - 1);
    if (at.kind != Kind::slot) return {false, 0, at.slot};
    const Record& r = p.records[at.slot];
    const bool sound =
        p.sealed(at.slot) && r.position == cell - 1 && right(cell - 1, at.slot).has_content;
    return {sound, r.chain, at.slot};
  }

  bool breaks(std::int64_t cell) const {
    const Place at = place(cell);
    return at.kind == Kind::slot &&
           any(content(at.slot, cell, before(cell)).reasons & Reason::chain);
  }

  /// A cell that holds a stranger's record breaks the chain twice: at itself and after itself. Only
  /// the first is its own fault. Walking from the start of the row tells them apart; a walk that
  /// starts in the middle goes back to where the breaks begin.
  bool is_first_break(std::int64_t cell) const {
    std::int64_t first = cell;
    while (first > 0 && breaks(first - 1)) --first;
    return (cell - first) % 2 == 0;
  }
};

void SerinusBackend::verify_cells(int pool, Moment moment, Owner owner, std::int64_t row,
                                  std::int64_t begin, std::int64_t end, const Table& table,
                                  const Table& expected, std::int64_t valid) {
  Pool& p = at(pool);
  if (begin < 0) begin = 0;
  if (begin >= end) return;
  if (!table.has_row(row)) {
    report_out_of_range(pool, -1, moment, owner, row, -1);
    return;
  }
  if (end > table.columns) {
    report_out_of_range(pool, -1, moment, owner, row, table.columns);
    end = table.columns;
    if (begin >= end) return;
  }
  valid = expected.has_row(row) ? std::min(valid, expected.columns) : 0;
  const auto found = readers_.find(owner);
  const Walk walk{
      p, owner, row, table, expected, valid, found != readers_.end() ? &found->second : nullptr};
  Pending pending{moment, owner, row, {}};
  const bool bytes = options_.depth != Depth::none;

  std::array<std::int32_t, kChunk + kLinesAhead> slots;  // negative: none, or none that exists
  Before before = walk.before(begin);
  for (std::int64_t cell = begin; cell < end;) {
    // A run of cells that the reader may read by the same right.
    const Attached::Segment* segment =
        walk.reader != nullptr ? walk.reader->attached.covering(cell) : nullptr;
    const std::int64_t border =
        walk.reader != nullptr ? std::min(end, walk.reader->attached.next_border(cell)) : end;
    const std::int64_t n = std::min(kChunk, border - cell);
    const std::int64_t seen = std::min(n + kLinesAhead, end - cell);
    if (p.spec.kind != PoolKind::swa && table.column_stride == 1) {
      const std::int32_t* cells = table.data + row * table.row_stride + cell;
      const auto count = static_cast<std::uint32_t>(p.spec.num_slots);
      for (std::int64_t i = 0; i < seen; ++i) {
        const bool inside = static_cast<std::uint32_t>(cells[i]) < count;
        slots[static_cast<std::size_t>(i)] = inside ? cells[i] : -1;
      }
    } else {
      for (std::int64_t i = 0; i < seen; ++i) {
        const Walk::Place at = walk.place(cell + i);
        slots[static_cast<std::size_t>(i)] =
            at.kind == Walk::Kind::slot ? static_cast<std::int32_t>(at.slot) : -1;
      }
    }
    for (std::int64_t i = seen; i < n + kLinesAhead; ++i) slots[static_cast<std::size_t>(i)] = -1;
    SoundRun run{p.records.data(),
                 p.marks.data(),
                 owner,
                 segment != nullptr,
                 segment != nullptr ? segment->epoch : 0,
                 expected.has_row(row) ? expected.data + row * expected.row_stride : nullptr,
                 expected.column_stride,
                 p.spec.token_offset,
                 valid};
    for (std::int64_t i = 0; i < n;) {
      const std::int32_t* from = slots.data() + i;
      const std::int64_t sound = valid > 0 ? run.length<true>(from, n - i, cell + i, before)
                                           : run.length<false>(from, n - i, cell + i, before);
      if (bytes) pending.slots.insert(pending.slots.end(), from, from + sound);
      stats.records_verified += static_cast<std::uint64_t>(sound);
      i += sound;
      if (i < n) {
        before = examine(walk, pool, moment, cell + i, cell + i == begin, before, pending);
        ++i;
      }
    }
    if (bytes) compare_bytes(pool, pending);
    cell += n;
  }
}

ChainBefore SerinusBackend::examine(const Walk& walk, int pool, Moment moment, std::int64_t cell,
                                    bool first, const Before& before, Pending& pending) {
  Pool& p = at(pool);
  const Walk::Place at = walk.place(cell);
  if (at.kind != Walk::Kind::slot) {
    if (at.kind == Walk::Kind::outside) {
      report_out_of_range(pool, at.slot, moment, walk.owner, walk.row, cell);
    }
    return {};
  }
  const std::int64_t token = walk.token(cell);
  Verdict v = walk.right(cell, at.slot);
  if (v.has_content) {
    const Verdict content = walk.content(at.slot, cell, before);
    v.reasons |= content.reasons;
    v.expected_chain = content.expected_chain;
    if (first && any(v.reasons & Reason::chain) && p.sealed(at.slot) &&
        !walk.is_first_break(cell)) {
      v.reasons = without(v.reasons, Reason::chain);
    }
    if (options_.depth != Depth::none) pending.slots.push_back(at.slot);
    ++stats.records_verified;
  }
  if (!any(v.reasons)) return {true, p.records[at.slot].chain, at.slot};
  Violation violation = describe(pool, at.slot, moment, v.reasons);
  violation.request = walk.owner;
  violation.row = walk.row;
  violation.expected_position = cell;
  violation.expected_token = token;
  violation.expected_chain = v.expected_chain;
  violation.prev_slot = before.slot;
  if (any(v.reasons & Reason::stale)) violation.expected_owner = walk.owner;
  if (at.slot == 0) {
    reporter_.report(std::move(violation), life_of_cell(walk.row, cell));
  } else {
    report(std::move(violation));
  }
  return {};
}

void SerinusBackend::verify_slots(int pool, Moment moment, std::span<const std::int64_t> slots) {
  Pool& p = at(pool);
  Pending pending{moment, 0, -1, {}};
  for (const std::int64_t slot : slots) {
    const LedgerEntry& e = p.ledger[slot];
    if (e.written == 0) {
      ++stats.skipped_empty;
      continue;
    }
    ++stats.records_verified;
    if (options_.depth != Depth::none) pending.slots.push_back(slot);
    if (p.sealed(slot)) continue;
    // Somebody wrote it. The predecessor, if it is still the one, says how.
    Before before{e.prev == -1 && e.written == 1, kChainAnchor, e.prev};
    if (p.has(e.prev)) {
      const LedgerEntry& prev = p.ledger[e.prev];
      before.usable = prev.owner != 0 && prev.written + 1 == e.written &&
                      !newer(prev.generation, e.generation) && p.sealed(e.prev);
      before.chain = p.records[e.prev].chain;
    }
    const std::int64_t position = std::int64_t{e.written} - 1;
    const Verdict v = judge_content(p.records[slot], e, p.sealed(slot), position, -1, before);
    Violation violation = describe(pool, slot, moment, v.reasons);
    violation.expected_position = position;
    violation.expected_chain = v.expected_chain;
    violation.prev_slot = e.prev;
    report(std::move(violation));
  }
  compare_bytes(pool, pending);
}

void SerinusBackend::digest(const Pool& pool, std::span<const std::int64_t> slots,
                            std::vector<std::uint64_t>& digests,
                            std::vector<std::uint64_t>* contributions) const {
  digests.resize(slots.size());
  const std::size_t sources = pool.sources.size();
  if (contributions != nullptr) contributions->resize(slots.size() * sources);
  // A thread costs tens of microseconds: worth it from about a megabyte on.
  const std::int64_t grain = std::max<std::int64_t>(1, (1 << 20) / (pool.slot_bytes + 1));
  parallel_for(options_.threads, static_cast<std::int64_t>(slots.size()), grain,
               [&](std::int64_t begin, std::int64_t end) {
                 const auto b = static_cast<std::size_t>(begin);
                 digest_slots(pool.sources, pool.spec.layout.page_size, options_.depth,
                              slots.subspan(b, static_cast<std::size_t>(end - begin)),
                              digests.data() + b,
                              contributions ? contributions->data() + b * sources : nullptr);
               });
}

void SerinusBackend::compare_bytes(int pool, Pending& pending) {
  Pool& p = at(pool);
  if (pending.slots.empty()) return;
  std::vector<std::uint64_t> digests;
  digest(p, pending.slots, digests, nullptr);
  stats.bytes_digested +=
      static_cast<std::uint64_t>(p.slot_bytes) * static_cast<std::uint64_t>(pending.slots.size());
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const std::int64_t slot = pending.slots[i];
    if (digests[i] == p.records[slot].kv_digest) continue;
    Violation v = describe(pool, slot, pending.moment, Reason::kv_bytes);
    v.request = pending.request;
    v.row = pending.row;
    v.expected_position = std::int64_t{p.ledger[slot].written} - 1;
    v.expected_digest = digests[i];
    if (options_.source_digests) {
      std::vector<std::uint64_t> now, one;
      digest(p, {&slot, 1}, one, &now);
      for (std::size_t s = 0; s < now.size(); ++s) {
        const auto stamped = p.source_digests[slot * static_cast<std::int64_t>(now.size()) +
                                              static_cast<std::int64_t>(s)];
        if (stamped == 0 || stamped == hash::source_word(now[s])) continue;
        const std::size_t segments = p.spec.layout.segments.size();
        v.layer = static_cast<int>(s / segments);
        v.segment = p.spec.layout.segments[s % segments].name;
        break;
      }
    }
    report(std::move(v));
  }
  pending.slots.clear();
}

void SerinusBackend::verify_null(int pool, Moment moment) {
  Pool& p = at(pool);
  if (p.spec.null_slot != NullSlot::clean) return;
  bool dirty = p.records[0] != Record{};
  std::uint64_t digest = 0;
  if (!p.sources.empty()) {
    const std::int64_t slot = 0;
    digest_slots(p.sources, p.spec.layout.page_size, options_.depth, {&slot, 1}, &digest);
    dirty = dirty || digest != p.null_digest;
  }
  if (!dirty) return;
  Violation v = describe(pool, 0, moment, Reason::null_slot_dirty);
  v.expected_digest = digest;
  v.stored_digest = p.null_digest;
  report(std::move(v));
}

// ---------------------------------------------------------------- what is due when

std::vector<int> SerinusBackend::pools_of(const Batch& batch) const {
  std::vector<int> pools(batch.pools.begin(), batch.pools.end());
  if (batch.pools.empty()) {
    for (int i = 0; i < static_cast<int>(pools_.size()); ++i) {
      if (is_attached(i)) pools.push_back(i);
    }
  }
  return pools;
}

void SerinusBackend::verify_batch(const Batch& batch, Moment moment) {
  const Table table = table_of(batch.req_to_token, "req_to_token");
  const Table expected = table_of(batch.expected_tokens, "expected_tokens");
  for (const int pool : pools_of(batch)) {
    Pool& p = at(pool);
    // Cells that attention is going to read: all of the prefix, or what the window leaves.
    const auto first_cell = [&](std::int64_t prefix) {
      const bool windowed = p.spec.kind == PoolKind::swa && p.spec.window > 0;
      return windowed ? std::max<std::int64_t>(0, prefix - p.spec.window + 1) : std::int64_t{0};
    };
    const auto prefix_of = [&](std::size_t i) {
      return std::clamp<std::int64_t>(batch.prefix_lens[i], 0, table.columns);
    };
    std::int64_t total = 0;
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      if (batch.rows[i] == 0) continue;
      const std::int64_t prefix = prefix_of(i);
      total += prefix - first_cell(prefix);
      if (prefix != batch.prefix_lens[i]) {
        report_out_of_range(pool, -1, moment, batch.owners[i], batch.rows[i], batch.prefix_lens[i]);
      }
    }
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      const std::int64_t row = batch.rows[i];
      if (row == 0) continue;
      const std::int64_t end = prefix_of(i), begin = first_cell(end);
      if (begin >= end) continue;
      const auto verify = [&](std::int64_t b, std::int64_t e) {
        verify_cells(pool, moment, batch.owners[i], row, b, e, table, expected,
                     valid_len(batch, i, expected));
      };
      if (options_.verify == VerifyPolicy::all) {
        verify(begin, end);
        continue;
      }
      // Shared by length, rounded up.
      const auto share = (static_cast<hash::u128>(end - begin) *
                              static_cast<hash::u128>(records_a_moment(p.slot_bytes)) +
                          static_cast<hash::u128>(total) - 1) /
                         static_cast<hash::u128>(total);
      const std::int64_t n = std::clamp<std::int64_t>(
          share > static_cast<hash::u128>(end) ? end : static_cast<std::int64_t>(share), 1,
          end - begin);
      Reader& reader = readers_[batch.owners[i]];
      reader.cursor.resize(pools_.size());
      std::int64_t& cursor = reader.cursor[static_cast<std::size_t>(pool)];
      if (cursor < begin || cursor >= end) cursor = begin;
      const std::int64_t here = std::min(n, end - cursor);
      verify(cursor, cursor + here);
      cursor += here;
      if (here < n) {
        verify(begin, begin + n - here);
        cursor = begin + n - here;
      }
    }
  }
}

void SerinusBackend::verify_due(const Batch& batch) {
  const Table table = table_of(batch.req_to_token, "req_to_token");
  const Table expected = table_of(batch.expected_tokens, "expected_tokens");
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const auto found = readers_.find(batch.owners[i]);
    if (found == readers_.end() || batch.rows[i] == 0) continue;
    for (Reader::Due& due : found->second.due) {
      due.done.resize(pools_.size());
      for (const int pool : pools_of(batch)) {
        if (due.done[static_cast<std::size_t>(pool)]) continue;
        due.done[static_cast<std::size_t>(pool)] = true;
        if (options_.verify == VerifyPolicy::all) continue;  // all of it is verified anyway
        const Pool& p = at(pool);
        const bool windowed = p.spec.kind == PoolKind::swa && p.spec.window > 0;
        const std::int64_t begin =
            windowed ? std::max(due.begin,
                                std::max<std::int64_t>(batch.prefix_lens[i], 0) - p.spec.window + 1)
                     : due.begin;
        verify_cells(pool, Moment::head, batch.owners[i], due.row, begin, due.end, table, expected,
                     valid_len(batch, i, expected));
      }
    }
    std::erase_if(found->second.due, [&](const Reader::Due& d) {
      for (int pool = 0; pool < static_cast<int>(d.done.size()); ++pool) {
        if (!d.done[static_cast<std::size_t>(pool)] && is_attached(pool)) return false;
      }
      return true;
    });
  }
}

void SerinusBackend::verify_fresh() {
  for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
    std::vector<std::int64_t> fresh;
    fresh.swap(at(pool).fresh);
    verify_slots(pool, Moment::head, fresh);
  }
}

void SerinusBackend::head(const Batch& batch, Stream) {
  verify_fresh();
  verify_due(batch);
  verify_batch(batch, Moment::head);
  for (const int pool : pools_of(batch)) verify_null(pool, Moment::head);
}

void SerinusBackend::tail(const Batch& batch, Stream stream) {
  verify_batch(batch, Moment::tail);
  stamp(batch, stream);
  for (const int pool : pools_of(batch)) verify_null(pool, Moment::tail);
}

void SerinusBackend::sweep(Stream) {
  stats.live_slots = stats.sweep_bound_steps = 0;
  for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
    Pool& p = at(pool);
    const std::int64_t budget = records_a_sweep(p.slot_bytes);
    std::vector<std::int64_t> slots;
    if (p.next_live(budget, p.sweep_cursor, slots)) ++stats.sweeps;
    verify_slots(pool, Moment::sweep, slots);
    stats.live_slots += p.num_live;
    stats.sweep_bound_steps =
        std::max(stats.sweep_bound_steps, (p.num_live + budget - 1) / budget + 1);
  }
}

void SerinusBackend::verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                                std::int64_t end, const Batch& tables, Stream) {
  const Table table = table_of(tables.req_to_token, "req_to_token");
  const Table expected = table_of(tables.expected_tokens, "expected_tokens");
  std::int64_t valid = expected.columns;
  for (std::size_t i = 0; i < tables.valid_lens.size() && i < tables.owners.size(); ++i) {
    if (tables.owners[i] == owner) valid = tables.valid_lens[i];
  }
  for (const int pool : pools_of(tables)) {
    verify_cells(pool, moment, owner, row, begin, end, table, expected, valid);
    verify_null(pool, moment);
  }
}

void SerinusBackend::flush() {
  verify_fresh();
  for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
    Pool& p = at(pool);
    std::int64_t cursor = 0;
    for (bool done = false; !done;) {
      std::vector<std::int64_t> slots;
      done = p.next_live(4096, cursor, slots);
      verify_slots(pool, Moment::sweep, slots);
    }
    if (!is_attached(pool)) continue;
    ++stats.sweeps;
    verify_null(pool, Moment::sweep);
  }
}

std::uint64_t SerinusBackend::request_digest(std::int64_t row, std::int64_t length,
                                             const Batch& tables) const {
  const Table table = table_of(tables.req_to_token, "req_to_token");
  std::uint64_t h = hash::mix64(static_cast<std::uint64_t>(length) + 1);
  if (!table.has_row(row)) return h;
  for (const int pool : pools_of(tables)) {
    const Pool& p = at(pool);
    const Table none;
    const Walk walk{p, 0, row, table, none, 0, nullptr};
    for (std::int64_t cell = 0; cell < std::min(length, table.columns); ++cell) {
      const Walk::Place place = walk.place(cell);
      const std::uint64_t chain = place.kind == Walk::Kind::slot ? p.records[place.slot].chain : 0;
      h = hash::mix64(h ^ chain);
    }
  }
  return h;
}

// ---------------------------------------------------------------- reports

Violation SerinusBackend::describe(int pool, std::int64_t slot, Moment moment,
                                   Reason reasons) const {
  const Pool& p = at(pool);
  Violation v;
  v.reasons = reasons;
  v.moment = moment;
  v.pool = pool;
  v.slot = slot;
  v.first_step = v.last_step = step;
  if (!p.has(slot)) return v;
  describe_slot(p.records[slot], p.ledger[slot], v);
  return v;
}

void SerinusBackend::report(Violation v) {
  const std::uint64_t life = at(v.pool).ledger[v.slot].generation;
  reporter_.report(std::move(v), life);
}

void SerinusBackend::report_out_of_range(int pool, std::int64_t slot, Moment moment, Owner owner,
                                         std::int64_t row, std::int64_t cell) {
  Violation v = describe(pool, slot, moment, Reason::out_of_range);
  v.request = owner;
  v.row = row;
  v.expected_position = cell;
  reporter_.report(std::move(v), life_of_cell(row, cell));
}

}  // namespace serinus::canary
