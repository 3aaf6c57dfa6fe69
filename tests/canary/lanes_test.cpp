// A group of records checked at once says what one record after another would say.
#include "canary/serinus/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>

#include "canary/serinus/hash.h"

namespace serinus::canary {
namespace {

// A group of records in slots without order.
struct Stretch {
  explicit Stretch(std::mt19937_64& rng) : position(static_cast<std::uint32_t>(rng() >> 33)) {
    const auto owner = static_cast<std::uint32_t>(rng()),
               generation = static_cast<std::uint32_t>(rng());
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::shuffle(slots, rng);
    std::uint64_t h = before = rng() % hash::kP + 1;
    for (std::int64_t k = 0; k < kGroup; ++k) {
      const auto token = static_cast<std::uint32_t>(rng() >> (rng() % 2 == 0 ? 33 : 47));
      const auto place = position + static_cast<std::uint32_t>(k);
      h = hash::chain_value(hash::chain_step(h, hash::token_term(token, place)));
      record(k) = {token, place, owner, generation, h, rng()};
      mark(k) = hash::mark(record(k));
      tokens[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(token);
    }
  }
  Record& record(std::int64_t k) { return records[slot(k)]; }
  std::uint8_t& mark(std::int64_t k) { return marks[slot(k)]; }
  std::size_t slot(std::int64_t k) const {
    return static_cast<std::size_t>(slots[static_cast<std::size_t>(k)]);
  }
  bool holds(bool with_tokens = true) const {
    std::uint64_t chain = before;
    const bool found = group_holds({.records = records.data(),
                                    .marks = marks.data(),
                                    .slots = slots.data(),
                                    .position = position,
                                    .tokens = with_tokens ? tokens.data() : nullptr},
                                   chain);
    EXPECT_EQ(chain, found ? records[slot(kGroup - 1)].chain : before);
    return found;
  }

  static constexpr std::size_t kSlots = kGroup + kLinesAhead;
  std::uint32_t position;
  std::uint64_t before;
  std::array<Record, kSlots> records{};
  std::array<std::uint8_t, kSlots> marks{};
  std::array<std::int32_t, kSlots> slots;
  std::array<std::int32_t, kGroup> tokens;
};

TEST(GroupHolds, SoundRecords) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 2000; ++i) {
    Stretch run(rng);
    ASSERT_TRUE(run.holds());
    ASSERT_TRUE(run.holds(false));
    for (std::int32_t& t : run.tokens) t = rng() % 2 == 0 ? -1 - t : t;  // not known
    ASSERT_TRUE(run.holds());
  }
}

TEST(GroupHolds, EveryBitOfEveryField) {
  std::mt19937_64 rng(2);
  Stretch run(rng);
  const auto differs = [&](auto& field, int bits) {
    using Field = std::remove_reference_t<decltype(field)>;
    for (int bit = 0; bit < bits; ++bit) {
      const auto flip = static_cast<Field>(std::uint64_t{1} << bit);
      field = static_cast<Field>(field ^ flip);
      EXPECT_FALSE(run.holds()) << bit;
      field = static_cast<Field>(field ^ flip);
    }
  };
  for (std::int64_t k = 0; k < kGroup; ++k) {
    Record& r = run.record(k);
    for (std::uint32_t* const field : {&r.token, &r.position, &r.owner, &r.generation})
      differs(*field, 32);
    differs(r.chain, 64);
    differs(run.mark(k), 8);
    std::int32_t& t = run.tokens[static_cast<std::size_t>(k)];
    differs(t, 31);
    t ^= 1;
    EXPECT_TRUE(run.holds(false));
    t ^= 1;
    std::int32_t& slot = run.slots[static_cast<std::size_t>(k)];
    slot = -slot - 1;  // there is none
    EXPECT_FALSE(run.holds());
    slot = -slot - 1;
  }
  differs(run.before, 61);
  differs(run.position, 32);
  EXPECT_TRUE(run.holds());
}

// An erased record has a chain of 0, which no stamp leaves.
TEST(GroupHolds, NoChainIsZero) {
  std::mt19937_64 rng(3);
  Stretch run(rng);
  for (std::int64_t k = 0; k < kGroup; ++k) {
    const std::uint64_t chain = std::exchange(run.record(k).chain, 0);
    EXPECT_FALSE(run.holds()) << k;
    run.record(k).chain = chain;
  }
}

}  // namespace
}  // namespace serinus::canary
