// The ring's own small kernels.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/ring.cuh"
#include "gpu/launch.h"

namespace serinus::canary::cuda {

namespace {

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
