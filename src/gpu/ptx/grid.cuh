// Grids that follow each other in a stream.
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

}  // namespace serinus::gpu::ptx
