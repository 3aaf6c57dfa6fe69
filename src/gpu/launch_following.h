// Launches that begin while the one before ends: where small kernels follow each other, the time
// between them is most of their time. Include from .cu files.
#pragma once

#include "gpu/launch.h"

namespace serinus::gpu {

/// As launch(), without a cluster; before Hopper, launches do not overlap. The kernel's first act
/// is ptx::follow_previous_grid().
template <class... Args>
void launch_following(const char* what, void (*kernel)(Args...), const Shape& shape, Stream stream,
                      const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch_with(early, what, kernel, shape, stream, args...);
}

}  // namespace serinus::gpu
