// Verify along the batch's table: plan and check in one kernel. Every CTA plans for itself; tiles
// of neighbouring cells are numbered through all requests and dealt out. A warp asks for all
// records of a tile at once and looks whether they are plainly sound, a cell a lane; a group of 32
// cells in which one is not is judged as on the CPU, by the same functions. Then the tile's bytes
// are hashed.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/check.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

using Scan = cub::BlockScan<long long, kThreads>;
using Reduce = cub::BlockReduce<unsigned long long, kThreads>;

/// CTAs of a multiprocessor, and groups of 32 cells of a warp that are under way at once. Bytes
/// keep a multiprocessor busy by themselves.
template <Depth kDepth>
constexpr int kCtas = kDepth == Depth::none ? 3 : 2;

// ---------------------------------------------------------------- the kernel

/// A Range where it takes little room: tables are cut to 2^31 - 1 cells a row.
struct CellRange {
  std::int32_t begin, end;
};

template <Depth kDepth>
struct Shared {
  union {
    Scan::TempStorage scan;
    Reduce::TempStorage reduce;
  };
  TileCounts counts;
  std::uint64_t total;
  bool is_last;  ///< the CTA that read the cursors last
  long long first_tile[kThreads], tiles;
  CellRange ranges[kThreads][kRanges];
  std::int64_t rows[kThreads];
  Owner owners[kThreads];
  ScratchOf<kDepth> bytes;
};

/// Cells of a request's tile `turn`; the range that they are of.
template <Depth kDepth>
__device__ __forceinline__ CellRange tile_of(const Shared<kDepth>& shared, int q, std::int64_t turn,
                                             const TileShape& shape, CellRange* of = nullptr) {
  std::int64_t tile = turn - shared.first_tile[q];
  CellRange range = shared.ranges[q][0];
#pragma unroll 1
  for (int i = 1; i < kRanges; ++i) {
    const std::int64_t before = shape.tiles(range.end - range.begin);
    if (tile < before) break;
    tile -= before;
    range = shared.ranges[q][i];
  }
  if (of != nullptr) *of = range;
  const int begin = range.begin + static_cast<int>(tile) * shape.rows;
  return {begin, min(begin + shape.rows, range.end)};
}

/// Looks at the records of request r0 + q's tile, and judges those groups that are not plainly
/// sound. By a warp.
template <Depth kDepth, int kGroups>
__device__ __forceinline__ void check_tile(const PoolParams& p, const RingParams& ring,
                                           const BatchParams& b, Moment moment, std::int64_t r0,
                                           int q, std::int64_t turn, const TileShape& shape,
                                           Shared<kDepth>& shared) {
  const auto walk = [&] { return Walk(p, b, r0 + q, shared.rows[q], shared.owners[q]); };
  unsigned doubtful = 0;
  int verified = 0;
  {
    const CellRange tile = tile_of(shared, q, turn, shape);
    doubtful = doubtful_groups<kDepth, kGroups>(p, walk(), tile.begin, tile.end, shared.bytes);
    verified = tile.end - tile.begin;
  }
  __syncwarp();  // judging is seldom: it works out for itself what it needs, and costs no registers
  for (; doubtful != 0; doubtful &= doubtful - 1) {
    CellRange of;
    const CellRange tile = tile_of(shared, q, turn, shape, &of);
    const int first = (__ffs(static_cast<int>(doubtful)) - 1) * kWarp;
    const int begin = tile.begin + first;
    if (begin >= tile.end) break;
    const int end = min(begin + kWarp, tile.end);
    verified -= end - begin -
                judge_group<kDepth>(p, ring, walk(), moment, {begin, end, of.begin}, speaks(shape),
                                    first, shared.bytes);
  }
  if (lane_id() == 0 && speaks(shape)) atomicAdd(&shared.counts.verified, verified);
}

/// `kGroups` of 32 cells are a tile of a warp, or 1 a tile of any shape.
template <Depth kDepth, int kGroups>
__global__ void __launch_bounds__(kThreads, ctas_each(kCtas<kDepth>))
    verify_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                  const __grid_constant__ BatchParams b, Moment moment, std::int64_t records,
                  TileShape shape, TileShape null_shape) {
  gpu::ptx::follow_previous_grid();
  Shared<kDepth>& shared = shared_as<Shared<kDepth>>();
  // The last CTA has the null slot and the lengths.
  if (blockIdx.x == gridDim.x - 1) {
    report_ranges(p, ring, b, moment);
    if (p.clean_null) check_null<kDepth>(p, ring, moment, null_shape, shared.bytes);
    return;
  }
  const unsigned ctas = gridDim.x - 1;
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    shared.counts = {};
    shared.is_last = false;
  }
  if constexpr (kDepth != Depth::none) init_digest(shared.bytes.digest);
  if (records != 0) {
    std::uint64_t mine = 0;
    for (std::int64_t r = t; r < b.num_requests; r += kThreads) {
      const Range all = prefix_range(p, b, r);
      mine += static_cast<std::uint64_t>(all.end - all.begin);
    }
    const std::uint64_t sum = Reduce(shared.reduce).Sum(mine);
    if (t == 0) shared.total = sum;
    __syncthreads();
  }
  // Tiles until it is this warp's, or CTA's, turn.
  std::int64_t turn = shape.whole ? blockIdx.x : blockIdx.x * std::int64_t{kWarps} + t / kWarp;
  const unsigned turns = shape.whole ? ctas : ctas * kWarps;
  for (std::int64_t r0 = 0; r0 < b.num_requests; r0 += kThreads) {
    // The tiles of the next requests, numbered through.
    long long tiles = 0;
    if (r0 + t < b.num_requests) {
      const Plan plan = plan_of(p, b, r0 + t, records, records != 0 ? shared.total : 0);
#pragma unroll
      for (int i = 0; i < kRanges; ++i) {
        const Range& range = plan.ranges[i];
        shared.ranges[t][i] = {static_cast<int>(range.begin), static_cast<int>(range.end)};
        tiles += shape.tiles(range.end - range.begin);
      }
      shared.rows[t] = b.rows[r0 + t];
      shared.owners[t] = b.owners[r0 + t];
    }
    long long total = 0;
    Scan(shared.scan).ExclusiveSum(tiles, tiles, total);
    shared.first_tile[t] = tiles;
    if (t == 0) shared.tiles = total;
    __syncthreads();
    // Whoever reads the cursors last moves them, when it is done.
    if (records != 0 && t == 0 && r0 + kThreads >= b.num_requests) {
      shared.is_last = atomicAdd(&p.words->plans_read, 1u) + 1 == ctas;
    }
    for (; turn < shared.tiles; turn += turns) {
      const int q = find_run(shared.first_tile, turn);
      check_tile<kDepth, kGroups>(p, ring, b, moment, r0, q, turn, shape, shared);
      if constexpr (kDepth != Depth::none) {
        compare_bytes<kDepth>(p, ring, shape, shared.bytes, moment, shared.owners[q],
                              shared.rows[q], shared.counts);
      }
    }
    turn -= shared.tiles;
    __syncthreads();
  }
  add_counts(p, ring, shared.counts);
  if (records == 0 || !shared.is_last) return;
  for (std::int64_t r = t; r < b.num_requests; r += kThreads) {
    const Plan plan = plan_of(p, b, r, records, shared.total);
    if (plan.rolls) p.cursors[b.rows[r]] = plan.next;
  }
  if (t == 0) p.words->plans_read = 0;
}

}  // namespace

void launch_verify(const PoolParams& p, const RingParams& ring, const BatchParams& b, Moment moment,
                   std::int64_t records, std::int64_t most_cells, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  with_depth(p, [&](auto depth) {
    TileShape shape = tile_shape(p, most_cells, device);
    // A few cells here and there are better off in small tiles.
    const std::int64_t warps = std::int64_t{gpu::multiprocessors(device)} * kWarps * 2;
    if (!shape.whole && most_cells < warps * shape.rows) shape.rows = kWarp;
    const TileShape null_shape{1, parts_of(p, 1), true};
    // A range ends a tile, so there may be one more for each.
    const std::int64_t cells = std::min(most_cells, std::int64_t{1} << 40) +
                               b.num_requests * (records == 0 ? 1 : kRanges) * shape.rows;
    constexpr int kMost = kTileRows<depth()> / kWarp;
    gpu::launch(
        "canary verify",
        shape.rows > kWarp ? verify_kernel<depth(), kMost> : verify_kernel<depth(), 1>,
        {.grid =
             grid_for(device, cells, shape.rows * (shape.whole ? 1 : kWarps), kCtas<depth()>) + 1,
         .block = kThreads,
         .shared_bytes = sizeof(Shared<depth()>)},
        stream, p, ring, b, moment, records, shape, null_shape);
  });
}

}  // namespace serinus::canary::cuda
