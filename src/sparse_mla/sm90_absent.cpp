// Answers for the Hopper backend in a build without it.
#include "base/checks.h"
#include "base/raise.h"
#include "sparse_mla/backend.h"

namespace serinus::sparse_mla {

void run_sm90(const Params&, Device device, Stream) {
  raise(errors::Page::no_cuda_in_this_build,
        {{"name", "sparse_mla_prefill"}, {"got", device_string(device)}});
}

std::size_t workspace_sm90(const Params&, Device) noexcept {
  return 0;
}

CanRun can_run_sm90(const Params&, Device device) noexcept {
  const errors::Page page = errors::Page::no_cuda_in_this_build;
  return {false, std::string(entry_of(page).id),
          error_message(page, {{"name", "sparse_mla_prefill"}, {"got", device_string(device)}})};
}

}  // namespace serinus::sparse_mla
