// The prefix cache against a plain map from token prefixes to pages, and its own invariants.
#include "engine/radix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "engine/random.h"

namespace serinus::engine {
namespace {

constexpr std::int64_t kPage = 4;

// A text of `ids.size()` pages; equal ids after equal ids are equal pages.
RequestText text_of(const std::vector<std::int64_t>& ids) {
  return RequestText(1, static_cast<std::int64_t>(ids.size()) * kPage, 0, ids, kPage);
}

// Puts all pages of a text in, numbered from `page` on; returns the path.
std::vector<RadixCache::Node> put(RadixCache& cache, const RequestText& text, std::int64_t& page) {
  std::vector<RadixCache::Node> path;
  for (std::int64_t i = 0; i < text.input_length() / kPage; ++i) {
    const auto in = cache.insert(path.empty() ? RadixCache::kRoot : path.back(), text, i, page);
    page += in.adopted;
    path.push_back(in.node);
  }
  return path;
}

TEST(RadixCache, MatchesTheLongestPrefixAndDeduplicates) {
  RadixCache cache(kPage);
  std::int64_t page = 1;
  put(cache, text_of({1, 2, 3}), page);
  EXPECT_EQ(page, 4);
  put(cache, text_of({1, 2, 4, 5}), page);
  EXPECT_EQ(page, 6) << "two pages are shared";
  std::vector<RadixCache::Node> path;
  cache.match(text_of({1, 2, 4, 6}), 4, path);
  ASSERT_EQ(path.size(), 3u);
  EXPECT_EQ(cache.page(path[0]), 1);
  EXPECT_EQ(cache.page(path[2]), 4);
  path.clear();
  cache.match(text_of({1, 2, 4, 6}), 2, path);
  EXPECT_EQ(path.size(), 2u) << "no more than asked for";
  path.clear();
  cache.match(text_of({2, 3}), 2, path);
  EXPECT_TRUE(path.empty()) << "the same block after another prefix is another page";
  cache.check();
}

TEST(RadixCache, EvictsLeavesLeastRecentlyUsedFirstAndNeverWhatIsLocked) {
  RadixCache cache(kPage);
  std::int64_t page = 1;
  put(cache, text_of({1, 2}), page);                      // pages 1 2
  const auto locked = put(cache, text_of({1, 3}), page);  // pages 1 3
  put(cache, text_of({4}), page);                         // page 4
  cache.lock(locked);
  std::vector<RadixCache::Node> used;
  cache.match(text_of({1, 2}), 2, used);  // now younger than page 4
  EXPECT_EQ(cache.evictable_pages(), 2);
  EXPECT_EQ(cache.evict(), 4);
  EXPECT_EQ(cache.evict(), 2);
  EXPECT_EQ(cache.evict(), -1);
  cache.unlock(locked);
  EXPECT_EQ(cache.evict(), 3) << "the leaf before its parent";
  EXPECT_EQ(cache.evict(), 1);
  EXPECT_EQ(cache.cached_pages(), 0);
  cache.check();
}

TEST(RadixCache, ALookaheadKeyBindsTheTokenAfterThePage) {
  RadixCache cache(kPage, 1);
  const RequestText a = text_of({1, 2, 3}), b = text_of({1, 2, 4});
  std::int64_t page = 1;
  put(cache, a, page);
  std::vector<RadixCache::Node> path;
  cache.match(b, 2, path);
  EXPECT_EQ(path.size(), 1u) << "page 2 is followed by another token";
}

TEST(RadixCache, KeepsAHostCopyAndLoadsItBack) {
  RadixCache cache(kPage);
  const RequestText text = text_of({1, 2});
  std::int64_t page = 1;
  const auto path = put(cache, text, page);
  cache.set_host_page(path[0], 10);
  cache.set_host_page(path[1], 11);
  EXPECT_EQ(cache.evict(), 2);
  EXPECT_EQ(cache.evict(), 1);
  std::vector<RadixCache::Node> found;
  cache.match(text, 2, found);
  ASSERT_EQ(found, path);
  EXPECT_EQ(cache.page(found[0]), -1);
  EXPECT_EQ(cache.host_page(found[1]), 11);
  cache.lock(found);
  EXPECT_EQ(cache.evict_host(), -1) << "locked";
  cache.set_loading(found[0]);
  cache.set_loading(found[1]);
  std::vector<RadixCache::Node> other;
  cache.match(text, 2, other);
  EXPECT_TRUE(other.empty()) << "nobody reads what is still on its way";
  EXPECT_EQ(cache.insert(RadixCache::kRoot, text, 0, 7).node, -1);
  cache.set_loaded(found[0], 5);
  cache.set_loaded(found[1], 6);
  cache.unlock(found);
  cache.check();
  EXPECT_EQ(cache.evict_host(), 11) << "the host's leaf before its parent";
  EXPECT_EQ(cache.evict_host(), 10);
  EXPECT_EQ(cache.evict_host(), -1);
  EXPECT_EQ(cache.cached_pages(), 2);
  cache.check();
}

// Random texts, locks and evictions; a map from prefixes to pages says what must be found.
TEST(RadixCache, AgreesWithAMapOverRandomCalls) {
  RadixCache cache(kPage);
  Random random(11);
  std::map<std::vector<std::int64_t>, std::int64_t> model;
  std::map<std::int64_t, std::vector<std::int64_t>> by_page;
  std::vector<std::vector<RadixCache::Node>> locked;
  std::int64_t next_page = 1;
  for (int i = 0; i < 6000; ++i) {
    std::vector<std::int64_t> ids;
    for (std::size_t n = 1 + random.below(6); n > 0; --n)
      ids.push_back(static_cast<std::int64_t>(random.below(3)));
    const RequestText text = text_of(ids);
    switch (random.below(4)) {
      case 0: {
        std::vector<RadixCache::Node> path;
        std::vector<std::int64_t> prefix;
        for (std::size_t d = 0; d < ids.size(); ++d) {
          prefix.push_back(ids[d]);
          const auto in = cache.insert(path.empty() ? RadixCache::kRoot : path.back(), text,
                                       static_cast<std::int64_t>(d), next_page);
          ASSERT_EQ(in.adopted, !model.contains(prefix));
          if (in.adopted) {
            model[prefix] = next_page;
            by_page[next_page++] = prefix;
          }
          ASSERT_EQ(cache.page(in.node), model[prefix]);
          path.push_back(in.node);
        }
        if (random.below(3) == 0) {
          cache.lock(path);
          locked.push_back(path);
        }
        break;
      }
      case 1: {
        std::vector<RadixCache::Node> path;
        cache.match(text, static_cast<std::int64_t>(ids.size()), path);
        std::vector<std::int64_t> prefix;
        std::size_t d = 0;
        for (; d < ids.size(); ++d) {
          prefix.push_back(ids[d]);
          if (!model.contains(prefix)) break;
          ASSERT_LT(d, path.size());
          ASSERT_EQ(cache.page(path[d]), model[prefix]);
        }
        ASSERT_EQ(path.size(), d);
        break;
      }
      case 2: {
        std::set<std::int64_t> held;
        for (const auto& path : locked) {
          for (const auto n : path) held.insert(cache.page(n));
        }
        ASSERT_EQ(cache.evictable_pages(),
                  static_cast<std::int64_t>(model.size()) - static_cast<std::int64_t>(held.size()));
        const std::int64_t page = cache.evict();
        if (page < 0) {
          ASSERT_EQ(model.size(), held.size());
          break;
        }
        ASSERT_FALSE(held.contains(page));
        const std::vector<std::int64_t> gone = by_page.at(page);
        for (std::int64_t id = 0; id < 3; ++id) {
          std::vector<std::int64_t> child = gone;
          child.push_back(id);
          ASSERT_FALSE(model.contains(child)) << "a page with children was evicted";
        }
        model.erase(gone);
        by_page.erase(page);
        break;
      }
      default:
        if (locked.empty()) break;
        cache.unlock(locked.back());
        locked.pop_back();
    }
    if (i % 50 == 0) cache.check();
    ASSERT_EQ(cache.cached_pages(), static_cast<std::int64_t>(model.size()));
  }
}

}  // namespace
}  // namespace serinus::engine
