#include "gpu/launch.h"

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

}  // namespace serinus::gpu
