// The work items of a launch, and places in shared memory: what all roles of the kernel share.
#pragma once

#include <cstdint>

#include "gpu/ptx/mbarrier.cuh"
#include "gpu/ptx/sync.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "sparse_mla/sm90/config.h"

namespace serinus::sparse_mla::sm90 {

namespace ptx = serinus::gpu::ptx;

/// Query heads of one token ...
struct Heads {
  std::uint32_t token, head;  // the first head
};
/// ... over a range of the token's indices. Never without a block, but a block may be empty.
struct Range {
  std::uint32_t begin;  // first position in the token's indices
  std::uint32_t end;    // positions from here on do not count
  std::uint32_t blocks;
};

__device__ __forceinline__ bool is_split(const KernelParams& k, std::uint32_t item) {
  return item >= k.whole;
}

template <class C>
__device__ __forceinline__ Heads heads_of(const KernelParams& k, std::uint32_t item) {
  const std::uint32_t rest = is_split(k, item) ? k.whole + (item - k.whole) / k.splits : item;
  return {rest / k.head_groups, rest % k.head_groups * C::kHeads};
}

template <class C>
__device__ __forceinline__ Range range_of(const KernelParams& k, std::uint32_t item) {
  auto count = static_cast<std::uint32_t>(k.p.topk);
  if (k.p.topk_length != nullptr) {
    count = static_cast<std::uint32_t>(min(max(k.p.topk_length[heads_of<C>(k, item).token], 0),
                                           static_cast<std::int32_t>(k.p.topk)));
  }
  count = __shfl_sync(~0u, count, 0);  // tells the compiler that a warp never parts here
  std::uint32_t first = 0, last = (count + kBlock - 1) / kBlock;
  if (is_split(k, item)) {
    const std::uint32_t split = (item - k.whole) % k.splits, all = last;
    first = static_cast<std::uint32_t>(std::uint64_t{all} * split / k.splits);
    last = static_cast<std::uint32_t>(std::uint64_t{all} * (split + 1) / k.splits);
  }
  return {first * kBlock, min(count, last * kBlock), max(last - first, 1u)};
}

/// A stage of a ring and the parity of its turn.
template <int kStages>
struct Ring {
  std::uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Where things lie: `base` is the start of shared memory.
template <class C>
struct Places {
  std::uint32_t base;
  __device__ __forceinline__ std::uint32_t barrier(int number, std::uint32_t slot) const {
    return base + C::kBarriers + (number + slot) * 8;
  }
  __device__ __forceinline__ std::uint32_t block(std::uint32_t stage) const {
    return base + stage * C::kBlockBytes;
  }
  __device__ __forceinline__ std::uint32_t weights(std::uint32_t slot) const {
    return base + C::kWeights + slot * C::kWeightTile;
  }
  __device__ __forceinline__ std::uint32_t queries(std::uint32_t slot) const {
    return base + C::kQueries + slot * (C::kChunks * C::kQueryTile);
  }
  __device__ __forceinline__ std::uint32_t header(std::uint32_t slot) const {
    return base + C::kHeaders + slot * static_cast<std::uint32_t>(sizeof(typename C::Header));
  }
  __device__ __forceinline__ std::uint32_t mask(std::uint32_t stage) const {
    return base + C::kMask + stage * 8;
  }
};

/// Byte offset in a tile of 16-byte unit `unit` of row `row` (64-byte swizzle).
__device__ __forceinline__ std::uint32_t in_tile(std::uint32_t row, std::uint32_t unit) {
  return row * 64 + ((unit ^ (row / 2 % 4)) * 16);
}

/// The same in a tile of 128 columns (128-byte swizzle).
__device__ __forceinline__ std::uint32_t in_wide_tile(std::uint32_t row, std::uint32_t unit) {
  return row * 128 + ((unit ^ (row % 8)) * 16);
}

/// As an instruction that the compiler does not repeat wherever it wants the value again.
__device__ __forceinline__ std::uint32_t opaque_lane() {
  std::uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Calls `multiply(i, operand)` for every 32 columns of a block, i of them.
template <class C, class F>
__device__ __forceinline__ void for_columns(std::uint32_t block, const F& multiply) {
  const ptx::MatrixDescriptor<128> first(block);
#pragma unroll
  for (int i = 0; i < 2 * C::kChunks; ++i) multiply(i, first.plus(i / 4 * kWideTile + i % 4 * 32));
}

/// One arrival of a warp, after all of its lanes' accesses so far.
__device__ __forceinline__ void warp_arrives(std::uint32_t bar) {
  __syncwarp();
  if (ptx::elect_one()) ptx::mbarrier_arrive(bar);
}

}  // namespace serinus::sparse_mla::sm90
