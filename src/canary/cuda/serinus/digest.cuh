// Digests of a tile of slots by a whole CTA, whatever the sources: eight lanes take a row of 1024
// bytes side by side, four rows a warp, so that every load is a full line; where there are few
// slots, the sources of one are shared out to several warps.
#pragma once

#include <cstdint>

#include "canary/cuda/lanes.cuh"
#include "canary/cuda/serinus/params.h"
#include "gpu/ptx/shared.cuh"

namespace serinus::canary::cuda {

inline constexpr int kDigestThreads = 256;
inline constexpr int kRowLanes = 8;                  ///< lanes that share a row
inline constexpr int kWarpRows = kWarp / kRowLanes;  ///< rows of a warp at once
inline constexpr int kVectors = hash::kBlock / 16;   ///< of a block
inline constexpr int kLaneVectors = kVectors / kRowLanes;
inline constexpr int kMaxTile = 256;  ///< slots x parts of a tile at most

/// How a CTA shares out a tile: `rows` slots, each one's sources in `parts`; rows * parts <=
/// kMaxTile, rows a multiple of kWarpRows.
struct TileShape {
  int rows = kMaxTile, parts = 1;
};

struct DigestScratch {
  ulonglong2 nh_keys[kVectors];
  std::uint64_t sums[kMaxTile];
  std::int32_t slots[kMaxTile];  ///< to be digested; -1 = none
};

/// Once a kernel; a barrier must follow.
__device__ inline void init_digest(DigestScratch& s) {
  for (int v = static_cast<int>(threadIdx.x); v < kVectors; v += static_cast<int>(blockDim.x)) {
    s.nh_keys[v] = make_ulonglong2(hash::nh_key(2 * v), hash::nh_key(2 * v + 1));
  }
}

/// 16 bytes of a row of which `n` more exist, zeros after them; `alignment` of the row.
__device__ inline uint4 load_vector(const std::uint8_t* at, std::int64_t n, int alignment) {
  if (alignment == 16 && n >= 16) return __ldcg(reinterpret_cast<const uint4*>(at));
  if (alignment >= 8 && n >= 16) {
    const uint2 a = __ldcg(reinterpret_cast<const uint2*>(at));
    const uint2 b = __ldcg(reinterpret_cast<const uint2*>(at) + 1);
    return make_uint4(a.x, a.y, b.x, b.y);
  }
  if (alignment >= 4 && n >= 16) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(at);
    return make_uint4(__ldcg(words), __ldcg(words + 1), __ldcg(words + 2), __ldcg(words + 3));
  }
  // The end of a row, or an odd one: a loop, so as not to cost the others their registers.
  std::uint64_t low = 0;
  std::uint64_t high = 0;
#pragma unroll 1
  for (int i = 0; i < 16 && i < n; ++i) {
    const std::uint64_t byte = std::uint64_t{__ldcg(at + i)} << (8 * (i % 8));
    (i < 8 ? low : high) |= byte;
  }
  return make_uint4(static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                    static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32));
}

/// NH of one vector of which n bytes exist, n > 0.
__device__ __forceinline__ std::uint64_t nh_vector(uint4 v, ulonglong2 key, std::int64_t n) {
  std::uint64_t nh = hash::nh_pair(static_cast<std::uint64_t>(v.y) << 32 | v.x, key.x);
  if (n > 8) nh += hash::nh_pair(static_cast<std::uint64_t>(v.w) << 32 | v.z, key.y);
  return nh;
}

__device__ __forceinline__ std::uint64_t sum_of_row_lanes(std::uint64_t x) {
#pragma unroll
  for (int d = 1; d < kRowLanes; d *= 2) {
    x += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(x), d);
  }
  return x;
}

/// A source's address of a slot; any address, not to be read, for slot -1.
__device__ __forceinline__ const std::uint8_t* address(const SourceEntry& s, std::int32_t page,
                                                       std::int32_t token) {
  return s.base + page * s.page_stride + token * s.token_stride;
}

template <Depth kDepth>
__device__ inline void digest_tile(const PoolParams& p, TileShape shape, DigestScratch& scratch) {
  const auto page_of = [&p](std::int32_t slot) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(slot) / p.page_size);
  };
  if constexpr (kDepth == Depth::partial) {
    // A lane a row: two vectors of each source.
    for (int unit = static_cast<int>(threadIdx.x); unit < shape.rows * shape.parts;
         unit += kDigestThreads) {
      const std::int32_t slot = scratch.slots[unit % shape.rows];
      hash::u128 terms = 0;
      if (slot >= 0) {
        const std::int32_t page = page_of(slot);
        const auto token =
            static_cast<std::int32_t>(slot - page * static_cast<std::int32_t>(p.page_size));
        for (int k = unit / shape.rows; k < p.num_sources; k += shape.parts) {
          const SourceEntry s = p.sources[k];
          const std::uint8_t* const at = address(s, page, token);
          // Of more than 32 bytes the last 16 follow the first.
          const std::int64_t second = s.bytes > 32 ? s.bytes - 16 : 16;
          const std::int64_t n = s.bytes - second;
          const int alignment = second % 16 == 0  ? s.alignment
                                : second % 4 == 0 ? min(s.alignment, 4)
                                                  : 1;
          const uint4 a = load_vector(at, s.bytes, s.alignment);
          uint4 b = make_uint4(0, 0, 0, 0);
          if (n > 0) b = load_vector(at + second, n, alignment);
          std::uint64_t nh = nh_vector(a, scratch.nh_keys[0], s.bytes);
          if (n > 0) nh += nh_vector(b, scratch.nh_keys[1], n);
          terms += s.length_term + hash::block_term(nh, p.block_keys[s.first_block]);
        }
      }
      scratch.sums[unit] = hash::canonical(terms);
    }
  } else {
    const int lane = lane_id();
    const int in_row = lane % kRowLanes;
    const int quads = shape.rows / kWarpRows;
    const std::uint32_t keys = gpu::ptx::shared_address(scratch.nh_keys + in_row);
    for (int unit = static_cast<int>(threadIdx.x) / kWarp; unit < quads * shape.parts;
         unit += kDigestThreads / kWarp) {
      const int row = unit % quads * kWarpRows + lane / kRowLanes;
      const int part = unit / quads;
      const std::int32_t slot = scratch.slots[row];
      const bool take = slot >= 0;
      if (!__any_sync(kAllLanes, take)) continue;
      const std::int32_t page = page_of(take ? slot : 0);
      const auto token = (take ? slot : 0) - page * static_cast<std::int32_t>(p.page_size);
      hash::u128 terms = 0;
#pragma unroll 1
      for (int k = part; k < p.num_sources; k += shape.parts) {
        const SourceEntry s = p.sources[k];
        const std::uint8_t* at = address(s, page, token) + in_row * 16;
        const bool wide = s.alignment == 16 && s.bytes % 16 == 0;
        terms += s.length_term;
        std::int32_t block = s.first_block;
#pragma unroll 1
        for (std::int64_t left = s.bytes; left > 0;
             left -= hash::kBlock, at += hash::kBlock, ++block) {
          std::uint64_t nh = 0;
          if (wide) {
            const int vectors = left < hash::kBlock ? static_cast<int>(left) / 16 : kVectors;
            uint4 v[kLaneVectors];
#pragma unroll
            for (int i = 0; i < kLaneVectors; ++i) {
              v[i] = make_uint4(0, 0, 0, 0);
              if (take && i * kRowLanes + in_row < vectors) {
                v[i] = __ldcg(reinterpret_cast<const uint4*>(at + i * kRowLanes * 16));
              }
            }
#pragma unroll
            for (int i = 0; i < kLaneVectors; ++i) {
              if (i * kRowLanes + in_row < vectors) {
                // Loaded each time: kept, the keys would take a quarter of the registers.
                nh += nh_vector(v[i], gpu::ptx::load_shared_u64x2(keys + i * kRowLanes * 16), 16);
              }
            }
          } else {
#pragma unroll 1
            for (int i = 0; i < kLaneVectors; ++i) {
              const std::int64_t n = left - (i * kRowLanes + in_row) * 16;
              if (!take || n <= 0) break;
              nh += nh_vector(load_vector(at + i * kRowLanes * 16, n, s.alignment),
                              scratch.nh_keys[i * kRowLanes + in_row], n);
            }
            __syncwarp();
          }
          terms += hash::block_term(sum_of_row_lanes(nh), p.block_keys[block]);
        }
      }
      if (in_row == 0) scratch.sums[part * shape.rows + row] = hash::canonical(terms);
    }
  }
}

/// Of the tile's slot `row`, after digest_tile() and a barrier.
__device__ inline std::uint64_t digest_of(const PoolParams& p, TileShape shape,
                                          const DigestScratch& scratch, int row) {
  std::uint64_t sum = 0;
  for (int part = 0; part < shape.parts; ++part) {
    sum = hash::canonical(sum + scratch.sums[part * shape.rows + row]);
  }
  return hash::finish(sum, p.depth);
}

}  // namespace serinus::canary::cuda
