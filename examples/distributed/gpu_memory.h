// KV in the memory of the current GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <vector>

#include "memory.h"

namespace distributed {

class GpuMemory : public Memory {
 public:
  GpuMemory() {
    int index = 0;
    check(cudaGetDevice(&index));
    where_ = {serinus::DeviceType::cuda, index};
  }
  ~GpuMemory() override {
    for (void* buffer : buffers_) cudaFree(buffer);
  }
  std::uint8_t* allocate(std::int64_t bytes) override {
    void* buffer = nullptr;
    check(cudaMalloc(&buffer, static_cast<std::size_t>(bytes)));
    buffers_.push_back(buffer);
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
  serinus::Device device() const override { return where_; }

 private:
  static void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }

  serinus::Device where_;
  std::vector<void*> buffers_;
};

}  // namespace distributed
