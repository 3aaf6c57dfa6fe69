// KV in the memory of one GPU a rank, moved by NCCL.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>
#include <vector>

#include "memory.h"
#include "nccl_transport.h"
#include "ranks.h"

namespace distributed {

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct GpuMemory : Memory {
  GpuMemory() {
    int index = 0;
    check(cudaGetDevice(&index));
    where = {serinus::DeviceType::cuda, index};
  }
  ~GpuMemory() override {
    for (void* buffer : buffers) cudaFree(buffer);
  }
  std::uint8_t* allocate(std::int64_t bytes) override {
    void* buffer = nullptr;
    check(cudaMalloc(&buffer, static_cast<std::size_t>(bytes)));
    buffers.push_back(buffer);
    check(cudaMemset(buffer, 0xa5, static_cast<std::size_t>(bytes)));
    check(cudaDeviceSynchronize());
    return static_cast<std::uint8_t*>(buffer);
  }
  void write(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice));
    // The copy from pageable memory may come back before it has arrived, and other streams do not
    // wait.
    check(cudaStreamSynchronize(nullptr));
  }
  void read(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  serinus::Device device() const override { return where; }

  serinus::Device where;
  std::vector<void*> buffers;
};

struct NcclPlane : DataPlane {
  NcclPlane(SocketTransport& control, std::chrono::milliseconds timeout) : nccl(control, timeout) {}
  Memory& memory() override { return gpu; }
  Transport& transport() override { return nccl; }
  NcclTransport nccl;  // first: it chooses the device
  GpuMemory gpu;
};

}  // namespace

std::unique_ptr<DataPlane> open_data_plane(SocketTransport& control,
                                           std::chrono::milliseconds timeout) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
  if (gpus < control.size()) {
    if (control.rank() == 0) {
      std::printf("%d ranks need a GPU each, here are %d: not run\n", control.size(), gpus);
    }
    return nullptr;
  }
  return std::make_unique<NcclPlane>(control, timeout);
}

}  // namespace distributed
