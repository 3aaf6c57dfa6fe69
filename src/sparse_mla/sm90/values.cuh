// The warpgroups that sum values: O^T += V^T P^T, two or four of them, each for its share of V's
// 512 columns.
//
// fp8 products read both operands along the tokens, where V has its columns together. So V^T goes
// through registers, as the A operand: ldmatrix.trans gives lane (g, c) = (lane / 4, lane % 4) the
// bytes of columns 2 g and 2 g + 1, two tokens a register, and byte permutes part even from odd
// columns. Thereby row g of 16 rows of A is column 2 g, row g + 8 is column 2 g + 1; and byte 4 c +
// b of 16 tokens is token 2 c + b % 2 + 8 (b / 2), which is the order in which a lane holds scores,
// and so that of the tokens in a row of weights. With few heads it is 2 c + b / 2 + 8 (b % 2).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>

#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "sparse_mla/sm90/row_end.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Values {
  // Of 64 columns, M of a product; 16 of them a warp.
  static constexpr int kParts = 8 / C::kValueGroups;
  static constexpr int kHeads = C::kHeads;
  using Header = typename C::Header;

  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t lane;
  const std::uint32_t tile;  // this warp's 16 kParts columns of V: which of them
  std::uint32_t load_place;  // in a block: the row and unit that this lane names in a load

  Ring<C::kStages> ring;
  Ring<C::kWeightSlots> slot;
  // O^T. Entry 4 j + 2 r + e of a part: column 16 part + 2 g + r of the tile, head 8 j + 2 c + e.
  float sums[kParts][kHeads / 2];
  using Operand = std::uint32_t[kParts][4];          // V^T of 32 tokens
  std::uint32_t item, left_of_item, blocks_of_item;  // few heads
  float all_weights;                                 // of one head, this lane's
  const float kv_scale;

  __device__ __forceinline__ Values(const KernelParams& params, Places<C> places,
                                    std::uint32_t group, std::uint32_t thread)
      : k(params),
        at(places),
        lane(opaque_lane()),
        tile(__shfl_sync(~0u, group * 4 + thread / 32, 0)),
        kv_scale(*k.p.kv_scale) {
    // Matrices of a load: 8 tokens each.
    load_place = tile * kParts / 8 * kWideTile + in_wide_tile(lane, tile * kParts % 8);
  }

  /// 32 tokens of the block, as ldmatrix leaves them.
  __device__ __forceinline__ void load(int tokens, Operand& v) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint4 x = ptx::load_matrix_x4_trans(
          ((at.block(ring.stage) + load_place) ^ (part * 16)) + tokens * (32 * 128));
      v[part][0] = x.x;
      v[part][1] = x.y;
      v[part][2] = x.z;
      v[part][3] = x.w;
    }
  }
  /// Even columns to 0 and 2, odd ones to 1 and 3.
  static __device__ __forceinline__ void part_columns(Operand& v) {
    constexpr std::uint32_t kEven = C::kFew ? 0x6240 : 0x6420, kOdd = C::kFew ? 0x7351 : 0x7531;
#pragma unroll
    for (auto& x : v) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t even = __byte_perm(x[i], x[i + 1], kEven);
        x[i + 1] = __byte_perm(x[i], x[i + 1], kOdd);
        x[i] = even;
      }
      ptx::pin(x);  // here, and not where they are needed
    }
  }

  __device__ __forceinline__ void multiply(int tokens, Operand& v, bool add) {
    const ptx::MatrixDescriptor<64> weights(at.weights(slot.stage) + tokens * 32);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::pin(v[part]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) ptx::wgmma_k32(sums[part], v[part], weights, add);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void wait() {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) ptx::pin(part);
  }

  __device__ __forceinline__ float2 factors(int field, int j) const {
    return ptx::load_shared_f32x2(at.header(slot.stage) + field +
                                  (8 * j + opaque_lane() % 4 * 2) * 4);
  }

  /// Where references have moved, what is summed so far counts less.
  __device__ __forceinline__ void rescale() {
    // Of 64 heads, each flag speaks for 16; the first for all of few.
    constexpr int kFlags = C::kFew ? 1 : 4, kEights = kHeads / 8 / kFlags;
    const std::uint32_t moved =
        ptx::load_shared_u32(at.header(slot.stage) + offsetof(Header, rescaled)) &
        (C::kFew ? 0xffu : ~0u);
    if (moved == 0) [[likely]]
      return;
#pragma unroll
    for (int flag = 0; flag < kFlags; ++flag) {
      if ((moved >> (8 * flag) & 1) == 0) continue;
#pragma unroll
      for (int j = kEights * flag; j < kEights * (flag + 1); ++j) {
        const float2 f = factors(offsetof(Header, rescale), j);
#pragma unroll
        for (auto& part : sums) {
          part[4 * j] *= f.x;
          part[4 * j + 1] *= f.y;
          part[4 * j + 2] *= f.x;
          part[4 * j + 3] *= f.y;
        }
      }
    }
    if (has_heads() && (moved >> (8 * (tile / kEights)) & 1) != 0)
      all_weights *= of_head(offsetof(Header, rescale));
  }

  // ---- The denominator is the sum of what multiplies V: of the weights after rounding. A warp has
  // to do with 8 heads, four lanes a head, as long as there are heads.
  __device__ __forceinline__ bool has_heads() const { return tile < kHeads / 8; }
  __device__ __forceinline__ float of_head(int field) const {
    return ptx::load_shared_f32(at.header(slot.stage) + field + (tile * 8 + opaque_lane() / 4) * 4);
  }
  __device__ __forceinline__ void sum_weights(bool first) {
    if (!has_heads()) return;
    const uint4 w =
        ptx::load_matrix_x4(at.weights(slot.stage) + in_tile(tile * 8 + lane % 8, lane / 8));
    const __half2 s = __hadd2(__hadd2(ptx::sum_e4m3(w.x), ptx::sum_e4m3(w.y)),
                              __hadd2(ptx::sum_e4m3(w.z), ptx::sum_e4m3(w.w)));
    const float block = __low2float(s) + __high2float(s);
    all_weights = first ? block : all_weights + block;
  }

  /// Ends the rows of an item: statistics, and the factor of what has been summed.
  __device__ __forceinline__ void end_rows(std::uint32_t item, Heads w) {
    if (!has_heads()) return;
    all_weights += __shfl_xor_sync(~0u, all_weights, 1);
    all_weights += __shfl_xor_sync(~0u, all_weights, 2);
    if (lane % 4 != 0) return;
    const std::uint32_t in_item = tile * 8 + opaque_lane() / 4, head = w.head + in_item;
    float max = of_head(offsetof(Header, max)), sum = of_head(offsetof(Header, sum));
#pragma unroll
    for (int part = 1; part < Header::kParts; ++part) {
      max = fmaxf(max, of_head(offsetof(Header, max) + part * (kHeads * 4)));
      sum += of_head(offsetof(Header, sum) + part * (kHeads * 4));
    }
    const float reference = of_head(offsetof(Header, reference));
    float factor = 1;
    if (is_split(k, item)) {
      k.partial_stats[std::size_t{item - k.whole} * kHeads + in_item] = {max, reference, sum,
                                                                         all_weights};
    } else if (head < k.p.h_q) {
      const RowEnd end(k.p, kv_scale, head, max, reference, sum, all_weights);
      factor = end.factor;
      const std::size_t at_row = w.token * static_cast<std::size_t>(k.p.h_q) + head;
      k.p.max_logits[at_row] = end.max_logits;
      k.p.lse[at_row] = end.lse;
    }
    ptx::store_shared(at.header(slot.stage) + offsetof(Header, max) + in_item * 4, factor);
  }

  __device__ __forceinline__ void wait_for_block() const {
    ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
  }
  __device__ __forceinline__ void free_block() {
    warp_arrives(at.barrier(C::kBlockFree, ring.stage));
    ring.advance();
  }
  /// Waits for the weights of a block. They were stored by ordinary stores: the fence stands here
  /// rather than behind them, where nobody would have time for it.
  __device__ __forceinline__ void wait_for_weights(bool first) {
    ptx::mbarrier_wait(at.barrier(C::kWeightsFull, slot.stage), slot.parity);
    if (!first) rescale();
    ptx::fence_proxy_async();
  }

  /// 64 heads: registers for V^T of 32 tokens.
  __device__ __forceinline__ void sum_block(bool first) {
    Operand v, after;
    wait_for_block();
    load(0, v);
    part_columns(v);
    wait_for_weights(first);
    multiply(0, v, !first);
    load(1, after);
    free_block();
    wait();
    part_columns(after);
    multiply(1, after, true);
    sum_weights(first);
    wait();
  }

  /// Few heads: V^T of 64 tokens, and while its products run that of the block after. False: this
  /// was the last block.
  __device__ __forceinline__ bool sum_block(Operand (&v)[2], Operand (&after)[2]) {
    const bool first = left_of_item == blocks_of_item, last = left_of_item == 1;
    wait_for_weights(first);
    multiply(0, v[0], !first);
    multiply(1, v[1], true);
    const bool more = !last || item + gridDim.x < k.items;
    if (more) load_block(after);
    sum_weights(first);
    wait();
    --left_of_item;
    if (!last) {
      free_weights();
    } else {
      write(item, heads_of<C>(k, item));
      item += gridDim.x;
      if (more) left_of_item = blocks_of_item = range_of<C>(k, item).blocks;
    }
    return more;
  }
  __device__ __forceinline__ void load_block(Operand (&v)[2]) {
    wait_for_block();
    load(0, v[0]);
    load(1, v[1]);
    free_block();
    part_columns(v[0]);
    part_columns(v[1]);
  }

  __device__ __forceinline__ void free_weights() {
    warp_arrives(at.barrier(C::kWeightsFree, slot.stage));
    slot.advance();
  }

  __device__ __forceinline__ void write(std::uint32_t item, Heads w) {
    end_rows(item, w);
    ptx::named_barrier_sync(1, C::kValueGroups * 128);  // of all warpgroups that sum
    float2 f[kHeads / 8];
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) f[j] = factors(offsetof(Header, max), j);
    free_weights();
    std::uint16_t* out =
        is_split(k, item) ? k.partial_out + std::size_t{item - k.whole} * kHeads * kDV
                          : k.p.out + (w.token * static_cast<std::size_t>(k.p.h_q) + w.head) * kDV;
    const auto heads = static_cast<std::uint32_t>(min(std::int64_t{kHeads}, k.p.h_q - w.head));
    const std::uint32_t l = opaque_lane(), head = l % 4 * 2;
    out += head * kDV + tile * (16 * kParts) + l / 4 * 2;
    if (heads == kHeads) {
      write_heads<true>(out, f, 0);
    } else {
      write_heads<false>(out, f, heads - min(head, heads));
    }
  }
  /// `heads`: from this lane's first on.
  template <bool kAll>
  __device__ __forceinline__ void write_heads(std::uint16_t* out, const float2 (&f)[kHeads / 8],
                                              std::uint32_t heads) const {
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!kAll && 8 * j + e >= heads) continue;
        const float factor = e == 0 ? f[j].x : f[j].y;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const float* s = &sums[part][4 * j + e];
          __stcs(reinterpret_cast<std::uint32_t*>(out + (8 * j + e) * kDV + part * 16),
                 bf16x2(s[0] * factor, s[2] * factor));
        }
      }
    }
  }
  static __device__ __forceinline__ std::uint32_t bf16x2(float lo, float hi) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const std::uint32_t*>(&v);
  }

  __device__ __forceinline__ void run() {
    if constexpr (C::kFew) {
      item = blockIdx.x;
      left_of_item = blocks_of_item = range_of<C>(k, item).blocks;
      Operand even[2], odd[2];
      load_block(even);
      while (sum_block(even, odd) && sum_block(odd, even)) {
      }
    } else {
      run_of_many();
    }
  }
  __device__ __forceinline__ void run_of_many() {
    for (std::uint32_t at_item = blockIdx.x; at_item < k.items; at_item += gridDim.x) {
      const std::uint32_t blocks = range_of<C>(k, at_item).blocks;
      const Heads w = heads_of<C>(k, at_item);
      // The queries are not for this warpgroup.
      wait_for_block();
      free_block();
      sum_block(true);
      for (std::uint32_t left = blocks - 1; left > 0; --left) {
        free_weights();
        sum_block(false);
      }
      write(at_item, w);
    }
  }
};

}  // namespace serinus::sparse_mla::sm90
