// What a launch gives a grid: its place in the stream, its dynamic shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
#pragma once

namespace serinus::gpu::ptx {

// Before Hopper launches do not overlap, and these do nothing.
/// In a kernel whose launch overlaps: waits until all that was launched before is done and seen.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next such launch begin, once every CTA says so or is done.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// First thing in most such kernels.
__device__ __forceinline__ void follow_previous_grid() {
  let_next_grid_begin();
  wait_for_previous_grid();
}

/// What another CTA made known, and all that it stored before.
__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

/// Counts, when all is seen that this thread stored, or saw stored.
__device__ __forceinline__ void add_release(unsigned* p, unsigned n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
}

/// Brings a line of memory into L2, and the address of its page near; nothing of it is read.
__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/// Asks for a line of memory that is only read, into L1; waits for nothing.
__device__ __forceinline__ void touch(const void* p) {
  asm volatile("{\n.reg .u32 unused;\nld.global.nc.u32 unused, [%0];\n}" ::"l"(p));
}

/// As much as the launch asked for.
__device__ __forceinline__ uint4* dynamic_shared() {
  extern __shared__ uint4 shared_memory[];
  return shared_memory;
}

}  // namespace serinus::gpu::ptx
