// The work items of a launch, and places in shared memory: what all roles of the kernel share.
#pragma once

#include <cstdint>

#include "gpu/ptx/mbarrier.cuh"
#include "sparse_mla/sm90/config.h"

namespace serinus::sparse_mla::sm90 {

namespace ptx = serinus::gpu::ptx;

/// 64-128 heads of one token over a range of its pairs. Never without a pair: a pair may be empty.
struct Work {
  std::uint32_t item;  // number in the launch
  std::uint32_t token;
  std::uint32_t head;   // first one
  std::uint32_t begin;  // first position in the token's indices
  std::uint32_t end;    // positions from here on do not count
  std::uint32_t pairs;
};

template <class C>
__device__ __forceinline__ Work work_item(const KernelParams& k, std::uint32_t item) {
  Work w;
  w.item = item;
  const std::uint32_t split = item % k.splits, rest = item / k.splits;
  w.token = rest / k.head_groups;
  w.head = rest % k.head_groups * C::kHeads;
  auto count = static_cast<std::uint32_t>(k.p.topk);
  if (k.p.topk_length != nullptr) {
    count = static_cast<std::uint32_t>(
        min(max(k.p.topk_length[w.token], 0), static_cast<std::int32_t>(k.p.topk)));
  }
  const std::uint32_t all = (count + kPair - 1) / kPair;
  const auto part = [&](std::uint32_t s) {
    return static_cast<std::uint32_t>(std::uint64_t{all} * s / k.splits);
  };
  const std::uint32_t first = k.splits == 1 ? 0 : part(split);
  const std::uint32_t last = k.splits == 1 ? all : part(split + 1);
  w.begin = first * kPair;
  w.end = min(count, last * kPair);
  w.pairs = max(last - first, 1u);
  return w;
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
  __device__ __forceinline__ std::uint32_t barrier(int number, std::uint32_t slot = 0) const {
    return base + C::kBarriers + (number + slot) * 8;
  }
  __device__ __forceinline__ std::uint32_t q(std::uint32_t group) const {
    return base + C::kQ + group * (C::kChunks * kTile);
  }
  __device__ __forceinline__ std::uint32_t own(std::uint32_t stage) const {
    return base + C::kOwn + stage * (kTilesInHalf * kTile);
  }
  __device__ __forceinline__ std::uint32_t rest(std::uint32_t stage) const {
    return base + C::kRest + stage * (C::kRestTiles * kTile);
  }
  __device__ __forceinline__ std::uint32_t other(std::uint32_t stage) const {
    return base + C::kOther + stage * (kTilesInHalf * kTile);
  }
  __device__ __forceinline__ std::uint32_t block(std::uint32_t slot, std::uint32_t half) const {
    return base + C::kK + (slot * 2 + half) * (C::kChunks * kTile);
  }
  __device__ __forceinline__ std::uint32_t p(std::uint32_t warpgroup, std::uint32_t slot) const {
    return base + C::kP + (warpgroup * 2 + slot) * kTile;
  }
  __device__ __forceinline__ std::uint32_t p_send(std::uint32_t warpgroup) const {
    return base + C::kPSend + warpgroup * kTile;
  }
  __device__ __forceinline__ std::uint32_t stats(std::uint32_t warpgroup,
                                                 std::uint32_t slot) const {
    return base + C::kStats + (warpgroup * 2 + slot) * static_cast<std::uint32_t>(sizeof(RowStats));
  }
  __device__ __forceinline__ std::uint32_t mask(std::uint32_t slot) const {
    return base + C::kMask + slot * 8;
  }
};

/// Byte offset in a tile of 16-byte unit `unit` of row `row` (64-byte swizzle).
__device__ __forceinline__ std::uint32_t in_tile(std::uint32_t row, std::uint32_t unit) {
  return row * 64 + ((unit ^ (row / 2 % 4)) * 16);
}

}  // namespace serinus::sparse_mla::sm90
