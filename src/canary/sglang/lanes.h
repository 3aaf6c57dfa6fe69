// Hashing many slots at once.
#pragma once

#include <cstdint>

#include "canary/sglang/params.h"

namespace serinus::canary::sglang {

/// Whether verify would find anything wrong with entries first, first + 1, ... of the plan, given
/// their records, their predecessors' and the fingerprints of their bytes.
bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, const Record* stored,
               const Record* predecessors, const std::uint64_t* real_kv_hashes) noexcept;

}  // namespace serinus::canary::sglang
