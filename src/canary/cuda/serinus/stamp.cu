// Write on the GPU. A chain is h' = h * R + f(token, position): affine maps mod 2^61 - 1, which
// compose, so that tokens need not wait for each other. Two kernels: the first reads everything
// that was there before (tables, predecessors' records), composes each tile of 1024 tokens to one
// map, and leaves with every token the map from the tile's beginning; the second finds the chain
// before its tile, from the maps back to the last that begins one, hashes bytes and stores. The
// first token of a request always begins a chain, so requests need no bounds.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/bytes.cuh"
#include "canary/cuda/serinus/compose.cuh"
#include "canary/cuda/serinus/tile.h"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

__global__ void __launch_bounds__(kThreads, ctas_each(4))
    compose_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                   const __grid_constant__ BatchParams b, StampedToken* tokens, ChainMap* maps) {
  // In this order: the next grid reads bytes before it waits for this one, and so they must be
  // there.
  gpu::ptx::wait_for_previous_grid();
  gpu::ptx::let_next_grid_begin();
  compose_tile(p, ring, b, blockIdx.x, tokens, maps);
}

/// A token's chain, given that before its tile.
__device__ __forceinline__ std::uint64_t chain_after(std::uint64_t before,
                                                     const StampedToken& token) {
  const std::uint64_t power = token.power > 0 ? __ldg(&kPowers.up[token.power]) : 0;
  return hash::canonical(static_cast<hash::u128>(before) * power + token.chain);
}

/// The chain before tile `tile`: the maps before it, composed back to the last that forgets what
/// was before. By a warp.
__device__ std::uint64_t chain_before(const ChainMap* maps, std::int64_t tile) {
  ChainMap after{};  // of the tiles between those looked at and `tile`
  while (tile > 0 && after.multiplier != 0) {
    const std::int64_t i = tile - 1 - lane_id();
    ChainMap mine;
    if (i >= 0) mine = maps[i];
    const unsigned forgets = __ballot_sync(kAllLanes, i < 0 || mine.multiplier == 0);
    const int n = forgets != 0 ? __ffs(static_cast<int>(forgets)) : kWarp;
    for (int l = 0; l < n; ++l) {
      after = then({shuffle(mine.multiplier, l), shuffle(mine.addend, l)}, after);
    }
    tile -= n;
  }
  return after.addend;
}

template <Depth kDepth>
constexpr int kCtas = kDepth == Depth::none      ? 4
                      : kDepth == Depth::partial ? 3
                                                 : 2;  // on every multiprocessor

template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, kCtas<kDepth>)
    stamp_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                 const __grid_constant__ BatchParams b, const StampedToken* tokens,
                 const ChainMap* maps, TileShape shape) {
  gpu::ptx::let_next_grid_begin();
  auto& scratch = shared_as<DigestScratch<kDepth>>();
  __shared__ int stamps;
  if constexpr (kDepth != Depth::none) init_digest(scratch);
  if (threadIdx.x == 0) stamps = 0;
  __syncthreads();
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int64_t turn = shape.whole ? blockIdx.x : blockIdx.x * std::int64_t{kWarps} + warp;
  const std::int64_t turns = shape.whole ? gridDim.x : gridDim.x * std::int64_t{kWarps};
  bool composed = false;
  for (; turn * shape.rows < b.num_tokens; turn += turns) {
    const std::int64_t first = turn * shape.rows;
    if constexpr (kDepth != Depth::none) {
      for (int row = lane; row < shape.rows; row += kWarp) {
        const std::int64_t j = first + row;
        const std::int64_t slot = j < b.num_tokens ? stamped_slot(p, b.locations[j]) : -1;
        scratch.slots[warp][row] = slot > 0 ? static_cast<std::int32_t>(slot) : -1;
      }
      __syncwarp();
      digest_tile<kDepth>(p, shape, scratch);
      tile_barrier(shape);
    }
    // Bytes do not depend on what is composed meanwhile.
    if (!composed) gpu::ptx::wait_for_previous_grid();
    composed = true;
    const std::uint64_t seed = speaks(shape) ? chain_before(maps, first / kStampTile) : 0;
    int stored = 0;
    for (int row = lane; row < shape.rows && speaks(shape); row += kWarp) {
      const std::int64_t j = first + row;
      if (j >= b.num_tokens) break;
      const StampedToken token = tokens[j];
      if (token.request < 0) continue;
      const std::int64_t slot = stamped_slot(p, b.locations[j]);
      ++stored;
      std::uint64_t digest = 0;
      if constexpr (kDepth != Depth::none) digest = digest_of(p, shape, scratch, row);
      const std::uint64_t chain = chain_after(seed, token);
      store_token(p, ring, b, j, token, slot, chain, digest);
    }
    stored = __reduce_add_sync(kAllLanes, stored);
    if (lane == 0 && stored != 0) atomicAdd(&stamps, stored);
    if constexpr (kDepth != Depth::none) tile_barrier(shape);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  add(ring.header->counts.records_written, static_cast<std::uint64_t>(stamps));
  add(ring.header->counts.bytes_digested,
      static_cast<std::uint64_t>(stamps) * static_cast<std::uint64_t>(p.slot_bytes));
}

/// All of it in one launch, for tokens of one tile: one CTA composes, the others hash, and whoever
/// is done last stores.
template <Depth kDepth>
__global__ void __launch_bounds__(kThreads, 2)
    stamp_few_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                     const __grid_constant__ BatchParams b, const Workspace w, TileShape shape) {
  gpu::ptx::follow_previous_grid();
  __shared__ int stamps;
  __shared__ bool is_last;
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) stamps = 0;
  if (blockIdx.x == 0) {
    compose_tile(p, ring, b, 0, w.tokens, w.maps);
  } else if constexpr (kDepth != Depth::none) {
    auto& scratch = shared_as<DigestScratch<kDepth>>();
    init_digest(scratch);
    __syncthreads();
    const int lane = lane_id();
    const int warp = t / kWarp;
    for (std::int64_t first = (blockIdx.x - 1) * std::int64_t{shape.rows}; first < b.num_tokens;
         first += (gridDim.x - 1) * std::int64_t{shape.rows}) {
      const std::int64_t j = first + lane;
      const bool inside = lane < shape.rows && j < b.num_tokens;
      const std::int64_t slot = inside ? stamped_slot(p, b.locations[j]) : -1;
      if (lane < shape.rows) scratch.slots[warp][lane] = static_cast<std::int32_t>(slot);
      __syncwarp();
      digest_tile<kDepth>(p, shape, scratch);
      __syncthreads();
      if (warp == 0 && slot > 0) w.digests[j] = digest_of(p, shape, scratch, lane);
      __syncthreads();
    }
  }
  __threadfence();
  __syncthreads();
  if (t == 0) is_last = atomicAdd(&p.words->stamps_done, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (std::int64_t j = t; j < b.num_tokens; j += kThreads) {
    const StampedToken token = load_composed(w.tokens + j);
    if (token.request < 0) continue;
    const std::int64_t slot = stamped_slot(p, b.locations[j]);
    if (slot <= 0) continue;
    atomicAdd(&stamps, 1);
    // Nothing was before the tile.
    store_token(p, ring, b, j, token, slot, chain_alone(token),
                kDepth == Depth::none ? 0 : __ldcg(w.digests + j));
  }
  __syncthreads();
  if (t != 0) return;
  p.words->stamps_done = 0;
  add(ring.header->counts.records_written, static_cast<std::uint64_t>(stamps));
  add(ring.header->counts.bytes_digested,
      static_cast<std::uint64_t>(stamps) * static_cast<std::uint64_t>(p.slot_bytes));
}

}  // namespace

void launch_stamp(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                  const Workspace& w, Device device, Stream stream) {
  if (b.num_tokens == 0) return;
  const gpu::OnDevice current(device);
  if (b.num_tokens <= kStampTile && b.parents == nullptr) {
    with_depth(p, [&](auto depth) {
      const bool bytes = depth() != Depth::none;
      int rows = kWarp;
      while (rows > 1 && b.num_tokens / rows < gpu::multiprocessors(device)) rows /= 2;
      const TileShape shape{rows, parts_of(p, rows), true};
      const unsigned hashing = bytes ? grid_for(device, b.num_tokens, rows, 2) : 0;
      gpu::launch_following("canary stamp", stamp_few_kernel<depth()>,
                            {.grid = 1 + hashing,
                             .block = kThreads,
                             .shared_bytes = bytes ? sizeof(DigestScratch<depth()>) : 0},
                            stream, p, ring, b, w, shape);
    });
    return;
  }
  if (b.parents != nullptr) {
    launch_compose_tree(p, ring, b, w, stream);
  } else {
    const auto tiles = static_cast<unsigned>((b.num_tokens + kStampTile - 1) / kStampTile);
    gpu::launch_following("canary stamp", compose_kernel, {.grid = tiles, .block = kThreads},
                          stream, p, ring, b, w.tokens, w.maps);
  }
  TileShape shape = tile_shape(p, b.num_tokens, device);
  if (depth_of(p) == Depth::none) shape.rows = kWarp;
  const StampedToken* const tokens = w.tokens;
  const ChainMap* const maps = w.maps;
  with_depth(p, [&](auto depth) {
    gpu::launch_following(
        "canary stamp", stamp_kernel<depth()>,
        {.grid = grid_for(device, b.num_tokens, shape.rows * (shape.whole ? 1 : kWarps),
                          kCtas<depth()>),
         .block = kThreads,
         .shared_bytes = depth() == Depth::none ? 0 : sizeof(DigestScratch<depth()>)},
        stream, p, ring, b, tokens, maps, shape);
  });
}

}  // namespace serinus::canary::cuda
