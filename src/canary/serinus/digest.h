// Digests of many slots at once, with the next rows already on their way from memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/canary.h>

#include "canary/serinus/hash.h"

namespace serinus::canary {

/// A source with its keys worked out. The caller has checked that every slot lies in its buffer.
struct PreparedSource {
  const std::uint8_t* base = nullptr;  ///< of token 0 of page 0
  std::int64_t page_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t bytes = 0;
  std::uint64_t length_term = 0;
  std::vector<hash::BlockKeys> keys;  ///< of its blocks

  const std::uint8_t* at(std::int64_t page, std::int64_t token) const noexcept {
    return base + page * page_stride + token * token_stride;
  }
};

std::vector<PreparedSource> prepare(std::span<const Source> sources);

/// Whether all the bytes of `slot` lie in the source's buffer. 64-bit hostile.
bool holds(const Source& source, std::int64_t page_size, std::int64_t slot) noexcept;

/// digests[i] = digest of slots[i]. `contributions`, if not null, receives source by source what
/// each adds: sources.size() values a slot. Depth must not be none.
void digest_slots(std::span<const PreparedSource> sources, std::int64_t page_size, Depth depth,
                  std::span<const std::int64_t> slots, std::uint64_t* digests,
                  std::uint64_t* contributions = nullptr) noexcept;

/// Bytes that the digest of one slot reads.
std::int64_t digested_bytes(std::span<const Source> sources, Depth depth) noexcept;

}  // namespace serinus::canary
