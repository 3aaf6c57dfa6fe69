// What one rank holds of each request, for an all-gather: a CTA a request reads the records along
// its row and adds their terms up.
#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "canary/cuda/serinus/cells.cuh"
#include "canary/sglang/hash.h"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

constexpr int kRankThreads = 1024;
constexpr int kAhead = 4;  // cells of a thread whose records are on their way at once
using Reduce = cub::BlockReduce<std::uint64_t, kRankThreads>;

/// What a record of the format says about all tokens up to its own.
template <Format kFormat>
__device__ std::uint64_t chain_of(const Record& r) {
  if constexpr (kFormat == Format::serinus) {
    return r.chain;
  } else {
    return is_blank(r) ? 0
                       : sglang::hash::mix3(r.chain, std::uint64_t{r.position} << 32 | r.token,
                                            std::uint64_t{r.generation} << 32 | r.owner);
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kRankThreads)
    request_digests_kernel(const __grid_constant__ PoolParams p,
                           const __grid_constant__ BatchParams b, RequestDigest* digests) {
  __shared__ typename Reduce::TempStorage chain_scratch, kv_scratch;
  const std::int64_t request = blockIdx.x;
  const std::int64_t row = b.rows[request];
  const std::int64_t end = has_row(b.table, row) ? prefix_of(b, request) : 0;
  const std::int32_t* const cells = b.table.cells + (end > 0 ? row * b.table.stride : 0);
  std::uint64_t chain = 0, kv = 0;
  for (std::int64_t first = threadIdx.x; first < end; first += kRankThreads * kAhead) {
    Record records[kAhead];
    bool counts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t cell = first + i * kRankThreads;
      const Place at = cell < end ? place(p, cells[cell]) : Place{};
      counts[i] = at.kind != Place::Kind::absent;
      records[i] = at.kind == Place::Kind::slot ? load_record(p, at.slot) : Record{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!counts[i]) continue;
      const std::int64_t cell = first + i * kRankThreads;
      chain += hash::rank_term(chain_of<kFormat>(records[i]), cell);
      kv += hash::rank_term(records[i].kv_digest, cell);
    }
  }
  chain = Reduce(chain_scratch).Sum(chain);
  kv = Reduce(kv_scratch).Sum(kv);
  if (threadIdx.x != 0) return;
  RequestDigest d;
  d.owner = b.owners[request];
  d.length = b.prefix_lens[request];
  d.chain = chain;
  d.kv = kv;
  digests[request] = d;
}

}  // namespace

void launch_request_digests(const PoolParams& p, Format format, const BatchParams& b,
                            RequestDigest* digests, Device device, Stream stream) {
  if (b.num_requests == 0) return;
  const gpu::OnDevice current(device);
  const auto kernel = format == Format::serinus ? request_digests_kernel<Format::serinus>
                                                : request_digests_kernel<Format::sglang>;
  gpu::launch("canary request_digests", kernel,
              {static_cast<unsigned>(b.num_requests), kRankThreads}, stream, p, b, digests);
}

}  // namespace serinus::canary::cuda
