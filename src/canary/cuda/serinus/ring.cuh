// Faults on their way into the ring, and what the kernels of the format share.
#pragma once

#include <cstdint>

#include "canary/cuda/lanes.cuh"
#include "canary/cuda/serinus/params.h"

// How faults are written down: in line, or, in a kernel that is over before code that it does not
// need has been fetched, out of line.
#ifndef SERINUS_FAULT_PATH
#define SERINUS_FAULT_PATH __forceinline__
#endif

namespace serinus::canary::cuda {

__device__ __forceinline__ unsigned long long* counter(std::uint64_t& c) {
  return reinterpret_cast<unsigned long long*>(&c);
}
__device__ __forceinline__ void add(std::uint64_t& c, std::uint64_t n) {
  if (n != 0) atomicAdd(counter(c), static_cast<unsigned long long>(n));
}

__device__ __forceinline__ bool has(const PoolParams& p, std::int64_t slot) {
  return static_cast<std::uint64_t>(slot) < static_cast<std::uint64_t>(p.num_slots);
}

/// 32 bytes, past L1: others may be writing them meanwhile.
__device__ __forceinline__ Record load_record(const PoolParams& p, std::int64_t slot) {
  const auto* const at = reinterpret_cast<const uint4*>(p.records + slot);
  const uint4 what = __ldcg(at);
  const uint4 sums = __ldcg(at + 1);
  return {what.x,
          what.y,
          what.z,
          what.w,
          static_cast<std::uint64_t>(sums.y) << 32 | sums.x,
          static_cast<std::uint64_t>(sums.w) << 32 | sums.z};
}
__device__ __forceinline__ void store_record(const PoolParams& p, std::int64_t slot,
                                             const Record& r) {
  auto* const at = reinterpret_cast<uint4*>(p.records + slot);
  at[0] = make_uint4(r.token, r.position, r.owner, r.generation);
  at[1] = make_uint4(static_cast<unsigned>(r.chain), static_cast<unsigned>(r.chain >> 32),
                     static_cast<unsigned>(r.kv_digest), static_cast<unsigned>(r.kv_digest >> 32));
}
/// The record is the slot's own from now on.
__device__ __forceinline__ void seal(const PoolParams& p, std::int64_t slot, const Record& r) {
  p.seals[slot] = hash::seal(r);
  p.marks[slot] = hash::mark(r);
}
/// Nothing is written in this life (any more).
__device__ __forceinline__ void unseal(const PoolParams& p, std::int64_t slot) {
  p.seals[slot] = 0;
  p.marks[slot] = 0;
}

__device__ __forceinline__ bool bit(const std::uint32_t* bits, std::int64_t slot) {
  return (bits[slot >> 5] >> (slot & 31) & 1u) != 0;
}
/// True if that changed it.
__device__ __forceinline__ bool set_bit(std::uint32_t* bits, std::int64_t slot, bool on) {
  const std::uint32_t one = 1u << (slot & 31);
  const std::uint32_t before =
      on ? atomicOr(bits + (slot >> 5), one) : atomicAnd(bits + (slot >> 5), ~one);
  return ((before & one) != 0) != on;
}
__device__ __forceinline__ void set_live(const PoolParams& p, std::int64_t slot, bool on) {
  if (set_bit(p.live, slot, on)) atomicAdd(p.live_counts + slot / kChunk, on ? 1u : ~0u);
}

/// The slot was handed out twice, and `owner` is one of the last two who believe to hold it.
__device__ __forceinline__ bool claims(const PoolParams& p, const LedgerEntry& e, std::int64_t slot,
                                       Owner owner) {
  return bit(p.contested, slot) && (e.owner == owner || e.previous_owner == owner);
}

/// A row of the ring that is to be filled in; its number comes last, since a copy of the ring that
/// shows the number shows the rest. False: there is nothing to fill in.
class Sighting {
 public:
  __device__ Sighting() = default;
  __device__ Sighting(RingRow* row, std::uint64_t number) : row_(row), number_(number) {}
  __device__ ~Sighting() {
    if (row_ == nullptr) return;
    __threadfence();
    row_->sequence = number_;
  }
  __device__ Sighting(Sighting&& other) : row_(other.row_), number_(other.number_) {
    other.row_ = nullptr;
  }
  __device__ explicit operator bool() const { return row_ != nullptr; }
  __device__ RingRow* operator->() const { return row_; }
  __device__ RingRow& operator*() const { return *row_; }

 private:
  RingRow* row_ = nullptr;
  std::uint64_t number_ = 0;
};

/// Where a fault is written down, and the number that it gets; nowhere, where it is known already,
/// or the ring is full.
struct NewRow {
  RingRow* row;
  std::uint64_t number;
};

__device__ SERINUS_FAULT_PATH NewRow find_row(const RingParams& ring, int pool, std::int64_t slot,
                                              std::uint64_t life, Reason reasons, Moment moment,
                                              std::uint64_t expected_digest) {
  RingHeader& h = *ring.header;
  add(h.counts.sightings, 1);
  const std::uint64_t key =
      hash::mix64(hash::mix64(static_cast<std::uint64_t>(slot) * 0x9E3779B97F4A7C15u ^ life) +
                  static_cast<std::uint64_t>(pool)) |
      1;  // 0 is a free row
  for (std::uint64_t i = 0; i <= ring.mask; ++i) {
    RingRow& row = ring.rows[((key >> 1) + i) & ring.mask];
    const std::uint64_t found =
        atomicCAS(counter(row.key), 0ull, static_cast<unsigned long long>(key));
    if (found != 0 && found != key) continue;
    atomicOr(&row.reasons, static_cast<std::uint32_t>(reasons));
    add(row.count, 1);
    const std::uint64_t step = ring.step != nullptr ? *ring.step : h.counts.steps;
    row.last_step = step;
    if (expected_digest != 0) row.expected_digest = expected_digest;
    if (found == key) return {};
    const std::uint64_t number = atomicAdd(counter(h.next), 1ull) + 1;
    if (number > ring.capacity + h.recycled) {
      add(h.counts.dropped, 1);
      return {};
    }
    add(h.counts.violations, 1);
    row.first_step = step;
    row.moment = static_cast<std::uint32_t>(moment);
    row.pool = static_cast<std::uint32_t>(pool);
    row.slot = slot;
    row.row = row.prev_slot = row.expected_position = row.stored_position = -1;
    row.expected_token = row.stored_token = -1;
    return {&row, number};
  }
  add(h.counts.dropped, 1);  // every row is another fault's
  return {};
}

/// Counts a sighting of a fault: one fault is one row, however often it is seen, to be filled in
/// the first time if there is room. `life` tells faults at one slot apart.
__device__ __forceinline__ Sighting sight(const RingParams& ring, const PoolParams& p,
                                          std::int64_t slot, std::uint64_t life, Reason reasons,
                                          Moment moment, std::uint64_t expected_digest = 0) {
  const NewRow found = find_row(ring, p.number, slot, life, reasons, moment, expected_digest);
  return {found.row, found.number};
}

/// A number out of its table: there may be no slot to describe.
__device__ __forceinline__ void report_out_of_range(const RingParams& ring, const PoolParams& p,
                                                    std::int64_t slot, Moment moment, Owner request,
                                                    std::int64_t row, std::int64_t cell) {
  const Sighting to = sight(ring, p, slot, life_of_cell(row, cell), Reason::out_of_range, moment);
  if (!to) return;
  if (has(p, slot)) describe_slot(load_record(p, slot), p.ledger[slot], *to);
  to->request = request;
  to->row = row;
  to->expected_position = cell;
}

}  // namespace serinus::canary::cuda
