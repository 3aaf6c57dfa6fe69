// The pool over time, as a picture needs it: bands of pages by columns of steps, however long the
// replay, in little memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/page_allocator.h"
#include "engine/radix_cache.h"

namespace serinus::engine {

class PoolMap {
 public:
  static constexpr int kBands = 48;
  static constexpr std::size_t kMaxColumns = 192;

  /// Looks at the pool where the next column is due.
  void look(std::uint64_t step, const PageAllocator& pages, const RadixCache& cache);

  struct Cell {
    // Shares of the band's pages, of 255: private to a request; of the prefix cache, read by
    // somebody and not.
    std::uint8_t request = 0, read = 0, idle = 0;
  };
  struct Column {
    std::uint64_t step = 0;
    std::vector<Cell> bands;
  };
  const std::vector<Column>& columns() const noexcept { return columns_; }

 private:
  std::vector<Column> columns_;
  std::uint64_t stride_ = 1, next_ = 0;
};

}  // namespace serinus::engine
