// Shapes and the shared-memory map of the kernel, one struct a form and head dimension.
//
// Everything that the tensor cores read lies in tiles of 64 rows x 64 bytes (4 KB, 64-byte
// swizzle): Q by head, K by token, P by head; V^T, by column of V, replaces its K tile in place.
// `half` is which of two partners one is: which block of a pair it scores, and which 256 of V's 512
// columns it sums.
#pragma once

#include <cstdint>

#include "sparse_mla/sm90/params.h"

namespace serinus::sparse_mla::sm90 {

inline constexpr int kTile = 64 * 64;
inline constexpr int kTilesInHalf = 4;  // of V: 256 columns

// Two warpgroups attend, one gathers, one transposes. Registers of a thread of each: together what
// a launch of 4 warpgroups gets, 4 x 128.
inline constexpr int kThreads = 4 * 128;
inline constexpr int kAttendRegisters = 216;
inline constexpr int kGatherRegisters = 40;
inline constexpr int kTransposeRegisters = 40;

/// What partners tell each other about a block, per row of their 64 heads.
struct RowStats {
  float max[64];
  float2 sums[64];  // of the whole work item: exact, and of the rounded weights
};

template <int kDQK, Form kForm>
struct Config {
  static constexpr bool kDuo = kForm == Form::duo;
  static constexpr int kChunks = kDQK / 64;     // tiles of a K block; the first 8 are V
  static constexpr int kGroups = kDuo ? 2 : 1;  // groups of 64 heads in a CTA
  static constexpr int kHeads = 64 * kGroups;   // the cluster of a duo shares them
  static constexpr int kRope = 8;               // the tile past V, if kChunks > 8
  static constexpr int kRestTiles = kChunks - kTilesInHalf;

  // Duo. A CTA holds of its own block the half of V that it sums (kOwn) and the rest of K (kRest),
  // and of the partner's block the half of V that it sums (kOther). kOwn is read first as K, then
  // as V^T, a pair later; so it has a stage more.
  static constexpr int kOwnStages = 3, kRestStages = 2, kOtherStages = 2;
  static constexpr int kQ = 0;
  static constexpr int kOwn = kQ + kGroups * kChunks * kTile;
  static constexpr int kRest = kOwn + kOwnStages * kTilesInHalf * kTile;
  static constexpr int kOther = kRest + kRestStages * kRestTiles * kTile;
  // Solo. Both blocks of a pair whole: [slot][half][chunk].
  static constexpr int kK = kQ + kGroups * kChunks * kTile;

  static constexpr int kP =  // received P: [warpgroup][slot]; duo: then what is sent: [warpgroup]
      kDuo ? kOther + kOtherStages * kTilesInHalf * kTile : kK + 4 * kChunks * kTile;
  static constexpr int kPSend = kP + 4 * kTile;
  static constexpr int kStats = kPSend + (kDuo ? 2 * kTile : 0);  // received: [warpgroup][slot]
  static constexpr int kMask =
      kStats + 4 * static_cast<int>(sizeof(RowStats));  // 64 bits: [slot] or [slot][half]
  static constexpr int kBarriers = kMask + 4 * 8;
  static constexpr int kShared = kBarriers + 32 * 8;
  static_assert(kShared <= 227 * 1024);
};

/// Barriers by number. "full" is passed on by who fills, "free" by who has read. [n] slots follow.
enum Barrier : int {
  kQFull = 0,       // [2] of a head group: gather -> scores
  kQFree = 2,       // [2]
  kKFull = 4,       // [2] duo: slot; [4] solo: slot, half: gather -> scores
  kKDone = 8,       // likewise: scores -> transpose, and in a duo gather (kRest)
  kMaxFull = 12,    // [4] warpgroup, slot: partner -> softmax
  kPFull = 16,      // [4] warpgroup, slot: partner -> values
  kVFull = 20,      // [4] solo: slot, half: transpose -> values
  kVFree = 24,      // [2] solo: slot: values -> gather
  kOwnFull = 20,    // [3] duo: transpose -> values
  kOwnFree = 23,    // [3] duo: values -> gather
  kOtherRaw = 26,   // [2] duo: gather -> transpose
  kOtherFull = 28,  // [2] duo: transpose -> values
  kOtherFree = 30,  // [2] duo: values -> gather
};

}  // namespace serinus::sparse_mla::sm90
