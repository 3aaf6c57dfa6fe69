// An array of zeros that costs only the memory that is touched, in huge pages where it is large:
// records, ledger and seals are read slot by slot in any order, and a page walk costs as much as
// the miss itself.
#pragma once

#include <sys/mman.h>

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
    // calloc alone aligns to 16; a record must not straddle two cache lines, nor an array share a
    // huge page with what else is on the heap.
    const std::size_t bytes = size_ * sizeof(T);
    const std::size_t align = bytes >= kHuge ? kHuge : kLine;
    std::size_t space = bytes + align;
    raw_.reset(std::calloc(1, space));
    if (!raw_) throw std::bad_alloc();
    void* p = raw_.get();
    p = std::align(align, bytes, p, space);
    // A wish: the kernel may have none, or be told to give none.
    if (align == kHuge) static_cast<void>(madvise(p, bytes / kHuge * kHuge, MADV_HUGEPAGE));
    data_ = static_cast<T*>(p);
  }
  T& operator[](std::int64_t i) noexcept { return data_[i]; }
  const T& operator[](std::int64_t i) const noexcept { return data_[i]; }
  std::span<T> span() noexcept { return {data_, size_}; }
  T* data() noexcept { return data_; }

 private:
  static constexpr std::size_t kLine = 64, kHuge = std::size_t{2} << 20;
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<void, Free> raw_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace serinus::canary
