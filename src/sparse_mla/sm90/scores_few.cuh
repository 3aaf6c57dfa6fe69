// The scoring warpgroup of fewer than 64 heads: S^T = K Q^T, 64 rows of kv x the heads of an item.
//
// With the operands swapped, products and exponentials are as many as there are heads, and all four
// warps share them. Both operands lie in shared memory. Warp w has rows 16 w to 16 w + 15 of the
// block, a thread two of them, g = lane / 4 and g + 8 (index r), of heads 8 j + 2 (lane % 4) + e.
//
// The block after is being scored while one is weighed. References as in scores.cuh, but a head's
// belongs to the whole warpgroup: the warps vote in every block, and exchange maxima when one
// moves.
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
struct ScoresOfFew : Scale {
  static constexpr int kHeads = C::kHeads;
  static constexpr int kOwn = kHeads / 4;  // heads of a thread, number 2 j + e
  using Header = typename C::Header;

  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t warp, lane;

  Ring<C::kStages> ring;  // the next block
  Ring<C::kQuerySlots> queries;
  Ring<C::kWeightSlots> slot;
  std::uint32_t stage;  // of the block whose scores are due

  std::uint32_t item, left;    // of the next block: its item and what is left of that
  float max[kOwn], sum[kOwn];  // of this thread's rows
  float limit[kOwn];           // reference + slack
  float shift[kOwn];           // of a scaled score

  __device__ __forceinline__ ScoresOfFew(const KernelParams& params, Places<C> places,
                                         std::uint32_t thread)
      : Scale(params.p),
        k(params),
        at(places),
        warp(__shfl_sync(~0u, thread / 32, 0)),
        lane(threadIdx.x % 32) {}

  /// Number i of this thread's heads.
  __device__ __forceinline__ std::uint32_t head(int i) const {
    return i / 2 * 8 + lane % 4 * 2 + i % 2;
  }

  /// Scores the next block, maybe of the next item, in two sums: the tensor cores cut each off at
  /// 13 bits below its largest term, which tells where all products have one sign. False: there is
  /// none; then, for nobody, what lies where it would.
  __device__ __forceinline__ bool start_next(float (&scores)[kHeads / 2],
                                             float (&second)[kHeads / 2]) {
    bool more = true;
    if (left == 0) [[unlikely]] {
      warp_arrives(at.barrier(C::kQueryFree, queries.stage));
      queries.advance();
      item += gridDim.x;
      more = item < k.items;
      if (more) begin_item();
    }
    if (more) ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
    const ptx::MatrixDescriptor<64> heads(at.queries(queries.stage));
    ptx::wgmma_fence();
    for_columns<C>(at.block(ring.stage), [&](int i, auto rows) {
      const bool in_first = i < C::kChunks;
      ptx::wgmma_k32(in_first ? scores : second, rows,
                     heads.plus(i / 2 * C::kQueryTile + i % 2 * 32), i % C::kChunks > 0);
    });
    ptx::wgmma_commit();
    stage = ring.stage;
    ring.advance();
    --left;
    return more;
  }
  __device__ __forceinline__ void begin_item() {
    left = range_of<C>(k, item).blocks;
    ptx::mbarrier_wait(at.barrier(C::kQueryFull, queries.stage), queries.parity);
  }

  /// What few blocks need: a negative scale turns the scores' sign, rows that do not count get
  /// -inf.
  __device__ __forceinline__ void bend(float (&scores)[kHeads / 2], uint2 mask) const {
    const float sign = copysignf(1.f, signed_scale);
    const std::uint32_t bits = (warp < 2 ? mask.x : mask.y) >> (warp % 2 * 16 + lane / 4);
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i)
      scores[i] = (bits >> (i / 2 % 2 * 8) & 1) != 0 ? scores[i] * sign : -INFINITY;
  }

  /// Moves the references where a score exceeds them by too much.
  __device__ __forceinline__ void settle_references(const float (&scores)[kHeads / 2]) {
    float m[kOwn];
    bool move = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      m[i] = fmaxf(scores[i / 2 * 4 + i % 2], scores[i / 2 * 4 + 2 + i % 2]);
      max[i] = fmaxf(max[i], m[i]);
      move = move || m[i] > limit[i];
    }
    move = ptx::named_barrier_any(2, 128, move);
    if (move) [[unlikely]]
      move_references(m);
    if (warp == 0 && ptx::elect_one())
      ptx::store_shared_u8(at.header(slot.stage) + offsetof(Header, rescaled), move ? 1 : 0);
  }
  __device__ __forceinline__ void move_references(float (&m)[kOwn]) {
    // The last readers of the exchange have voted since.
    const std::uint32_t exchange = at.base + C::kExchange, header = at.header(slot.stage);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      m[i] = max_of_rows(m[i]);
      if (lane < 4) ptx::store_shared(exchange + (warp * kHeads + head(i)) * 4, m[i]);
    }
    ptx::named_barrier_sync(2, 128);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        m[i] = fmaxf(m[i], ptx::load_shared_f32(exchange + (w * kHeads + head(i)) * 4));
      float factor = 1;
      if (m[i] > limit[i]) {
        // Without a reference there is nothing to rescale but zeros.
        const float before = limit[i] == -INFINITY ? INFINITY : shift[i];
        set_reference(i, m[i]);
        factor = ptx::exp2_approx(shift[i] - before);
        sum[i] *= factor;
      }
      if (warp == 0 && lane < 4)
        ptx::store_shared(header + offsetof(Header, rescale) + head(i) * 4, factor);
    }
  }
  __device__ __forceinline__ void set_reference(int i, float reference) {
    limit[i] = reference + slack;
    shift[i] = kWeightShift - finite_max(reference) * scale();
  }
  static __device__ __forceinline__ float max_of_rows(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 4));
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 8));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 16));
  }
  static __device__ __forceinline__ float sum_of_rows(float v) {
    v += __shfl_xor_sync(~0u, v, 4);
    v += __shfl_xor_sync(~0u, v, 8);
    return v + __shfl_xor_sync(~0u, v, 16);
  }

  /// Scores to weights, into their tile: head by row of kv; rows g and g + 8 are neighbours there.
  __device__ __forceinline__ void weigh(const float (&scores)[kHeads / 2]) {
    std::uint32_t w[kHeads / 8];
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = ptx::exp2_approx(fmaf(scores[4 * j + i], scale(), shift[2 * j + i % 2]));
      sum[2 * j] += x[0] + x[2];
      sum[2 * j + 1] += x[1] + x[3];
      w[j] = ptx::pack_e4m3(x[0], x[2], x[1], x[3]);
    }
    ptx::store_matrices_trans(at.weights(slot.stage) + in_tile(lane % kHeads, warp), w);
  }

  /// Passes on what is known of the rows of an item.
  __device__ __forceinline__ void end_rows() const {
    const std::uint32_t header = at.header(slot.stage);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float all_max = max_of_rows(max[i]), all = sum_of_rows(sum[i]);
      if (lane >= 4) continue;
      const std::uint32_t place = header + head(i) * 4, part = warp * (kHeads * 4);
      ptx::store_shared(place + part + offsetof(Header, max), all_max * scale());
      ptx::store_shared(place + part + offsetof(Header, sum), all);
      if (warp == 0)
        ptx::store_shared(place + offsetof(Header, reference), kWeightShift - shift[i]);
    }
  }

  __device__ __forceinline__ void begin_rows() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      max[i] = -INFINITY;
      sum[i] = 0;
      set_reference(i, -INFINITY);
    }
  }

  /// From scores to weights; meanwhile the next block is being scored. False: this was the last.
  __device__ __forceinline__ bool step(float (&scores)[kHeads / 2], float (&next)[kHeads / 2],
                                       float (&second)[kHeads / 2]) {
    const uint2 mask = ptx::load_shared_u32x2(at.mask(stage));
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    ptx::pin(second);
    // Now: ptxas lets nothing change results of products while others are under way.
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) scores[i] += second[i];
    warp_arrives(at.barrier(C::kBlockFree, stage));
    const bool last = left == 0;
    if ((mask.x & mask.y) != ~0u || signed_scale < 0) [[unlikely]]
      bend(scores, mask);
    const bool more = start_next(next, second);
    ptx::mbarrier_wait(at.barrier(C::kWeightsFree, slot.stage), slot.parity ^ 1);
    settle_references(scores);
    weigh(scores);
    if (last) [[unlikely]] {
      end_rows();
      begin_rows();
    }
    warp_arrives(at.barrier(C::kWeightsFull, slot.stage));
    slot.advance();
    return more;
  }

  __device__ __forceinline__ void run() {
    float even[kHeads / 2], odd[kHeads / 2], second[kHeads / 2];
    item = blockIdx.x;
    begin_item();
    begin_rows();
    start_next(even, second);
    while (step(even, odd, second) && step(odd, even, second)) {
    }
    ptx::wgmma_wait<0>();
  }
};

}  // namespace serinus::sparse_mla::sm90
