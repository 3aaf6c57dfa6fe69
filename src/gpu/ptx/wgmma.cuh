// wgmma for e4m3: a warpgroup's asynchronous 64 x N x 32 product, the sums in registers, A there or
// in shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// B lies in shared memory, in tiles of rows of 64 bytes with the 64-byte swizzle, where 16-byte
// unit u of row r lies at unit u ^ (r / 2 % 4), or of 128 bytes with the 128-byte swizzle: u ^ (r %
// 8). Row r is column r of B; its bytes run along k. Accumulator d[4 j + e], e = 0, 1 of lane l in
// warp w: row 16 w + l / 4, column 8 j + 2 (l % 4)
// + e; d[4 j + 2 + e]: 8 rows further down. Registers of A: byte b of a[0] is row l / 4, k = 4 (l %
// 4) + b; a[1] 8 rows further down; a[2] and a[3] the same for k + 16.
#pragma once

#include <cstdint>

namespace serinus::gpu::ptx {

/// Descriptor of an operand in rows of 64 or 128 bytes that starts at a shared address (a multiple
/// of 16, its tile of 8 rows): the low word. It counts in 16 bytes, and adding to it moves the
/// operand. The high word is the same for all, which the products below say in PTX, so that it
/// never occupies a register: the swizzle, and the bytes from 8 rows to the next 8.
template <int kRowBytes>
struct MatrixDescriptor {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  static constexpr std::uint32_t kHigh =
      (kRowBytes == 128 ? 1u : 2u) << 30 | static_cast<std::uint32_t>(8 * kRowBytes / 16);
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
  for (int i = 0; i < kN; i += 4)
    asm volatile("" : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])::"memory");
}
/// Likewise what makes the registers of A, across the product's start.
__device__ __forceinline__ void pin(std::uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

/// d = a b, or d += a b where `add`; a [64][32], which must stay as it is until the product is
/// done; b [N][32] in shared memory. d [64][N], N = 8, 16, 32, 64.
template <int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[4], const std::uint32_t (&a)[4],
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %10, 0;\n"
      "mov.b64 b, {%8, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "n"(b.kHigh),
        "r"(static_cast<int>(add)));
}
template <int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[8], const std::uint32_t (&a)[4],
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %14, 0;\n"
      "mov.b64 b, {%12, %13};\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "n"(b.kHigh),
        "r"(static_cast<int>(add)));
}
template <int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[16], const std::uint32_t (&a)[4],
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %22, 0;\n"
      "mov.b64 b, {%20, %21};\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "n"(b.kHigh),
        "r"(static_cast<int>(add)));
}
template <int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[32], const std::uint32_t (&a)[4],
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %38, 0;\n"
      "mov.b64 b, {%36, %37};\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "n"(b.kHigh),
        "r"(static_cast<int>(add)));
}

/// The same, a in shared memory too, laid out like b.
template <int kA, int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[4], MatrixDescriptor<kA> a,
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %8, 0;\n"
      "mov.b64 a, {%4, %5};\nmov.b64 b, {%6, %7};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3}, "
      "a, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.low), "n"(a.kHigh), "r"(b.low), "n"(b.kHigh), "r"(static_cast<int>(add)));
}
template <int kA, int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[8], MatrixDescriptor<kA> a,
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %12, 0;\n"
      "mov.b64 a, {%8, %9};\nmov.b64 b, {%10, %11};\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "a, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a.low), "n"(a.kHigh), "r"(b.low), "n"(b.kHigh), "r"(static_cast<int>(add)));
}
template <int kA, int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[16], MatrixDescriptor<kA> a,
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %20, 0;\n"
      "mov.b64 a, {%16, %17};\nmov.b64 b, {%18, %19};\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "a, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a.low), "n"(a.kHigh), "r"(b.low), "n"(b.kHigh), "r"(static_cast<int>(add)));
}
template <int kA, int kB>
__device__ __forceinline__ void wgmma_k32(float (&d)[32], MatrixDescriptor<kA> a,
                                          MatrixDescriptor<kB> b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %36, 0;\n"
      "mov.b64 a, {%32, %33};\nmov.b64 b, {%34, %35};\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "a, b, add, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a.low), "n"(a.kHigh), "r"(b.low), "n"(b.kHigh), "r"(static_cast<int>(add)));
}

}  // namespace serinus::gpu::ptx
