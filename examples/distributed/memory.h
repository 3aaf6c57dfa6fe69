// The memory that KV lies in: the host's, or a GPU's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace distributed {

class Memory {
 public:
  virtual ~Memory() = default;
  /// Lives as long as the Memory; holds no KV yet, and no zeros either.
  virtual std::uint8_t* allocate(std::int64_t bytes) = 0;
  virtual void write(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) = 0;
  virtual void read(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) = 0;
};

}  // namespace distributed
