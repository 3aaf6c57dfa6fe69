// Warps and warpgroups: election, named barriers, registers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions
#pragma once

#include <cstdint>

namespace serinus::gpu::ptx {

/// True for one lane of the (converged) warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t one;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(one));
  return one != 0;
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The same, and whether `mine` is true in any of the threads.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool mine) {
  std::uint32_t any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, mine;\nselp.u32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
      : "memory");
  return any != 0;
}

/// named_barrier_sync() by threads that need not come as one warp.
__device__ __forceinline__ void barrier_of_threads(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Gives registers back to the CTA's pool, or takes them; by all four warps of a warpgroup.
template <int kRegisters>
__device__ __forceinline__ void registers_down_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace serinus::gpu::ptx
