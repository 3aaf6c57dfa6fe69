// Faults on their way into the ring, and what the kernels of the format share.
#pragma once

#include <cstdint>

#include "canary/cuda/lanes.cuh"
#include "canary/cuda/serinus/params.h"

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
__device__ __forceinline__ bool bit(const std::uint32_t* bits, std::int64_t slot) {
  return (bits[slot >> 5] >> (slot & 31) & 1u) != 0;
}
__device__ __forceinline__ void set_bit(std::uint32_t* bits, std::int64_t slot, bool on) {
  const std::uint32_t one = 1u << (slot & 31);
  if (on) {
    atomicOr(bits + (slot >> 5), one);
  } else {
    atomicAnd(bits + (slot >> 5), ~one);
  }
}

/// The slot was handed out twice, and `owner` is one of the last two who believe to hold it.
__device__ __forceinline__ bool claims(const PoolParams& p, const LedgerEntry& e, std::int64_t slot,
                                       Owner owner) {
  return bit(p.contested, slot) && (e.owner == owner || e.previous_owner == owner);
}

/// A fault, before it is told apart from others.
struct Fault {
  Reason reasons = Reason::none;
  Moment moment = Moment::head;
  std::int64_t slot = -1, row = -1, prev_slot = -1;
  std::int64_t expected_position = -1, stored_position = -1;
  std::int64_t expected_token = -1, stored_token = -1;
  std::uint64_t expected_chain = 0, stored_chain = 0, expected_digest = 0, stored_digest = 0;
  Owner request = 0, expected_owner = 0, stored_owner = 0;
  std::uint32_t expected_generation = 0, stored_generation = 0;
};

/// A fault at a slot that exists, with what record and ledger say about it.
__device__ inline Fault describe(const Record& r, const LedgerEntry& e, std::int64_t slot,
                                 Moment moment, Reason reasons) {
  Fault f;
  f.reasons = reasons;
  f.moment = moment;
  f.slot = slot;
  describe_slot(r, e, f);
  return f;
}

/// One fault is one row, however often it is seen. `life` tells faults at one slot apart.
__device__ __forceinline__ void report(const RingParams& ring, const PoolParams& p, const Fault& f,
                                       std::uint64_t life) {
  RingHeader& h = *ring.header;
  add(h.counts.sightings, 1);
  const std::uint64_t key =
      hash::mix64(hash::mix64(static_cast<std::uint64_t>(f.slot) * 0x9E3779B97F4A7C15u ^ life) +
                  static_cast<std::uint64_t>(p.number)) |
      1;  // 0 is a free row
  for (std::uint64_t i = 0; i <= ring.mask; ++i) {
    RingRow& row = ring.rows[((key >> 1) + i) & ring.mask];
    const std::uint64_t found =
        atomicCAS(counter(row.key), 0ull, static_cast<unsigned long long>(key));
    if (found != 0 && found != key) continue;
    atomicOr(&row.reasons, static_cast<std::uint32_t>(f.reasons));
    add(row.count, 1);
    const std::uint64_t step = h.counts.steps;
    row.last_step = step;
    if (f.expected_digest != 0) row.expected_digest = f.expected_digest;
    if (found == key) return;
    const std::uint64_t sequence = atomicAdd(counter(h.next), 1ull) + 1;
    if (sequence > ring.capacity + h.recycled) {
      add(h.counts.dropped, 1);
      return;
    }
    row.moment = static_cast<std::uint32_t>(f.moment);
    row.slot = f.slot;
    row.row = f.row;
    row.prev_slot = f.prev_slot;
    row.expected_position = f.expected_position;
    row.stored_position = f.stored_position;
    row.expected_token = f.expected_token;
    row.stored_token = f.stored_token;
    row.expected_chain = f.expected_chain;
    row.stored_chain = f.stored_chain;
    row.stored_digest = f.stored_digest;
    row.expected_owner = f.expected_owner;
    row.stored_owner = f.stored_owner;
    row.expected_generation = f.expected_generation;
    row.stored_generation = f.stored_generation;
    row.request = f.request;
    row.pool = static_cast<std::uint32_t>(p.number);
    row.first_step = step;
    __threadfence();  // a copy of the ring that shows the number shows the rest
    row.sequence = sequence;
    add(h.counts.violations, 1);
    return;
  }
  add(h.counts.dropped, 1);  // every row is another fault's
}

__device__ inline void report(const RingParams& ring, const PoolParams& p, const Fault& f) {
  report(ring, p, f, p.ledger[f.slot].generation);
}

/// A number out of its table: no slot to describe.
__device__ inline void report_out_of_range(const RingParams& ring, const PoolParams& p,
                                           std::int64_t slot, Moment moment, Owner request,
                                           std::int64_t row, std::int64_t cell) {
  Fault f;
  if (has(p, slot)) {
    f = describe(load_record(p, slot), p.ledger[slot], slot, moment, Reason::out_of_range);
  }
  f.reasons = Reason::out_of_range;
  f.moment = moment;
  f.slot = slot;
  f.request = request;
  f.row = row;
  f.expected_position = cell;
  report(ring, p, f, life_of_cell(row, cell));
}

}  // namespace serinus::canary::cuda
