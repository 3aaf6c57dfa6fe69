// The pool over time, as a picture needs it: bands of pages by columns of steps, however long the
// replay, in little memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/page_allocator.h"

namespace serinus::engine {

class PoolMap {
 public:
  static constexpr int kBands = 48;
  static constexpr std::size_t kMaxColumns = 192;

  /// Looks at the pool where the next column is due.
  void look(std::uint64_t step, const PageAllocator& pages);

  struct Cell {
    std::uint8_t request = 0, cached = 0;  ///< shares of the band's pages, of 255
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
