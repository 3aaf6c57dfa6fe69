// Hashing many slots at once.
#pragma once

#include <cstdint>

#include "canary/sglang/params.h"

namespace serinus::canary::sglang {

/// What entries first, first + 1, ... of a plan have in common.
struct GroupShape {
  bool all_checked = true;  ///< no padding, nothing out of range
  bool a_chain = true;      ///< each one's predecessor is the entry before it, or none
};
GroupShape group_shape(const VerifyParams& p, std::int64_t first, std::int64_t count) noexcept;

/// Whether verify would find anything wrong with entries first, first + 1, ... of the plan, given
/// their records, their predecessors' and the fingerprints of their bytes.
bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, const Record* stored,
               const Record* predecessors, const std::uint64_t* real_kv_hashes) noexcept;

}  // namespace serinus::canary::sglang
