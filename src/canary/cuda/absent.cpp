// Answers for the CUDA backend in a build without it.
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"
#include "canary/cuda/sglang/run.h"
#include "gpu/device.h"

// require_hopper() throws: there is no CUDA here.
namespace serinus::canary::sglang::cuda {

void plan(const PlanParams&, Device device, Stream) {
  gpu::require_hopper("canary plan", device);
}

void translate(const std::int64_t*, std::int64_t, const std::int64_t*, std::int64_t, std::int64_t*,
               Device device, Stream) {
  gpu::require_hopper("canary translate_slots", device);
}

void scatter(const ScatterParams&, Device device, Stream) {
  gpu::require_hopper("canary scatter_req_token_ids", device);
}

void verify(const VerifyParams&, Device device, Stream) {
  gpu::require_hopper("canary verify", device);
}

void write(const WriteParams&, Device device, Stream) {
  gpu::require_hopper("canary write", device);
}

}  // namespace serinus::canary::sglang::cuda

// The door of canary_cuda.h refuses before any of these is reached.
namespace serinus::canary::cuda {

void clear(const TensorView&, Stream) {}
void upload(void*, std::span<const std::byte>, Device, Stream) {}
void launch_alloc(const PoolParams&, const RingParams&, SlotList, Owner, std::uint32_t, Device,
                  Stream) {}
void launch_free(const PoolParams&, const RingParams&, SlotList, Owner, Device, Stream) {}
void launch_transfer(const PoolParams&, const RingParams&, SlotList, Owner, Owner, Device, Stream) {
}
void launch_announce(const PoolParams&, const RingParams&, const Announcement*, std::int64_t,
                     Device, Stream) {}
void launch_move(const PoolParams&, const RingParams&, SlotList, SlotList, MovedSlot*, Device,
                 Stream) {}
void launch_store(const PoolParams&, const RingParams&, SlotList, Record*, Device, Stream) {}
void launch_load(const PoolParams&, const RingParams&, const Record*, SlotList, Owner, Device,
                 Stream) {}
void launch_verify(const PoolParams&, const RingParams&, const BatchParams&, Moment, std::int64_t,
                   std::int64_t, Device, Stream) {}
void launch_verify_slots(const PoolParams&, const RingParams&, SlotList, Moment, Device, Stream) {}
void launch_sweep(const PoolParams&, const RingParams&, std::int64_t, Device, Stream) {}
void launch_null_digest(const PoolParams&, Device, Stream) {}
void launch_clear_ring(const RingParams&, Device, Stream) {}
void launch_next_step(const RingParams&, Device, Stream) {}
void launch_recycle_ring(const RingParams&, std::uint64_t, Device, Stream) {}
void launch_stamp(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                  Device, Stream) {}

}  // namespace serinus::canary::cuda
