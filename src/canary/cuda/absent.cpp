// Answers for the CUDA backend in a build without it.
#include "base/checks.h"
#include "base/raise.h"
#include "canary/cuda/sglang/run.h"

namespace serinus::canary::sglang::cuda {

namespace {

[[noreturn]] void refuse(const char* name, Device device) {
  raise(errors::Page::no_cuda_in_this_build, {{"name", name}, {"got", device_string(device)}});
}

}  // namespace

void plan(const PlanParams&, Device device, Stream) {
  refuse("canary plan", device);
}

void translate(const std::int64_t*, std::int64_t, const std::int64_t*, std::int64_t, std::int64_t*,
               Device device, Stream) {
  refuse("canary translate_slots", device);
}

void scatter(const ScatterParams&, Device device, Stream) {
  refuse("canary scatter_req_token_ids", device);
}

void verify(const VerifyParams&, Device device, Stream) {
  refuse("canary verify", device);
}

void write(const WriteParams&, Device device, Stream) {
  refuse("canary write", device);
}

}  // namespace serinus::canary::sglang::cuda
