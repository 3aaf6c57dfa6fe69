// The serinus format's kernels in a build without CUDA: the door of canary_cuda.h refuses before
// any of these is reached.
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"

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
void launch_stamp_sources(const PoolParams&, const SourceParams&, const BatchParams&, Device,
                          Stream) {}
void launch_name_sources(const PoolParams&, const SourceParams&, const RingParams&, Device,
                         Stream) {}
void launch_take_sources(const PoolParams&, const SourceParams&, SlotList, std::uint32_t*, Device,
                         Stream) {}
void launch_move_sources(const PoolParams&, const SourceParams&, SlotList, SlotList,
                         const std::uint32_t*, Device, Stream) {}
void launch_load_sources(const PoolParams&, const SourceParams&, const std::uint32_t*, SlotList,
                         Device, Stream) {}
void launch_clear_ring(const RingParams&, Device, Stream) {}
void launch_next_step(const RingParams&, Device, Stream) {}
void launch_recycle_ring(const RingParams&, std::uint64_t, Device, Stream) {}
void launch_request_digests(const PoolParams&, Format, const BatchParams&, RequestDigest*, Device,
                            Stream) {}
bool fits_step(const BatchParams&, const StepWork&) {
  return false;
}
void launch_step(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                 const StepWork&, Device, Stream) {}
void launch_stamp(const PoolParams&, const RingParams&, const BatchParams&, const Workspace&,
                  Device, Stream) {}

}  // namespace serinus::canary::cuda
