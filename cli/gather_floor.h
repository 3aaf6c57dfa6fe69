// The least that a sparse MLA prefill does: bring the rows that the indices name into the SMs. A
// kernel that does only this, for a floor to measure against.
#pragma once

#include <cstdint>

namespace serinus::bench {

/// Gathers rows of d_qk bytes (512 or 576), topk a token (a multiple of 128), and keeps nothing.
void gather_rows(const std::uint8_t* kv, const std::int32_t* indices, std::int64_t s_q,
                 std::int64_t topk, std::int64_t d_qk, int multiprocessors);

}  // namespace serinus::bench
