// Launches that begin while the one before ends: where small kernels follow each other, the time
// between them is most of their time. Include from .cu files.
#pragma once

#include "gpu/launch.h"

namespace serinus::gpu {

/// Whether the code of `kernel` that the current device runs says when the next launch may begin,
/// and waits for the one before: Hopper's does. Asks once a device: kernels are built alike.
bool launches_overlap(const void* kernel);

/// As launch(), without a cluster; where launches do not overlap, a plain one. The kernel's first
/// act is ptx::follow_previous_grid().
template <class... Args>
void launch_following(const char* what, void (*kernel)(Args...), const Shape& shape, Stream stream,
                      const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch_with(launches_overlap(reinterpret_cast<const void*>(kernel)) ? &early : nullptr, what,
              kernel, shape, stream, args...);
}

}  // namespace serinus::gpu
