// What the kernels of the format share: records by slot, counters, the ring.
#pragma once

#include <cstdint>

#include "canary/cuda/lanes.cuh"
#include "canary/sglang/entry.h"

namespace serinus::canary::sglang::cuda {

using canary::cuda::kAllLanes;
using canary::cuda::kWarp;
using canary::cuda::lane_id;
using canary::cuda::shuffle;
using canary::cuda::shuffle_up;
using canary::cuda::thread_count;
using canary::cuda::thread_index;

/// Wraps, as the format's counters do.
__device__ __forceinline__ void add(std::int64_t* counter, std::int64_t n) {
  if (counter != nullptr && n != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(n));
  }
}

/// The widest access that all records allow: 16, 8 or 1 bytes.
__device__ __forceinline__ int record_alignment(const ContextParams& c) {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(c.records) | u64(c.stride);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 1;
}

/// 16 bytes, past L1: others may be writing them meanwhile.
__device__ __forceinline__ ulonglong2 load_words(const std::uint8_t* at, int alignment) {
  if (alignment == 16) return __ldcg(reinterpret_cast<const ulonglong2*>(at));
  if (alignment == 8) {
    const auto* const words = reinterpret_cast<const unsigned long long*>(at);
    return make_ulonglong2(__ldcg(words), __ldcg(words + 1));
  }
  ulonglong2 v = make_ulonglong2(0, 0);
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    v.x |= static_cast<unsigned long long>(__ldcg(at + b)) << (8 * b);
    v.y |= static_cast<unsigned long long>(__ldcg(at + 8 + b)) << (8 * b);
  }
  return v;
}

__device__ __forceinline__ Record load(const ContextParams& c, std::int64_t slot, int alignment) {
  const std::uint8_t* const at = c.records + slot * c.stride;
  const ulonglong2 what = load_words(at, alignment);
  const ulonglong2 chain = load_words(at + 16, alignment);
  return {i64(what.x), i64(what.y), i64(chain.x), i64(chain.y)};
}

__device__ __forceinline__ void store_words(std::uint8_t* at, std::uint64_t a, std::uint64_t b,
                                            int alignment) {
  if (alignment == 16) {
    *reinterpret_cast<ulonglong2*>(at) = make_ulonglong2(a, b);
  } else if (alignment == 8) {
    reinterpret_cast<unsigned long long*>(at)[0] = a;
    reinterpret_cast<unsigned long long*>(at)[1] = b;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      at[i] = static_cast<std::uint8_t>(a >> (8 * i));
      at[8 + i] = static_cast<std::uint8_t>(b >> (8 * i));
    }
  }
}
__device__ __forceinline__ void store_word(std::uint8_t* at, std::uint64_t a, int alignment) {
  if (alignment >= 8) {
    *reinterpret_cast<unsigned long long*>(at) = a;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = static_cast<std::uint8_t>(a >> (8 * i));
  }
}

/// Room for n rows in the ring: it is filled once; the counter goes on, and wraps.
__device__ __forceinline__ int reserve(const ContextParams& c, int n) {
  return atomicAdd(c.violation_write_index, n);
}
/// Stores a row, about an entry of the plan or a token of the input, where there is room. A
/// negative index stores nothing.
__device__ inline void put_row(const ContextParams& c, int at, const ViolationRow& row,
                               std::int64_t entry) {
  if (!within(at, c.ring_capacity)) return;
  if (c.violation_entries != nullptr) c.violation_entries[at] = entry;
  auto* const to = reinterpret_cast<longlong2*>(c.ring + at);
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  const long long fields[kViolationFields] = {row.kernel_kind,    row.slot,
                                              row.position,       row.stored_token,
                                              row.expected_token, row.stored_chain_hash,
                                              row.expected_aux,   row.fail_reason_bits};
#pragma unroll
  for (int i = 0; i < kViolationFields; i += 2) {
    if (aligned) {
      to[i / 2] = make_longlong2(fields[i], fields[i + 1]);
    } else {
      reinterpret_cast<long long*>(to)[i] = fields[i];
      reinterpret_cast<long long*>(to)[i + 1] = fields[i + 1];
    }
  }
}
__device__ inline void append(const ContextParams& c, const ViolationRow& row, std::int64_t entry) {
  put_row(c, reserve(c, 1), row, entry);
}

}  // namespace serinus::canary::sglang::cuda
