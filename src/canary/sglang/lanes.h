// The loops that gain from vectors: many slots hashed at once, and one chain in a vector register.
#pragma once

#include <cstdint>

#include "canary/sglang/look_ahead.h"
#include "canary/sglang/params.h"

namespace serinus::canary::sglang {

/// What entries first, first + 1, ... of a plan have in common.
struct GroupShape {
  bool all_checked = true;  ///< no padding, nothing out of range
  bool a_chain = true;      ///< each one's predecessor is the entry before it, or none
};
GroupShape group_shape(const VerifyParams& p, std::int64_t first, std::int64_t count) noexcept;

/// Whether verify would find anything wrong with entries first, first + 1, ... of the plan, all of
/// them checked, given the fingerprints of their bytes.
bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, bool a_chain,
               const std::uint64_t* real_kv_hashes, VerifyAhead& ahead) noexcept;

/// What became of a run of entries.
struct StampedRun {
  std::int64_t entries = 0;       ///< with a slot to write to
  std::int64_t out_of_range = 0;  ///< of these: not stamped, as there is no such slot
};
/// Stamps entries [begin, end) of a write without bytes, continuing `chain`. Nothing is compared
/// with what was expected.
StampedRun stamp_run(const WriteParams& p, std::int64_t begin, std::int64_t end,
                     std::uint64_t chain) noexcept;

}  // namespace serinus::canary::sglang
