// How many threads a kernel gets. Include from .cu files.
#pragma once

#include <algorithm>
#include <cstdint>

#include <serinus/tensor.h>

#include "gpu/device.h"

namespace serinus::canary::cuda {

/// CTAs for `items`, `per_cta` each, but no more than `per_multiprocessor` on every one: kernels
/// stride over what is left. At least 1.
inline unsigned grid_for(Device device, std::int64_t items, std::int64_t per_cta,
                         int per_multiprocessor) {
  const std::int64_t needed = items / per_cta + (items % per_cta != 0 ? 1 : 0);
  const std::int64_t most =
      static_cast<std::int64_t>(gpu::multiprocessors(device)) * per_multiprocessor;
  return static_cast<unsigned>(std::max<std::int64_t>(1, std::min(needed, most)));
}

}  // namespace serinus::canary::cuda
