// Verify on the GPU: cells along the batch's table, or slots of a list; plan and check in one
// kernel. A CTA takes a tile of neighbouring cells, a thread each: the chain's predecessor is the
// cell of the lane before. Then the whole CTA hashes the tile's bytes. What is sound takes the
// short way; all else is judged as on the CPU, by the same functions.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/cells.cuh"
#include "canary/cuda/serinus/digest.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

constexpr int kThreads = kDigestThreads;
constexpr int kRangeBlock = 4 * kThreads;  // ranges whose tiles are numbered through at once
using Scan = cub::BlockScan<long long, kThreads>;

constexpr int kCtas = 2;  // on every multiprocessor
/// Cells of a warp, in groups of 32, that are under way at once. Bytes keep a CTA busy by
/// themselves.
template <Depth kDepth>
constexpr int kGroups = kDepth == Depth::none ? 4 : 1;

struct Shared {
  union {
    Scan::TempStorage scan;
    DigestScratch digest;
  };
  std::int64_t first_tile[kRangeBlock + 1];
  Range ranges[kRangeBlock];
};

/// What a thread knows of its cell or slot after the records were checked.
struct Checked {
  std::int64_t slot = -1;  ///< whose bytes are to be compared; -1 = none
  std::uint64_t kv_digest = 0;
};

__device__ Range range_of(const PoolParams& p, const BatchParams& b, const Range* ranges,
                          std::int64_t q) {
  if (ranges != nullptr) return ranges[q];
  if (b.rows[q] == 0 || !has_row(b.table, b.rows[q])) return {};
  const std::int64_t prefix = prefix_of(b, q);
  return {first_cell(p, prefix), prefix};
}

/// Rows, lengths and due cells that leave the table: reported once, by one CTA.
__device__ void report_ranges(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                              Moment moment) {
  for (std::int64_t r = threadIdx.x; r < b.num_requests; r += kThreads) {
    const std::int64_t row = b.rows[r];
    if (row == 0) continue;
    std::int64_t cell = 0;
    bool outside = false;
    if (!has_row(b.table, row)) {
      outside = prefix_of(b, r) > 0;
      cell = -1;
    } else if (b.prefix_lens[r] != prefix_of(b, r)) {
      outside = true;
      cell = b.prefix_lens[r];
    } else if (b.due != nullptr && b.due[2 * r + 1] > b.table.width) {
      outside = true;
      cell = b.table.width;
    }
    if (outside) report_out_of_range(ring, p, -1, moment, b.owners[r], row, cell);
  }
}

/// A cell's slot, and what was loaded for it.
struct Loaded {
  Place at;
  Record record;
  std::uint32_t seal = 0;

  __device__ bool is_slot() const { return at.kind == Place::Kind::slot; }
  __device__ bool sealed() const { return is_slot() && seal == hash::seal(record); }
  __device__ void load(const PoolParams& p) {
    if (!is_slot()) return;
    record = load_record(p, at.slot);
    seal = __ldcg(p.seals + at.slot);
  }
};

/// The chain before a cell, from what was loaded for its predecessor. A seal that fits tells that
/// the slot was written in its present life and is held; only what is left asks the ledger.
__device__ ChainBefore before_of(const Walk& walk, std::int64_t cell, const Loaded& predecessor) {
  if (predecessor.sealed() && predecessor.record.position == cell - 1) {
    const Right by = walk.right(cell - 1);
    const Record& r = predecessor.record;
    if (by.attached ? !newer(r.generation, by.epoch) : r.owner == walk.owner) {
      return {true, r.chain, predecessor.at.slot};
    }
  }
  return walk.before(cell);
}

/// Checks a warp's share of a tile: cells [begin, end), kGroups * 32 at most, neighbours in
/// neighbouring lanes. Everything is asked for before anything is looked at. All lanes call it.
template <int kGroups>
__device__ void check_cells(const PoolParams& p, const RingParams& ring, const Walk& walk,
                            Moment moment, std::int64_t begin, std::int64_t end,
                            std::uint64_t& verified, Checked (&checked)[kGroups]) {
  const int lane = lane_id();
  Loaded loaded[kGroups];
  Loaded predecessor;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t cell = begin + g * kWarp + lane;
    if (cell < end) loaded[g].at = walk.at(cell);
  }
  if (lane == 0 && begin > 0) predecessor.at = walk.at(begin - 1);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) loaded[g].load(p);
  predecessor.load(p);

  ChainBefore carried;  // to lane 0
  if (lane == 0) carried = before_of(walk, begin, predecessor);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t cell = begin + g * kWarp + lane;
    const bool inside = cell < end;
    const Place& at = loaded[g].at;
    const Record& r = loaded[g].record;
    const bool is_slot = loaded[g].is_slot();
    const bool sealed = loaded[g].sealed();
    const std::int64_t token = inside ? walk.token(cell) : -1;
    bool plain = sealed && r.chain != 0 && r.position == cell &&
                 (token < 0 || r.token == static_cast<std::uint32_t>(token));
    if (plain && r.owner != walk.owner) {
      const Right by = walk.right(cell);
      plain = by.attached && !newer(r.generation, by.epoch);
    }

    // What the reader may read and what the record says by itself; the chain comes after.
    bool content = plain;  // not EMPTY, not stale
    bool clean = plain;    // but for the chain
    if (inside && is_slot && !plain) {
      const LedgerEntry e = p.ledger[at.slot];
      const Verdict v = judge_right(r, e, sealed, walk.right(cell, e, at.slot));
      content = v.has_content;
      clean =
          content && !any(v.reasons) && !any(judge_content(r, e, sealed, cell, token, {}).reasons);
    }
    const std::uint64_t chain_before = shuffle_up(r.chain);
    const auto slot_before =
        static_cast<std::int64_t>(shuffle_up(static_cast<std::uint64_t>(is_slot ? at.slot : -1)));
    ChainBefore before = carried;
    if (lane > 0) before = {false, chain_before, slot_before};
    const auto expected = static_cast<std::uint32_t>(token >= 0 ? token : r.token);
    bool broken =
        clean && (lane > 0 || before.usable) &&
        hash::chain_value(hash::chain_step(
            before.chain, hash::token_term(expected, static_cast<std::uint32_t>(cell)))) != r.chain;
    // A walk that starts here cannot see that the break is its predecessor's.
    if (g == 0 && lane == 0 && broken && sealed && !walk.is_first_break(cell)) broken = false;

    // Whether a cell may be relied on depends on the one before: bit by bit, where anything is
    // wrong.
    unsigned good = __ballot_sync(kAllLanes, clean);
    const unsigned breaks = __ballot_sync(kAllLanes, broken);
    if (breaks != 0) {
      good &= ~(breaks & 1u);
      for (int l = 1; l < kWarp; ++l) {
        if ((breaks & good << 1) >> l & 1u) good &= ~(1u << l);
      }
    }
    if (lane > 0) {
      before.usable = (good >> (lane - 1) & 1u) != 0;
      if (!before.usable) before.slot = -1;
    }
    if (inside && content) ++verified;
    if (inside && (good >> lane & 1u) == 0) {
      if (at.kind == Place::Kind::outside) {
        report_out_of_range(ring, p, at.slot, moment, walk.owner, walk.row, cell);
      } else if (is_slot) {
        const LedgerEntry e = p.ledger[at.slot];
        Verdict v = judge_right(r, e, sealed, walk.right(cell, e, at.slot));
        if (v.has_content) {
          const Verdict c = judge_content(r, e, sealed, cell, token, before);
          v.reasons |= c.reasons;
          v.expected_chain = c.expected_chain;
        }
        Fault f = describe(r, e, at.slot, moment, v.reasons);
        f.request = walk.owner;
        f.row = walk.row;
        f.expected_position = cell;
        f.expected_token = token;
        f.expected_chain = v.expected_chain;
        f.prev_slot = before.slot;
        if (any(v.reasons & Reason::stale)) f.expected_owner = walk.owner;
        if (any(v.reasons)) {
          report(ring, p, f, at.slot == 0 ? life_of_cell(walk.row, cell) : e.generation);
        }
      }
    }
    checked[g] = {inside && content ? at.slot : -1, r.kv_digest};
    if (g + 1 < kGroups) {
      const bool usable = good >> (kWarp - 1) != 0;
      const std::uint64_t chain = shuffle(r.chain, kWarp - 1);
      const auto slot =
          static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(at.slot), kWarp - 1));
      carried = {usable, chain, usable ? slot : -1};
    }
  }
}

/// Whether record, seal or ledger of a slot are not what they were a moment ago.
__device__ bool is_settling(const PoolParams& p, std::int64_t slot, const Record& before,
                            const LedgerEntry& entry) {
  constexpr unsigned kMoment = 2000;  // ns: a stamp's stores are apart by less
  __nanosleep(kMoment);
  const Record r = load_record(p, slot);
  const std::uint32_t generation = __ldcg(&p.ledger[slot].generation);
  const std::uint32_t written = __ldcg(&p.ledger[slot].written);
  return __ldcg(p.seals + slot) == hash::seal(r) || hash::seal(r) != hash::seal(before) ||
         generation != entry.generation || written != entry.written;
}

/// Checks one slot of a list, as a sweep does.
__device__ Checked check_slot(const PoolParams& p, const RingParams& ring, Moment moment,
                              std::int64_t slot, std::uint64_t& verified, std::uint64_t& empty) {
  if (!has(p, slot)) {
    report_out_of_range(ring, p, slot, moment, 0, -1, -1);
    return {};
  }
  const LedgerEntry e = p.ledger[slot];
  if (e.written == 0) {
    ++empty;
    return {};
  }
  ++verified;
  const Record r = load_record(p, slot);
  if (__ldcg(p.seals + slot) != hash::seal(r)) {
    // A sweep may meet a stamp of another stream half way: that is over when it looks again.
    if (is_settling(p, slot, r, e)) return {};
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
    Fault f = describe(r, e, slot, moment, v.reasons);
    f.expected_position = position;
    f.expected_chain = v.expected_chain;
    f.prev_slot = e.prev;
    report(ring, p, f);
  }
  return {slot, r.kv_digest};
}

/// Hashes a tile's bytes and compares them with what the records say. All threads call it.
template <Depth kDepth>
__device__ void compare_bytes(const PoolParams& p, const RingParams& ring, TileShape shape,
                              DigestScratch& scratch, const Checked& mine, Moment moment,
                              Owner request, std::int64_t row) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < shape.rows) scratch.slots[t] = static_cast<std::int32_t>(mine.slot);
  __syncthreads();
  digest_tile<kDepth>(p, shape, scratch);
  __syncthreads();
  if (t < shape.rows && mine.slot >= 0) {
    const std::uint64_t now = digest_of(p, shape, scratch, t);
    // Another record by now: another stream began a new life of the slot meanwhile.
    if (now != mine.kv_digest && load_record(p, mine.slot).kv_digest == mine.kv_digest) {
      const LedgerEntry e = p.ledger[mine.slot];
      Fault f = describe(load_record(p, mine.slot), e, mine.slot, moment, Reason::kv_bytes);
      f.request = request;
      f.row = row;
      f.expected_position = std::int64_t{e.written} - 1;
      f.expected_digest = now;
      report(ring, p, f, e.generation);
    }
  }
}

/// The null slot of a clean pool must stay as it was. A CTA's work.
template <Depth kDepth>
__device__ void check_null(const PoolParams& p, const RingParams& ring, Moment moment,
                           DigestScratch& scratch) {
  const TileShape shape{kWarpRows, kMaxTile / kWarpRows};
  std::uint64_t digest = 0;
  if constexpr (kDepth != Depth::none) {
    if (threadIdx.x < kWarpRows) scratch.slots[threadIdx.x] = threadIdx.x == 0 ? 0 : -1;
    init_digest(scratch);
    __syncthreads();
    digest_tile<kDepth>(p, shape, scratch);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if constexpr (kDepth != Depth::none) digest = digest_of(p, shape, scratch, 0);
  const Record r = load_record(p, 0);
  if (is_blank(r) && (p.num_sources == 0 || digest == *p.null_digest)) return;
  Fault f = describe(r, p.ledger[0], 0, moment, Reason::null_slot_dirty);
  f.expected_digest = digest;
  f.stored_digest = *p.null_digest;
  report(ring, p, f);
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    verify_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                  const __grid_constant__ BatchParams b, Moment moment, const Range* ranges,
                  TileShape shape) {
  __shared__ Shared shared;
  // The last CTA has the null slot and the lengths.
  if (blockIdx.x == gridDim.x - 1) {
    report_ranges(p, ring, b, moment);
    if (p.clean_null) check_null<kDepth>(p, ring, moment, shared.digest);
    return;
  }
  const std::int64_t ctas = gridDim.x - 1;
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t total_ranges = b.num_requests * (ranges != nullptr ? kRangesARequest : 1);
  std::uint64_t verified = 0;
  std::uint64_t digested = 0;
  std::int64_t turn = blockIdx.x;  // tiles until it is this CTA's turn
  for (std::int64_t q0 = 0; q0 < total_ranges; q0 += kRangeBlock) {
    // The tiles of the next ranges, numbered through.
    long long counts[kRangeBlock / kThreads];
#pragma unroll
    for (int i = 0; i < kRangeBlock / kThreads; ++i) {
      const std::int64_t q = q0 + t * (kRangeBlock / kThreads) + i;
      const Range range = q < total_ranges ? range_of(p, b, ranges, q) : Range{};
      shared.ranges[q - q0] = range;
      const std::int64_t cells = range.end - range.begin;
      counts[i] = cells > 0 ? (cells + shape.rows - 1) / shape.rows : 0;
    }
    long long total = 0;
    Scan(shared.scan).ExclusiveSum(counts, counts, total);
#pragma unroll
    for (int i = 0; i < kRangeBlock / kThreads; ++i) {
      shared.first_tile[t * (kRangeBlock / kThreads) + i] = counts[i];
    }
    if (t == 0) shared.first_tile[kRangeBlock] = total;
    __syncthreads();
    if constexpr (kDepth != Depth::none) init_digest(shared.digest);
    for (; turn < total; turn += ctas) {
      int below = 0;
      for (int above = kRangeBlock; above - below > 1;) {
        const int middle = (below + above) / 2;
        (shared.first_tile[middle] <= turn ? below : above) = middle;
      }
      const std::int64_t q = q0 + below;
      const Range range = shared.ranges[below];
      const Walk walk(p, b, ranges != nullptr ? q / kRangesARequest : q);
      constexpr int kShare = kGroups<kDepth> * kWarp;  // cells of a warp
      const std::int64_t tile = range.begin + (turn - shared.first_tile[below]) * shape.rows;
      const std::int64_t begin = tile + t / kWarp * kShare;
      std::int64_t end = begin + kShare;
      if (end > tile + shape.rows) end = tile + shape.rows;
      if (end > range.end) end = range.end;
      Checked mine[kGroups<kDepth>];
      if (begin < end) {
        check_cells<kGroups<kDepth>>(p, ring, walk, moment, begin, end, verified, mine);
      }
      if constexpr (kDepth != Depth::none) {
        if (mine[0].slot >= 0) ++digested;
        compare_bytes<kDepth>(p, ring, shape, shared.digest, mine[0], moment, walk.owner, walk.row);
      }
    }
    turn -= total;
    __syncthreads();
  }
  add(ring.header->counts.records_verified, verified);
  add(ring.header->counts.bytes_digested, digested * static_cast<std::uint64_t>(p.slot_bytes));
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    verify_slots_kernel(const __grid_constant__ PoolParams p,
                        const __grid_constant__ RingParams ring, SlotList list,
                        const std::int64_t* count, Moment moment, TileShape shape) {
  __shared__ DigestScratch scratch;
  std::int64_t n = list.count;
  if (count != nullptr && *count < n) n = *count;
  if constexpr (kDepth != Depth::none) init_digest(scratch);
  __syncthreads();
  std::uint64_t verified = 0;
  std::uint64_t empty = 0;
  std::uint64_t digested = 0;
  for (std::int64_t tile = blockIdx.x; tile * shape.rows < n; tile += gridDim.x) {
    const std::int64_t i = tile * shape.rows + threadIdx.x;
    Checked mine;
    if (static_cast<int>(threadIdx.x) < shape.rows && i < n) {
      mine = check_slot(p, ring, moment, list.slots[i], verified, empty);
    }
    if constexpr (kDepth != Depth::none) {
      if (mine.slot >= 0) ++digested;
      compare_bytes<kDepth>(p, ring, shape, scratch, mine, moment, 0, -1);
      __syncthreads();
    }
  }
  add(ring.header->counts.records_verified, verified);
  add(ring.header->counts.skipped_empty, empty);
  add(ring.header->counts.bytes_digested, digested * static_cast<std::uint64_t>(p.slot_bytes));
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    null_digest_kernel(const __grid_constant__ PoolParams p) {
  __shared__ DigestScratch scratch;
  const TileShape shape{kWarpRows, kMaxTile / kWarpRows};
  if (threadIdx.x < kWarpRows) scratch.slots[threadIdx.x] = threadIdx.x == 0 ? 0 : -1;
  init_digest(scratch);
  __syncthreads();
  digest_tile<kDepth>(p, shape, scratch);
  __syncthreads();
  if (threadIdx.x == 0) *p.null_digest = digest_of(p, shape, scratch, 0);
}

/// Calls `f` with the depth as a constant. Without sources there are no bytes, at any depth.
template <class F>
void with_depth(const PoolParams& p, const F& f) {
  if (p.num_sources == 0 || p.depth == Depth::none) {
    f(std::integral_constant<Depth, Depth::none>());
  } else if (p.depth == Depth::partial) {
    f(std::integral_constant<Depth, Depth::partial>());
  } else {
    f(std::integral_constant<Depth, Depth::all>());
  }
}

}  // namespace

void launch_verify(const PoolParams& p, const RingParams& ring, const BatchParams& b, Moment moment,
                   const Range* ranges, std::int64_t most_cells, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  with_depth(p, [&](auto depth) {
    TileShape shape = tile_shape(p, most_cells, device);
    shape.rows *= kGroups<depth()>;
    // A range ends a tile, so there may be one more for each.
    const std::int64_t cells =
        std::min(most_cells, std::int64_t{1} << 40) + b.num_requests * shape.rows;
    gpu::launch("canary verify", verify_kernel<depth()>,
                {grid_for(device, cells, shape.rows, kCtas) + 1, kThreads}, stream, p, ring, b,
                moment, ranges, shape);
  });
}

void launch_verify_slots(const PoolParams& p, const RingParams& ring, SlotList list,
                         const std::int64_t* count, Moment moment, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  const TileShape shape = tile_shape(p, list.count, device);
  with_depth(p, [&](auto depth) {
    gpu::launch("canary verify_slots", verify_slots_kernel<depth()>,
                {grid_for(device, list.count, shape.rows, kCtas), kThreads}, stream, p, ring, list,
                count, moment, shape);
  });
}

void launch_null_digest(const PoolParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  with_depth(p, [&](auto depth) {
    if constexpr (depth() != Depth::none) {
      gpu::launch("canary null slot", null_digest_kernel<depth()>, {1, kThreads}, stream, p);
    }
  });
}

}  // namespace serinus::canary::cuda
