// The two warpgroups that sum values: O^T += V^T P^T, each for 256 of V's 512 columns.
//
// fp8 products read both operands along the tokens, where V has its columns together. So V^T goes
// through registers, as the A operand: ldmatrix.trans gives lane (g, c) = (lane / 4, lane % 4) the
// bytes of columns 2 g and 2 g + 1, two tokens a register, and byte permutes part even from odd
// columns. Thereby row g of 16 rows of A is column 2 g, row g + 8 is column 2 g + 1; and byte 4 c +
// b of 16 tokens is token 2 c + b % 2 + 8 (b / 2), which is the order in which a lane holds scores,
// and so that of the tokens in a row of weights.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>

#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/sync.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "sparse_mla/sm90/work.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
struct Values {
  static constexpr int kParts = 4;  // of 64 columns, M of a product; 16 of them a warp
  static constexpr int kHeads = C::kHeads;

  const KernelParams& k;
  const Places<C> at;
  const std::uint32_t lane;
  const std::uint32_t tile;   // of a block: this warp's 64 columns of V
  std::uint32_t load_place;   // in a block: the row and unit that this lane names in a load

  Ring<C::kStages> ring;
  Ring<C::kWeightSlots> slot;
  float sums[kParts][kHeads / 2];     // O^T: of column 16 part + 2 g + i / 2 % 2, head 8 (i / 4) + 2 c + i % 2
  std::uint32_t v[kParts][4];  // V^T of 32 tokens
#ifdef WHOLE
  std::uint32_t v2[kParts][4];
#endif

  __device__ __forceinline__ Values(const KernelParams& params, Places<C> places,
                                    std::uint32_t half, std::uint32_t thread)
      : k(params),
        at(places),
        lane(opaque_lane()),
        tile(__shfl_sync(~0u, half * 4 + thread / 32, 0)) {
    // Matrices of a load: 8 tokens each.
    load_place = tile * kTile + in_tile(lane, 0);
  }

  /// 32 tokens of the block.
  __device__ __forceinline__ void load(int tokens, std::uint32_t (&v)[kParts][4]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint4 x = ptx::load_matrix_x4_trans(
          ((at.block(ring.stage) + load_place) ^ (part * 16)) + tokens * (32 * 64));
      v[part][0] = __byte_perm(x.x, x.y, 0x6420);
      v[part][1] = __byte_perm(x.x, x.y, 0x7531);
      v[part][2] = __byte_perm(x.z, x.w, 0x6420);
      v[part][3] = __byte_perm(x.z, x.w, 0x7531);
    }
  }

  __device__ __forceinline__ void multiply(int tokens, std::uint32_t (&v)[kParts][4], bool add) {
    const ptx::MatrixDescriptor weights(at.weights(slot.stage) + tokens * 32);
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
    return ptx::load_shared_f32x2(at.header(slot.stage) + field + (8 * j + lane % 4 * 2) * 4);
  }

  /// Where references have moved, what is summed so far counts less.
  __device__ __forceinline__ void rescale() {
    const std::uint32_t moved =
        ptx::load_shared_u32(at.header(slot.stage) + offsetof(WeightsHeader, rescaled));
#pragma unroll
    for (int w = 0; w < C::kScoringWarps; ++w) {
      if ((moved >> (8 * w) & 1) == 0) continue;
#pragma unroll
      for (int j = 2 * w; j < min(2 * w + 2, kHeads / 8); ++j) {
        const float2 f = factors(offsetof(WeightsHeader, rescale), j);
#pragma unroll
        for (auto& part : sums) {
          part[4 * j] *= f.x;
          part[4 * j + 1] *= f.y;
          part[4 * j + 2] *= f.x;
          part[4 * j + 3] *= f.y;
        }
      }
    }
  }

  __device__ __forceinline__ void sum_block(bool first) {
    ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
#ifdef WHOLE
    load(0, v);
    load(1, v2);
    warp_arrives(at.barrier(C::kBlockFree, ring.stage));
    ring.advance();
    ptx::mbarrier_wait(at.barrier(C::kWeightsFull, slot.stage), slot.parity);
    if (!first) rescale();
    multiply(0, v, !first);
    multiply(1, v2, true);
    wait();
#else
    load(0, v);
    ptx::mbarrier_wait(at.barrier(C::kWeightsFull, slot.stage), slot.parity);
    if (!first) rescale();
    multiply(0, v, !first);
    wait();
    load(1, v);
    warp_arrives(at.barrier(C::kBlockFree, ring.stage));
    ring.advance();
    multiply(1, v, true);
    wait();
#endif
  }

  __device__ __forceinline__ void free_weights() {
    warp_arrives(at.barrier(C::kWeightsFree, slot.stage));
    slot.advance();
  }

  /// Frees the last block's weights as soon as their header has been read.
  __device__ __forceinline__ void write(std::uint32_t item) {
    const Heads w = heads_of<C>(k, item);
    float2 f[kHeads / 8];
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) f[j] = factors(offsetof(WeightsHeader, end), j);
    free_weights();
    std::uint16_t* out =
        k.splits > 1 ? k.partial_out + std::size_t{item} * kHeads * kDV
                     : k.p.out + (w.token * static_cast<std::size_t>(k.p.h_q) + w.head) * kDV;
    const auto heads = static_cast<std::uint32_t>(min(std::int64_t{kHeads}, k.p.h_q - w.head));
    const std::uint32_t head = lane % 4 * 2;
    out += head * kDV + tile * 64 + lane / 4 * 2;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e + head >= heads) continue;
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
    for (std::uint32_t item = blockIdx.x; item < k.items; item += gridDim.x) {
      const std::uint32_t blocks = range_of<C>(k, item).blocks;
      // The queries are not for this warpgroup.
      ptx::mbarrier_wait(at.barrier(C::kBlockFull, ring.stage), ring.parity);
      warp_arrives(at.barrier(C::kBlockFree, ring.stage));
      ring.advance();
      sum_block(true);
      for (std::uint32_t left = blocks - 1; left > 0; --left) {
        free_weights();
        sum_block(false);
      }
      write(item);
    }
  }
};

}  // namespace serinus::sparse_mla::sm90
