// Gathering: rows of kv that the indices name into the ring of blocks, and queries into their
// slots.
//
// A warp has 16 rows of a block, a lane has to do with four of them: l / 8, and 4, 8 and 12 further
// down. Eight lanes bring 128 bytes of a row by cp.async, a line of L2 where rows start at a
// multiple of 64 bytes: what a copy costs, in the L1 and on the way into shared memory, is a matter
// of lines. A row that does not count is zero-filled and its bit in the mask stays 0.
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
  const std::uint32_t warp, lane;
  Ring<C::kStages> ring;
  Ring<C::kFew ? C::kQuerySlots : 1> query_slot;  // of few queries
  std::uint32_t pending = 0;                      // barrier of what was copied last, not announced

  __device__ __forceinline__ Gather(const KernelParams& params, Places<C> places,
                                    std::uint32_t thread)
      : k(params), at(places), warp(thread / 32), lane(opaque_lane()) {}

  /// The row in a block whose index this lane loads. With registers to spare it loads all of its
  /// four; else a warp's lanes have one each, twice, and exchange them.
  static constexpr int kLoads = C::kFew ? 4 : 1;
  __device__ __forceinline__ std::uint32_t row() const {
    return warp * 16 + (C::kFew ? lane / 8 : lane % 16);
  }
  __device__ __forceinline__ bool valid(std::int32_t index) const {
    return static_cast<std::uint32_t>(index) < k.rows;
  }

  /// This lane's place in `kv`, moved to a row; to row 0 if there is none such.
  __device__ __forceinline__ const std::uint8_t* at_row(const std::uint8_t* kv,
                                                        std::int32_t index) const {
    return kv + (valid(index) ? static_cast<std::uint32_t>(index) : 0u) *
                    static_cast<std::uint64_t>(k.p.stride_kv_s_kv);
  }
  static __device__ __forceinline__ std::uint32_t bit_of_64(const std::uint8_t* p) {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(p)) & 64;
  }

  using Indices = std::int32_t[4];  // of this lane's rows

  /// The warp's rows of a block. In granules of 64 bytes a row has eight or nine. Eight lanes take
  /// pairs: 0 and 1, 2 and 3, ... But with nine granules every other row starts in the middle of a
  /// line, and has its pairs from granule 1 on. The granule that is left, 8 or 0, comes last.
  /// Addresses first: a register that a copy reads is free only when the copy has been taken.
  __device__ __forceinline__ void copy(const Indices& index, std::uint32_t lane) const {
    constexpr bool kNine = C::kChunks == 9;
    const std::uint32_t block = at.block(ring.stage);
    const std::uint32_t second = kNine ? lane * 16 & 64 : 0;  // of a pair: 64
    const std::uint8_t* src[4];
    std::uint32_t dst[4];
    const std::uint32_t place = block + in_wide_tile(warp * 16 + lane / 8, lane % (kNine ? 4 : 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // four rows
      src[i] = at_row(k.p.kv + lane % 8 * 16, index[i]);
      dst[i] = (place ^ (i % 2 * 64)) + static_cast<std::uint32_t>(i * 512);
      if constexpr (kNine) {
        const std::uint32_t half = bit_of_64(src[i]), odd = half ^ second;
        src[i] += odd;
        dst[i] = (dst[i] ^ half) + (odd & second) * (kWideTile / 64);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        ptx::cp_async_16(dst[i] + c * kWideTile, src[i] + c * 128, valid(index[i]));
    }
    if constexpr (kNine) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // eight rows, four lanes a row
        const std::int32_t from = second != 0 ? index[2 * i + 1] : index[2 * i];
        const std::uint8_t* first = at_row(k.p.kv + lane % 4 * 16, from);
        const bool odd = bit_of_64(first) != 0;
        const std::uint32_t to =
            (place ^ second) + second * 8 + static_cast<std::uint32_t>(i * 1024);
        ptx::cp_async_16(odd ? to : to + 4 * kWideTile, odd ? first : first + 512, valid(from));
      }
    }
  }

  /// A warp's 16 bits of the mask, from what its lanes have loaded: bit t of the 64 is token t.
  __device__ __forceinline__ void mask(const std::int32_t (&loaded)[kLoads]) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      std::uint32_t b = __ballot_sync(~0u, valid(loaded[i]));
      if constexpr (kLoads == 4) {  // of four rows: bits 0, 8, 16, 24
        b &= 0x01010101u;
        b = (b | b >> 7 | b >> 14 | b >> 21) & 15;
      }
      bits |= b << (4 * i);
    }
    if (ptx::elect_one()) ptx::store_shared_u16(at.mask(ring.stage) + warp * 2, bits & 0xffff);
  }

  __device__ __forceinline__ void wait_for_stage() const {
    ptx::mbarrier_wait(at.barrier(C::kBlockFree, ring.stage), ring.parity ^ 1);
  }
  /// A block's copies are on their way. What was copied before it has had time to land.
  __device__ __forceinline__ void pass_on() {
    pass_on(at.barrier(C::kBlockFull, ring.stage));
    ring.advance();
  }
  __device__ __forceinline__ void pass_on(std::uint32_t bar) {
    ptx::cp_async_commit();
    if (pending != 0) announce<1>();
    pending = bar;
  }
  /// Says that what `pending` stands for is there, mask and all, while `kUnderWay` more are on
  /// their way. Copies count as ordinary stores, which the tensor cores see behind a fence: here,
  /// where somebody has time for it.
  template <int kUnderWay>
  __device__ __forceinline__ void announce() const {
    ptx::cp_async_wait<kUnderWay>();
    ptx::fence_proxy_async();
    warp_arrives(pending);
  }

  /// The queries of an item; heads past the last one are 0.
  __device__ __forceinline__ void queries(Heads w) {
    if constexpr (C::kFew) {
      ptx::mbarrier_wait(at.barrier(C::kQueryFree, query_slot.stage), query_slot.parity ^ 1);
      if (warp * 8 < C::kHeads) queries(w, at.queries(query_slot.stage), 0);
      pass_on(at.barrier(C::kQueryFull, query_slot.stage));
      query_slot.advance();
    } else {
      wait_for_stage();
#pragma unroll
      for (std::uint32_t skip = 0; skip < 64; skip += 32) queries(w, at.block(ring.stage), skip);
      pass_on();
    }
  }
  /// 32 of them, after `skip`: 8 heads a warp, four lanes to 64 bytes.
  __device__ __forceinline__ void queries(Heads w, std::uint32_t place, std::uint32_t skip) const {
    const std::uint32_t lane = opaque_lane(), unit = lane % 4;
    const std::uint32_t in_item = skip + warp * 8 + lane / 4, head = w.head + in_item;
    const bool counts = head < k.p.h_q;
    const std::uint8_t* src =
        k.p.q + w.token * k.p.stride_q_s_q + (counts ? head : 0) * k.p.stride_q_h_q + unit * 16;
    const std::uint32_t dst = place + in_tile(in_item, unit);
    if (k.q_aligned) {
#pragma unroll
      for (int c = 0; c < C::kChunks; ++c)
        ptx::cp_async_16(dst + c * C::kQueryTile, src + c * 64, counts);
    } else {
      copy_bytewise(dst, src, counts);
    }
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
      dst += c % 4 == 3 ? C::kQueryTile - 12 : 4;
    }
  }

  /// All of it, by a warpgroup that does nothing else.
  __device__ __forceinline__ void run() {
    for (std::uint32_t item = blockIdx.x; item < k.items; item += gridDim.x) {
      const Heads w = heads_of<C>(k, item);
      const Range range = range_of<C>(k, item);
      const std::int32_t* indices =
          k.p.indices + w.token * k.p.stride_indices_s_q + range.begin + row();
      int left = static_cast<int>(range.end - range.begin) - static_cast<int>(row());
      // The indices of a block are on their way while the one before is gathered.
      std::int32_t next[kLoads];
      const auto load = [&] {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) next[i] = 4 * i < left ? indices[4 * i] : -1;
        indices += kBlock;
        left -= kBlock;
      };
      load();
      queries(w);
      for (std::uint32_t block = 0; block < range.blocks; ++block) {
        std::int32_t now[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) now[i] = next[i];
        load();
        Indices index;
        const std::uint32_t l = C::kFew ? lane : opaque_lane();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (C::kFew) {
            index[i] = now[i];
          } else {
            index[i] = __shfl_sync(~0u, now[0], i * 4 + static_cast<int>(l / 8));
          }
        }
        wait_for_stage();
        mask(now);
        copy(index, l);
        pass_on();
      }
    }
    if (pending != 0) announce<0>();
  }
};

}  // namespace serinus::sparse_mla::sm90
