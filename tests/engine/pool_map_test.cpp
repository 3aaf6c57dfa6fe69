// However many steps: few columns, equally far apart, each whole.
#include "engine/pool_map.h"

#include <gtest/gtest.h>

#include <vector>

namespace serinus::engine {
namespace {

TEST(PoolMap, StaysSmallAndEvenlySpaced) {
  PageAllocator pages(2 * PoolMap::kBands);
  std::vector<std::int64_t> taken;
  ASSERT_TRUE(pages.allocate(2 * PoolMap::kBands - 1, taken));
  RadixCache cache(4);
  const std::vector<std::int64_t> ids{1, 2};
  const RequestText text(1, 8, 0, ids, 4);
  const auto first = cache.insert(RadixCache::kRoot, text, 0, taken[0]);
  cache.insert(first.node, text, 1, taken[1]);
  cache.lock(std::span(&first.node, 1));
  pages.publish(taken[0]);
  pages.publish(taken[1]);
  PoolMap map;
  for (std::uint64_t step = 0; step < 5000; ++step) map.look(step, pages, cache);
  const auto& columns = map.columns();
  ASSERT_GE(columns.size(), PoolMap::kMaxColumns / 2);
  ASSERT_LT(columns.size(), PoolMap::kMaxColumns);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    EXPECT_EQ(columns[i].step, i * columns[1].step);
    ASSERT_EQ(columns[i].bands.size(), static_cast<std::size_t>(PoolMap::kBands));
    // The first band holds the null page and the page in use, the second the idle one and a private
    // one, the last two private ones.
    EXPECT_EQ(columns[i].bands[0].read, 127);
    EXPECT_EQ(columns[i].bands[1].idle, 127);
    EXPECT_EQ(columns[i].bands[1].request, 127);
    EXPECT_EQ(columns[i].bands[PoolMap::kBands - 1].request, 255);
  }
  EXPECT_GT(columns.back().step + columns[1].step, 4999u);
}

}  // namespace
}  // namespace serinus::engine
