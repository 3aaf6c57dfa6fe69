// The kernel: barriers, roles, registers.
#pragma once

#include <type_traits>

#include "sparse_mla/sm90/gather.cuh"
#include "sparse_mla/sm90/scores.cuh"
#include "sparse_mla/sm90/scores_few.cuh"
#include "sparse_mla/sm90/values.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
__device__ __forceinline__ void init_barriers(const Places<C>& at) {
  constexpr std::uint32_t kWarps = 4;  // of a warpgroup
  for (int i = 0; i < C::kStages; ++i) {
    ptx::mbarrier_init(at.barrier(C::kBlockFull, i), kWarps);
    ptx::mbarrier_init(at.barrier(C::kBlockFree, i), (1 + C::kValueGroups) * kWarps);
  }
  for (int i = 0; i < C::kWeightSlots; ++i) {
    ptx::mbarrier_init(at.barrier(C::kWeightsFull, i), kWarps);
    ptx::mbarrier_init(at.barrier(C::kWeightsFree, i), C::kValueGroups * kWarps);
  }
  for (int i = 0; i < C::kQuerySlots; ++i) {
    ptx::mbarrier_init(at.barrier(C::kQueryFull, i), kWarps);
    ptx::mbarrier_init(at.barrier(C::kQueryFree, i), kWarps);
  }
  ptx::mbarrier_fence_init();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sparse_mla_kernel(const __grid_constant__ KernelParams k) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const Places<C> at{ptx::shared_address(shared)};
  const std::uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
                      thread = threadIdx.x % 128;
  if (threadIdx.x == 0) init_barriers(at);
  __syncthreads();

  if (warpgroup == 0) {
    ptx::registers_up_to<C::kScoreRegisters>();
    std::conditional_t<C::kFew, ScoresOfFew<C>, Scores<C>>(k, at, thread).run();
  } else if (warpgroup == C::kWarpgroups - 1) {
    ptx::registers_down_to<C::kGatherRegisters>();
    Gather<C>(k, at, thread).run();
  } else {
    ptx::registers_up_to<C::kValueRegisters>();
    Values<C>(k, at, warpgroup - 1, thread).run();
  }
}

}  // namespace serinus::sparse_mla::sm90
