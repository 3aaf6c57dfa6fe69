// src/gpu/ptx/copy.cuh, to the emulator.
#pragma once

#include <cstdlib>

#include "gpu/ptx/shared.cuh"

namespace serinus::gpu::ptx {

template <int kBytes>
void cp_async_zfill(std::uint32_t dst, const void* src, int n) {
  char* const to = const_cast<char*>(shared_base) + dst;
  // As on the GPU, a copy that is not aligned is a fault.
  const auto bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(src);
  if (bits % kBytes != 0 || n < 0 || n > kBytes) std::abort();
  std::memset(to, 0, kBytes);
  std::memcpy(to, src, static_cast<std::size_t>(n));
}
template <int kBytes>
void cp_async(std::uint32_t dst, const void* src) {
  cp_async_zfill<kBytes>(dst, src, kBytes);
}
inline void cp_async_of_row(std::uint32_t dst, const void* src) {
  cp_async<16>(dst, src);
}
constexpr bool copies_in_bulk() {
  return true;
}
inline void cp_async_bulk(std::uint32_t dst, const void* src, std::uint32_t n, std::uint32_t) {
  if (n % 16 != 0) std::abort();
  for (std::uint32_t i = 0; i < n; i += 16) {
    cp_async<16>(dst + i, static_cast<const char*>(src) + i);
  }
}
inline void cp_async_commit() {}
template <int kPending>
void cp_async_wait() {}

inline void cp_async_wait_all() {}

}  // namespace serinus::gpu::ptx
