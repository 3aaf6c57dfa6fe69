// KV in the memory of one GPU a rank, moved by NCCL; where there are fewer GPUs than ranks, they
// share them, and the sockets carry the bytes, as NCCL wants a GPU for each rank.
#include <cstdio>

#include "gpu_memory.h"
#include "nccl_transport.h"
#include "ranks.h"
#include "staged_transport.h"

namespace distributed {

namespace {

struct NcclPlane : DataPlane {
  NcclPlane(SocketTransport& control, std::chrono::milliseconds timeout) : nccl(control, timeout) {}
  Memory& memory() override { return gpu; }
  Transport& transport() override { return nccl; }
  NcclTransport nccl;  // first: it chooses the device
  GpuMemory gpu;
};

struct StagedPlane : DataPlane {
  explicit StagedPlane(SocketTransport& control) : staged(control, gpu) {}
  Memory& memory() override { return gpu; }
  Transport& transport() override { return staged; }
  GpuMemory gpu;
  StagedTransport staged;
};

}  // namespace

std::unique_ptr<DataPlane> open_data_plane(SocketTransport& control,
                                           std::chrono::milliseconds timeout) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
  if (gpus >= control.size()) return std::make_unique<NcclPlane>(control, timeout);
  if (control.rank() == 0) {
    std::printf("%d ranks, GPUs here: %d: %s\n", control.size(), gpus,
                gpus == 0 ? "not run" : "shared, without NCCL; bytes go through host memory");
  }
  if (gpus == 0) return nullptr;
  if (const cudaError_t error = cudaSetDevice(control.rank() % gpus); error != cudaSuccess) {
    std::printf("GPU %d: %s: not run\n", control.rank() % gpus, cudaGetErrorString(error));
    return nullptr;
  }
  return std::make_unique<StagedPlane>(control);
}

}  // namespace distributed
