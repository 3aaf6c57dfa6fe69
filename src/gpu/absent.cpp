// What a build without CUDA answers in place of everything that CUDA would do.
#include "base/checks.h"
#include "base/raise.h"
#include "gpu/device.h"

namespace serinus::gpu {

Survey survey() {
  Survey s;
  s.problem = "this build holds no CUDA backend";
  return s;
}

void require_hopper(std::string_view name, Device device) {
  raise(errors::Page::no_cuda_in_this_build,
        {{"name", std::string(name)}, {"got", device_string(device)}});
}

int multiprocessors(Device) noexcept {
  return 0;
}

}  // namespace serinus::gpu
