// Memory of a GPU that somebody has to own, and a clock: for the command, its benchmarks and the
// Monitor. Plain functions of the library never allocate. No CUDA header here.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <serinus/tensor.h>

namespace serinus::gpu {

/// Bytes on a device, not initialised. Throws where CUDA refuses.
class Memory {
 public:
  Memory(Device device, std::size_t bytes);
  /// A copy of host memory.
  Memory(Device device, const void* from, std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Waits for what the device has to do; reports what failed there.
  void download(void* to, std::size_t bytes, std::size_t offset = 0) const;

 private:
  Device device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Microseconds on `device` of each call of `work`, one after another in the default stream.
std::vector<double> time_calls(Device device, int calls, const std::function<void()>& work);

}  // namespace serinus::gpu
