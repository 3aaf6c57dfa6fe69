// The allocator against a set: nothing is handed out twice, nothing is lost.
#include "engine/page_allocator.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/random.h"

namespace serinus::engine {
namespace {

TEST(PageAllocator, HandsOutEveryPageButTheNullPageOnce) {
  PageAllocator a(9);
  std::vector<std::int64_t> pages;
  EXPECT_FALSE(a.allocate(9, pages));
  EXPECT_TRUE(pages.empty());
  ASSERT_TRUE(a.allocate(8, pages));
  EXPECT_EQ(std::set(pages.begin(), pages.end()), (std::set<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(a.free_pages(), 0);
  EXPECT_EQ(a.use(0), PageUse::reserved);
}

TEST(PageAllocator, AgreesWithASetOverRandomCalls) {
  PageAllocator a(64);
  Random random(3);
  std::set<std::int64_t> held;
  for (int i = 0; i < 20000; ++i) {
    if (random.below(2) == 0) {
      const auto n = static_cast<std::int64_t>(random.below(8));
      std::vector<std::int64_t> pages;
      const bool ok = a.allocate(n, pages);
      ASSERT_EQ(ok, n <= 63 - static_cast<std::int64_t>(held.size()));
      for (const std::int64_t p : pages) {
        ASSERT_TRUE(p >= 1 && p < 64);
        ASSERT_TRUE(held.insert(p).second) << "page " << p << " handed out twice";
        ASSERT_EQ(a.use(p), PageUse::request);
      }
    } else if (!held.empty()) {
      auto it = held.begin();
      std::advance(it, static_cast<std::int64_t>(random.below(held.size())));
      const std::int64_t page = *it;
      if (random.below(2) == 0) a.publish(page);
      a.free(std::span(&page, 1));
      held.erase(it);
    }
    ASSERT_EQ(a.free_pages(), 63 - static_cast<std::int64_t>(held.size()));
  }
  EXPECT_EQ(a.double_frees(), 0);
}

TEST(PageAllocator, ADoubleFreeIsCountedAndChangesNothing) {
  PageAllocator a(4);
  std::vector<std::int64_t> pages;
  ASSERT_TRUE(a.allocate(2, pages));
  a.free(pages);
  a.free(pages);
  const std::int64_t null_page = 0;
  a.free(std::span(&null_page, 1));
  EXPECT_EQ(a.double_frees(), 3);
  EXPECT_EQ(a.free_pages(), 3);
  pages.clear();
  ASSERT_TRUE(a.allocate(3, pages));
  EXPECT_EQ(std::set(pages.begin(), pages.end()).size(), 3u);
}

}  // namespace
}  // namespace serinus::engine
