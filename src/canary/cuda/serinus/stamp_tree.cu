// The first half of a write whose tokens are a tree of drafts (topk > 1): chains go from a token to
// its children. A tree is as deep as drafts are long, so its levels are taken one after another, by
// one CTA a request. What it leaves is what the second half, stamp_kernel, takes from tiles of
// tokens in a line: chains that depend on nothing before their tile.
#include <cstdint>

#include "canary/cuda/serinus/tokens.cuh"
#include "gpu/launch_following.h"
#include "gpu/ptx/grid.cuh"

namespace serinus::canary::cuda {

namespace {

/// A token of those that a CTA works on together.
struct Node {
  std::uint64_t chain;
  std::int64_t cell, position;
  std::int32_t slot;    ///< 0: not stamped
  std::int32_t solved;  ///< all of this is known
};

/// The flat index at which request r begins; of r = num_requests, where all have ended.
__device__ std::int64_t begin_of(const BatchParams& b, std::int64_t r) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < r; i += kThreads) {
    atomicAdd(&sum, static_cast<unsigned long long>(extend_of(b, i)));
  }
  __syncthreads();
  const auto begin = static_cast<std::int64_t>(sum);
  return begin < b.num_tokens ? begin : b.num_tokens;
}

/// A token that was left behind before.
__device__ Node composed_before(const PoolParams& p, const BatchParams& b,
                                const StampedToken& token, std::int64_t j) {
  Node n{0, token.cell, -2, 0, 1};
  if (token.request < 0) return n;
  n.chain = token.chain;
  n.position = b.positions[j];
  n.slot = static_cast<std::int32_t>(stamped_slot(p, b.locations[j]));
  return n;
}

__global__ void __launch_bounds__(kThreads, ctas_each(2))
    compose_tree_kernel(const __grid_constant__ PoolParams p,
                        const __grid_constant__ RingParams ring,
                        const __grid_constant__ BatchParams b, StampedToken* tokens,
                        ChainMap* maps) {
  // In this order, as compose_kernel does: the next grid reads bytes before it waits.
  gpu::ptx::wait_for_previous_grid();
  gpu::ptx::let_next_grid_begin();
  __shared__ Node nodes[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  const bool nobody = blockIdx.x == b.num_requests;  // tokens of padding
  const std::int64_t r = nobody ? -1 : std::int64_t{blockIdx.x};
  const std::int64_t begin = begin_of(b, blockIdx.x);
  const std::int64_t row = nobody ? -1 : b.rows[r];
  std::int64_t end = b.num_tokens;
  if (!nobody) {
    const std::int64_t n = extend_of(b, r);
    if (n < end - begin) end = begin + n;
    if (t == 0 && end - begin != b.extend_lens[r]) {
      report_out_of_range(ring, p, -1, Moment::tail, b.owners[r], row, b.extend_lens[r]);
    }
  } else {
    for (std::int64_t i = t; i * kStampTile < b.num_tokens; i += kThreads) maps[i] = {0, 0};
  }
  const std::int64_t prefix = nobody ? 0 : cells_before(b.prefix_lens[r]);
  for (std::int64_t first = begin; first < end; first += kThreads) {
    const std::int64_t j = first + t;
    const bool inside = j < end;
    const std::int64_t location = inside ? b.locations[j] : -1;
    const std::int64_t position = inside ? b.positions[j] : -1;
    const bool stamped = inside && is_stamped(p, ring, b, j, location, position, r, row);
    std::int64_t parent = -1;
    if (inside && !nobody && row != 0) {
      parent = b.parents[j];
      if (parent != -1 && (parent < begin || parent >= j)) {
        report_out_of_range(ring, p, -1, Moment::tail, b.owners[r], row, parent);
        parent = -1;
      }
    }
    Node mine{0, prefix, position, 0, inside ? 0 : 1};
    if (stamped) mine.slot = static_cast<std::int32_t>(stamped_slot(p, location));
    StampedToken token;
    nodes[t] = mine;
    while (__syncthreads_or(mine.solved == 0 ? 1 : 0) != 0) {
      Node before{0, prefix - 1, -2, 0, 1};
      if (mine.solved == 0 && parent >= first) {
        before = nodes[parent - first];
      } else if (mine.solved == 0 && parent >= 0) {
        before = composed_before(p, b, tokens[parent], parent);
      }
      __syncthreads();
      if (mine.solved != 0 || before.solved == 0) continue;
      mine.cell = token.cell = before.cell + 1;
      mine.solved = 1;
      if (stamped) {
        Before from{before.chain, before.slot};
        if (position == 0 || before.slot == 0 || before.position + 1 != position) {
          from = before_in_row(p, ring, b, position, r, row);
        }
        const std::uint64_t term = hash::token_term(static_cast<std::uint32_t>(b.tokens[j]),
                                                    static_cast<std::uint32_t>(position));
        mine.chain = hash::canonical(hash::chain_step(from.chain, term));
        token.chain = mine.chain;
        token.prev = from.prev;
        token.request = static_cast<std::int32_t>(r);
      }
      nodes[t] = mine;
    }
    if (inside) tokens[j] = token;
    __syncthreads();
  }
}

}  // namespace

void launch_compose_tree(const PoolParams& p, const RingParams& ring, const BatchParams& b,
                         const Workspace& w, Stream stream) {
  gpu::launch_following("canary stamp", compose_tree_kernel,
                        {.grid = static_cast<unsigned>(b.num_requests + 1), .block = kThreads},
                        stream, p, ring, b, w.tokens, w.maps);
}

}  // namespace serinus::canary::cuda
