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
