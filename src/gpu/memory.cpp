#include "gpu/memory.h"

#include <cuda_runtime.h>

#include "gpu/launch.h"

namespace serinus::gpu {

Memory::Memory(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
  const OnDevice on(device);
  check_launch("cudaMalloc", cudaMalloc(&data_, bytes));
}

Memory::Memory(Device device, const void* from, std::size_t bytes) : Memory(device, bytes) {
  const OnDevice on(device);
  check_launch("cudaMemcpy", cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
}

Memory::~Memory() {
  // Even the free of nothing ends a capture that is going on.
  if (data_ != nullptr) cudaFree(data_);
}

void Memory::download(void* to, std::size_t bytes, std::size_t offset) const {
  const OnDevice on(device_);
  check_launch("cudaMemcpy", cudaMemcpy(to, static_cast<const std::byte*>(data_) + offset, bytes,
                                        cudaMemcpyDeviceToHost));
}

std::vector<double> time_calls(Device device, int calls, const std::function<void()>& work) {
  const OnDevice on(device);
  std::vector<cudaEvent_t> events(static_cast<std::size_t>(calls) + 1);
  for (cudaEvent_t& e : events) check_launch("cudaEventCreate", cudaEventCreate(&e));
  check_launch("cudaEventRecord", cudaEventRecord(events[0]));
  for (std::size_t i = 1; i < events.size(); ++i) {
    work();
    check_launch("cudaEventRecord", cudaEventRecord(events[i]));
  }
  check_launch("cudaEventSynchronize", cudaEventSynchronize(events.back()));
  std::vector<double> us;
  for (std::size_t i = 1; i < events.size(); ++i) {
    float ms = 0;
    check_launch("cudaEventElapsedTime", cudaEventElapsedTime(&ms, events[i - 1], events[i]));
    us.push_back(1e3 * static_cast<double>(ms));
  }
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  return us;
}

}  // namespace serinus::gpu
