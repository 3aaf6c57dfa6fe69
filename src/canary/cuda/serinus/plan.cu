// What a step is to check: the next part of every request's prefix, the next of the live slots.
// One CTA each: a few thousand lengths, a few thousand words of bits. And the ring's small kernels.
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/cells.cuh"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

constexpr int kThreads = 512;
using Reduce = cub::BlockReduce<unsigned long long, kThreads>;
using Scan = cub::BlockScan<int, kThreads>;

/// Ranges of every request: what is due; and of `records` cells its share by length, at least one,
/// from where it stopped the last time, in up to two pieces.
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ BatchParams b,
                std::int64_t records, Range* ranges) {
  __shared__ Reduce::TempStorage scratch;
  __shared__ std::uint64_t total;
  const auto prefix = [&](std::int64_t r) -> Range {
    if (b.rows[r] == 0) return {};
    const std::int64_t end = prefix_of(b, r);
    return {first_cell(p, end), end};
  };
  std::uint64_t mine = 0;
  for (std::int64_t r = threadIdx.x; r < b.num_requests; r += kThreads) {
    const Range all = prefix(r);
    mine += static_cast<std::uint64_t>(all.end - all.begin);
  }
  const std::uint64_t sum = Reduce(scratch).Sum(mine);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  for (std::int64_t r = threadIdx.x; r < b.num_requests; r += kThreads) {
    Range* const to = ranges + r * kRangesARequest;
    to[0] = to[1] = to[2] = {};
    const std::int64_t row = b.rows[r];
    if (row == 0 || !has_row(b.table, row)) continue;
    const Range all = prefix(r);
    if (b.due != nullptr) {
      Range due{b.due[2 * r], b.due[2 * r + 1]};
      // A window leaves the last cells only.
      const std::int64_t first = p.window > 0 ? first_cell(p, b.prefix_lens[r]) : 0;
      if (due.begin < first) due.begin = first;
      if (due.end > b.table.width) due.end = b.table.width;
      if (due.begin < due.end) to[0] = due;
    }
    if (all.begin >= all.end) continue;
    const auto length = static_cast<std::uint64_t>(all.end - all.begin);
    const auto share =
        (static_cast<hash::u128>(length) * static_cast<std::uint64_t>(records) + (total - 1)) /
        total;
    std::int64_t n = share > static_cast<hash::u128>(length) ? all.end - all.begin
                                                             : static_cast<std::int64_t>(share);
    if (n < 1) n = 1;
    const bool known = row < p.num_rows;
    RowCursor cursor;
    if (known) cursor = p.cursors[row];
    if (cursor.owner != b.owners[r] || cursor.cell < all.begin || cursor.cell >= all.end) {
      cursor.cell = all.begin;
    }
    const std::int64_t here = n < all.end - cursor.cell ? n : all.end - cursor.cell;
    to[1] = {cursor.cell, cursor.cell + here};
    cursor.cell += here;
    if (here < n) {
      to[2] = {all.begin, all.begin + n - here};
      cursor.cell = to[2].end;
    }
    cursor.owner = b.owners[r];
    if (known) p.cursors[row] = cursor;
  }
}

/// Lists the next `most` live slots from the cursor on, and moves it; a pass ends at the last slot.
__global__ void __launch_bounds__(kThreads)
    sweep_plan_kernel(const __grid_constant__ PoolParams p, const __grid_constant__ RingParams ring,
                      std::int64_t most, std::int64_t* slots, std::int64_t* count) {
  __shared__ Scan::TempStorage scratch;
  const std::int64_t words = (p.num_slots + 31) / 32;
  std::int64_t cursor = *p.sweep_cursor;
  if (!has(p, cursor)) cursor = 0;
  std::int64_t listed = 0;
  std::int64_t next = -1;  // where the following sweep begins; -1 = at the start
  for (std::int64_t w0 = cursor >> 5; w0 < words && next < 0; w0 += kThreads) {
    const std::int64_t w = w0 + threadIdx.x;
    std::uint32_t word = w < words ? p.live[w] : 0;
    if (w == cursor >> 5) word &= ~0u << (cursor & 31);
    int before = 0;
    int total = 0;
    Scan(scratch).ExclusiveSum(__popc(word), before, total);
    __syncthreads();
    std::int64_t at = listed + before;
    std::int64_t mine = -1;
    for (; word != 0; word &= word - 1, ++at) {
      const std::int64_t slot = w * 32 + __ffs(static_cast<int>(word)) - 1;
      if (at < most) slots[at] = slot;
      if (at == most) mine = slot;  // the first that is too many: one thread has it
    }
    __shared__ long long stop;
    if (threadIdx.x == 0) stop = -1;
    __syncthreads();
    if (mine >= 0) stop = mine;
    __syncthreads();
    next = stop;
    listed += total;
  }
  if (threadIdx.x != 0) return;
  *count = listed < most ? listed : most;
  *p.sweep_cursor = next < 0 ? 0 : next;
  if (next < 0) add(ring.header->counts.sweeps, 1);
}

__global__ void clear_ring_kernel(const __grid_constant__ RingParams ring) {
  auto* const words = reinterpret_cast<unsigned long long*>(ring.rows);
  const auto n = static_cast<std::int64_t>((ring.mask + 1) * sizeof(RingRow) / 8);
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) words[i] = 0;
  if (thread_index() == 0) *ring.header = RingHeader{};
}

/// A row that goes takes no new sighting until it is blank: its key is one that no fault has.
__global__ void recycle_ring_kernel(const __grid_constant__ RingParams ring, std::uint64_t number) {
  constexpr unsigned long long kBusy = 2;  // keys are odd
  std::uint64_t freed = 0;
  const auto n = static_cast<std::int64_t>(ring.mask + 1);
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) {
    RingRow& row = ring.rows[i];
    if (row.key == 0 || row.sequence > number) continue;
    atomicExch(counter(row.key), kBusy);
    __threadfence();
    RingRow blank;
    blank.key = kBusy;
    row = blank;
    __threadfence();
    atomicExch(counter(row.key), 0ull);
    ++freed;
  }
  add(ring.header->recycled, freed);
}

__global__ void next_step_kernel(const __grid_constant__ RingParams ring) {
  ++ring.header->counts.steps;
}

}  // namespace

void launch_plan(const PoolParams& p, const BatchParams& b, std::int64_t records, Range* ranges,
                 Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary plan", plan_kernel, {1, kThreads}, stream, p, b, records, ranges);
}

void launch_sweep_plan(const PoolParams& p, const RingParams& ring, std::int64_t most,
                       std::int64_t* slots, std::int64_t* count, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary sweep", sweep_plan_kernel, {1, kThreads}, stream, p, ring, most, slots,
              count);
}

void launch_clear_ring(const RingParams& ring, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary ring", clear_ring_kernel, {grid_for(device, 1 << 16, 256, 1), 256}, stream,
              ring);
}

void launch_recycle_ring(const RingParams& ring, std::uint64_t number, Device device,
                         Stream stream) {
  const gpu::OnDevice current(device);
  const auto rows = static_cast<std::int64_t>(ring.mask + 1);
  gpu::launch("canary ring", recycle_ring_kernel, {grid_for(device, rows, 256, 1), 256}, stream,
              ring, number);
}

void launch_next_step(const RingParams& ring, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary ring", next_step_kernel, {1, 1}, stream, ring);
}

}  // namespace serinus::canary::cuda
