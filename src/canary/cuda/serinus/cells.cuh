// A request's cells, as the kernels of verify and stamp read them.
#pragma once

#include <cstdint>

#include "canary/cuda/serinus/digest.cuh"
#include "canary/cuda/serinus/ring.cuh"

namespace serinus::canary::cuda {

/// Where a table's number leads to.
struct Place {
  enum class Kind : std::uint8_t { slot, absent, outside };
  Kind kind = Kind::absent;
  std::int64_t slot = -1;
};

__device__ inline Place place(const PoolParams& p, std::int64_t location) {
  std::int64_t slot = location;
  if (p.swa && p.full_to_swa != nullptr) {
    if (static_cast<std::uint64_t>(location) >= static_cast<std::uint64_t>(p.full_to_swa_size)) {
      return {Place::Kind::outside, location};
    }
    slot = p.full_to_swa[location];
  }
  if (p.swa && slot == 0) return {};  // evicted from the window
  return {has(p, slot) ? Place::Kind::slot : Place::Kind::outside, slot};
}

__device__ __forceinline__ bool has_row(const TableParams& t, std::int64_t row) {
  return static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(t.rows);
}

/// A prefix length, cut to the table.
__device__ __forceinline__ std::int64_t prefix_of(const BatchParams& b, std::int64_t request) {
  const std::int64_t n = b.prefix_lens[request];
  return n < 0 ? 0 : n > b.table.width ? b.table.width : n;
}
/// First of the prefix's cells that attention reads: the window leaves the last.
__device__ __forceinline__ std::int64_t first_cell(const PoolParams& p, std::int64_t prefix) {
  return p.window > 0 && prefix >= p.window ? prefix - p.window + 1 : 0;
}

/// Of a block of kThreads runs, numbered through, the last that begins at `at` or before. By a
/// warp.
__device__ __forceinline__ int find_run(const long long* firsts, long long at) {
  static_assert(kThreads == kWarp * 8);
  const int lane = lane_id();
  const int eight = __popc(__ballot_sync(kAllLanes, firsts[lane * 8] <= at)) - 1;
  const bool before = lane < 8 && firsts[eight * 8 + lane % 8] <= at;
  return eight * 8 + __popc(__ballot_sync(kAllLanes, before)) - 1;
}

/// One request's row, as one pool sees it.
struct Walk {
  const PoolParams& p;
  const BatchParams& b;
  std::int64_t request;
  std::int64_t row;
  Owner owner;
  const std::int32_t* cells;           ///< of the row, which must exist
  const std::int32_t* told = nullptr;  ///< its expected tokens
  std::int64_t told_end = 0;

  __device__ Walk(const PoolParams& pool, const BatchParams& batch, std::int64_t r,
                  std::int64_t row_of, Owner owner_of)
      : p(pool), b(batch), request(r), row(row_of), owner(owner_of) {
    cells = b.table.cells + row * b.table.stride;
    if (b.expected.cells == nullptr || !has_row(b.expected, row)) return;
    const std::int64_t valid = b.valid_lens != nullptr ? b.valid_lens[r] : b.expected.width;
    told = b.expected.cells + row * b.expected.stride;
    told_end = valid < b.expected.width ? valid : b.expected.width;
  }

  __device__ Place at(std::int64_t cell) const { return place(p, cells[cell]); }

  /// What the scheduler says the cell's token is; -1 = not known.
  __device__ std::int64_t token(std::int64_t cell) const {
    const std::int64_t i = cell + p.token_offset;
    return i >= 0 && i < told_end ? told[i] : -1;
  }

  __device__ Right right(std::int64_t cell) const {
    Right by{.owner = owner};
    if (row >= b.attached_rows) return by;
    const AttachedCells* const all = b.attached + row * b.attached_each;
    for (std::int64_t i = 0; i < b.attached_each; ++i) {
      const AttachedCells s = all[i];
      if (s.owner != owner || cell < s.begin || cell >= s.end) continue;
      by.attached = true;
      by.epoch = s.epoch;
      break;
    }
    return by;
  }
  __device__ Right right(std::int64_t cell, const LedgerEntry& e, std::int64_t slot) const {
    Right by = right(cell);
    by.claims = claims(p, e, slot, owner);
    return by;
  }

  /// The chain before `cell`, if its predecessor holds what the reader was given.
  __device__ ChainBefore before(std::int64_t cell) const {
    if (cell == 0) return {true, kChainAnchor, -1};
    const Place place = at(cell - 1);
    if (place.kind != Place::Kind::slot) return {false, 0, place.slot};
    const Record r = load_record(p, place.slot);
    const bool sealed = __ldcg(p.seals + place.slot) == hash::seal(r);
    bool sound = sealed && r.position == cell - 1;
    if (sound) {
      const LedgerEntry e = p.ledger[place.slot];
      sound = judge_right(r, e, sealed, right(cell - 1, e, place.slot)).has_content;
    }
    return {sound, r.chain, place.slot};
  }

  __device__ bool breaks(std::int64_t cell) const {
    const Place place = at(cell);
    if (place.kind != Place::Kind::slot) return false;
    const Record r = load_record(p, place.slot);
    const bool sealed = __ldcg(p.seals + place.slot) == hash::seal(r);
    return any(
        judge_content(r, p.ledger[place.slot], sealed, cell, token(cell), before(cell)).reasons &
        Reason::chain);
  }

  /// As on the CPU: a cell that holds a stranger's record breaks the chain at itself and after
  /// itself, and only the first is its own fault.
  __device__ bool is_first_break(std::int64_t cell) const {
    std::int64_t first = cell;
    while (first > 0 && breaks(first - 1)) --first;
    return (cell - first) % 2 == 0;
  }
};

}  // namespace serinus::canary::cuda
