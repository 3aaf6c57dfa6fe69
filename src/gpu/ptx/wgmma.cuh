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

/// Descriptor of an operand that starts at a shared address (a multiple of 16, its tile of 512):
/// the low word. It counts in 16 bytes, and adding to it moves the operand. The high word is the
/// same for all, which the products below say in PTX, so that it never occupies a register.
struct MatrixDescriptor {
  std::uint32_t low;
  __device__ __forceinline__ explicit MatrixDescriptor(std::uint32_t address)
      : low(((address & 0x3FFFF) >> 4) | 1u << 16) {
  }  // bit 16: leading offset, unused when swizzled
  __device__ __forceinline__ MatrixDescriptor plus(std::uint32_t bytes) const {
    MatrixDescriptor d = *this;
    d.low += bytes / 16;
    return d;
  }
};
// 64-byte swizzle; 512 bytes from 8 rows to the next 8.
#define SERINUS_DESCRIPTOR_HIGH "0x80000020"

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
#define SERINUS_ACC64(d) SERINUS_ACC32(d, 0), SERINUS_ACC32(d, 32)
#define SERINUS_REGS32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define SERINUS_REGS64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63}"
// clang-format on

/// d = a b, or d += a b where `add`; a [64][32], b [64][32] in shared memory.
__device__ __forceinline__ void wgmma_m64n64k32(float (&d)[32], MatrixDescriptor a,
                                                MatrixDescriptor b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %34, 0;\n"
      "mov.b64 a, {%32, " SERINUS_DESCRIPTOR_HIGH
      "};\n"
      "mov.b64 b, {%33, " SERINUS_DESCRIPTOR_HIGH
      "};\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " SERINUS_REGS32 ", a, b, add, 1, 1;\n}"
      : SERINUS_ACC32(d, 0)
      : "r"(a.low), "r"(b.low), "r"(static_cast<int>(add)));
}

/// The same with b [128][32].
__device__ __forceinline__ void wgmma_m64n128k32(float (&d)[64], MatrixDescriptor a,
                                                 MatrixDescriptor b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %66, 0;\n"
      "mov.b64 a, {%64, " SERINUS_DESCRIPTOR_HIGH
      "};\n"
      "mov.b64 b, {%65, " SERINUS_DESCRIPTOR_HIGH
      "};\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " SERINUS_REGS64
      ", a, b, add, 1, 1;\n}"
      : SERINUS_ACC64(d)
      : "r"(a.low), "r"(b.low), "r"(static_cast<int>(add)));
}

/// The same with a in registers, which must stay as they are until the product is done.
__device__ __forceinline__ void wgmma_m64n128k32(float (&d)[64], const std::uint32_t* a,
                                                 MatrixDescriptor b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %69, 0;\n"
      "mov.b64 b, {%68, " SERINUS_DESCRIPTOR_HIGH
      "};\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " SERINUS_REGS64
      ", {%64, %65, %66, %67}, b, add, 1, 1;\n}"
      : SERINUS_ACC64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(static_cast<int>(add)));
}

#undef SERINUS_DESCRIPTOR_HIGH
#undef SERINUS_ACC4
#undef SERINUS_ACC32
#undef SERINUS_ACC64
#undef SERINUS_REGS32
#undef SERINUS_REGS64

}  // namespace serinus::gpu::ptx
