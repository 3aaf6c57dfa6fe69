// Verify slots of a list, or the next live ones. Which those are, every CTA finds for itself: from
// counts of every 1024 slots it knows which words hold its part.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/slots.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

constexpr int kCtas = 3;       // on every multiprocessor
constexpr int kListed = 1024;  // slots that a CTA finds at once
constexpr int kCounts = 4;     // chunks of a thread
using Scan = cub::BlockScan<int, kThreads>;

/// Lists live slots: of those from the cursor on the first, ..., the last-but-one.
struct Finder {
  Scan::TempStorage scan;
  int chunks[kThreads * kCounts];  ///< that hold some of them
  std::int64_t ranks[kThreads * kCounts];
  int num_chunks;
  int listed;
};

/// Writes the live slots of rank [first, last) from `cursor` on to `list`, in any order, and
/// returns how many there are. All threads call it.
__device__ int find_live(const PoolParams& p, std::int64_t cursor, std::int64_t first,
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
  for (std::int64_t c0 = cursor / kChunk; c0 < chunks && base < last; c0 += kThreads * kCounts) {
    int counts[kCounts];
#pragma unroll
    for (int i = 0; i < kCounts; ++i) {
      const std::int64_t c = c0 + t * kCounts + i;
      counts[i] = c < chunks ? static_cast<int>(p.live_counts[c]) : 0;
    }
    // The first chunk counts from the cursor on.
    if (c0 == cursor / kChunk && t < kWarp) {
      const int n = __reduce_add_sync(kAllLanes, __popc(word(c0, lane)));
      if (t == 0) counts[0] = n;
    }
    if (t == 0) f.num_chunks = 0;
    int ranks[kCounts];
    int total = 0;
    Scan(f.scan).ExclusiveSum(counts, ranks, total);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCounts; ++i) {
      if (counts[i] == 0 || base + ranks[i] >= last || base + ranks[i] + counts[i] <= first) {
        continue;
      }
      const int at = atomicAdd(&f.num_chunks, 1);
      f.chunks[at] = t * kCounts + i;
      f.ranks[at] = base + ranks[i];
    }
    __syncthreads();
    for (int i = t / kWarp; i < f.num_chunks; i += kWarps) {
      const std::int64_t chunk = c0 + f.chunks[i];
      std::uint32_t bits = word(chunk, lane);
      int up_to = __popc(bits);
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const int below = __shfl_up_sync(kAllLanes, up_to, d);
        if (lane >= d) up_to += below;
      }
      std::int64_t rank = f.ranks[i] + up_to - __popc(bits);
      for (; bits != 0; bits &= bits - 1, ++rank) {
        if (rank < first || rank >= last) continue;
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

template <Depth kDepth>
struct Shared {
  ScratchOf<kDepth> bytes;
  Finder finder;
  std::int64_t list[kListed];
  TileCounts counts;
};

/// Checks n slots, tile by tile: a warp's, or the CTA's, from `turn` on every `turns`-th.
template <Depth kDepth>
__device__ void check_list(const PoolParams& p, const RingParams& ring, const TileShape& shape,
                           Moment moment, const std::int64_t* slots, std::int64_t n,
                           std::int64_t turn, std::int64_t turns, ScratchOf<kDepth>& scratch,
                           TileCounts& counts) {
  const bool tells = speaks(shape);
  for (; turn * shape.rows < n; turn += turns) {
    for (int row = lane_id(); row < shape.rows; row += kWarp) {
      const std::int64_t i = turn * shape.rows + row;
      std::uint64_t stored = 0;
      bool written = false;
      if (i < n) written = check_slot(p, ring, moment, slots[i], tells, stored, counts);
      if constexpr (kDepth != Depth::none) {
        note_bytes(scratch, row, written ? static_cast<std::int32_t>(slots[i]) : -1, stored);
      }
    }
    if constexpr (kDepth != Depth::none) {
      compare_bytes<kDepth>(p, ring, shape, scratch, moment, Owner{0}, std::int64_t{-1}, counts);
    }
  }
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    verify_slots_kernel(const __grid_constant__ PoolParams p,
                        const __grid_constant__ RingParams ring, SlotList list, Moment moment,
                        TileShape shape) {
  ScratchOf<kDepth>& scratch = shared_as<ScratchOf<kDepth>>();
  __shared__ TileCounts counts;
  if constexpr (kDepth != Depth::none) init_digest(scratch.digest);
  if (threadIdx.x == 0) counts = {};
  __syncthreads();
  const std::int64_t warps = shape.whole ? 1 : kWarps;
  check_list<kDepth>(p, ring, shape, moment, list.slots, list.count,
                     shape.whole ? blockIdx.x : blockIdx.x * warps + threadIdx.x / kWarp,
                     gridDim.x * warps, scratch, counts);
  add_counts(p, ring, counts);
}

/// `share`: live slots of a CTA.
template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    sweep_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                 std::int64_t most, std::int64_t share, TileShape shape) {
  gpu::ptx::follow_previous_grid();
  Shared<kDepth>& shared = shared_as<Shared<kDepth>>();
  if constexpr (kDepth != Depth::none) init_digest(shared.bytes.digest);
  std::int64_t cursor = p.words->sweep_cursor;
  if (!has(p, cursor)) cursor = 0;
  if (blockIdx.x == gridDim.x - 1) {
    // A pass ends at the last slot; the next sweep begins with the first that is too many.
    const int more = find_live(p, cursor, most, most + 1, shared.finder, shared.list);
    if (threadIdx.x == 0) {
      p.words->next_cursor = more != 0 ? shared.list[0] : 0;
      if (more == 0) add(ring.header->counts.sweeps, 1);
    }
  } else {
    if (threadIdx.x == 0) shared.counts = {};
    const std::int64_t begin = blockIdx.x * share;
    const std::int64_t end = begin + share < most ? begin + share : most;
    for (std::int64_t first = begin; first < end; first += kListed) {
      const std::int64_t last = first + kListed < end ? first + kListed : end;
      const int n = find_live(p, cursor, first, last, shared.finder, shared.list);
      check_list<kDepth>(p, ring, shape, Moment::sweep, shared.list, n,
                         shape.whole ? 0 : threadIdx.x / kWarp, shape.whole ? 1 : kWarps,
                         shared.bytes, shared.counts);
      __syncthreads();
    }
    add_counts(p, ring, shared.counts);
  }
  // Whoever is done last moves the cursor: nobody reads it any more.
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&p.words->sweeps_done, 1u) + 1 != gridDim.x) return;
  __threadfence();
  p.words->sweep_cursor = __ldcg(&p.words->next_cursor);
  p.words->sweeps_done = 0;
}

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas)
    null_digest_kernel(const __grid_constant__ PoolParams p, TileShape shape) {
  auto& scratch = shared_as<DigestScratch<kDepth>>();
  const std::uint64_t digest = digest_null<kDepth>(p, shape, scratch);
  if (threadIdx.x == 0) p.words->null_digest = digest;
}

}  // namespace

void launch_verify_slots(const PoolParams& p, const RingParams& ring, SlotList list, Moment moment,
                         Device device, Stream stream) {
  const gpu::OnDevice current(device);
  const TileShape shape = tile_shape(p, list.count, device);
  with_depth(p, [&](auto depth) {
    gpu::launch("canary verify_slots", verify_slots_kernel<depth()>,
                {grid_for(device, list.count, shape.rows * (shape.whole ? 1 : kWarps), kCtas),
                 kThreads, 1, sizeof(ScratchOf<depth()>)},
                stream, p, ring, list, moment, shape);
  });
}

void launch_sweep(const PoolParams& p, const RingParams& ring, std::int64_t most, Device device,
                  Stream stream) {
  const gpu::OnDevice current(device);
  TileShape shape = tile_shape(p, most, device);
  // Without bytes a slot is a chain of loads and nothing else: a slot a thread.
  if (depth_of(p) == Depth::none) shape.rows = kWarp;
  with_depth(p, [&](auto depth) {
    const std::int64_t tile = shape.rows * (shape.whole ? 1 : kWarps);
    const std::int64_t ctas = grid_for(device, most, tile, kCtas);
    const std::int64_t tiles = (most + tile - 1) / tile;
    gpu::launch_following("canary sweep", sweep_kernel<depth()>,
                          {.grid = static_cast<unsigned>(ctas) + 1,
                           .block = kThreads,
                           .shared_bytes = sizeof(Shared<depth()>)},
                          stream, p, ring, most, (tiles + ctas - 1) / ctas * tile, shape);
  });
}

void launch_null_digest(const PoolParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  with_depth(p, [&](auto depth) {
    if constexpr (depth() != Depth::none) {
      gpu::launch("canary null slot", null_digest_kernel<depth()>,
                  {1, kThreads, 1, sizeof(DigestScratch<depth()>)}, stream, p,
                  TileShape{1, parts_of(p, 1), true});
    }
  });
}

}  // namespace serinus::canary::cuda
