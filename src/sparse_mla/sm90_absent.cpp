// Answers for the Hopper backend in a build without it.
#include <exception>

#include <serinus/error.h>

#include "gpu/device.h"
#include "sparse_mla/backend.h"

namespace serinus::sparse_mla {

void run_sm90(const Params&, Device device, Stream) {
  gpu::require_hopper("sparse_mla_prefill", device);  // throws: there is no CUDA here
}

std::size_t workspace_sm90(const Params&, Device) noexcept {
  return 0;
}

CanRun can_run_sm90(const Params& p, Device device) noexcept {
  try {
    run_sm90(p, device, {});
    return {};
  } catch (const Error& e) {
    return {false, e.id(), e.what()};
  } catch (const std::exception& e) {
    return {false, "", e.what()};
  }
}

}  // namespace serinus::sparse_mla
