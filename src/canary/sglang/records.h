// What verify and write share on the CPU: records by slot, and the ring.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "canary/sglang/entry.h"

namespace serinus::canary::sglang {

/// Records need not be aligned: the buffer is bytes.
inline void copy(const ContextParams& c, std::int64_t slot, Record& to) noexcept {
  std::memcpy(&to, c.records + slot * c.stride, sizeof to);
}
inline Record load(const ContextParams& c, std::int64_t slot) noexcept {
  Record r;
  copy(c, slot, r);
  return r;
}
/// In two halves that are put together in registers: a record assembled in memory first would wait
/// for its own stores, and four stores a record fill the store queue where lines are slow to come.
inline void store(const ContextParams& c, std::int64_t slot, const Record& r) noexcept {
  typedef std::int64_t Half __attribute__((vector_size(16)));
  const Half what{r.token, r.position}, chain{r.prev_hash, r.real_kv_hash};
  static_assert(offsetof(Record, position) == 8 && offsetof(Record, prev_hash) == 16 &&
                offsetof(Record, real_kv_hash) == 24);
  std::uint8_t* const at = c.records + slot * c.stride;
  std::memcpy(at, &what, sizeof what);
  std::memcpy(at + sizeof what, &chain, sizeof chain);
}
/// What a range of entries adds to the ring and the counters. Ranges are counted apart and
/// committed in order, so that nothing depends on how the work was split.
struct Tally {
  explicit Tally(const ContextParams& c) noexcept
      : room(std::max<std::int64_t>(0, c.ring_capacity - *c.violation_write_index)) {}

  /// `entry` of the plan or token of the input.
  void add(const ViolationRow& row, std::int64_t entry) {
    ++violations;
    if (static_cast<std::int64_t>(rows.size()) < room) rows.push_back({row, entry});
  }

  /// As if the entries of `later` had been added here.
  void append(const Tally& later) {
    const auto free = room - static_cast<std::int64_t>(rows.size());
    const auto taken = std::min<std::int64_t>(free, static_cast<std::int64_t>(later.rows.size()));
    rows.insert(rows.end(), later.rows.begin(), later.rows.begin() + taken);
    violations += later.violations;
    entries += later.entries;
    out_of_range += later.out_of_range;
  }

  void commit(const ContextParams& c) const noexcept {
    // The counter wraps as the GPU's does; a negative one stores nothing.
    auto count = static_cast<std::uint32_t>(*c.violation_write_index);
    for (const auto& [row, entry] : rows) {
      const auto at = static_cast<std::int32_t>(count++);
      if (!within(at, c.ring_capacity)) continue;
      std::memcpy(c.ring + at, &row, sizeof row);
      if (c.violation_entries != nullptr) c.violation_entries[at] = entry;
    }
    count += static_cast<std::uint32_t>(violations - static_cast<std::int64_t>(rows.size()));
    *c.violation_write_index = static_cast<std::int32_t>(count);
    add_to(c.slot_run_counter, entries);
    if (c.out_of_range_counter != nullptr) add_to(c.out_of_range_counter, out_of_range);
  }

  struct Row {
    ViolationRow row;
    std::int64_t entry;
  };
  std::vector<Row> rows{};  ///< the first ones, as many as the ring has room for
  std::int64_t room;
  std::int64_t violations = 0;
  std::int64_t entries = 0;
  std::int64_t out_of_range = 0;

  static void add_to(std::int64_t* counter, std::int64_t n) noexcept {
    *counter = i64(u64(*counter) + u64(n));
  }
};

/// Entries that are handled together: their misses overlap, their bytes are folded side by side.
inline constexpr std::int64_t kGroup = 64;

// real_kv.cpp
/// For `count` <= kGroup slots of any value: hashes[i] = the fingerprint of slots[i]; ok[i] = false
/// and nothing read where the slot lies outside the buffer or outside a source.
void fold(const ContextParams& c, const std::int64_t* slots, std::int64_t count,
          std::uint64_t* hashes, bool* ok) noexcept;

}  // namespace serinus::canary::sglang
