// The scoring warpgroup of 64 heads: S = Q K^T of 64 heads x 64 rows of kv, then weights P = exp2
// of it.
//
// Q lies in registers for the whole work item, as the A operand; so a block of K is read from
// shared memory once. A thread has two rows of S, r and r + 8 (index 0 and 1), r = 16 warp + lane /
// 4, of which four lanes share the columns.
//
// A score becomes the exponent of its weight, in units of log 2, and that the weight, all in the
// registers of the product. Weights count from a reference: a row's maximum so far, but an older
// one as long as no score exceeds it by more than kSlack. When it moves, the values summed so far
// are rescaled by the other warpgroups, which a header beside the weights tells them.
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
  float scores[32];     // then, in place: exponents of the weights; weights before rounding
  std::int32_t top[2];  // the largest exponent of this lane's so far, as the bits of a float
  float shift[2];       // from a scaled score to an exponent; kNoReference at first
  float sum[2];         // of this lane's weights, before rounding

  __device__ __forceinline__ Scores(const KernelParams& params, Places<C> places,
                                    std::uint32_t thread)
      : Scale(params.p),
        k(params),
        at(places),
        warp(__shfl_sync(~0u, thread / 32, 0)),
        lane(opaque_lane()) {}

  __device__ __forceinline__ std::uint32_t row() const { return warp * 16 + opaque_lane() / 4; }

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

  // Bits of floats: the largest exponent that moves no reference, kWeightShift + kSlack; infinity;
  // and -0, the shift of a row without a reference.
  static constexpr std::int32_t kLimit = 0x410ccccd, kInfinity = 0x7f800000;
  static constexpr std::uint32_t kNoReference = 0x80000000;
  static_assert(kWeightShift == 6 && kSlack == 2.8f);

  __device__ __forceinline__ bool has_reference(int r) const {
    return __float_as_uint(shift[r]) != kNoReference;
  }

  /// Of a row, and of `before`. Integers order floats as numbers do, but for two negative ones;
  /// `before` is none. NaN is the largest.
  __device__ __forceinline__ std::int32_t max_of_row(int r, std::int32_t before) const {
    const auto e = [&](int i) { return __float_as_int(scores[i / 2 * 4 + 2 * r + i % 2]); };
    std::int32_t third[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) third[i] = __vimax3_s32(e(3 * i), e(3 * i + 1), e(3 * i + 2));
    return max(__vimax3_s32(third[0], third[1], third[2]),
               __vimax3_s32(third[3], third[4], max(e(15), before)));
  }

  /// Scores to exponents of weights. Moves the references where one is too large: true.
  __device__ __forceinline__ bool to_exponents(uint2 mask) {
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = fmaf(scores[i], signed_scale, shift[i / 2 % 2]);
    const std::int32_t t[2] = {max_of_row(0, top[0]), max_of_row(1, top[1])};
    const bool move = __any_sync(~0u, max(t[0], t[1]) > kLimit);
    if (move || (mask.x & mask.y) != ~0u) [[unlikely]]
      return settle_references(mask);
    top[0] = t[0];
    top[1] = t[1];
    return false;
  }

  /// What few blocks need: rows that do not count get no weight, and references are moved.
  __device__ __forceinline__ bool settle_references(uint2 mask) {
    const std::uint32_t l = opaque_lane();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      std::uint32_t bits = (j < 4 ? mask.x : mask.y) >> (j % 4 * 8 + l % 4 * 2);
      asm volatile("" : "+r"(bits));  // one after another, for want of registers
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if ((bits >> (e & 1) & 1) == 0) scores[4 * j + e] = -INFINITY;
    }
    top[0] = max_of_row(0, top[0]);
    top[1] = max_of_row(1, top[1]);
    if (!__any_sync(~0u, max(top[0], top[1]) > kLimit)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = -INFINITY;  // a number; NaN does not count
#pragma unroll
      for (int j = 0; j < 8; ++j)
        m = fmaxf(m, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      m = max_of_four_lanes(m);
      float factor = 1;
      if (has_reference(r) ? __float_as_int(m) > kLimit : m > -INFINITY) {
        const float to = shift[r] - m + kWeightShift, by = to - shift[r];
        factor = has_reference(r) ? ptx::exp2_approx(by) : 0;
        shift[r] = to + 0.f;  // never -0
        sum[r] *= factor;
        top[r] = __float_as_int(kWeightShift);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          scores[4 * j + 2 * r] += by;
          scores[4 * j + 2 * r + 1] += by;
        }
      }
      if (l % 4 == 0)
        ptx::store_shared(at.header(slot.stage) + offsetof(Header, rescale) + (row() + 8 * r) * 4,
                          factor);
    }
    return true;
  }
  static __device__ __forceinline__ float max_of_four_lanes(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  }
  static __device__ __forceinline__ float sum_of_four_lanes(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
  }

  /// Exponents to weights, in place.
  __device__ __forceinline__ void exponentiate() {
#pragma unroll
    for (float& x : scores) x = ptx::exp2_in_order(x);
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
    const std::uint32_t header = at.header(slot.stage), l = opaque_lane();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t place = header + (row() + 8 * r) * 4;
      const float max = max_of_four_lanes(__int_as_float(top[r])), all = sum_of_four_lanes(sum[r]);
      if (l % 4 != 0) continue;
      const bool any = has_reference(r);
      ptx::store_shared(place + offsetof(Header, max), any ? max - shift[r] : -INFINITY);
      ptx::store_shared(place + offsetof(Header, reference), any ? kWeightShift - shift[r] : 0.f);
      ptx::store_shared(place + offsetof(Header, sum), all);
    }
  }

  __device__ __forceinline__ void begin_rows() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = kInfinity;
      shift[r] = __uint_as_float(kNoReference);
      sum[r] = 0;
    }
  }

  __device__ __forceinline__ void wait_for_block() const {
    ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
  }
  /// The item's queries take the registers of those before, whose last product is done.
  __device__ __forceinline__ void begin_item() {
    left = range_of<C>(k, item).blocks;
    load_queries();
  }

  /// One arrival of the warp, after all of its lanes' accesses so far.
  __device__ __forceinline__ void arrive(std::uint32_t bar) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  }

  /// From scores to weights; then the next block is being scored. An item's last block is a copy of
  /// this, so that the others' code has nothing of an item's end in it. False: the last of all.
  template <bool kLastOfItem>
  __device__ __forceinline__ bool step() {
    const uint2 mask = ptx::load_shared_u32x2(at.mask(stage));
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    const std::uint32_t stage_now = stage;
    const bool more = !kLastOfItem || item + gridDim.x < k.items;
    if (kLastOfItem) {
      item += gridDim.x;
      if (more) begin_item();
    }
    const bool moved = to_exponents(mask);
    if (lane == 0)
      ptx::store_shared_u8(at.header(slot.stage) + offsetof(Header, rescaled) + warp, moved);
    const bool is_there = ptx::mbarrier_test(at.barrier(C::kBlockFull, ring.stage), ring.parity);
    exponentiate();
    if (!is_there && more) [[unlikely]]
      wait_for_block();
    store_weights();
    if (kLastOfItem) {
      end_rows();
      begin_rows();
    }
    arrive(at.barrier(C::kWeightsFull, slot.stage));
    start();  // at the very end for nobody, of what lies there
    arrive(at.barrier(C::kBlockFree, stage_now));
    slot.advance();
    ptx::mbarrier_wait(at.barrier(C::kWeightsFree, slot.stage), slot.parity ^ 1);
    return more;
  }

  __device__ __forceinline__ void run() {
    item = blockIdx.x;
    begin_item();
    begin_rows();
    wait_for_block();
    start();
    do {
#pragma unroll 1
      for (; left > 1; --left) step<false>();
    } while (step<true>());
    ptx::wgmma_wait<0>();
  }
};

}  // namespace serinus::sparse_mla::sm90
