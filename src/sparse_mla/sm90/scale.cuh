// From a score to a logit in units of log 2: what both scoring warpgroups start from.
#pragma once

#include "gpu/ptx/math.cuh"
#include "sparse_mla/sm90/row_end.cuh"

namespace serinus::sparse_mla::sm90 {

/// Scores change their sign first, if the scale is negative; so everything after works with its
/// magnitude.
struct Scale {
  float signed_scale;
  float slack;  // of a score over the reference

  __device__ __forceinline__ explicit Scale(const Params& p) {
    const float s = p.sm_scale * *p.q_scale * *p.kv_scale * kLog2e;
    // Not 0, which would make NaN of the -inf of a masked score; this is 0 for every real score.
    signed_scale = copysignf(fmaxf(fabsf(s), 1e-37f), s);
    slack = kSlack / scale();
  }
  __device__ __forceinline__ float scale() const { return fabsf(signed_scale); }
};

}  // namespace serinus::sparse_mla::sm90
