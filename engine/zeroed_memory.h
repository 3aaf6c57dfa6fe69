// Large memory that reads as zero and costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <utility>

namespace serinus::engine {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  /// Throws std::bad_alloc where the machine has not enough.
  explicit ZeroedMemory(std::size_t bytes);
  ~ZeroedMemory();
  ZeroedMemory(ZeroedMemory&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  ZeroedMemory& operator=(ZeroedMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace serinus::engine
