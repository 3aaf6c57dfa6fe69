// CUDA on the CPU, as far as the canary's kernels use it: every thread of a CTA is a fiber, CTAs
// run one after another, and whoever waits at a barrier or a shuffle lets the others go on. So a
// machine without a GPU runs the kernels' own sources through the tests; it finds no races, and
// says nothing about speed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

// CUDA's names. NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // one CTA at a time, on one thread

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
// Aligned as its words: gcc merges loads of it with narrower ones, and keeps the wider alignment.
struct alignas(8) ulonglong2 {
  unsigned long long x, y;
};
struct alignas(8) longlong2 {
  long long x, y;
};
constexpr longlong2 make_longlong2(long long x, long long y) {
  return {x, y};
}
constexpr uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
constexpr ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) {
  return {x, y};
}

extern dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace emulator {

/// Runs `kernel` once for every thread of every CTA.
void run(dim3 grid, dim3 block, const std::function<void()>& kernel);

/// What the threads of a group brought to the place where they met.
struct Meeting {
  static constexpr unsigned kMost = 1024;
  std::uint64_t brought[kMost], taken[kMost];
  unsigned count = 0, generation = 0;
};
const std::uint64_t* meet_cta(std::uint64_t value);
/// Of the `threads` threads that come to the named barrier.
void meet_named(int barrier, unsigned threads);
/// Whoever waits for another thread's store.
void let_others_go_on();
/// By lane; those that are not in the mask have brought nothing.
const std::uint64_t* meet_lanes(unsigned mask, std::uint64_t value);

template <class T>
T exchange(unsigned mask, T value, int from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet_lanes(mask, bits)[from & 31];
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}

}  // namespace emulator

inline void __syncthreads() {
  emulator::meet_cta(0);
}
inline int __syncthreads_or(int any) {
  const std::uint64_t* const all = emulator::meet_cta(any != 0 ? 1 : 0);
  int found = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) found |= static_cast<int>(all[i]);
  return found;
}
inline int __syncthreads_and(int all) {
  return __syncthreads_or(all == 0 ? 1 : 0) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulator::meet_lanes(mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, bool yes) {
  const std::uint64_t* const all = emulator::meet_lanes(mask, yes ? 1 : 0);
  unsigned bits = 0;
  for (int l = 0; l < 32; ++l) bits |= static_cast<unsigned>(all[l] & 1) << l;
  return bits & mask;
}
inline bool __all_sync(unsigned mask, bool yes) {
  return __ballot_sync(mask, yes) == mask;
}
inline int __reduce_add_sync(unsigned mask, int value) {
  const std::uint64_t* const all = emulator::meet_lanes(mask, static_cast<std::uint32_t>(value));
  std::uint32_t sum = 0;
  for (int l = 0; l < 32; ++l) {
    if ((mask >> l & 1) != 0) sum += static_cast<std::uint32_t>(all[l]);
  }
  return static_cast<int>(sum);
}
inline int __reduce_max_sync(unsigned mask, int value) {
  const std::uint64_t* const all = emulator::meet_lanes(mask, static_cast<std::uint32_t>(value));
  int most = value;
  for (int l = 0; l < 32; ++l) {
    if ((mask >> l & 1) != 0) most = std::max(most, static_cast<int>(all[l]));
  }
  return most;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulator::exchange(mask, value, from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int d) {
  return emulator::exchange(mask, value,
                            emulator::lane() >= d ? emulator::lane() - d : emulator::lane());
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int d) {
  return emulator::exchange(mask, value, emulator::lane() ^ d);
}

template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline void __threadfence() {}
inline void __nanosleep(unsigned) {
  emulator::let_others_go_on();
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}

// Fibers change places at barriers only, so these are atomic.
template <class T, class U>
T atomicAdd(T* p, U v) {
  const T before = *p;
  *p = static_cast<T>(before + static_cast<T>(v));
  return before;
}
template <class T>
T atomicOr(T* p, T v) {
  const T before = *p;
  *p |= v;
  return before;
}
template <class T>
T atomicAnd(T* p, T v) {
  const T before = *p;
  *p &= v;
  return before;
}
template <class T>
T atomicMax(T* p, T v) {
  const T before = *p;
  if (before < v) *p = v;
  return before;
}
template <class T>
T atomicExch(T* p, T v) {
  const T before = *p;
  *p = v;
  return before;
}
template <class T>
T atomicCAS(T* p, T expected, T v) {
  const T before = *p;
  if (before == expected) *p = v;
  return before;
}
// NOLINTEND(bugprone-reserved-identifier)
