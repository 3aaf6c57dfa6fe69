// The memory that KV lies in: the host's, or a GPU's.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <serinus/tensor.h>

namespace distributed {

class Memory {
 public:
  virtual ~Memory() = default;
  /// Lives as long as the Memory; holds no KV yet, and no zeros either.
  virtual std::uint8_t* allocate(std::int64_t bytes) = 0;
  virtual void write(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) = 0;
  virtual void read(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) = 0;
  virtual serinus::Device device() const { return {}; }
};

class HostMemory : public Memory {
 public:
  std::uint8_t* allocate(std::int64_t bytes) override {
    return buffers_.emplace_back(static_cast<std::size_t>(bytes), std::uint8_t{0xa5}).data();
  }
  void write(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void read(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

 private:
  std::vector<std::vector<std::uint8_t>> buffers_;
};

}  // namespace distributed
