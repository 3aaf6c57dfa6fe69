// What a backend of the sparse MLA prefill gets: one checked call, each fact once. A backend never
// re-checks, never throws for an argument, and on CUDA never allocates or synchronises.
#pragma once

#include <cstddef>
#include <cstdint>

#include <serinus/sparse_mla.h>

namespace serinus::sparse_mla {

inline constexpr int kDV = 512;  ///< d_v, the only one

/// Guaranteed: d_qk is 512 or 576; h_q, topk >= 1; s_q, s_kv >= 0; kv and stride_kv_s_kv are
/// multiples of 16 bytes, the strides of q are not; outputs are dense and do not overlap.
/// Strides count elements (of q and kv: bytes), are 64-bit and may be 0 or negative.
struct Params {
  std::int64_t s_q = 0, s_kv = 0, h_q = 0, d_qk = 0, topk = 0;
  const std::uint8_t* q = nullptr;  // [s_q, h_q, d_qk] e4m3
  std::int64_t stride_q_s_q = 0, stride_q_h_q = 0;
  const std::uint8_t* kv = nullptr;  // [s_kv, 1, d_qk] e4m3
  std::int64_t stride_kv_s_kv = 0;
  const std::int32_t* indices = nullptr;  // [s_q, 1, topk]: anything, also out of range
  std::int64_t stride_indices_s_q = 0;
  float sm_scale = 0;
  const float* q_scale = nullptr;             // one value on the device
  const float* kv_scale = nullptr;            // one value on the device
  const float* attn_sink = nullptr;           // [h_q] or null
  const std::int32_t* topk_length = nullptr;  // [s_q] or null: to be clamped to [0, topk]
  std::uint16_t* out = nullptr;               // [s_q, h_q, kDV] bf16
  float* max_logits = nullptr;                // [s_q, h_q]
  float* lse = nullptr;                       // [s_q, h_q]
  float empty_row_lse = 0;                    // lse of a row with nothing valid: +-inf
  bool p_bf16 = false;                        // CPU: P may be rounded to one bf16
  void* workspace = nullptr;                  // at least workspace_sm90(), 16-byte aligned
};

/// `threads`: 0 = all that the machine has. Allocates its own scratch.
void run_cpu(const Params& p, int threads);

/// Launches on `device` in `stream`. Where this build or the device cannot run it, throws what
/// can_run_sm90 answers.
void run_sm90(const Params& p, Device device, Stream stream);
/// From the sizes alone (they may be unchecked here); 0 where nothing is needed.
std::size_t workspace_sm90(const Params& p, Device device) noexcept;
CanRun can_run_sm90(const Params& p, Device device) noexcept;

}  // namespace serinus::sparse_mla
