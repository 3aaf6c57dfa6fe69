// Threads, lanes and shuffles, as the canary's kernels name them.
#pragma once

#include <cstdint>

namespace serinus::canary::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kWarp = 32;

/// CTAs of a multiprocessor whose registers are to fit side by side: half as many as on Hopper
/// where the same code takes more registers.
constexpr int ctas_each(int on_hopper) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return (on_hopper + 1) / 2;
#else
  return on_hopper;
#endif
}

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ std::int64_t thread_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ __forceinline__ std::uint64_t shuffle(std::uint64_t x, int lane) {
  return __shfl_sync(kAllLanes, static_cast<unsigned long long>(x), lane);
}
__device__ __forceinline__ std::uint64_t shuffle_up(std::uint64_t x) {
  return __shfl_up_sync(kAllLanes, static_cast<unsigned long long>(x), 1);
}

/// The sum of this lane's `x` and of those of the lanes before it.
__device__ __forceinline__ int sum_up_to(int x) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, d);
    if (lane_id() >= d) x += below;
  }
  return x;
}

}  // namespace serinus::canary::cuda
