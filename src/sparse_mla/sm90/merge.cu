// Splits of a row, merged: a warp a row, in the order of the splits, so always the same bits.
#include <cuda_bf16.h>

#include "gpu/launch.h"
#include "sparse_mla/sm90/launch.h"
#include "sparse_mla/sm90/row_end.cuh"

namespace serinus::sparse_mla::sm90 {

namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ KernelParams k, int heads_of_item) {
  // Tokens that are not split come first.
  const std::int64_t first_token = k.whole / k.head_groups;
  const std::int64_t row =
      first_token * k.p.h_q + std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= k.p.s_q * k.p.h_q) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const auto head = static_cast<std::uint32_t>(row % k.p.h_q);
  const std::int64_t token = row / k.p.h_q - first_token;
  const std::int64_t first_item = (token * k.head_groups + head / heads_of_item) * k.splits;
  const auto partial = [&](std::uint32_t split) {
    return (first_item + split) * heads_of_item + head % heads_of_item;
  };
  float max = -INFINITY, reference = -INFINITY;
  for (std::uint32_t s = 0; s < k.splits; ++s) {
    const PartialStats stats = k.partial_stats[partial(s)];
    max = fmaxf(max, stats.max);
    // Of an empty part the reference says nothing.
    if (stats.sum != 0) reference = fmaxf(reference, stats.reference);
  }
  reference = finite_max(reference);
  float sum = 0, weights = 0;
  float4 acc[4] = {};
  for (std::uint32_t s = 0; s < k.splits; ++s) {
    const PartialStats stats = k.partial_stats[partial(s)];
    const float factor = gpu::ptx::exp2_approx(fminf(stats.reference - reference, 0.f));
    sum += stats.sum * factor;
    weights += stats.weights * factor;
    const auto* v = reinterpret_cast<const uint2*>(k.partial_out + partial(s) * kDV) + lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 x = v[32 * i];
      const float2 lo = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.x));
      const float2 hi = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.y));
      acc[i].x += lo.x * factor;
      acc[i].y += lo.y * factor;
      acc[i].z += hi.x * factor;
      acc[i].w += hi.y * factor;
    }
  }
  const RowEnd end(k.p, *k.p.kv_scale, head, max, reference, sum, weights);
  auto* out = reinterpret_cast<__nv_bfloat162*>(k.p.out + row * kDV) + 2 * lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[64 * i] = __floats2bfloat162_rn(acc[i].x * end.factor, acc[i].y * end.factor);
    out[64 * i + 1] = __floats2bfloat162_rn(acc[i].z * end.factor, acc[i].w * end.factor);
  }
  if (lane == 0) {
    k.p.max_logits[row] = end.max_logits;
    k.p.lse[row] = end.lse;
  }
}

}  // namespace

void launch_merge(const KernelParams& k, const Plan& plan, Stream stream) {
  gpu::Shape shape;
  const std::int64_t rows = (k.p.s_q - plan.whole / plan.head_groups) * k.p.h_q;
  shape.grid = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  shape.block = 32 * kWarps;
  gpu::launch("sparse_mla_merge", merge_kernel, shape, stream, k, plan.heads);
}

}  // namespace serinus::sparse_mla::sm90
