// The line of a long command, as it is where there is no terminal.
#include "cli/progress.h"

#include <gtest/gtest.h>

namespace serinus::cli {
namespace {

std::string shown(std::int64_t work_done, double seconds) {
  testing::internal::CaptureStderr();
  ProgressLine("requests").show(12, 1200, work_done, 10'000'000, seconds);
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, TellsARateAndAnEndOnlyWhereItKnowsThem) {
  EXPECT_EQ(shown(100'000, 20), "  1 %  12 of 1 200 requests\n");
  EXPECT_EQ(shown(1'000'000, 20), " 10 %  12 of 1 200 requests  50 k tokens/s  3 min 0 s left\n");
  EXPECT_EQ(shown(5'000'000, 20), " 50 %  12 of 1 200 requests  250 k tokens/s  20 s left\n");
  EXPECT_EQ(shown(9'000'000, 2), "");  // not yet time for a line
}

TEST(Progress, RatesOfMillions) {
  testing::internal::CaptureStderr();
  ProgressLine("requests").show(600, 1200, 50'000'000, 100'000'000, 20);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            " 50 %  600 of 1 200 requests  2.5 M tokens/s  20 s left\n");
}

}  // namespace
}  // namespace serinus::cli
