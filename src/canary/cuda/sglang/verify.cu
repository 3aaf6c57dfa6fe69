// Verify on the GPU: an entry a lane. In a chain an entry's predecessor is the entry of the lane
// before, whose record and hash are there already.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/fold.cuh"
#include "canary/cuda/sglang/run.h"
#include "gpu/launch.h"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 128;

template <bool kBytes>
__global__ void __launch_bounds__(kThreads, kBytes ? 4 : 12)
    verify_kernel(const __grid_constant__ VerifyParams p) {
  extern __shared__ uint4 shared[];
  const ContextParams& c = p.context;
  if (thread_index() == 0) add(c.kernel_run_counter, 1);
  if (*p.enable == 0) return;
  const std::int64_t n = count_of(*p.num_valid, p.capacity);
  if (thread_index() == 0) add(c.slot_run_counter, n);
  const int lane = lane_id();
  const int alignment = record_alignment(c);
  const std::uint32_t stage =
      gpu::ptx::shared_address(shared) + threadIdx.x / kWarp * static_cast<unsigned>(kFoldBytes);
  std::int64_t out_of_range = 0;
  for (std::int64_t i = thread_index(); i - lane < n; i += thread_count()) {
    const std::int64_t slot = i < n ? p.slots[i] : kPaddingSlot;
    const std::int64_t prev = i < n ? p.prev_slots[i] : kPaddingSlot;
    const bool sound = slot != kPaddingSlot && prev < c.num_slots && exists(c, slot);
    if (slot != kPaddingSlot && !sound) ++out_of_range;
    Record stored;
    if (sound) stored = load(c, slot, alignment);
    const std::uint64_t own_hash = hash_of(stored);
    std::uint64_t predecessor = shuffle_up(own_hash);
    const std::int64_t slot_before = i64(shuffle_up(u64(sound ? slot : kChainHead)));
    if (sound && prev > 0 && (lane == 0 || prev != slot_before)) {
      predecessor = hash_of(load(c, prev, alignment));
    }
    std::uint64_t real_kv_hash = 0;
    if constexpr (kBytes) real_kv_hash = fold_warp(c, slot, sound, stage);
    if (!sound) continue;
    const ViolationRow row = judge(p, i, stored, predecessor, real_kv_hash);
    if (row.fail_reason_bits != 0) append(c, row);
  }
  add(c.out_of_range_counter, out_of_range);
}

}  // namespace

void verify(const VerifyParams& p, Device device, Stream stream) {
  gpu::require_hopper("canary verify", device);
  const gpu::OnDevice current(device);
  if (p.context.num_sources > 0) {
    gpu::launch("canary verify", verify_kernel<true>,
                {.grid = grid_for(device, p.capacity, kThreads, 4),
                 .block = kThreads,
                 .shared_bytes = kThreads / kWarp * kFoldBytes},
                stream, p);
  } else {
    gpu::launch("canary verify", verify_kernel<false>,
                {grid_for(device, p.capacity, kThreads, 12), kThreads}, stream, p);
  }
}

}  // namespace serinus::canary::sglang::cuda
