// However many steps: few columns, equally far apart, each whole.
#include <gtest/gtest.h>

#include <vector>

#include "engine/pool_map.h"

namespace serinus::engine {
namespace {

TEST(PoolMap, StaysSmallAndEvenlySpaced) {
  PageAllocator pages(100);
  std::vector<std::int64_t> taken;
  ASSERT_TRUE(pages.allocate(99, taken));
  pages.publish(taken[0]);
  PoolMap map;
  for (std::uint64_t step = 0; step < 5000; ++step) map.look(step, pages);
  const auto& columns = map.columns();
  ASSERT_GE(columns.size(), PoolMap::kMaxColumns / 2);
  ASSERT_LT(columns.size(), PoolMap::kMaxColumns);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    EXPECT_EQ(columns[i].step, i * columns[1].step);
    ASSERT_EQ(columns[i].bands.size(), static_cast<std::size_t>(PoolMap::kBands));
    EXPECT_GT(columns[i].bands[0].cached, 0);
    EXPECT_EQ(columns[i].bands[PoolMap::kBands - 1].request, 255);
  }
  EXPECT_GT(columns.back().step + columns[1].step, 4999u);
}

}  // namespace
}  // namespace serinus::engine
