#include "gpu/device.h"

#include <cuda_runtime.h>

#include "base/checks.h"
#include "base/raise.h"

namespace serinus::gpu {

namespace {

int attribute(cudaDeviceAttr what, int device) noexcept {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, what, device) != cudaSuccess) {
    cudaGetLastError();  // not sticky: clear it, so that the caller's next call does not see it
    return 0;
  }
  return value;
}

// CUDA calls a machine without a driver one whose driver is too old.
std::string words_of(cudaError_t e) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver";
  return cudaGetErrorString(e);
}

bool is_hopper(int major, int minor) noexcept {
  return major == 9 && minor == 0;
}

}  // namespace

Survey survey() {
  Survey s;
  s.compiled = true;
  s.toolkit_version = CUDART_VERSION;
  if (cudaDriverGetVersion(&s.driver_version) != cudaSuccess) s.driver_version = 0;
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    cudaGetLastError();
    s.problem = words_of(e);
    return s;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    DeviceInfo d;
    d.index = i;
    d.name = p.name;
    d.major = p.major;
    d.minor = p.minor;
    d.multiprocessors = p.multiProcessorCount;
    d.memory_bytes = static_cast<std::int64_t>(p.totalGlobalMem);
    d.l2_bytes = p.l2CacheSize;
    d.clock_khz = attribute(cudaDevAttrClockRate, i);
    d.usable = is_hopper(d.major, d.minor);
    s.devices.push_back(std::move(d));
  }
  if (s.devices.empty()) s.problem = "no CUDA device";
  return s;
}

void require_hopper(std::string_view name, Device device) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    cudaGetLastError();
    raise(errors::Page::no_cuda_device, {{"device", device_string(device)}, {"got", words_of(e)}});
  }
  if (device.index < 0 || device.index >= count) {
    raise(errors::Page::no_cuda_device,
          {{"device", device_string(device)},
           {"got", std::to_string(count) + (count == 1 ? " device" : " devices")}});
  }
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device.index);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device.index);
  if (!is_hopper(major, minor)) {
    raise(errors::Page::wrong_gpu, {{"name", std::string(name)},
                                    {"device", device_string(device)},
                                    {"got", std::to_string(major) + "." + std::to_string(minor)}});
  }
}

int multiprocessors(Device device) noexcept {
  return attribute(cudaDevAttrMultiProcessorCount, device.index);
}

}  // namespace serinus::gpu
