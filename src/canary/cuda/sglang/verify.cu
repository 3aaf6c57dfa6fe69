// Verify on the GPU: an entry a lane. In a chain an entry's predecessor is the entry of the lane
// before, whose record and hash are there already.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/fold.cuh"
#include "canary/cuda/sglang/run.h"
#include "gpu/launch.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 128;

/// How the bytes of a slot are folded.
enum class Bytes { none, by_lane, by_warp };

template <Bytes kBytes>
struct Tuning {
  static constexpr int kEach = kBytes == Bytes::by_warp ? 1 : 2;  ///< entries a lane has under way
  static constexpr int kCtas = kBytes == Bytes::by_warp ? 4 : 8;  ///< on every multiprocessor
};

/// An entry and what was loaded for it.
struct Entry {
  std::int64_t i = 0, prev = kPaddingSlot, slot = kPaddingSlot;
  bool sound = false;
  Record stored;
};

template <Bytes kBytes>
__global__ void __launch_bounds__(kThreads, Tuning<kBytes>::kCtas)
    verify_kernel(const __grid_constant__ VerifyParams p) {
  constexpr int kEach = Tuning<kBytes>::kEach;
  const ContextParams& c = p.context;
  if (thread_index() == 0) add(c.kernel_run_counter, 1);
  if (*p.enable == 0) return;
  const std::int64_t n = count_of(*p.num_valid, p.capacity);
  if (thread_index() == 0) add(c.slot_run_counter, n);
  const int lane = lane_id();
  const int alignment = record_alignment(c);
  const std::uint32_t stage = gpu::ptx::shared_address(gpu::ptx::dynamic_shared()) +
                              threadIdx.x / kWarp * static_cast<unsigned>(kFoldBytes);
  std::int64_t out_of_range = 0;
  const std::int64_t first = (thread_index() - lane) * kEach + lane;
  for (std::int64_t at = first; at - lane < n; at += thread_count() * kEach) {
    Entry entries[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      Entry& e = entries[k];
      e.i = at + k * kWarp;
      if (e.i < n) {
        e.slot = p.slots[e.i];
        e.prev = p.prev_slots[e.i];
      }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      Entry& e = entries[k];
      e.sound = e.slot != kPaddingSlot && e.prev < c.num_slots && exists(c, e.slot);
      if (e.slot != kPaddingSlot && !e.sound) ++out_of_range;
      if (e.sound) e.stored = load(c, e.slot, alignment);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const Entry& e = entries[k];
      std::uint64_t real_kv_hash = 0;
      if constexpr (kBytes == Bytes::by_lane) {
        if (e.sound) real_kv_hash = fold_lane(c, e.slot);
      }
      std::uint64_t predecessor = shuffle_up(hash_of(e.stored));
      const std::int64_t slot_before = i64(shuffle_up(u64(e.sound ? e.slot : kChainHead)));
      if (e.sound && e.prev > 0 && (lane == 0 || e.prev != slot_before)) {
        predecessor = hash_of(load(c, e.prev, alignment));
      }
      if constexpr (kBytes == Bytes::by_warp) real_kv_hash = fold_warp(c, e.slot, e.sound, stage);
      if (!e.sound) continue;
      const ViolationRow row = judge(p, e.i, e.stored, predecessor, real_kv_hash);
      if (row.fail_reason_bits != 0) append(c, row, e.i);
    }
  }
  add(c.out_of_range_counter, out_of_range);
}

template <Bytes kBytes>
void launch(const VerifyParams& p, Device device, Stream stream) {
  using T = Tuning<kBytes>;
  gpu::launch("canary verify", verify_kernel<kBytes>,
              {.grid = grid_for(device, p.capacity, kThreads * T::kEach, T::kCtas),
               .block = kThreads,
               .shared_bytes = kBytes == Bytes::by_warp ? kThreads / kWarp * kFoldBytes : 0},
              stream, p);
}

}  // namespace

void verify(const VerifyParams& p, Device device, Stream stream) {
  gpu::require_gpu("canary verify", device);
  const gpu::OnDevice current(device);
  bool short_sources = true;
  for (int k = 0; k < p.context.num_sources; ++k) {
    short_sources &= p.context.sources[static_cast<std::size_t>(k)].words == 2;
  }
  if (p.context.num_sources == 0) {
    launch<Bytes::none>(p, device, stream);
  } else if (short_sources) {
    launch<Bytes::by_lane>(p, device, stream);
  } else {
    launch<Bytes::by_warp>(p, device, stream);
  }
}

}  // namespace serinus::canary::sglang::cuda
