// Entries checked many at a time: a sound plan is seen to be sound, whatever its shape, and the
// smallest damage anywhere in it is seen, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <serinus/canary_sglang.h>

#include "canary/sglang/lanes.h"
#include "canary/sglang/look_ahead.h"
#include "canary/sglang/records.h"
#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang {
namespace {

// Requests of a few tokens each, stamped in slots without order, and a plan of all their entries:
// one request after another, or none beside its predecessor.
struct Requests {
  static constexpr std::int64_t kSlots = 200;

  Requests(std::uint64_t seed, bool shuffled) {
    std::mt19937_64 rng(seed);
    std::vector<std::int64_t> free(kSlots - 1);
    std::iota(free.begin(), free.end(), 1);
    std::ranges::shuffle(free, rng);
    for (std::size_t at = 0; at < free.size();) {
      const std::size_t length = std::min(free.size() - at, 1 + rng() % 60);
      std::uint64_t hash = hash::kAnchorHash;
      for (std::size_t i = 0; i < length; ++i) {
        const auto position = static_cast<std::int64_t>(i);
        const auto token = static_cast<std::int64_t>(rng() % 150000);
        const std::int64_t slot = free[at + i];
        endpoint.set(slot, {.token = token, .position = position, .prev_hash = i64(hash)});
        hash = hash::mix3(hash, u64(token), u64(position));
        // Where a window begins, the predecessor is out of reach.
        const std::int64_t first = at % 3 == 0 ? kPaddingSlot : kChainHead;
        entries.push_back(
            {slot, rng() % 4 == 0 ? kNoToken : token, position, i == 0 ? first : free[at + i - 1]});
      }
      at += length;
    }
    if (shuffled) std::ranges::shuffle(entries, rng);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      plan.slots[i] = entries[i].slot;
      plan.tokens[i] = entries[i].token;
      plan.positions[i] = entries[i].position;
      plan.prev_slots[i] = entries[i].prev;
    }
    plan.num_valid = static_cast<std::int32_t>(entries.size());
  }

  bool any_fault_at(std::int64_t first, std::int64_t count) {
    const VerifyParams p = check_verify(endpoint.context(), plan.view(), true);
    const GroupShape shape = group_shape(p, first, count);
    EXPECT_TRUE(shape.all_checked);
    const std::uint64_t no_bytes[kGroup] = {};
    VerifyAhead ahead(p, first, plan.num_valid);
    return any_fault(p, first, count, shape.a_chain, no_bytes, ahead);
  }

  std::int32_t violations() {
    endpoint.violations = 0;
    verify(endpoint.context(), plan.view(), true);
    return endpoint.violations;
  }

  struct Entry {
    std::int64_t slot, token, position, prev;
  };
  std::vector<Entry> entries;
  Endpoint endpoint{kSlots};
  HostVerifyPlan plan{kSlots - 1};
};

TEST(SglangLanes, SoundPlansAreSeenToBeSound) {
  for (const bool shuffled : {false, true}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Requests r(seed, shuffled);
      EXPECT_EQ(r.violations(), 0);
      for (std::int64_t count = 1; count <= kGroup; ++count) {
        for (std::int64_t first = 0; first + count <= r.plan.num_valid; first += 7)
          ASSERT_FALSE(r.any_fault_at(first, count)) << seed << ' ' << first << ' ' << count;
      }
    }
  }
}

TEST(SglangLanes, EveryBitOfEveryEntry) {
  for (const bool shuffled : {false, true}) {
    Requests r(1, shuffled);
    const auto flipped = [](std::int64_t& word, int bit) { word = i64(u64(word) ^ 1ull << bit); };
    for (std::size_t i = 0; i < r.entries.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t slot = r.entries[i].slot;
      const Record sound = r.endpoint.record(slot);
      const bool checks_hash = r.entries[i].prev != kPaddingSlot;
      for (int bit = 0; bit < 64; bit += 7) {
        // What the plan expects: of this entry only.
        flipped(r.plan.positions[i], bit);
        EXPECT_EQ(r.violations(), 1);
        flipped(r.plan.positions[i], bit);
        if (r.entries[i].token != kNoToken) {
          flipped(r.plan.tokens[i], bit);
          EXPECT_EQ(r.violations(), 1);
          flipped(r.plan.tokens[i], bit);
        }
        // What the record holds.
        Record damaged = sound;
        flipped(damaged.real_kv_hash, bit);
        r.endpoint.set(slot, damaged);
        EXPECT_EQ(r.violations(), 1);
        damaged = sound;
        flipped(damaged.prev_hash, bit);
        r.endpoint.set(slot, damaged);
        EXPECT_EQ(r.any_fault_at(at, 1), checks_hash);
        if (checks_hash) {
          EXPECT_GE(r.violations(), 1);
        }
        r.endpoint.set(slot, sound);
      }
    }
    EXPECT_EQ(r.violations(), 0);
  }
}

}  // namespace
}  // namespace serinus::canary::sglang
