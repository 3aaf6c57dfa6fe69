// Shared memory by its 32-bit address: plain loads and stores, and the 8 x 8 matrix moves.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
#pragma once

#include <cstdint>

namespace serinus::gpu::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ float load_shared_f32(std::uint32_t a) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_f32x2(std::uint32_t a) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_u32(std::uint32_t a) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_u32x2(std::uint32_t a) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_u32x4(std::uint32_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(a)
               : "memory");
  return v;
}
__device__ __forceinline__ ulonglong2 load_shared_u64x2(std::uint32_t a) {
  ulonglong2 v;
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "r"(a) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(std::uint32_t a, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t a, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t a, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared_u8(std::uint32_t a, std::uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_u16(std::uint32_t a, std::uint32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"(static_cast<std::uint16_t>(v)) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8;
/// it receives of each matrix, from row l / 4, the 4 bytes at byte 4 (l % 4).
__device__ __forceinline__ uint4 load_matrix_x4(std::uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

/// Four transposed 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of
/// matrix l / 8; it receives of each matrix the elements [2 (l % 4)][l / 4] and [2 (l % 4) + 1][l /
/// 4].
__device__ __forceinline__ uint4 load_matrix_x4_trans(std::uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

/// Four 8 x 8 matrices of 16-bit elements, not transposed: row l / 4 of each gets lane l's 4 bytes
/// at byte 4 (l % 4). Addresses as for the load.
__device__ __forceinline__ void store_matrix_x4(std::uint32_t row, uint4 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/// One, two or four transposed ones: lane l's register holds of each matrix the elements [l / 4][2
/// (l % 4)] and [l / 4][2 (l % 4) + 1], which end up in rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void store_matrices_trans(std::uint32_t row,
                                                     const std::uint32_t (&v)[1]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row), "r"(v[0])
               : "memory");
}
__device__ __forceinline__ void store_matrices_trans(std::uint32_t row,
                                                     const std::uint32_t (&v)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row),
               "r"(v[0]), "r"(v[1])
               : "memory");
}
__device__ __forceinline__ void store_matrices_trans(std::uint32_t row,
                                                     const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// Orders this thread's writes to shared memory before reads by the tensor cores and the copy
/// engine that a barrier puts after them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace serinus::gpu::ptx
