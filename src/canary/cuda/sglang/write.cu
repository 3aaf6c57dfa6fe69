// Write on the GPU. Two roles in one launch that need nothing of each other: CTAs that walk the
// chains, a warp a request, and store everything of a record but its fingerprint; and CTAs that
// fold the bytes of all new tokens at memory speed and store the fingerprints.
//
// A chain is serial by definition: three splitmix64 a token. All lanes of a warp compute it
// together, so that lane l can keep the hash before token l; 32 tokens are loaded, checked and
// stored at once, the next 32 while this is going on.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/fold.cuh"
#include "canary/cuda/sglang/run.h"
#include "gpu/launch.h"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCtasEach = 4;  // on every multiprocessor: what the staging buffers allow

/// A word that is xored into a chain, with the first xor-shift of splitmix64 applied to it.
__device__ __forceinline__ std::uint64_t prepare(std::uint64_t x) {
  return x ^ (x >> 30);
}

/// splitmix64 but for its last xor-shift, of an x whose first has been done.
__device__ __forceinline__ std::uint64_t middle(std::uint64_t x) {
  x *= hash::kMul1;
  return (x ^ (x >> 27)) * hash::kMul2;
}

/// The last xor-shift of one splitmix64, the xor of a prepared word, and the first xor-shift of the
/// next: linear all of it, so done at once, which is one dependent step less.
__device__ __forceinline__ std::uint64_t between(std::uint64_t z, std::uint64_t prepared) {
  return (z ^ prepared) ^ ((z >> 31) ^ (z >> 30) ^ (z >> 61));
}

/// A chain is carried as z, its hash before the last xor-shift.
__device__ __forceinline__ std::uint64_t hash_in(std::uint64_t z) {
  return z ^ (z >> 31);
}
__device__ __forceinline__ std::uint64_t with_hash(std::uint64_t hash) {
  return hash ^ (hash >> 31) ^ (hash >> 62);  // the inverse
}
/// mix3(hash, token, position).
__device__ __forceinline__ std::uint64_t step(std::uint64_t z, ulonglong2 prepared) {
  z = middle(between(z, 0));
  z = middle(between(z, prepared.x));
  return middle(between(z, prepared.y));
}

/// 32 entries of a row, one a lane.
struct Lane {
  std::int64_t slot = -1, token = 0, position = 0;

  __device__ static Lane at(const WriteParams& p, std::int64_t i, std::int64_t end) {
    return i < end ? Lane{p.slots[i], p.tokens[i], p.positions[i]} : Lane{};
  }
};

/// Walks row r. `words` is the warp's: 32 prepared tokens and positions.
__device__ void walk_row(const WriteParams& p, std::int64_t r, ulonglong2* words, int alignment,
                         std::int64_t& entries, std::int64_t& out_of_range) {
  const ContextParams& c = p.context;
  const int lane = lane_id();
  const WriteRow row = write_row(p, r);
  if (lane == 0 && row.was_cut) ++out_of_range;
  if (row.end <= row.begin) return;
  std::uint64_t z = with_hash(hash::kAnchorHash);
  bool check_positions = false;
  std::int64_t position_before = 0;
  if (row.seed_exists && row.seed >= 0) {
    const Record predecessor = load(c, row.seed, alignment);
    z = with_hash(hash_of(predecessor));
    check_positions = *c.enable_chain_position_assert != 0;
    position_before = predecessor.position;
  }
  Lane next = Lane::at(p, row.begin + lane, row.end);
  for (std::int64_t base = row.begin; base < row.end; base += kWarp) {
    const Lane here = next;
    next = Lane::at(p, base + kWarp + lane, row.end);
    const bool stamped = here.slot >= 0 && row.seed_exists && exists(c, here.slot);
    if (here.slot >= 0) {
      ++entries;
      if (!stamped) ++out_of_range;
    }
    const unsigned mask = __ballot_sync(kAllLanes, stamped);
    words[lane] = make_ulonglong2(prepare(u64(here.token)), prepare(u64(here.position)));
    __syncwarp();
    std::uint64_t mine = z;
    if (mask == kAllLanes) {
#pragma unroll 8
      for (int l = 0; l < kWarp; ++l) {
        if (l == lane) mine = z;
        z = step(z, words[l]);
      }
    } else {
      for (unsigned left = mask; left != 0; left &= left - 1) {
        const int l = __ffs(static_cast<int>(left)) - 1;
        if (l == lane) mine = z;
        z = step(z, words[l]);
      }
    }
    __syncwarp();
    const std::uint64_t hash = hash_in(mine);
    // The position before this lane's, among those that are stamped.
    const unsigned below = mask & ((1u << lane) - 1);
    const int from = below != 0 ? 31 - __clz(static_cast<int>(below)) : 0;
    const std::int64_t shuffled = i64(shuffle(u64(here.position), from));
    const std::int64_t next_position =
        i64(u64(below != 0 ? shuffled : position_before) + 1);
    if (mask != 0) {
      position_before = i64(shuffle(u64(here.position), 31 - __clz(static_cast<int>(mask))));
    }
    if (!stamped) continue;
    std::uint8_t* const to = c.records + here.slot * c.stride;
    store_words(to, u64(here.token), u64(here.position), alignment);
    if (c.num_sources > 0) {
      store_word(to + 16, hash, alignment);
    } else {
      store_words(to + 16, hash, 0, alignment);
    }
    const std::int64_t i = base + lane;
    if (p.expected_tokens != nullptr) {
      const std::int64_t bits = wrong_input(p, i);
      if (bits != 0)
        append(c, write_violation(p, i, hash, p.expected_tokens[i], p.expected_positions[i], bits));
    }
    if (check_positions && here.position != next_position) {
      append(c, write_violation(p, i, hash, here.token, next_position,
                                static_cast<std::int64_t>(FailReason::write_position)));
    }
  }
}

/// This warp's share of all rows' entries, 32 of one row at a time: `warp` of `warps`.
__device__ void fold_rows(const WriteParams& p, std::int64_t rows, std::int64_t warp,
                          std::int64_t warps, std::uint32_t stage, int alignment) {
  const ContextParams& c = p.context;
  const int lane = lane_id();
  std::int64_t turn = warp;  // pieces of work until it is this warp's turn
  for (std::int64_t r = 0; r < rows; r += kWarp) {
    // A row a lane; then all their pieces, numbered through.
    WriteRow row;
    if (r + lane < rows) row = write_row(p, r + lane);
    const std::int64_t pieces = row.seed_exists ? (row.end - row.begin + kWarp - 1) / kWarp : 0;
    std::int64_t up_to = pieces;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const std::int64_t below = __shfl_up_sync(kAllLanes, up_to, d);
      if (lane >= d) up_to += below;
    }
    const std::int64_t total = __shfl_sync(kAllLanes, up_to, kWarp - 1);
    for (; turn < total; turn += warps) {
      const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to > turn))) - 1;
      const std::int64_t first = __shfl_sync(kAllLanes, up_to - pieces, owner);
      const std::int64_t begin = __shfl_sync(kAllLanes, row.begin, owner);
      const std::int64_t end = __shfl_sync(kAllLanes, row.end, owner);
      const std::int64_t i = begin + (turn - first) * kWarp + lane;
      const std::int64_t slot = i < end ? p.slots[i] : -1;
      const bool stamped = exists(c, slot);
      const std::uint64_t real_kv_hash = fold_warp(c, slot, stamped, stage);
      if (stamped) store_word(c.records + slot * c.stride + 24, real_kv_hash, alignment);
    }
    turn -= total;
  }
}

__global__ void __launch_bounds__(kThreads, kCtasEach)
    write_kernel(const __grid_constant__ WriteParams p, unsigned chain_ctas) {
  extern __shared__ uint4 shared[];
  const ContextParams& c = p.context;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t rows = count_of(*p.num_valid_reqs, p.req_capacity);
  const int alignment = record_alignment(c);
  if (blockIdx.x >= chain_ctas) {
    fold_rows(p, rows, (blockIdx.x - chain_ctas) * std::int64_t{kWarps} + warp,
              (gridDim.x - chain_ctas) * std::int64_t{kWarps},
              gpu::ptx::shared_address(shared) + static_cast<unsigned>(warp * kFoldBytes),
              alignment);
    return;
  }
  if (thread_index() == 0) add(c.kernel_run_counter, 1);
  // Rows go to different multiprocessors first, then to different warps.
  auto* const words = reinterpret_cast<ulonglong2*>(shared) + warp * kWarp;
  std::int64_t entries = 0;
  std::int64_t out_of_range = 0;
  for (std::int64_t r = blockIdx.x + static_cast<std::int64_t>(chain_ctas) * warp; r < rows;
       r += static_cast<std::int64_t>(chain_ctas) * kWarps) {
    walk_row(p, r, words, alignment, entries, out_of_range);
  }
  add(c.slot_run_counter, entries);
  add(c.out_of_range_counter, out_of_range);
}

}  // namespace

void write(const WriteParams& p, Device device, Stream stream) {
  gpu::require_hopper("canary write", device);
  const gpu::OnDevice current(device);
  const bool bytes = p.context.num_sources > 0;
  const unsigned chain_ctas = grid_for(device, p.req_capacity, 1, 1);
  const unsigned fold_ctas = bytes ? grid_for(device, p.num_tokens, kWarps, kCtasEach - 1) : 0;
  gpu::launch("canary write", write_kernel,
              {.grid = chain_ctas + fold_ctas,
               .block = kThreads,
               .shared_bytes = static_cast<std::size_t>(
                   bytes ? kWarps * kFoldBytes : kThreads * static_cast<int>(sizeof(ulonglong2)))},
              stream, p, chain_ctas);
}

}  // namespace serinus::canary::sglang::cuda
