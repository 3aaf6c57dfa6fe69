// Launches that begin while the one before ends: where small kernels follow each other, the time
// between them is most of their time. Include from .cu files.
#pragma once

#include "gpu/launch.h"

namespace serinus::gpu {

/// As launch(), without a cluster. The kernel's first act is ptx::follow_previous_grid().
template <class... Args>
void launch_following(const char* what, void (*kernel)(Args...), const Shape& shape, Stream stream,
                      const Args&... args) {
  check_launch(what, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &early;
  config.numAttrs = 1;
  check_launch(what, cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace serinus::gpu
