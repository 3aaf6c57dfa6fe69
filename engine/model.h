// A "model" whose KV is known: the bytes of a token are a function of its true prefix (as with a
// real model), of the layer and of the segment, and of nothing else. Made to run at the speed of
// memory.
#pragma once

#include <cstdint>
#include <span>

#include "engine/kv_pool.h"

namespace serinus::engine {

/// Fills `out` with the bytes of source number `source` (layer * segments + segment) of a token
/// whose prefix hashes to `prefix_state`.
void model_bytes(std::uint64_t prefix_state, int source, std::span<std::uint8_t> out) noexcept;

/// Writes a token's KV into `slot`, all layers, all segments. The first token of a page also fills
/// the page's padding with junk (made from `junk`), which means nothing and must never be looked
/// at.
void model_write(const KvPool& pool, std::int64_t slot, std::uint64_t prefix_state,
                 std::uint64_t junk) noexcept;

}  // namespace serinus::engine
