// Several arrays in one piece of memory.
#pragma once

#include <cstdint>

namespace serinus::canary::cuda {

inline constexpr std::int64_t kAlign = 16;

/// Lays arrays one after another, each aligned. Without an address it counts their bytes.
class Layout {
 public:
  explicit Layout(void* at = nullptr) : at_(static_cast<std::uint8_t*>(at)) {}
  template <class T>
  T* take(std::int64_t n) {
    std::uint8_t* const here = at_ != nullptr ? at_ + bytes_ : nullptr;
    bytes_ += (n * static_cast<std::int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(here);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::uint8_t* at_;
  std::int64_t bytes_ = 0;
};

}  // namespace serinus::canary::cuda
