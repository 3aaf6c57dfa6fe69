#include "gpu/launch.h"

#include <array>
#include <atomic>
#include <cstdint>

#include "base/checks.h"
#include "base/raise.h"

namespace serinus::gpu {

void check_launch(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  raise(errors::Page::cuda_launch_failed, {{"name", what}, {"got", cudaGetErrorString(error)}});
}

OnDevice::OnDevice(Device device) {
  check_launch("cudaGetDevice", cudaGetDevice(&before_));
  if (before_ != device.index) check_launch("cudaSetDevice", cudaSetDevice(device.index));
}

OnDevice::~OnDevice() {
  cudaSetDevice(before_);
}

bool runs_as_hopper(const void* kernel) {
  enum class Known : std::uint8_t { nothing, no, yes };
  static std::array<std::atomic<Known>, 64> known{};
  int device = 0;
  check_launch("cudaGetDevice", cudaGetDevice(&device));
  const auto i = static_cast<std::size_t>(device);
  if (i < known.size()) {
    const Known k = known[i].load(std::memory_order_relaxed);
    if (k != Known::nothing) return k == Known::yes;
  }
  cudaFuncAttributes code{};
  check_launch("cudaFuncGetAttributes", cudaFuncGetAttributes(&code, kernel));
  const bool as_hopper = code.ptxVersion >= 90;
  if (i < known.size()) {
    known[i].store(as_hopper ? Known::yes : Known::no, std::memory_order_relaxed);
  }
  return as_hopper;
}

}  // namespace serinus::gpu
