// What a launch gives a grid: its place in the stream, its dynamic shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
#pragma once

namespace serinus::gpu::ptx {

/// First thing in a kernel whose launch `overlaps`: lets the next such launch begin, and waits
/// until all that was launched before is done and seen.
__device__ __forceinline__ void follow_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

/// As much as the launch asked for.
__device__ __forceinline__ uint4* dynamic_shared() {
  extern __shared__ uint4 shared_memory[];
  return shared_memory;
}

}  // namespace serinus::gpu::ptx
