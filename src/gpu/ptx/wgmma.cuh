// wgmma for e4m3: a warpgroup's asynchronous 64 x N x 32 product, accumulated in registers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// Operands in shared memory are tiles of rows of 64 bytes with the 64-byte swizzle: 16-byte unit u
// of row r lies at unit u ^ (r / 2 % 4). Row r is a row of A, or a column of B; its bytes run along
// k. Accumulator d[4 j + e], e = 0, 1 of lane l in warp w: row 16 w + l / 4, column 8 j + 2 (l % 4)
// + e; d[4 j + 2 + e]: 8 rows further down. Registers of A: byte b of a[0] is row l / 4, k = 4 (l %
// 4) + b; a[1] 8 rows further down; a[2] and a[3] the same for k + 16.
#pragma once

#include <cstdint>

namespace serinus::gpu::ptx {

/// Descriptor of an operand that starts at a shared address (a multiple of 16, its tile of 512).
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle64 = 2ull << 62;
  constexpr std::uint64_t kEightRows = (512ull >> 4) << 32;  // stride between groups of 8 rows
  constexpr std::uint64_t kUnused = 1ull << 16;  // leading offset, ignored when swizzled
  return kSwizzle64 | kEightRows | kUnused | ((address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` of the committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of accumulators across a wait.
template <int kN>
__device__ __forceinline__ void pin(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; i += 8) {
    asm volatile(""
                 : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),
                   "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])::"memory");
  }
}

// clang-format off
#define SERINUS_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SERINUS_ACC32(d, i) SERINUS_ACC4(d, i), SERINUS_ACC4(d, i + 4), SERINUS_ACC4(d, i + 8), SERINUS_ACC4(d, i + 12), SERINUS_ACC4(d, i + 16), SERINUS_ACC4(d, i + 20), SERINUS_ACC4(d, i + 24), SERINUS_ACC4(d, i + 28)
#define SERINUS_ACC128(d) SERINUS_ACC32(d, 0), SERINUS_ACC32(d, 32), SERINUS_ACC32(d, 64), SERINUS_ACC32(d, 96)
#define SERINUS_REGS32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
#define SERINUS_REGS128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127}"
// clang-format on

/// d = a b, or d += a b where `add`; a [64][32], b [64][32] in shared memory.
__device__ __forceinline__ void wgmma_m64n64k32(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                                bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " SERINUS_REGS32
      ", %32, %33, add, 1, 1;\n}"
      : SERINUS_ACC32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// The same with b [256][32].
__device__ __forceinline__ void wgmma_m64n256k32(float (&d)[128], std::uint64_t a, std::uint64_t b,
                                                 bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " SERINUS_REGS128
      ", %128, %129, add, 1, 1;\n}"
      : SERINUS_ACC128(d)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// The same with a in registers, which must stay as they are until the product is done.
__device__ __forceinline__ void wgmma_m64n256k32(float (&d)[128], const std::uint32_t* a,
                                                 std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " SERINUS_REGS128
      ", {%128, %129, %130, %131}, %132, add, 1, 1;\n}"
      : SERINUS_ACC128(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

#undef SERINUS_ACC4
#undef SERINUS_ACC32
#undef SERINUS_ACC128
#undef SERINUS_REGS32
#undef SERINUS_REGS128

}  // namespace serinus::gpu::ptx
