// The sglang format once more, written from the specification alone: slow, one entry at a time,
// with none of the library's code. Tests compare the two.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang::oracle {

using Word = std::uint64_t;
using Int = std::int64_t;

inline Word sigma(Word x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

inline Word anchor() {
  return sigma(0xC0FFEE1234567890u);
}

inline Word hash_of(const Record& r) {
  return sigma(sigma(sigma(static_cast<Word>(r.prev_hash)) ^ static_cast<Word>(r.token)) ^
               static_cast<Word>(r.position));
}

/// The words of a slot in one source, or nothing where they leave its bytes.
inline std::optional<Word> fold_source(const RealKvSource& s, RealKvHashMode mode, Int slot) {
  if (slot < 0) return std::nullopt;
  const Int element = size_of(s.tensor.dtype);
  const Int rows = s.tensor.shape[0];
  const Int width = s.tensor.shape[1] * element;
  const auto stride = static_cast<__int128>(s.tensor.strides[0] * element);
  const __int128 extent = rows == 0 ? 0 : (rows - 1) * stride + width;
  const __int128 begin = slot / s.page_size * stride +
                         static_cast<__int128>(slot % s.page_size) * s.num_bytes_per_token;
  const Int n = mode == RealKvHashMode::partial ? 16 : s.read_bytes;
  if (begin + n > extent) return std::nullopt;
  Word f = 0;
  for (Int at = 0; at < n; at += 8) {
    Word w = 0;
    for (Int b = 0; b < 8; ++b)
      w |= static_cast<Word>(s.tensor.as<std::uint8_t>()[static_cast<Int>(begin) + at + b])
           << (8 * b);
    f = sigma(f ^ w);
  }
  return f;
}

inline std::optional<Word> fold(const Endpoint& e, Int slot) {
  if (slot < 0 || slot >= e.num_slots()) return std::nullopt;
  Word all = 0;
  if (e.mode == RealKvHashMode::none) return all;
  for (const RealKvSource& s : e.sources) {
    const std::optional<Word> f = fold_source(s, e.mode, slot);
    if (!f) return std::nullopt;
    all = sigma(all ^ *f);
  }
  return all;
}

inline void push(Endpoint& e, const ViolationRow& row, Int entry) {
  const Int at = e.violations;
  if (at >= 0 && at < static_cast<Int>(e.ring.size())) {
    e.ring[static_cast<std::size_t>(at)] = row;
    e.entries[static_cast<std::size_t>(at)] = entry;
  }
  e.violations = static_cast<std::int32_t>(static_cast<std::uint32_t>(e.violations) + 1u);
}

inline void verify(Endpoint& e, const HostVerifyPlan& plan, bool check_tokens) {
  e.kernel_runs += 1;
  if (plan.enable == 0) return;
  const Int capacity = static_cast<Int>(plan.slots.size());
  const Int n = plan.num_valid < 0 || plan.num_valid > capacity ? capacity : plan.num_valid;
  for (Int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    e.slot_runs += 1;
    const Int slot = plan.slots[at];
    const Int prev = plan.prev_slots[at];
    if (slot == 0) continue;
    const std::optional<Word> fingerprint = fold(e, slot);
    if (!fingerprint || prev >= e.num_slots()) {
      e.out_of_range += 1;
      continue;
    }
    const Record r = e.record(slot);
    Word expected = static_cast<Word>(r.prev_hash);
    if (prev < 0) expected = anchor();
    if (prev > 0) expected = hash_of(e.record(prev));
    const Int token = check_tokens ? plan.tokens[at] : -1;
    Int bits = 0;
    if (static_cast<Word>(r.prev_hash) != expected) bits += 1;
    if (r.position != plan.positions[at]) bits += 2;
    if (static_cast<Word>(r.real_kv_hash) != *fingerprint) bits += 4;
    if (token != -1 && token != r.token) bits += 32;
    if (bits != 0) {
      push(e,
           {static_cast<Int>(e.tag), slot, r.position, r.token, token, r.prev_hash,
            static_cast<Int>(expected), bits},
           i);
    }
  }
}

struct Tokens {
  std::vector<Int> ids, positions, slots;
  bool compare = false;
  std::vector<Int> expected_ids, expected_positions;
  std::vector<Int> chain_hashes{};  ///< empty: none are given

  WriteInput input() {
    WriteInput in{
        .input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)};
    if (compare) {
      in.enable_write_input_assert = true;
      in.expected_input_tokens = view(expected_ids);
      in.expected_input_positions = view(expected_positions);
    }
    if (!chain_hashes.empty()) in.chain_hashes = view(chain_hashes);
    return in;
  }
};

inline void write(Endpoint& e, const HostWritePlan& plan, const Tokens& t) {
  e.kernel_runs += 1;
  const Int capacity = static_cast<Int>(plan.seeds.size());
  const Int n =
      plan.num_valid_reqs < 0 || plan.num_valid_reqs > capacity ? capacity : plan.num_valid_reqs;
  const Int num_tokens = static_cast<Int>(t.ids.size());
  const Endpoint before = e;  // seeds are read before anything is written
  for (Int r = 0; r < n; ++r) {
    Int begin = plan.offsets[static_cast<std::size_t>(r)];
    Int end = plan.offsets[static_cast<std::size_t>(r + 1)];
    if (end <= begin) continue;
    if (begin < 0 || end > num_tokens) e.out_of_range += 1;
    begin = begin < 0 ? 0 : begin;
    end = end > num_tokens ? num_tokens : end;
    const Int seed = plan.seeds[static_cast<std::size_t>(r)];
    const bool seed_exists = seed < e.num_slots();
    Word h = anchor();
    bool check = false;
    Int q = 0;
    if (seed >= 0 && seed_exists) {
      h = hash_of(before.record(seed));
      check = e.chain_position_assert != 0;
      q = before.record(seed).position;
    }
    for (Int i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const Int slot = t.slots[at];
      const Int token = t.ids[at];
      const Int position = t.positions[at];
      if (slot < 0) continue;
      e.slot_runs += 1;
      const std::optional<Word> fingerprint = fold(e, slot);
      if (!fingerprint || !seed_exists) {
        e.out_of_range += 1;
        continue;
      }
      const auto row = [&](Int expected_token, Int expected_position, Int bits) {
        push(e,
             {static_cast<Int>(e.tag), slot, position, token, expected_token, static_cast<Int>(h),
              expected_position, bits},
             i);
      };
      if (t.compare) {
        const Int bits =
            (token != t.expected_ids[at] ? 8 : 0) + (position != t.expected_positions[at] ? 16 : 0);
        if (bits != 0) row(t.expected_ids[at], t.expected_positions[at], bits);
      }
      if (check) {
        const Int next = static_cast<Int>(static_cast<Word>(q) + 1u);
        if (position != next) row(token, next, 16);
        q = position;
      }
      e.set(slot, {token, position, static_cast<Int>(h), static_cast<Int>(*fingerprint)});
      h = hash_of({token, position, static_cast<Int>(h), 0});
    }
  }
}

/// What plan() reads, owned.
struct Tables {
  std::vector<Int> rows, prefix_lens, extend_lens;
  std::vector<std::vector<std::int32_t>> req_to_token;  // rectangular
  Int window = 0;
  std::optional<std::vector<Int>> mapping;
  std::optional<std::vector<std::vector<std::int32_t>>> expected;
  std::vector<Int> valid_lens;
  Int offset = 0;
};

struct Planned {
  Int total = 0;
  std::vector<Int> slots, positions, prev_slots, tokens;  // empty when the plan is disabled
  std::vector<Int> offsets, seeds;                        // of the requests
};

inline Planned plan(const Tables& t, Int capacity) {
  Planned out;
  const auto cell = [&](Int row, Int column) -> Int {
    if (row < 0 || row >= static_cast<Int>(t.req_to_token.size()) || column < 0 ||
        column >= static_cast<Int>(t.req_to_token[0].size()))
      return INT64_MAX;
    const Int slot =
        t.req_to_token[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)];
    if (!t.mapping || slot < 0) return slot;
    const Int last = static_cast<Int>(t.mapping->size()) - 1;
    return (*t.mapping)[static_cast<std::size_t>(slot > last ? last : slot)];
  };
  const auto saturating = [](Int a, Int b) { return a > INT64_MAX - b ? INT64_MAX : a + b; };
  Int written = 0;
  std::vector<std::pair<Int, Int>> ranges;
  for (std::size_t r = 0; r < t.rows.size(); ++r) {
    const Int prefix = t.rows[r] != 0 && t.prefix_lens[r] > 0 ? t.prefix_lens[r] : 0;
    const Int extend = t.rows[r] != 0 && t.extend_lens[r] > 0 ? t.extend_lens[r] : 0;
    const Int start = t.window > 0 && prefix > t.window ? prefix - t.window : 0;
    ranges.emplace_back(start, prefix);
    out.total = saturating(out.total, prefix - start);
    out.offsets.push_back(written);
    written = saturating(written, extend);
    out.seeds.push_back(prefix > 0 && extend > 0 ? cell(t.rows[r], prefix - 1) : -1);
  }
  out.offsets.push_back(written);
  if (out.total > capacity) return out;
  for (std::size_t r = 0; r < t.rows.size(); ++r) {
    for (Int pos = ranges[r].first; pos < ranges[r].second; ++pos) {
      out.slots.push_back(cell(t.rows[r], pos));
      out.positions.push_back(pos);
      out.prev_slots.push_back(pos == 0 ? -1 : cell(t.rows[r], pos - 1));
      Int token = -1;
      Int column = 0;
      if (t.expected && !__builtin_add_overflow(pos, t.offset, &column) && column >= 0 &&
          column < t.valid_lens[r] && t.rows[r] >= 0 &&
          t.rows[r] < static_cast<Int>(t.expected->size()) &&
          column < static_cast<Int>((*t.expected)[0].size()))
        token =
            (*t.expected)[static_cast<std::size_t>(t.rows[r])][static_cast<std::size_t>(column)];
      out.tokens.push_back(token);
    }
  }
  return out;
}

}  // namespace serinus::canary::sglang::oracle
