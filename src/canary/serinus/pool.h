// One pool's memory in the serinus format: records, ledger, seals, and what is due.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <serinus/canary.h>

#include "canary/serinus/digest.h"
#include "canary/serinus/hash.h"
#include "canary/serinus/judge.h"
#include "canary/zero_array.h"

namespace serinus::canary {

struct Pool {
  Pool(PoolSpec s, const Options& options);

  bool has(std::int64_t slot) const noexcept { return slot >= 0 && slot < spec.num_slots; }
  bool sealed(std::int64_t slot) const noexcept { return seals[slot] == hash::seal(records[slot]); }
  void put(std::int64_t slot, const Record& r) noexcept {
    records[slot] = r;
    seals[slot] = hash::seal(r);
    marks[slot] = hash::mark(r);
  }
  /// Asks for all that a write of the slot touches.
  void ask_for(std::int64_t slot) noexcept {
    __builtin_prefetch(&records[slot], 1);
    __builtin_prefetch(&ledger[slot], 1);
    __builtin_prefetch(&seals[slot], 1);
    __builtin_prefetch(&marks[slot], 1);
  }
  /// Nothing is written in this life (any more).
  void unseal(std::int64_t slot) noexcept {
    seals[slot] = 0;
    marks[slot] = 0;
  }

  bool is_live(std::int64_t slot) const noexcept {
    return (live[static_cast<std::size_t>(slot >> 6)] >> (slot & 63) & 1) != 0;
  }
  void set_live(std::int64_t slot, bool on) noexcept;
  /// Appends up to `n` live slots from `cursor` on, moving it; true if it passed the end.
  bool next_live(std::int64_t n, std::int64_t& cursor, std::vector<std::int64_t>& out) const;

  bool claims(std::int64_t slot, Owner owner) const;

  PoolSpec spec;
  std::vector<Source> raw_sources;
  std::vector<PreparedSource> sources;
  std::int64_t slot_bytes = 0;  ///< that a digest reads
  ZeroArray<Record> records;
  ZeroArray<LedgerEntry> ledger;
  ZeroArray<std::uint32_t> seals;           ///< of the record last stamped; 0 = EMPTY or free
  ZeroArray<std::uint8_t> marks;            ///< likewise
  ZeroArray<std::uint32_t> source_digests;  ///< num sources a slot, if kept
  std::vector<std::uint64_t> live;          ///< a bit a slot
  std::int64_t num_live = 0;
  std::int64_t sweep_cursor = 0;
  std::vector<std::int64_t> fresh;  ///< loaded or moved: due at the next head
  /// Slots that were handed out while somebody held them: everybody who believes to own them.
  std::unordered_map<std::int64_t, std::vector<Owner>> contested;
  std::uint64_t null_digest = 0;
};

}  // namespace serinus::canary
