// Verify slots of a list, or the next live ones. Which those are, every CTA finds for itself: from
// counts of every 1024 slots it knows which words hold its part.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/slots.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

template <Depth kDepth>
constexpr int kCtas = kDepth == Depth::all ? 2 : 3;  // on every multiprocessor
constexpr int kListed = 768;                         // slots that a CTA finds at once

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
__global__ void __launch_bounds__(kThreads, kCtas<kDepth>)
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
__global__ void __launch_bounds__(kThreads, kCtas<kDepth>)
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
__global__ void __launch_bounds__(kThreads, kCtas<kDepth>)
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
    gpu::launch(
        "canary verify_slots", verify_slots_kernel<depth()>,
        {grid_for(device, list.count, shape.rows * (shape.whole ? 1 : kWarps), kCtas<depth()>),
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
    const std::int64_t ctas = grid_for(device, most, tile, kCtas<depth()>);
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
