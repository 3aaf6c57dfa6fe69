#include "canary/cuda/serinus/memory.h"

#include "gpu/launch.h"

namespace serinus::canary::cuda {

void clear(const TensorView& tensor, Stream stream) {
  if (tensor.numel() == 0) return;
  const gpu::OnDevice current(tensor.device);
  gpu::check_launch(
      "cudaMemsetAsync",
      cudaMemsetAsync(tensor.data, 0,
                      static_cast<std::size_t>(tensor.numel() * size_of(tensor.dtype)),
                      static_cast<cudaStream_t>(stream.handle)));
}

void upload(void* to, std::span<const std::byte> bytes, Device device, Stream stream) {
  if (bytes.empty()) return;
  const gpu::OnDevice current(device);
  const auto s = static_cast<cudaStream_t>(stream.handle);
  gpu::check_launch("cudaMemcpyAsync",
                    cudaMemcpyAsync(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, s));
  gpu::check_launch("cudaStreamSynchronize", cudaStreamSynchronize(s));
}

}  // namespace serinus::canary::cuda
