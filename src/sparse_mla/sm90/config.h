// Shapes and the shared-memory map of the kernel.
//
// Everything that the tensor cores or ldmatrix read lies in tiles. Queries and weights: as many
// rows of 64 bytes as heads, a tile of queries for every 64 columns (64-byte swizzle). A block is
// 64 rows of kv, a tile of 64 rows x 128 bytes for every 128 columns (128-byte swizzle); it has its
// place in a ring.
#pragma once

#include <cstdint>

#include "sparse_mla/sm90/params.h"

namespace serinus::sparse_mla::sm90 {

inline constexpr int kWideTile = 64 * 128;

/// What comes with a tile of weights, per head. Of 64 heads every scoring warp has 16 for itself;
/// of fewer, all four have all of them, each for 16 rows of kv.
template <int kHeads>
struct WeightsHeader {
  static constexpr int kParts = kHeads == 64 ? 1 : 4;  // that maxima and sums lie in, a warp's each
  float rescale[kHeads];  // of the sums so far, where `rescaled` of the head's warp is set
  // With a work item's last block: see RowEnd. `max` of part 0 then takes the factor of the output.
  float max[kParts][kHeads], sum[kParts][kHeads], reference[kHeads];
  std::uint8_t rescaled[16];  // by scoring warps; 4 used
};

/// `kHeads`: of a work item, as many as the products have: 8, 16, 32 or 64.
template <int kDQK, int kHeadsOfItem>
struct Config {
  static constexpr int kHeads = kHeadsOfItem;
  static constexpr bool kFew = kHeads < 64;  // scores have the operands swapped
  using Header = WeightsHeader<kHeads>;
  static constexpr int kChunks = kDQK / 64;  // of 64 columns; the first 8 are V
  static constexpr int kBlockBytes = (kChunks + 1) / 2 * kWideTile;  // half of the last may be idle
  static constexpr int kQueryTile = kHeads * 64;
  static constexpr int kWeightTile = kHeads * 64;

  // Warpgroups: one scores, 2 or 4 sum (each as many of the 512 columns of V), one gathers.
  static constexpr int kValueGroups = kHeads <= 16 ? 4 : 2;
  static constexpr int kWarpgroups = kValueGroups + 2, kThreads = kWarpgroups * 128;

  // Registers of a thread of each role: together what a launch gets.
  static constexpr int kScoreRegisters = kHeads <= 16 ? 120 : 136;
  static constexpr int kValueRegisters = kHeads <= 16 ? 80 : kFew ? 168 : 176;
  static constexpr int kGatherRegisters = kFew ? 40 : 24;
  static_assert(kScoreRegisters + kValueGroups * kValueRegisters + kGatherRegisters <=
                65536 / kThreads / 8 * 8 * kWarpgroups);

  // With four slots of weights, scores go on while the others write an item's output.
  static constexpr int kWeightSlots = kFew ? 2 : 4;
  static constexpr int kStages = kChunks == 9 ? (kHeads == 32 ? 4 : 5) : (kFew ? 5 : 6);
  static_assert(kStages >= 4);  // or the gather might wait for what it has yet to announce
  // Few queries stay in shared memory, and those of the next item come meanwhile; 64 pass through
  // the ring of blocks into registers.
  static constexpr int kQuerySlots = kFew ? 2 : 0;

  static constexpr int kQueries = kStages * kBlockBytes;
  static constexpr int kWeights = kQueries + kQuerySlots * kChunks * kQueryTile;
  static constexpr int kHeaders = kWeights + kWeightSlots * kWeightTile;
  static constexpr int kMask = kHeaders + kWeightSlots * static_cast<int>(sizeof(Header));
  static constexpr int kExchange = kMask + kStages * 8;  // of block maxima: Header::max
  static constexpr int kBarriers = kExchange + (kFew ? 4 * kHeads * 4 : 0);
  static constexpr int kShared = kBarriers + 2 * (kStages + kWeightSlots + kQuerySlots) * 8;
  static_assert(kShared <= 227 * 1024 && kBarriers % 8 == 0);

  // Barriers by number. "full" is passed on by who fills, "free" by who has read.
  static constexpr int kBlockFull = 0;                       // [kStages] gather -> all others
  static constexpr int kBlockFree = kBlockFull + kStages;    // [kStages] all others -> gather
  static constexpr int kWeightsFull = kBlockFree + kStages;  // [kWeightSlots] scores -> values
  static constexpr int kWeightsFree = kWeightsFull + kWeightSlots;  // [kWeightSlots] and back
  static constexpr int kQueryFull = kWeightsFree + kWeightSlots;  // [kQuerySlots] gather -> scores
  static constexpr int kQueryFree = kQueryFull + kQuerySlots;     // [kQuerySlots] and back
};

}  // namespace serinus::sparse_mla::sm90
