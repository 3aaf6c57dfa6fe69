// Plan on the GPU, and the two small kernels beside it.
//
// One kernel: every CTA computes where each request's entries begin (a scan over at most 4096
// lengths, kept in shared memory: cheaper than a kernel of its own and a place to keep its result),
// then takes its share of the entries. CTA 0 writes the rest of the plan.
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "canary/cuda/grid.h"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/run.h"
#include "gpu/launch.h"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 256;
constexpr int kCtasEach = 3;  // on every multiprocessor
constexpr int kEach = 4;      // entries of a lane, side by side

struct AddLengths {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return add_lengths(a, b);
  }
};
using Scan = cub::BlockScan<std::int64_t, kThreads>;

/// to[r] = sum of length(0 .. r - 1), for r <= n. All threads call it.
template <class Length, class To>
__device__ void scan_lengths(std::int64_t n, Scan::TempStorage& scratch, const Length& length,
                             const To& to) {
  const std::int64_t each = (n + kThreads - 1) / kThreads;
  const std::int64_t begin = threadIdx.x * each;
  const std::int64_t end = begin + each < n ? begin + each : n;
  std::int64_t sum = 0;
  for (std::int64_t r = begin; r < end; ++r) sum = add_lengths(sum, length(r));
  std::int64_t before = 0;
  std::int64_t total = 0;
  Scan(scratch).ExclusiveScan(sum, before, std::int64_t{0}, AddLengths(), total);
  for (std::int64_t r = begin; r < end; ++r) {
    to(r, before);
    before = add_lengths(before, length(r));
  }
  if (threadIdx.x == 0) to(n, total);
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, kCtasEach)
    plan_kernel(const __grid_constant__ PlanParams p) {
  __shared__ std::int64_t firsts[kMaxPlanRequests + 1];
  __shared__ Scan::TempStorage scratch;
  const std::int64_t n = p.num_requests;
  scan_lengths(
      n, scratch, [&p](std::int64_t r) { return plan_row(p, r).entries(); },
      [](std::int64_t r, std::int64_t before) { firsts[r] = before; });
  const std::int64_t total = firsts[n];
  const std::int64_t capacity = plan_capacity(p);
  if (blockIdx.x == 0) {
    scan_lengths(
        n, scratch, [&p](std::int64_t r) { return plan_row(p, r).extend; },
        [&p](std::int64_t r, std::int64_t before) { p.write_offsets[r] = before; });
    for (std::int64_t r = threadIdx.x; r < n; r += kThreads) {
      p.write_seeds[r] = seed_of(p, r, plan_row(p, r));
    }
    for (std::int64_t r = n + 1 + threadIdx.x; r <= p.write_req_capacity; r += kThreads) {
      p.write_offsets[r] = 0;
    }
    if (threadIdx.x == 0) {
      *p.write_num_valid_reqs = static_cast<std::int32_t>(n);
      *p.num_valid = static_cast<std::int32_t>(total < capacity ? total : capacity);
      *p.enable = total <= capacity ? 1 : 0;
    }
  }
  if (total > capacity) return;
  // The last request that starts at or before an entry: empty ones are passed over.
  const auto request_of = [n](std::int64_t entry) {
    std::int64_t r = 0;
    for (std::int64_t above = n; above - r > 1;) {
      const std::int64_t middle = (r + above) / 2;
      (firsts[middle] <= entry ? r : above) = middle;
    }
    return r;
  };
  constexpr int kOfWarp = kEach * kWarp;
  const std::int64_t warps = thread_count() / kWarp;
  for (std::int64_t first = thread_index() / kWarp * kOfWarp; first < total;
       first += warps * kOfWarp) {
    // Most warps have entries of one request.
    const std::int64_t of_first = request_of(first);
    const bool one = first + kOfWarp <= firsts[of_first + 1];
    // All is loaded before anything is stored: the compiler must assume that a store changes what
    // is loaded after it.
    std::int64_t slot[kEach], prev[kEach], position[kEach], token[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t entry = first + i * kWarp + lane_id();
      if (entry >= total) continue;
      const std::int64_t r = one ? of_first : request_of(entry);
      position[i] = plan_row(p, r).start + (entry - firsts[r]);
      slot[i] = slot_at(p, p.rows[r], position[i]);
      prev[i] = position[i] == 0 ? kChainHead : slot_at(p, p.rows[r], position[i] - 1);
      token[i] = expected_token(p, r, position[i]);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t entry = first + i * kWarp + lane_id();
      if (entry >= total) continue;
      p.slots[entry] = slot[i];
      p.prev_slots[entry] = prev[i];
      p.positions[entry] = position[i];
      p.tokens[entry] = token[i];
    }
  }
}

__global__ void translate_kernel(const std::int64_t* slots, std::int64_t count,
                                 const std::int64_t* mapping, std::int64_t size,
                                 std::int64_t* out) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    out[i] = sglang::translate(mapping, size, slots[i]);
  }
}

/// A request a row of CTAs.
__global__ void scatter_kernel(const __grid_constant__ ScatterParams p) {
  const ScatterRow row = scatter_row(p, blockIdx.y);
  for (std::int64_t i = thread_index(); i < row.count; i += thread_count()) {
    scatter_token(p, row, i);
  }
}

}  // namespace

void plan(const PlanParams& p, Device device, Stream stream) {
  gpu::require_gpu("canary plan", device);
  const gpu::OnDevice current(device);
  gpu::launch("canary plan", plan_kernel,
              {grid_for(device, p.verify_capacity, kThreads * kEach, kCtasEach), kThreads}, stream,
              p);
}

void translate(const std::int64_t* slots, std::int64_t count, const std::int64_t* mapping,
               std::int64_t mapping_size, std::int64_t* out, Device device, Stream stream) {
  gpu::require_gpu("canary translate_slots", device);
  const gpu::OnDevice current(device);
  gpu::launch("canary translate_slots", translate_kernel, {grid_for(device, count, 256, 8), 256},
              stream, slots, count, mapping, mapping_size, out);
}

void scatter(const ScatterParams& p, Device device, Stream stream) {
  gpu::require_gpu("canary scatter_req_token_ids", device);
  if (p.num_requests == 0) return;
  const gpu::OnDevice current(device);
  constexpr unsigned kCtasARequest = 4;
  gpu::launch("canary scatter_req_token_ids", scatter_kernel,
              {{kCtasARequest, static_cast<unsigned>(p.num_requests)}, 256}, stream, p);
}

}  // namespace serinus::canary::sglang::cuda
