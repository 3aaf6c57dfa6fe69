// The end of a row: from sums over all tokens to `max_logits`, `lse` and the factor of `out`.
// Shared by the epilogue and by the merging of splits.
#pragma once

#include "gpu/ptx/math.cuh"
#include "sparse_mla/sm90/params.h"

namespace serinus::sparse_mla::sm90 {

inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLog2e = 1.4426950408889634f;

/// Weights are 2^kWeightShift exp(logit - reference): 64 at the reference, so that none passes
/// e4m3's 448 and small ones keep clear of its smallest, 2^-9.
inline constexpr float kWeightShift = 6;

/// How far, in bits, a score may exceed what the weights count from: 64 x 2^2.8 is below 448.
inline constexpr float kSlack = 2.8f;

/// -inf would make NaN of a difference; a row without a valid token so far counts from 0.
__device__ __forceinline__ float finite_max(float max) {
  return max == -INFINITY ? 0.f : max;
}

struct RowEnd {
  float max_logits, lse;
  float factor;  // of the sums of V

  /// `max` and `reference` in units of log 2; the latter finite.
  __device__ __forceinline__ RowEnd(const Params& p, float kv_scale, std::uint32_t head, float max,
                                    float reference, float sum, float weights) {
    const float sink = p.attn_sink != nullptr ? p.attn_sink[head] : -INFINITY;
    if (sum < 1) {  // nothing valid (a NaN that was read makes the sum NaN)
      max_logits = -INFINITY;
      lse = p.empty_row_lse;
      factor = 0;
    } else {
      const float log2_sum = __log2f(sum) - kWeightShift + reference;
      max_logits = sum == sum ? max * kLn2 : sum;
      lse = log2_sum * kLn2;
      // exp(lse) / (exp(lse) + exp(sink)), by the difference alone.
      factor =
          __fdividef(kv_scale, weights * (1 + gpu::ptx::exp2_approx(sink * kLog2e - log2_sum)));
    }
    if (sink != sink) factor = sink;
  }
};

}  // namespace serinus::sparse_mla::sm90
