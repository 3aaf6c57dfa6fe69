// How tiles of slots are shared out to warps and CTAs: large ones waste nothing, small ones fill
// the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "canary/cuda/serinus/digest.cuh"
#include "gpu/device.h"

namespace serinus::canary::cuda {

/// Without sources there are no bytes, at any depth.
inline Depth depth_of(const PoolParams& p) {
  return p.num_pieces == 0 ? Depth::none : p.depth;
}

/// Calls `f` with the depth as a constant.
template <class F>
void with_depth(const PoolParams& p, const F& f) {
  switch (depth_of(p)) {
    case Depth::none:
      return f(std::integral_constant<Depth, Depth::none>());
    case Depth::partial:
      return f(std::integral_constant<Depth, Depth::partial>());
    case Depth::all:
      return f(std::integral_constant<Depth, Depth::all>());
  }
}

/// The parts of a slot where a CTA shares a tile of `rows`.
inline int parts_of(const PoolParams& p, int rows) {
  const int units = depth_of(p) == Depth::partial ? kThreads : kThreads / kOctet;
  int parts = 1;
  while (parts * 2 <= std::min(p.num_pieces, kMaxParts) && parts * 2 * rows <= units) parts *= 2;
  return parts;
}

inline TileShape tile_shape(const PoolParams& p, std::int64_t slots, Device device) {
  const Depth depth = depth_of(p);
  const int most = depth == Depth::all ? kTileRows<Depth::all> : kTileRows<Depth::partial>;
  const std::int64_t multiprocessors = std::max(1, gpu::multiprocessors(device));
  // A warp on its own, where that gives every warp something to do and none much.
  constexpr int kWarpsEach = 16;
  const bool light = p.slot_bytes <= 4096;
  if (depth == Depth::none || (light && slots >= multiprocessors * kWarpsEach * most)) {
    return {most, 1, false, depth == Depth::all};
  }
  if (depth == Depth::all) {
    // A CTA, where each of its lanes finds a piece of its own, and every CTA several tiles.
    int rows = kWarp;
    while (rows > kOctet && slots / rows < 6 * multiprocessors) rows /= 2;
    if (slots / rows >= 2 * multiprocessors && p.num_strips >= kThreads / rows) {
      return {rows, kWarps, true, true};
    }
  }
  // As many tiles as keep every CTA busy to the end, where a tile is worth its barriers.
  int rows = kWarp;
  while (rows > 1 && slots / rows < 12 * multiprocessors) rows /= 2;
  // An octet, or lane, that has no part of a slot has a slot of its own.
  const int units = depth == Depth::partial ? kThreads : kThreads / kOctet;
  while (rows < kWarp && rows * parts_of(p, rows) < units) rows *= 2;
  return {rows, parts_of(p, rows), true};
}

}  // namespace serinus::canary::cuda
