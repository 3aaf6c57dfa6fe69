// What GPUs this machine offers, and whether one can run a backend. No CUDA header here: without
// CUDA in the build the same functions answer from absent.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/tensor.h>

namespace serinus::gpu {

struct DeviceInfo {
  int index = 0;
  std::string name;  ///< "NVIDIA H200"
  int major = 0;     ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int clock_khz = 0;        ///< highest clock of the multiprocessors
  bool usable = false;      ///< runs the canary's kernels that this build holds
  bool sparse_mla = false;  ///< and the sparse MLA prefill's: Hopper
};

struct Survey {
  bool compiled = false;    ///< this build holds CUDA backends
  int toolkit_version = 0;  ///< what it was built with: 13000 is 13.0
  int driver_version = 0;   ///< the newest CUDA that the driver serves; 0 without a driver
  std::string problem;      ///< why `devices` is empty; empty if it is not
  std::vector<DeviceInfo> devices;
};

/// Asks the driver. A missing driver or device is an answer, not an error.
Survey survey();

/// Throws unless `device` is a GPU that this build has the canary's kernels for. `name` is what
/// wants to run there, as the message shall call it.
void require_gpu(std::string_view name, Device device);
/// The same for what Hopper alone can run.
void require_hopper(std::string_view name, Device device);

/// Multiprocessors of `device`; 0 if it cannot be asked.
int multiprocessors(Device device) noexcept;

}  // namespace serinus::gpu
