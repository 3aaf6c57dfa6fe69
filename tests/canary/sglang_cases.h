// Random and hostile inputs for the sglang format: what the CPU's tests and the GPU's both run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <serinus/canary_sglang.h>

#include "tests/canary/sglang_oracle.h"

namespace serinus::canary::sglang {

using oracle::Int;
using Rng = std::mt19937_64;

inline Int pick(Rng& rng, Int low, Int high) {
  return std::uniform_int_distribution<Int>(low, high)(rng);
}

// Any int64, with a liking for the ends and for small numbers.
inline Int hostile(Rng& rng) {
  switch (pick(rng, 0, 5)) {
    case 0:
      return INT64_MIN + pick(rng, 0, 2);
    case 1:
      return INT64_MAX - pick(rng, 0, 2);
    case 2:
      return pick(rng, -3, 40);
    case 3:
      return Int{1} << pick(rng, 0, 62);
    default:
      return static_cast<Int>(rng());
  }
}

// Endpoint with records and sources. Bytes are shared by copies of the endpoint.
struct World {
  Endpoint endpoint;
  std::vector<std::vector<std::uint8_t>> kv;

  World(Rng& rng, Int num_slots) : endpoint(num_slots, pick(rng, 0, 20), 32 + 8 * pick(rng, 0, 2)) {
    endpoint.tag = static_cast<LaunchTag>(pick(rng, 0, kNumLaunchTags - 1));
    endpoint.mode = static_cast<RealKvHashMode>(pick(rng, 0, 2));
    for (std::uint8_t& b : endpoint.bytes) b = static_cast<std::uint8_t>(rng());
    const Int n = pick(rng, 0, 4);
    for (Int i = 0; i < n; ++i) {
      const Int page = pick(rng, 1, 5);
      const Int token_bytes = 16 * pick(rng, 1, 4);
      const Int width = page * token_bytes + 16 * pick(rng, 0, 2);
      const Int stride = width + (pick(rng, 0, 1) == 0 ? 0 : 16);
      // Most sources hold all slots, some are too short.
      const Int rows = num_slots / page + (pick(rng, 0, 3) == 0 ? 0 : 1);
      kv.emplace_back(static_cast<std::size_t>(rows * stride));
      for (std::uint8_t& b : kv.back()) b = static_cast<std::uint8_t>(rng());
      endpoint.sources.push_back(
          {.tensor = TensorView(kv.back().data(), DType::u8, {rows, width}, {stride, 1}),
           .page_size = page,
           .num_bytes_per_token = token_bytes,
           .read_bytes = 16 * pick(rng, 1, token_bytes / 16)});
    }
  }
};

struct VerifyCase {
  std::uint64_t world_seed = 0;
  Int num_slots = 0;
  std::vector<Int> slots{}, tokens{}, positions{}, prev_slots{};
  std::int32_t num_valid = 0, enable = 0;
  bool check_tokens = false;
};

inline VerifyCase random_verify(Rng& rng, bool all_hostile) {
  VerifyCase c{.world_seed = rng(), .num_slots = pick(rng, 1, 60)};
  const Int n = pick(rng, 0, 150);
  // Chains as plans have them, single odd entries, or nothing but odd ones.
  Int slot = pick(rng, 1, 60);
  for (Int i = 0; i < n; ++i) {
    const bool odd = all_hostile || pick(rng, 0, 9) == 0;
    const Int next = pick(rng, 0, c.num_slots - 1);
    c.prev_slots.push_back(odd ? hostile(rng) : pick(rng, 0, 5) == 0 ? pick(rng, -1, 0) : slot);
    c.slots.push_back(odd ? hostile(rng) : next);
    c.tokens.push_back(odd ? hostile(rng) : -1);
    c.positions.push_back(odd ? hostile(rng) : i);
    slot = next;
  }
  c.num_valid = static_cast<std::int32_t>(pick(rng, 0, 3) == 0 ? hostile(rng) : n);
  c.enable = static_cast<std::int32_t>(pick(rng, 0, 9) == 0 ? 0 : pick(rng, -2, 2));
  c.check_tokens = pick(rng, 0, 1) == 1;
  return c;
}

struct WriteCase {
  std::uint64_t world_seed = 0;
  Int num_slots = 0;
  HostWritePlan plan{1};
  oracle::Tokens tokens{};
  std::int32_t chain_position_assert = 0, violations = 0;
};

inline WriteCase random_write(Rng& rng, bool all_hostile, Int num_tokens) {
  WriteCase c{.world_seed = rng(), .num_slots = num_tokens > 1000 ? 5000 : pick(rng, 1, 80)};
  const Int capacity = pick(rng, 1, 12);
  c.plan = HostWritePlan(capacity);
  Int end = 0;
  for (Int r = 0; r < capacity; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const bool odd = all_hostile || pick(rng, 0, 19) == 0;
    c.plan.seeds[at] = odd ? hostile(rng) : pick(rng, -1, c.num_slots - 1);
    end = std::min(num_tokens, end + pick(rng, 0, 2 * num_tokens / capacity));
    c.plan.offsets[at + 1] = odd ? hostile(rng) : end;
  }
  if (all_hostile) c.plan.offsets[0] = hostile(rng);
  c.plan.num_valid_reqs = static_cast<std::int32_t>(pick(rng, 0, 3) == 0 ? hostile(rng) : capacity);
  c.tokens.compare = pick(rng, 0, 1) == 1;
  for (Int i = 0; i < num_tokens; ++i) {
    const bool odd = (all_hostile && pick(rng, 0, 1) == 0) || pick(rng, 0, 19) == 0;
    c.tokens.ids.push_back(odd ? hostile(rng) : pick(rng, 0, 99));
    c.tokens.positions.push_back(odd ? hostile(rng) : i);
    c.tokens.slots.push_back(odd ? hostile(rng) : pick(rng, 0, c.num_slots - 1));
    c.tokens.expected_ids.push_back(odd ? pick(rng, 0, 3) : c.tokens.ids.back());
    c.tokens.expected_positions.push_back(odd ? pick(rng, 0, 3) : i);
  }
  c.chain_position_assert = static_cast<std::int32_t>(pick(rng, 0, 1));
  c.violations = static_cast<std::int32_t>(pick(rng, 0, 9) == 0 ? hostile(rng) : pick(rng, 0, 3));
  return c;
}

struct PlanCase {
  oracle::Tables tables{};
  Int verify_capacity = 1, write_capacity = 1;
};

inline std::vector<std::vector<std::int32_t>> random_table(Rng& rng, Int rows, Int width,
                                                           bool odd) {
  std::vector<std::vector<std::int32_t>> t(static_cast<std::size_t>(rows));
  for (auto& row : t) {
    for (Int i = 0; i < width; ++i)
      row.push_back(static_cast<std::int32_t>(odd ? hostile(rng) : pick(rng, -1, 50)));
  }
  return t;
}

inline std::vector<std::int32_t> flat(const std::vector<std::vector<std::int32_t>>& table) {
  std::vector<std::int32_t> out;
  for (const auto& row : table) out.insert(out.end(), row.begin(), row.end());
  return out;
}

/// The case as arguments; `cells` and `expected` hold the tables as they lie in memory.
inline PlanInput input_of(PlanCase& c, std::vector<std::int32_t>& cells,
                          std::vector<std::int32_t>& expected) {
  oracle::Tables& t = c.tables;
  cells = flat(t.req_to_token);
  PlanInput in{.req_pool_indices = view(t.rows),
               .prefix_lens = view(t.prefix_lens),
               .extend_seq_lens = view(t.extend_lens),
               .req_to_token = view(cells, static_cast<Int>(t.req_to_token.size()),
                                    static_cast<Int>(t.req_to_token[0].size())),
               .swa_window_size = t.window,
               .verify_capacity = c.verify_capacity,
               .kv_token_id_vs_position_offset = t.offset};
  if (t.mapping) in.full_to_swa_index_mapping = view(*t.mapping);
  if (t.expected) {
    expected = flat(*t.expected);
    in.req_to_verify_expected_tokens = view(expected, static_cast<Int>(t.expected->size()),
                                            static_cast<Int>((*t.expected)[0].size()));
    in.req_to_verify_expected_tokens_valid_lens = view(t.valid_lens);
  }
  return in;
}

inline PlanCase random_plan(Rng& rng, bool all_hostile) {
  PlanCase c{.verify_capacity = pick(rng, 1, 120), .write_capacity = pick(rng, 1, 12)};
  oracle::Tables& t = c.tables;
  const Int rows = pick(rng, 1, 6);
  const Int width = pick(rng, 1, 30);
  t.req_to_token = random_table(rng, rows, width, all_hostile);
  const Int bs = pick(rng, 0, c.write_capacity);
  for (Int r = 0; r < bs; ++r) {
    const bool odd = all_hostile || pick(rng, 0, 15) == 0;
    t.rows.push_back(odd ? hostile(rng) : pick(rng, 0, rows - 1));
    t.prefix_lens.push_back(odd ? hostile(rng) : pick(rng, -1, width));
    t.extend_lens.push_back(odd ? hostile(rng) : pick(rng, -1, 5));
    t.valid_lens.push_back(odd ? hostile(rng) : pick(rng, 0, width));
  }
  if (pick(rng, 0, 1) == 1) {
    t.mapping.emplace();
    const Int n = pick(rng, 1, 60);
    for (Int i = 0; i < n; ++i) t.mapping->push_back(all_hostile ? hostile(rng) : pick(rng, 0, 30));
    t.window = all_hostile ? hostile(rng) : pick(rng, 0, 10);
  }
  if (pick(rng, 0, 1) == 1) {
    t.expected = random_table(rng, pick(rng, 1, 6), pick(rng, 1, 30), all_hostile);
    t.offset = all_hostile ? hostile(rng) : pick(rng, 0, 1);
  }
  return c;
}

}  // namespace serinus::canary::sglang
