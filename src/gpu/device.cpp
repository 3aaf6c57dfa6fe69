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

struct Capability {
  int major = 0, minor = 0;
};

bool is_hopper(Capability c) noexcept {
  return c.major == 9 && c.minor == 0;
}
bool runs_canary(Capability c) noexcept {
  return SERINUS_CANARY_SM80 != 0 ? c.major >= 8 : is_hopper(c);
}

/// Of a device that exists; throws where there is none.
Capability capability_of(Device device) {
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
  return {attribute(cudaDevAttrComputeCapabilityMajor, device.index),
          attribute(cudaDevAttrComputeCapabilityMinor, device.index)};
}

void refuse(std::string_view name, const char* want, Device device, Capability got) {
  raise(errors::Page::wrong_gpu,
        {{"name", std::string(name)},
         {"want", want},
         {"device", device_string(device)},
         {"got", std::to_string(got.major) + "." + std::to_string(got.minor)}});
}

constexpr char kHopper[] = "9.0 (Hopper: H100, H200)";

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
    d.usable = runs_canary({d.major, d.minor});
    d.sparse_mla = is_hopper({d.major, d.minor});
    s.devices.push_back(std::move(d));
  }
  if (s.devices.empty()) s.problem = "no CUDA device";
  return s;
}

void require_gpu(std::string_view name, Device device) {
  const Capability got = capability_of(device);
  const char* const want =
      SERINUS_CANARY_SM80 != 0 ? "8.0 or later (A100, L40, H100, ...)" : kHopper;
  if (!runs_canary(got)) refuse(name, want, device, got);
}

void require_hopper(std::string_view name, Device device) {
  const Capability got = capability_of(device);
  if (!is_hopper(got)) refuse(name, kHopper, device, got);
}

int multiprocessors(Device device) noexcept {
  return attribute(cudaDevAttrMultiProcessorCount, device.index);
}

}  // namespace serinus::gpu
