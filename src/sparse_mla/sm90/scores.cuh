// The scoring warpgroup of 64 heads: S = Q K^T of 64 heads x 64 rows of kv, then weights P = exp2
// of it.
//
// Q lies in registers for the whole work item, as the A operand; so a block of K is read from
// shared memory once. A thread has two rows of S, r and r + 8 (index 0 and 1), r = 16 warp + lane /
// 4, of which four lanes share the columns.
//
// Weights count from a reference: a row's maximum so far, but an older one as long as no score
// exceeds it by more than kSlack. When it moves, the values summed so far are rescaled by the other
// warpgroups, which a header beside the weights tells them.
#pragma once

#include <cstddef>

#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "sparse_mla/sm90/scale.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Scores : Scale {
  using Header = typename C::Header;

  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t warp, lane;

  Ring<C::kStages> ring;  // the next block
  Ring<C::kWeightSlots> slot;
  std::uint32_t stage;  // of the block whose scores are due

  std::uint32_t item, left;  // blocks of the item from this one on
  std::uint32_t q[2 * C::kChunks][4];
  float scores[32];
  float max[2];        // of this lane's scores
  float reference[2];  // of the row: what weights count from
  float sum[2];        // of this lane's weights, before rounding

  __device__ __forceinline__ Scores(const KernelParams& params, Places<C> places,
                                    std::uint32_t thread)
      : Scale(params.p),
        k(params),
        at(places),
        warp(__shfl_sync(~0u, thread / 32, 0)),
        lane(threadIdx.x % 32) {}

  __device__ __forceinline__ std::uint32_t row() const { return warp * 16 + lane / 4; }

  __device__ __forceinline__ void load_queries() {
    ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
    // Matrices of a load: rows 0-7 and 8-15 of bytes 0-15, then of bytes 16-31.
    const std::uint32_t l = opaque_lane();
    const std::uint32_t place = at.block(ring.stage) + in_tile(warp * 16 + l % 16, l / 16);
#pragma unroll
    for (int i = 0; i < 2 * C::kChunks; ++i) {
      const uint4 v = ptx::load_matrix_x4((place ^ (i % 2 * 32)) + i / 2 * C::kQueryTile);
      q[i][0] = v.x;
      q[i][1] = v.y;
      q[i][2] = v.z;
      q[i][3] = v.w;
    }
    warp_arrives(at.barrier(C::kBlockFree, ring.stage));
    ring.advance();
  }

  /// Scores the ring's next block.
  __device__ __forceinline__ void start() {
    ptx::wgmma_fence();
    for_columns<C>(at.block(ring.stage),
                   [&](int i, auto block) { ptx::wgmma_k32(scores, q[i], block, i > 0); });
    ptx::wgmma_commit();
    stage = ring.stage;
    ring.advance();
  }

  /// What few blocks need: a negative scale turns the scores' sign, rows that do not count get
  /// -inf.
  __device__ __forceinline__ void bend(uint2 mask) {
    const float sign = copysignf(1.f, signed_scale);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      std::uint32_t bits = (j < 4 ? mask.x : mask.y) >> (j % 4 * 8 + lane % 4 * 2);
      asm volatile("" : "+r"(bits));  // one after another, for want of registers
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[4 * j + e] = (bits >> (e & 1) & 1) != 0 ? scores[4 * j + e] * sign : -INFINITY;
    }
  }

  /// Largest scores of the block in this lane's rows.
  __device__ __forceinline__ void block_max(float (&m)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tree[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) tree[j] = fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]);
#pragma unroll
      for (int half = 4; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; ++j) tree[j] = fmaxf(tree[j], tree[j + half]);
      }
      m[r] = tree[0];
    }
  }
  /// In the warp: whether a score exceeds its reference by too much, or `also`.
  __device__ __forceinline__ bool vote(const float (&m)[2], bool also = false) const {
    return __any_sync(~0u, m[0] > reference[0] + slack || m[1] > reference[1] + slack || also);
  }
  __device__ __forceinline__ void move_references(float (&m)[2]) {
    const std::uint32_t header = at.header(slot.stage);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = max_of_four_lanes(m[r]);
      float factor = 1;
      if (m[r] > reference[r] + slack) {
        factor = ptx::exp2_approx((reference[r] - m[r]) * scale());
        reference[r] = m[r];
        sum[r] *= factor;
      }
      if (lane % 4 == 0)
        ptx::store_shared(header + offsetof(Header, rescale) + (row() + 8 * r) * 4, factor);
    }
  }
  /// Masks, and moves references. What is rare stands behind one branch: each one costs some 20
  /// clocks a block, taken over code that is in the way.
  __device__ __forceinline__ void settle_references(uint2 mask) {
    float m[2];
    block_max(m);
    const bool to_bend = (mask.x & mask.y) != ~0u || signed_scale < 0;
    bool move = vote(m, to_bend);
    if (move) [[unlikely]] {
      if (to_bend) {
        bend(mask);
        block_max(m);
        move = vote(m);
      }
      if (move) move_references(m);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = fmaxf(max[r], m[r]);
    if (lane == 0) {
      ptx::store_shared_u8(at.header(slot.stage) + offsetof(Header, rescaled) + warp, move ? 1 : 0);
    }
  }
  static __device__ __forceinline__ float max_of_four_lanes(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  }
  static __device__ __forceinline__ float sum_of_four_lanes(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
  }

  /// Scores to weights before rounding, in place.
  __device__ __forceinline__ void exponentiate() {
    const float shift[2] = {kWeightShift - finite_max(reference[0]) * scale(),
                            kWeightShift - finite_max(reference[1]) * scale()};
#pragma unroll
    for (int i = 0; i < 32; ++i)
      scores[i] = ptx::exp2_in_order(fmaf(scores[i], scale(), shift[i / 2 % 2]));
  }

  /// Sums weights, and rounds them into their tile: row by head, the order of tokens in a row being
  /// that of values.cuh.
  __device__ __forceinline__ void store_weights() {
    std::uint32_t w[2][4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {  // 16 tokens
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* x = &scores[8 * u + 2 * r];
        sum[r] += (x[0] + x[1]) + (x[4] + x[5]);
        w[r][u] = ptx::pack_e4m3(x[0], x[1], x[4], x[5]);
      }
    }
    // Matrix m of a store: tokens 16 m to 16 m + 15 of 8 heads.
    const std::uint32_t place = at.weights(slot.stage) + in_tile(warp * 16 + lane % 8, lane / 8);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      ptx::store_matrix_x4(place + r * (8 * 64), {w[r][0], w[r][1], w[r][2], w[r][3]});
  }

  /// Passes on what is known of the rows of an item.
  __device__ __forceinline__ void end_rows() const {
    const std::uint32_t header = at.header(slot.stage);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t place = header + (row() + 8 * r) * 4;
      const float all_max = max_of_four_lanes(max[r]), all = sum_of_four_lanes(sum[r]);
      if (lane % 4 != 0) continue;
      ptx::store_shared(place + offsetof(Header, max), all_max * scale());
      ptx::store_shared(place + offsetof(Header, reference), finite_max(reference[r]) * scale());
      ptx::store_shared(place + offsetof(Header, sum), all);
    }
  }

  __device__ __forceinline__ void begin_rows() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r] = reference[r] = -INFINITY;
      sum[r] = 0;
    }
  }

  __device__ __forceinline__ void wait_for_block() const {
    ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
  }
  __device__ __forceinline__ void begin_item() {
    left = range_of<C>(k, item).blocks;
    load_queries();
    wait_for_block();
  }

  /// One arrival of the warp, after all of its lanes' accesses so far.
  __device__ __forceinline__ void arrive(std::uint32_t bar) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  }

  /// From scores to weights; then the next block is being scored. False: this was the last.
  __device__ __forceinline__ bool step() {
    const uint2 mask = ptx::load_shared_u32x2(at.mask(stage));
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    const std::uint32_t stage_now = stage;
    const bool last = left == 1, more = !last || item + gridDim.x < k.items;
    settle_references(mask);
    const bool is_there = ptx::mbarrier_test(at.barrier(C::kBlockFull, ring.stage), ring.parity);
    exponentiate();
    store_weights();
    --left;
    if (last || !is_there) [[unlikely]] {
      if (last) {
        end_rows();
        begin_rows();
        item += gridDim.x;
        if (more) begin_item();
      } else {
        wait_for_block();
      }
    }
    start();  // at the very end for nobody, of what lies there
    arrive(at.barrier(C::kBlockFree, stage_now));
    arrive(at.barrier(C::kWeightsFull, slot.stage));
    slot.advance();
    ptx::mbarrier_wait(at.barrier(C::kWeightsFree, slot.stage), slot.parity ^ 1);
    return more;
  }

  __device__ __forceinline__ void run() {
    item = blockIdx.x;
    begin_item();
    begin_rows();
    start();
    while (step()) {
    }
    ptx::wgmma_wait<0>();
  }
};

}  // namespace serinus::sparse_mla::sm90
