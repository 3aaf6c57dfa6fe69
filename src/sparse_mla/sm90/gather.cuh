// The gathering warpgroup: rows of kv that the indices name, and Q, into shared memory.
//
// Four lanes bring 64 consecutive bytes of a row by cp.async, so a thread has to do with two rows
// of a block, r and r + 32. A row that does not count is zero-filled and its bit in the mask stays
// 0.
#pragma once

#include "gpu/ptx/copy.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Gather {
  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t half;         // duo: rank of the CTA
  const std::uint32_t unit;         // this thread's 16 of 64 bytes
  const std::uint32_t tile_offset;  // of this thread's unit in its first row; the second: + 32 rows

  __device__ __forceinline__ Gather(const KernelParams& params, Places<C> places,
                                    std::uint32_t rank, std::uint32_t thread)
      : k(params),
        at(places),
        half(rank),
        unit(thread % 4),
        tile_offset(in_tile(thread / 4, thread % 4)) {}

  static __device__ __forceinline__ std::uint32_t row() { return threadIdx.x % 128 / 4; }

  /// This thread's two indices of the block at `position`; asked whether they are valid when they
  /// are used, so that loading them is waited for no earlier.
  struct Rows {
    int index[2];
  };
  /// `end`: of the token's indices, counted from this thread's first row.
  __device__ __forceinline__ Rows rows(std::uint32_t token, int end, std::uint32_t position) const {
    const std::int32_t* indices = k.p.indices + token * k.p.stride_indices_s_q + row();
    Rows r;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool in_range = static_cast<int>(position) + i * 32 < end;
      r.index[i] = in_range ? indices[position + i * 32] : -1;
    }
    return r;
  }

  __device__ __forceinline__ bool valid(const Rows& r, int i) const {
    return static_cast<std::uint32_t>(r.index[i]) < k.rows;
  }

  /// Chunks [first, first + n) of the rows, into consecutive tiles.
  template <int kN>
  __device__ __forceinline__ void chunks(const Rows& r, std::uint32_t first,
                                         std::uint32_t tiles) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool counts = valid(r, i);
      const std::uint8_t* src =
          k.p.kv + (counts ? r.index[i] : 0) * k.p.stride_kv_s_kv + first * 64 + unit * 16;
#pragma unroll
      for (int c = 0; c < kN; ++c)
        ptx::cp_async_16(tiles + c * kTile + i * (32 * 64) + tile_offset, src + c * 64, counts);
    }
  }

  /// A warp's byte of the mask for each pass: bit t of the 64 is token t.
  __device__ __forceinline__ void mask(const Rows& r, std::uint32_t slot) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Every fourth lane speaks for a row; squeeze these 8 bits together.
      std::uint32_t b = __ballot_sync(~0u, valid(r, i)) & 0x11111111u;
      b = (b | b >> 3) & 0x03030303u;
      b = (b | b >> 6) & 0x000f000fu;
      b = b | b >> 12;
      if (ptx::elect_one()) ptx::store_shared_u8(at.mask(slot) + i * 4 + threadIdx.x / 32 % 4, b);
    }
  }

  /// Waits for the place of Q to be free, and fills it.
  __device__ __forceinline__ void q(std::uint32_t item, std::uint32_t turn) const {
    const Heads w = heads_of<C>(k, item);
#pragma unroll 1
    for (int group = 0; group < C::kGroups; ++group) {
      ptx::mbarrier_wait(at.barrier(kQFree, group), (turn & 1) ^ 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t head = w.head + group * 64 + row() + i * 32;
        const bool valid = head < k.p.h_q;
        const std::uint8_t* src =
            k.p.q + w.token * k.p.stride_q_s_q + (valid ? head : 0) * k.p.stride_q_h_q + unit * 16;
        const std::uint32_t dst = at.q(group) + i * (32 * 64) + tile_offset;
        if (k.q_aligned) {
#pragma unroll
          for (int c = 0; c < C::kChunks; ++c)
            ptx::cp_async_16(dst + c * kTile, src + c * 64, valid);
        } else {
#pragma unroll 1
          for (int c = 0; c < C::kChunks; ++c)
            ptx::store_shared(dst + c * kTile, bytewise(src + c * 64, valid));
        }
      }
      if (k.q_aligned) {
        ptx::mbarrier_arrive_after_cp_async(at.barrier(kQFull, group));
      } else {
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive(at.barrier(kQFull, group));
      }
    }
  }

  __device__ __forceinline__ static uint4 bytewise(const std::uint8_t* src, bool valid) {
    std::uint32_t w[4] = {};
    if (valid) {
#pragma unroll
      for (int i = 0; i < 16; ++i) w[i / 4] |= static_cast<std::uint32_t>(src[i]) << (i % 4 * 8);
    }
    return {w[0], w[1], w[2], w[3]};
  }

  /// Says that a block's rows are there once they have landed; the mask already is.
  __device__ __forceinline__ void block_full(std::uint32_t slot) const {
    if (ptx::elect_one()) ptx::mbarrier_arrive(at.barrier(kKFull, slot));
    ptx::mbarrier_arrive_after_cp_async(at.barrier(kKFull, slot));
  }

  __device__ __forceinline__ void run() const {
    // Duo: a is this CTA's own block, b the partner's. Solo: blocks 0 and 1.
    const std::uint32_t offset_a = C::kDuo ? half * kBlock : 0, offset_b = kBlock - offset_a;
    std::uint32_t item = first_item<C>(), token, position, left;
    int end;
    const auto begin = [&] {
      token = heads_of<C>(k, item).token;
      const Range range = range_of<C>(k, item);
      position = range.begin;
      left = range.pairs;
      end = static_cast<int>(range.end) - static_cast<int>(row());
    };
    begin();
    Rows a = rows(token, end, position + offset_a), b = rows(token, end, position + offset_b);
    bool first = true;
    for (std::uint32_t pair = 0; item < k.items; ++pair) {
      const std::uint32_t slot = pair & 1, free_parity = (pair >> 1 & 1) ^ 1;
      if constexpr (C::kDuo) {
        const std::uint32_t own_stage = pair % C::kOwnStages;
        ptx::mbarrier_wait(at.barrier(kOwnFree, own_stage), (pair / C::kOwnStages & 1) ^ 1);
        ptx::mbarrier_wait(at.barrier(kKDone, slot), free_parity);
        mask(a, slot);
        chunks<kTilesInHalf>(a, half * kTilesInHalf, at.own(own_stage));
        chunks<kTilesInHalf>(a, (1 - half) * kTilesInHalf, at.rest(slot));
        if constexpr (C::kChunks > C::kRope)
          chunks<1>(a, C::kRope, at.rest(slot) + kTilesInHalf * kTile);
        block_full(slot);
      } else {
        ptx::mbarrier_wait(at.barrier(kVFree, slot), free_parity);
        mask(a, slot * 2);
        chunks<C::kChunks>(a, 0, at.block(slot, 0));
        block_full(slot * 2);
      }
      if (first) q(item, (item - first_item<C>()) / item_step<C>());

      // The indices of the next pair are on their way while this one is gathered.
      position += kPair;
      first = --left == 0;
      if (first) {
        item += item_step<C>();
        if (item < k.items) begin();
      }
      a = rows(token, end, position + offset_a);
      if constexpr (C::kDuo) {
        ptx::mbarrier_wait(at.barrier(kOtherFree, slot), free_parity);
        chunks<kTilesInHalf>(b, half * kTilesInHalf, at.other(slot));
        ptx::mbarrier_arrive_after_cp_async(at.barrier(kOtherRaw, slot));
      } else {
        mask(b, slot * 2 + 1);
        chunks<C::kChunks>(b, 0, at.block(slot, 1));
        block_full(slot * 2 + 1);
      }
      b = rows(token, end, position + offset_b);
    }
    ptx::cp_async_wait_all();
  }
};

}  // namespace serinus::sparse_mla::sm90
