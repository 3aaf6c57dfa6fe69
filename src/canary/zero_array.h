// An array of zeros that costs only the pages that are touched.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace serinus::canary {

template <class T>
class ZeroArray {
 public:
  explicit ZeroArray(std::int64_t n = 0) : size_(static_cast<std::size_t>(n)) {
    if (n == 0) return;
    // calloc alone aligns to 16; a record must not straddle two cache lines.
    raw_.reset(std::calloc(1, size_ * sizeof(T) + kAlign));
    if (!raw_) throw std::bad_alloc();
    void* p = raw_.get();
    std::size_t space = size_ * sizeof(T) + kAlign;
    data_ = static_cast<T*>(std::align(kAlign, size_ * sizeof(T), p, space));
  }
  T& operator[](std::int64_t i) noexcept { return data_[i]; }
  const T& operator[](std::int64_t i) const noexcept { return data_[i]; }
  std::span<T> span() noexcept { return {data_, size_}; }
  T* data() noexcept { return data_; }

 private:
  static constexpr std::size_t kAlign = 64;
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<void, Free> raw_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace serinus::canary
