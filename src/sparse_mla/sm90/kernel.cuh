// The kernel: barriers, roles, registers.
#pragma once

#include "sparse_mla/sm90/attend.cuh"
#include "sparse_mla/sm90/gather.cuh"
#include "sparse_mla/sm90/transpose.cuh"

namespace serinus::sparse_mla::sm90 {

template <class C>
__device__ __forceinline__ void init_barriers(const Places<C>& at) {
  const auto init = [&](int number, int slots, std::uint32_t arrivals) {
    for (int i = 0; i < slots; ++i) ptx::mbarrier_init(at.barrier(number, i), arrivals);
  };
  constexpr std::uint32_t kGatherThreads = 128, kWarps = 4,
                          kBoth = 8;  // warps of 1 and 2 warpgroups
  init(kQFull, C::kGroups, kGatherThreads);
  init(kQFree, C::kGroups, C::kDuo ? kWarps : kBoth);
  init(kKFull, C::kDuo ? 2 : 4, kGatherThreads + kWarps);
  init(kKDone, C::kDuo ? 2 : 4, C::kDuo ? kBoth : kWarps);
  init(kMaxFull, 4, C::kDuo ? 1 : kWarps);
  init(kPFull, 4, C::kDuo ? 1 : kWarps);
  if constexpr (C::kDuo) {
    init(kOwnFull, 3, kWarps);
    init(kOwnFree, 3, kBoth);
    init(kOtherRaw, 2, kGatherThreads);
    init(kOtherFull, 2, kWarps);
    init(kOtherFree, 2, kBoth);
  } else {
    init(kVFull, 4, kWarps);
    init(kVFree, 2, kBoth);
  }
  ptx::mbarrier_fence_init();
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_kernel(const __grid_constant__ KernelParams k) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const Places<C> at{ptx::shared_address(shared)};
  const std::uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
                      thread = threadIdx.x % 128;
  const std::uint32_t rank = C::kDuo ? ptx::cluster_rank() : 0;
  if (threadIdx.x == 0) init_barriers(at);
  __syncthreads();
  // No CTA sends before the other is there to receive.
  if constexpr (C::kDuo) ptx::cluster_sync();

  if (warpgroup == 2) {
    ptx::registers_down_to<kGatherRegisters>();
    Gather<C>(k, at, rank, thread).run();
  } else if (warpgroup == 3) {
    ptx::registers_down_to<kTransposeRegisters>();
    Transpose<C>(at, thread).run(k);
  } else {
    ptx::registers_up_to<kAttendRegisters>();
    Attend<C>(k, at, rank, warpgroup, thread).run();
  }
  // Nor does one leave while the other still sends to it.
  __syncthreads();
  if constexpr (C::kDuo) ptx::cluster_sync();
}

}  // namespace serinus::sparse_mla::sm90
