// What the allocator, the prefix cache and the other tiers announce: the life of a slot.
#include <algorithm>

#include "canary/serinus/backend.h"

namespace serinus::canary {

std::unique_ptr<Backend> make_serinus_backend(const Options& options, Reporter& reporter) {
  return std::make_unique<SerinusBackend>(options, reporter);
}

void SerinusBackend::add_pool(const PoolSpec& spec) {
  pools_.emplace_back(spec, options_);
}

void SerinusBackend::detach_pool(int pool) {
  detached_.push_back(pool);
  Pool& p = at(pool);
  p.sources.clear();
  p.raw_sources.clear();
  p.fresh.clear();
  std::fill(p.live.begin(), p.live.end(), 0);
  p.num_live = 0;
}

void SerinusBackend::on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner) {
  Pool& p = at(pool);
  if (++epoch_ == 0) ++epoch_;  // a record of zeros must be of no life
  for (const std::int64_t slot : slots) {
    if (!p.has(slot) || slot == 0) {
      report_out_of_range(pool, slot, Moment::head, owner, -1, -1);
      continue;
    }
    LedgerEntry& e = p.ledger[slot];
    const LedgerEntry old = e;
    const bool held = old.owner != 0;
    if (!held && p.records[slot] != Record{}) {
      Violation v = describe(pool, slot, Moment::head, Reason::foreign_write);
      v.request = p.records[slot].owner;
      report(v);
    }
    if (!reporter_.empty() && !held) reporter_.forget(pool, slot, old.generation);
    e = {owner, epoch_, -1, 0, held ? old.owner : old.previous_owner};
    if (!held) p.records[slot] = {};
    p.unseal(slot);
    p.set_live(slot, true);
    if (held) {
      auto& owners = p.contested[slot];
      if (owners.empty()) owners.push_back(old.owner);
      owners.push_back(owner);
      Violation v = describe(pool, slot, Moment::head, Reason::double_owner);
      v.request = owner;
      v.expected_owner = old.owner;
      v.stored_owner = owner;
      report(v);
    }
  }
}

void SerinusBackend::on_free(int pool, std::span<const std::int64_t> slots, Owner owner) {
  Pool& p = at(pool);
  for (const std::int64_t slot : slots) {
    if (!p.has(slot) || slot == 0) {
      report_out_of_range(pool, slot, Moment::head, owner, -1, -1);
      continue;
    }
    LedgerEntry& e = p.ledger[slot];
    if (e.owner == 0 || (owner != 0 && e.owner != owner)) {
      Violation v = describe(pool, slot, Moment::head, Reason::double_owner);
      v.request = owner;
      report(v);
    }
    if (e.owner == 0) continue;
    // Readers of a slot that the cache got from its writer remember the writer.
    e.previous_owner = e.written != 0 && p.sealed(slot) ? p.records[slot].owner : e.owner;
    e.owner = 0;
    e.written = 0;
    p.records[slot] = {};
    p.unseal(slot);
    p.set_live(slot, false);
    if (!p.contested.empty()) p.contested.erase(slot);
  }
}

void SerinusBackend::on_transfer(int pool, std::span<const std::int64_t> slots, Owner from,
                                 Owner to) {
  Pool& p = at(pool);
  for (const std::int64_t slot : slots) {
    if (!p.has(slot) || slot == 0) {
      report_out_of_range(pool, slot, Moment::head, from, -1, -1);
      continue;
    }
    LedgerEntry& e = p.ledger[slot];
    if (e.owner != from) {
      Violation v = describe(pool, slot, Moment::head, Reason::double_owner);
      v.request = from;
      v.expected_owner = from;
      v.stored_owner = e.owner;
      report(v);
    }
    if (e.owner != 0) e.owner = to;
  }
}

void SerinusBackend::on_attach(Owner owner, std::int64_t row, std::int64_t begin,
                               std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0);
  if (begin >= end) return;
  Reader& r = readers_[owner];
  r.attached.attach(begin, end, epoch_);
  r.due.push_back({row, begin, end, std::vector<bool>(pools_.size())});
}

void SerinusBackend::on_release(Owner owner) {
  readers_.erase(owner);
}

void SerinusBackend::on_move(int pool, std::span<const std::int64_t> from,
                             std::span<const std::int64_t> to) {
  Pool& p = at(pool);
  struct Moved {
    Record record;
    LedgerEntry ledger;
    bool sealed = false;
    std::vector<std::uint32_t> digests;
  };
  const auto sources =
      options_.source_digests ? static_cast<std::int64_t>(p.sources.size()) : std::int64_t{0};
  std::vector<Moved> moved(from.size());
  std::unordered_map<std::int32_t, std::int32_t> place;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!p.has(from[i]) || from[i] == 0 || !p.has(to[i]) || to[i] == 0) continue;
    Moved& m = moved[i];
    m.record = p.records[from[i]];
    m.ledger = p.ledger[from[i]];
    m.sealed = m.ledger.written != 0 && p.sealed(from[i]);
    const auto digests = p.source_digests.span().subspan(
        static_cast<std::size_t>(sources * from[i]), static_cast<std::size_t>(sources));
    m.digests.assign(digests.begin(), digests.end());
    place[static_cast<std::int32_t>(from[i])] = static_cast<std::int32_t>(to[i]);
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (const std::int64_t slot : {from[i], to[i]}) {
      if (!p.has(slot) || slot == 0) report_out_of_range(pool, slot, Moment::head, 0, -1, -1);
    }
    if (!p.has(from[i]) || from[i] == 0 || !p.has(to[i]) || to[i] == 0) continue;
    Moved& m = moved[i];
    LedgerEntry& e = p.ledger[to[i]];
    if (e.owner == 0) {
      p.records[to[i]] = m.record;  // as the copy did; the next owner's alloc reports it, too
      Violation v = describe(pool, to[i], Moment::head, Reason::foreign_write);
      v.request = m.ledger.owner;
      report(v);
      continue;
    }
    e.written = m.ledger.written;
    const auto prev = place.find(m.ledger.prev);
    e.prev = prev != place.end() ? prev->second : m.ledger.prev;
    if (m.sealed) {
      m.record.owner = e.owner;
      m.record.generation = e.generation;
      p.put(to[i], m.record);
    } else {
      // EMPTY stays EMPTY; a record that was not the owner's stays somebody else's.
      p.records[to[i]] = m.ledger.written != 0 ? m.record : Record{};
      p.unseal(to[i]);
      if (m.ledger.written != 0) {
        p.seals[to[i]] = ~hash::seal(m.record) | 1u;
        p.marks[to[i]] = hash::mark(m.record) ^ 1u;
      }
    }
    std::copy(m.digests.begin(), m.digests.end(), p.source_digests.data() + sources * to[i]);
    p.fresh.push_back(to[i]);
  }
}

void SerinusBackend::on_store(int pool, std::span<const std::int64_t> slots,
                              std::span<Record> records, std::span<std::uint32_t> source_digests) {
  Pool& p = at(pool);
  const std::size_t sources = p.sources.size();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    records[i] = {};
    if (!p.has(slots[i])) {
      report_out_of_range(pool, slots[i], Moment::head, 0, -1, -1);
      continue;
    }
    if (p.ledger[slots[i]].written == 0) continue;
    records[i] = p.records[slots[i]];
    if (!p.sealed(slots[i])) verify_slots(pool, Moment::head, slots.subspan(i, 1));
    if (!source_digests.empty() && options_.source_digests) {
      std::copy_n(p.source_digests.data() + static_cast<std::int64_t>(sources) * slots[i], sources,
                  source_digests.data() + sources * i);
    }
  }
}

void SerinusBackend::on_load(int pool, std::span<const Record> records,
                             std::span<const std::int64_t> slots, Owner owner,
                             std::span<const std::uint32_t> source_digests) {
  Pool& p = at(pool);
  const std::size_t sources = p.sources.size();
  std::int64_t before = -1;  // slot of the record before, if its token comes right before
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t slot = slots[i];
    if (!p.has(slot) || slot == 0) {
      report_out_of_range(pool, slot, Moment::head, owner, -1, -1);
      before = -1;
      continue;
    }
    LedgerEntry& e = p.ledger[slot];
    Record r = records[i];
    if ((e.owner != owner || owner == 0) && !p.claims(slot, owner)) {
      // The bytes lie there all the same, and their record with them, of no life of this slot.
      r.owner = owner;
      r.generation = 0;
      p.records[slot] = r;
      Violation v = describe(pool, slot, Moment::head, Reason::foreign_write);
      v.request = owner;
      report(v);
      before = -1;
      continue;
    }
    if (r == Record{}) {
      e.written = 0;
      p.records[slot] = {};
      p.unseal(slot);
      before = -1;
      continue;
    }
    r.owner = owner;
    if (r.position > kLastPosition) {
      // No stamp made this. Its slot is EMPTY, and not in silence.
      r.generation = 0;
      p.records[slot] = r;
      e.written = 0;
      p.unseal(slot);
      Violation v = describe(pool, slot, Moment::head, Reason::position);
      v.request = owner;
      report(v);
      before = -1;
      continue;
    }
    r.generation = e.generation;
    p.put(slot, r);
    e.written = r.position + 1;
    if (r.position == 0) {
      e.prev = -1;
    } else {
      const bool follows = before >= 0 && p.records[before].position + 1 == r.position;
      e.prev = follows ? static_cast<std::int32_t>(before) : -2;
    }
    before = slot;
    if (options_.source_digests) {
      std::uint32_t* to = p.source_digests.data() + static_cast<std::int64_t>(sources) * slot;
      if (source_digests.empty()) {
        std::fill_n(to, sources, 0);
      } else {
        std::copy_n(source_digests.data() + sources * i, sources, to);
      }
    }
    p.fresh.push_back(slot);
  }
}

SlotState SerinusBackend::state(int pool, std::int64_t slot) const {
  const Pool& p = at(pool);
  return p.has(slot) ? state_of(p.ledger[slot]) : SlotState::free;
}

}  // namespace serinus::canary
