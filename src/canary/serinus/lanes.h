// Checking many records at once.
#pragma once

#include <cstdint>

namespace serinus::canary {

inline constexpr std::int64_t kGroup = 32;  ///< records that are checked together

/// Records of consecutive positions, field by field.
struct RecordGroup {
  alignas(64) std::uint64_t where[kGroup];       ///< position << 32 | token, as in the record
  alignas(64) std::uint64_t chains[kGroup + 1];  ///< the first is that of the record before
};

/// Whether the records stand at `position`, position + 1, ..., continue each other's chains, and
/// hold the `tokens` that are known there (kGroup of them, negative = not known; null = none).
/// False also for the five of 2^61 chains whose stored form is not their class's smallest number.
bool group_holds(const RecordGroup& group, std::uint32_t position,
                 const std::int32_t* tokens) noexcept;

}  // namespace serinus::canary
