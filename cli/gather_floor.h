// The least that a sparse MLA prefill does: bring the rows that the indices name into the SMs. A
// kernel that does only this, for a floor to measure against.
#pragma once

#include <cstdint>

namespace serinus::cli {

/// Gathers rows of d_qk bytes (512 or 576), topk a token (a multiple of 128), and keeps nothing.
/// `kv` and `indices` on the current device: e4m3 [s_kv, d_qk], int32 [s_q, topk].
void gather_rows(const void* kv, const void* indices, std::int64_t s_q, std::int64_t topk,
                 std::int64_t d_qk, int multiprocessors);

}  // namespace serinus::cli
