// A tile's bytes against what its records say. For verify along a table and for sweeps.
#pragma once

#include <cstdint>
#include <type_traits>

#include "canary/cuda/serinus/digest.cuh"
#include "canary/cuda/serinus/ring.cuh"

namespace serinus::canary::cuda {

/// What the threads of a CTA counted, in shared memory.
struct TileCounts {
  int verified = 0, empty = 0, compared = 0;
};

template <Depth kDepth>
struct ByteScratch {
  DigestScratch<kDepth> digest;
  std::uint64_t stored[kWarps]
                      [kTileRows<kDepth>];  ///< digests, as the records of `digest.slots` have them
};

/// Nothing, where there are no bytes.
struct NoScratch {};
template <Depth kDepth>
using ScratchOf = std::conditional_t<kDepth == Depth::none, NoScratch, ByteScratch<kDepth>>;

/// Where a warp shares a tile with its CTA, the first speaks for all.
__device__ __forceinline__ bool speaks(const TileShape& shape) {
  return !shape.whole || threadIdx.x < kWarp;
}
__device__ __forceinline__ void tile_barrier(const TileShape& shape) {
  if (shape.whole) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

/// Notes what is to be compared in row `row` of the warp's tile; slot -1 = nothing.
template <Depth kDepth>
__device__ __forceinline__ void note_bytes(ByteScratch<kDepth>& scratch, int row, std::int32_t slot,
                                           std::uint64_t stored) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  scratch.digest.slots[warp][row] = slot;
  scratch.stored[warp][row] = stored;
}

/// Compares what was noted with what was hashed. `before_report` is called before anything is
/// said. All lanes that speak call it.
template <Depth kDepth, class BeforeReport>
__device__ __forceinline__ void compare_digests(const PoolParams& p, const RingParams& ring,
                                                const TileShape& shape,
                                                const ByteScratch<kDepth>& scratch, Moment moment,
                                                const Owner& request, const std::int64_t& row,
                                                TileCounts& counts,
                                                const BeforeReport& before_report) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int compared = 0;
  for (int i = lane_id(); i < shape.rows && speaks(shape); i += kWarp) {
    const std::int32_t slot = scratch.digest.slots[warp][i];
    if (slot < 0) continue;
    ++compared;
    const std::uint64_t now = digest_of(p, shape, scratch.digest, i);
    const std::uint64_t stored = scratch.stored[warp][i];
    // Another record by now: another stream began a new life of the slot meanwhile.
    if (now == stored || load_record(p, slot).kv_digest != stored) continue;
    before_report();
    const LedgerEntry e = p.ledger[slot];
    const Sighting to = sight(ring, p, slot, e.generation, Reason::kv_bytes, moment, now);
    if (!to) continue;
    describe_slot(load_record(p, slot), e, *to);
    to->request = request;
    to->row = row;
    to->expected_position = std::int64_t{e.written} - 1;
  }
  if (compared != 0) atomicAdd(&counts.compared, compared);
}

/// Hashes what was noted, and compares. All threads of the tile call it.
template <Depth kDepth>
__device__ __forceinline__ void compare_bytes(const PoolParams& p, const RingParams& ring,
                                              const TileShape& shape, ByteScratch<kDepth>& scratch,
                                              Moment moment, const Owner& request,
                                              const std::int64_t& row, TileCounts& counts) {
  __syncwarp();
  digest_tile<kDepth>(p, shape, scratch.digest);
  tile_barrier(shape);
  compare_digests(p, ring, shape, scratch, moment, request, row, counts, [] {});
  tile_barrier(shape);
}

/// Digest of the null slot, by a CTA; thread 0 has it.
template <Depth kDepth>
__device__ std::uint64_t digest_null(const PoolParams& p, const TileShape& shape,
                                     DigestScratch<kDepth>& scratch) {
  init_digest(scratch);
  if (lane_id() == 0) scratch.slots[threadIdx.x / kWarp][0] = 0;
  __syncthreads();
  digest_tile<kDepth>(p, shape, scratch);
  __syncthreads();
  return threadIdx.x == 0 ? digest_of(p, shape, scratch, 0) : 0;
}

/// The null slot of a clean pool must stay as it was. A CTA's work; `shape` has one row.
template <Depth kDepth>
__device__ void check_null(const PoolParams& p, const RingParams& ring, Moment moment,
                           const TileShape& shape, ScratchOf<kDepth>& scratch) {
  std::uint64_t digest = 0;
  if constexpr (kDepth != Depth::none) digest = digest_null<kDepth>(p, shape, scratch.digest);
  if (threadIdx.x != 0) return;
  const Record r = load_record(p, 0);
  if (is_blank(r) && (kDepth == Depth::none || digest == p.words->null_digest)) return;
  const LedgerEntry e = p.ledger[0];
  if (const Sighting to =
          sight(ring, p, 0, e.generation, Reason::null_slot_dirty, moment, digest)) {
    describe_slot(r, e, *to);
    to->stored_digest = p.words->null_digest;
  }
}

/// To the ring, an atomic a CTA. All threads call it.
__device__ __forceinline__ void add_counts(const PoolParams& p, const RingParams& ring,
                                           const TileCounts& counts) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  RingCounts& c = ring.header->counts;
  add(c.records_verified, static_cast<std::uint64_t>(counts.verified));
  add(c.skipped_empty, static_cast<std::uint64_t>(counts.empty));
  add(c.bytes_digested,
      static_cast<std::uint64_t>(counts.compared) * static_cast<std::uint64_t>(p.slot_bytes));
}

}  // namespace serinus::canary::cuda
