// parallel_for and the log callback under many threads. Meant to be run under TSan too.
#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <serinus/log.h>

namespace serinus {
namespace {

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const int threads : {0, 1, 2, 3, 8, 1000}) {
    for (const std::int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
        parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_EQ(begin % std::max<std::int64_t>(grain, 1), 0);
          EXPECT_LT(begin, end);
          for (std::int64_t i = begin; i < end; ++i) ++seen.at(static_cast<std::size_t>(i));
        });
        for (const auto& s : seen) ASSERT_EQ(s, 1);
      }
    }
  }
  parallel_for(2, -5, 1, [](std::int64_t, std::int64_t) { FAIL(); });
}

TEST(ParallelFor, HugeCountsDoNotOverflow) {
  const std::int64_t n = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> covered{0};
  parallel_for(2, n, n / 4, [&](std::int64_t begin, std::int64_t end) { covered += end - begin; });
  EXPECT_EQ(covered, n);
}

TEST(ParallelFor, UsesAsManyThreadsAsWereAskedFor) {
  // Each range waits until all are being worked on, so that this ends only with four threads.
  std::atomic<int> arrived{0};
  parallel_for(4, 4, 1, [&](std::int64_t, std::int64_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

TEST(ParallelFor, NeverUsesMore) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  for (int round = 0; round < 50; ++round) {
    ids.clear();
    parallel_for(2, 64, 1, [&](std::int64_t, std::int64_t) {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    ASSERT_LE(ids.size(), 2u);
  }
}

TEST(ParallelFor, RethrowsTheFirstExceptionAndIsUsableAfterwards) {
  for (int round = 0; round < 20; ++round) {
    try {
      // More ranges than anybody could wait for: those that were not begun are left out.
      parallel_for(4, 1'000'000'000'000, 1, [&](std::int64_t begin, std::int64_t) {
        if (begin == 3) throw std::runtime_error("three");
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "three");
    }
  }
}

TEST(ParallelFor, MayBeNested) {
  std::atomic<std::int64_t> sum{0};
  parallel_for(4, 16, 1, [&](std::int64_t begin, std::int64_t) {
    parallel_for(4, 100, 7, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t i = b; i < e; ++i) sum += begin * 100 + i;
    });
  });
  EXPECT_EQ(sum, 1600 * 1599 / 2);
}

TEST(ParallelFor, MayBeCalledFromManyThreadsAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int> right{0};
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::int64_t> out(97);
        parallel_for(1 + (c + round) % 4, 97, 5, [&](std::int64_t b, std::int64_t e) {
          for (std::int64_t i = b; i < e; ++i) out[static_cast<std::size_t>(i)] = i * c;
        });
        bool all = true;
        for (std::int64_t i = 0; i < 97; ++i) all &= out[static_cast<std::size_t>(i)] == i * c;
        right += all;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(right, 1200);
}

TEST(Log, GoesToTheCallbackOneLineAtATime) {
  log(LogLevel::error, "dropped: there is no callback");
  std::vector<std::string> lines;  // no lock: the callback is called one at a time
  set_log_callback([&](LogLevel level, std::string_view line) {
    lines.push_back(std::to_string(static_cast<int>(level)) + std::string(line));
  });
  parallel_for(4, 400, 1, [](std::int64_t b, std::int64_t) {
    log(b % 2 == 0 ? LogLevel::info : LogLevel::warning, std::to_string(b));
  });
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 400u);
  EXPECT_NE(std::ranges::find(lines, "1246"), lines.end());
  EXPECT_NE(std::ranges::find(lines, "2247"), lines.end());
  set_log_callback({});
  log(LogLevel::error, "dropped");
  EXPECT_EQ(lines.size(), 400u);
}

TEST(Log, TheCallbackMayBeChangedMeanwhile) {
  std::atomic<int> a{0};
  std::atomic<int> b{0};
  parallel_for(4, 2000, 1, [&](std::int64_t i, std::int64_t) {
    if (i % 100 == 0) {
      std::atomic<int>& to = i % 200 == 0 ? a : b;
      set_log_callback([&to](LogLevel, std::string_view) { ++to; });
    }
    log(LogLevel::debug, "x");
  });
  set_log_callback({});
  EXPECT_LE(a + b, 2000);
  EXPECT_GT(a + b, 0);
}

}  // namespace
}  // namespace serinus
