// src/gpu/ptx/shared.cuh, to the emulator: addresses of shared memory have 32 bits, so they count
// from somewhere near.
#pragma once

#include "emulator.h"

namespace serinus::gpu::ptx {

inline const char* shared_base = nullptr;

inline std::uint32_t shared_address(const void* p) {
  const auto* const at = static_cast<const char*>(p);
  if (shared_base == nullptr) shared_base = at - (std::size_t{1} << 30);
  return static_cast<std::uint32_t>(at - shared_base);
}
template <class T>
T load_shared(std::uint32_t a) {
  T v;
  std::memcpy(&v, shared_base + a, sizeof v);
  return v;
}
inline ulonglong2 load_shared_u64x2(std::uint32_t a) {
  return load_shared<ulonglong2>(a);
}
inline uint4 load_shared_u32x4(std::uint32_t a) {
  return load_shared<uint4>(a);
}
template <class T>
void store_shared(std::uint32_t a, const T& v) {
  std::memcpy(const_cast<char*>(shared_base) + a, &v, sizeof v);
}
inline void store_shared_u8(std::uint32_t a, std::uint32_t v) {
  const_cast<char*>(shared_base)[a] = static_cast<char>(v);
}

}  // namespace serinus::gpu::ptx
