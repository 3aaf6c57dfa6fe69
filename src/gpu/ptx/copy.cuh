// Asynchronous copies: global to shared memory by 16 bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-asynchronous-copy
#pragma once

#include <cstdint>

namespace serinus::gpu::ptx {

/// 16 bytes past L1; with `valid` false, zeros are written and `src` is not read.
__device__ __forceinline__ void cp_async_16(std::uint32_t dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// 4, 8 or 16 bytes, both sides aligned to that. 16 go past L1, and bring 256 bytes into L2:
/// whoever copies rows of memory comes for the rest next, and then finds it there.
template <int kBytes>
__device__ __forceinline__ void cp_async(std::uint32_t dst, const void* src) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(dst), "l"(src)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(kBytes)
                 : "memory");
  }
}

/// The same of the first `n` bytes, and zeros after them.
template <int kBytes>
__device__ __forceinline__ void cp_async_zfill(std::uint32_t dst, const void* src, int n) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(n)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(kBytes),
                 "r"(n)
                 : "memory");
  }
}

/// This thread's copies so far are one more group; cp_async_wait waits until at most `kPending`
/// groups are under way.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace serinus::gpu::ptx
