// Answers for the CUDA backend of the sglang format in a build without it.
#include "canary/cuda/sglang/moments.h"
#include "canary/cuda/sglang/run.h"
#include "gpu/device.h"

// require_gpu() throws: there is no CUDA here.
namespace serinus::canary::sglang::cuda {

void plan(const PlanParams&, Device device, Stream) {
  gpu::require_gpu("canary plan", device);
}

void translate(const std::int64_t*, std::int64_t, const std::int64_t*, std::int64_t, std::int64_t*,
               Device device, Stream) {
  gpu::require_gpu("canary translate_slots", device);
}

void scatter(const ScatterParams&, Device device, Stream) {
  gpu::require_gpu("canary scatter_req_token_ids", device);
}

void verify(const VerifyParams&, Device device, Stream) {
  gpu::require_gpu("canary verify", device);
}

void write(const WriteParams&, Device device, Stream) {
  gpu::require_gpu("canary write", device);
}

// No backend of a Monitor comes to call these: it has asked for a GPU before.
void prepare(const PrepareParams&, Device, Stream) {}
void compose_tree(const TreeParams&, Device, Stream) {}
void report(const ReportParams&, Device, Stream) {}
void begin_lives(std::uint32_t*, std::int64_t, const std::int64_t*, const std::uint32_t*,
                 std::int64_t, Device, Stream) {}
void carry(const CarryParams&, Device, Stream) {}

}  // namespace serinus::canary::sglang::cuda
