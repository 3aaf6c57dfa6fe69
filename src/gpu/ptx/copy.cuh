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

/// 4, 8 or 16 bytes, both sides aligned to that.
template <int kBytes>
__device__ __forceinline__ void cp_async(std::uint32_t dst, const void* src) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(kBytes)
                 : "memory");
  }
}

/// 16 bytes of a row of which the rest is copied next: brings the 256 bytes around them into L2.
__device__ __forceinline__ void cp_async_of_row(std::uint32_t dst, const void* src) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(dst), "l"(src)
               : "memory");
}

/// The first n <= kBytes bytes, and zeros after them. Only where there are less: a warp whose
/// copies may be short asks L2 for each two lanes' 32 bytes apart.
template <int kBytes>
__device__ __forceinline__ void cp_async_zfill(std::uint32_t dst, const void* src, int n) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(kBytes),
                 "r"(n)
                 : "memory");
  }
}

/// Whether cp_async_bulk() is there.
__device__ constexpr bool copies_in_bulk() {
#if __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}
/// Begins to copy n bytes, a multiple of 16 and both sides aligned to that, by the copy engine: one
/// thread for all of them. They count in the mbarrier `bar`, which expects them and this arrival.
__device__ __forceinline__ void cp_async_bulk(std::uint32_t dst, const void* src, std::uint32_t n,
                                              std::uint32_t bar) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(n), "r"(bar)
      : "memory");
#endif
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
