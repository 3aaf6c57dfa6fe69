// Token ids and prefix states: what is shared is equal, what is private is not.
#include "engine/request_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace serinus::engine {
namespace {

constexpr std::int64_t kBlock = 8;

TEST(RequestText, EqualBlocksAfterEqualBlocksAreEqualText) {
  const std::vector<std::int64_t> a_ids{5, 6, 7}, b_ids{5, 6, 9};
  const RequestText a(1, 24, 4, a_ids, kBlock), b(2, 24, 4, b_ids, kBlock);
  for (std::int64_t p = 0; p < 16; ++p) {
    EXPECT_EQ(a.token(p), b.token(p)) << p;
    EXPECT_EQ(a.prefix_state(p), b.prefix_state(p)) << p;
  }
  for (std::int64_t p = 16; p < 28; ++p) EXPECT_NE(a.prefix_state(p), b.prefix_state(p)) << p;
}

TEST(RequestText, AnEqualBlockAfterAnotherPrefixHasTheSameTokensAndAnotherState) {
  const std::vector<std::int64_t> a_ids{5, 7}, b_ids{6, 7};
  const RequestText a(1, 16, 0, a_ids, kBlock), b(2, 16, 0, b_ids, kBlock);
  for (std::int64_t p = 8; p < 16; ++p) {
    EXPECT_EQ(a.token(p), b.token(p)) << p;
    EXPECT_NE(a.prefix_state(p), b.prefix_state(p)) << p;
  }
}

TEST(RequestText, APartialLastBlockAndTheOutputArePrivate) {
  const std::vector<std::int64_t> ids{5, 6};  // the second block holds 3 tokens only
  const RequestText a(1, 11, 4, ids, kBlock), b(2, 11, 4, ids, kBlock);
  EXPECT_EQ(a.prefix_state(7), b.prefix_state(7));
  int equal_tokens = 0;
  for (std::int64_t p = 8; p < 15; ++p) {
    EXPECT_NE(a.prefix_state(p), b.prefix_state(p)) << p;
    equal_tokens += a.token(p) == b.token(p);
  }
  EXPECT_LE(equal_tokens, 1);
}

TEST(RequestText, WithoutBlockIdsAllIsPrivate) {
  const RequestText a(1, 11, 4, {}, 0), b(2, 11, 4, {}, 0);
  EXPECT_NE(a.prefix_state(0), b.prefix_state(0));
  EXPECT_EQ(a.prefix_state(0), RequestText(1, 11, 4, {}, 0).prefix_state(0));
}

TEST(RequestText, TokensAreInTheVocabularyAndDiffer) {
  const RequestText a(1, 4096, 0, {}, 0);
  std::vector<std::uint32_t> tokens;
  for (std::int64_t p = 0; p < 4096; ++p) tokens.push_back(a.token(p));
  for (const std::uint32_t t : tokens) EXPECT_LT(t, kVocabulary);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  EXPECT_GT(tokens.size(), 3900u);  // about 4096 - 4096^2 / 2 / 129280
}

}  // namespace
}  // namespace serinus::engine
