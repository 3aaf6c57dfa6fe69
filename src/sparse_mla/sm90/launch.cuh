#pragma once

#include <algorithm>

#include "gpu/launch.h"
#include "sparse_mla/sm90/kernel.cuh"
#include "sparse_mla/sm90/launch.h"

namespace serinus::sparse_mla::sm90 {

template <int kDQK, int kHeads>
void launch(const KernelParams& k, const Plan& plan, Stream stream) {
  using C = Config<kDQK, kHeads>;
  gpu::Shape shape;
  shape.grid = std::min<unsigned>(k.items, static_cast<unsigned>(plan.slots));
  shape.block = C::kThreads;
  shape.shared_bytes = C::kShared;
  gpu::launch("sparse_mla_sm90", sparse_mla_kernel<C>, shape, stream, k);
}

}  // namespace serinus::sparse_mla::sm90
