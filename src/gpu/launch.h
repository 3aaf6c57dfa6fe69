// How host code launches a kernel: on the caller's device, in the caller's stream, with a failure
// that has a page. Include from .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include <serinus/tensor.h>

namespace serinus::gpu {

/// Throws with the page of a failed launch; `what` is the kernel's name. Clears the error.
void check_launch(const char* what, cudaError_t error);

/// Makes `device` current, and the one before it again at the end.
class OnDevice {
 public:
  explicit OnDevice(Device device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

struct Shape {
  dim3 grid, block;
  unsigned cluster = 1;  ///< CTAs a cluster, along grid.x
  std::size_t shared_bytes = 0;
};

/// Whether the current device runs the code of `kernel` that is built for Hopper, with what only
/// that knows of: clusters, and when the next launch may begin. Asks once a device: kernels are
/// built alike.
bool runs_as_hopper(const void* kernel);

/// What launch() and launch_following() share; `attribute` is given to Hopper's code alone.
template <class... Args>
void launch_with(cudaLaunchAttribute attribute, const char* what, void (*kernel)(Args...),
                 const Shape& shape, Stream stream, const Args&... args) {
  // More than 48 KB of shared memory must be asked for; asking again costs no driver call.
  check_launch(what, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &attribute;
  config.numAttrs = runs_as_hopper(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  check_launch(what, cudaLaunchKernelEx(&config, kernel, args...));
}

/// Clusters of one, too, are named: without, a grid is spread out in another way, and a small one
/// takes 2 us longer.
template <class... Args>
void launch(const char* what, void (*kernel)(Args...), const Shape& shape, Stream stream,
            const Args&... args) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  launch_with(cluster, what, kernel, shape, stream, args...);
}

}  // namespace serinus::gpu
