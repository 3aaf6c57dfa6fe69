// The transposing warpgroup: V tiles become V^T in place, since the tensor cores read fp8 operands
// along k alone (here: along the tokens) and cannot transpose bytes.
//
// A tile holds 64 tokens x 64 columns. A step moves 16 tokens x 32 columns: ldmatrix.trans gives
// lane (g, c) = (lane / 4, lane % 4) the bytes of columns 2 g and 2 g + 1, two tokens a register;
// byte permutes part even from odd columns; stmatrix writes rows of V^T. Two freedoms make it
// cheap:
//   tokens: within 16, byte 4 c + b of a row of V^T is token 2 c + b % 2 + 8 (b / 2), which is the
//   order
//     in which a lane holds the scores; P's tiles have the same order.
//   columns: within 32, row 8 j + 2 c + e of V^T is column 8 c + 2 j + e of V, so that a lane's
//   sums are
//     8 neighbours of the output, 16 bytes; see Attend::write_rows.
// The lanes of a matrix exchange their even and odd columns and their two 16-column groups so that
// its 8 rows fall into 8 different groups of banks.
#pragma once

#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Transpose {
  const Places<C> at;
  const std::uint32_t warp, lane;
  std::uint32_t load_place;   // in a tile: the row that this lane names in a load of step (0, 0)
  std::uint32_t store_place;  // likewise of a store
  std::uint32_t even, odd;    // byte permutes
  bool swap;                  // of the two 16-column groups

  __device__ __forceinline__ Transpose(Places<C> places, std::uint32_t thread)
      : at(places), warp(thread / 32), lane(thread % 32) {
    // Matrices of a load: tokens 0-7 and 8-15 of columns 0-15, then of columns 16-31.
    load_place = in_tile(lane % 16, lane / 16);
    const std::uint32_t g = lane / 4;
    even = g & 1 ? 0x7531 : 0x6420;
    odd = even ^ (0x7531 ^ 0x6420);
    swap = (g & 2) != 0;
    // Matrix m of a store holds in row r column 16 u + 2 r + e, where e and u are bits of m ^ r.
    const std::uint32_t m = lane / 8, r = lane % 8;
    const std::uint32_t e = (m ^ r) & 1, u = (m ^ r) >> 1 & 1;
    store_place = in_tile(8 * (r % 4) + 2 * (2 * u + r / 4) + e, 0);
  }

  // 16 tokens (group t of 4) x 32 columns (group h of 2). The swizzle looks at rows within 8, so
  // that another step means other bits of the unit, and a number of whole rows.
  __device__ __forceinline__ uint4 load(std::uint32_t tile, std::uint32_t t,
                                        std::uint32_t h) const {
    const uint4 v = ptx::load_matrix_x4_trans(((tile + load_place) ^ (2 * h * 16)) + 16 * t * 64);
    const std::uint32_t a0 = __byte_perm(v.x, v.y, even), b0 = __byte_perm(v.x, v.y, odd);
    const std::uint32_t a1 = __byte_perm(v.z, v.w, even), b1 = __byte_perm(v.z, v.w, odd);
    return {swap ? a1 : a0, swap ? b1 : b0, swap ? a0 : a1, swap ? b0 : b1};
  }
  __device__ __forceinline__ void store(std::uint32_t tile, std::uint32_t t, std::uint32_t h,
                                        uint4 v) const {
    ptx::store_matrix_x4(((tile + store_place) ^ (t * 16)) + 32 * h * 64, v);
  }

  /// A tile, by one warp: squares of 32 x 32 bytes change places across the diagonal, so what a
  /// store overwrites has always been loaded.
  __device__ __forceinline__ void transpose(std::uint32_t tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // i = 0: the two squares on the diagonal; i = 1: the two others.
      uint4 v[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) v[s] = load(tile, s, (s / 2) ^ i);
      __syncwarp();
#pragma unroll
      for (int s = 0; s < 4; ++s) store(tile, s, (s / 2) ^ i, v[s]);
    }
  }

  __device__ __forceinline__ void full(int number, std::uint32_t slot) const {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(at.barrier(number, slot));
  }

  __device__ __forceinline__ void run(const KernelParams& k) const {
    std::uint32_t pair = 0;
    Ring<C::kOwnStages> own_ring;
    for (std::uint32_t item = first_item<C>(); item < k.items; item += item_step<C>()) {
      const std::uint32_t pairs = range_of<C>(k, item).pairs;
      for (std::uint32_t i = 0; i < pairs; ++i, ++pair) {
        const std::uint32_t slot = pair & 1, parity = pair >> 1 & 1;
        if constexpr (C::kDuo) {
          ptx::mbarrier_wait(at.barrier(kOtherRaw, slot), parity);
          transpose(at.other(slot) + warp * kTile);
          full(kOtherFull, slot);
          ptx::mbarrier_wait(at.barrier(kKDone, slot), parity);
          transpose(at.own(own_ring.stage) + warp * kTile);
          full(kOwnFull, own_ring.stage);
          own_ring.advance();
        } else {
#pragma unroll 1
          for (std::uint32_t half = 0; half < 2; ++half) {
            ptx::mbarrier_wait(at.barrier(kKDone, slot * 2 + half), parity);
            transpose(at.block(slot, half) + warp * kTile);
            transpose(at.block(slot, half) + (4 + warp) * kTile);
            full(kVFull, slot * 2 + half);
          }
        }
      }
    }
  }
};

}  // namespace serinus::sparse_mla::sm90
