// A group of records checked at once says what one record after another would say.
#include "canary/serinus/lanes.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "canary/serinus/hash.h"

namespace serinus::canary {
namespace {

struct Stretch {
  explicit Stretch(std::mt19937_64& rng) : position(static_cast<std::uint32_t>(rng() >> 33)) {
    std::uint64_t h = rng() % hash::kP + 1;
    group.chains[0] = h;
    for (std::int64_t k = 0; k < kGroup; ++k) {
      const auto token = static_cast<std::uint32_t>(rng() >> (rng() % 2 == 0 ? 33 : 47));
      const auto place = position + static_cast<std::uint32_t>(k);
      h = hash::chain_value(hash::chain_step(h, hash::token_term(token, place)));
      group.where[k] = std::uint64_t{place} << 32 | token;
      group.chains[k + 1] = h;
      tokens[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(token);
    }
  }
  bool holds() const { return group_holds(group, position, tokens.data()); }

  std::uint32_t position;
  RecordGroup group;
  std::array<std::int32_t, kGroup> tokens;
};

TEST(GroupHolds, SoundRecords) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 2000; ++i) {
    Stretch run(rng);
    ASSERT_TRUE(run.holds());
    ASSERT_TRUE(group_holds(run.group, run.position, nullptr));
    for (std::int32_t& t : run.tokens) t = rng() % 2 == 0 ? -1 - t : t;  // not known
    ASSERT_TRUE(run.holds());
  }
}

TEST(GroupHolds, EveryBitOfEveryField) {
  std::mt19937_64 rng(2);
  Stretch run(rng);
  const auto differs = [&](std::uint64_t& field) {
    for (int bit = 0; bit < 64; ++bit) {
      field ^= std::uint64_t{1} << bit;
      EXPECT_FALSE(run.holds()) << bit;
      field ^= std::uint64_t{1} << bit;
    }
  };
  for (std::uint64_t& w : run.group.where) differs(w);
  for (std::uint64_t& c : run.group.chains) differs(c);
  for (std::int32_t& t : run.tokens) {
    for (int bit = 0; bit < 31; ++bit) {
      t ^= 1 << bit;
      EXPECT_FALSE(run.holds());
      EXPECT_TRUE(group_holds(run.group, run.position, nullptr));
      t ^= 1 << bit;
    }
  }
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_FALSE(group_holds(run.group, run.position ^ 1u << bit, nullptr));
  }
  EXPECT_TRUE(run.holds());
}

// An erased record has a chain of 0, which no stamp leaves.
TEST(GroupHolds, NoChainIsZero) {
  std::mt19937_64 rng(3);
  Stretch run(rng);
  for (std::int64_t k = 0; k < kGroup; ++k) {
    const std::uint64_t chain = run.group.chains[k + 1];
    run.group.chains[k + 1] = 0;
    EXPECT_FALSE(run.holds()) << k;
    run.group.chains[k + 1] = chain;
  }
}

}  // namespace
}  // namespace serinus::canary
