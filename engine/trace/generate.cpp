#include "engine/trace/generate.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/random.h"

namespace serinus::engine {

namespace {

// A distribution as its quantiles at kShares, drawn by interpolation in whole numbers: no floating
// point, so that the bytes do not depend on a machine's math library.
using Quantiles = std::array<std::int64_t, 11>;
constexpr std::array<std::uint64_t, 11> kPerMille = {0,   10,  50,  100, 250, 500,
                                                     750, 900, 950, 990, 1000};

constexpr Quantiles kFirstTurnTokens = {891,    894,    897,    905,    1336,   5264,
                                        13'056, 25'561, 38'538, 89'869, 126'195};
/// Tokens of a later turn beyond the last block that it shares with the turn before.
constexpr Quantiles kGrowthTokens = {1, 40, 163, 304, 534, 829, 3503, 9741, 12'000, 22'000, 40'000};
constexpr Quantiles kAnswerTokens = {1, 3, 10, 24, 156, 350, 472, 597, 698, 1120, 2000};
constexpr Quantiles kBurst = {2, 3, 5, 6, 8, 10, 13, 16, 17, 20, 28};

constexpr std::int64_t kBlock = 512, kLongestInput = 126'195, kBurstMs = 3000;
constexpr std::uint64_t kLaterTurnPercent = 36;
constexpr std::size_t kOpenConversations = 256;  ///< older ones are not taken up again

std::int64_t draw(Random& random, const Quantiles& q) {
  constexpr std::uint64_t kResolution = 1'000'000;
  const std::uint64_t u = random.below(kResolution + 1);
  std::size_t i = 1;
  while (u > kPerMille[i] * 1000) ++i;
  const std::uint64_t from = kPerMille[i - 1] * 1000, to = kPerMille[i] * 1000;
  return q[i - 1] + (q[i] - q[i - 1]) * static_cast<std::int64_t>(u - from) /
                        static_cast<std::int64_t>(to - from);
}

}  // namespace

void generate_trace(const TraceModel& model, std::ostream& out) {
  Random random(model.seed);
  std::vector<std::vector<std::int64_t>> conversations;  // full blocks of each one's last turn
  std::size_t oldest = 0;                                // the one to be forgotten next
  std::int64_t next_id = 1;  // 0 is the block of the shared system prompt
  std::int64_t now_ms = 0, left_in_burst = draw(random, kBurst);
  for (std::int64_t n = 0; n < model.requests; ++n) {
    if (left_in_burst-- == 0) {
      now_ms += kBurstMs;
      left_in_burst = draw(random, kBurst) - 1;
    }
    std::vector<std::int64_t> ids;
    std::int64_t length = 0;
    std::size_t conversation = conversations.size();
    if (!conversations.empty() && random.below(100) < kLaterTurnPercent) {
      conversation = random.below(conversations.size());
      ids = conversations[conversation];
      length = static_cast<std::int64_t>(ids.size()) * kBlock + draw(random, kGrowthTokens);
    }
    if (length == 0 || length > kLongestInput) {
      conversation = conversations.size();
      ids = {0};
      length = draw(random, kFirstTurnTokens);
    }
    while (static_cast<std::int64_t>(ids.size()) * kBlock < length) ids.push_back(next_id++);
    const std::int64_t answer = draw(random, kAnswerTokens);

    std::string line = "{\"timestamp\": " + std::to_string(now_ms) +
                       ", \"input_length\": " + std::to_string(length) +
                       ", \"output_length\": " + std::to_string(answer) + ", \"hash_ids\": [";
    for (std::size_t i = 0; i < ids.size(); ++i) {
      line += (i == 0 ? "" : ", ") + std::to_string(ids[i]);
    }
    out << line << "]}\n";

    ids.resize(static_cast<std::size_t>(length / kBlock));  // a partial last block is private
    if (ids.empty()) continue;
    if (conversation < conversations.size()) {
      conversations[conversation] = std::move(ids);
    } else if (conversations.size() < kOpenConversations) {
      conversations.push_back(std::move(ids));
    } else {
      conversations[oldest++ % kOpenConversations] = std::move(ids);
    }
  }
}

}  // namespace serinus::engine
