// How large a tile of slots a CTA takes: large ones waste nothing, small ones fill the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "canary/cuda/serinus/digest.cuh"
#include "gpu/device.h"

namespace serinus::canary::cuda {

inline TileShape tile_shape(const PoolParams& p, std::int64_t slots, Device device) {
  if (p.num_sources == 0 || p.depth == Depth::none) return {kMaxTile, 1};
  const std::int64_t most = p.depth == Depth::partial ? kMaxTile : kMaxTile / 2;
  const std::int64_t share = slots / std::max(1, 4 * gpu::multiprocessors(device));
  TileShape shape{kWarpRows, 1};
  while (shape.rows < share && shape.rows < most) shape.rows *= 2;
  const int lanes = p.depth == Depth::partial ? 1 : kRowLanes;  // that work on a row's part
  while (shape.parts * 2 <= p.num_sources && shape.rows * shape.parts * lanes < kDigestThreads) {
    shape.parts *= 2;
  }
  return shape;
}

}  // namespace serinus::canary::cuda
