// Shapes and the shared-memory map of the kernel.
//
// Everything that the tensor cores or ldmatrix read lies in tiles of 64 rows x 64 bytes (4 KB,
// 64-byte swizzle). A block is 64 rows of d_qk bytes, a tile for every 64 columns: rows of kv, or
// the 64 query heads of a work item. Blocks of both kinds pass through one ring.
#pragma once

#include <cstdint>

#include "sparse_mla/sm90/params.h"

namespace serinus::sparse_mla::sm90 {

inline constexpr int kTile = 64 * 64;

// One warpgroup scores, two sum values (each 256 of the 512 columns of V), one gathers.
inline constexpr int kThreads = 4 * 128;

/// What comes with a tile of weights, per head.
struct WeightsHeader {
  float rescale[64];  // of the sums so far, where `rescaled` of the head's 16 is set
  // With a work item's last block: see RowEnd. `max` then takes the factor of the output.
  float max[64], reference[64], sum[64];
  std::uint8_t rescaled[16];  // by scoring warps, 16 heads each; 4 used
};

/// `kHeads`: of a work item, as many as the products of values have: 8, 16, 32 or 64.
template <int kDQK, int kHeadsOfItem>
struct Config {
  static constexpr int kHeads = kHeadsOfItem;
  static constexpr int kChunks = kDQK / 64;  // tiles of a block; the first 8 are V
  static constexpr int kBlockBytes = kChunks * kTile;
  static constexpr int kScoringWarps = (kHeads + 15) / 16;  // those that have heads

  // Registers of a thread of each role: together what a launch of 4 warpgroups gets, 4 x 128.
  static constexpr int kScoreRegisters = kHeads == 64 ? 136 : 168;
  static constexpr int kValueRegisters = kHeads == 64 ? 176 : 144;
  static constexpr int kGatherRegisters = kHeads == 64 ? 24 : 40;
  static_assert(kScoreRegisters + 2 * kValueRegisters + kGatherRegisters <= 4 * 128);

  // With four slots of weights, scores go on while the others write an item's output; few heads
  // have little to write.
  static constexpr int kWeightSlots = kHeads == 64 ? 4 : 2;
  static constexpr int kStages = kHeads == 64 && kChunks == 9 ? 5 : 6;
  static constexpr int kWeights = kStages * kBlockBytes;
  static constexpr int kHeaders = kWeights + kWeightSlots * kTile;
  static constexpr int kMask = kHeaders + kWeightSlots * static_cast<int>(sizeof(WeightsHeader));
  static constexpr int kBarriers = kMask + kStages * 8;
  static constexpr int kShared = kBarriers + 2 * (kStages + kWeightSlots) * 8;
  static_assert(kShared <= 227 * 1024);

  // Barriers by number. "full" is passed on by who fills, "free" by who has read.
  static constexpr int kBlockFull = 0;                       // [kStages] gather -> all others
  static constexpr int kBlockFree = kBlockFull + kStages;    // [kStages] all others -> gather
  static constexpr int kWeightsFull = kBlockFree + kStages;  // [kWeightSlots] scores -> values
  static constexpr int kWeightsFree = kWeightsFull + kWeightSlots;  // [kWeightSlots] and back
};

}  // namespace serinus::sparse_mla::sm90
