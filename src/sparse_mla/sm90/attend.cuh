// The two attending warpgroups. Each scores its own block of every pair for 64 heads (S = Q K^T),
// turns the scores into weights P, and sums its own half of V over both blocks of the pair (O += P
// V).
//
// A step of the loop works on two pairs: scores of this one, values of the one before. Between
// partners go, per pair: the maxima of a block's rows, so that both weigh by the same, exact
// running maximum; then P; with the last pair of a work item also the sums of the weights.
// docs/design/sparse_mla_sm90.md draws the order and says why no stage is overwritten early.
#pragma once

#include <cuda_bf16.h>

#include "gpu/ptx/copy.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "sparse_mla/sm90/row_end.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Attend {
  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t warpgroup, warp, lane;
  const std::uint32_t half;   // which of the partners this is
  const std::uint32_t group;  // its 64 heads among those of the CTA
  const std::uint32_t peer;   // duo: rank of the partner's CTA
  float signed_scale;         // of a score, to a logit in units of log 2

  // Rows r (index 0) and r + 8 (index 1) of this thread, r = 16 warp + lane / 4.
  float scores[32];              // S
  std::uint32_t weights[8];      // P, as registers of A
  float sums[2][64];             // O
  float max[2];                  // of all scores so far: common to the partners
  float block_max[2];            // of this block's
  float sum[2], rounded_sum[2];  // of own weights, exact and as rounded to e4m3

  std::uint32_t pair = 0;  // the one whose scores are due
  Ring<C::kOwnStages> own;
  float factor[2];         // due to the sums: see settle()
  std::uint32_t turn = 0;  // work items begun

  __device__ __forceinline__ Attend(const KernelParams& params, Places<C> places,
                                    std::uint32_t rank, std::uint32_t wg, std::uint32_t thread)
      : k(params),
        at(places),
        warpgroup(wg),
        warp(__shfl_sync(~0u, thread / 32, 0)),
        lane(opaque_lane()),
        half(C::kDuo ? rank : wg),
        group(C::kDuo ? wg : 0),
        peer(rank ^ 1) {
    const float s = k.p.sm_scale * *k.p.q_scale * *k.p.kv_scale * kLog2e;
    // Not 0, which would make NaN of the -inf of a masked score; this is 0 for every real score.
    signed_scale = copysignf(fmaxf(fabsf(s), 1e-37f), s);
  }

  /// As an instruction that the compiler does not repeat wherever it wants the value again.
  static __device__ __forceinline__ std::uint32_t opaque_lane() {
    std::uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }
  /// Scores change their sign first, if the scale is negative.
  __device__ __forceinline__ float scale() const { return fabsf(signed_scale); }
  __device__ __forceinline__ std::uint32_t row() const { return warp * 16 + lane / 4; }
  static __device__ __forceinline__ std::uint32_t parity(std::uint32_t pair) {
    return pair >> 1 & 1;
  }

  // ---- Turns (duo). From its scores to its values a warpgroup has the tensor cores to itself, so
  // that the softmax of one hides behind the products of the other.
  __device__ __forceinline__ void wait_for_turn() const {
    if constexpr (C::kDuo) ptx::named_barrier_sync(1 + static_cast<int>(warpgroup), 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (C::kDuo) ptx::named_barrier_arrive(2 - static_cast<int>(warpgroup), 256);
  }

  // ---- Scores.
  __device__ __forceinline__ std::uint32_t k_slot() const {
    return C::kDuo ? pair & 1 : (pair & 1) * 2 + half;
  }

  __device__ __forceinline__ void issue_scores(bool first) {
    if (first) ptx::mbarrier_wait(at.barrier(kQFull, group), turn & 1);
    ptx::mbarrier_wait(at.barrier(kKFull, k_slot()), parity(pair));
    // Tiles of K: own half of V, other half of V, rope; those of Q in the same order.
    std::uint32_t k_own, k_rest;
    if constexpr (C::kDuo) {
      k_own = at.own(own.stage);
      k_rest = at.rest(pair & 1);
    } else {
      k_own = at.block(pair & 1, half) + half * (kTilesInHalf * kTile);
      k_rest = at.block(pair & 1, half) + (1 - half) * (kTilesInHalf * kTile);
    }
    const std::uint32_t k_rope =
        C::kDuo ? k_rest + kTilesInHalf * kTile : at.block(pair & 1, half) + C::kRope * kTile;
    // Opaque, lest the compiler keep one descriptor a product in registers across the loop.
    std::uint32_t q = at.q(group);
    asm volatile("" : "+r"(q));
    const ptx::MatrixDescriptor q_own(q + half * (kTilesInHalf * kTile));
    const ptx::MatrixDescriptor q_rest(q + (1 - half) * (kTilesInHalf * kTile));
    ptx::wgmma_fence();
    multiply_scores<kTilesInHalf>(q_own, ptx::MatrixDescriptor(k_own), false);
    multiply_scores<kTilesInHalf>(q_rest, ptx::MatrixDescriptor(k_rest), true);
    if constexpr (C::kChunks > C::kRope) {
      multiply_scores<1>(ptx::MatrixDescriptor(q + C::kRope * kTile), ptx::MatrixDescriptor(k_rope),
                         true);
    }
    ptx::wgmma_commit();
  }
  template <int kTiles>
  __device__ __forceinline__ void multiply_scores(ptx::MatrixDescriptor q, ptx::MatrixDescriptor kk,
                                                  bool add) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {  // 32 bytes of k each
      const int offset = i / 2 * kTile + i % 2 * 32;
      ptx::wgmma_m64n64k32(scores, q.plus(offset), kk.plus(offset), add || i > 0);
    }
  }

  /// Which tokens of the block count; read ahead, since it takes its time.
  __device__ __forceinline__ uint2 load_mask() const {
    return ptx::load_shared_u32x2(at.mask(k_slot()));
  }

  /// After the scores' product is done: frees what it read, masks, and takes the block's maxima.
  __device__ __forceinline__ void finish_scores(uint2 mask, bool last) {
    ptx::pin(scores);
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive(at.barrier(kKDone, k_slot()));
      if (last) ptx::mbarrier_arrive(at.barrier(kQFree, group));
    }
    if ((mask.x & mask.y) != ~0u || signed_scale < 0) bend_scores(mask);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = fmaxf(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < 8; ++j)
        m = fmaxf(m, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      block_max[r] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    }
  }

  /// What few blocks need: a negative scale turns the scores' sign, tokens that do not count get
  /// -inf.
  __device__ __forceinline__ void bend_scores(uint2 mask) {
    const float sign = copysignf(1.f, signed_scale);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t bits = (j < 4 ? mask.x : mask.y) >> (j % 4 * 8 + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[4 * j + e] = (bits >> (e & 1) & 1) != 0 ? scores[4 * j + e] * sign : -INFINITY;
    }
  }

  // ---- Partners. What this warpgroup receives lies at its own number; it sends to the partner's,
  // in the other CTA of a duo, in the other warpgroup of a solo.
  __device__ __forceinline__ std::uint32_t receiver() const {
    return C::kDuo ? warpgroup : warpgroup ^ 1;
  }
  /// One value a row: lanes 0 and 1 of four speak for rows r and r + 8.
  template <class T>
  __device__ __forceinline__ void send_rows(std::uint32_t dst, T a, T b, std::uint32_t bar) const {
    const std::uint32_t which = lane % 4;
    if (which < 2) {
      dst += (row() + 8 * which) * static_cast<std::uint32_t>(sizeof(T));
      const T v = which == 0 ? a : b;
      if constexpr (C::kDuo) {
        ptx::store_to_peer(ptx::address_in_cta(dst, peer), v, ptx::address_in_cta(bar, peer));
      } else {
        ptx::store_shared(dst, v);
      }
    }
  }
  /// Solo: what was stored before by this warp is there.
  __device__ __forceinline__ void tell(std::uint32_t bar) const {
    if constexpr (!C::kDuo) {
      __syncwarp();
      if (ptx::elect_one()) ptx::mbarrier_arrive(bar);
    }
  }

  /// P of the pair before has come from the partner.
  __device__ __forceinline__ void wait_for_weights(std::uint32_t before) const {
    ptx::mbarrier_wait(at.barrier(kPFull, warpgroup * 2 + (before & 1)), parity(before));
  }

  __device__ __forceinline__ void send_max(bool last) const {
    const std::uint32_t slot = pair & 1;
    if constexpr (C::kDuo) {
      // What this warpgroup is going to receive. The partner answers with P only once it has the
      // maxima of all four warps, so this comes in time.
      if (warp == 0 && ptx::elect_one()) {
        ptx::mbarrier_arrive_expect(at.barrier(kMaxFull, warpgroup * 2 + slot),
                                    sizeof(RowStats::max));
        ptx::mbarrier_arrive_expect(at.barrier(kPFull, warpgroup * 2 + slot),
                                    kTile + (last ? sizeof(RowStats::sums) : 0));
      }
      __syncwarp();
    }
    const std::uint32_t bar = at.barrier(kMaxFull, receiver() * 2 + slot);
    send_rows(at.stats(receiver(), slot) + offsetof(RowStats, max), block_max[0], block_max[1],
              bar);
    tell(bar);
  }

  /// The common maximum with this pair in it; how much less what was summed before counts by it.
  __device__ __forceinline__ void receive_max(bool first) {
    const std::uint32_t slot = pair & 1;
    ptx::mbarrier_wait(at.barrier(kMaxFull, warpgroup * 2 + slot), parity(pair));
    const std::uint32_t theirs = at.stats(warpgroup, slot) + offsetof(RowStats, max) + row() * 4;
    float next[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      next[r] = fmaxf(block_max[r], ptx::load_shared_f32(theirs + 32 * r));
    if (first) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        max[r] = next[r];
        sum[r] = rounded_sum[r] = 0;
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      next[r] = fmaxf(next[r], max[r]);
      factor[r] = ptx::exp2_approx((max[r] - finite_max(next[r])) * scale());
      max[r] = next[r];
      sum[r] *= factor[r];
      rounded_sum[r] *= factor[r];
    }
  }

  // ---- Softmax: scores to weights, kept as operand of the own product and sent to the partner.
  __device__ __forceinline__ void weigh_and_send(bool last) {
    const float shift[2] = {kWeightShift - finite_max(max[0]) * scale(),
                            kWeightShift - finite_max(max[1]) * scale()};
#pragma unroll
    for (int u = 0; u < 4; ++u) {  // 16 tokens
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[i] =
              ptx::exp2_approx(fmaf(scores[8 * u + i / 2 * 4 + 2 * r + i % 2], scale(), shift[r]));
        }
        sum[r] += (w[0] + w[1]) + (w[2] + w[3]);
        weights[u / 2 * 4 + u % 2 * 2 + r] = ptx::pack_e4m3(w[0], w[1], w[2], w[3]);
      }
    }
    send_weights(last);
  }

  __device__ __forceinline__ void send_weights(bool last) {
    const std::uint32_t slot = pair & 1;
    const std::uint32_t bar = at.barrier(kPFull, receiver() * 2 + slot);
    const std::uint32_t dst = at.p(receiver(), slot);
    const std::uint32_t tile = C::kDuo ? at.p_send(warpgroup) : dst;
    // Matrix m of a store: tokens 16 m to 16 m + 15 of 8 rows.
    const std::uint32_t place = tile + in_tile(warp * 16 + lane % 8, lane / 8);
    ptx::store_matrix_x4(place, {weights[0], weights[2], weights[4], weights[6]});
    ptx::store_matrix_x4(place + 8 * 64, {weights[1], weights[3], weights[5], weights[7]});
    ptx::fence_proxy_async();
    if constexpr (C::kDuo) {
      __syncwarp();
      if (ptx::elect_one()) {
        const std::uint32_t rows = warp * (16 * 64);
        ptx::bulk_copy_to_peer(ptx::address_in_cta(dst + rows, peer), tile + rows, 16 * 64,
                               ptx::address_in_cta(bar, peer));
      }
    }
    sum_rounded();
    if (last) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] = over_four_lanes(sum[r]);
        rounded_sum[r] = over_four_lanes(rounded_sum[r]);
      }
      send_rows(at.stats(receiver(), slot) + offsetof(RowStats, sums),
                make_float2(sum[0], rounded_sum[0]), make_float2(sum[1], rounded_sum[1]), bar);
    }
    tell(bar);
  }

  /// The denominator is the sum of what multiplies V: of the weights after rounding.
  __device__ __forceinline__ void sum_rounded() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const __half2 s =
          __hadd2(__hadd2(ptx::sum_e4m3(weights[r]), ptx::sum_e4m3(weights[2 + r])),
                  __hadd2(ptx::sum_e4m3(weights[4 + r]), ptx::sum_e4m3(weights[6 + r])));
      rounded_sum[r] += __low2float(s) + __high2float(s);
    }
  }
  static __device__ __forceinline__ float over_four_lanes(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
  }

  // ---- Values, of the pair `before`: own block from registers, the partner's from shared memory.
  __device__ __forceinline__ void issue_values(std::uint32_t before, bool first,
                                               const Ring<C::kOwnStages>& own_slot) {
    const std::uint32_t slot = before & 1;
    std::uint32_t v_own, v_other;
    if constexpr (C::kDuo) {
      ptx::mbarrier_wait(at.barrier(kOwnFull, own_slot.stage), own_slot.parity);
      v_own = at.own(own_slot.stage);
      v_other = at.other(slot);
    } else {
      ptx::mbarrier_wait(at.barrier(kVFull, slot * 2 + half), parity(before));
      v_own = at.block(slot, half) + half * (kTilesInHalf * kTile);
      v_other = at.block(slot, half ^ 1) + half * (kTilesInHalf * kTile);
    }
    ptx::wgmma_fence();
    const ptx::MatrixDescriptor own_v(v_own);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // 32 tokens
#pragma unroll
      for (int n = 0; n < 2; ++n)
        ptx::wgmma_m64n128k32(sums[n], weights + 4 * i, own_v.plus(value_offset(i, n)),
                              i > 0 || !first);
    }
    ptx::wgmma_commit();

    if constexpr (C::kDuo) {
      ptx::mbarrier_wait(at.barrier(kOtherFull, slot), parity(before));
    } else {
      ptx::mbarrier_wait(at.barrier(kVFull, slot * 2 + (half ^ 1)), parity(before));
    }
    ptx::wgmma_fence();
    const ptx::MatrixDescriptor p(at.p(warpgroup, slot));
    const ptx::MatrixDescriptor other_v(v_other);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
        ptx::wgmma_m64n128k32(sums[n], p.plus(32 * i), other_v.plus(value_offset(i, n)), true);
    }
    ptx::wgmma_commit();
  }

  /// Of 32 tokens and 128 columns of V^T.
  static __device__ __forceinline__ std::uint32_t value_offset(int tokens, int columns) {
    return tokens * 32 + columns * (2 * kTile);
  }

  /// After the values' products are done: frees what they read.
  __device__ __forceinline__ void finish_values(std::uint32_t before,
                                                const Ring<C::kOwnStages>& own_slot) {
    ptx::pin(sums[0]);
    ptx::pin(sums[1]);
    __syncwarp();
    if (ptx::elect_one()) {
      if constexpr (C::kDuo) {
        ptx::mbarrier_arrive(at.barrier(kOwnFree, own_slot.stage));
        ptx::mbarrier_arrive(at.barrier(kOtherFree, before & 1));
      } else {
        ptx::mbarrier_arrive(at.barrier(kVFree, before & 1));
      }
    }
  }

  /// What is due to the sums before the next product adds to them: the change of the maximum since.
  __device__ __forceinline__ void settle() {
    if (!__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (int j = 0; j < 64; ++j) part[j] *= factor[j / 2 % 2];
    }
  }

  // ---- Epilogue, in two steps: what the rows' sums of weights say, as soon as the partner's are
  // here; the sums of V, once they are done.
  __device__ __forceinline__ void end_rows(std::uint32_t item, std::uint32_t before) {
    const Heads w = heads_of<C>(k, item);
    const std::uint32_t theirs =
        at.stats(warpgroup, before & 1) + offsetof(RowStats, sums) + row() * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 other = ptx::load_shared_f32x2(theirs + 64 * r);
      const float all = sum[r] + other.x, all_weights = rounded_sum[r] + other.y;
      const float log2_max = max[r] * scale();
      const std::uint32_t in_item = group * 64 + row() + 8 * r, head = w.head + in_item;
      const bool speaks = half == 0 && lane % 4 == 0;
      factor[r] = 1;
      if (k.splits > 1) {
        if (speaks) {
          k.partial_stats[std::size_t{item} * C::kHeads + in_item] = {log2_max, all, all_weights,
                                                                      0};
        }
      } else if (head < k.p.h_q) {
        const RowEnd end(k.p, head, log2_max, all, all_weights);
        factor[r] = end.factor;
        if (speaks) {
          const std::size_t at_row = w.token * static_cast<std::size_t>(k.p.h_q) + head;
          k.p.max_logits[at_row] = end.max_logits;
          k.p.lse[at_row] = end.lse;
        }
      }
    }
  }

  __device__ __forceinline__ void write_rows(std::uint32_t item) const {
    const Heads w = heads_of<C>(k, item);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t in_item = group * 64 + row() + 8 * r, head = w.head + in_item;
      if (head >= k.p.h_q) continue;
      std::uint16_t* out =
          k.splits > 1 ? k.partial_out + (std::size_t{item} * C::kHeads + in_item) * kDV
                       : k.p.out + (w.token * static_cast<std::size_t>(k.p.h_q) + head) * kDV;
      out += half * 256 + lane % 4 * 8;  // this lane's 8 columns of each 32: see transpose.cuh
      const float f = factor[r];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* s = &sums[j / 4][16 * (j % 4) + 2 * r];
        *reinterpret_cast<uint4*>(out + 32 * j) = {
            bf16x2(s[0] * f, s[1] * f), bf16x2(s[4] * f, s[5] * f), bf16x2(s[8] * f, s[9] * f),
            bf16x2(s[12] * f, s[13] * f)};
      }
    }
  }
  static __device__ __forceinline__ std::uint32_t bf16x2(float lo, float hi) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const std::uint32_t*>(&v);
  }

  // ---- The loop: scores of pair n, values of pair n - 1. While the tensor cores sum values,
  // maxima travel and scores become weights.
  __device__ __forceinline__ void run() {
    std::uint32_t item = first_item<C>(), left = range_of<C>(k, item).pairs;
    bool first = true;       // pair n is the first of its work item
    bool write_due = false;  // pair n - 2 was the last of its own
    factor[0] = factor[1] = 1;
    if (warpgroup == 1) pass_turn();
    wait_for_turn();
    issue_scores(true);
    pass_turn();
    {
      const uint2 mask = load_mask();
      ptx::wgmma_wait<0>();
      finish_scores(mask, left == 1);
    }
    send_max(left == 1);
    receive_max(true);
    weigh_and_send(left == 1);
    bool was_first;  // pair n - 1 is the first of its own
    while (true) {
      was_first = first;
      first = --left == 0;
      if (first) {
        if (item + item_step<C>() >= k.items) break;
        item += item_step<C>();
        left = range_of<C>(k, item).pairs;
        ++turn;
      }
      const bool last = left == 1;
      const Ring<C::kOwnStages> own_before = own;
      own.advance();
      // Tells the compiler that these are one value a warp, so that descriptors are made of them in
      // uniform registers.
      own.stage = __shfl_sync(~0u, own.stage, 0);
      pair = __shfl_sync(~0u, pair + 1, 0);

      if (write_due) {
        write_rows(item - (first ? 2 : 1) * item_step<C>());
      } else {
        settle();
      }
      wait_for_turn();
      issue_scores(first);
      const uint2 mask = load_mask();
      ptx::wgmma_wait<0>();
      finish_scores(mask, last);
      wait_for_weights(pair - 1);
      send_max(last);
      issue_values(pair - 1, was_first, own_before);
      pass_turn();
      if (first) end_rows(item - item_step<C>(), pair - 1);
      write_due = first;
      receive_max(first);
      ptx::wgmma_wait<0>();
      finish_values(pair - 1, own_before);
      weigh_and_send(last);
    }
    if (write_due) {
      write_rows(item - item_step<C>());
    } else {
      settle();
    }
    wait_for_weights(pair);
    issue_values(pair, was_first, own);
    end_rows(item, pair);
    ptx::wgmma_wait<0>();
    finish_values(pair, own);
    write_rows(item);
    if (warpgroup == 0) wait_for_turn();  // takes what the other passed last
  }
};

}  // namespace serinus::sparse_mla::sm90
