// Digests by source: 32 bits of what each source adds to a slot's digest, so that damaged bytes
// have a layer and a segment. A warp a slot and source; none of this is in a hurry.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/digest.cuh"
#include "canary/cuda/serinus/ring.cuh"
#include "canary/cuda/serinus/tokens.cuh"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

/// The first 8 of n > 0 bytes, zeros where there are less.
__device__ std::uint64_t word_at(const std::uint8_t* at, int n, int alignment) {
  if (n >= 8 && alignment >= 8) {
    return __ldcg(reinterpret_cast<const unsigned long long*>(at));
  }
  std::uint64_t word = 0;
  for (int i = 0; i < n && i < 8; ++i) word |= std::uint64_t{__ldcg(at + i)} << 8 * i;
  return word;
}

/// The word of source `s` of the slot as its bytes are now. By a warp; all lanes have it.
__device__ std::uint32_t source_word_of(const PoolParams& p, const SourceParams& by,
                                        std::int64_t slot, std::int64_t s) {
  const SourceRange range = by.ranges[s];
  const Address at = address_of(p, static_cast<std::int32_t>(slot));
  hash::u128 sum = range.length_term;
  for (int k = 0; k < range.count; ++k) {
    const OpenPiece piece = open_piece(p, range.first + k, at);
    // A partial digest takes the ends of a source.
    const bool ends = p.depth == Depth::partial && piece.bytes > 32;
    const int bytes = ends ? 32 : piece.bytes;
    unsigned long long nh = 0;
    for (int i = lane_id() * 8; i < bytes; i += kWarp * 8) {
      const int from = ends && i >= 16 ? piece.bytes - 32 + i : i;
      nh += hash::nh_pair(word_at(piece.at + from, bytes - i, ends ? 1 : piece.alignment),
                          hash::nh_key(i / 8));
    }
    for (int d = kWarp / 2; d > 0; d /= 2) nh += __shfl_xor_sync(kAllLanes, nh, d);
    sum += hash::block_term(nh, keys_of(p, range.first + k));
  }
  return hash::source_word(hash::canonical(sum));
}

/// Warps of all CTAs, numbered through.
__device__ std::int64_t warp_index() {
  return thread_index() / kWarp;
}
__device__ std::int64_t warp_count() {
  return thread_count() / kWarp;
}

__global__ void stamp_sources_kernel(const __grid_constant__ PoolParams p,
                                     const __grid_constant__ SourceParams by,
                                     const __grid_constant__ BatchParams b) {
  for (std::int64_t i = warp_index(); i < b.num_tokens * by.count; i += warp_count()) {
    const std::int64_t j = i / by.count, s = i % by.count;
    const std::int64_t slot = stamped_slot(p, b.locations[j]);
    if (slot <= 0) continue;
    // Padding, or what lies in somebody else's slot, is not the slot's own.
    const Record r = load_record(p, slot);
    if (p.seals[slot] != hash::seal(r) || std::int64_t{r.position} != b.positions[j] ||
        r.token != static_cast<std::uint32_t>(b.tokens[j])) {
      continue;
    }
    const std::uint32_t word = source_word_of(p, by, slot, s);
    if (lane_id() == 0) by.words[slot * by.count + s] = word;
  }
}

/// Of a row whose source is to be looked for, and whose slot still has that life; -1 = of no such
/// row, -2 = the life has ended.
__device__ std::int64_t slot_to_name(const PoolParams& p, const RingRow& row) {
  const bool bytes = (row.reasons & static_cast<std::uint32_t>(Reason::kv_bytes)) != 0;
  if (row.sequence == 0 || !bytes || row.source != 0 ||
      row.pool != static_cast<std::uint32_t>(p.number) || !has(p, row.slot)) {
    return -1;
  }
  return p.ledger[row.slot].generation == row.expected_generation ? row.slot : -2;
}

/// The first damaged source of a slot: 1 + its number, -1 = not known. By a warp.
__device__ int first_damaged(const PoolParams& p, const SourceParams& by, std::int64_t slot) {
  for (std::int64_t s = 0; slot >= 0 && s < by.count; ++s) {
    const std::uint32_t stamped = __ldcg(by.words + slot * by.count + s);
    if (stamped != 0 && stamped != source_word_of(p, by, slot, s)) return static_cast<int>(s) + 1;
  }
  return -1;
}

/// A lane looks at a row of the ring; what there is to do, its warp does together.
__global__ void name_sources_kernel(const __grid_constant__ PoolParams p,
                                    const __grid_constant__ SourceParams by,
                                    const __grid_constant__ RingParams ring) {
  const auto rows = static_cast<std::int64_t>(ring.mask + 1);  // a multiple of kWarp
  for (std::int64_t i = thread_index(); i < rows; i += thread_count()) {
    const std::int64_t mine = slot_to_name(p, ring.rows[i]);
    for (unsigned left = __ballot_sync(kAllLanes, mine != -1); left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      const auto slot = static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(mine), lane));
      const int source = first_damaged(p, by, slot);
      if (lane_id() == lane) ring.rows[i].source = source;
    }
  }
}

__global__ void take_sources_kernel(const __grid_constant__ PoolParams p,
                                    const __grid_constant__ SourceParams by, SlotList list,
                                    std::uint32_t* to) {
  for (std::int64_t i = thread_index(); i < list.count * by.count; i += thread_count()) {
    const std::int64_t slot = list.slots[i / by.count];
    to[i] = has(p, slot) ? by.words[slot * by.count + i % by.count] : 0;
  }
}

__global__ void move_sources_kernel(const __grid_constant__ PoolParams p,
                                    const __grid_constant__ SourceParams by, SlotList from,
                                    SlotList to, const std::uint32_t* taken) {
  for (std::int64_t i = thread_index(); i < to.count * by.count; i += thread_count()) {
    const std::int64_t source = from.slots[i / by.count], slot = to.slots[i / by.count];
    const bool moved = has(p, source) && source != 0 && has(p, slot) && slot != 0;
    if (!moved || p.ledger[slot].owner == 0) continue;
    by.words[slot * by.count + i % by.count] = taken[i];
  }
}

__global__ void load_sources_kernel(const __grid_constant__ PoolParams p,
                                    const __grid_constant__ SourceParams by,
                                    const std::uint32_t* from, SlotList list) {
  for (std::int64_t i = thread_index(); i < list.count * by.count; i += thread_count()) {
    const std::int64_t slot = list.slots[i / by.count];
    if (!has(p, slot) || slot == 0) continue;
    // What was loaded into a slot that the loader does not hold is not the slot's own.
    if (p.seals[slot] == 0 || p.seals[slot] != hash::seal(load_record(p, slot))) continue;
    by.words[slot * by.count + i % by.count] = from[i];
  }
}

/// CTAs for one thread a word.
unsigned grid_of_words(const SourceParams& by, std::int64_t slots, Device device) {
  return grid_for(device, slots * by.count, kThreads, 8);
}

}  // namespace

void launch_stamp_sources(const PoolParams& p, const SourceParams& by, const BatchParams& b,
                          Device device, Stream stream) {
  if (b.num_tokens == 0 || by.count == 0) return;
  const gpu::OnDevice current(device);
  gpu::launch("canary stamp_sources", stamp_sources_kernel,
              {grid_for(device, b.num_tokens * by.count, kWarps, 8), kThreads}, stream, p, by, b);
}

void launch_name_sources(const PoolParams& p, const SourceParams& by, const RingParams& ring,
                         Device device, Stream stream) {
  const gpu::OnDevice current(device);
  const auto rows = static_cast<std::int64_t>(ring.mask + 1);
  gpu::launch("canary name_sources", name_sources_kernel,
              {grid_for(device, rows, kThreads, 8), kThreads}, stream, p, by, ring);
}

void launch_take_sources(const PoolParams& p, const SourceParams& by, SlotList list,
                         std::uint32_t* to, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary sources", take_sources_kernel,
              {grid_of_words(by, list.count, device), kThreads}, stream, p, by, list, to);
}

void launch_move_sources(const PoolParams& p, const SourceParams& by, SlotList from, SlotList to,
                         const std::uint32_t* taken, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary sources", move_sources_kernel,
              {grid_of_words(by, to.count, device), kThreads}, stream, p, by, from, to, taken);
}

void launch_load_sources(const PoolParams& p, const SourceParams& by, const std::uint32_t* from,
                         SlotList list, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary sources", load_sources_kernel,
              {grid_of_words(by, list.count, device), kThreads}, stream, p, by, from, list);
}

}  // namespace serinus::canary::cuda
