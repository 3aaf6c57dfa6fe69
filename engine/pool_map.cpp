#include "engine/pool_map.h"

#include <utility>

namespace serinus::engine {

void PoolMap::look(std::uint64_t step, const PageAllocator& pages) {
  if (step < next_) return;
  Column column;
  column.step = step;
  const std::int64_t n = pages.num_pages();
  for (std::int64_t b = 0; b < kBands; ++b) {
    const std::int64_t begin = b * n / kBands, end = (b + 1) * n / kBands;
    std::int64_t request = 0, cached = 0;
    for (std::int64_t p = begin; p < end; ++p) {
      request += pages.use(p) == PageUse::request;
      cached += pages.use(p) == PageUse::cached;
    }
    Cell cell;
    if (end > begin) {
      cell.request = static_cast<std::uint8_t>(255 * request / (end - begin));
      cell.cached = static_cast<std::uint8_t>(255 * cached / (end - begin));
    }
    column.bands.push_back(cell);
  }
  columns_.push_back(std::move(column));
  if (columns_.size() == kMaxColumns) {  // full: keep every second one, and look half as often
    for (std::size_t i = 1; i < kMaxColumns / 2; ++i) columns_[i] = std::move(columns_[2 * i]);
    columns_.resize(kMaxColumns / 2);
    stride_ *= 2;
  }
  next_ = columns_.back().step + stride_;
}

}  // namespace serinus::engine
