// A tile of new tokens composed to one map of the chain before it: what was there before is read
// here, and nowhere later.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "canary/cuda/serinus/tokens.cuh"

namespace serinus::canary::cuda {

inline constexpr int kEach = static_cast<int>(kStampTile) / kThreads;  ///< tokens of a thread
using LengthScan = cub::BlockScan<long long, kThreads>;

/// R^n of the run of a thread.
__device__ __forceinline__ std::uint64_t power_of_r(int n) {
  static_assert(kEach == 4);
  constexpr std::uint64_t kR2 = hash::multiply(hash::kR, hash::kR);
  constexpr std::uint64_t kR3 = hash::multiply(kR2, hash::kR);
  constexpr std::uint64_t kR4 = hash::multiply(kR2, kR2);
  return n == 0 ? 1 : n == 1 ? hash::kR : n == 2 ? kR2 : n == 3 ? kR3 : kR4;
}

__device__ __forceinline__ ChainMap shuffle_up_map(const ChainMap& m, int d) {
  return {__shfl_up_sync(kAllLanes, static_cast<unsigned long long>(m.multiplier), d),
          __shfl_up_sync(kAllLanes, static_cast<unsigned long long>(m.addend), d)};
}

/// The map of all threads before this one; in `total` with its own. `of_warps` is shared.
__device__ inline ChainMap maps_before(const ChainMap& mine, ChainMap* of_warps, ChainMap& total) {
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  ChainMap up_to = mine;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const ChainMap below = shuffle_up_map(up_to, d);
    if (lane >= d) up_to = then(below, up_to);
  }
  if (lane == kWarp - 1) of_warps[warp] = up_to;
  ChainMap before = shuffle_up_map(up_to, 1);
  if (lane == 0) before = {};
  __syncthreads();
  ChainMap of_warp;
#pragma unroll 1
  for (int w = 0; w < warp; ++w) of_warp = then(of_warp, of_warps[w]);
  total = then(of_warp, up_to);
  return then(of_warp, before);
}

/// Composes tile `number`: what was there before is read here, and nowhere later. A CTA's work.
__device__ __forceinline__ void compose_tile(const PoolParams& p, const RingParams& ring,
                                             const BatchParams& b, std::int64_t number,
                                             StampedToken* tokens, ChainMap* maps) {
  __shared__ LengthScan::TempStorage scan;
  __shared__ long long firsts[kThreads + 1];
  __shared__ std::uint64_t terms[kStampTile], multipliers[kStampTile];
  __shared__ ChainMap of_warps[kWarps];
  constexpr std::uint64_t kStarts = std::uint64_t{1} << 63;  // in `terms`
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t tile = number * kStampTile;
  Told told[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) told[i].load(b, tile + i * kThreads + t);
  // Which request a token is of: the last whose run begins at it or before.
  std::int64_t request[kEach], begin[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    request[i] = -1;
    begin[i] = 0;
  }
  std::int64_t base = 0;
  for (std::int64_t r0 = 0; r0 < b.num_requests && base < b.num_tokens; r0 += kThreads) {
    const std::int64_t r = r0 + t;
    const long long length = r < b.num_requests ? extend_of(b, r) : 0;
    long long first = 0;
    long long total = 0;
    LengthScan(scan).ExclusiveSum(length, first, total);
    firsts[t] = base + first;
    if (t == 0) firsts[kThreads] = base + total;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t j = tile + i * kThreads + t;
      const std::int64_t j0 = j - lane_id();  // the warp's first
      if (j0 + kWarp <= base || j0 >= base + total) continue;
      // Most warps have tokens of one request.
      int below = find_run(firsts, j0 > base ? j0 : base);
      if (j0 + kWarp > firsts[below + 1]) {
        for (int above = kThreads; above - below > 1;) {
          const int middle = (below + above) / 2;
          (firsts[middle] <= j ? below : above) = middle;
        }
      }
      if (j < base || j >= base + total) continue;
      request[i] = r0 + below;
      begin[i] = firsts[below];
    }
    if (number == 0 && r < b.num_requests) {
      // Runs that leave the flat arrays.
      const std::int64_t room = b.num_tokens - (base + first);
      const std::int64_t want = b.extend_lens[r];
      if (want < 0 || want > (room < 0 ? 0 : room)) {
        report_out_of_range(ring, p, -1, Moment::tail, b.owners[r], b.rows[r], want);
      }
    }
    base += total;
    __syncthreads();
  }
  std::int64_t row[kEach], prefix[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    row[i] = request[i] >= 0 ? b.rows[request[i]] : -1;
    prefix[i] = request[i] >= 0 ? b.prefix_lens[request[i]] : 0;
  }
  StampedToken mine[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t j = tile + i * kThreads + t;
    NewToken made;
    if (j < b.num_tokens) {
      made = token_at(p, ring, b, j, told[i], request[i], begin[i], row[i], prefix[i]);
    }
    mine[i] = made.token;
    // Multiplier 1 leaves the chain as it is.
    const bool stamped = made.token.request >= 0;
    terms[i * kThreads + t] = hash::canonical(made.term) | (made.starts ? kStarts : 0);
    multipliers[i * kThreads + t] = stamped ? 0 : 1;
  }
  __syncthreads();
  // From here on a thread has tokens that follow each other.
  std::uint64_t h = 0;
  int power = 0;
  bool started = false;
  std::uint64_t local[kEach];
  int powers[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::uint64_t term = terms[t * kEach + i];
    if (multipliers[t * kEach + i] == 0) {
      const bool starts = (term & kStarts) != 0;
      h = starts ? term & ~kStarts : hash::chain_step(h, term);
      started |= starts;
      ++power;
    }
    local[i] = h;
    powers[i] = started ? -1 : power;
  }
  ChainMap total;
  const ChainMap before =
      maps_before({started ? 0 : power_of_r(power), hash::canonical(h)}, of_warps, total);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool alone = powers[i] < 0;
    const std::uint64_t r = alone ? 0 : power_of_r(powers[i]);
    terms[t * kEach + i] =
        hash::fold(static_cast<hash::u128>(before.addend) * r + hash::fold(local[i]));
    multipliers[t * kEach + i] = hash::fold(static_cast<hash::u128>(before.multiplier) * r);
  }
  if (t == kThreads - 1) maps[number] = total;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t j = tile + i * kThreads + t;
    if (j >= b.num_tokens) continue;
    mine[i].map = {multipliers[i * kThreads + t], terms[i * kThreads + t]};
    tokens[j] = mine[i];
  }
}

}  // namespace serinus::canary::cuda
