// Slots that a sweep checks: one by one, by what record and ledger say.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

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

/// What is to be seen of a slot of the pool.
struct SlotView {
  LedgerEntry entry;
  Record record;
  std::uint32_t seal = 0;
};
__device__ __forceinline__ SlotView view_slot(const PoolParams& p, std::int64_t slot) {
  return {p.ledger[slot], load_record(p, slot), __ldcg(p.seals + slot)};
}

/// Checks a slot of the pool by what was seen of it; true if its bytes are to be compared.
__device__ inline bool check_view(const PoolParams& p, const RingParams& ring, Moment moment,
                                  std::int64_t slot, const SlotView& view, bool tells,
                                  std::uint64_t& stored, TileCounts& counts) {
  const auto& [e, r, seal] = view;
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

/// Checks one slot, as a sweep does; true if its bytes are to be compared.
__device__ inline bool check_slot(const PoolParams& p, const RingParams& ring, Moment moment,
                                  std::int64_t slot, bool tells, std::uint64_t& stored,
                                  TileCounts& counts) {
  if (has(p, slot)) {
    return check_view(p, ring, moment, slot, view_slot(p, slot), tells, stored, counts);
  }
  if (tells) report_out_of_range(ring, p, slot, moment, 0, -1, -1);
  return false;
}

inline constexpr int kFinderChunks = 4;  ///< chunks of a thread
using FinderScan = cub::BlockScan<int, kThreads>;

/// Lists live slots: of those from the cursor on the first, ..., the last-but-one.
struct Finder {
  FinderScan::TempStorage scan;
  std::int16_t chunks[kThreads * kFinderChunks];  ///< that hold some of them
  std::int32_t ranks[kThreads * kFinderChunks];
  int num_chunks;
  int listed;
};

/// Writes the live slots of rank [first, last) from `cursor` on to `list`, in any order, and
/// returns how many there are. All threads call it.
__device__ inline int find_live(const PoolParams& p, std::int64_t cursor, std::int64_t first,
                                std::int64_t last, Finder& f, std::int64_t* list) {
  const int t = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const std::int64_t words = (p.num_slots + 31) / 32;
  const std::int64_t chunks = (p.num_slots + kChunk - 1) / kChunk;
  const auto word = [&](std::int64_t chunk, int i) {
    const std::int64_t w = chunk * (kChunk / 32) + i;
    std::uint32_t bits = w < words ? p.live[w] : 0;
    if (w < cursor >> 5) bits = 0;
    if (w == cursor >> 5) bits &= ~0u << (cursor & 31);
    return bits;
  };
  if (t == 0) f.listed = 0;
  std::int64_t base = 0;  // live ones before the chunks looked at
  for (std::int64_t c0 = cursor / kChunk; c0 < chunks && base < last;
       c0 += kThreads * kFinderChunks) {
    int counts[kFinderChunks];
#pragma unroll
    for (int i = 0; i < kFinderChunks; ++i) {
      const std::int64_t c = c0 + t * kFinderChunks + i;
      counts[i] = c < chunks ? static_cast<int>(p.live_counts[c]) : 0;
    }
    // The first chunk counts from the cursor on.
    if (c0 == cursor / kChunk && t < kWarp) {
      const int n = __reduce_add_sync(kAllLanes, __popc(word(c0, lane)));
      if (t == 0) counts[0] = n;
    }
    if (t == 0) f.num_chunks = 0;
    int ranks[kFinderChunks];
    int total = 0;
    FinderScan(f.scan).ExclusiveSum(counts, ranks, total);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFinderChunks; ++i) {
      if (counts[i] == 0 || base + ranks[i] >= last || base + ranks[i] + counts[i] <= first) {
        continue;
      }
      const int at = atomicAdd(&f.num_chunks, 1);
      f.chunks[at] = static_cast<std::int16_t>(t * kFinderChunks + i);
      f.ranks[at] = static_cast<std::int32_t>(base + ranks[i]);
    }
    __syncthreads();
    for (int i = t / kWarp; i < f.num_chunks; i += kWarps) {
      const std::int64_t chunk = c0 + f.chunks[i];
      std::uint32_t bits = word(chunk, lane);
      const int up_to = sum_up_to(__popc(bits));
      std::int64_t rank = std::int64_t{f.ranks[i]} + up_to - __popc(bits);
      for (; bits != 0 && rank < first; ++rank) bits &= bits - 1;
      for (; bits != 0 && rank < last; bits &= bits - 1, ++rank) {
        list[rank - first] =
            (chunk * (kChunk / 32) + lane) * 32 + __ffs(static_cast<int>(bits)) - 1;
        atomicAdd(&f.listed, 1);
      }
    }
    base += total;
    __syncthreads();
  }
  __syncthreads();
  return f.listed;
}

}  // namespace serinus::canary::cuda
