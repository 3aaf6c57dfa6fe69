// The life of a slot, announced in stream order: a thread a slot of the list.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/ring.cuh"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

constexpr int kThreads = 128;

/// Slots that can be handed out: of the pool, and not the null slot.
__device__ bool can_be_held(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                            Owner request) {
  if (has(p, slot) && slot != 0) return true;
  report_out_of_range(ring, p, slot, Moment::head, request, -1, -1);
  return false;
}

__device__ bool is_sealed(const PoolParams& p, std::int64_t slot, const Record& r) {
  return p.seals[slot] == hash::seal(r);
}

__device__ void put(const PoolParams& p, std::int64_t slot, const Record& r) {
  store_record(p, slot, r);
  seal(p, slot, r);
}

__device__ Sighting sight_at(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                             const Record& r, const LedgerEntry& e, Reason reason, Owner request) {
  Sighting to = sight(ring, p, slot, e.generation, reason, Moment::head);
  if (to) {
    describe_slot(r, e, *to);
    to->request = request;
  }
  return to;
}
__device__ void report_at(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                          Reason reason, Owner request) {
  sight_at(p, ring, slot, load_record(p, slot), p.ledger[slot], reason, request);
}

__device__ void alloc_slot(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                           Owner owner, std::uint32_t epoch) {
  if (!can_be_held(p, ring, slot, owner)) return;
  LedgerEntry& e = p.ledger[slot];
  const LedgerEntry old = e;
  // A list that names a slot twice hands it out twice.
  const Owner holder = atomicExch(&e.owner, owner);
  const bool held = holder != 0;
  const Record r = load_record(p, slot);
  if (!held && !is_blank(r)) {
    sight_at(p, ring, slot, r, old, Reason::foreign_write, r.owner);
  }
  e.generation = epoch;
  e.prev = -1;
  e.written = 0;
  e.previous_owner = held ? holder : old.previous_owner;
  if (!held) store_record(p, slot, {});
  unseal(p, slot);
  set_live(p, slot, true);
  if (!held) return;
  set_bit(p.contested, slot, true);
  LedgerEntry now = e;
  now.owner = owner;
  const Sighting to = sight_at(p, ring, slot, r, now, Reason::double_owner, owner);
  if (!to) return;
  to->expected_owner = holder;
  to->stored_owner = owner;
}

__device__ void free_slot(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                          Owner owner) {
  if (!can_be_held(p, ring, slot, owner)) return;
  LedgerEntry& e = p.ledger[slot];
  const LedgerEntry old = e;
  const Owner holder = atomicExch(&e.owner, 0u);
  const Record r = load_record(p, slot);
  if (holder == 0 || (owner != 0 && holder != owner)) {
    LedgerEntry seen = old;
    seen.owner = holder;
    sight_at(p, ring, slot, r, seen, Reason::double_owner, owner);
  }
  if (holder == 0) return;
  // Readers of a slot that the cache got from its writer remember the writer.
  e.previous_owner = old.written != 0 && is_sealed(p, slot, r) ? r.owner : holder;
  e.written = 0;
  store_record(p, slot, {});
  unseal(p, slot);
  set_live(p, slot, false);
  set_bit(p.contested, slot, false);
}

__device__ void transfer_slot(const PoolParams& p, const RingParams& ring, std::int64_t slot,
                              Owner from, Owner to) {
  if (!can_be_held(p, ring, slot, from)) return;
  LedgerEntry& e = p.ledger[slot];
  if (e.owner != from) {
    const LedgerEntry now = e;
    const Sighting to =
        sight_at(p, ring, slot, load_record(p, slot), now, Reason::double_owner, from);
    if (to) {
      to->expected_owner = from;
      to->stored_owner = now.owner;
    }
  }
  if (e.owner != 0) e.owner = to;
}

__global__ void alloc_kernel(const __grid_constant__ PoolParams p,
                             const __grid_constant__ RingParams ring, SlotList list, Owner owner,
                             std::uint32_t epoch) {
  for (std::int64_t i = thread_index(); i < list.count; i += thread_count()) {
    alloc_slot(p, ring, list.slots[i], owner, epoch);
  }
}

__global__ void free_kernel(const __grid_constant__ PoolParams p,
                            const __grid_constant__ RingParams ring, SlotList list, Owner owner) {
  for (std::int64_t i = thread_index(); i < list.count; i += thread_count()) {
    free_slot(p, ring, list.slots[i], owner);
  }
}

__global__ void transfer_kernel(const __grid_constant__ PoolParams p,
                                const __grid_constant__ RingParams ring, SlotList list, Owner from,
                                Owner to) {
  for (std::int64_t i = thread_index(); i < list.count; i += thread_count()) {
    transfer_slot(p, ring, list.slots[i], from, to);
  }
}

__global__ void announce_kernel(const __grid_constant__ PoolParams p,
                                const __grid_constant__ RingParams ring, const Announcement* list,
                                std::int64_t n) {
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) {
    const Announcement a = list[i];
    if (a.kind == LedgerEventKind::alloc) alloc_slot(p, ring, a.slot, a.owner, a.other);
    if (a.kind == LedgerEventKind::free) free_slot(p, ring, a.slot, a.owner);
    if (a.kind == LedgerEventKind::transfer) transfer_slot(p, ring, a.slot, a.owner, a.other);
  }
}

/// First half of a move: everything is read before anything is written.
__global__ void take_kernel(const __grid_constant__ PoolParams p,
                            const __grid_constant__ RingParams ring, SlotList from, SlotList to,
                            MovedSlot* moved) {
  for (std::int64_t i = thread_index(); i < from.count; i += thread_count()) {
    const std::int64_t slot = from.slots[i];
    MovedSlot m;
    const bool here = can_be_held(p, ring, slot, 0);
    const bool there = can_be_held(p, ring, to.slots[i], 0);
    if (here && there) {
      m.record = load_record(p, slot);
      m.ledger = p.ledger[slot];
      m.sealed = m.ledger.written != 0 && is_sealed(p, slot, m.record) ? 1 : 0;
      m.valid = 1;
    }
    moved[i] = m;
  }
}

__global__ void put_kernel(const __grid_constant__ PoolParams p,
                           const __grid_constant__ RingParams ring, SlotList from, SlotList to,
                           const MovedSlot* moved) {
  for (std::int64_t i = thread_index(); i < from.count; i += thread_count()) {
    MovedSlot m = moved[i];
    if (m.valid == 0) continue;
    const std::int64_t slot = to.slots[i];
    LedgerEntry& e = p.ledger[slot];
    if (e.owner == 0) {
      store_record(p, slot, m.record);  // as the copy did; the next owner's alloc reports it, too
      report_at(p, ring, slot, Reason::foreign_write, m.ledger.owner);
      continue;
    }
    e.written = m.ledger.written;
    e.prev = m.ledger.prev;
    for (std::int64_t k = 0; m.ledger.prev > 0 && k < from.count; ++k) {
      if (from.slots[k] == m.ledger.prev && moved[k].valid != 0) {
        e.prev = static_cast<std::int32_t>(to.slots[k]);
      }
    }
    if (m.sealed != 0) {
      m.record.owner = e.owner;
      m.record.generation = e.generation;
      put(p, slot, m.record);
    } else {
      // EMPTY stays EMPTY; a record that was not the owner's stays somebody else's.
      const bool written = m.ledger.written != 0;
      store_record(p, slot, written ? m.record : Record{});
      unseal(p, slot);
      if (written) p.seals[slot] = ~hash::seal(m.record) | 1u;
    }
  }
}

__global__ void store_kernel(const __grid_constant__ PoolParams p,
                             const __grid_constant__ RingParams ring, SlotList list, Record* to) {
  for (std::int64_t i = thread_index(); i < list.count; i += thread_count()) {
    const std::int64_t slot = list.slots[i];
    Record r;
    if (!has(p, slot)) {
      report_out_of_range(ring, p, slot, Moment::head, 0, -1, -1);
    } else if (p.ledger[slot].written != 0) {
      r = load_record(p, slot);
      // Damage that is copied is reported where it leaves, too: a check as any other.
      if (!is_sealed(p, slot, r)) {
        add(ring.header->counts.records_verified, 1);
        const LedgerEntry e = p.ledger[slot];
        const std::int64_t position = std::int64_t{e.written} - 1;
        const Verdict v = judge_content(r, e, false, position, -1, {});
        const Sighting to = sight_at(p, ring, slot, r, e, v.reasons, 0);
        if (to) {
          to->expected_position = position;
          to->prev_slot = e.prev;
        }
      }
    }
    to[i] = r;
  }
}

/// Whether record i of a load goes to a slot that `owner` holds.
__device__ bool is_taken(const PoolParams& p, const SlotList& list, std::int64_t i, Owner owner) {
  const std::int64_t slot = list.slots[i];
  if (!has(p, slot) || slot == 0) return false;
  const LedgerEntry e = p.ledger[slot];
  return (e.owner == owner && owner != 0) || claims(p, e, slot, owner);
}

__global__ void load_kernel(const __grid_constant__ PoolParams p,
                            const __grid_constant__ RingParams ring, const Record* from,
                            SlotList list, Owner owner) {
  for (std::int64_t i = thread_index(); i < list.count; i += thread_count()) {
    const std::int64_t slot = list.slots[i];
    if (!can_be_held(p, ring, slot, owner)) continue;
    LedgerEntry& e = p.ledger[slot];
    Record r = from[i];
    if (!is_taken(p, list, i, owner)) {
      // The bytes lie there all the same, and their record with them, of no life of this slot.
      r.owner = owner;
      r.generation = 0;
      store_record(p, slot, r);
      report_at(p, ring, slot, Reason::foreign_write, owner);
      continue;
    }
    if (is_blank(r)) {
      e.written = 0;
      store_record(p, slot, {});
      unseal(p, slot);
      continue;
    }
    r.owner = owner;
    if (r.position > kLastPosition) {
      // No stamp made this. Its slot is EMPTY, and not in silence.
      r.generation = 0;
      store_record(p, slot, r);
      e.written = 0;
      unseal(p, slot);
      report_at(p, ring, slot, Reason::position, owner);
      continue;
    }
    r.generation = e.generation;
    put(p, slot, r);
    e.written = r.position + 1;
    e.prev = -1;
    if (r.position != 0) {
      const bool follows = i > 0 && is_taken(p, list, i - 1, owner) && !is_blank(from[i - 1]) &&
                           from[i - 1].position + 1 == r.position;
      e.prev = follows ? static_cast<std::int32_t>(list.slots[i - 1]) : -2;
    }
  }
}

}  // namespace

void launch_alloc(const PoolParams& p, const RingParams& ring, SlotList list, Owner owner,
                  std::uint32_t epoch, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary on_alloc", alloc_kernel,
              {grid_for(device, list.count, kThreads, 8), kThreads}, stream, p, ring, list, owner,
              epoch);
}

void launch_free(const PoolParams& p, const RingParams& ring, SlotList list, Owner owner,
                 Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary on_free", free_kernel, {grid_for(device, list.count, kThreads, 8), kThreads},
              stream, p, ring, list, owner);
}

void launch_transfer(const PoolParams& p, const RingParams& ring, SlotList list, Owner from,
                     Owner to, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary on_transfer", transfer_kernel,
              {grid_for(device, list.count, kThreads, 8), kThreads}, stream, p, ring, list, from,
              to);
}

void launch_announce(const PoolParams& p, const RingParams& ring, const Announcement* list,
                     std::int64_t n, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary announce", announce_kernel, {grid_for(device, n, kThreads, 8), kThreads},
              stream, p, ring, list, n);
}

void launch_move(const PoolParams& p, const RingParams& ring, SlotList from, SlotList to,
                 MovedSlot* moved, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  const unsigned grid = grid_for(device, from.count, kThreads, 8);
  gpu::launch("canary on_move", take_kernel, {grid, kThreads}, stream, p, ring, from, to, moved);
  const MovedSlot* const taken = moved;
  gpu::launch("canary on_move", put_kernel, {grid, kThreads}, stream, p, ring, from, to, taken);
}

void launch_store(const PoolParams& p, const RingParams& ring, SlotList list, Record* to,
                  Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary on_store", store_kernel,
              {grid_for(device, list.count, kThreads, 8), kThreads}, stream, p, ring, list, to);
}

void launch_load(const PoolParams& p, const RingParams& ring, const Record* from, SlotList list,
                 Owner owner, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary on_load", load_kernel, {grid_for(device, list.count, kThreads, 8), kThreads},
              stream, p, ring, from, list, owner);
}

}  // namespace serinus::canary::cuda
