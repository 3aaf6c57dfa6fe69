// The sglang format against the oracle, on random and on hostile inputs. A failing case is shrunk
// before it is printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>

#include "tests/canary/sglang_cases.h"

namespace serinus::canary::sglang {
namespace {

std::string difference(const Endpoint& got, const Endpoint& want) {
  if (got.violations != want.violations) {
    return "violations " + std::to_string(got.violations) +
           " != " + std::to_string(want.violations);
  }
  if (got.slot_runs != want.slot_runs) return "slot_run_counter";
  if (got.kernel_runs != want.kernel_runs) return "kernel_run_counter";
  if (got.out_of_range != want.out_of_range) {
    return "out of range " + std::to_string(got.out_of_range) +
           " != " + std::to_string(want.out_of_range);
  }
  if (got.ring != want.ring) return "ring rows";
  if (got.entries != want.entries) return "entries of ring rows";
  if (got.bytes != want.bytes) return "records";
  return "";
}

// ---------------------------------------------------------------- verify

std::string run(const VerifyCase& c) {
  Rng rng(c.world_seed);
  const World world(rng, c.num_slots);
  HostVerifyPlan plan(std::max<Int>(1, static_cast<Int>(c.slots.size())));
  const auto fill = [&](std::vector<Int>& to, const std::vector<Int>& from) {
    std::ranges::copy(from, to.begin());
  };
  fill(plan.slots, c.slots);
  fill(plan.tokens, c.tokens);
  fill(plan.positions, c.positions);
  fill(plan.prev_slots, c.prev_slots);
  plan.num_valid = c.num_valid;
  plan.enable = c.enable;
  Endpoint want = world.endpoint;
  oracle::verify(want, plan, c.check_tokens);
  for (const int threads : {1, 2, 5}) {
    Endpoint got = world.endpoint;
    verify(got.context(), plan.view(), c.check_tokens, {}, threads);
    const std::string d = difference(got, want);
    if (!d.empty()) return d + " with " + std::to_string(threads) + " threads";
  }
  return "";
}

// Drops entries as long as the case still fails.
VerifyCase shrink(VerifyCase c) {
  for (std::size_t size = c.slots.size() / 2; size >= 1; size /= 2) {
    for (std::size_t at = 0; at + size <= c.slots.size();) {
      VerifyCase smaller = c;
      for (auto* const v :
           {&smaller.slots, &smaller.tokens, &smaller.positions, &smaller.prev_slots})
        v->erase(v->begin() + static_cast<std::ptrdiff_t>(at),
                 v->begin() + static_cast<std::ptrdiff_t>(at + size));
      if (run(smaller).empty())
        at += size;
      else
        c = smaller;
    }
  }
  return c;
}

std::string print(const VerifyCase& c) {
  std::string out = fmt::format("world {} num_slots {} num_valid {} enable {} check_tokens {}",
                                c.world_seed, c.num_slots, c.num_valid, c.enable, c.check_tokens);
  for (std::size_t i = 0; i < c.slots.size(); ++i) {
    out += fmt::format("\n  slot {} token {} position {} prev {}", c.slots[i], c.tokens[i],
                       c.positions[i], c.prev_slots[i]);
  }
  return out;
}

TEST(SglangRandom, VerifyEqualsOracle) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Rng rng(seed);
    const VerifyCase c = random_verify(rng, seed % 4 == 0);
    if (run(c).empty()) continue;
    const VerifyCase small = shrink(c);
    FAIL() << "seed " << seed << ": " << run(small) << "\n" << print(small);
  }
}

// ---------------------------------------------------------------- write

std::string run(WriteCase c) {
  Rng rng(c.world_seed);
  World world(rng, c.num_slots);
  world.endpoint.chain_position_assert = c.chain_position_assert;
  world.endpoint.violations = c.violations;
  Endpoint want = world.endpoint;
  oracle::write(want, c.plan, c.tokens);
  for (const int threads : {1, 3}) {
    Endpoint got = world.endpoint;
    write(got.context(), c.plan.view(), c.tokens.input(), {}, threads);
    const std::string d = difference(got, want);
    if (!d.empty()) return d + " with " + std::to_string(threads) + " threads";
  }
  return "";
}

// Turns entries into skipped ones as long as the case still fails.
WriteCase shrink(WriteCase c) {
  for (Int& slot : c.tokens.slots) {
    const Int before = slot;
    slot = -1;
    if (run(c).empty()) slot = before;
  }
  return c;
}

std::string print(const WriteCase& c) {
  std::string out = fmt::format("world {} num_slots {} num_valid_reqs {} offsets {} seeds {}",
                                c.world_seed, c.num_slots, c.plan.num_valid_reqs,
                                fmt::join(c.plan.offsets, " "), fmt::join(c.plan.seeds, " "));
  for (std::size_t i = 0; i < c.tokens.slots.size(); ++i) {
    if (c.tokens.slots[i] == -1) continue;
    out += fmt::format("\n  entry {} slot {} token {} position {}", i, c.tokens.slots[i],
                       c.tokens.ids[i], c.tokens.positions[i]);
  }
  return out;
}

TEST(SglangRandom, WriteEqualsOracle) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Rng rng(seed);
    const WriteCase c = random_write(rng, seed % 4 == 0, pick(rng, 0, 120));
    if (run(c).empty()) continue;
    const WriteCase small = shrink(c);
    FAIL() << "seed " << seed << ": " << run(small) << "\n" << print(small);
  }
}

// Enough tokens that threads take part, and slots that several entries name.
TEST(SglangRandom, WriteOfManyTokensDoesNotDependOnThreads) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Rng rng(seed);
    const WriteCase c = random_write(rng, seed % 4 == 0, 20000);
    EXPECT_EQ(run(c), "") << "seed " << seed;
  }
}

// What the host works out of the tokens is the chain that write() finds, in one piece or in
// several.
TEST(SglangRandom, AChainFromTheHostIsTheOneThatWriteFinds) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    const Int num_tokens = seed % 5 == 0 ? 9000 : 300;  // so many that threads take part, or few
    Endpoint before(num_tokens + 50, 20);
    for (std::uint8_t& b : before.bytes) b = static_cast<std::uint8_t>(rng());
    HostWritePlan plan(4);
    plan.offsets = {0, 70, 70, 190, num_tokens};
    plan.seeds = {-1, 3, pick(rng, 0, num_tokens), pick(rng, 0, num_tokens)};
    plan.num_valid_reqs = 4;
    oracle::Tokens tokens;
    for (Int i = 0; i < num_tokens; ++i) {
      tokens.ids.push_back(hostile(rng));
      tokens.positions.push_back(pick(rng, 0, 9) == 0 ? hostile(rng) : i);
      tokens.slots.push_back(pick(rng, 0, 9) == 0 ? hostile(rng) : pick(rng, 0, num_tokens));
    }
    Endpoint want = before;
    write(want.context(), plan.view(), tokens.input());

    tokens.chain_hashes.assign(static_cast<std::size_t>(num_tokens), 0);
    for (Int& h : tokens.chain_hashes) h = hostile(rng);  // of those that are not written
    for (std::size_t r = 0; r < plan.seeds.size(); ++r) {
      std::optional<Int> hash;
      if (plan.seeds[r] >= 0) {
        const Record s = before.record(plan.seeds[r]);
        Int unused = 0;
        hash = chain_hashes(s.prev_hash, std::span(&s.token, 1), std::span(&s.position, 1),
                            std::span(&unused, 1));
      }
      std::vector<Int> ids, positions;
      std::vector<std::size_t> written;
      for (Int i = plan.offsets[r]; i < plan.offsets[r + 1]; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (tokens.slots[at] < 0 || tokens.slots[at] >= before.num_slots()) continue;
        ids.push_back(tokens.ids[at]);
        positions.push_back(tokens.positions[at]);
        written.push_back(at);
      }
      std::vector<Int> hashes(ids.size());
      for (std::size_t begin = 0; begin < ids.size();) {
        const auto n = std::min<std::size_t>(ids.size() - begin,
                                             static_cast<std::size_t>(pick(rng, 1, num_tokens)));
        hash = chain_hashes(hash, std::span(ids).subspan(begin, n),
                            std::span(positions).subspan(begin, n),
                            std::span(hashes).subspan(begin, n));
        begin += n;
      }
      for (std::size_t i = 0; i < written.size(); ++i) tokens.chain_hashes[written[i]] = hashes[i];
    }
    for (const int threads : {1, 3}) {
      Endpoint got = before;
      write(got.context(), plan.view(), tokens.input(), {}, threads);
      EXPECT_EQ(difference(got, want), "") << "seed " << seed << ", threads " << threads;
    }
    // They are taken as they are.
    if (const auto first = std::ranges::find(tokens.slots, 1); first != tokens.slots.end()) {
      for (Int& h : tokens.chain_hashes) h ^= 1;
      Endpoint got = before;
      write(got.context(), plan.view(), tokens.input());
      EXPECT_EQ(got.record(1).prev_hash, want.record(1).prev_hash ^ 1);
    }
  }
  std::vector<Int> three(3), two(2);
  EXPECT_ANY_THROW(chain_hashes({}, three, three, two));
  EXPECT_ANY_THROW(chain_hashes({}, three, two, three));
}

TEST(SglangRandom, VerifyOfManyEntriesDoesNotDependOnThreads) {
  Rng rng(5);
  VerifyCase c{
      .world_seed = 9, .num_slots = 3000, .num_valid = 20000, .enable = 1, .check_tokens = true};
  for (Int i = 0; i < 20000; ++i) {
    c.slots.push_back(pick(rng, -1, 3001));
    c.prev_slots.push_back(pick(rng, -1, 3001));
    c.tokens.push_back(-1);
    c.positions.push_back(i);
  }
  EXPECT_EQ(run(c), "");
}

// ---------------------------------------------------------------- plan

std::string run(PlanCase c) {
  const oracle::Planned want = oracle::plan(c.tables, c.verify_capacity);
  std::vector<std::int32_t> cells, expected;
  const PlanInput in = input_of(c, cells, expected);
  for (const int threads : {1, 2, 5}) {
    HostVerifyPlan verify_plan(c.verify_capacity);
    HostWritePlan write_plan(c.write_capacity);
    std::ranges::fill(write_plan.offsets, Int{-5});
    plan(verify_plan.view(), write_plan.view(), in, {}, threads);
    const bool fits = want.total <= c.verify_capacity;
    if (verify_plan.enable != (fits ? 1 : 0)) return "enable";
    if (verify_plan.num_valid != std::min(want.total, c.verify_capacity)) return "num_valid";
    if (write_plan.num_valid_reqs != static_cast<std::int32_t>(c.tables.rows.size()))
      return "num_valid_reqs";
    const auto starts_with = [](const std::vector<Int>& all, const std::vector<Int>& start) {
      return std::equal(start.begin(), start.end(), all.begin());
    };
    if (!starts_with(verify_plan.slots, want.slots)) return "slots";
    if (!starts_with(verify_plan.positions, want.positions)) return "positions";
    if (!starts_with(verify_plan.prev_slots, want.prev_slots)) return "prev_slots";
    if (!starts_with(verify_plan.tokens, want.tokens)) return "tokens";
    if (!starts_with(write_plan.offsets, want.offsets)) return "offsets";
    if (!starts_with(write_plan.seeds, want.seeds)) return "seeds";
    for (std::size_t i = want.offsets.size(); i < write_plan.offsets.size(); ++i) {
      if (write_plan.offsets[i] != 0) return "offsets beyond the batch";
    }
  }
  return "";
}

// Turns requests into padding as long as the case still fails.
PlanCase shrink(PlanCase c) {
  for (Int& row : c.tables.rows) {
    const Int before = row;
    row = 0;
    if (run(c).empty()) row = before;
  }
  return c;
}

std::string print(const PlanCase& c) {
  std::string out = fmt::format("capacity {} window {}", c.verify_capacity, c.tables.window);
  for (std::size_t r = 0; r < c.tables.rows.size(); ++r) {
    out += fmt::format("\n  row {} prefix {} extend {}", c.tables.rows[r], c.tables.prefix_lens[r],
                       c.tables.extend_lens[r]);
  }
  return out;
}

TEST(SglangRandom, PlanEqualsOracle) {
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed);
    const PlanCase c = random_plan(rng, seed % 3 == 0);
    if (run(c).empty()) continue;
    const PlanCase small = shrink(c);
    FAIL() << "seed " << seed << ": " << run(small) << "\n" << print(small);
  }
}

// Enough entries that the list is made in several ranges, some of which begin inside a request.
TEST(SglangRandom, PlanOfManyEntriesDoesNotDependOnThreads) {
  Rng rng(3);
  PlanCase c{.verify_capacity = 200000, .write_capacity = 80};
  c.tables.req_to_token = random_table(rng, 9, 5000, false);
  for (Int r = 0; r < 80; ++r) {
    c.tables.rows.push_back(pick(rng, 0, 8));
    c.tables.prefix_lens.push_back(pick(rng, 0, 3) == 0 ? 0 : pick(rng, 0, 5000));
    c.tables.extend_lens.push_back(pick(rng, 0, 2));
  }
  EXPECT_EQ(run(c), "");
}

// ---------------------------------------------------------------- a whole engine

// Steps of requests that grow, share prefixes and hold distinct slots: nothing may be reported.
// Then one fault: it must be, where the specification says.
class History {
 public:
  explicit History(std::uint64_t seed)
      : rng_(seed),
        endpoint_(kSlots, 64),
        cells_(static_cast<std::size_t>(kRows * kWidth)),
        tokens_(cells_.size()) {
    std::iota(free_.begin(), free_.end(), Int{1});
    std::ranges::shuffle(free_, rng_);
    for (std::uint8_t& b : kv_) b = static_cast<std::uint8_t>(rng_());
    endpoint_.tag = LaunchTag::tail_k_full;
    endpoint_.mode = RealKvHashMode::all;
    endpoint_.sources = {{.tensor = TensorView(kv_.data(), DType::u8, {kSlots, 48}),
                          .page_size = 1,
                          .num_bytes_per_token = 48,
                          .read_bytes = 48}};
  }

  /// Every request writes some tokens; before that all prefixes are verified.
  void step() {
    std::vector<Int> rows;
    std::vector<Int> prefix;
    std::vector<Int> extend;
    oracle::Tokens t;
    written_ = lengths_;
    for (Int row = 1; row < kRows; ++row) {
      Int& length = lengths_[static_cast<std::size_t>(row)];
      if (length == 0 && row > 1 && pick(rng_, 0, 2) == 0) share(row - 1, row);
      const Int grow = std::min(pick(rng_, 0, 3), kWidth - length);
      rows.push_back(row);
      prefix.push_back(length);
      extend.push_back(grow);
      for (Int i = 0; i < grow; ++i, ++length) {
        cell(row, length) = static_cast<std::int32_t>(free_.back());
        token(row, length) = static_cast<std::int32_t>(pick(rng_, 0, 1000));
        t.ids.push_back(token(row, length));
        t.positions.push_back(length);
        t.slots.push_back(free_.back());
        free_.pop_back();
      }
    }
    HostVerifyPlan verify_plan(kRows * kWidth);
    HostWritePlan write_plan(kRows);
    make_plan(rows, prefix, extend, verify_plan, write_plan);
    verify(endpoint_.context(), verify_plan.view(), true);
    write(endpoint_.context(), write_plan.view(), t.input());
  }

  /// Verifies everything.
  void check() {
    std::vector<Int> rows;
    std::vector<Int> prefix;
    for (Int row = 1; row < kRows; ++row) {
      rows.push_back(row);
      prefix.push_back(lengths_[static_cast<std::size_t>(row)]);
    }
    std::vector<Int> extend(rows.size());
    HostVerifyPlan verify_plan(kRows * kWidth);
    HostWritePlan write_plan(kRows);
    make_plan(rows, prefix, extend, verify_plan, write_plan);
    verify(endpoint_.context(), verify_plan.view(), true);
  }

  std::int32_t& cell(Int row, Int position) {
    return cells_[static_cast<std::size_t>(row * kWidth + position)];
  }
  std::int32_t& token(Int row, Int position) {
    return tokens_[static_cast<std::size_t>(row * kWidth + position)];
  }
  Int length(Int row) const { return lengths_[static_cast<std::size_t>(row)]; }
  Endpoint& endpoint() { return endpoint_; }
  std::vector<std::uint8_t>& kv() { return kv_; }
  Rng& rng() { return rng_; }

  /// Reasons reported for a slot.
  Int bits_at(Int slot) const {
    Int bits = 0;
    for (const ViolationRow& r : endpoint_.ring) {
      if (r.slot == slot) bits |= r.fail_reason_bits;
    }
    return bits;
  }

  static constexpr Int kRows = 6, kWidth = 40, kSlots = 400;

 private:
  void share(Int from, Int to) {
    const Int n = pick(rng_, 0, written_[static_cast<std::size_t>(from)]);
    for (Int i = 0; i < n; ++i) {
      cell(to, i) = cell(from, i);
      token(to, i) = token(from, i);
    }
    lengths_[static_cast<std::size_t>(to)] = n;
  }

  void make_plan(std::vector<Int>& rows, std::vector<Int>& prefix, std::vector<Int>& extend,
                 HostVerifyPlan& verify_plan, HostWritePlan& write_plan) {
    std::vector<Int> valid = prefix;
    plan(verify_plan.view(), write_plan.view(),
         {.req_pool_indices = view(rows),
          .prefix_lens = view(prefix),
          .extend_seq_lens = view(extend),
          .req_to_token = view(cells_, kRows, kWidth),
          .verify_capacity = kRows * kWidth,
          .req_to_verify_expected_tokens = view(tokens_, kRows, kWidth),
          .req_to_verify_expected_tokens_valid_lens = view(valid)});
  }

  Rng rng_;
  Endpoint endpoint_;
  std::vector<std::uint8_t> kv_ = std::vector<std::uint8_t>(kSlots * 48);
  std::vector<Int> free_ = std::vector<Int>(kSlots - 1);
  std::vector<std::int32_t> cells_, tokens_;
  std::vector<Int> lengths_ = std::vector<Int>(kRows);
  std::vector<Int> written_;  // lengths before the step: what another request may share
};

TEST(SglangHistory, NothingIsReportedWithoutAFault) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    History h(seed);
    for (int i = 0; i < 12; ++i) h.step();
    h.check();
    ASSERT_EQ(h.endpoint().violations, 0) << "seed " << seed;
    ASSERT_EQ(h.endpoint().out_of_range, 0) << "seed " << seed;
  }
}

// Calls fault(history, row, position) with an entry that has a successor.
void with_fault(const std::function<void(History&, Int, Int)>& fault) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    History h(seed);
    for (int i = 0; i < 12; ++i) h.step();
    const Int row = pick(h.rng(), 1, History::kRows - 1);
    if (h.length(row) < 3) continue;
    ++tried;
    SCOPED_TRACE("seed " + std::to_string(seed));
    fault(h, row, pick(h.rng(), 1, h.length(row) - 2));
  }
  EXPECT_GT(tried, 50);
}

TEST(SglangHistory, AFlippedByteIsReportedAtItsSlot) {
  with_fault([](History& h, Int row, Int position) {
    const Int slot = h.cell(row, position);
    h.kv()[static_cast<std::size_t>(slot * 48 + pick(h.rng(), 0, 47))] ^= 1u;
    h.check();
    EXPECT_EQ(h.bits_at(slot), 4);
  });
}

TEST(SglangHistory, ACorruptedRecordIsReportedThereAndAtItsSuccessor) {
  with_fault([](History& h, Int row, Int position) {
    const Int slot = h.cell(row, position);
    const Int successor = h.cell(row, position + 1);
    Record r = h.endpoint().record(slot);
    const Int field = pick(h.rng(), 0, 2);
    (field == 0 ? r.token : field == 1 ? r.position : r.prev_hash) ^= 1;
    h.endpoint().set(slot, r);
    h.check();
    EXPECT_EQ(h.bits_at(slot), field == 0 ? 32 : field == 1 ? 2 : 1);
    EXPECT_EQ(h.bits_at(successor), 1);
  });
}

TEST(SglangHistory, ARemappedCellIsReported) {
  with_fault([](History& h, Int row, Int position) {
    const Int foreign = h.cell(row, position + 1);
    h.cell(row, position) = static_cast<std::int32_t>(foreign);
    h.check();
    EXPECT_EQ(h.bits_at(foreign) & 3, 3);
  });
}

TEST(SglangHistory, ACellOutsideTheBufferIsCountedAndNotReported) {
  with_fault([](History& h, Int row, Int position) {
    h.cell(row, position) = static_cast<std::int32_t>(History::kSlots + pick(h.rng(), 0, 5));
    h.check();
    // The cell itself, and its successor, whose predecessor it is.
    EXPECT_EQ(h.endpoint().out_of_range, 2);
    EXPECT_EQ(h.endpoint().violations, 0);
  });
}

}  // namespace
}  // namespace serinus::canary::sglang
