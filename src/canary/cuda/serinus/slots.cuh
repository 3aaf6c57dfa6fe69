// Slots that a sweep checks: one by one, by what record and ledger say.
#pragma once

#include <cstdint>

#include "canary/cuda/serinus/bytes.cuh"

namespace serinus::canary::cuda {

/// Whether record, seal or ledger of a slot are not what they were a moment ago.
__device__ inline bool is_settling(const PoolParams& p, std::int64_t slot, const Record& before,
                                   const LedgerEntry& entry) {
  constexpr unsigned kMoment = 2000;  // ns: a stamp's stores are apart by less
  __nanosleep(kMoment);
  const Record r = load_record(p, slot);
  const std::uint32_t generation = __ldcg(&p.ledger[slot].generation);
  const std::uint32_t written = __ldcg(&p.ledger[slot].written);
  return __ldcg(p.seals + slot) == hash::seal(r) || hash::seal(r) != hash::seal(before) ||
         generation != entry.generation || written != entry.written;
}

/// Checks one slot, as a sweep does; true if its bytes are to be compared.
__device__ inline bool check_slot(const PoolParams& p, const RingParams& ring, Moment moment,
                                  std::int64_t slot, bool tells, std::uint64_t& stored,
                                  TileCounts& counts) {
  if (!has(p, slot)) {
    if (tells) report_out_of_range(ring, p, slot, moment, 0, -1, -1);
    return false;
  }
  const LedgerEntry e = p.ledger[slot];
  const Record r = load_record(p, slot);
  const std::uint32_t seal = __ldcg(p.seals + slot);
  if (e.written == 0) {
    if (tells) atomicAdd(&counts.empty, 1);
    return false;
  }
  if (tells) atomicAdd(&counts.verified, 1);
  stored = r.kv_digest;
  if (seal != hash::seal(r)) {
    // A sweep may meet a stamp of another stream half way: that is over when it looks again.
    if (is_settling(p, slot, r, e)) return false;
    if (!tells) return true;
    // Somebody wrote it. The predecessor, if it is still the one, says how.
    ChainBefore before{e.prev == -1 && e.written == 1, kChainAnchor, e.prev};
    if (has(p, e.prev)) {
      const LedgerEntry prev = p.ledger[e.prev];
      const Record predecessor = load_record(p, e.prev);
      before.usable = prev.owner != 0 && prev.written + 1 == e.written &&
                      !newer(prev.generation, e.generation) &&
                      __ldcg(p.seals + e.prev) == hash::seal(predecessor);
      before.chain = predecessor.chain;
    }
    const std::int64_t position = std::int64_t{e.written} - 1;
    const Verdict v = judge_content(r, e, false, position, -1, before);
    if (const Sighting to = sight(ring, p, slot, e.generation, v.reasons, moment)) {
      describe_slot(r, e, *to);
      to->expected_position = position;
      to->expected_chain = v.expected_chain;
      to->prev_slot = e.prev;
    }
  }
  return true;
}

}  // namespace serinus::canary::cuda
