// The gathering warpgroup: rows of kv that the indices name, and Q, into the ring of blocks.
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
  const std::uint32_t row;          // this thread's first; the other is 32 further on
  const std::uint32_t unit;         // this thread's 16 of 64 bytes
  const std::uint32_t tile_offset;  // of this thread's unit in its first row
  Ring<C::kStages> ring;

  __device__ __forceinline__ Gather(const KernelParams& params, Places<C> places,
                                    std::uint32_t thread)
      : k(params),
        at(places),
        row(thread / 4),
        unit(thread % 4),
        tile_offset(in_tile(thread / 4, thread % 4)) {}

  /// This thread's two indices of a block; asked whether they are valid when they are used, so that
  /// loading them is waited for no earlier.
  struct Rows {
    int index[2];
  };
  __device__ __forceinline__ bool valid(const Rows& r, int i) const {
    return static_cast<std::uint32_t>(r.index[i]) < k.rows;
  }

  __device__ __forceinline__ void copy(const Rows& r) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool counts = valid(r, i);
      const std::uint8_t* src = k.p.kv + (counts ? r.index[i] : 0) * k.p.stride_kv_s_kv + unit * 16;
      const std::uint32_t dst = at.block(ring.stage) + i * (32 * 64) + tile_offset;
#pragma unroll
      for (int c = 0; c < C::kChunks; ++c) ptx::cp_async_16(dst + c * kTile, src + c * 64, counts);
    }
  }

  /// A warp's byte of the mask for each pass: bit t of the 64 is token t.
  __device__ __forceinline__ void mask(const Rows& r) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Every fourth lane speaks for a row; squeeze these 8 bits together.
      std::uint32_t b = __ballot_sync(~0u, valid(r, i)) & 0x11111111u;
      b = (b | b >> 3) & 0x03030303u;
      b = (b | b >> 6) & 0x000f000fu;
      b = b | b >> 12;
      if (ptx::elect_one())
        ptx::store_shared_u8(at.mask(ring.stage) + i * 4 + threadIdx.x / 32 % 4, b);
    }
  }

  __device__ __forceinline__ void wait_for_stage() const {
    ptx::mbarrier_wait(at.barrier(C::kBlockFree, ring.stage), ring.parity ^ 1);
  }
  /// Says that a block is there once its copies have landed; the mask already is.
  __device__ __forceinline__ void pass_on() {
    const std::uint32_t bar = at.barrier(C::kBlockFull, ring.stage);
    if (ptx::elect_one()) ptx::mbarrier_arrive(bar);
    ptx::mbarrier_arrive_after_cp_async(bar);
    ring.advance();
  }

  /// The queries of an item; heads past the last one are 0.
  __device__ __forceinline__ void queries(Heads w) {
    wait_for_stage();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t in_item = row + i * 32, head = w.head + in_item;
      const bool counts = in_item < C::kHeads && head < k.p.h_q;
      const std::uint8_t* src =
          k.p.q + w.token * k.p.stride_q_s_q + (counts ? head : 0) * k.p.stride_q_h_q + unit * 16;
      const std::uint32_t dst = at.block(ring.stage) + i * (32 * 64) + tile_offset;
      if (k.q_aligned) {
#pragma unroll
        for (int c = 0; c < C::kChunks; ++c)
          ptx::cp_async_16(dst + c * kTile, src + c * 64, counts);
      } else {
        copy_bytewise(dst, src, counts);
      }
    }
    __syncwarp();
    pass_on();
  }

  /// Slow, and short of registers.
  __device__ __forceinline__ static void copy_bytewise(std::uint32_t dst, const std::uint8_t* src,
                                                       bool counts) {
#pragma unroll 1
    for (int c = 0; c < C::kChunks * 4; ++c) {
      std::uint32_t w = 0;
#pragma unroll 1
      for (int i = 0; i < 4 && counts; ++i) w |= static_cast<std::uint32_t>(src[i]) << (8 * i);
      ptx::store_shared(dst, w);
      src += c % 4 == 3 ? 64 - 12 : 4;
      dst += c % 4 == 3 ? kTile - 12 : 4;
    }
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t item = blockIdx.x; item < k.items; item += gridDim.x) {
      const Heads w = heads_of<C>(k, item);
      const Range range = range_of<C>(k, item);
      const std::int32_t* indices =
          k.p.indices + w.token * k.p.stride_indices_s_q + range.begin + row;
      int left = static_cast<int>(range.end - range.begin) - static_cast<int>(row);
      // The indices of a block are on their way while the one before is gathered.
      const auto next_rows = [&] {
        Rows r;
#pragma unroll
        for (int i = 0; i < 2; ++i) r.index[i] = i * 32 < left ? indices[i * 32] : -1;
        indices += kBlock;
        left -= kBlock;
        return r;
      };
      Rows rows = next_rows();
      queries(w);
      for (std::uint32_t block = 0; block < range.blocks; ++block) {
        const Rows now = rows;
        rows = next_rows();
        wait_for_stage();
        mask(now);
        copy(now);
        pass_on();
      }
    }
    ptx::cp_async_wait_all();
  }
};

}  // namespace serinus::sparse_mla::sm90
