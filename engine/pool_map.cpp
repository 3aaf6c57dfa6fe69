#include "engine/pool_map.h"

#include <utility>

namespace serinus::engine {

void PoolMap::look(std::uint64_t step, const PageAllocator& pages, const RadixCache& cache) {
  if (step < next_) return;
  std::vector<bool> read(static_cast<std::size_t>(pages.num_pages()));
  cache.for_each_on_device([&](RadixCache::Node n, std::int64_t page) {
    read[static_cast<std::size_t>(page)] = cache.locked(n);
  });
  Column column;
  column.step = step;
  const std::int64_t n = pages.num_pages();
  for (std::int64_t b = 0; b < kBands; ++b) {
    const std::int64_t begin = b * n / kBands, end = (b + 1) * n / kBands;
    std::int64_t request = 0, in_use = 0, idle = 0;
    for (std::int64_t p = begin; p < end; ++p) {
      request += pages.use(p) == PageUse::request;
      if (pages.use(p) == PageUse::cached) ++(read[static_cast<std::size_t>(p)] ? in_use : idle);
    }
    const auto share = [&](std::int64_t count) {
      return static_cast<std::uint8_t>(end > begin ? 255 * count / (end - begin) : 0);
    };
    column.bands.push_back({share(request), share(in_use), share(idle)});
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
