// Checking many records at once.
#pragma once

#include <cstdint>

#include <serinus/canary.h>

namespace serinus::canary {

inline constexpr std::int64_t kGroup = 32;  ///< records that are checked together
inline constexpr std::int64_t kLinesAhead =
    64;  ///< cells between asking for a record and reading it

/// Records at consecutive positions, in the slots of a table row.
struct RecordGroup {
  const Record* records = nullptr;  ///< of the pool, by slot
  const std::uint8_t* marks = nullptr;
  /// kGroup of them, then kLinesAhead that are asked for; each exists or is negative: none.
  const std::int32_t* slots = nullptr;
  std::uint32_t position = 0;            ///< of the first
  const std::int32_t* tokens = nullptr;  ///< expected, negative = not known; null = none known

  void ask_for(std::int64_t k) const noexcept {
    // A slot of -1 asks for what lies before the array: that reads nothing.
    __builtin_prefetch(records + slots[k]);
    __builtin_prefetch(marks + slots[k]);
  }
};

/// Whether there are kGroup records, all of the first one's owner and life with its mark, which
/// stand at `position`, position + 1, ..., hold the tokens, and continue each other's chains, the
/// first one `chain`. If so, `chain` becomes the last one's. False also for the five of 2^61 chains
/// whose stored form is not their class's smallest number.
bool group_holds(const RecordGroup& group, std::uint64_t& chain) noexcept;

}  // namespace serinus::canary
